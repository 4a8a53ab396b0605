"""The columns of a table as arrays: numbers, words, lines, node ids. Errors name the line and column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from frigate.coordinates import coordinate_fault, on_earth
from frigate.errors import CityError, did_you_mean
from frigate.reading.notices import Notices
from frigate.reading.tables import ROW, Table, TableFile

if TYPE_CHECKING:
    import polars as pl

INTEGER_ID = r"^(0|-?[1-9][0-9]{0,17})$"  # "007" is text: a number would lose the zeros
MAX_TEXT = 255  # characters of a name or id: in a numpy array every row is as wide as the longest
MISSING = ("", "na", "n/a", "nan", "null", "none", "-", "--")  # how tables write a missing number


# Numbers


@dataclass(frozen=True)
class Numbers:
    """A column as numbers."""

    values: NDArray[np.float64]  # NaN where missing or wrong; NaN may also be given
    given: NDArray[np.bool_]
    wrong: NDArray[np.bool_]  # something that is not a number


def parse_numbers(table: Table, column: str, style: str = "dot") -> Numbers:
    """A column as numbers, in the unit of our column; `style` comes from `number_styles`."""
    import polars as pl

    raw = table.frame[column]
    if raw.dtype == pl.String:
        text = raw.str.strip_chars()
        missing = text == "" if table.file.strict else text.str.to_lowercase().is_in(MISSING)
        text = text.set(missing.fill_null(True), None)
        shaped = text
        if style == "comma":
            tidy = text.str.contains(r"^[^.]*$|^[+-]?\d{1,3}(\.\d{3})+(,\d*)?$").fill_null(True)
            shaped = text.set(~tidy, "?").str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        elif style == "thousands":
            shaped = text.str.replace_all(",", "", literal=True)
        cast = shaped.cast(pl.Float64, strict=False)
    elif raw.dtype.is_numeric() or raw.dtype == pl.Null:
        text = raw
        cast = raw.cast(pl.Float64)
    else:
        theirs = table.file.source_of.get(column, column)
        raise CityError(f"{table.path.name}: column {theirs} holds {raw.dtype}. Numbers are expected")
    given = text.is_not_null().to_numpy()
    wrong = given & cast.is_null().to_numpy()
    values = cast.fill_null(float("nan")).to_numpy() * table.file.factor_of.get(column, 1.0)
    return Numbers(values, given & ~wrong, wrong)


def numbers(table: Table, column: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """A column as numbers, NaN where missing, and a mask of those given. Anything that is not a number is refused."""
    found = parse_numbers(table, column)
    table.refuse_where(found.wrong, lambda row: f'{column} "{table.frame[column][row]}" is not a number')
    return found.values, found.given


def number_styles(file: TableFile, columns: Sequence[str]) -> dict[str, str]:
    """How each column writes its numbers: "dot" (1234.5), "comma" (1.234,5) or "thousands" (1,234.5).

    A value such as 1,234 is ambiguous. Other values of the column decide, else the delimiter: a file whose columns are
    separated by commas would hardly use decimal commas.
    """
    import polars as pl

    columns = [c for c in columns if c in file]
    if file.parquet or not columns:
        return dict.fromkeys(columns, "dot")
    dotted = r"^[+-]?\d+(\.\d+)+$"
    thousands = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+$"
    decimal = r"^[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+$"
    grouped = r"^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$"
    found_in = []
    for c in columns:
        text = pl.col(c).str.strip_chars()
        is_decimal = text.str.contains(decimal)
        is_grouped = text.str.contains(grouped)
        found_in += [(is_decimal & ~is_grouped).any().alias(f"d{c}"), (is_grouped & ~is_decimal).any().alias(f"g{c}")]
        found_in.append((is_decimal & is_grouped).any().alias(f"b{c}"))
        is_dotted = text.str.contains(dotted)
        by_thousands = text.str.contains(thousands)
        found_in.append((is_dotted & ~by_thousands).any().alias(f"p{c}"))
        found_in.append(text.str.contains(r"^[+-]?\d+$").any().alias(f"w{c}"))
        found_in.append(pl.col(ROW).filter(by_thousands).first().alias(f"t{c}"))
    with file.reading():
        found = file.lazy(columns).select(found_in).collect().row(0, named=True)
    styles = {}
    for c in columns:
        sure_decimal = found[f"d{c}"]
        sure_grouped = found[f"g{c}"]
        either = found[f"b{c}"]
        if sure_decimal and sure_grouped:
            raise CityError(f"{file.path.name}: {file.source_of[c]} mixes decimal commas and decimal points")
        unsure = found[f"t{c}"] if found[f"w{c}"] and not found[f"p{c}"] and c not in ("lon", "lat") else None
        if unsure is not None and file.delimiter != "," and not (sure_decimal or sure_grouped or either):
            raise CityError(
                f"{file.place(int(unsure))}: {file.source_of[c]} has three digits after the dot, where other rows have "
                "no dot: are these thousands or decimals? Write 1234 or 987.000"
            )
        if sure_decimal or (either and not sure_grouped and file.delimiter != ","):
            styles[c] = "comma"
        else:
            styles[c] = "thousands" if sure_grouped or either else "dot"
    return styles


def lon_lat(table: Table, wanted: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Columns `lon` and `lat`. Coordinates that are not on earth are refused in all rows, or in those wanted."""
    lon, lat = (numbers(table, c)[0] if c in table else np.full(len(table), np.nan) for c in ("lon", "lat"))
    wrong = ~on_earth(lon, lat) if wanted is None else wanted & ~on_earth(lon, lat)
    table.refuse_where(wrong, lambda row: coordinate_fault(float(lon[row]), float(lat[row])))
    return lon, lat


