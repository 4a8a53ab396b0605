"""RESULTS/report.html: every experiment that RESULTS holds, on one page that needs nothing but itself.

Each has its figure, its table, what a reader must know, and where it came from. The look is the report's. There is no
script, and nothing is fetched; only the links to the files beside the page lead out of it.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from frigate.experiments.plots import written
from frigate.experiments.table import Cell, Table, write_atomically

CSS = """
html { scroll-behavior: smooth }
h2 { scroll-margin-top: 8px }
h2 small { font-size: 13px; font-weight: 400; color: var(--soft) }
a { color: var(--s0) }
nav ol { columns: 2 300px; padding-left: 24px; margin: 16px 0 }
nav li { break-inside: avoid; margin-bottom: 3px }
figure.plot { margin: 14px 0; padding: 10px; background: #fff; border: 1px solid var(--line); border-radius: 10px }
figure.plot { overflow-x: auto }
figure.plot img { display: block; max-width: 100%; height: auto; margin: 0 auto }
table { border-collapse: separate; border-spacing: 0 }
th, td { padding: 6px 8px }
thead th { white-space: normal }
.wide { margin: 12px 0 }
.best { font-weight: 700; color: var(--s0) }
td.words, th.words { text-align: left }
td.words { white-space: normal; min-width: 9em }
tbody th, thead th:first-child { position: sticky; left: 0; background: var(--bg) }
tr.ours th, tr.ours td { background: var(--card) }
th[title] { cursor: help }
.damaged { border-left: 4px solid var(--s4); padding-left: 12px }
details { margin: 8px 0 }
summary { cursor: pointer; color: var(--soft) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 14px; margin: 8px 0; font-size: 13.5px }
dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere }
pre { overflow-x: auto; background: var(--card); border-radius: 8px; padding: 10px; font-size: 12.5px; margin: 4px 0 }
.files { font-size: 13.5px }
@media (max-width: 560px) {
  main { padding: 18px 14px 40px }
  tbody th { max-width: 42vw; white-space: normal }
  figure.plot { padding: 4px }
  dl { grid-template-columns: 1fr; gap: 0 }
  dd { margin-bottom: 6px }
}
"""
PLAN = "plan.json"  # beside the experiments, but none: of which city and with what effort they are
MIN_SCALE = 0.65  # of a figure on a narrow screen; below it is scrolled, for its words could not be read
MAX_OPEN = 40  # rows of a table; a longer one is folded away, for the figure tells more
NOT_DRAWN = (
    "No plot is drawn without matplotlib. Run: pip install 'frigate-forecast[reproduce]', then the same command."
)
# What has no place in HTML, or in UTF-8
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

WRITTEN = {"mae": "MAE", "rmse": "RMSE", "smape": "sMAPE", "wape": "WAPE"}
ERRORS = {*WRITTEN, "error"}  # a column with one of these words in its name is better the lower it is
NOT_ERRORS = {"low", "high", "spread", "sd"}  # but not with one of these
OF_ZERO = "of_zero"  # MAE over another: an error, whatever its name
KINDS = {"ours", "yardstick"}  # of rows, that look different


@dataclass(frozen=True)
class Found:
    """An experiment's JSON: its table, or why it cannot be shown."""

    path: Path
    anchor: str
    table: Table | None
    fault: str = ""

    @property
    def title(self) -> str:
        return self.path.stem if self.table is None else self.table.title


def write_page(results: Path, *, order: Sequence[str] = ()) -> Path:
    """Write the page over RESULTS/*.json, those of `order` first and in its order, and return its path."""
    rank = {name: at for at, name in enumerate(order)}
    paths = [path for path in results.glob("*.json") if path.name != PLAN]
    paths.sort(key=lambda path: (rank.get(path.stem, len(rank)), path.stem))
    found = [_read(path, at) for at, path in enumerate(paths)]
    results.mkdir(parents=True, exist_ok=True)
    page = results / "report.html"
    write_atomically(page, UNPRINTABLE.sub("\ufffd", _page(found)))
    return page


# Reading


def _read(path: Path, at: int) -> Found:
    anchor = path.stem if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", path.stem) else f"no.{at}"
    try:
        return Found(path, anchor, _checked(Table.from_json(json.loads(path.read_text(encoding="utf-8")))))
    except KeyError as error:
        return Found(path, anchor, None, f"it has no {error}")
    except OSError as error:  # in its own words it would name the whole path
        return Found(path, anchor, None, error.strerror or type(error).__name__)
    except (ValueError, TypeError, RecursionError) as error:
        return Found(path, anchor, None, str(error))


def _checked(table: Table) -> Table:
    """What `from_json` takes on trust: that every part is of its kind."""
    for name, part, kind in (
        ("columns", table.columns, dict),
        ("rows", table.rows, list),
        ("notes", table.notes, list),
    ):
        if not isinstance(part, kind):
            raise ValueError(f"its {name} are not a {kind.__name__}")
    for at, row in enumerate(table.rows):
        if not isinstance(row, dict):
            raise ValueError(f"row {at} is not a dict")
        for name, cell in row.items():
            if not isinstance(cell, str | int | float | None):
                raise ValueError(f"row {at} has a {type(cell).__name__} under {name}")
    return table


