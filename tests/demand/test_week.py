"""Days of the week that differ from their kind of day: Saturday evening is not Sunday evening."""

from __future__ import annotations

import numpy as np
import pytest

from frigate.calendar import WEEK_PARTS, week_parts
from frigate.city.city import City
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.demand.count_profiles import DAYS_AS_USUAL, usual_counts, usual_week
from frigate.demand.estimate import Demand
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_model import TripModel, estimate_demand
from tests.support.grids import grid_network

MIDNIGHT_S = 1_704_063_600  # Monday 2024-01-01 00:00 in Luxembourg
SIDE = 4
N = SIDE * SIDE
EVERY = np.ones(N, bool)
SATURDAY, SUNDAY, EVENING = 5, 6, 6  # parts of a day are three hours


def going_out(*, weeks: int = 4, step_s: int = 3600) -> RoadNetworkStream:
    """The same count always, but twice as many from six to nine on Saturday evening."""
    second = np.arange(weeks * 7 * 86_400 // step_s) * step_s
    evening = (second // 86_400 % 7 == SATURDAY) & (second % 86_400 // 10_800 == EVENING)
    values = np.where(evening, 40, 20)[:, None] * np.linspace(1, 2, N)
    zone = "Europe/Luxembourg"
    return make_stream(values, grid_network(SIDE), start_s=MIDNIGHT_S, step_s=step_s, timezone=zone, quantity="count")


@pytest.mark.parametrize("step_s", [600, 3600])
def test_a_part_of_the_week_by_hand(step_s: int) -> None:
    stream = going_out(step_s=step_s)
    usual = usual_counts(stream, EVERY)
    week = usual_week(stream, EVERY, usual)
    expected = np.ones((WEEK_PARTS, N))
    for day, against_usual in ((SATURDAY, 40 / 30), (SUNDAY, 20 / 30)):  # usual on a weekend: the mean of both
        expected[8 * day + EVENING] = (4 * against_usual + DAYS_AS_USUAL) / (4 + DAYS_AS_USUAL)  # of four weeks
    inner = np.ones(WEEK_PARTS, bool)
    if step_s < 3600:  # usual counts are interpolated from hour to hour, so those beside the evening are off a little
        inner[[8 * day + EVENING + side for day in (SATURDAY, SUNDAY) for side in (-1, 1)]] = False
    np.testing.assert_allclose(week[inner], expected[inner], rtol=0.03 if step_s < 3600 else 1e-6)


def test_a_snapshot_is_of_the_part_in_which_its_middle_lies() -> None:
    clock = np.array([[0, 0, 0], [10_800 - 301, 2, 0], [10_800 - 300, 2, 0], [86_300, 6, 1]])
    assert week_parts(clock, 600).tolist() == [0, 16, 17, 48]  # the last one's middle is past midnight: its own day's


def test_hours_without_a_reading_and_nodes_without_a_sensor_have_none() -> None:
    stream = going_out()
    some = np.arange(N) < 5
    week = usual_week(stream, some, usual_counts(stream, some))
    assert np.isfinite(week[:, :5]).all() and np.isnan(week[:, 5:]).all()
    monday = usual_week(stream, some, usual_counts(stream, some, (0, 24)), (0, 24))
    assert np.isfinite(monday[:8, :5]).all() and np.isnan(monday[8:]).all()


def trips_of(stream: RoadNetworkStream, week: np.ndarray) -> TripModel:
    usual = usual_counts(stream, EVERY)
    settings = DemandSettings(sets=1)
    return TripModel.of(
        stream.network, settings, step_s=3600, usual_counts=usual, usual_medians=usual, usual_week=week, seed=0
    )


def test_sensors_tell_the_places_around_them_of_the_week() -> None:
    stream = going_out()
    some = np.arange(N) % 3 == 0
    found = estimate_demand(City("Town", stream), some, settings=DemandSettings(sets=1))
    assert isinstance(found, Demand)
    assert (found.week[8 * SATURDAY + EVENING] > 1.1).all()
    assert (found.week[8 * SUNDAY + EVENING] < 0.9).all()
    others = np.setdiff1d(np.arange(WEEK_PARTS), [8 * SATURDAY + EVENING, 8 * SUNDAY + EVENING])
    np.testing.assert_allclose(found.week[others], 1, rtol=1e-3)


def test_a_hidden_sensor_tells_nobody_of_its_week() -> None:
    stream = going_out()
    week = usual_week(stream, EVERY, usual_counts(stream, EVERY))
    poisoned = week.copy()
    poisoned[:, 6] = 1000
    hidden = np.arange(N) != 6
    found = trips_of(stream, week).demand(hidden).week
    np.testing.assert_array_equal(trips_of(stream, poisoned).demand(hidden).week, found)
    assert np.abs(trips_of(stream, poisoned).demand(EVERY).week - found).max() > 1


def test_without_the_week_every_day_is_as_its_kind() -> None:
    stream = going_out()
    trips = trips_of(stream, np.full((WEEK_PARTS, N), np.nan))
    assert (trips.demand(EVERY).week == 1).all()