# Text


def text(table: Table, column: str) -> pl.Series:
    """A column as stripped text, null where empty. 7.0 becomes 7, because pandas writes integers that way."""

    stripped = as_text(table, column).str.strip_chars()
    return stripped.set((stripped == "").fill_null(False), None)


def numbered(names: pl.Series, codes: dict[str, int]) -> NDArray[np.int32]:
    """The number of each name in `codes`. New names are added to `codes` in order of appearance."""
    import polars as pl

    distinct = names.unique(maintain_order=True)
    numbers = pl.Series([codes.setdefault(name, len(codes)) for name in distinct.to_list()], dtype=pl.Int32)
    return names.replace_strict(distinct, numbers, return_dtype=pl.Int32).to_numpy()


def words(table: Table, column: str, notices: Notices | None = None) -> NDArray[np.str_]:
    """A column as text, `shortened` if notices are given; "" where a value or the whole column is missing."""

    if column not in table:
        return np.full(len(table), "", np.str_)
    given = as_text(table, column).fill_null("")
    return np.array((given if notices is None else shortened(given, table, notices)).to_list(), np.str_).reshape(-1)


def shortened(text: pl.Series, table: Table, notices: Notices) -> pl.Series:
    """A column of text, cut to `MAX_TEXT` characters, with a notice of what was cut."""
    long = (text.str.len_chars() > MAX_TEXT).fill_null(False).to_numpy()
    notices.add_rows(f"Values of {text.name} cut to {MAX_TEXT} characters", long, table.place_of())
    return text.str.head(MAX_TEXT)


def as_text(table: Table, column: str) -> pl.Series:
    """A column of text or numbers as text; any other type is refused."""
    import polars as pl

    raw = _whole_numbers(table.frame[column])
    if raw.dtype.is_nested() or raw.dtype.is_temporal() or raw.dtype == pl.Binary:
        theirs = table.file.source_of.get(column, column)
        raise CityError(f"{table.path.name}: column {theirs} holds {raw.dtype}. Text or numbers are expected")
    return raw.cast(pl.String)


def _whole_numbers(raw: pl.Series) -> pl.Series:
    import polars as pl

    known = raw.drop_nulls()
    return raw.cast(pl.Int64, strict=False) if raw.dtype.is_float() and bool((known == known.floor()).all()) else raw


def lines_wkb(table: Table, column: str) -> NDArray[np.object_]:
    """A column of WKB: bytes in Parquet, hexadecimal digits in CSV; b"" where missing."""
    import polars as pl

    lines = np.full(len(table), b"", np.object_)
    if column not in table:
        return lines
    raw = table.frame[column]
    if raw.dtype == pl.String:
        found = raw.str.decode("hex", strict=False)
        wrong = (found.is_null() & raw.is_not_null()).to_numpy()
        shown = raw
        table.refuse_where(wrong, lambda row: f'{column} "{shown[row][:20]}" is not WKB in hexadecimal digits')
        raw = found
    if raw.dtype not in (pl.Binary, pl.Null):
        raise CityError(f"{table.path.name}: column {column} holds {raw.dtype}. WKB is expected")
    lines[:] = [value or b"" for value in raw.to_list()]
    return lines


