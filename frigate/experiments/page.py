"""RESULTS/report.html: every experiment in RESULTS on one offline page, each with its figure, table, notes and origin.

There is no script, and nothing is fetched; only the links to the files beside the page lead out of it.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from frigate.check.city import lasting_words
from frigate.experiments.plots import format_numbers
from frigate.experiments.table import Cell, Table, write_atomically
from frigate.report.page import render

PLAN = "plan.json"  # beside the experiments, but not one of them: which city, and with what effort
MIN_SCALE = 0.65  # of a figure on a narrow screen, so that its labels can be read; it scrolls instead
MAX_OPEN = 40  # rows of a table; a longer one is folded away

TITLES = {"mae": "MAE", "rmse": "RMSE", "smape": "sMAPE", "wape": "WAPE"}
ERRORS = {*TITLES, "error"}  # a column with one of these words in its name is better the lower it is
NOT_ERRORS = {"low", "high", "spread", "sd"}  # but not with one of these
OF_ZERO = "of_zero"  # a ratio of two MAEs: an error, whatever its name
KINDS = {"ours", "yardstick"}  # of rows, that look different


class Column(NamedTuple):
    title: str
    meaning: str
    text: bool  # words rather than numbers


class ShownCell(NamedTuple):
    text: str
    interval: str
    css: str


@dataclass(frozen=True)
class Result:
    """One experiment as the page shows it, or why it cannot."""

    name: str
    anchor: str
    title: str
    fault: str = ""
    image: str = ""  # data URL: its ids and styles are its own, and no script in it would run
    min_width: int | None = None
    columns: Sequence[Column] = ()
    rows: Sequence[tuple[str, list[ShownCell]]] = ()  # kind, cells
    legend: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    origin: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[tuple[str, str]] = ()  # link, title


def write_page(results: Path, *, order: Sequence[str] = ()) -> Path:
    """Write the page over RESULTS/*.json.

    Parameters
    ----------
    results
        Folder of the experiments' tables and plots.
    order
        Names of experiments that come first, in this order; others follow by name.

    Returns
    -------
    Path
        The page.
    """
    rank = {name: at for at, name in enumerate(order)}
    paths = [path for path in results.glob("*.json") if path.name != PLAN]
    paths.sort(key=lambda path: (rank.get(path.stem, len(rank)), path.stem))
    tables = [_read(path) for path in paths]
    cities = dict.fromkeys(str(t.more["city"]) for t in tables if isinstance(t, Table) and t.more.get("city"))
    shown = [_result(path, at, table) for at, (path, table) in enumerate(zip(paths, tables, strict=True))]
    text = render("results.html.j2", name=", ".join(cities) or "Results", results=shown, max_open=MAX_OPEN)
    results.mkdir(parents=True, exist_ok=True)
    page = results / "report.html"
    write_atomically(page, text)
    return page


def _read(path: Path) -> Table | str:
    """The table, or what is wrong with the file."""
    try:
        table = Table.from_json(json.loads(path.read_text(encoding="utf-8")))
    except KeyError as error:
        return f"it has no {error}"
    except OSError as error:  # its own text would name the whole path
        return error.strerror or type(error).__name__
    except (ValueError, TypeError, RecursionError) as error:
        return str(error)
    for name, kind in (("columns", dict), ("rows", list), ("notes", list)):
        if not isinstance(getattr(table, name), kind):
            return f"its {name} are not a {kind.__name__}"
    for at, row in enumerate(table.rows):
        if not isinstance(row, dict) or not all(isinstance(cell, str | int | float | None) for cell in row.values()):
            return f"row {at} is not a dict of texts and numbers"
    return table


def _result(path: Path, at: int, table: Table | str) -> Result:
    anchor = path.stem if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", path.stem) else f"no.{at}"
    if isinstance(table, str):
        return Result(path.stem, anchor, path.stem, fault=table)
    image, min_width = _image(path.with_suffix(".svg"))
    columns, rows, legend = _table(table) if table.columns else ([], [], {})
    files = [path.with_suffix(suffix) for suffix in (".csv", ".json", ".png", ".svg")]
    return Result(
        name=path.stem,
        anchor=anchor,
        title=table.title,
        image=image,
        min_width=min_width,
        columns=columns,
        rows=rows,
        legend={title: text for title, text in legend.items() if text},
        notes=table.notes,
        origin={name: text for name, text in _origin(table.more).items() if text},
        command=_plain(table.more.get("command"), joint=" "),
        settings={
            name: json.dumps(table.more[name], indent=1, ensure_ascii=False)
            for name in ("settings", "effort")
            if table.more.get(name)
        },
        files=[(quote(each.name), each.suffix[1:].upper()) for each in files if each.is_file()],
    )


def _image(path: Path) -> tuple[str, int | None]:
    try:
        drawing = path.read_bytes()
    except OSError:
        drawing = b""
    if b"<svg" not in drawing:
        return "", None
    wide = re.search(rb'<svg[^>]* width="([0-9.]{1,9})pt"', drawing)
    min_width = round(MIN_SCALE * float(wide[1]) * 4 / 3) if wide else None
    return f"data:image/svg+xml;base64,{b64encode(drawing).decode()}", min_width


def _origin(more: Mapping[str, Any]) -> dict[str, str]:
    """Where the numbers came from, as far as the file says."""
    seen, seconds, device = more.get("seen"), more.get("seconds"), more.get("device")
    known = _number(seen)
    took = _number(seconds)
    return {
        "city": _plain(more.get("city")),
        "unit": _plain(more.get("unit")),
        "seen": _plain(seen) if known is None else f"{100 * known:g} % of the nodes have a sensor",
        "seeds": _plain(more.get("seeds")),
        "splits": _plain(more.get("splits")),
        "hardware": _plain(more.get("hardware")) + (f" ({_plain(device)})" if device else ""),
        "versions": _plain(more.get("versions")),
        "time": _plain(seconds) if took is None else f"{took:.2g} s" if took < 10 else lasting_words(round(took)),
    }


def _plain(value: Any, *, joint: str = ", ") -> str:
    """A value of a JSON file as text."""
    if isinstance(value, dict):
        return joint.join(f"{name} {_plain(each)}" for name, each in value.items())
    if isinstance(value, list):
        return joint.join(_plain(each) for each in value)
    return "" if value is None else str(value)


# Tables


def _table(table: Table) -> tuple[list[Column], list[tuple[str, list[ShownCell]]], dict[str, str]]:
    """Columns, rows with their kind, and what the columns mean; intervals stand below their values."""
    ends = _intervals(list(table.columns))
    shown = [name for name in table.columns if name not in {end for pair in ends.values() for end in pair}]
    columns, legend, cells = [], {}, []
    for name in shown:
        values = [row.get(name) for row in table.rows]
        wordy, title = any(isinstance(value, str) for value in values), _title(name)
        columns.append(Column(title, str(table.columns[name]), wordy))
        sides = dict.fromkeys(str(table.columns[end]) for end in ends.get(name, ()))  # often the same text
        legend[title] = str(table.columns[name]) + (f". In brackets: {' to '.join(sides)}" if sides else "")
        texts = _texts(values, [[row.get(end) for row in table.rows] for end in ends.get(name, ())])
        best = _best(table, name, [text for text, _ in texts]) if _is_error(name) else set()
        css = ["words" if wordy else "best" if at in best else "" for at in range(len(values))]
        cells.append([ShownCell(*text, css) for text, css in zip(texts, css, strict=True)])
    kinds = [str(row.get("kind")) if row.get("kind") in KINDS else "" for row in table.rows]
    return columns, [(kind, [column[at] for column in cells]) for at, kind in enumerate(kinds)], legend


def _title(column: str) -> str:
    """A column's name for a reader: "mae_at_sensors" is "MAE at sensors"."""
    return " ".join(TITLES.get(word, word) for word in column.split("_"))


def _intervals(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Value -> its low and high: x_low and x_high belong to x, a plain low and high to the column before them."""
    found = {name: (f"{name}_low", f"{name}_high") for name in names if {f"{name}_low", f"{name}_high"} <= {*names}}
    if {"low", "high"} <= {*names} and (at := names.index("low")) > 0 and names[at - 1] != "high":
        found[names[at - 1]] = ("low", "high")
    return found


def _texts(values: Sequence[Cell], ends: Sequence[Sequence[Cell]]) -> list[tuple[str, str]]:
    """Each value and its interval, with the same decimals all the way down."""
    n = len(values)
    numbers = format_numbers([_number(cell) for column in (values, *ends) for cell in column])
    texts = [numbers[at] if _number(cell) is not None else _word(cell) for at, cell in enumerate(values)]
    sides = zip(numbers[n : 2 * n], numbers[2 * n :], strict=True) if ends else [("–", "–")] * n
    return [
        (text, f"[{low}, {high}]" if {low, high} != {"–"} else "")
        for text, (low, high) in zip(texts, sides, strict=True)
    ]


def _number(cell: Any) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    try:
        return float(cell) if math.isfinite(cell) else None
    except OverflowError:  # an integer beyond all floats
        return None


def _word(cell: Cell) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return cell if isinstance(cell, str) and cell else "–"


def _is_error(name: str) -> bool:
    words = {*re.split(r"[\W_]+", name.casefold())}
    return name == OF_ZERO or (bool(words & ERRORS) and not words & NOT_ERRORS)


def _best(table: Table, name: str, texts: Sequence[str]) -> set[int]:
    """The rows with the least error as shown: what rounds to the same is as good."""
    groups: dict[tuple[Cell, ...], list[tuple[float, int]]] = {}
    for at, (row, conditions) in enumerate(zip(table.rows, _conditions(table), strict=True)):
        value = _number(row.get(name))
        if value is not None and row.get("kind") != "yardstick":
            groups.setdefault(conditions, []).append((value, at))
    comparable = [group for group in groups.values() if len(group) > 1] or [[pair for (pair,) in groups.values()]]
    best = set()
    for group in comparable:
        if len(group) > 1:
            least = texts[min(group)[1]]
            best |= {at for _, at in group if texts[at] == least}
    return best


def _conditions(table: Table) -> list[tuple[Cell, ...]]:
    """What comparable rows share: if a model has several rows, all that stands before the first error."""
    names = [*table.columns]
    label = "model" if "model" in names else names[0]
    if len({row.get(label) for row in table.rows}) == len(table.rows):
        return [()] * len(table.rows)
    first = next(at for at, name in enumerate(names) if _is_error(name))
    keys = [name for name in names[:first] if name not in (label, "kind")]
    return [tuple(row.get(name) for name in keys) for row in table.rows]
