"""Server-sent events: new forecasts and changed closures. Every process watches the store, so any can send them.

There is no queue per listener: each is sent the difference between the state it last saw and the current one. A slow
listener misses superseded events and costs no memory. The id of an event is the state itself, so that a listener that
comes back is sent the difference too, by any process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from fastapi.sse import ServerSentEvent

from frigate.calendar import utc_iso
from frigate.errors import FrigateError
from frigate.serve.auth import Caller, TokenCheck
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
    gate
        Knows whose token is still valid.
    prepare
        Called before a new forecast is announced, because every listener will then request it.
    """

    def __init__(self, store: Store, gate: TokenCheck, prepare: Callable[[], object]) -> None:
        self._store = store
        self._gate = gate
        self._prepare = prepare
        self._state: State | None = None  # not read yet
        self._polled = asyncio.Condition()
        self._ended = False
        self._listeners = Counter[str]()  # by caller

    async def watch(self) -> None:
        """Poll the store until cancelled."""
        while True:
            try:
                state = await run_quickly(self._store.state)
                if state[0] != (self._state or NOTHING)[0]:
                    await self._prepared()
                self._state = state
                await run_quickly(self._gate.refresh)
            except FrigateError:
                LOG.debug("the store cannot be watched")  # whatever writes to the store logs the reason
            except Exception:  # the watch goes on, whatever it was
                LOG.exception("the store cannot be watched")
            async with self._polled:
                self._polled.notify_all()
            await asyncio.sleep(WATCH_S)

    async def _prepared(self) -> None:
        """Prepare a new forecast, if it can be read: it is announced all the same, and so are closures."""
        try:
            await run_quickly(self._prepare)
        except Exception as error:
            LOG.warning("a new forecast cannot be read", extra={"error": repr(error)})

    async def end(self) -> None:
        """End all streams, for shutdown."""
        async with self._polled:
            self._ended = True
            self._polled.notify_all()

    @property
    def listeners(self) -> int:
        """How many streams are open."""
        return self._listeners.total()

    def listeners_of(self, caller: Caller) -> int:
        """How many streams of this caller are open."""
        return self._listeners[caller.key]

    @contextmanager
    def listener(self, caller: Caller) -> Iterator[None]:
        """Counts a listener while its stream is open."""
        self._listeners[caller.key] += 1
        try:
            yield
        finally:
            self._listeners[caller.key] -= 1
            if not self._listeners[caller.key]:
                del self._listeners[caller.key]

    async def stream(self, caller: Caller, last_event_id: str = "") -> AsyncIterator[ServerSentEvent]:
        """One listener's stream: what changes from now on, or from the event with this id.

        It ends with the service, and when the caller's token is no longer valid.

        Parameters
        ----------
        caller
            Who listens.
        last_event_id
            Of the last event that the listener received, if it comes back.
        """
        known = _state_of(last_event_id) or self._state or NOTHING
        yield ServerSentEvent(retry=RETRY_MS)
        while (state := await self._other(known, caller)) is not None:
            if state[0] is not None and state[0] != known[0]:
                # Whoever has received only this event does not know of the closures yet.
                yield ServerSentEvent(
                    event="forecast", data={"issued_at": utc_iso(state[0])}, id=_id_of((state[0], known[1]))
                )
            if state[1] != known[1]:
                yield ServerSentEvent(event="closures", data={"changes": state[1]}, id=_id_of(state))
            known = state

    async def _other(self, known: State, caller: Caller) -> State | None:
        """Wait for a state other than the known one; None at the end."""

        def ended() -> bool:
            return self._ended or not self._gate.admits(caller)

        async with self._polled:
            await self._polled.wait_for(lambda: ended() or self._state not in (None, known))
        return None if ended() else self._state


def _id_of(state: State) -> str:
    return f"{state[0] or ''}.{state[1]}"


def _state_of(event_id: str) -> State | None:
    """None for an id that is none of ours."""
    issued, dot, changes = event_id.partition(".")
    if not (dot and changes.isdecimal() and (issued.isdecimal() or not issued)):
        return None
    return (int(issued) if issued else None), int(changes)
