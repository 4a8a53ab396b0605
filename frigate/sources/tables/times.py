"""Times as tables of the field write them, beside those that a city's own tables may hold (`frigate.data.times`).

ISO-8601; 31.01.2024 08:15; 01/31/2024 08:15 AM; 31/01/2024; 2024/01/31; 20240131 and 202401310815; two-digit years;
24:00 as the end of a day; seconds or milliseconds since 1970; a date and a time in columns of their own. Whether
3/4/2024 is in March or April is settled by another value of the column or by the user, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.data.notices import Notices
from frigate.data.tables import ROW
from frigate.data.times import Clock, NotATimeError
from frigate.errors import CityError
from frigate.sources.tables.rejected import Rejected
from frigate.sources.tables.user_table import OwnTable

DAY_FIRST, MONTH_FIRST = "dmy", "mdy"
_SLASHED = r"^\s*(\d{1,2})[/-](\d{1,2})[/-](?:\d{4}|\d{2})(?:\D.*)?$"
_DAY = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})(?:[ T,]+(.*))?")
_YEAR = re.compile(r"(\d{4})([./-])(\d{1,2})\2(\d{1,2})(?:[ T]+(.*))?")
_COMPACT = re.compile(r"((?:19|20)\d{2})(\d{2})(\d{2})(?:[ T]?(\d{2})(\d{2})(\d{2})?)?")
_CLOCK = re.compile(
    r"(\d{1,2})[:.h](\d{2})(?:[:.](\d{2})(?:[.,]\d+)?)?\s*([AaPp])?\.?(?:[Mm]\.?)?(Z|[+-]\d{2}:?\d{2})?"
)
_RANGE = re.compile(r"\s*(?:-|–|to)\s*\d{1,2}:\d{2}(?::\d{2})?$")


@dataclass(frozen=True)
class TimeReader:
    """How the times of one table are read."""

    table: OwnTable
    clock: Clock
    order: str | None  # of day and month where a slash or a dash parts them

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(c for c in ("date", "time") if c in self.table)

    def read(
        self, frame: pl.DataFrame, *, notices: Notices, rejected: Rejected
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Microseconds since 1970 UTC, and which rows have a time. Distinct ones are read once."""
        cells = [_as_text(self.table, frame, c) for c in self.columns]
        whole = (cells[0] if len(cells) == 1 else cells[0] + " " + cells[1]).fill_null("")
        distinct = whole.unique()
        us, reasons = np.zeros(len(distinct), np.int64), [""] * len(distinct)
        remarks: dict[str, list[int]] = {}
        for code, when in enumerate(distinct.to_list()):
            try:
                us[code], remark = self._read(when)
            except NotATimeError as error:
                reasons[code] = str(error)
                continue
            except (ValueError, OverflowError):
                reasons[code] = "is no time of a calendar"
                continue
            if remark:
                remarks.setdefault(remark, []).append(code)
        numbered = pl.Series(range(len(distinct)), dtype=pl.Int64)
        codes = whole.replace_strict(distinct, numbered, return_dtype=pl.Int64).to_numpy().astype(np.int64)
        good = np.array([not r for r in reasons], bool)[codes]
        bad = np.flatnonzero(~good)
        rejected.add(
            self.table, frame[ROW].to_numpy()[bad], self.columns[-1], whole[bad], [reasons[c] for c in codes[bad]]
        )
        for remark, which in remarks.items():
            notices.add(f"{remark} ({self.table.path.name})", int(np.isin(codes, which).sum()))
        return us[codes], good

    def _read(self, when: str) -> tuple[int, str]:
        if not when.strip():
            raise NotATimeError("is empty")
        text = when.strip()
        parts = _calendar_time(text, self.order)
        if parts is None:
            return self.clock.read(text)
        return self.clock.read(parts)


