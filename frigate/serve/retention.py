"""What is deleted because it is old, and what is not although it seems to be.

Age is counted from the newest reading, not from the clock: so a clock that is wrong makes nothing old, and a store that
gets no more readings keeps those that it has. The clock must also have run evenly for some minutes. And no run deletes
more than half of a store: the next one, an hour later, goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from frigate.calendar import DAY_S
from frigate.serve.steady_time import AGREE_S, since_boot_s
from frigate.serve.store import Store

LOG = logging.getLogger("frigate.serve")
EVEN_S = 600.0  # how long the clock must have run evenly
EVERY_S = 3600.0


class Retention:
    """Deletes old rows of a store, once an hour. Not thread-safe.

    Parameters
    ----------
    store
        What to delete from.
    now
        Returns the time in seconds since 1970 UTC.
    keep_days
        How long readings, forecasts and ended closures are kept.
    steady
        A clock that does not jump, from any origin. Default: since the machine started.
    """

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], float],
        keep_days: float,
        steady: Callable[[], float] = since_boot_s,
    ) -> None:
        self._store = store
        self._now = now
        self._steady = steady
        self._keep_s = keep_days * DAY_S
        self._ahead_s = now() - steady()
        self._even_since = steady()
        self._next = steady()

    def run_if_due(self) -> None:
        """Delete what is too old, if that is due. Call it often: it notices a clock that jumps between two calls."""
        steady_s = self._steady()
        now_s = self._now()
        if abs(now_s - steady_s - self._ahead_s) > AGREE_S:
            self._even_since = steady_s
        self._ahead_s = now_s - steady_s
        if steady_s >= max(self._next, self._even_since + EVEN_S):
            self._next = steady_s + EVERY_S
            self._run(now_s)

    def _run(self, now_s: float) -> None:
        store = self._store
        gone = 0
        newest_s = store.newest_reading_s(now_s)
        if newest_s is not None:
            before_s = self._limit("readings", newest_s, store.middle_reading_s())
            gone = store.forget_readings(before_s) + store.forget_closures(before_s)
        gone += store.forget_forecasts(self._limit("forecasts", now_s, store.middle_forecast_s()))
        LOG.info("forgot", extra={"rows": gone})

    def _limit(self, what: str, newest_s: float, middle_s: int | None) -> int:
        """What is older may be deleted now."""
        limit_s = int(newest_s - self._keep_s)
        if middle_s is not None and limit_s > middle_s:
            LOG.warning("most of what is stored is too old: half of it is deleted now", extra={"kind": what})
            return middle_s
        return limit_s
