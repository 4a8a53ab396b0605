"""The time of a service that a replay drives: it stands still until the replay says that a step has passed."""

from __future__ import annotations

from frigate.serve.store import Store

FACT = "replay time"


class ReplayTime:
    """Seconds since 1970 UTC. It lies in the store: restarts and other processes go by the same.

    Parameters
    ----------
    store
        Of a replay: a store with live readings is refused by its city's name (`Store.claim`).
    start_s
        What it says before a replay has begun.
    """

    def __init__(self, store: Store, start_s: float) -> None:
        self._store, self._now_s = store, start_s
        self.known = False  # whether a replay has begun
        self.refresh()

    def __call__(self) -> float:
        return self._now_s

    def set(self, time_s: float) -> None:
        self._store.set_fact(FACT, repr(time_s))
        self._now_s, self.known = time_s, True

    def refresh(self) -> None:
        """Take over what another process was told."""
        found = self._store.fact(FACT)
        if found is not None:
            self._now_s, self.known = float(found), True
