"""What a process knows of the quarantine, so that it need not ask the store for every batch and every scrape."""

from __future__ import annotations

from collections.abc import Mapping

from frigate.serve.store import Actor, Store


class Quarantine:
    """The readings in quarantine, by node. `refresh` it now and then: other processes put some there too."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.counts: Mapping[str, int] = {}  # readings in quarantine
        self._released: Mapping[str, tuple[float, float]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Ask the store."""
        self.counts = self._store.count_quarantined()
        self._released = self._store.released()

    def released(self) -> Mapping[str, tuple[float, float]]:
        """The lowest and highest reading of each node that an operator has released."""
        return self._released

    def release(self, node: str, now_s: float, by: Actor) -> int:
        """Let forecasts use what is in quarantine of a node. Returns how many readings that are."""
        released = self._store.release(node, now_s, by)
        self.refresh()
        return released
