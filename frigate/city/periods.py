"""Times and periods as users type them: "2024-03-11T06:00", "tomorrow 08:00", "2024-03-11/2024-03-15"."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

import numpy as np

from frigate.calendar import local_iso, zone
from frigate.city.stream import RoadNetworkStream
from frigate.errors import SettingsError

When = datetime | str | int  # a time as given: an int is seconds since 1970 UTC

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
CLOCK_TIME = re.compile(r"(?:([a-z]+)\s+)?(\d{1,2}:\d{2}(?::\d{2})?)", re.IGNORECASE)  # "08:00", "monday 08:00"
DAYS = ("today", "tomorrow")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
YEARS = (1900, 2200)


def parse_period(text: str, timezone: str, *, where: str) -> tuple[int, int]:
    """Start and end of a period, in seconds since 1970 UTC.

    Parameters
    ----------
    text
        A day, or a start and an end joined by a slash. Each is a date or an ISO-8601 time. An end date is included.
    timezone
        For times without an offset.
    where
        The place to name in an error.
    """
    first, slash, last = (part.strip() for part in text.partition("/"))
    try:
        start = _date_or_time(first, timezone)
        end = _date_or_time(last if slash else first, timezone, end=True)
    except (ValueError, OverflowError):
        raise SettingsError(
            f'{where} "{text}": not a period. Give a day, or a start and an end, such as 2024-03-11/2024-03-15 '
            "or 2024-03-11T06:00/2024-03-11T20:00"
        ) from None
    if not start < end:
        raise SettingsError(f'{where} "{text}": the end is not after the start')
    return start, end


def parse_moment(text: str, timezone: str, *, where: str, end: bool = False) -> int:
    """Seconds since 1970 UTC of a date or an ISO-8601 time. As an end, a date means the end of that day."""
    try:
        return _date_or_time(text.strip(), timezone, end=end)
    except (ValueError, OverflowError):
        raise SettingsError(f'{where} "{text}": not a time. Give a day, or a time such as 2024-03-11T06:00') from None


def time_from(when: When, timezone: str, *, now_s: int, where: str) -> tuple[int, list[str]]:
    """A time in seconds since 1970 UTC, and notices about it.

    Parameters
    ----------
    when
        ISO-8601; a time of day, which is the first from `now_s` on; or one after "today", "tomorrow" or a weekday.
    timezone
        For times without an offset.
    now_s
        Where time stands, for "tomorrow" and the like.
    where
        The option to name in an error.
    """
    try:
        if isinstance(when, str) and (found := CLOCK_TIME.fullmatch(when.strip())):
            moment: object = _next(found[1], found[2], now_s, timezone)
        else:
            moment = datetime.fromisoformat(when.strip()) if isinstance(when, str) else when
        if isinstance(moment, int | np.integer):
            moment = datetime.fromtimestamp(int(moment), UTC)
        if not isinstance(moment, datetime) or not YEARS[0] <= moment.year <= YEARS[1]:
            raise ValueError
    except (ValueError, OverflowError, OSError):
        raise SettingsError(
            f'{where} "{when}": not a time. Give ISO-8601, as 2024-03-04T08:00 (the city\'s time) or '
            '2024-03-04T07:00Z, or a time of day, as 08:00, "tomorrow 08:00" or "monday 08:00"'
        ) from None
    if moment.tzinfo is not None:
        return int(moment.timestamp() // 1), []
    one, other = (moment.replace(tzinfo=zone(timezone), fold=fold) for fold in (0, 1))
    time_s = int(one.timestamp() // 1)
    if one.utcoffset() == other.utcoffset():
        return time_s, []
    return time_s, [
        f"{moment.isoformat()} is not one moment in {timezone}, where the clocks change then: "
        f"taken as {local_iso(time_s, timezone)}. Add a UTC offset to be exact."
    ]


def _next(day: str | None, clock_time: str, now_s: int, timezone: str) -> datetime:
    """A time of day without a zone: on the day that is named, or the first from now on."""
    hour, _, rest = clock_time.partition(":")
    clock = time.fromisoformat(f"{hour:0>2}:{rest}")
    now = datetime.fromtimestamp(now_s, zone(timezone)).replace(tzinfo=None)
    word = "" if day is None else day.lower()
    found = datetime.combine(now.date(), clock)
    if word in DAYS:
        return found + timedelta(days=DAYS.index(word))
    if word:
        found += timedelta(days=(WEEKDAYS.index(word) - now.weekday()) % 7)  # ValueError: not a day
    return found if found >= now else found + timedelta(days=7 if word else 1)


def _date_or_time(text: str, timezone: str, *, end: bool = False) -> int:
    if DATE.fullmatch(text):
        day = date.fromisoformat(text) + timedelta(days=end)
        return int(datetime.combine(day, time(), zone(timezone)).timestamp())
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=zone(timezone))
    if not YEARS[0] <= when.year <= YEARS[1]:
        raise ValueError
    return int(when.astimezone(UTC).timestamp())


def snapshots_in(stream: RoadNetworkStream, period_s: tuple[int, int]) -> tuple[int, int]:
    """The snapshots [first, stop) of the record that begin in a period."""
    first, stop = np.searchsorted(stream.times_s, period_s, side="left")
    return int(first), int(stop)
