"""Closes idle connections. uvicorn alone would wait forever for the head of a request."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from frigate.serve.problems import problem

IDLE_S = 30.0


class Connection(H11Protocol):
    """Closes itself when no request has started for a while and none is in progress."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._check_later(None)

    def _check_later(self, last: RequestResponseCycle | None) -> None:
        self._idle_check = self.loop.call_later(IDLE_S, self._close_if_idle, last)

    def _close_if_idle(self, last: RequestResponseCycle | None) -> None:
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.close()
        else:
            self._check_later(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle_check.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP never reaches the app; its answer is a problem all the same."""
        answer = problem(400, msg)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        head = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
