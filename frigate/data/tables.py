"""Tables on disk, CSV or Parquet: typed columns out, every fault named by its file and line (Parquet: row)."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from frigate.data.notices import Notices, Spot, place
from frigate.data.sandbox import reading
from frigate.errors import CityError

if TYPE_CHECKING:
    import polars as pl

ROW = "row number"  # the column that says where in its file a row stood
BATCH_ROWS = 1 << 20
CSV_TIME = "%Y-%m-%dT%H:%M:%SZ"
INTEGER_ID = r"^(0|-?[1-9][0-9]{0,17})$"  # "007" is text: as a number it would not come back the same

SPEED_KPH = {"_kph": 1.0, "_kmh": 1.0, "_mph": 1.609344, "_mps": 3.6}
LENGTH_M = {"_m": 1.0, "_km": 1000.0, "_mi": 1609.344, "_ft": 0.3048}


@dataclass(frozen=True)
class Table:
    """Some columns of a file, or a run of its rows."""

    path: Path
    frame: pl.DataFrame
    scaled: Mapping[str, float] = field(default_factory=dict)  # column -> factor into the unit of its name

    def __len__(self) -> int:
        return self.frame.height

    def __contains__(self, column: str) -> bool:
        return column in self.frame.columns

    def place(self, row: int) -> str:
        return place(self.path, int(self.frame[ROW][row]))

    def spot(self, *columns: str) -> Callable[[int], Spot]:
        """Where a row stands and what it has in these columns."""

        given = [c for c in columns if c in self]

        def tell(row: int) -> Spot:
            cells = "".join(f", {c} {self.frame[c][row]}" for c in given if self.frame[c][row] is not None)
            return Spot(cells, self.path, int(self.frame[ROW][row]))

        return tell

    def refuse(self, row: int, message: str) -> CityError:
        return CityError(f"{self.place(row)}: {message}")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise CityError(_why_unreadable(path, error)) from None


def _why_unreadable(path: Path, error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) or not path.exists():
        return f"{path.name} is not there. Looked in {path.parent}"
    if path.is_dir():
        return f"{path.name} is a folder. A table is expected"
    if path.stat().st_size == 0:
        return f"{path.name} is empty. Its first line names the columns"
    detail = (str(error).strip().splitlines() or ["no reason given"])[0]
    if path.suffix == ".parquet":
        return f"{path.name} is not a readable Parquet file: {detail}. Write it again"
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as wrong:
                byte = line[wrong.start]
                return f"{path.name} line {number}: byte 0x{byte:02x} is not UTF-8. Save the table as UTF-8"
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            reader = csv.reader(file)
            width = len(next(reader, []))
            begins = reader.line_num + 1
            for fields in reader:
                if len(fields) > width:
                    found = f"{len(fields)} fields, but {width} columns"
                    return f"{path.name} line {begins}: {found}. Quote a field that has a comma"
                begins = reader.line_num + 1
        except csv.Error:
            pass
    return f"{path.name} is not a readable CSV file: {detail}"


def _scan(path: Path) -> pl.LazyFrame:
    import polars as pl

    if path.suffix == ".parquet":
        return pl.scan_parquet(path, glob=False, hive_partitioning=False)
    return pl.scan_csv(path, infer_schema=False, glob=False)


def unit_factor(source: str, target: str) -> float:
    """What a column must be multiplied by when it is renamed: speed_mph=speed_kph gives 1.609344."""

    def unit(name: str) -> tuple[str, float] | None:
        for kind, units in (("speed", SPEED_KPH), ("length", LENGTH_M)):
            for suffix in sorted(units, key=len, reverse=True):
                if name.lower().endswith(suffix):
                    return kind, units[suffix]
        return None

    theirs, ours = unit(source), unit(target)
    if theirs is None or ours is None:
        return 1.0
    if theirs[0] != ours[0]:
        raise CityError(f"{source}={target}: a {theirs[0]} cannot become a {ours[0]}")
    return theirs[1] / ours[1]


def column_names(path: Path) -> list[str]:
    reading(path)
    with _readable(path):
        return _scan(path).collect_schema().names()


def table_batches(
    path: Path,
    *,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    notices: Notices,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[Table]:
    """The table a run of rows at a time: at least one, perhaps of no rows. Blank lines are passed over."""
    import polars as pl

    names = column_names(path)
    source_of = {name: name for name in names}
    scaled = {}
    for source, target in (rename or {}).items():
        if source in names:
            source_of[target] = source
            scaled[target] = unit_factor(source, target)
    _check_columns(path, names, source_of, needed)
    wanted = [c for c in (*needed, *optional) if c in source_of]
    unread = [n for n in names if n not in {source_of[c] for c in wanted}]
    hints = [n + did_you_mean(n, [c for c in optional if c not in source_of]) for n in unread]
    notices.add(f"Columns of {path.name} that are not read ({', '.join(hints)})", len(unread))

    lazy = _scan(path).with_row_index(ROW).select(ROW, *(pl.col(source_of[c]).alias(c) for c in wanted))
    if path.suffix != ".parquet":
        lazy = lazy.filter(~pl.all_horizontal(pl.col(wanted).is_null()))
    with _readable(path):
        runs = iter(lazy.collect_batches(chunk_size=batch_rows, maintain_order=True))
    some = False
    while True:
        with _readable(path):
            frame = next(runs, None)
        if frame is None:
            break
        some = True
        yield Table(path, frame, scaled)
    if not some:
        with _readable(path):
            yield Table(path, lazy.head(0).collect(), scaled)


def read_table(
    path: Path,
    *,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    notices: Notices,
) -> Table:
    """The whole table at once."""
    import polars as pl

    runs = list(table_batches(path, needed=needed, optional=optional, rename=rename, notices=notices))
    return Table(path, pl.concat([run.frame for run in runs]), runs[0].scaled)


def write_table(frame: pl.DataFrame, folder: Path, stem: str, *, csv: bool) -> None:
    """Write a table; in CSV, bytes are hexadecimal digits."""
    import polars as pl

    if csv:
        binary = [pl.col(c).bin.encode("hex") for c, t in frame.schema.items() if t == pl.Binary]
        frame.with_columns(binary).write_csv(folder / f"{stem}.csv", datetime_format=CSV_TIME)
    else:
        frame.write_parquet(folder / f"{stem}.parquet", compression="zstd")


def _check_columns(path: Path, names: list[str], source_of: Mapping[str, str], needed: Sequence[str]) -> None:
    missing = [c for c in needed if c not in source_of]
    if not missing:
        return
    if len(names) == 1 and re.search(r"[;\t|]", names[0]):
        raise CityError(f'{path.name}: one column only, "{names[0]}". Separate the columns with commas')
    hints = ", ".join(m + did_you_mean(m, [n for n in names if n not in needed]) for m in missing)
    raise CityError(f"{path.name} has no column {hints}. Its columns are: {', '.join(names) or 'none'}")


def _first(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))


# Columns


def numbers(table: Table, column: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """A column as numbers, and where it is given; NaN where it is not. A NaN may also be given."""
    import polars as pl

    raw = table.frame[column]
    if raw.dtype == pl.String:
        text = raw.str.strip_chars()
        text = text.set(text == "", None)
        cast = text.cast(pl.Float64, strict=False)
        wrong = (cast.is_null() & text.is_not_null()).to_numpy()
        if wrong.any():
            row = _first(wrong)
            raise table.refuse(row, f'{column} "{raw[row]}" is not a number')
    elif raw.dtype.is_numeric() or raw.dtype == pl.Null:
        cast = raw.cast(pl.Float64)
    else:
        raise CityError(f"{table.path.name}: column {column} holds {raw.dtype}. Numbers are expected")
    given = cast.is_not_null().to_numpy()
    values = cast.fill_null(float("nan")).to_numpy() * table.scaled.get(column, 1.0)
    return values, given


def words(table: Table, column: str) -> NDArray[np.str_]:
    """A column as text, "" where it is not given or not there at all."""
    import polars as pl

    if column not in table:
        return np.full(len(table), "", np.str_)
    raw = table.frame[column]
    if raw.dtype.is_float() and bool((raw.drop_nulls() == raw.drop_nulls().floor()).all()):
        raw = raw.cast(pl.Int64)  # what pandas makes of integers with gaps
    return np.array(raw.cast(pl.String).fill_null("").to_list(), np.str_).reshape(-1)


def lines_wkb(table: Table, column: str) -> NDArray[np.object_]:
    """A column of WKB: bytes in Parquet, hexadecimal digits in CSV; b"" where it is not given."""
    import polars as pl

    held = np.full(len(table), b"", np.object_)
    if column not in table:
        return held
    raw = table.frame[column]
    for row, value in enumerate(raw.to_list()):
        if isinstance(value, str):
            try:
                held[row] = bytes.fromhex(value)
            except ValueError:
                raise table.refuse(row, f'{column} "{value[:20]}" is not WKB in hexadecimal digits') from None
        elif value is not None:
            if raw.dtype != pl.Binary:
                raise CityError(f"{table.path.name}: column {column} holds {raw.dtype}. WKB is expected")
            held[row] = value
    return held


def new_ids(table: Table, column: str, *, text: bool = False) -> NDArray[np.generic]:
    """Ids of nodes: integers where every one is written as one, else text."""
    import polars as pl

    raw = table.frame[column]
    _check_id_type(table, column)
    blank = raw.is_null().to_numpy()
    if raw.dtype == pl.String:
        blank = (
            blank | (raw.fill_null("") == "").to_numpy() | raw.fill_null("").str.contains("\0", literal=True).to_numpy()
        )
    if blank.any():
        raise table.refuse(_first(blank), f"{column} is empty. Every node needs an id of its own")
    if raw.dtype == pl.String and not text and bool(raw.str.contains(INTEGER_ID).all()) and len(raw):
        raw = raw.cast(pl.Int64)
    ids: NDArray[np.generic]
    if raw.dtype.is_integer() and not text:
        ids = raw.cast(pl.Int64).to_numpy()
    else:
        ids = np.array(raw.cast(pl.String).to_list(), np.str_).reshape(-1)
    unique, first, count = np.unique(ids, return_index=True, return_counts=True)
    if len(unique) != len(ids):
        again = np.ones(len(ids), bool)
        again[first] = False
        row = _first(again)
        earlier = int(first[np.searchsorted(unique, ids[row])])
        where = f"{table.place(earlier)} ({int((count > 1).sum())} ids are repeated)"
        raise table.refuse(row, f'{column} "{ids[row]}" is there already, at {where}')
    return ids


def _check_id_type(table: Table, column: str) -> None:
    import polars as pl

    dtype = table.frame[column].dtype
    if not (dtype.is_integer() or dtype in (pl.String, pl.Null)):
        raise CityError(f"{table.path.name}: column {column} holds {dtype}. Ids are integers or text")


class NodeIndex:
    """From the user's ids to rows of the node table, a column at a time."""

    def __init__(self, node_ids: NDArray[np.generic]) -> None:
        self.node_ids = node_ids
        self._order = np.argsort(node_ids, kind="stable")

    def rows(self, table: Table, column: str) -> NDArray[np.int64]:
        """[rows of the table] row of each node, -1 where it is not known."""
        import polars as pl

        raw = table.frame[column]
        if not raw.dtype.is_float():  # what pandas makes of integers with gaps
            _check_id_type(table, column)
        if self.node_ids.dtype.kind == "U":
            names = pl.Enum(self.node_ids.tolist())
            return raw.cast(pl.String).cast(names, strict=False).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        if raw.dtype == pl.String:
            raw = raw.str.strip_chars()
            raw = raw.set(~raw.str.contains(INTEGER_ID).fill_null(False), None)
        elif raw.dtype.is_float():
            raw = raw.set((raw != raw.floor()).fill_null(True), None)
        ids = raw.cast(pl.Int64, strict=False)
        known = ids.fill_null(0).to_numpy()
        at = np.minimum(np.searchsorted(self.node_ids, known, sorter=self._order), len(self._order) - 1)
        rows = self._order[at]
        found = (self.node_ids[rows] == known) & ids.is_not_null().to_numpy()
        return np.where(found, rows, -1)

    def nearest(self, name: object) -> str:
        return did_you_mean(str(name), [str(x) for x in self.node_ids.tolist()])
