"""A user's own table: CSV with commas, semicolons, tabs or bars, in any encoding, or Parquet; any column names.

Columns are found by our names, by the user's map of names, or by the names that the field commonly gives them.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.data.notices import Notices
from frigate.data.sandbox import reading
from frigate.data.tables import BATCH_ROWS, ROW, did_you_mean, unit_factor
from frigate.errors import CityError

DELIMITERS = (",", ";", "\t", "|")
MISSING = ("", "na", "n/a", "nan", "null", "none", "-", "--")
FOREIGN = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "a zip or a spreadsheet",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"%PDF": "a PDF",
    b"\xd0\xcf\x11\xe0": "a spreadsheet",
}
MAX_CELLS_A_BYTE = 1_000  # what a Parquet file of any size may expand to, beyond FEW_CELLS
FEW_CELLS = 5_000_000

# Names that others give to our columns; a name of the user's map goes before them.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "node_id": ("node", "nodeid", "id", "osmid", "intersection_id", "junction_id"),
    "lon": ("longitude", "lng", "long", "x", "lon_deg"),
    "lat": ("latitude", "y", "lat_deg"),
    "source": ("src", "from", "from_node", "u", "start_node", "node_from", "source_id", "from_id"),
    "target": ("dst", "to", "to_node", "v", "end_node", "node_to", "target_id", "to_id"),
    "length_m": ("length", "length_km", "length_mi", "length_ft", "distance_m", "distance", "len_m"),
    "road_class": ("highway", "class", "fclass", "functional_class", "road_type"),
    "lanes": ("num_lanes", "lane_count"),
    "speed_kph": ("maxspeed_kph", "speed_kmh", "speed_mph", "maxspeed_mph", "speed_limit_kph", "speed_limit_mph"),
    "name": ("street", "street_name", "road_name"),
    "geometry": ("wkt", "wkb", "geom", "the_geom", "shape"),
    "direction": ("dir",),
    "oneway": ("one_way",),
    "road_id": ("segment_id", "edge_id", "link_id", "section_id", "street_id"),
    "time": ("timestamp", "datetime", "date_time", "t_unix", "unix", "time_utc", "t"),
    "date": ("day",),
    "value": ("count", "flow", "volume", "vehicles", "q", "speed", "reading"),
    "sensor_id": ("sensor", "detector_id", "detector", "station_id", "station", "loop_id", "device_id"),
    "bearing": ("heading", "azimuth"),
}


@dataclass(frozen=True)
class OwnTable:
    """A table that can be read, and which of its columns is which of ours."""

    path: Path  # as the user knows it
    readable: Path  # the same, or a copy of it in UTF-8
    parquet: bool
    delimiter: str
    names: tuple[str, ...]  # the columns as they are called in the file
    source_of: Mapping[str, str] = field(default_factory=dict)  # ours -> theirs
    scaled: Mapping[str, float] = field(default_factory=dict)  # ours -> factor into our unit

    def __contains__(self, column: str) -> bool:
        return column in self.source_of

    def scan(self) -> pl.LazyFrame:
        if self.parquet:
            return pl.scan_parquet(self.readable, glob=False, hive_partitioning=False)
        return pl.scan_csv(self.readable, separator=self.delimiter, infer_schema=False, glob=False)

    def lazy(self, columns: Sequence[str]) -> pl.LazyFrame:
        """Some of our columns, and where each row stood. Blank lines are passed over."""
        wanted = [pl.col(self.source_of[c]).alias(c) for c in columns if c in self]
        lazy = self.scan().with_row_index(ROW).select(ROW, *wanted)
        if not self.parquet and wanted:
            lazy = lazy.filter(~pl.all_horizontal(pl.exclude(ROW).fill_null("").str.strip_chars() == ""))
        return lazy

    def read(self, columns: Sequence[str]) -> pl.DataFrame:
        with self.readable_or_why():
            return self.lazy(columns).collect()

    def batches(self, columns: Sequence[str], *, batch_rows: int = BATCH_ROWS) -> Iterator[pl.DataFrame]:
        with self.readable_or_why():
            runs = iter(self.lazy(columns).collect_batches(chunk_size=batch_rows, maintain_order=True))
        while True:
            with self.readable_or_why():
                frame = next(runs, None)
            if frame is None:
                return
            yield frame

    @contextmanager
    def readable_or_why(self) -> Iterator[None]:
        try:
            yield
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            raise CityError(self._why(error)) from None

    def _why(self, error: BaseException) -> str:
        detail = (str(error).strip().splitlines() or ["no reason given"])[0]
        if self.parquet:
            return f"{self.path.name} is not a readable Parquet file: {detail}. Write it again"
        for _, line, cells in self._csv_rows():
            if len(cells) > len(self.names):
                found = f"{len(cells)} fields, but {len(self.names)} columns"
                return f"{self.path.name} line {line}: {found}. Quote a field that has a {self._delimiter_word}"
        return f"{self.path.name} is not a readable CSV file: {detail}. Is a quotation mark left open?"

    @property
    def _delimiter_word(self) -> str:
        return {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}[self.delimiter]

    # Lines

    def place(self, row: int) -> str:
        word = "row" if self.parquet else "line"
        return f"{self.path.name} {word} {self.lines([row])[row]}"

    def lines(self, rows: Collection[int]) -> dict[int, int]:
        """The line at which each data row begins; of a Parquet file, its row from 1 on."""
        if self.parquet:
            return {row: row + 1 for row in rows}
        if self._plain_lines:
            return {row: row + 2 for row in rows}
        lines, last = {row: row + 2 for row in rows}, max(rows, default=-1)
        for row, line, _ in self._csv_rows():
            if row > last:
                break
            if row in lines:
                lines[row] = line
        return lines

    @cached_property
    def _plain_lines(self) -> bool:
        """Whether every row is one line: no quoted line breaks, and the names on the first."""
        with self.readable.open("rb") as file:
            first = file.readline().removeprefix(codecs.BOM_UTF8).strip()
            return bool(first) and b'"' not in first and not any(b'"' in part for part in _chunks(file))

    def _csv_rows(self) -> Iterator[tuple[int, int, list[str]]]:
        """Row, line and fields, as far as Python's reader gets."""
        try:
            with self.readable.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                reader = csv.reader(file, delimiter=self.delimiter)
                row, begins = -2, 1
                for cells in reader:
                    if row > -2 or cells:  # blank lines above the names
                        row += 1
                    if row >= 0:
                        yield row, begins, cells
                    begins = reader.line_num + 1
        except (csv.Error, OSError):
            return

    # Names

    def named(
        self,
        wanted: Sequence[str],
        *,
        rename: Mapping[str, str],
        notices: Notices,
        needed: Sequence[str] = (),
        unread: bool = True,
    ) -> OwnTable:
        """The table with its columns known by our names."""
        source_of: dict[str, str] = {}
        for theirs, ours in rename.items():
            if theirs in self.names and ours in wanted:
                if ours in source_of:
                    raise CityError(f"{self.path.name}: both {source_of[ours]} and {theirs} are mapped to {ours}")
                source_of[ours] = theirs
        guessed = {}
        for ours in (c for c in wanted if c not in source_of):
            if ours in self.names and ours not in rename:
                source_of[ours] = ours
                continue
            there = [n for n in self.names if n.strip().lower() in (ours, *ALIASES.get(ours, ())) and n not in rename]
            there = [n for n in there if n not in wanted or n == ours]
            if len(there) == 1:
                source_of[ours] = guessed[ours] = there[0]
            elif len(there) > 1:
                told = " or ".join(there)
                raise CityError(f"{self.path.name}: is {told} the {ours}? Say so with --map {there[0]}={ours}")
        for ours, theirs in list(guessed.items()):  # one column is not two of ours
            if sum(t == theirs for t in source_of.values()) > 1:
                del source_of[ours], guessed[ours]
        told = ", ".join(f"{theirs}={ours}" for ours, theirs in guessed.items())
        notices.add(f"Columns of {self.path.name} known by their common names ({told})", len(guessed))
        left = [n for n in self.names if n not in source_of.values()]
        if unread:
            notices.add(f"Columns of {self.path.name} that are not read ({', '.join(left[:20])})", len(left))
        known = replace(
            self, source_of=source_of, scaled={ours: unit_factor(theirs, ours) for ours, theirs in source_of.items()}
        )
        known.need(needed)
        return known

    def need(self, columns: Sequence[str]) -> None:
        missing = [c for c in columns if c not in self]
        if missing:
            free = [n for n in self.names if n not in self.source_of.values()]
            hints = ", ".join(m + did_you_mean(m, free) for m in missing)
            raise CityError(
                f"{self.path.name} has no column {hints}. Its columns are: {', '.join(self.names)}. "
                f"Say which it is with --map THEIRS={missing[0]}"
            )


