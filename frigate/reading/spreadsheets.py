"""Convert an Excel or LibreOffice sheet to CSV, one line per row, so that it is read like any other table."""

from __future__ import annotations

from pathlib import Path

from frigate.errors import CityError, MissingExtraError
from frigate.reading.files import parsing

SUFFIXES = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")


def sheet_as_csv(path: Path, scratch: Path) -> Path:
    """Write the first sheet that is not empty to the scratch folder, as CSV in UTF-8."""
    try:
        import fastexcel
    except ImportError:
        raise MissingExtraError("fastexcel", "xlsx") from None
    import polars as pl

    with parsing(path):
        book = fastexcel.read_excel(path)
        for sheet in book.sheet_names:
            cells = pl.DataFrame(book.load_sheet(sheet, header_row=None, dtypes="string"))
            if cells.height:
                break
        else:
            raise CityError(f"{path.name} has no sheet with rows. Save the sheet with the table first")
    # A time of day comes with Excel's day zero, and a date comes with midnight: remove both.
    cells = cells.with_columns(pl.all().str.replace(r"^1899-12-3[01] ", ""))
    days = [c for c in cells.columns if not cells[c].str.contains(r"^\d{4}-\d\d-\d\d (0[1-9]|1|2|00:.*[1-9])").any()]
    cells = cells.with_columns(pl.col(days).str.replace(r"^(\d{4}-\d\d-\d\d) 00:00:00$", "$1"))
    out = scratch / f"{len(list(scratch.iterdir()))}-{path.stem}.csv"
    cells.write_csv(out, include_header=False)
    return out
