"""The time of a service in replay: it stands still until the replay sets it."""

from __future__ import annotations

from frigate.serve.store import LAST_S, Store

FACT = "replay time"


class ReplayTime:
    """Seconds since 1970 UTC. Kept in the store, so that it survives restarts and all processes share it.

    Parameters
    ----------
    store
        A store used for replays only; `Store.claim` refuses one with live readings.
    start_s
        The time before a replay has begun.
    """

    def __init__(self, store: Store, start_s: float) -> None:
        self._store = store
        self._now_s = start_s
        self.known = False  # whether a replay has begun
        self.refresh()

    def __call__(self) -> float:
        return self._now_s

    def set(self, time_s: float) -> None:
        self._store.set_fact(FACT, repr(time_s))
        self._now_s = time_s
        self.known = True

    def refresh(self) -> None:
        """Read the time that another process may have been told."""
        found = self._store.fact(FACT)
        if found is not None:
            self._now_s = min(max(float(found), 0.0), float(LAST_S))
            self.known = True