def time_reader(table: OwnTable, *, clock: Clock, date_order: str | None) -> TimeReader:
    """Settle the order of day and month once for the whole table."""
    if date_order not in (None, DAY_FIRST, MONTH_FIRST):
        raise CityError(f'date order "{date_order}" is not known. Give {DAY_FIRST} (31/01) or {MONTH_FIRST} (01/31)')
    table.need(["time"] if "date" not in table else ["date"])
    column = "date" if "date" in table else "time"
    if table.parquet and table.scan().collect_schema()[table.source_of[column]] != pl.String:
        return TimeReader(table, clock, date_order)
    first, second = (pl.col(column).str.extract(_SLASHED, group).cast(pl.Int64, strict=False) for group in (1, 2))
    with table.readable_or_why():
        asked = table.lazy([column]).select(
            first.max().alias("first"),
            second.max().alias("second"),
            pl.col(ROW).filter(first > 12).first().alias("day_first"),
            pl.col(ROW).filter(second > 12).first().alias("month_first"),
            pl.col(column).filter(first.is_not_null()).first().alias("sample"),
            pl.col(ROW).filter(first.is_not_null()).first().alias("sample_row"),
        )
        found = asked.collect().row(0, named=True)
    if found["sample"] is None or date_order is not None:
        return TimeReader(table, clock, date_order)
    if found["day_first"] is not None and found["month_first"] is not None:
        places = " and ".join(table.place(int(found[k])) for k in ("day_first", "month_first"))
        raise CityError(f"{places}: the day comes first in one and the month in the other. Write them alike")
    if found["day_first"] is None and found["month_first"] is None:
        where = f'{table.place(int(found["sample_row"]))}: in "{found["sample"].strip()}"'
        raise CityError(
            f"{where}, and in every other date, day and month could be either. "
            "Pass --date-order dmy or --date-order mdy"
        )
    return TimeReader(table, clock, DAY_FIRST if found["day_first"] is not None else MONTH_FIRST)


def _as_text(table: OwnTable, frame: pl.DataFrame, column: str) -> pl.Series:
    raw = frame[column]
    if isinstance(raw.dtype, pl.Datetime):
        ending = "%.f%:z" if raw.dtype.time_zone else "%.f"
        return raw.dt.strftime(f"%Y-%m-%dT%H:%M:%S{ending}")
    if raw.dtype in (pl.Duration, pl.Boolean, pl.Binary) or raw.dtype.is_nested():
        raise CityError(f"{table.path.name}: column {table.source_of[column]} holds {raw.dtype}. Times are expected")
    return raw.cast(pl.String)


def _calendar_time(text: str, order: str | None) -> datetime | None:
    """The time as a calendar has it; None for ISO-8601 and for numbers since 1970, which a clock reads."""
    if compact := _COMPACT.fullmatch(text):
        year, month, day, *clock = (int(x or 0) for x in compact.groups())
        if 1 <= month <= 12 and 1 <= day <= 31 and clock[0] <= 24:
            return _joined(date(year, month, day), timedelta(hours=clock[0], minutes=clock[1], seconds=clock[2]), "")
    if iso := _YEAR.fullmatch(text):
        year, month, day = int(iso[1]), int(iso[3]), int(iso[4])
        rest = iso[5]
    elif parts := _DAY.fullmatch(text):
        first, second, year = int(parts[1]), int(parts[3]), int(parts[4])
        year += 2000 if len(parts[4]) == 2 else 0
        day_first = parts[2] == "." or order != MONTH_FIRST  # with dots the day is first wherever dots are used
        day, month = (first, second) if day_first else (second, first)
        rest = parts[5]
    else:
        return None
    if not 1 <= month <= 12:
        raise NotATimeError(f"has no month {month}")
    if rest is None or not rest.strip():
        return datetime.combine(date(year, month, day), time())
    since, zone = _time_of_day(_RANGE.sub("", rest.strip()))
    return _joined(date(year, month, day), since, zone)


def _time_of_day(text: str) -> tuple[timedelta, str]:
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise NotATimeError('is not a time. Write the time of day as 08:15, 08:15:30 or "08:15 AM"')
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            raise NotATimeError(f"has no hour {hour} {match[4].upper()}M")
        hour = hour % 12 + (12 if match[4] in "Pp" else 0)
    if minute > 59 or second > 59 or hour > 24 or (hour == 24 and (minute or second)):
        raise NotATimeError("is no time of a day")
    return timedelta(hours=hour, minutes=minute, seconds=second), match[5] or ""


def _joined(day: date, since: timedelta, zone: str) -> datetime:
    local = datetime.combine(day, time()) + since
    return datetime.fromisoformat(local.isoformat() + zone) if zone else local
