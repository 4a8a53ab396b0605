"""Parse times in all common formats into microseconds since 1970 UTC.

A time in a city folder is ISO-8601 text with a zone ("2024-01-01T08:00Z", "+02:00"), a number of seconds since 1970 UTC
(milli-, micro- and nanoseconds are recognised by their size), or a Parquet timestamp. A time without a zone is read as
local time, with a notice, if the city names its time zone; otherwise it is refused.

A table that a user imports may also have 31.01.2024 08:15; 01/31/2024 08:15 AM; 31/01/2024; 2024/01/31; 20240131 and
202401310815; two-digit years; 24:00 for the end of a day; date and time in separate columns. Whether 3/4/2024 is in
March or April, and whether 08:00-09:00 is an hour or a time with an offset, is decided by other values of the column or
by the user, never guessed. Local times that occur twice at a clock change are told apart by the order of rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S
from frigate.errors import CityError
from frigate.reading.notices import Notices
from frigate.reading.tables import ROW, Table, TableFile

if TYPE_CHECKING:
    import polars as pl

EARLIEST_US, LATEST_US = (int(datetime(y, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000 for y in (1900, 2200))
EARLIEST_S = 30_000_000  # no reading is from 1970: smaller numbers are row numbers, days or other seconds
OUT_OF_RANGE = "is not between the years 1900 and 2200"
DAY_FIRST, MONTH_FIRST, YEAR_FIRST = "dmy", "mdy", "ymd"

_AMBIGUOUS_DATE = r"^\s*(\d{1,2})[/-](\d{1,2})[/-](\d{4}|\d{2})(?:\D.*)?$"
_DAY_OR_MONTH_FIRST = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})(?:[ T,]+(.*))?")
_YEAR_FIRST = re.compile(r"(\d{4})([./-])(\d{1,2})\2(\d{1,2})(?:[ T]+(.*))?")
_COMPACT = re.compile(r"((?:19|20)\d{2})(\d{2})(\d{2})(?:[ T]?(\d{2})(\d{2})(\d{2})?)?")
_CLOCK = re.compile(
    r"(\d{1,2})[:.h](\d{2})(?:[:.](\d{2})(?:[.,]\d+)?)?\s*([AaPp])?\.?(?:[Mm]\.?)?\s*(Z|[+-]\d{2}(?::?\d{2})?)?"
)
_RANGE = re.compile(r"(\s*)(?:-|–|to)\s*\d{1,2}:\d{2}(?::\d{2})?$")
_OFFSET = re.compile(r"-(?:0\d|1[0-2]):(?:00|30)$")
_RANGE_OR_OFFSET = r"(?:^|[^T\d:])\d{1,2}:\d{2}(-(?:0\d|1[0-2]):(?:00|30))\s*$"
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


LOCAL = "Times without a zone, read as local time"
GAP = "Local times that a clock change leaves out, moved on by the change"
TWICE = "Local times that a clock change makes happen twice"


class NotATimeError(Exception):
    """Why a value is not a time, worded to follow the value."""


@dataclass(frozen=True)
class Clock:
    """How times are read."""

    zone: ZoneInfo | None  # of times without one; None: they are refused
    remedy: str = ""  # what to do about a time without a zone
    any_format: bool = False  # whether to accept the formats of users' tables
    date_order: str = DAY_FIRST  # in those formats, of 3/4/2024 and 24/4/3
    ranges: bool = False  # whether 08:00-09:00 is an hour; if not, it may be a UTC offset, and is refused

    def read(self, when: datetime | str | float, *, fold: int = 0) -> tuple[int, str]:
        """Microseconds since 1970 UTC, and a notice or "". Raises NotATimeError.

        Of a local time that occurs twice at a clock change, `fold` 0 is the first and 1 the second.
        """
        try:
            return self._read(when, fold)
        except OverflowError:
            raise NotATimeError(OUT_OF_RANGE) from None
        except ValueError:
            raise NotATimeError("is not a valid date and time") from None

    def read_option(self, option: str, text: str) -> int:
        """The time given as a command-line option."""
        try:
            return self.read(text)[0]
        except NotATimeError as error:
            raise CityError(f'{option} "{text}" {error}') from None

    def _read(self, when: datetime | str | float, fold: int) -> tuple[int, str]:
        if self.any_format and not isinstance(when, datetime):
            when = _calendar_time(str(when).strip(), self) or str(when)
        if isinstance(when, str):
            text = when.strip()
            if not text:
                raise NotATimeError("is empty")
            if _NUMBER.fullmatch(text):
                when = int(text) if text.isdigit() and len(text) < 20 else float(text)
            else:
                when = _iso(text)
        if isinstance(when, int | float):
            us, remark = _number_us(when)
        elif when.tzinfo is not None:
            us = _utc_us(when)
            remark = ""
        elif self.zone is None:
            raise NotATimeError(f"has no time zone. {self.remedy}")
        else:
            us, remark = self._local_us(when, fold)
        if not EARLIEST_US <= us < LATEST_US:
            raise NotATimeError(OUT_OF_RANGE)
        return us, remark

    def _local_us(self, when: datetime, fold: int) -> tuple[int, str]:
        first = when.replace(tzinfo=self.zone, fold=0)
        before = first.utcoffset()
        after = first.replace(fold=1).utcoffset()
        if before is not None and after is not None and before > after:
            return _utc_us(first.replace(fold=fold)), TWICE
        return _utc_us(first), LOCAL if before == after else GAP


def network_timezone(timezone: str | None, own: str, notices: Notices) -> str:
    """The time zone given, or else, with a notice, that of the city whose network is used."""
    if timezone is None:
        notices.add(f"Time zones taken from the network's city ({own}), as none was given", 1)
    return own if timezone is None else timezone


def utc_text(us: int) -> str:
    """ISO-8601 to the second, or just the year if it is out of range."""
    if abs(us) >= 2**63:
        return f"year {1970 + us // (31_556_952 * 1_000_000)}"
    return f"{np.datetime_as_string(np.datetime64(us, 'us').astype('datetime64[s]'))}Z"


def _utc_us(when: datetime) -> int:
    since = when.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _iso(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise NotATimeError("is not a time. Write it as 2024-01-31T08:00Z") from None


def _number_us(number: float) -> tuple[int, str]:
    if not np.isfinite(number):
        raise NotATimeError("is not a time")
    if 19_000_101 <= number <= 21_001_231 and 1 <= number // 100 % 100 <= 12 and 1 <= number % 100 <= 31:
        raise NotATimeError("looks like a date. Write it as 2024-01-31T00:00Z")
    if 20_000 <= number < 80_000:
        day = date(1899, 12, 30) + timedelta(days=int(number))
        raise NotATimeError(f"looks like a spreadsheet's number for {day}. Write times as 2024-01-31T08:00Z")
    if abs(number) < EARLIEST_S:
        raise NotATimeError("would be a time in 1970. Is it a row number? Write times as 2024-01-31T08:00Z")
    for limit, per_s, unit in (
        (1e11, 1, ""),
        (1e14, 10**3, "milli"),
        (1e17, 10**6, "micro"),
        (1e20, 10**9, "nano"),
    ):
        if abs(number) < limit:
            exact = number * 1_000_000 // per_s if isinstance(number, int) else round(number * (1_000_000 / per_s))
            return int(exact), f"Times read as {unit}seconds since 1970 UTC" if unit else ""
    raise NotATimeError("is not a time")


# Formats of users' tables


def _calendar_time(text: str, clock: Clock) -> datetime | None:
    """A time in one of the formats of users' tables; None for ISO-8601 and for numbers since 1970."""
    if compact := _COMPACT.fullmatch(text):
        year, month, day, hour, minute, second = (int(x or 0) for x in compact.groups())
        if 1 <= month <= 12 and 1 <= day <= 31 and hour <= 24:
            return _joined(date(year, month, day), timedelta(hours=hour, minutes=minute, seconds=second), "")
    if iso := _YEAR_FIRST.fullmatch(text):
        year = int(iso[1])
        month = int(iso[3])
        day = int(iso[4])
        rest = iso[5]
    elif parts := _DAY_OR_MONTH_FIRST.fullmatch(text):
        # Everywhere that dates are written with dots, the day comes first.
        order = DAY_FIRST if parts[2] == "." else clock.date_order
        order = MONTH_FIRST if order == YEAR_FIRST and len(parts[4]) == 4 else order
        by_letter = dict(zip(order, (int(parts[1]), int(parts[3]), int(parts[4])), strict=True))
        year, month, day = (by_letter[letter] for letter in "ymd")
        year += 2000 if len(parts[4]) == 2 else 0
        rest = parts[5]
    else:
        return None
    if not 1 <= month <= 12:
        raise NotATimeError(f"has no month {month}")
    if rest is None or not rest.strip():
        return datetime.combine(date(year, month, day), time())
    rest = rest.strip()
    if not _OFFSET.search(rest):
        rest = _RANGE.sub("", rest)
    elif re.search(_RANGE_OR_OFFSET, rest) and "T" not in text:  # with a T or seconds it is a UTC offset
        if not clock.ranges:
            raise NotATimeError(
                "could be a time range or an offset from UTC. Write 08:00 - 09:00, or 08:00:00-09:00 for the offset"
            )
        rest = _RANGE.sub("", rest)
    since, zone = _time_of_day(rest)
    return _joined(date(year, month, day), since, zone)