# Opening


def open_table(path: str | Path, *, scratch: Path, encoding: str = "utf-8") -> OwnTable:
    """Look at a file's beginning, encoding and names. `scratch` takes a UTF-8 copy where one is needed."""
    path = Path(path)
    if path.is_dir():
        raise CityError(f"{path} is a folder. A table is expected")
    if not path.is_file():
        raise CityError(f"{path}: there is no such file")
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise CityError(f"{path.name} cannot be read: {error.strerror}") from None
    if not head:
        raise CityError(f"{path.name} is empty. Its first line names the columns")
    for magic, kind in FOREIGN.items():
        if head.startswith(magic):
            raise CityError(f"{path.name} is {kind} by its content. Unpack it, or save it as CSV or Parquet")
    parquet = path.suffix.lower() in (".parquet", ".pq")
    if parquet != head.startswith(b"PAR1"):
        told = "is named Parquet, but is none" if parquet else "is a Parquet file by its content"
        raise CityError(f"{path.name} {told}. Name it by what it is")
    readable = path if parquet else _in_utf8(path, encoding, scratch)
    reading(path)
    table = OwnTable(path, readable, parquet, "," if parquet else _delimiter(path, readable), ())
    with table.readable_or_why():
        names = tuple(table.scan().collect_schema().names())
        table = replace(table, names=names)
        if parquet:
            _check_size(table)
    return table


