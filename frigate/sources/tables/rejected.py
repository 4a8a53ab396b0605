"""Rows that an import could not use: each listed in a report with its file, line, column, value and the reason."""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.data.notices import Notices
from frigate.errors import CityError

HEADER = ("file", "line", "column", "value", "reason")


class Source(Protocol):
    """A table that knows the lines of its rows."""

    @property
    def path(self) -> Path: ...

    def lines(self, rows: Collection[int]) -> dict[int, int]:
        """The line at which each data row begins; of a Parquet file, its row from 1 on."""

    def place(self, row: int) -> str: ...


@dataclass(frozen=True)
class _RejectedFile:
    """Rows rejected for one reason."""

    source: Source
    rows: NDArray[np.int64]  # of the file
    column: str
    values: list[str]
    reasons: list[str]


@dataclass
class Rejected:
    """Gathers the rows that are left out. A row is listed once, under the first reason found."""

    parts: list[_RejectedFile] = field(default_factory=list)

    def add(
        self, source: Source, rows: NDArray[np.integer], column: str, values: pl.Series, reason: str | list[str]
    ) -> None:
        """`rows` count from 0 in the file; `values` are what stood there; one reason for all, or one each."""
        if len(rows):
            text = ["" if v is None else str(v) for v in values.to_list()]
            reasons = [reason] * len(rows) if isinstance(reason, str) else reason
            self.parts.append(_RejectedFile(source, np.asarray(rows, np.int64), column, text, reasons))

    def __len__(self) -> int:
        return sum(len(part.rows) for part in self.parts)

    def of(self, source: Source) -> int:
        """How many different rows of a table are listed."""
        rows = [part.rows for part in self.parts if part.source is source]
        return len(np.unique(np.concatenate(rows))) if rows else 0

    def refuse_most(self, source: Source, total: int, *, report: Path | None) -> None:
        """A table of which more than half is left out is a mistaken one."""
        lost = self.of(source)
        if lost * 2 <= total:
            return
        part = next(p for p in self.parts if p.source is source)
        cell = f'{part.column} "{part.values[0][:60]}" ' if part.column else ""
        raise CityError(
            f"{source.place(int(part.rows[0]))}: {cell}{part.reasons[0]}. "
            f"{lost:,} of {total:,} rows of {source.path.name} cannot be used{self.finish(report)}"
        )

    def finish(self, report: Path | None) -> str:
        """Write the report, if one was asked for, and say where it lies."""
        if report is None:
            return ". Pass --report FILE to list them all"
        self.write(report)
        return f". Each is listed in {report}"

    def note(self, notices: Notices, *, report: Path | None) -> None:
        """Write the report and count the rows aloud, by table and column."""
        counts: dict[str, int] = {}
        for part in self.parts:
            about = f", {part.column}" if part.column else ""
            first = f"{part.source.place(int(part.rows[0]))}: {part.reasons[0]}"
            kind = f"Rows of {part.source.path.name} left out{about}"
            known = next((k for k in counts if k.startswith(f"{kind} (")), f"{kind} (first: {first})")
            counts[known] = counts.get(known, 0) + len(part.rows)
        for what, count in counts.items():
            notices.add(what, count)
        if report is not None and (len(self) or report.exists()):
            self.write(report)
            notices.add(f"Rows listed in {report}", len(self))

    def write(self, report: Path) -> None:
        """The report as CSV. A file that is no report of ours is not replaced."""
        try:
            if report.exists() and not report.read_text("utf-8", "replace").startswith(",".join(HEADER)):
                raise CityError(f"{report} is not a report of rejected rows. Name another file with --report")
            report.parent.mkdir(parents=True, exist_ok=True)
            with report.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(HEADER)
                writer.writerows(self._rows())
        except OSError as error:
            raise CityError(f"{report} cannot be written: {error.strerror}. Name another file with --report") from None

    def _rows(self) -> list[tuple[str, int, str, str, str]]:
        listed = []
        for source in {id(p.source): p.source for p in self.parts}.values():
            parts = [p for p in self.parts if p.source is source]
            line_of = source.lines({row for p in parts for row in p.rows.tolist()})
            cells = {
                (row, p.column): (source.path.name, line_of[row], p.column, value, reason)
                for p in reversed(parts)
                for row, value, reason in zip(p.rows.tolist(), p.values, p.reasons, strict=True)
            }
            listed += sorted(cells.values(), key=lambda cell: cell[1])
        return listed


@dataclass(frozen=True)
class Told:
    """Where an import says what it could not use."""

    notices: Notices
    rejected: Rejected
    report: Path | None  # where every rejected row is listed, if asked for
