"""The clock: issues a forecast at each step boundary, after a grace time for late readings.

`turn` does what is due and returns; the caller decides when to call it. Of several processes on one store, one has the
lease of the clock (`frigate.serve.lease`). If a forecast takes longer than a step, boundaries are skipped and logged;
boundaries missed while no process was running are not made up for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from frigate.serve.engine import Engine
from frigate.serve.issued import store_issued
from frigate.serve.lease import ASIDE_S, Lease
from frigate.serve.memory import give_back_memory
from frigate.serve.retention import Retention
from frigate.serve.scoring import Scorer

LOG = logging.getLogger("frigate.serve")
STANDBY_S = 2.0  # between attempts to take the clock: far less than a step
FAILURES = 3  # in a row, after which another process may try
STUCK_S = 120.0  # a turn that takes longer, and longer than two steps, will not end


@dataclass
class ClockState:
    """For health and metrics."""

    holder: bool = False
    issued_s: int | None = None  # the latest forecast in the store
    forecasts: int = 0  # made by this process
    skipped: int = 0  # boundaries without a forecast
    seconds: float = 0.0  # duration of the last forecast
    error: str = ""  # of the last turn


class ForecastClock:
    """Issues the forecasts of an engine on time. Not thread-safe.

    Parameters
    ----------
    engine
        Makes the forecasts.
    now
        Returns the time in seconds since 1970 UTC.
    grace_s
        How long to wait after a step boundary for late readings of the snapshot that it ends.
    retention
        Deletes what is old. Default: nothing is deleted.
    lease
        Of the clock. Default: a new one.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        now: Callable[[], float],
        grace_s: float = 20.0,
        retention: Retention | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.engine = engine
        self.lease = lease or Lease(engine.store)
        self.now = now
        self.grace_s = grace_s
        self.state = ClockState()
        self._failures = 0
        self._began: float | None = None  # the turn in progress
        self._scorer = Scorer(engine)
        self._retention = retention

    def due_s(self) -> int:
        """The latest step boundary whose grace time is over."""
        return self.engine.city.boundary(self.now() - self.grace_s)

    def next_s(self) -> float:
        """When the next forecast is due."""
        return int(self.engine.city.boundaries(self.due_s(), 1, 2)[0]) + self.grace_s

    def wait_s(self) -> float:
        """How long until `turn` may have something to do."""
        until = max(0.0, self.next_s() - self.now())
        return until if self.state.holder and not self.state.error else min(until, STANDBY_S)

    def turn(self) -> bool:
        """Make the forecast that is due, if this process holds the clock. Returns whether one was stored."""
        self._began = time.monotonic()
        try:
            try:
                made = self._forecast()
            finally:  # also where no forecast can be stored: the disk may be full
                if self.state.holder and self._retention is not None:
                    self._retention.run_if_due()
        except Exception:
            self._failures += 1
            if self._failures % FAILURES == 0:
                self.give_back()
            raise
        finally:
            self._began = None
        self._failures = 0
        return made

    def beat(self) -> None:
        """Say that this process still makes the forecasts, unless its turn will not end. For another thread."""
        began = self._began
        if began is None or time.monotonic() - began < max(STUCK_S, 2 * self.engine.city.step_s):
            self.lease.beat()

    def give_back(self, *, aside_s: float = ASIDE_S) -> None:
        """Leave the clock to another process, and do not take it again for a while."""
        self.lease.give_back(aside_s=aside_s)
        self.state.holder = False

    def _forecast(self) -> bool:
        state = self.state
        store = self.engine.store
        state.holder = self.lease.hold()
        due_s = self.due_s()
        now_s = self.now()
        latest_s = store.state()[0]
        if latest_s is not None and state.holder and latest_s > now_s + self.engine.city.step_s:
            withdrawn = store.withdraw_forecasts(now_s)
            LOG.warning("the clock went back: forecasts issued in the future were deleted", extra={"count": withdrawn})
            latest_s = store.state()[0]
        state.issued_s = latest_s
        known = latest_s is not None and latest_s >= due_s and store.latest_network() == self.engine.city.version
        if not state.holder or known:
            state.error = ""
            return False
        self._count_skipped(latest_s, due_s)
        began = time.perf_counter()
        term = self.lease.term
        if term is None:  # lost meanwhile
            return False
        issued = self.engine.forecast(due_s, now_s=now_s)
        state.seconds = time.perf_counter() - began
        made = store_issued(store, self.engine.city, issued, term=term)
        state.issued_s = due_s
        state.error = ""
        state.forecasts += made
        LOG.info("forecast", extra={"issued_s": due_s, "seconds": round(state.seconds, 3), "stored": made})
        self._scorer.score(due_s)
        give_back_memory()
        return made

    def _count_skipped(self, latest_s: int | None, due_s: int) -> None:
        if latest_s is None:
            return
        skipped = max(0, round((due_s - latest_s) / self.engine.city.step_s) - 1)
        if skipped:
            self.state.skipped += skipped
            LOG.warning("ticks were skipped", extra={"skipped": skipped, "last_s": latest_s, "due_s": due_s})
