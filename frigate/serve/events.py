"""Server-sent events: new forecasts and changed closures. Every process watches the store, so any can send them.

There is no queue per listener: each is sent the difference between the state it last saw and the current one. A slow
listener misses superseded events and costs no memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable

from frigate.calendar import utc_iso
from frigate.errors import FrigateError
from frigate.serve.limits import run_quickly
from frigate.serve.store import Store

LOG = logging.getLogger("frigate.serve")
WATCH_S = 1.0
KEEPALIVE_S = 15.0

State = tuple[int | None, int]  # of the store: issue time of the latest forecast, number of changes to closures


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
        self._state: State = (None, 0)
        self._changed = asyncio.Condition()
        self._ended = False
        self.listeners = 0

    async def watch(self) -> None:
        """Poll the store until cancelled."""
        while True:
            try:
                state = await run_quickly(self._store.state)
                if state[0] != self._state[0]:
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

    async def stream(self) -> AsyncIterator[str]:
        """The text of one listener's stream."""
        self.listeners += 1
        try:
            known = self._state
            yield "retry: 2000\n: welcome\n\n"
            while not self._ended:
                if self._state == known and not await self._wait(known):
                    yield ": still here\n\n"
                state = self._state
                before = known
                known = state
                if state[0] is not None and state[0] != before[0]:
                    yield _event("forecast", {"issued_at": utc_iso(state[0])})
                if state[1] != before[1]:
                    yield _event("closures", {"changes": state[1]})
        finally:
            self.listeners -= 1

    async def _wait(self, known: State) -> bool:
        """Wait for a change. Returns False if it is time for a keepalive first."""
        async with self._changed:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    await self._changed.wait_for(lambda: self._ended or self._state != known)
            except TimeoutError:
                return False
        return True


def _event(name: str, data: dict[str, object]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
