"""What stands beside the map: panels of headings, words, tables and charts, as data.

`page/src/panels.ts` draws them, and shows every text as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frigate.pages.layers import Unit

Block = dict[str, Any]
Link = dict[str, Any]  # text that leads to a place
Cell = str | Link


@dataclass(frozen=True)
class Panel:
    """A panel with a tab."""

    key: str
    title: str
    blocks: tuple[Block, ...]

    def meta(self) -> dict[str, Any]:
        return {"key": self.key, "title": self.title, "blocks": self.blocks}


def heading(text: str, *, level: int = 2) -> Block:
    return {"kind": "heading", "text": text, "level": level}


def words(text: str, *, style: str = "") -> Block:
    """A paragraph. A style is "", "note" or "verdict"."""
    return {"kind": "words", "text": text, "style": style}


def tiles(some: Iterable[tuple[str, str, str]]) -> Block:
    """Titles, values and details."""
    return {"kind": "tiles", "tiles": [dict(zip(("title", "value", "detail"), each, strict=True)) for each in some]}


def table(
    label: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, styles: Sequence[str] = (), left: int = 1
) -> Block:
    """A table; its first `left` columns are words, which are aligned left. `styles` are those of the rows."""
    return {
        "kind": "table",
        "label": label,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "styles": list(styles),
        "left": left,
    }


def node(text: str, row: int) -> Link:
    """Text that leads to a node."""
    return {"text": text, "node": row}


def road(text: str, row: int) -> Link:
    """Text that leads to a road."""
    return {"text": text, "road": row}


def items(some: Iterable[Cell | tuple[Cell, str]]) -> Block:
    """A list; a second text stands at the right."""
    return {"kind": "items", "items": [each if isinstance(each, tuple) else (each, "") for each in some]}


def terms(some: Iterable[tuple[str, str]]) -> Block:
    """Terms and what they mean."""
    return {"kind": "terms", "terms": list(some)}


def details(summary: str, *blocks: Block, is_open: bool = False) -> Block:
    """Blocks that are shown on demand."""
    return {"kind": "details", "summary": summary, "blocks": list(blocks), "open": is_open}


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart. A style is "forecast", "observed" or "other"."""

    name: str
    style: str
    values: Sequence[float | None]


def chart(
    title: str, unit: Unit, lines: Iterable[ChartLine], *, names: Sequence[str] = (), hours: float = 0.0
) -> Block:
    """Lines over named steps, or over the hours of a day, `hours` apart."""
    return {
        "kind": "chart",
        "title": title,
        "unit": unit.meta(),
        "lines": [vars(line) for line in lines],
        "names": list(names),
        "hours": hours,
    }


def bars(label: str, rows: Iterable[tuple[str, float, str]]) -> Block:
    """Names with a share each, and its text."""
    return {"kind": "bars", "label": label, "rows": list(rows)}


def layer_buttons(some: Mapping[str, str]) -> Block:
    """Buttons that show layers: key and text."""
    return {"kind": "layers", "layers": dict(some)}


def changes(unit: Unit, some: Sequence[Mapping[str, Any]]) -> Block:
    """The nodes that change most, as `frigate.pages.closures.list_changes` has them."""
    return {"kind": "changes", "unit": unit.meta(), "changes": list(some)}


def city_facts() -> Block:
    """How many nodes, sensors and roads the map has."""
    return {"kind": "facts"}
