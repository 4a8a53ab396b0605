"""Open CSV and Parquet tables, find their columns by name, and read them whole or in batches of rows.

Tables of a city folder are strict: commas, UTF-8 and our column names. A table that a user imports may be separated by
commas, semicolons, tabs or bars, use any encoding, be an Excel sheet, have lines above the header, and name its columns
as the user's map says or by common names. Both kinds go through the same code. Errors name file, line (row in Parquet)
and column. `columns` and `times` parse the columns.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frigate.errors import CityError, did_you_mean
from frigate.reading.column_names import guess, renamed, unit_factor
from frigate.reading.files import replacing_folder
from frigate.reading.notices import Notices, TableRow
from frigate.reading.sandbox import reading
from frigate.reading.spreadsheets import SUFFIXES as SHEETS
from frigate.reading.spreadsheets import sheet_as_csv
from frigate.text import as_it_was, without_formulas

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

ROW = "row number"  # column with each row's number in its file, from 0
BATCH_ROWS = 1 << 20
TEXT = ("node_id", "source", "target", "via", "sensor_id", "vehicle", "name", "road_class")  # always read as text
CSV_TIME = "%Y-%m-%dT%H:%M:%SZ"

HEAD_LINES = 60
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
FOREIGN = {  # first bytes of files that are not tables; polars would unpack some of them, to any size
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "a zip or a spreadsheet",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"%PDF": "a PDF",
    b"\xd0\xcf\x11\xe0": "a spreadsheet",
}
PACKED_SHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")


@dataclass(frozen=True)
class TableFile:
    """A table file, and which of its columns is which of ours."""

    path: Path  # as the user named it
    names: tuple[str, ...]  # the columns as the file has them
    parquet: bool = True
    readable: Path | None = None  # a UTF-8 copy, if the file has another encoding
    delimiter: str = ","
    preamble: int = 0  # lines above the header
    header: bool = True  # whether the first line names the columns
    strict: bool = True  # whether it is a table of a city folder
    source_of: Mapping[str, str] = field(default_factory=dict)  # our column -> its name in the file
    factor_of: Mapping[str, float] = field(default_factory=dict)  # our column -> factor into our unit

    def __contains__(self, column: str) -> bool:
        return column in self.source_of

    # Reading

    def scan(self) -> pl.LazyFrame:
        import polars as pl

        if self.parquet:
            return pl.scan_parquet(self.path, glob=False, hive_partitioning=False)
        names = None if self.header or not self.names else list(self.names)
        return pl.scan_csv(
            self.readable or self.path,
            separator=self.delimiter,
            has_header=self.header,
            skip_lines=self.preamble,
            new_columns=names,
            infer_schema=False,
            glob=False,
        )

    def lazy(self, columns: Sequence[str]) -> pl.LazyFrame:
        """Some of our columns, and the number of each row. Blank lines are skipped."""
        import polars as pl

        cells = {c: pl.col(self.source_of[c]) for c in columns if c in self}
        if self.strict and not self.parquet:
            cells |= {c: as_it_was(cells[c]) for c in TEXT if c in cells}
        there = [cell.alias(c) for c, cell in cells.items()]
        lazy = self.scan().with_row_index(ROW).select(ROW, *there)
        if not self.parquet and there:
            every = pl.exclude(ROW)
            blank = every.is_null() if self.strict else every.fill_null("").str.strip_chars() == ""
            lazy = lazy.filter(~pl.all_horizontal(blank))
        return lazy

    def read(self, columns: Sequence[str] | None = None) -> Table:
        """The whole table, with these of our columns or all it has."""
        with self.reading():
            return Table(self, _plain(self.lazy(columns or tuple(self.source_of)).collect()))

    def batches(self, columns: Sequence[str] | None = None, *, batch_rows: int = BATCH_ROWS) -> Iterator[Table]:
        """The table in batches of rows. There is at least one batch, which may be empty."""
        lazy = self.lazy(columns or tuple(self.source_of))
        with self.reading():
            runs = iter(lazy.collect_batches(chunk_size=batch_rows, maintain_order=True))
            frame = next(runs, None)
            if frame is None:
                frame = lazy.head(0).collect()
        while frame is not None:
            yield Table(self, _plain(frame))
            with self.reading():
                frame = next(runs, None)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn a reader's error about a damaged file into a CityError that names the place."""
        import polars as pl

        try:
            yield
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            detail = (str(error).strip().splitlines() or ["no reason given"])[0]
            if self.parquet:
                raise CityError(f"{self.path.name} is not a readable Parquet file: {detail}. Write it again") from None
            for _, line, cells in self._csv_rows():
                if len(cells) > len(self.names) > 0:
                    found = f"{len(cells)} fields, but {len(self.names)} columns"
                    remedy = f"Quote a field that has a {DELIMITERS[self.delimiter]}"
                    raise CityError(f"{self.path.name} line {line}: {found}. {remedy}") from None
            remedy = "Is a quotation mark left open?"
            raise CityError(f"{self.path.name} is not a readable CSV file: {detail}. {remedy}") from None

    # Places

    def place(self, row: int) -> str:
        """Where a row is, for the user: `readings.csv line 812`, `readings.parquet row 811`."""
        return self.places([row])[row]

    def places(self, rows: Collection[int]) -> dict[int, str]:
        """The places of several rows, with one pass through the file."""
        word = "row" if self.parquet else "line"
        return {row: f"{self.path.name} {word} {line}" for row, line in self.lines(rows).items()}

    def lines(self, rows: Collection[int]) -> dict[int, int]:
        """The line on which each row begins; in a Parquet file, its row, from 1."""
        lines = {row: row + 1 + self.preamble + (self.header and not self.parquet) for row in rows}
        if self.parquet or self._plain_lines:
            return lines
        last = max(rows, default=-1)
        for row, line, _ in self._csv_rows():
            if row > last:
                break
            if row in lines:
                lines[row] = line
        return lines

    @cached_property
    def _plain_lines(self) -> bool:
        """Whether each row is one line: no quoted line breaks, and no blank line at the top."""
        with (self.readable or self.path).open("rb") as file:
            for _ in range(self.preamble):
                file.readline()
            first = file.readline().removeprefix(codecs.BOM_UTF8).strip()
            return bool(first) and b'"' not in first and not any(b'"' in chunk for chunk in _chunks(file))

    def _csv_rows(self) -> Iterator[tuple[int, int, list[str]]]:
        """Row, line and fields, up to the first error of Python's CSV reader."""
        try:
            with (self.readable or self.path).open(encoding="utf-8-sig", errors="replace", newline="") as file:
                for _ in range(self.preamble):
                    file.readline()
                reader = csv.reader(file, delimiter=self.delimiter)
                row = -2 if self.header else -1
                begins = 1 + self.preamble
                for cells in reader:
                    if row > -2 or cells:  # skip blank lines above the header
                        row += 1
                    if row >= 0:
                        yield row, begins, cells
                    begins = reader.line_num + 1 + self.preamble
        except (csv.Error, OSError):
            return

    # Columns

    def choose(
        self,
        needed: Sequence[str],
        optional: Sequence[str] = (),
        *,
        notices: Notices,
        rename: Mapping[str, str] | None = None,
        note_unread: bool = True,
    ) -> TableFile:
        """The table with its columns matched to ours.

        Parameters
        ----------
        needed, optional
            Our columns. A missing needed one is an error.
        notices
            Collects the columns that were matched by a common name, and those that are not read.
        rename
            Their name -> ours. Units are converted: {"speed_mph": "speed_kph"}.
        note_unread
            Whether to report columns that are not read.
        """
        columns = (*needed, *optional)
        where = self.path.name
        source_of = renamed(self.names, columns, rename or {}, where=where)
        guessed = {} if self.strict else guess(self.names, columns, rename or {}, source_of, where=where)
        source_of |= guessed
        known = ", ".join(f"{theirs}={ours}" for ours, theirs in guessed.items())
        notices.add(f"Columns of {self.path.name} known by their common names ({known})", len(guessed))
        notices.add(f"Lines of {self.path.name} above the header, left out", self.preamble)
        factors = {ours: unit_factor(theirs, ours) for ours, theirs in source_of.items()}
        file = replace(self, source_of=source_of, factor_of=factors)
        file.need(needed)
        if note_unread:
            file.note_unread(notices, [c for c in optional if c not in file])
        return file

    def need(self, columns: Sequence[str]) -> None:
        missing = [c for c in columns if c not in self]
        if not missing:
            return
        name = self.path.name
        if self.strict and len(self.names) == 1 and re.search(r"[;\t|]", self.names[0]):
            raise CityError(f'{name}: only one column, "{self.names[0]}". Separate the columns with commas')
        free = [n for n in self.names if n not in self.source_of.values()]
        hints = ", ".join(m + did_you_mean(m, free) for m in missing)
        remedy = "" if self.strict else f". Say which one it is with --map THEIRS={missing[0]}"
        raise CityError(f"{name} has no column {hints}. Its columns are: {', '.join(self.names) or 'none'}{remedy}")

    def note_unread(self, notices: Notices, absent: Sequence[str] = ()) -> None:
        """Report the columns that are not read, suggesting ours if one may have been meant."""
        unread = [n for n in self.names if n not in self.source_of.values()]
        hints = ", ".join(n + did_you_mean(n, absent) for n in unread[:20])
        notices.add(f"Columns of {self.path.name} that are not read ({hints})", len(unread))


