"""Sheets of Excel or LibreOffice: converted to CSV, so that they are read like any other table; and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from frigate.errors import CityError, MissingExtraError
from frigate.reading.files import parsing, write_file

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


def write_sheets(path: Path, sheets: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write tables as the sheets of an Excel file. Rows have the columns of the first; no cell is a formula."""
    try:
        from xlsxwriter import Workbook
    except ImportError:
        raise MissingExtraError("xlsxwriter", "xlsx") from None
    file = BytesIO()
    with Workbook(file, {"strings_to_formulas": False, "strings_to_urls": False, "in_memory": True}) as book:
        bold = book.add_format({"bold": True})
        for name, rows in sheets.items():
            sheet = book.add_worksheet(name)
            for k, row in enumerate(rows):
                if k == 0:
                    sheet.write_row(0, 0, list(row), bold)
                sheet.write_row(k + 1, 0, list(row.values()))
            sheet.freeze_panes(1, 0)
            sheet.autofit()
    write_file(path, file.getvalue())
