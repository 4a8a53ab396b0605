"""Periods as users type them: "2024-03-11/2024-03-15", "2024-03-11", "2024-03-11T06:00/2024-03-11T20:00"."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

import numpy as np

from frigate.calendar import zone
from frigate.city.stream import RoadNetworkStream
from frigate.errors import SettingsError

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


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
        start = _moment(first, timezone)
        end = _moment(last if slash else first, timezone, end=True)
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
        return _moment(text.strip(), timezone, end=end)
    except (ValueError, OverflowError):
        raise SettingsError(f'{where} "{text}": not a time. Give a day, or a time such as 2024-03-11T06:00') from None


def _moment(text: str, timezone: str, *, end: bool = False) -> int:
    if DATE.fullmatch(text):
        day = date.fromisoformat(text) + timedelta(days=end)
        return int(datetime.combine(day, time(), zone(timezone)).timestamp())
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=zone(timezone))
    if not 1900 <= when.year <= 2200:
        raise ValueError
    return int(when.astimezone(UTC).timestamp())


def snapshots_in(stream: RoadNetworkStream, period_s: tuple[int, int]) -> tuple[int, int]:
    """The snapshots [first, stop) of the record that begin in a period."""
    first, stop = np.searchsorted(stream.times_s, period_s, side="left")
    return int(first), int(stop)
