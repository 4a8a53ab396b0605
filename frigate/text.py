"""Words, numbers and tables for people; and foreign names made safe to show.

A terminal obeys control characters: an escape sequence in a street name could clear the screen or fake a line of
output. Control characters are shown as Python escapes, such as \\x1b.

A spreadsheet runs a CSV cell that starts with = + - or @, even after a tab or carriage return. Such a cell is written
with a leading apostrophe unless it is a number: =1+1 becomes '=1+1, -5 stays. Reading a city removes the apostrophe, so
ids survive the round trip.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

GAP = 2  # spaces between two columns
HEADING_LINES = 3  # at most
MAX_SHOWN = 80  # characters of user input repeated in a message

# C0, delete, C1, and characters that change the text direction. Line breaks and tabs are harmless.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FORMULA = r"^'*[=+\-@\t\r]"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def printable(text: str) -> str:
    """Text for a terminal, with control characters escaped."""
    return CONTROL.sub(lambda found: _escape(found[0]), text)


def printable_json(json: str) -> str:
    """JSON for a terminal: the same data, with control characters as JSON escapes."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def no_formula(cell: str) -> str:
    """The cell, escaped if a spreadsheet would take it for a formula."""
    return f"'{cell}" if re.match(FORMULA, cell) and not re.match(NUMBER, cell) else cell


def without_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with `no_formula` applied to all text columns."""
    import polars as pl

    text = [pl.col(name) for name, dtype in frame.schema.items() if dtype == pl.String]
    risky = [cell.str.contains(FORMULA) & ~cell.str.contains(NUMBER) for cell in text]
    return frame.with_columns(
        pl.when(where).then(pl.lit("'") + cell).otherwise(cell).name.keep()
        for cell, where in zip(text, risky, strict=True)
    )


def as_it_was(cell: pl.Expr) -> pl.Expr:
    """A text column without the apostrophes that `no_formula` added."""
    import polars as pl

    return pl.when(cell.str.starts_with("'") & cell.str.contains(FORMULA)).then(cell.str.slice(1)).otherwise(cell)


def quoted(text: str) -> str:
    """User input for a message: shortened and escaped, so that it cannot inject anything into a terminal or a log."""
    return json.dumps(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…", ensure_ascii=True)


# Numbers


def duration(seconds: int) -> str:
    """A duration in its two largest units: "2 days 4 h"."""
    parts = []
    for size, word in ((86_400, "day"), (3600, "h"), (60, "min"), (1, "s")):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count:,} {word}{'s' * (word == 'day' and count > 1)}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def percent(share: float) -> str:
    """A share in per cent, never rounded to 0 or 100 unless it is exactly that."""
    shown = f"{100 * share:.1f}" if share < 0.1 or share > 0.9 else f"{100 * share:.0f}"
    if share < 1 and float(shown) == 100:
        return "over 99.9 %"
    if share > 0 and float(shown) == 0:
        return "under 0.1 %"
    return f"{float(shown):g} %"


def three_digits(x: float) -> str:
    """A number with at least three digits, for display."""
    return "undefined" if not math.isfinite(x) else f"{x:#.3g}".rstrip(".") if abs(x) < 999.5 else f"{x:,.0f}"


def unit_text(quantity: str, unit: str, step_s: int) -> str:
    """The unit of a value: "vehicles per 5 min" for a count, the unit itself for a gauge."""
    return f"{unit or 'count'} per {duration(step_s)}" if quantity == "count" else unit or quantity


def format_time(iso: str) -> str:
    """An ISO time for display: "Mon 04 Mar 2024 17:00"."""
    return f"{datetime.fromisoformat(iso):%a %d %b %Y %H:%M}"


# Tables


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
    names = list(rows[0])
    dropped = []
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
