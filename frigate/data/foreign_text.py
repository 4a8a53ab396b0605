"""Make names from foreign files safe to show on a terminal or in a spreadsheet.

A terminal obeys control characters: an escape sequence in a street name could clear the screen or fake a line of
output. Control characters are shown as Python escapes, such as \\x1b.

A spreadsheet runs a CSV cell that starts with = + - or @, even after a tab or carriage return. Such a cell is written
with a leading apostrophe unless it is a number: =1+1 becomes '=1+1, -5 stays. Reading a city removes the apostrophe, so
ids survive the round trip.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

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