def _time_of_day(text: str) -> tuple[timedelta, str]:
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise NotATimeError('is not a time. Write the time of day as 08:15, 08:15:30 or "08:15 AM"')
    hour = int(match[1])
    minute = int(match[2])
    second = int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            raise NotATimeError(f"has no hour {hour} {match[4].upper()}M")
        hour = hour % 12 + (12 if match[4] in "Pp" else 0)
    if minute > 59 or second > 59 or hour > 24 or (hour == 24 and (minute or second)):
        raise NotATimeError("is not a valid time of day")
    return timedelta(hours=hour, minutes=minute, seconds=second), match[5] or ""


def _joined(day: date, since: timedelta, zone: str) -> datetime:
    local = datetime.combine(day, time()) + since
    return datetime.fromisoformat(local.isoformat() + zone) if zone else local


def settle_formats(file: TableFile, columns: Sequence[str], clock: Clock, date_order: str | None) -> Clock:
    """The clock, set to the format of these columns: one of times, or a date and a time."""
    order = find_date_order(file, columns[0], date_order)
    return replace(clock, any_format=True, date_order=order, ranges=_has_ranges(file, columns[-1]))


def _has_ranges(file: TableFile, column: str) -> bool:
    """Whether 08:00-09:00 in this column is an hour: there are at most two UTC offsets, but many ends of ranges."""
    import polars as pl

    if file.parquet and file.scan().collect_schema()[file.source_of[column]] != pl.String:
        return False
    with file.reading():
        ends = file.lazy([column]).select(pl.col(column).str.extract(_RANGE_OR_OFFSET).drop_nulls().n_unique())
        return bool(ends.collect().item() > 2)


