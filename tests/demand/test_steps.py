"""A daily profile is the same whatever the step: what a snapshot counted is what is usual when it comes again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.demand.count_profiles import usual_counts, usual_medians
from frigate.demand.settings import DemandSettings
from frigate.demand.tables import DemandTables
from frigate.demand.trip_model import estimate_demand
from tests.support.grids import grid_network

MIDNIGHT_S = 1_704_063_600  # Monday 2024-01-01 00:00 in Luxembourg
HOUR_S, DAY_S = 3600, 86_400
SIDE = 4
EVERY = np.ones(SIDE * SIDE, bool)


def tidal(step_s: int, *, days: int = 15, start_s: int = MIDNIGHT_S) -> RoadNetworkStream:
    """Counts that are the same on every weekday, and others that are the same on both days of a weekend."""
    number = np.arange(days * DAY_S // step_s)
    day, second = np.divmod(start_s - MIDNIGHT_S + number * step_s, DAY_S)
    tide = 20 + (second // 600) ** 2 % 61 + np.where(day % 7 >= 5, 100, 0)
    values = tide[:, None] * np.linspace(1, 2, SIDE * SIDE)
    zone = "Europe/Luxembourg"
    return make_stream(values, grid_network(SIDE), start_s=start_s, step_s=step_s, timezone=zone, quantity="count")


@pytest.mark.parametrize("hours", [1, 2, 3, 6, 24])
def test_a_daily_tide_is_forecast_exactly_at_any_step(hours: int) -> None:
    stream = tidal(hours * HOUR_S)
    demand = estimate_demand(City("Tidal", stream), settings=DemandSettings(sets=1))
    tables = DemandTables.of([demand], "cpu", step_s=stream.step_s)
    tables = replace(tables, below=torch.zeros_like(tables.below))
    past, horizon = 3, 4
    some = slice(-past - horizon, None)  # from the last weekend into the week
    values = torch.from_numpy(stream.values[some])[None]
    clock = torch.from_numpy(stream.wall_clock[some])[None]
    assert hours < 24 or set(stream.wall_clock[some][:, 2].tolist()) == {0, 1}
    known = torch.ones(1, past, SIDE * SIDE, dtype=torch.bool)
    usual, ahead, _ = tables.follow(values[:, :past], known, clock, torch.tensor([0]))
    torch.testing.assert_close(usual, values[:, :past])
    torch.testing.assert_close(ahead, values[:, past:], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(usual_medians(stream, EVERY), usual_counts(stream, EVERY), rtol=1e-6)


def by_hour(stream: RoadNetworkStream) -> NDArray[np.float64]:
    """[24] usual counts of the first node on weekdays."""
    return usual_counts(stream, EVERY)[:24, 0]


def test_steps_that_are_no_whole_hours_tell_of_the_hours_that_they_cover_by_hand() -> None:
    stream = tidal(90 * 60)  # 0:00, 1:30, 3:00, ...: every third hour has two halves
    counted = stream.values[:16, 0].astype(np.float64)
    expected = np.stack([counted[::2], (counted[::2] + counted[1::2]) / 2, counted[1::2]], axis=1).ravel()
    np.testing.assert_allclose(by_hour(stream), expected)
    stream = tidal(45 * 60)  # 0:00, 0:45, 1:30, 2:15; the second is of hour 1 for the most part
    counted = stream.values[:4, 0].astype(np.float64)
    np.testing.assert_allclose(by_hour(stream)[:3], [counted[0], (counted[1] + counted[2]) / 2, counted[3]])
    stream = tidal(HOUR_S, start_s=MIDNIGHT_S + 1800)  # by the hour, from half past
    counted = stream.values[:3, 0].astype(np.float64)
    np.testing.assert_allclose(by_hour(stream)[1:3], (counted[:2] + counted[1:]) / 2)


def test_a_snapshot_belongs_to_the_day_that_it_begins_on() -> None:
    stream = tidal(6 * HOUR_S, start_s=MIDNIGHT_S + 22 * HOUR_S)  # 22:00, 4:00, 10:00, 16:00
    table = usual_counts(stream, EVERY)[:, 0]
    monday, friday, saturday = (stream.values[4 * day, 0] for day in (0, 4, 5))
    assert monday == friday != saturday
    np.testing.assert_allclose(table[[22, 23, 0, 1, 2, 3]], np.full(6, friday))
    np.testing.assert_allclose(table[24 + np.array([22, 23, 0, 1, 2, 3])], np.full(6, saturday))


@pytest.mark.parametrize("days", [1, 7])
def test_a_snapshot_of_a_day_or_more_tells_of_every_hour(days: int) -> None:
    stream = tidal(DAY_S * days, days=28)
    table = usual_counts(stream, EVERY)
    assert np.isfinite(table[:24]).all()
    assert np.isfinite(table[24:]).all() == (days == 1)
