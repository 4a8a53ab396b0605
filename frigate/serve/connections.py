"""Connections that bring nothing are closed: uvicorn waits for the head of a request for as long as it takes."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

IDLE_S = 30.0


class Connection(H11Protocol):
    """Closes itself when no request was begun for a while, and none is being answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_again(None)

    def _look_again(self, last: RequestResponseCycle | None) -> None:
        self._look = self.loop.call_later(IDLE_S, self._close_if_idle, last)

    def _close_if_idle(self, last: RequestResponseCycle | None) -> None:
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.close()
        else:
            self._look_again(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)
