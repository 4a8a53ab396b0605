"""Server-sent events: new forecasts and changed closures. Every process watches the store, so any can send them.

There is no queue per listener: each is sent the difference between the state it last saw and the current one. A slow
listener misses superseded events and costs no memory. The id of an event is the state itself, so that a listener that
comes back is sent the difference too, by any process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from fastapi.sse import ServerSentEvent

from frigate.calendar import utc_iso
from frigate.errors import FrigateError
from frigate.serve.limits import run_quickly
from frigate.serve.store import Store

LOG = logging.getLogger("frigate.serve")
WATCH_S = 1.0
RETRY_MS = 2000

State = tuple[int | None, int]  # of the store: issue time of the latest forecast, number of changes to closures
NOTHING: State = (None, 0)


class Events:
    """Event streams for any number of listeners. `watch` runs as an asyncio task.

    Parameters
    ----------
    store
        The store to watch.
    prepare
        Called before a new forecast is announced, because every listener will then request it.
    """

    def __init__(self, store: Store, prepare: Callable[[], object]) -> None:
        self._store, self._prepare = store, prepare
        self._state: State | None = None  # not read yet
        self._changed = asyncio.Condition()
        self._ended = False
        self.listeners = 0

    async def watch(self) -> None:
        """Poll the store until cancelled."""
        while True:
            try:
                state = await run_quickly(self._store.state)
                if state[0] != (self._state or NOTHING)[0]:
                    await run_quickly(self._prepare)
                if state != self._state:
                    async with self._changed:
                        self._state = state
                        self._changed.notify_all()
            except FrigateError:
                LOG.debug("the store cannot be watched")  # whatever writes to the store logs the reason
            await asyncio.sleep(WATCH_S)

    async def end(self) -> None:
        """End all streams, for shutdown."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    @contextmanager
    def listener(self) -> Iterator[None]:
        """Counts a listener while its stream is open."""
        self.listeners += 1
        try:
            yield
        finally:
            self.listeners -= 1

    async def stream(self, last_event_id: str = "") -> AsyncIterator[ServerSentEvent]:
        """One listener's stream: what changes from now on, or from the event with this id.

        Parameters
        ----------
        last_event_id
            Of the last event that the listener received, if it comes back.
        """
        known = _state_of(last_event_id) or self._state or NOTHING
        yield ServerSentEvent(retry=RETRY_MS)
        while (state := await self._other(known)) is not None:
            if state[0] is not None and state[0] != known[0]:
                # Whoever has received only this event does not know of the closures yet.
                yield ServerSentEvent(
                    event="forecast", data={"issued_at": utc_iso(state[0])}, id=_id_of((state[0], known[1]))
                )
            if state[1] != known[1]:
                yield ServerSentEvent(event="closures", data={"changes": state[1]}, id=_id_of(state))
            known = state

    async def _other(self, known: State) -> State | None:
        """Wait for a state other than the known one; None at the end."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended or self._state not in (None, known))
        return None if self._ended else self._state


def _id_of(state: State) -> str:
    return f"{state[0] or ''}.{state[1]}"


def _state_of(event_id: str) -> State | None:
    """None for an id that is none of ours."""
    issued, dot, changes = event_id.partition(".")
    if not (dot and changes.isdecimal() and (issued.isdecimal() or not issued)):
        return None
    return (int(issued) if issued else None), int(changes)
