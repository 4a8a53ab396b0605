"""The time of the system's clock, without its jumps.

A wrong time server, or a hand, may set the clock days ahead for a moment. What a service did in that moment would stay:
forecasts of the wrong day, readings refused as too old, closures that have ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger("frigate.serve")
AGREE_S = 2.0  # a clock that is brought into line by and by differs by less from one question to the next
BELIEVED_S = 60.0  # a jump that lasts for so long is a correction


def since_boot_s() -> float:
    """Seconds on a clock that nobody sets. It goes on while the machine sleeps, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyTime:
    """Seconds since 1970 UTC. If the system's clock jumps, the time goes on as before for a minute. Thread-safe.

    Parameters
    ----------
    wall
        The system's clock, which may jump.
    steady
        A clock that does not, from any origin.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = since_boot_s) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        self._ahead_s = wall() - steady()  # of the steady clock
        self._jump: tuple[float, float] | None = None  # how far ahead it is since a jump, and when that was

    def __call__(self) -> float:
        with self._lock:
            steady_s = self._steady()
            ahead_s = self._wall() - steady_s
            if abs(ahead_s - self._ahead_s) <= AGREE_S:
                self._ahead_s = ahead_s
                self._jump = None
            elif self._jump is None or abs(ahead_s - self._jump[0]) > AGREE_S:
                self._jump = ahead_s, steady_s
                LOG.warning("the system's clock jumped", extra={"seconds": round(ahead_s - self._ahead_s, 1)})
            elif steady_s - self._jump[1] >= BELIEVED_S:
                LOG.warning("the new time is believed", extra={"seconds": round(ahead_s - self._ahead_s, 1)})
                self._ahead_s = ahead_s
                self._jump = None
            return steady_s + self._ahead_s
