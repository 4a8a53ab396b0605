"""Rows that an import could not use, listed in a report with file, line, column, value and reason."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.errors import CityError
from frigate.reading.files import replacing_file
from frigate.reading.notices import Notices
from frigate.reading.tables import ROW, Table, TableFile
from frigate.text import no_formula

HEADER = ("file", "line", "column", "value", "reason")


@dataclass(frozen=True)
class _Rejected:
    """Rows of a table rejected for one column."""

    file: TableFile
    rows: NDArray[np.int64]  # of the file
    column: str
    values: list[str]
    reasons: list[str]


@dataclass
class ImportLog:
    """Collects notices and the rows that are left out. A row is listed once, with the first reason found."""

    report: Path | None = None  # file that lists every rejected row
    refuse: bool = False  # whether an unusable row is an error
    notices: Notices = field(default_factory=Notices)
    rejected: list[_Rejected] = field(default_factory=list)

    def reject(self, table: Table, rows: NDArray[np.generic], column: str, reason: str | list[str]) -> None:
        """Reject rows of a table, given by a mask or by indices. `reason` is one for all, or one per row."""
        at = np.flatnonzero(rows) if rows.dtype == bool else rows
        values = table.frame[column][at]
        shown = values.bin.encode("hex") if values.dtype == pl.Binary else values.cast(pl.String, strict=False)
        reasons = reason if isinstance(reason, str) else [reason[i] for i in at.tolist()]
        self.reject_rows(table.file, table.frame[ROW].to_numpy()[at], column, shown.str.slice(0, 200), reasons)

    def drop(self, table: Table, rows: NDArray[np.bool_], column: str, reason: str | list[str]) -> Table:
        """Reject rows and return the table without them."""
        self.reject(table, rows, column, reason)
        return table.filter(~rows)

    def reject_rows(
        self, file: TableFile, rows: NDArray[np.integer], column: str, values: pl.Series, reason: str | list[str]
    ) -> None:
        """Reject rows by their numbers in the file; `values` are the rejected values."""
        if len(rows):
            reasons = [reason] * len(rows) if isinstance(reason, str) else reason
            shown = values.fill_null("").to_list()
            if self.refuse:
                raise CityError(f'{file.place(int(rows[0]))}: {column} "{shown[0][:60]}" {reasons[0]}')
            self.rejected.append(_Rejected(file, np.asarray(rows, np.int64), column, shown, reasons))

    def refuse_most(self, file: TableFile, total: int) -> None:
        """Refuse a table if more than half of it is rejected: it must be the wrong one."""
        parts = [part for part in self.rejected if part.file is file]
        lost = len(np.unique(np.concatenate([part.rows for part in parts]))) if parts else 0
        if lost * 2 <= total:
            return
        cell = f'{parts[0].column} "{parts[0].values[0][:60]}" ' if parts[0].column else ""
        raise CityError(
            f"{file.place(int(parts[0].rows[0]))}: {cell}{parts[0].reasons[0]}. "
            f"{lost:,} of {total:,} rows of {file.path.name} cannot be used{self.where_listed()}"
        )

    def where_listed(self) -> str:
        """Write the report if wanted, and say where the rows are listed."""
        if self.report is None:
            return ". Pass --report FILE to list the rejected rows"
        self._write(self.report)
        return f". Each is listed in {self.report}"

    def finish(self) -> Notices:
        """Write the report if wanted, and return notices that count rejected rows by table and column."""
        counts: dict[str, int] = {}
        for part in self.rejected:
            about = f", {part.column}" if part.column else ""
            first = f"{part.file.place(int(part.rows[0]))}: {part.reasons[0]}"
            kind = f"Rows of {part.file.path.name} left out{about}"
            known = next((k for k in counts if k.startswith(f"{kind} (")), f"{kind} (first: {first})")
            counts[known] = counts.get(known, 0) + len(part.rows)
        for what, count in counts.items():
            self.notices.add(what, count)
        if self.report is not None and (self.rejected or self.report.exists()):
            self._write(self.report)
            self.notices.add(f"Rows listed in {self.report}", sum(len(part.rows) for part in self.rejected))
        return self.notices

    def _write(self, report: Path) -> None:
        """Write the report as CSV. Only an earlier report is replaced, never another file."""
        try:
            if report.exists() and not report.read_text("utf-8", "replace").startswith(",".join(HEADER)):
                raise CityError(f"{report} is not a report of rejected rows. Name another file with --report")
            with replacing_file(report) as new, new.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(HEADER)
                writer.writerows([no_formula(str(cell)) for cell in row] for row in self._rows())
        except OSError as error:
            raise CityError(f"{report} cannot be written: {error.strerror}. Name another file with --report") from None

    def _rows(self) -> list[tuple[str, int, str, str, str]]:
        listed = []
        for file in {id(part.file): part.file for part in self.rejected}.values():
            parts = [part for part in self.rejected if part.file is file]
            line_of = file.lines({row for part in parts for row in part.rows.tolist()})
            cells = {
                (row, part.column): (file.path.name, line_of[row], part.column, value, reason)
                for part in reversed(parts)
                for row, value, reason in zip(part.rows.tolist(), part.values, part.reasons, strict=True)
            }
            listed += sorted(cells.values(), key=lambda cell: cell[1])
        return listed
