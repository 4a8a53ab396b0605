"""Times as people write them.

A time is ISO-8601 text with a zone ("2024-01-01T08:00Z", "+02:00"), a number of seconds since 1970 UTC
(milli-, micro- and nanoseconds are known by their size), or a Parquet timestamp. One without a zone is read
as the city's local time where the city names its time zone, and counted aloud; otherwise it is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from frigate.data.notices import Notices
from frigate.data.tables import ROW, Table
from frigate.errors import CityError

EARLIEST_US, LATEST_US = (int(datetime(y, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000 for y in (1900, 2200))


class NotATimeError(Exception):
    """Why a value is no time, to stand after the value."""


@dataclass(frozen=True)
class Clock:
    """How times without a zone are read: as local time of this zone, or, where it is None, not at all."""

    zone: ZoneInfo | None
    remedy: str  # what to do about a time without a zone

    def read(self, when: datetime | str | float) -> tuple[int, str]:
        """Microseconds since 1970 UTC, and what has to be said about it ("" for nothing). NotATimeError."""
        if isinstance(when, str):
            text = when.strip()
            if re.fullmatch(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", text):
                when = int(text) if text.isdigit() and len(text) < 20 else float(text)
            else:
                when = _iso(text)
        if isinstance(when, int | float):
            us, said = _number_us(when)
        elif when.tzinfo is not None:
            us, said = _utc_us(when), ""
        elif self.zone is None:
            raise NotATimeError(f"has no time zone. {self.remedy}")
        else:
            us, said = self._local_us(when)
        if not EARLIEST_US <= us < LATEST_US:
            raise NotATimeError("is not between the years 1900 and 2200")
        return us, said

    def _local_us(self, when: datetime) -> tuple[int, str]:
        first = when.replace(tzinfo=self.zone, fold=0)
        before, after = first.utcoffset(), first.replace(fold=1).utcoffset()
        said = "Times without a zone, read as local time"
        if before is not None and after is not None and before > after:
            said = "Local times that a clock change makes happen twice, read as the first"
        elif before != after:
            said = "Local times that a clock change leaves out, moved on by the change"
        return _utc_us(first), said


def given_or_taken(timezone: str | None, own: str, notices: Notices) -> str:
    """The time zone given, or else that of the city whose network is used: which is said."""
    if timezone is None:
        notices.add(f"Time zones taken over from the network's city ({own}), as none was given", 1)
    return own if timezone is None else timezone


def _utc_us(when: datetime) -> int:
    since = when.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def utc_text(us: int) -> str:
    """ISO-8601 to the second."""
    return f"{np.datetime_as_string(np.datetime64(us, 'us').astype('datetime64[s]'))}Z"


def _iso(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise NotATimeError("is not a time. Write it as 2024-01-31T08:00Z") from None


def _number_us(number: float) -> tuple[int, str]:
    if not np.isfinite(number):
        raise NotATimeError("is not a time")
    if 19_000_101 <= number <= 21_001_231 and _is_date(int(number)):
        raise NotATimeError("looks like a date. Write it as 2024-01-31T00:00Z")
    for limit, per_s, said in (
        (1e11, 1, ""),
        (1e14, 10**3, "milli"),
        (1e17, 10**6, "micro"),
        (1e20, 10**9, "nano"),
    ):
        if abs(number) < limit:
            exact = number * 1_000_000 // per_s if isinstance(number, int) else round(number * (1_000_000 / per_s))
            return int(exact), f"Times read as {said}seconds since 1970 UTC" if said else ""
    raise NotATimeError("is not a time")


def _is_date(number: int) -> bool:
    try:
        date(number // 10_000, number // 100 % 100, number % 100)
    except ValueError:
        return False
    return True


def times_us(table: Table, column: str, *, clock: Clock, notices: Notices) -> NDArray[np.int64]:
    """Times as microseconds since 1970 UTC. Distinct ones are read once: most tables repeat them."""
    import polars as pl

    raw = table.frame[column]
    if not len(raw):
        return np.zeros(0, np.int64)
    if raw.dtype in (pl.Time, pl.Duration, pl.Boolean, pl.Binary) or raw.dtype.is_nested():
        raise CityError(f"{table.path.name}: column {column} holds {raw.dtype}. Times are expected")
    if raw.dtype == pl.Date:
        raw = raw.cast(pl.Datetime("us"))
    elif isinstance(raw.dtype, pl.Datetime):
        raw = raw.cast(pl.Datetime("us", raw.dtype.time_zone))
    empty = raw.is_null().to_numpy()
    if empty.any():
        raise table.refuse(int(np.argmax(empty)), f"{column} is empty")
    if isinstance(raw.dtype, pl.Datetime):
        us = raw.dt.timestamp("us").to_numpy()
        outside = (us < EARLIEST_US) | (us >= LATEST_US)  # such a time may be more than Python's can hold
        if outside.any():
            row = int(np.argmax(outside))
            told = utc_text(int(us[row])).removesuffix("" if raw.dtype.time_zone else "Z")
            raise table.refuse(row, f'{column} "{told}" is not between the years 1900 and 2200')
        if raw.dtype.time_zone is not None:
            return us
    distinct = raw.unique()
    numbered = pl.Series(range(len(distinct)), dtype=pl.Int64)
    codes = raw.replace_strict(distinct, numbered, return_dtype=pl.Int64).to_numpy()
    return _read_distinct(table, column, distinct.to_list(), codes, clock=clock, notices=notices)


def array_times_us(
    path: Path, times: NDArray[Any], *, clock: Clock, notices: Notices, name: str = "time"
) -> NDArray[np.int64]:
    """The times in an array of a file: text, numbers since 1970 UTC, or datetime64."""
    import polars as pl

    if times.dtype.kind == "M":
        times = times.astype("datetime64[us]")
        if np.isnat(times).any():
            raise CityError(f"{path.name}: row {int(np.argmax(np.isnat(times))) + 1} has no time")
    elif times.dtype.kind == "S":
        times = np.char.decode(times, "utf-8", "replace")
    column = pl.Series(times.tolist() if times.dtype.kind == "U" else times)
    rows = pl.Series(range(len(column)), dtype=pl.UInt32)
    return times_us(Table(path, pl.DataFrame({ROW: rows, name: column})), name, clock=clock, notices=notices)


def _read_distinct(
    table: Table,
    column: str,
    distinct: list[Any],
    codes: NDArray[np.int64],
    *,
    clock: Clock,
    notices: Notices,
) -> NDArray[np.int64]:
    us = np.zeros(len(distinct), np.int64)
    said: dict[str, list[int]] = {}
    wrong: dict[int, str] = {}
    for code, when in enumerate(distinct):
        try:
            us[code], remark = clock.read(when)
        except (NotATimeError, OverflowError) as error:
            wrong[code] = str(error) if isinstance(error, NotATimeError) else "is not between the years 1900 and 2200"
            continue
        if remark:
            said.setdefault(remark, []).append(code)
    if wrong:
        row = int(np.argmax(np.isin(codes, list(wrong))))
        raise table.refuse(row, f'{column} "{distinct[codes[row]]}" {wrong[int(codes[row])]}')
    for remark, which in said.items():
        notices.add_rows(f"{remark} ({table.path.name})", np.isin(codes, which), table.spot(column), most=1)
    return us[codes]
