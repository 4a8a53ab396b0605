"""What was accepted but has to be said, and where it stood: each kind once, with its count and its first places."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAX_PLACES = 20  # of each kind; the count says how many there are


@dataclass(frozen=True)
class Spot:
    """A data row of a file and a word about it, or the word alone. Its line is looked up only when it is told."""

    text: str
    path: Path | None = None
    row: int = 0

    def place(self) -> str:
        return places([self])[0]


def place(path: Path, row: int) -> str:
    """The name a person uses for a data row: `readings.csv line 812`, `readings.parquet row 811`."""
    return Spot("", path, row).place()


def places(spots: Sequence[Spot]) -> list[str]:
    """Where each of them is, with one look through each file."""
    rows_of: dict[Path, list[int]] = {}
    for spot in spots:
        if spot.path is not None and spot.path.suffix == ".csv":
            rows_of.setdefault(spot.path, []).append(spot.row)
    lines = {path: _lines(path, rows) for path, rows in rows_of.items()}

    def where(spot: Spot) -> str:
        if spot.path is None:
            return ""
        if spot.path in lines:
            return f"{spot.path.name} line {lines[spot.path][spot.row]}"
        return f"{spot.path.name} row {spot.row + 1}"

    return [where(spot) + spot.text for spot in spots]


def _lines(path: Path, rows: Collection[int]) -> dict[int, int]:
    """The line at which each data row begins. A quoted field may hold line breaks, so that rows are not lines."""
    lines = {row: row + 2 for row in rows}
    last, begins = max(rows), 1
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file)
            for row, _ in enumerate(reader, -1):  # -1 is the line of names
                if row in lines:
                    lines[row] = begins
                if row >= last:
                    break
                begins = reader.line_num + 1
    except (csv.Error, OSError):
        pass  # the row number stands in for the line
    return lines


@dataclass
class Notices:
    """Gathers what has to be said while a city is read."""

    counts: dict[str, int] = field(default_factory=dict)
    spots: dict[str, list[Spot]] = field(default_factory=dict)

    def add(self, what: str, count: int) -> None:
        if count:
            self.counts[what] = self.counts.get(what, 0) + count

    def add_rows(
        self, what: str, rows: NDArray[np.bool_], spot: Callable[[int], Spot], *, most: int = MAX_PLACES
    ) -> None:
        """The same, with the first places: `spot` says where one of the rows is."""
        self.add(what, int(rows.sum()))
        if what in self.counts:
            held = self.spots.setdefault(what, [])
            held += [spot(row) for row in np.flatnonzero(rows)[: most - len(held)].tolist()]

    def told(self) -> dict[str, tuple[str, ...]]:
        """One sentence of each kind, with the places that belong beneath it where it names only the first."""
        spots = [(what, spot) for what in self.counts for spot in self.spots.get(what, ())]
        found: dict[str, list[str]] = {what: [] for what in self.counts}
        for (what, _), where in zip(spots, places([spot for _, spot in spots]), strict=True):
            found[what].append(where)
        told = {}
        for what, count in self.counts.items():
            held = found[what]
            first = f" (first: {held[0]})" if held else ""
            more = [f"and {count - len(held):,} more"] if len(held) < count else []
            told[f"{what}: {count:,}{first}."] = (*held, *more) if len(held) > 1 else ()
        return told
