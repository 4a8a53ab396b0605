"""Counts of a few days: how far they are off, on which days, and that days with gaps say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.planning.portable import USUAL_SPREAD, count_days, daily_totals
from tests.support.towns import random_network

MONDAY_S = 1_704_067_200  # 2024-01-01 00:00 UTC
SENSORS = 40


def record(days: int, noise: NDArray[np.float64] | float = 0.0, *, seed: int = 0, first: int = 0) -> RoadNetworkStream:
    """Six-hourly counts with a weekly profile; `noise` is the deviation of the logarithm on each day of the week."""
    rng = np.random.default_rng(seed)
    weekday = (np.arange(days) + first) % 7
    profile = np.array([1, 1.1, 1.1, 1.1, 1.2, 0.7, 0.5])[weekday]
    by_chance = np.exp(rng.normal(size=(days, SENSORS)) * np.broadcast_to(noise, 7)[weekday, None])
    daily = rng.uniform(500, 2000, SENSORS) * profile[:, None] * by_chance
    values = np.repeat(daily / 4, 4, axis=0)
    return make_stream(
        values, random_network(SENSORS, seed=1), start_s=MONDAY_S + first * 86_400, step_s=21_600, quantity="count"
    )


def test_the_deviation_of_the_days_is_found() -> None:
    one, seven = (count_days(record(70, 0.2), days) for days in (1, 7))
    assert one.measured and one.spread == pytest.approx(0.2, rel=0.15)
    assert seven.spread == pytest.approx(0.2 / 7**0.5, rel=0.25)
    assert len(one.weekdays) == 1 and len(seven.weekdays) == 7


def test_quiet_days_are_chosen() -> None:
    noise = np.array([0.3, 0.3, 0.05, 0.3, 0.05, 0.3, 0.3])
    for first in (0, 3):  # a record may begin on any day of the week
        found = count_days(record(70, noise, first=first), 2)
        assert found.weekdays == ("Wednesday", "Friday")
        assert "Wednesday and Friday" in found.sentence() and "measured" in found.sentence()


def test_a_weekly_profile_alone_is_no_error() -> None:
    assert count_days(record(28), 1).spread == pytest.approx(0.02)


def test_longer_counts_are_better() -> None:
    stream = record(70, 0.2)
    spreads = [count_days(stream, days).spread for days in (1, 2, 4, 7, 14, 28)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] == pytest.approx(spreads[-3] / 2)  # four weeks against one


def test_a_short_record_leaves_it_to_an_assumption() -> None:
    found = count_days(record(10, 0.3), 4)
    assert not found.measured and found.spread == pytest.approx(USUAL_SPREAD / 2)
    assert "assumed" in found.sentence() and len(found.weekdays) == 4


def test_days_with_gaps_are_left_out() -> None:
    stream = record(21)
    values = stream.values.copy()
    values[9, 3] = np.nan
    gaps = make_stream(values, stream.network, start_s=MONDAY_S, step_s=21_600, quantity="count")
    totals = daily_totals(gaps)
    assert totals.shape == (21, SENSORS)
    assert np.flatnonzero(np.isnan(totals[:, 3])).tolist() == [2] and np.isfinite(totals[:, 4]).all()
