"""Connections: idle ones are closed, too many are refused, and who is at the other end of a Unix socket is known.

uvicorn alone would wait forever for the head of a request and for a client to read its answer, and accept connections
until none of the process's descriptors is left for its files.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus

import h11
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from frigate.serve.memory import raise_descriptor_limit
from frigate.serve.problems import problem

IDLE_S = 30.0
WRITE_S = 30.0  # in which a client must read something of what it was sent
KEPT = 256  # descriptors for the store, files and workers
RETRY_S = 10


def most_connections() -> int:
    """How many clients may be connected at once."""
    return max(1, raise_descriptor_limit() - KEPT)


class Connection(H11Protocol):
    """Closes itself when no request has started for a while and none is in progress, or an answer is not read."""

    most = 1024 - KEPT  # at once; `Server` sets it to what the system allows

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "peer_uid": _peer_uid(transport)}  # in the scope of every request
        self._check_later(None)
        self._watch_writing(0)
        if len(self.connections) > self.most:
            self._refuse(problem(503, "too many connections", headers={"Retry-After": str(RETRY_S)}))

    def _check_later(self, last: RequestResponseCycle | None) -> None:
        self._idle_check = self.loop.call_later(IDLE_S, self._close_if_idle, last)

    def _close_if_idle(self, last: RequestResponseCycle | None) -> None:
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.close()
        else:
            self._check_later(self.cycle)

    def _watch_writing(self, unread: int) -> None:
        """Leave a client that has read nothing since there were so many bytes that it had not read."""
        left = self.transport.get_write_buffer_size()
        if 0 < unread <= left:
            self.transport.abort()
        else:
            self._write_check = self.loop.call_later(WRITE_S, self._watch_writing, left)

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle_check.cancel()
        self._write_check.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP never reaches the app; its answer is a problem all the same.

        A body may turn out to be none after the app was given its head: what the app answers is then dropped.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(problem(400, msg))
        else:  # the head of another answer is on its way
            self.transport.close()

    def _refuse(self, answer: Response) -> None:
        """Answer instead of the app, and close."""
        headers = [*answer.raw_headers, (b"connection", b"close")]
        reason = HTTPStatus(answer.status_code).phrase.encode()
        head = h11.Response(status_code=answer.status_code, headers=headers, reason=reason)
        for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _peer_uid(transport: asyncio.Transport) -> int | None:
    """The user at the other end of a Unix socket, as the kernel says; None for TCP."""
    found: socket.socket = transport.get_extra_info("socket")
    if found.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):  # only Linux has it
        return None
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)