def find_date_order(file: TableFile, column: str, given: str | None) -> str:
    """The order of day, month and year in 3/4/2024 and 24/4/3: as given, or else as the other dates show.

    A record has only one or two distinct years but many days, and some day is above 12.
    """
    import polars as pl

    if given not in (None, DAY_FIRST, MONTH_FIRST, YEAR_FIRST):
        raise CityError(
            f'date order "{given}" is not known. Give {DAY_FIRST} (31/01/24), {MONTH_FIRST} (01/31/24) or {YEAR_FIRST}'
        )
    if given is not None:
        return given
    if file.parquet and file.scan().collect_schema()[file.source_of[column]] != pl.String:
        return DAY_FIRST
    first, second, third = (
        pl.col(column).str.extract(_AMBIGUOUS_DATE, i).cast(pl.Int64, strict=False) for i in (1, 2, 3)
    )
    short = first.is_not_null() & (third < 100)
    with file.reading():
        dates = file.lazy([column]).select(
            pl.col(ROW).filter(first > 12).first().alias("day_first"),
            pl.col(ROW).filter(second > 12).first().alias("month_first"),
            pl.col(column).filter(first.is_not_null()).first().alias("sample"),
            pl.col(ROW).filter(first.is_not_null()).first().alias("sample_row"),
            first.filter(short).n_unique().alias("firsts"),
            third.filter(short).n_unique().alias("lasts"),
            pl.max_horizontal(first.filter(short).max(), 0).alias("first_up_to"),
            pl.max_horizontal(third.filter(short).max(), 0).alias("last_up_to"),
        )
        found = dates.collect().row(0, named=True)
    if found["sample"] is None:
        return DAY_FIRST
    where = f'{file.place(int(found["sample_row"]))}: in "{found["sample"].strip()}"'
    if found["firsts"]:
        if found["first_up_to"] > 31 or found["lasts"] > 2 >= found["firsts"]:
            return YEAR_FIRST
        if found["last_up_to"] <= 31 and not found["firsts"] > 2 >= found["lasts"]:
            raise CityError(
                f"{where}, and in every other date, the year could be first or last. "
                "Pass --date-order ymd, --date-order dmy or --date-order mdy"
            )
    if found["day_first"] is not None and found["month_first"] is not None:
        places = " and ".join(file.place(int(found[k])) for k in ("day_first", "month_first"))
        raise CityError(f"{places}: the day comes first in one and the month in the other. Use one order")
    if found["day_first"] is None and found["month_first"] is None:
        raise CityError(
            f"{where}, and in every other date, day and month could be swapped. "
            "Pass --date-order dmy or --date-order mdy"
        )
    return MONTH_FIRST if found["month_first"] is not None else DAY_FIRST