# The page


def _page(found: Sequence[Found]) -> str:
    cities = dict.fromkeys(str(each.table.more["city"]) for each in found if each.table and each.table.more.get("city"))
    name = ", ".join(cities) or "Results"
    items = "".join(
        f'<li><a href="#{escape(each.anchor)}">{_text(each.title)}</a>{_aside(each)}</li>' for each in found
    )
    lead = (
        "The paper's tables and figures, for this city. In bold: the least error of those that compete. A yardstick "
        "knows what no forecaster may, and does not."
    )
    body = f"<nav><ol>{items}</ol></nav>" if found else "<p>Nothing has been measured yet.</p>"
    sections = "".join(_section(each) for each in found)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(name)}: experiments</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>\n{files('frigate.report').joinpath('report.css').read_text(encoding='utf-8')}{CSS}</style></head>"
        f'<body><main><header><h1>{_text(name)}: every experiment</h1><p class="lead">{lead}</p></header>'
        f"{body}{sections}</main></body></html>\n"
    )


def _aside(each: Found) -> str:
    return ' <span class="note">(cannot be read)</span>' if each.table is None else ""


def _section(each: Found) -> str:
    command = f" <small>{_text(each.path.stem)}</small>" if each.table else ""
    head = f'<h2 id="{escape(each.anchor)}">{_text(each.title)}{command}</h2>'
    if each.table is None:
        remedy = f"Delete it and run frigate reproduce {each.path.stem} again."
        words = f"{each.path.name} cannot be read: {each.fault}. {remedy}"
        return f'<section>{head}<p class="damaged">{_text(words)}</p></section>'
    table = each.table
    rows = _table(table) if table.rows and table.columns else "<p>There is nothing to show.</p>"
    if len(table.rows) > MAX_OPEN:
        rows = f"<details><summary>The table, {len(table.rows):,} rows</summary>{rows}</details>"
    notes = "".join(f"<li>{_text(note)}</li>" for note in table.notes)
    return (
        f"<section>{head}{_figure(each.path, table)}{rows}{_legend(table)}{f'<ul>{notes}</ul>' * bool(notes)}"
        f"{_origin(table.more)}{_links(each.path)}</section>"
    )


def _figure(path: Path, table: Table) -> str:
    """The drawing as an image: its ids and styles are its own, and no script in it would run."""
    try:
        drawing = path.with_suffix(".svg").read_bytes()
    except OSError:
        drawing = b""
    if b"<svg" not in drawing:
        return f'<p class="note">{_text(NOT_DRAWN)}</p>' if table.rows else ""
    data = b64encode(drawing).decode()
    wide = re.search(rb'<svg[^>]* width="([0-9.]{1,9})pt"', drawing)
    least = f' style="min-width:{MIN_SCALE * float(wide[1]) * 4 / 3:.0f}px"' if wide else ""
    image = f'<img alt="Plot: {_text(table.title)}"{least} src="data:image/svg+xml;base64,{data}">'
    return f'<figure class="plot">{image}</figure>'


def _legend(table: Table) -> str:
    ends = _intervals(list(table.columns))
    inside = {name for pair in ends.values() for name in pair}
    words = {_written_name(name): str(meaning) for name, meaning in table.columns.items() if name not in inside}
    for name, (low, high) in ends.items():
        sides = dict.fromkeys(str(table.columns[side]) for side in (low, high))  # most often the same words
        words[_written_name(name)] += f". In brackets: {' to '.join(sides)}"
    return _folded("What the columns mean", words)


def _folded(summary: str, words: Mapping[str, str], more: str = "") -> str:
    lines = "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in words.items() if text)
    inner = (f"<dl>{lines}</dl>" if lines else "") + more
    return f"<details><summary>{summary}</summary>{inner}</details>" if inner else ""


def _origin(more: Mapping[str, Any]) -> str:
    """Where the numbers came from; what a file does not say is left out."""
    device = more.get("device")
    words = {
        "city": _plain(more.get("city")),
        "unit": _plain(more.get("unit")),
        "seen": _share(more.get("seen")),
        "seeds": _plain(more.get("seeds")),
        "splits": _plain(more.get("splits")),
        "hardware": _plain(more.get("hardware")) + (f" ({_plain(device)})" if device else ""),
        "versions": _plain(more.get("versions")),
        "took": _lasting(more.get("seconds")),
    }
    command = more.get("command")
    code = f"<pre>{_text(_plain(command, joint=' '))}</pre>" if command else ""
    for name in ("settings", "effort"):
        if more.get(name):
            pretty = json.dumps(more[name], indent=1, ensure_ascii=False)
            code += f"<details><summary>{name}</summary><pre>{_text(pretty)}</pre></details>"
    return _folded("Where it came from", words, code)


def _plain(value: Any, *, joint: str = ", ") -> str:
    """A value of a JSON file in words."""
    if isinstance(value, dict):
        return joint.join(f"{name} {_plain(each)}" for name, each in value.items())
    if isinstance(value, list):
        return joint.join(_plain(each) for each in value)
    return "" if value is None else str(value)