@dataclass(frozen=True)
class Table:
    """Rows of a table in memory, by our column names."""

    file: TableFile
    frame: pl.DataFrame

    @staticmethod
    def of(path: Path, **columns: Any) -> Table:
        """A table of arrays in memory, read from a file that is not a table."""
        import polars as pl

        frame = pl.DataFrame(columns).with_row_index(ROW)
        return Table(TableFile(path, tuple(columns), source_of={c: c for c in columns}), frame)

    @property
    def path(self) -> Path:
        return self.file.path

    def __len__(self) -> int:
        return self.frame.height

    def __contains__(self, column: str) -> bool:
        return column in self.frame.columns

    def with_columns(self, *columns: pl.Series | pl.Expr) -> Table:
        return replace(self, frame=self.frame.with_columns(columns))

    def filter(self, keep: NDArray[np.bool_]) -> Table:
        import polars as pl

        return replace(self, frame=self.frame.filter(pl.Series(keep, dtype=pl.Boolean)))

    def row(self, index: int) -> int:
        """The number that a row of this table has in its file."""
        return int(self.frame[ROW][index])

    def place_of(self, *columns: str) -> Callable[[int], TableRow]:
        """A function that gives the place of a row and its values in these columns."""
        given = [c for c in columns if c in self]

        def place(index: int) -> TableRow:
            cells = "".join(f", {c} {self.frame[c][index]}" for c in given if self.frame[c][index] is not None)
            return TableRow(cells, self.file, self.row(index))

        return place

    def refuse_where(self, wrong: NDArray[np.bool_], message: Callable[[int], str]) -> None:
        """Raise an error for the first row in a mask, if any. `message` takes its index and says what is wrong."""
        if wrong.any():
            raise self.refuse(int(wrong.argmax()), message(int(wrong.argmax())))

    def refuse(self, index: int, message: str) -> CityError:
        return CityError(f"{self.file.place(self.row(index))}: {message}")


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with 64-bit numbers: larger integers, which few functions support, become text; decimals, floats."""
    import polars as pl

    def plain(column: pl.Series) -> pl.Series:
        whole = column.cast(pl.Int64, strict=False)
        if not bool((whole == column).all()):  # nulls are skipped
            return column.cast(pl.Float64 if column.dtype.is_decimal() else pl.String)
        lost = whole.null_count() > column.null_count()
        return column.cast(pl.String) if lost else whole

    wide = (pl.UInt64, pl.Int128, pl.UInt128)
    columns = [plain(frame[name]) for name, dtype in frame.schema.items() if dtype in wide or dtype.is_decimal()]
    names = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Categorical | pl.Enum)]
    return frame.with_columns(*columns, *(frame[name].cast(pl.String) for name in names))


# Opening


def open_table(
    path: str | Path,
    *,
    strict: bool = False,
    encoding: str = "utf-8",
    scratch: Path | None = None,
    headless: Sequence[str] = (),
) -> TableFile:
    """Open a table: check its first bytes, and find its encoding, delimiter and column names.

    Parameters
    ----------
    path
        A CSV file, a Parquet file named .parquet or .pq, or, unless strict, an Excel or LibreOffice sheet.
    strict
        Whether it is a table of a city folder, with commas, UTF-8 and our column names.
    encoding
        Encoding of a CSV file that is not UTF-8, by any name that Python knows.
    scratch
        A folder for a UTF-8 copy, needed for other encodings and for sheets.
    headless
        Column names for a CSV file whose first line has only numbers.
    """
    path = Path(path)
    reading(path)
    head = _first_bytes(path)
    sheet = not strict and scratch is not None and path.suffix.lower() in SHEETS and head.startswith(PACKED_SHEETS)
    for magic, kind in FOREIGN.items():
        if head.startswith(magic) and not sheet:
            raise CityError(f"{path.name} is really {kind}. Unpack it, or save it as CSV or Parquet")
    parquet = path.suffix.lower() in (".parquet", ".pq")
    if parquet != head.startswith(b"PAR1"):
        found = "is not a readable Parquet file" if parquet else "is really a Parquet file"
        raise CityError(f"{path.name} {found}. Rename it to match its content")
    file = TableFile(path, (), parquet, strict=strict)
    if not parquet:
        if sheet and scratch is not None:
            readable = sheet_as_csv(path, scratch)
        else:
            readable = _in_utf8(path, encoding, scratch, strict=strict)
        preamble, delimiter = (0, ",") if strict else find_header(_first_lines(readable))
        first = _first_line(path, readable, preamble)
        header = not (headless and all(_is_number(cell) for cell in first.strip().split(delimiter)))
        file = replace(file, readable=readable, delimiter=delimiter, header=header, preamble=preamble)
    with file.reading():
        names = tuple(file.scan().collect_schema().names())
        file = replace(file, names=names if file.header else (*headless, *names[len(headless) :])[: len(names)])
    return file


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(8)
    if not head:
        raise CityError(f"{path.name} is empty. Its first line names the columns")
    return head


def _chunks(file: Any, size: int = 1 << 20) -> Iterator[bytes]:
    while chunk := file.read(size):
        yield chunk


def _in_utf8(path: Path, encoding: str, scratch: Path | None, *, strict: bool) -> Path:
    """The file itself if it is UTF-8, else a copy that is. An error names the line and byte that cannot be decoded."""
    try:
        codec = codecs.lookup(encoding)
    except LookupError:
        raise CityError(f'encoding "{encoding}" is not known. Try utf-8, latin-1, cp1252 or utf-16') from None
    if codec.name != "utf-8" and _is_utf8(path):  # the encoding is meant for another table of the import
        return path
    if scratch is not None and _first_bytes(path)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        codec = codecs.lookup("utf-16")
    copy = None if scratch is None or codec.name == "utf-8" else scratch / f"{len(list(scratch.iterdir()))}-{path.name}"
    decoder = codec.incrementaldecoder()
    line = 1
    with path.open("rb") as file, nullcontext() if copy is None else copy.open("wb") as out:
        for chunk in chain(_chunks(file), [b""]):
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as wrong:
                line += wrong.object[: wrong.start].count(b"\n")
                remedy = "Pass --encoding latin-1 (or its actual encoding), or save it as UTF-8"
                byte = f"byte 0x{wrong.object[wrong.start]:02x} is not {codec.name.upper()}"
                raise CityError(
                    f"{path.name} line {line}: {byte}. {'Save the table as UTF-8' if strict else remedy}"
                ) from None
            if "\0" in text:
                raise CityError(f"{path.name} contains zero bytes, so it is not text. Save it as CSV in UTF-8")
            if out is not None:
                out.write(text.encode("utf-8", "replace"))
            line += text.count("\n")
    return path if copy is None else copy


def _is_utf8(path: Path) -> bool:
    decoder = codecs.lookup("utf-8").incrementaldecoder()
    try:
        with path.open("rb") as file:
            return not any("\0" in decoder.decode(chunk, final=not chunk) for chunk in chain(_chunks(file), [b""]))
    except UnicodeDecodeError:
        return False


def _first_lines(readable: Path) -> list[str]:
    """The lines among which the header must be."""
    with readable.open(encoding="utf-8-sig", newline="") as file:
        return [file.readline(1 << 16) for _ in range(HEAD_LINES)]


def find_header(lines: Sequence[str]) -> tuple[int, str]:
    """The number of lines above the header, and the delimiter.

    The header is the first line with as many fields as most lines (at least two), if all its fields are words. A title
    that a spreadsheet has padded to as many fields is none: at least half of them are empty. If no such line follows
    others, the header is the first line.
    """
    bare = [re.sub(r'"[^"]*"', "quoted", line) for line in lines if line]
    written = [line for line in bare if line.strip()]
    first = max(DELIMITERS, key=written[0].count) if written else ","
    for delimiter in sorted(DELIMITERS, key=lambda each: each != first):
        rows = [[cell.strip() for cell in line.split(delimiter)] for line in bare]
        full = [i for i, row in enumerate(rows) if bare[i].strip() and not _is_title(row)]
        lengths = [len(rows[i]) for i in full]
        usual = max(set(lengths), key=lambda n: (lengths.count(n), n), default=0)
        at = next((i for i in full if len(rows[i]) == usual), 0)
        above = any(line.strip() for line in bare[:at])
        below = [len(rows[i]) for i in full if i >= at]
        if usual > 1 and above and _are_words(lines[at], delimiter) and below.count(usual) * 2 > len(below):
            return at, delimiter
        if usual > 1 and delimiter == first and not above:
            break
    return 0, first


def _is_title(row: Sequence[str]) -> bool:
    """Whether a row has more fields than text: a title, or a blank line, in a spreadsheet."""
    return len(row) > 1 and not row[-1] and 2 * sum(map(bool, row)) <= len(row)


def _are_words(line: str, delimiter: str) -> bool:
    cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    named = cells[cells[:1] == [""] :]  # pandas leaves the name of its index empty
    return all(cell and not _is_number(cell) and not cell[:1].isdigit() for cell in named)


def _first_line(path: Path, readable: Path, preamble: int = 0) -> str:
    """The first line that is not blank, after the preamble."""
    with readable.open(encoding="utf-8-sig", newline="") as file:
        for _ in range(preamble):
            file.readline()
        while line := file.readline(1 << 20):
            if line.strip():
                return line
    raise CityError(f"{path.name} is empty. Its first line names the columns")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Tables of a city folder


def city_table(
    path: Path,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    *,
    notices: Notices,
    rename: Mapping[str, str] | None = None,
) -> TableFile:
    """Open a table of a city folder. Parameters are those of `TableFile.choose`."""
    return open_table(path, strict=True).choose(needed, optional, rename=rename, notices=notices)


def write_table(frame: pl.DataFrame, folder: Path, stem: str, *, csv: bool) -> None:
    """Write a table of a city folder. CSV has bytes as hexadecimal digits, and text escaped against formulas."""
    import polars as pl

    if csv:
        binary = [pl.col(c).bin.encode("hex") for c, t in frame.schema.items() if t == pl.Binary]
        without_formulas(frame.with_columns(binary)).write_csv(folder / f"{stem}.csv", datetime_format=CSV_TIME)
    else:
        frame.write_parquet(folder / f"{stem}.parquet", compression="zstd")


@contextmanager
def writing(folder: Path, *, keep: Sequence[str] = ()) -> Iterator[Path]:
    """`replacing_folder` for tables, with an error that names the folder if it cannot be written."""
    import polars as pl

    try:
        with replacing_folder(folder, keep=keep) as new:
            yield new
    except (OSError, UnicodeEncodeError, pl.exceptions.PolarsError) as error:
        detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CityError(f"{folder} cannot be written: {detail}") from None