# Ids


def new_ids(table: Table, column: str, *, as_text: bool = False) -> NDArray[np.generic]:
    """Unique node ids: integers if every id is written as one, else text."""
    import polars as pl

    raw = table.frame[column]
    _check_id_type(table, column)
    blank = raw.is_null().to_numpy()
    if raw.dtype == pl.String:
        known = raw.fill_null("")
        blank = blank | (known == "").to_numpy() | known.str.contains("\0", literal=True).to_numpy()
    table.refuse_where(blank, lambda _: f"{column} is empty. Every node needs an id of its own")
    ids = id_array(raw, as_text=as_text)
    unique, first, count = np.unique(ids, return_index=True, return_counts=True)
    if len(unique) != len(ids):
        again = np.ones(len(ids), bool)
        again[first] = False
        row = int(np.argmax(again))
        earlier = table.file.place(table.row(int(first[np.searchsorted(unique, ids[row])])))
        repeats = f"{earlier} ({int((count > 1).sum())} ids are repeated)"
        raise table.refuse(row, f'{column} "{ids[row]}" is there already, at {repeats}')
    return ids


def id_array(ids: pl.Series, *, as_text: bool = False) -> NDArray[np.generic]:
    """Ids as an array: integers if every id is written as one, else text."""
    import polars as pl

    if ids.dtype == pl.String and not as_text and len(ids) and bool(ids.str.contains(INTEGER_ID).all()):
        ids = ids.cast(pl.Int64)
    if ids.dtype.is_integer() and not as_text:
        return ids.cast(pl.Int64).to_numpy()
    names = ids.cast(pl.String)
    longest = names.str.len_chars().arg_max()
    if longest is not None and len(names[longest]) > MAX_TEXT:
        found = f'id "{names[longest][:20]}..." has {len(names[longest]):,} characters'
        raise CityError(f"{found}. Give ids of at most {MAX_TEXT}")
    return np.array(names.to_list(), np.str_).reshape(-1)


def _check_id_type(table: Table, column: str) -> None:
    import polars as pl

    dtype = table.frame[column].dtype
    if not (dtype.is_integer() or dtype in (pl.String, pl.Null)):
        raise CityError(f"{table.path.name}: column {column} holds {dtype}. Ids are integers or text")


class NodeIndex:
    """Finds the rows of nodes by the user's ids, one column at a time."""

    def __init__(self, node_ids: NDArray[np.generic]) -> None:
        self.node_ids = node_ids
        self._order = np.argsort(node_ids, kind="stable")

    def rows(self, table: Table, column: str) -> NDArray[np.int64]:
        """[rows of the table] row of each node, -1 if unknown."""
        if not table.frame[column].dtype.is_float():  # pandas turns integers with gaps into floats
            _check_id_type(table, column)
        return self.find(table.frame[column])

    def find(self, ids: pl.Series) -> NDArray[np.int64]:
        """Row of each node, -1 if unknown."""
        import polars as pl

        if self.node_ids.dtype.kind == "U":
            names = pl.Enum(self.node_ids.tolist())
            return ids.cast(pl.String).cast(names, strict=False).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        if ids.dtype == pl.String:
            ids = ids.str.strip_chars()
            ids = ids.set(~ids.str.contains(INTEGER_ID).fill_null(False), None)
        elif ids.dtype.is_float():
            ids = ids.set((ids != ids.floor()).fill_null(True), None)
        numbers = ids.cast(pl.Int64, strict=False)
        known = numbers.fill_null(0).to_numpy()
        at = np.minimum(np.searchsorted(self.node_ids, known, sorter=self._order), len(self._order) - 1)
        rows = self._order[at]
        found = (self.node_ids[rows] == known) & numbers.is_not_null().to_numpy()
        return np.where(found, rows, -1)

    def nearest(self, name: object) -> str:
        return did_you_mean(str(name), self._names)

    @cached_property
    def _names(self) -> list[str]:
        return [str(x) for x in self.node_ids.tolist()]
