"""What an experiment found: rows under named columns, with all that is needed to do it again; as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | bool | None
Rows = Sequence[Mapping[str, Cell]]


@dataclass(frozen=True)
class Table:
    """One table or figure of the paper, for one city."""

    experiment: str  # the command's name for it
    title: str
    rows: Rows  # all with the same columns, in the order to show them
    columns: Mapping[str, str]  # column -> what it means, with its unit
    notes: Sequence[str] = ()  # what a reader must know
    more: Mapping[str, Any] = field(default_factory=dict)  # for the plot and for machines; not in the CSV

    @property
    def unit(self) -> str:
        """Of the readings, for labels."""
        return str(self.more.get("unit") or "city unit")

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "title": self.title,
            "notes": list(self.notes),
            "columns": dict(self.columns),
            "rows": [dict(row) for row in self.rows],
            **self.more,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Table:
        known = ("experiment", "title", "rows", "columns", "notes")
        return cls(**{name: data[name] for name in known}, more={k: v for k, v in data.items() if k not in known})

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.columns), lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow({name: _plain(row.get(name)) for name in self.columns})
        return text.getvalue()


def _plain(cell: Cell) -> Cell:
    return f"{cell:.6g}" if isinstance(cell, float) else cell


def as_json(data: Any) -> str:
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(data: Any) -> Any:
    """JSON has neither NaN nor infinity: they become null."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data
