"""Plain-text tables that fit a given width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

GAP = 2  # spaces between two columns
HEADING_LINES = 3  # at most


def table_lines(
    rows: Sequence[dict[str, str]], *, width: int, drop: Sequence[str] = (), left: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The lines of a table, and the columns that did not fit.

    Parameters
    ----------
    rows
        Cells by column; all rows have the same columns. The first column and those in `left` are aligned left, the
        others right.
    width
        Maximum line length in characters.
    drop
        Columns to leave out if the table is too wide, least important first. Headings are wrapped; cells are never
        cut or wrapped.
    """
    names, dropped = list(rows[0]), []
    widths = {name: _width(name, [row[name] for row in rows]) for name in names}
    for name in drop:
        if sum(widths[name] + GAP for name in names) - GAP <= width:
            break
        if name in names:
            names.remove(name)
            dropped.append(name)
    headings = [_wrapped(name, widths[name]) for name in names]
    height = max(map(len, headings))
    above = zip(*([""] * (height - len(lines)) + lines for lines in headings), strict=True)
    rule = ["-" * widths[name] for name in names]
    lines = []
    for line in (*above, rule, *([row[name] for name in names] for row in rows)):
        cells = (
            cell.ljust(widths[name]) if name in (names[0], *left) else cell.rjust(widths[name])
            for name, cell in zip(names, line, strict=True)
        )
        lines.append((" " * GAP).join(cells).rstrip())
    return lines, dropped


def _width(heading: str, cells: list[str]) -> int:
    """Width of a column: enough for its cells, and for the heading on at most HEADING_LINES lines."""
    width = max(map(len, [*cells, *heading.split()]))
    while len(_wrapped(heading, width)) > HEADING_LINES:
        width += 1
    return width


def _wrapped(heading: str, width: int) -> list[str]:
    return textwrap.wrap(heading, width, break_long_words=False, break_on_hyphens=False)
