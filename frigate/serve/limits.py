"""Limits on clients: size of a body, time to send it, requests per second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from frigate.serve.batches import BusyError

T = TypeVar("T")
_QUICK_THREADS = anyio.CapacityLimiter(8)  # readings, tokens, health
_CHILD_THREADS = anyio.CapacityLimiter(2)  # each waits for a child process
MAX_WAITING = 16  # for one of them: a longer queue would only time out
MANY = 10_000  # whose request rate is remembered


@dataclass(frozen=True)
class Limits:
    """Limits on requests."""

    body_mb: float = 8.0  # a batch of readings
    small_body_kb: float = 128.0  # every other body
    rows: int = 50_000  # per batch of readings
    rate: float = 200.0  # requests per second, by token (or by address if there is none)
    streams: int = 200  # open event streams, all clients together
    streams_each: int = 50  # of one token
    body_s: float = 30.0  # time to send a body
    what_ifs: int = 4  # waiting or running, all clients together

    @property
    def body_bytes(self) -> int:
        return int(self.body_mb * 1024**2)

    @property
    def small_body_bytes(self) -> int:
        return int(self.small_body_kb * 1024)


async def run_quickly(call: Callable[[], T]) -> T:
    """Run a short blocking call in a thread of its own pool, so that it never waits for long requests."""
    return await anyio.to_thread.run_sync(call, limiter=_QUICK_THREADS)


async def run_with_child(call: Callable[[], T]) -> T:
    """Run a call that waits for a child process in a thread of its own pool. BusyError if too many wait already."""
    if _CHILD_THREADS.statistics().tasks_waiting >= MAX_WAITING:
        raise BusyError("too many large batches at once. Send this one again in a moment")
    return await anyio.to_thread.run_sync(call, limiter=_CHILD_THREADS)


def limited(receive: Receive, headers: Mapping[str, str], *, most: int, seconds: float) -> Receive:
    """`receive` of a request that refuses a body that is too large, too slow or compressed, once it is read.

    Parameters
    ----------
    headers
        Of the request.
    most
        Bytes that the body may have.
    seconds
        In which it must arrive.
    """
    left = most
    complete = False
    deadline = time.monotonic() + seconds
    declared = headers.get("content-length", "0")
    shown = f"{most / 2**20:g} MB" if most >= 2**20 else f"{most / 1024:g} kB"
    too_large = HTTPException(413, f"the body is larger than {shown}. Send it in parts", {"Connection": "close"})

    async def limited_receive() -> Message:
        nonlocal left, complete
        if complete:
            return await receive()
        if declared.isdigit() and int(declared) > most:
            raise too_large
        if headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "the body is compressed. Send it uncompressed")
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            slow = f"the body did not arrive within {seconds:g} s"
            raise HTTPException(408, slow, {"Connection": "close"}) from None
        left -= len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if left < 0:
            raise too_large
        return message

    return limited_receive


class Quota:
    """Readings per minute, for each token. A batch may be as large as the quota."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # by token: readings left, and when that was counted

    def wait_s(self, token: str, per_minute: int, readings: int, *, take: bool) -> float:
        """How long the client must wait before it may send so many readings; 0 if it may now.

        Parameters
        ----------
        token
            Its id.
        per_minute
            Its quota.
        readings
            How many it wants to send.
        take
            Whether to count them, if it may.
        """
        now = self._clock()
        left, then = self._left.get(token, (float(per_minute), now))
        left = min(per_minute, left + (now - then) * per_minute / 60)
        enough = left >= readings
        self._left[token] = (left - readings if enough and take else left, now)
        return 0.0 if enough else (readings - left) * 60 / per_minute


class Rate:
    """A token bucket per client: `per_s` requests per second, in bursts of up to two seconds' worth."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # by client: requests left, and when that was counted

    def wait_s(self, client: str) -> float:
        """How long the client must wait; 0 if it may proceed."""
        now = self._clock()
        most = max(1.0, 2 * self._per_s)
        left, then = self._left.pop(client, (most, now))
        left = min(most, left + (now - then) * self._per_s)
        self._left[client] = (left - 1 if left >= 1 else left, now)  # most recent client last
        if len(self._left) > MANY:
            del self._left[next(iter(self._left))]
        return 0.0 if left >= 1 else (1 - left) / self._per_s
