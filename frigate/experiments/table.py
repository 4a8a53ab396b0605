"""The table of an experiment: rows, columns, notes and all that is needed to repeat it; as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frigate.evaluation.metrics import Summary

Cell = str | int | float | bool | None
Row = dict[str, Cell]
Rows = Sequence[Mapping[str, Cell]]

OF_NO_CITY = ("expressivity",)  # uses its own network
WORDS = Path(__file__).with_name("tables.toml")


def mae_cells(summary: Summary) -> Row:
    """The MAE and its interval."""
    return {"mae": summary.mae.value, "mae_low": summary.mae.low, "mae_high": summary.mae.high}


def number_or(otherwise: float, cell: Cell) -> float:
    """The number in a cell, or `otherwise`."""
    return float(cell) if isinstance(cell, int | float) else otherwise


@dataclass(frozen=True)
class ResultTable:
    """One table or figure of the paper, for one city."""

    experiment: str  # its name on the command line
    title: str
    rows: Rows  # all with the same columns, in display order
    columns: Mapping[str, str]  # column -> meaning, with its unit
    notes: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # for the plot and the JSON; not in the CSV

    @classmethod
    def make(cls, experiment: str, rows: Rows, more: Mapping[str, Any] | None = None, **values: object) -> ResultTable:
        """The table of an experiment, with texts and columns from tables.toml; `values` fill their placeholders."""
        words = tomllib.loads(WORDS.read_text(encoding="utf-8"))[experiment]
        notes = [note.format(**values) for note in words["notes"]]
        shown = [{name: row[name] for name in words["columns"]} for row in rows]
        return cls(experiment, words["title"].format(**values), shown, words["columns"], notes, more or {})

    @property
    def unit(self) -> str:
        """The unit of the readings, for labels."""
        return str(self.more.get("unit") or "city unit")

    @property
    def caption(self) -> str:
        """The title, with the city unless it is in the title already."""
        city = str(self.more.get("city") or "")
        apart = self.experiment in OF_NO_CITY or city in self.title
        return self.title if apart else f"{self.title}: {city}"

    def by_model(self) -> dict[str, Rows]:
        """The rows of each model, in the order of the table."""
        names = dict.fromkeys(str(row["model"]) for row in self.rows)
        return {name: [row for row in self.rows if row["model"] == name] for name in names}

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
    def from_json(cls, data: dict[str, Any]) -> ResultTable:
        known = ("experiment", "title", "rows", "columns", "notes")
        return cls(**{name: data[name] for name in known}, more={k: v for k, v in data.items() if k not in known})

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.columns), lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            cells = {name: row.get(name) for name in self.columns}
            writer.writerow({name: f"{x:.6g}" if isinstance(x, float) else x for name, x in cells.items()})
        return text.getvalue()


def read_table(path: Path) -> ResultTable | str:
    """The table, or what is wrong with the file."""
    try:
        table = ResultTable.from_json(json.loads(path.read_text(encoding="utf-8")))
    except KeyError as error:
        return f"it has no {error}"
    except OSError as error:  # str(error) would contain the whole path
        return error.strerror or type(error).__name__
    except (ValueError, TypeError, RecursionError) as error:
        return str(error) or type(error).__name__
    for name, kind in (("columns", dict), ("rows", list), ("notes", list)):
        if not isinstance(getattr(table, name), kind):
            return f"its {name} are not a {kind.__name__}"
    for at, row in enumerate(table.rows):
        if not isinstance(row, dict) or not all(isinstance(cell, str | int | float | None) for cell in row.values()):
            return f"row {at} is not a dict of texts and numbers"
    return table


def as_json(data: Any) -> str:
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(data: Any) -> Any:
    """With NaN and infinity, which JSON lacks, replaced by None."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data
