"""Notices: what an import accepted but reports, each kind once, with its count and the first places in the input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MAX_PLACES = 20  # listed for each kind; the count covers all


class RowSource(Protocol):
    """A table that can say where its rows are in their file."""

    def places(self, rows: Collection[int]) -> dict[int, str]: ...


@dataclass(frozen=True)
class TableRow:
    """A row of a table, and text to show after it. The line is looked up only when it is shown."""

    text: str
    source: RowSource
    row: int

    def __str__(self) -> str:
        return place_texts([self])[0]


Place = TableRow | str  # a place in the input


def place_texts(places: Sequence[Place]) -> list[str]:
    """The places as text, with one pass through each table."""
    rows = [p for p in places if isinstance(p, TableRow)]
    sources = {id(p.source): p.source for p in rows}
    found = {key: source.places({p.row for p in rows if p.source is source}) for key, source in sources.items()}
    return [p if isinstance(p, str) else found[id(p.source)][p.row] + p.text for p in places]


@dataclass
class Notices:
    """Collects notices while a city is read."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[Place]] = field(default_factory=dict)

    def add(self, what: str, count: int) -> None:
        if count:
            self.counts[what] = self.counts.get(what, 0) + count

    def add_rows(
        self, what: str, rows: NDArray[np.bool_], place: Callable[[int], Place] | None, *, limit: int = MAX_PLACES
    ) -> None:
        """Count the rows of a mask and keep the places of the first ones. `place` maps an index to its place."""
        self.add(what, int(rows.sum()))
        if what in self.counts and place is not None:
            known = self.places.setdefault(what, [])
            known += [place(row) for row in np.flatnonzero(rows)[: limit - len(known)].tolist()]

    def sentences(self) -> dict[str, tuple[str, ...]]:
        """A sentence for each kind, with its first places if there are more than the one in the sentence."""
        places = [(what, place) for what in self.counts for place in self.places.get(what, ())]
        found: dict[str, list[str]] = {what: [] for what in self.counts}
        for (what, _), text in zip(places, place_texts([place for _, place in places]), strict=True):
            found[what].append(text)
        sentences = {}
        for what, count in self.counts.items():
            known = found[what]
            first = f" (first: {known[0]})" if known else ""
            more = [f"and {count - len(known):,} more"] if len(known) < count else []
            sentences[f"{what}: {count:,}{first}."] = (*known, *more) if len(known) > 1 else ()
        return sentences
