"""Times and periods as users type them."""

from __future__ import annotations

from datetime import datetime

import pytest

from frigate.calendar import local_iso
from frigate.city.periods import parse_period, time_from
from frigate.errors import SettingsError
from tests.support.errors import raises

NOW_S = 1_710_709_200  # Sunday, 2024-03-17 22:00 in Paris


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("08:00", "2024-03-18T08:00:00+01:00"),
        ("22:00", "2024-03-17T22:00:00+01:00"),
        ("8:05", "2024-03-18T08:05:00+01:00"),
        ("today 20:00", "2024-03-17T20:00:00+01:00"),
        (" Tomorrow 08:00", "2024-03-18T08:00:00+01:00"),
        ("monday 08:00", "2024-03-18T08:00:00+01:00"),
        ("Sunday 23:30", "2024-03-17T23:30:00+01:00"),
        ("sunday 08:00", "2024-03-24T08:00:00+01:00"),
        ("2024-03-18T08:00", "2024-03-18T08:00:00+01:00"),
        ("2024-03-18T08:00Z", "2024-03-18T09:00:00+01:00"),
        (datetime(2024, 3, 18, 8), "2024-03-18T08:00:00+01:00"),
        (NOW_S, "2024-03-17T22:00:00+01:00"),
    ],
)
def test_a_time_of_day_is_the_next_one(given: str | int | datetime, expected: str) -> None:
    time_s, notices = time_from(given, "Europe/Paris", now_s=NOW_S, where="--at")
    assert (local_iso(time_s, "Europe/Paris"), notices) == (expected, [])


def test_a_day_is_one_by_the_clock_on_the_wall_also_where_clocks_change() -> None:
    """From Saturday 08:00 to Sunday 08:00 it is 23 hours when summer time begins."""
    saturday_s, _ = time_from("2024-03-30T08:00", "Europe/Paris", now_s=0, where="--at")
    sunday_s, _ = time_from("tomorrow 08:00", "Europe/Paris", now_s=saturday_s, where="--at")
    assert sunday_s - saturday_s == 23 * 3600
    skipped_s, (notice,) = time_from("tomorrow 02:30", "Europe/Paris", now_s=saturday_s, where="--at")
    assert "not one moment" in notice and local_iso(skipped_s, "Europe/Paris") in notice


@pytest.mark.parametrize("text", ["25:00", "someday 08:00", "8", "tomorrow", "1.5", ""])
def test_an_invalid_time_is_refused(text: str) -> None:
    with raises(SettingsError, f'--at "{text}"', "tomorrow 08:00"):
        time_from(text, "Europe/Paris", now_s=NOW_S, where="--at")


def test_a_period_ends_with_its_last_day() -> None:
    first_s, stop_s = parse_period("2024-03-30/2024-03-31", "Europe/Paris", where="--test")
    assert stop_s - first_s == 47 * 3600
    with raises(SettingsError, "--test", "not after the start"):
        parse_period("2024-03-31/2024-03-30", "Europe/Paris", where="--test")