def _share(value: Any) -> str:
    known = isinstance(value, int | float) and math.isfinite(value)
    return f"{100 * value:g} % of the nodes have a sensor" if known else _plain(value)


def _lasting(seconds: Any) -> str:
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return _plain(seconds)
    if seconds < 100:
        return f"{seconds:.2g} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _links(path: Path) -> str:
    beside = [path.with_suffix(suffix) for suffix in (".csv", ".json", ".png", ".svg")]
    links = [f'<a href="{escape(quote(each.name))}">{each.suffix[1:].upper()}</a>' for each in beside if each.is_file()]
    return f'<p class="files">Beside this page: {", ".join(links)}</p>'


def _text(words: object) -> str:
    return escape(str(words))


# Tables


def _table(table: Table) -> str:
    """The rows of a table that has some."""
    ends = _intervals(list(table.columns))
    inside = {name for pair in ends.values() for name in pair}
    shown = [name for name in table.columns if name not in inside]
    columns = {name: [row.get(name) for row in table.rows] for name in table.columns}
    texts = {name: _texts(columns[name], [columns[end] for end in ends.get(name, ())]) for name in shown}
    best = {name: _best(table, name, [text for text, _ in texts[name]]) for name in shown if _is_error(name)}
    wordy = {name for name in shown if any(isinstance(cell, str) for cell in columns[name])}
    head = "".join(
        f'<th scope="col"{_class("words", name in wordy)} title="{escape(str(table.columns[name]))}">'
        f"{escape(_written_name(name))}</th>"
        for name in shown
    )
    body = "".join(
        f"<tr{_class(str(row.get('kind')), row.get('kind') in KINDS)}>"
        + "".join(
            _cell(texts[name][at], first=name == shown[0], wordy=name in wordy, best=at in best.get(name, ()))
            for name in shown
        )
        + "</tr>"
        for at, row in enumerate(table.rows)
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _written_name(column: str) -> str:
    """A column's name as a reader says it: "mae_at_sensors" is "MAE at sensors"."""
    return " ".join(WRITTEN.get(word, word) for word in column.split("_"))


def _class(name: str, given: bool) -> str:
    return f' class="{escape(name)}"' if given else ""


def _cell(text: tuple[str, str], *, first: bool, wordy: bool, best: bool) -> str:
    value, interval = text
    inner = escape(value) + (f"<small>{escape(interval)}</small>" if interval else "")
    if first:
        return f'<th scope="row">{inner}</th>'
    return f"<td{_class('words' if wordy else 'best', wordy or best)}>{inner}</td>"


def _intervals(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Value -> its low and high: x_low and x_high belong to x, a plain low and high to the column before them."""
    found = {name: (f"{name}_low", f"{name}_high") for name in names if {f"{name}_low", f"{name}_high"} <= {*names}}
    if {"low", "high"} <= {*names} and (at := names.index("low")) > 0 and names[at - 1] != "high":
        found[names[at - 1]] = ("low", "high")
    return found


def _texts(cells: Sequence[Cell], ends: Sequence[Sequence[Cell]]) -> list[tuple[str, str]]:
    """Each cell, and its interval, with the same decimals all the way down."""
    together = [_number(cell) for column in (cells, *ends) for cell in column]
    values, *sides = _split(written(together), len(cells))
    texts = [value if _number(cell) is not None else _word(cell) for value, cell in zip(values, cells, strict=True)]
    if not sides:
        return [(text, "") for text in texts]
    low, high = sides
    return [(text, f"[{a}, {b}]" if {a, b} != {"–"} else "") for text, a, b in zip(texts, low, high, strict=True)]


def _split(texts: Sequence[str], length: int) -> list[Sequence[str]]:
    return [texts[at : at + length] for at in range(0, len(texts), length)]


def _number(cell: Cell) -> float | None:
    if isinstance(cell, str | bool) or cell is None:
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
    """The rows with the least error, as it is written: what rounds to the same is as good."""
    groups: dict[tuple[Cell, ...], list[tuple[float, int]]] = {}
    for at, (row, circumstances) in enumerate(zip(table.rows, _circumstances(table), strict=True)):
        value = _number(row.get(name))
        if value is not None and row.get("kind") != "yardstick":
            groups.setdefault(circumstances, []).append((value, at))
    baselines = [group for group in groups.values() if len(group) > 1] or [[pair for (pair,) in groups.values()]]
    best = set()
    for group in baselines:
        if len(group) > 1:
            least = texts[min(group)[1]]
            best |= {at for _, at in group if texts[at] == least}
    return best


def _circumstances(table: Table) -> list[tuple[Cell, ...]]:
    """What is equal where rows compete: if a model has several, all that stands before the first error."""
    names = [*table.columns]
    label = "model" if "model" in names else names[0]
    if len({row.get(label) for row in table.rows}) == len(table.rows):
        return [()] * len(table.rows)
    first = next(at for at, name in enumerate(names) if _is_error(name))
    keys = [name for name in names[:first] if name not in (label, "kind")]
    return [tuple(row.get(name) for name in keys) for row in table.rows]
