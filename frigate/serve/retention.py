"""What is deleted because it is old, and what is not although it seems to be.

Age is counted from the newest reading, not from the clock: so a clock that is wrong makes nothing old, and a store that
gets no more readings keeps those that it has. Readings are so judged when a service starts, and then every hour.
Forecasts and the audit trail have the time of the clock, which must have run evenly for some minutes before they are.
And no run deletes more than half of a store: the next one goes on.
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
        How long readings, forecasts and ended closures are kept; None: for ever.
    audit_days
        How long the audit trail is; None: for ever.
    steady
        A clock that does not jump, from any origin. Default: since the machine started.
    """

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], float],
        keep_days: float | None,
        audit_days: float | None = None,
        steady: Callable[[], float] = since_boot_s,
    ) -> None:
        self._store = store
        self._now = now
        self._steady = steady
        self._keep_s = None if keep_days is None else keep_days * DAY_S
        self._audit_s = None if audit_days is None else audit_days * DAY_S
        self._ahead_s = now() - steady()
        self._even_since = steady()
        self._next = steady()
        self._next_even = steady() + EVEN_S

    def run_if_due(self) -> None:
        """Delete what is too old, if that is due. Call it often: it notices a clock that jumps between two calls."""
        steady_s = self._steady()
        now_s = self._now()
        if abs(now_s - steady_s - self._ahead_s) > AGREE_S:
            self._even_since = steady_s
        self._ahead_s = now_s - steady_s
        gone = 0
        if steady_s >= self._next:
            self._next = steady_s + EVERY_S
            gone += self._forget_readings(now_s)
        if steady_s >= max(self._next_even, self._even_since + EVEN_S):
            self._next_even = steady_s + EVERY_S
            gone += self._forget_forecasts(now_s) + self._forget_audit(now_s)
        if gone:
            LOG.info("forgot", extra={"rows": gone})

    def _forget_readings(self, now_s: float) -> int:
        newest_s = None if self._keep_s is None else self._store.newest_reading_s(now_s)
        if newest_s is None or self._keep_s is None:
            return 0
        before_s = _limit("readings", newest_s - self._keep_s, self._store.middle_reading_s())
        return self._store.forget_readings(before_s) + self._store.forget_closures(before_s)

    def _forget_forecasts(self, now_s: float) -> int:
        if self._keep_s is None:
            return 0
        before_s = _limit("forecasts", now_s - self._keep_s, self._store.middle_forecast_s())
        return self._store.forget_forecasts(before_s)

    def _forget_audit(self, now_s: float) -> int:
        found = None if self._audit_s is None else self._store.audit_span_s()
        if found is None or self._audit_s is None:
            return 0
        newest_s, middle_s = found
        return self._store.forget_audit(_limit("audit", min(now_s, newest_s) - self._audit_s, int(middle_s)))


def _limit(what: str, old_s: float, middle_s: int | None) -> int:
    """What is older may be deleted now."""
    limit_s = int(old_s)
    if middle_s is not None and limit_s > middle_s:
        LOG.warning("most of what is stored is too old: half of it is deleted now", extra={"kind": what})
        return middle_s
    return limit_s