# Columns


@dataclass(frozen=True)
class Times:
    """A column of times."""

    us: NDArray[np.int64]  # [R]
    faults: NDArray[np.str_]  # [R] why it is not a time; "" if it is
    text: Callable[[int], str]  # the time of a row as written


@dataclass
class RowOrder:
    """Tells the two passes of a repeated hour apart by the order of rows, one batch at a time.

    In file order, the times of a series (a sensor or node) run up to the clock change and then through the repeated
    hour again; if the newest come first, they run down twice.
    """

    last_us: dict[tuple[int, int], tuple[int, bool]] = field(default_factory=dict)  # by series, day: time, second pass?

    def second(
        self, local_us: NDArray[np.int64], series: NDArray[np.integer], *, down: bool
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which rows belong to the second pass, and for which rows the pass could be determined."""
        again = np.zeros(len(local_us), bool)
        told = np.zeros(len(local_us), bool)
        rows_of: dict[tuple[int, int], list[int]] = {}
        for row, (us, of) in enumerate(zip(local_us.tolist(), series.tolist(), strict=True)):
            key = (of, us // (DAY_S * 1_000_000))
            before = self.last_us.get(key)
            turned = before is not None and (before[1] or (us >= before[0] if down else us <= before[0]))
            self.last_us[key] = (us, turned)
            again[row] = turned
            rows_of.setdefault(key, []).append(row)
        for key, rows in rows_of.items():
            told[rows] = self.last_us[key][1]
        return (told & ~again if down else again), told


def parse_times(
    table: Table,
    columns: Sequence[str],
    *,
    clock: Clock,
    notices: Notices,
    series: NDArray[np.integer] | None = None,
    order: RowOrder | None = None,
) -> Times:
    """The times of a table, in one column, or as date and time in two. Each distinct value is parsed once.

    Parameters
    ----------
    table, columns
        The rows, and the columns with their times.
    clock
        How times are read.
    notices
        Collects times that were not taken literally.
    series
        [rows] number of the sensor or node of each row. Default: all rows are one series.
    order
        State from earlier batches of the same table, for the hour that a clock change repeats.
    """
    import polars as pl

    raw = _time_column(table, columns)
    if isinstance(raw.dtype, pl.Datetime):
        zone = raw.dtype.time_zone
        times, parts = {"ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}[raw.dtype.time_unit]  # of a microsecond
        units = raw.to_physical().fill_null(0).to_numpy()
        earliest, latest = (limit * parts // times for limit in (EARLIEST_US, LATEST_US))
        outside = (units < earliest) | (units >= latest)  # may overflow Python's datetime
        if zone is not None or outside.any():
            faults = np.where(raw.is_null().to_numpy(), "is empty", np.where(outside, OUT_OF_RANGE, ""))
            us = raw.set(pl.Series(outside), None).dt.timestamp("us").fill_null(0).to_numpy()
            return Times(
                us, faults, lambda row: utc_text(int(units[row]) * times // parts).removesuffix("" if zone else "Z")
            )
    distinct = raw.unique()
    _refuse_float32(table, columns[-1], distinct)
    times_us = np.zeros(len(distinct), np.int64)
    reasons = [""] * len(distinct)
    remarks: dict[str, list[int]] = {}
    for code, when in enumerate(distinct.to_list()):
        try:
            times_us[code], remark = clock.read("" if when is None else when)
        except NotATimeError as error:
            reasons[code] = str(error)
            continue
        if remark:
            remarks.setdefault(remark, []).append(code)
    numbered = pl.Series(range(len(distinct)), dtype=pl.Int64)
    codes = raw.replace_strict(distinct, numbered, return_dtype=pl.Int64).to_numpy().astype(np.int64)
    us = times_us[codes]
    rows_with = {remark: np.isin(codes, which) for remark, which in remarks.items()}
    if TWICE in remarks:
        twice = np.flatnonzero(rows_with.pop(TWICE))
        late_us = times_us.copy()
        late_us[remarks[TWICE]] = [clock.read(distinct[code], fold=1)[0] for code in remarks[TWICE]]
        going = np.diff(us)
        again, told = (order or RowOrder()).second(
            us[twice],
            np.zeros(len(twice), np.int64) if series is None else series[twice],
            down=bool((going < 0).sum() > (going > 0).sum()),
        )
        us[twice[again]] = late_us[codes[twice[again]]]
        for remark, which in (
            (f"{TWICE}, told apart by the order of rows", told),
            (f"{TWICE}, read as the first", ~told),
        ):
            rows_with[remark] = np.isin(np.arange(len(us)), twice[which])
    for remark, rows in rows_with.items():
        notices.add_rows(f"{remark} ({table.path.name})", rows, table.place_of(columns[-1]), limit=1)
    return Times(us, np.array(reasons, np.str_)[codes], lambda row: "" if raw[row] is None else str(raw[row]))


def _refuse_float32(table: Table, column: str, distinct: pl.Series) -> None:
    """Refuse numbers since 1970 that were stored as float32, which resolves present-day times only to two minutes."""
    import polars as pl

    if not (distinct.dtype.is_numeric() or distinct.dtype == pl.String):
        return
    number = distinct.cast(pl.Float64, strict=False).drop_nulls().to_numpy()
    number = number[np.isfinite(number) & (np.abs(number) > 1e9)]
    with np.errstate(over="ignore"):
        rounded = number.astype(np.float32)
    if len(number) < 3 or (number % 60 == 0).all() or (rounded != number).any():
        return
    theirs = table.file.source_of.get(column, column)
    raise CityError(
        f"{table.path.name}: column {theirs} holds times that were rounded to float32, such as {number[0]:.0f}. "
        "Save them as whole numbers or as float64"
    )


def _time_column(table: Table, columns: Sequence[str]) -> pl.Series:
    import polars as pl

    for column in columns:
        dtype = table.frame[column].dtype
        clock_alone = dtype == pl.Time and len(columns) == 1
        if dtype in (pl.Duration, pl.Boolean, pl.Binary) or dtype.is_nested() or clock_alone:
            theirs = table.file.source_of.get(column, column)
            raise CityError(f"{table.path.name}: column {theirs} holds {dtype}. Times are expected")
    if len(columns) == 1:
        raw = table.frame[columns[0]]
        return raw.cast(pl.Datetime("us")) if raw.dtype == pl.Date else raw
    day, clock = (table.frame[c].cast(pl.String) for c in columns)
    return day + " " + clock


def times_us(
    table: Table,
    column: str,
    *,
    clock: Clock,
    notices: Notices,
    series: NDArray[np.integer] | None = None,
    order: RowOrder | None = None,
) -> NDArray[np.int64]:
    """Times as microseconds since 1970 UTC. Parameters are those of `parse_times`; an invalid time is an error."""
    if not len(table):
        return np.zeros(0, np.int64)
    found = parse_times(table, [column], clock=clock, notices=notices, series=series, order=order)

    def why(row: int) -> str:
        value = f'"{found.text(row)[:60]}" ' if found.text(row) else ""
        return f"{column} {value}{found.faults[row]}"

    table.refuse_where(found.faults != "", why)
    return found.us


def array_times_us(
    path: Path, times: NDArray[Any], *, clock: Clock, notices: Notices, name: str = "time"
) -> NDArray[np.int64]:
    """The times in an array from a file: text, numbers since 1970 UTC, or datetime64."""
    import polars as pl

    if times.dtype.kind == "M":
        times = times.astype("datetime64[us]")
    elif times.dtype.kind == "S":
        times = np.char.decode(times, "utf-8", "replace")
    column = pl.Series(times.tolist() if times.dtype.kind == "U" else times)
    return times_us(Table.of(path, **{name: column}), name, clock=clock, notices=notices)
