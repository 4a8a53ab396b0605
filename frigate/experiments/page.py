"""RESULTS/report.html: which claims of the paper hold, then every experiment with its figure, table, notes and origin.

The page has no scripts and fetches nothing; it only links to the files next to it.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from frigate.experiments.plots import format_numbers
from frigate.experiments.render import render
from frigate.experiments.table import Cell, ResultTable, read_table
from frigate.experiments.verdict import ANSWERS, RUN_TO_RUN, verdicts
from frigate.reading.files import write_file
from frigate.text import duration

PLAN = "plan.json"  # next to the experiments' files: which city, and with what effort
MIN_SCALE = 0.65  # of a figure on a narrow screen; it scrolls instead of shrinking further
MAX_OPEN = 40  # rows; a longer table is collapsed

TITLES = {"mae": "MAE", "rmse": "RMSE", "smape": "sMAPE", "wape": "WAPE"}
ERRORS = {*TITLES, "error"}  # lower is better in columns with one of these words in their name
NOT_ERRORS = {"low", "high", "spread", "sd"}  # unless the name has one of these too
OF_ZERO = "of_zero"  # a ratio of two MAEs, so also an error
ABOUT = ("city", "unit", "seen", "seeds", "splits", "hardware", "device", "versions", "seconds")
KINDS = {"ours", "yardstick"}  # rows with a style of their own


class Column(NamedTuple):
    """A column with its cells: text, interval below it, CSS class."""

    title: str
    meaning: str
    legend: str
    css: str
    cells: list[tuple[str, str, str]]


def write_page(results: Path, *, order: Sequence[str] = ()) -> Path:
    """Write the page of RESULTS/*.json.

    Parameters
    ----------
    results
        Folder with the experiments' tables and plots.
    order
        Experiments to show first, in this order; others follow by name.

    Returns
    -------
    Path
        The page.
    """
    rank = {name: at for at, name in enumerate(order)}
    paths = [path for path in results.glob("*.json") if path.name != PLAN]
    paths.sort(key=lambda path: (rank.get(path.stem, len(rank)), path.stem))
    tables = [read_table(path) for path in paths]
    cities = dict.fromkeys(str(t.more["city"]) for t in tables if isinstance(t, ResultTable) and t.more.get("city"))
    shown = [_result(path, at, table) for at, (path, table) in enumerate(zip(paths, tables, strict=True))]
    name = ", ".join(cities) or "Results"
    judged = verdicts([table for table in tables if isinstance(table, ResultTable)])
    page = results / "report.html"
    write_file(
        page,
        render(
            "results.html.j2",
            name=name,
            results=shown,
            kinds=KINDS,
            max_open=MAX_OPEN,
            verdicts=judged,
            counts={each: sum(verdict.holds == each for verdict in judged) for each in ANSWERS},
            run_to_run=RUN_TO_RUN,
        ),
    )
    return page


def _result(path: Path, at: int, table: ResultTable | str) -> dict[str, Any]:
    """What the template shows of an experiment: its table, or what is wrong with its file."""
    anchor = path.stem if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", path.stem) else f"no.{at}"
    if isinstance(table, str):
        return {"name": path.stem, "anchor": anchor, "title": path.stem, "fault": table}
    image, min_width = _image(path.with_suffix(".svg"))
    files = [path.with_suffix(suffix) for suffix in (".csv", ".json", ".png", ".svg")]
    about = {name: _plain(table.more.get(name)) for name in ABOUT}
    if (seen := _number(table.more.get("seen"))) is not None:
        about["seen"] = f"{100 * seen:g} % of the nodes have a sensor"
    if (seconds := _number(table.more.get("seconds"))) is not None:
        about["seconds"] = f"{seconds:.2g}" if seconds < 100 else f"{seconds:,.0f} ({duration(round(seconds))})"
    return {
        "name": path.stem,
        "anchor": anchor,
        "title": table.title,
        "fault": "",
        "image": image,
        "min_width": min_width,
        "table": table,
        "columns": _columns(table),
        "about": about,
        "command": _plain(table.more.get("command")),
        "settings": {
            name: json.dumps(table.more[name], indent=1, ensure_ascii=False)
            for name in ("settings", "effort")
            if table.more.get(name)
        },
        "files": [(quote(each.name), each.suffix[1:].upper()) for each in files if each.is_file()],
    }


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


def _plain(value: Any) -> str:
    """A value of a JSON file as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return "" if value is None else str(value)


# Tables


def _columns(table: ResultTable) -> list[Column]:
    """The columns to show, with intervals below their values."""
    ends = _intervals(list(table.columns))
    hidden = {end for pair in ends.values() for end in pair}
    columns = []
    for name, meaning in table.columns.items():
        if name in hidden:
            continue
        values = [row.get(name) for row in table.rows]
        texts = _texts(values, [[row.get(end) for row in table.rows] for end in ends.get(name, ())])
        best = _best(table, name, [text for text, _ in texts]) if _is_error(name) else set()
        css = "words" if any(isinstance(value, str) for value in values) else ""
        sides = dict.fromkeys(str(table.columns[end]) for end in ends.get(name, ()))  # often the same text
        legend = str(meaning) + (f". In brackets: {' to '.join(sides)}" if sides else "")
        cells = [(*text, css or "best" * (at in best)) for at, text in enumerate(texts)]
        columns.append(Column(_title(name), str(meaning), legend, css, cells))
    return columns


def _title(column: str) -> str:
    """A column's title: "mae_at_sensors" becomes "MAE at sensors"."""
    return " ".join(TITLES.get(word, word) for word in column.split("_"))


def _intervals(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Column -> its low and high: x_low and x_high belong to x, a plain low and high to the column before them."""
    found = {name: (f"{name}_low", f"{name}_high") for name in names if {f"{name}_low", f"{name}_high"} <= {*names}}
    if {"low", "high"} <= {*names} and (at := names.index("low")) > 0 and names[at - 1] != "high":
        found[names[at - 1]] = ("low", "high")
    return found


def _texts(values: Sequence[Cell], ends: Sequence[Sequence[Cell]]) -> list[tuple[str, str]]:
    """Each value and its interval, all with the same number of decimals."""
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
    except OverflowError:  # an integer too large for a float
        return None


def _word(cell: Cell) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return cell if isinstance(cell, str) and cell else "–"


def _is_error(name: str) -> bool:
    words = {*re.split(r"[\W_]+", name.casefold())}
    return name == OF_ZERO or (bool(words & ERRORS) and not words & NOT_ERRORS)


def _best(table: ResultTable, name: str, texts: Sequence[str]) -> set[int]:
    """The rows with the lowest error as displayed; values that round to the same count as equal."""
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


def _conditions(table: ResultTable) -> list[tuple[Cell, ...]]:
    """What comparable rows share: if a model has several rows, the columns before the first error."""
    names = [*table.columns]
    label = "model" if "model" in names else names[0]
    if len({row.get(label) for row in table.rows}) == len(table.rows):
        return [()] * len(table.rows)
    first = next(at for at, name in enumerate(names) if _is_error(name))
    keys = [name for name in names[:first] if name not in (label, "kind")]
    return [tuple(row.get(name) for name in keys) for row in table.rows]
