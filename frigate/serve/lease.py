"""Who makes the forecasts: of several processes on one store, the one that has the lease of the clock.

A lock of the system (`Store.hold_clock`) tells at once that its holder has died, but a frozen process keeps it, and so
does one that always fails. So the holder also writes to the store that it is alive, every `BEAT_S`. Where this has not
changed for `OLD_S`, by the clock of who looks, another process begins a new term. A forecast is stored in the term that
it was made in, so that a process that wakes up later stores nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from frigate.errors import FrigateError
from frigate.serve.store import LeaseState, Store

LOG = logging.getLogger("frigate.serve")
BEAT_S = 2.0
OLD_S = 20.0  # without a beat; a slow disk or a busy machine is not taken for a frozen process
ASIDE_S = 30.0  # for which a process that lost the lease, or gave it back, leaves it to the others


class Lease:
    """The lease of the clock, as one process sees it. Thread-safe.

    Parameters
    ----------
    store
        Of the service.
    steady
        A clock that does not jump, from any origin.
    """

    def __init__(self, store: Store, *, steady: Callable[[], float] = time.monotonic) -> None:
        self.holder = f"{socket.gethostname()}:{os.getpid()}"
        self._store = store
        self._steady = steady
        self._lock = threading.RLock()
        self._term: int | None = None  # while this process has the lease
        self._beaten = float("-inf")
        self._not_before = float("-inf")
        self._seen: tuple[LeaseState, float] | None = None  # what the store said last, and since when

    @property
    def term(self) -> int | None:
        """In which forecasts are stored; None without the lease."""
        return self._term

    def hold(self) -> bool:
        """Take the lease if it is free, or its holder dead or frozen. Returns whether this process has it."""
        with self._lock:
            return self.beat() if self._term is not None else self._take()

    def beat(self) -> bool:
        """Say that this process is alive. Returns whether it still has the lease."""
        with self._lock:
            if self._term is None or self._steady() - self._beaten < BEAT_S:
                return self._term is not None
            if not self._store.beat(self._term):
                LOG.warning("another process has taken the clock", extra={"holder": self._store.lease().holder})
                self._leave(ASIDE_S)
                return False
            self._beaten = self._steady()
            self._store.hold_clock()  # which a process that was frozen may have kept so far
            return True

    def give_back(self, *, aside_s: float = ASIDE_S) -> None:
        """Leave the lease to the others, if this process has it, and do not take it again for a while."""
        with self._lock:
            term = self._term
            if term is None:
                return
            self._leave(aside_s)
            with suppress(FrigateError):  # then it grows old
                self._store.end_lease(term)

    def _take(self) -> bool:
        now = self._steady()
        if now < self._not_before:
            return False
        locked = self._store.hold_clock()
        found = self._store.lease()
        if self._seen is None or self._seen[0] != found:
            self._seen = found, now
        if found.holder and not locked and now - self._seen[1] < OLD_S:
            return False
        self._term = self._store.take_lease(found, self.holder)
        if self._term is None:
            return False
        self._beaten = now
        LOG.info("took the clock", extra={"term": self._term, "last_holder": found.holder})
        return True

    def _leave(self, aside_s: float) -> None:
        self._term = self._seen = None
        self._not_before = self._steady() + aside_s
        self._store.release_clock()