def _chunks(file: object, size: int = 1 << 20) -> Iterator[bytes]:
    while chunk := file.read(size):  # type: ignore[attr-defined]
        yield chunk


def _in_utf8(path: Path, encoding: str, scratch: Path) -> Path:
    """The file itself when it is UTF-8, else a copy that is. What cannot be decoded is refused by line and byte."""
    try:
        codec = codecs.lookup(encoding)
    except LookupError:
        raise CityError(f'encoding "{encoding}" is not known. Try utf-8, latin-1, cp1252 or utf-16') from None
    plain = codec.name == "utf-8"
    copy = path if plain else scratch / f"{len(list(scratch.iterdir()))}-{path.name}"
    decoder, line, done = codec.incrementaldecoder(), 1, 0
    with path.open("rb") as file, nullcontext() if plain else copy.open("wb") as out:
        while True:
            chunk = file.read(1 << 20)
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as wrong:
                start = wrong.start
                line += wrong.object[:start].count(b"\n")
                utf16 = done == 0 and chunk[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
                other = "utf-16" if utf16 else "latin-1"
                raise CityError(
                    f"{path.name} line {line}: byte 0x{wrong.object[start]:02x} is not {codec.name}. "
                    f"Pass --encoding {other} (or the one it has), or save it as UTF-8"
                ) from None
            if "\0" in text:
                raise CityError(f"{path.name} holds zero bytes: it is no text. Pass --encoding utf-16, or save as CSV")
            if out is not None:
                out.write(text.encode("utf-8", "replace"))
            line += text.count("\n")
            done += len(chunk)
            if not chunk:
                return copy


def _delimiter(path: Path, readable: Path) -> str:
    """The one that the line of names has most of."""
    with readable.open(encoding="utf-8-sig", newline="") as file:
        first = ""
        while not first.strip():
            first = file.readline(1 << 20)
            if not first:
                raise CityError(f"{path.name} is empty. Its first line names the columns")
    bare = re.sub(r'"[^"]*"', "", first)
    return max(DELIMITERS, key=bare.count)


def _check_size(table: OwnTable) -> None:
    rows = int(table.scan().select(pl.len()).collect().item())
    cells, size = rows * len(table.names), table.path.stat().st_size
    if cells > FEW_CELLS and cells > size * MAX_CELLS_A_BYTE:
        raise CityError(f"{table.path.name} has {size:,} bytes, but says {rows:,} rows. It is not read: is it whole?")


# Numbers


def number_styles(table: OwnTable, columns: Sequence[str]) -> dict[str, str]:
    """How each column writes its numbers: "dot" (1234.5), "comma" (1.234,5) or "thousands" (1,234.5).

    A value such as 1,234 could be either; another value of the column decides, else the delimiter: a file that
    separates columns by commas has no need to write decimals with them.
    """
    columns = [c for c in columns if c in table]
    if table.parquet or not columns:
        return dict.fromkeys(columns, "dot")
    decimal = r"^[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+$"
    grouped = r"^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$"
    asked = []
    for c in columns:
        text = pl.col(c).str.strip_chars()
        is_decimal, is_grouped = text.str.contains(decimal), text.str.contains(grouped)
        asked += [(is_decimal & ~is_grouped).any().alias(f"d{c}"), (is_grouped & ~is_decimal).any().alias(f"g{c}")]
        asked.append((is_decimal & is_grouped).any().alias(f"b{c}"))
    with table.readable_or_why():
        found = table.lazy(columns).select(asked).collect().row(0, named=True)
    styles = {}
    for c in columns:
        sure_decimal, sure_grouped, either = found[f"d{c}"], found[f"g{c}"], found[f"b{c}"]
        if sure_decimal and sure_grouped:
            raise CityError(f"{table.path.name}: {table.source_of[c]} mixes decimal commas and decimal points")
        if sure_decimal or (either and not sure_grouped and table.delimiter != ","):
            styles[c] = "comma"
        else:
            styles[c] = "thousands" if sure_grouped or either else "dot"
    return styles


@dataclass(frozen=True)
class Numbers:
    """A column as numbers."""

    values: NDArray[np.float64]  # NaN where not given or wrong
    given: NDArray[np.bool_]
    wrong: NDArray[np.bool_]  # there is something, but no number


def read_numbers(table: OwnTable, frame: pl.DataFrame, column: str, style: str = "dot") -> Numbers:
    raw = frame[column]
    if raw.dtype == pl.String:
        text = raw.str.strip_chars()
        text = text.set(text.str.to_lowercase().is_in(MISSING).fill_null(True), None)
        if style == "comma":
            tidy = text.str.contains(r"^[^.]*$|^[+-]?\d{1,3}(\.\d{3})+(,\d*)?$").fill_null(True)
            shaped = text.set(~tidy, "?").str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        else:
            shaped = text.str.replace_all(",", "", literal=True) if style == "thousands" else text
        cast = shaped.cast(pl.Float64, strict=False)
    elif raw.dtype.is_numeric() or raw.dtype == pl.Null:
        text, cast = raw, raw.cast(pl.Float64)
    else:
        raise CityError(f"{table.path.name}: column {table.source_of[column]} holds {raw.dtype}. Numbers are expected")
    given = text.is_not_null().to_numpy()
    wrong = given & cast.is_null().to_numpy()
    values = cast.fill_null(float("nan")).to_numpy() * table.scaled.get(column, 1.0)
    return Numbers(values, given & ~wrong, wrong)


def read_words(frame: pl.DataFrame, column: str) -> pl.Series:
    """A column as text without blanks around it, null where it is not given. 7.0 is 7: so pandas writes integers."""
    raw = frame[column]
    if raw.dtype.is_float() and bool((raw.drop_nulls() == raw.drop_nulls().floor()).all()):
        raw = raw.cast(pl.Int64, strict=False)
    if raw.dtype.is_nested() or raw.dtype == pl.Binary:
        raw = pl.Series(column, ["?"] * len(raw))
    text = raw.cast(pl.String).str.strip_chars()
    return text.set((text == "").fill_null(False), None)
