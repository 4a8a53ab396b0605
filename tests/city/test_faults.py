"""What a sensor's own record says against it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frigate.city.faults import Faults, broken_cells, find_faults
from frigate.city.stream import RoadNetworkStream
from tests.support.chains import city_of

HOURS = 24 * 14
FIRST_H = 8  # the hour at which the cities of chains begin
DAY = np.clip(
    np.sin(((np.arange(HOURS) + FIRST_H) % 24 - 6) / 24 * 2 * np.pi), 0.1, None
)  # busy by day, quiet at night


def busy(sensors: int = 5, level: float = 300.0) -> np.ndarray:
    """[S,N] hourly counts of two weeks."""
    return np.random.default_rng(0).poisson(level * DAY[:, None], (HOURS, sensors)).astype(float)


def stream_of(values: np.ndarray) -> RoadNetworkStream:
    return city_of(values, quantity="count", step_s=3600).stream


def faults_of(values: np.ndarray) -> list[Faults]:
    stream = stream_of(values)
    return find_faults(stream, np.flatnonzero(stream.sensors))


def test_an_honest_sensor_has_no_fault() -> None:
    assert faults_of(busy()) == [Faults()] * 5
    assert all(not each.unfit for each in faults_of(busy(level=2.0)))


def test_every_run_of_one_value_is_found() -> None:
    values = busy()
    values[30:60, 1] = 0
    values[100:140, 1] = 17
    values[110, 1] = np.nan  # a missing reading does not end a run
    values[200:220, 1] = 0  # too short to say anything
    found = faults_of(values)[1]
    assert [(run.first, run.last, run.readings, run.value) for run in found.runs] == [
        (30, 59, 30, 0),
        (100, 139, 39, 17),
    ]
    assert found.longest == found.runs[1]
    assert not found.unfit
    cells = broken_cells(stream_of(values), np.array([0, 1]))
    assert cells.sum() == 69
    assert not cells[:, 0].any()
    assert not cells[110, 1]


def test_zeros_of_a_road_that_was_closed_are_no_fault() -> None:
    values = busy(6)
    values[30:60, 2] = 0
    city = city_of(values, quantity="count", step_s=3600)
    network = city.network
    roads = network.node_ids[np.stack([network.senders, network.receivers], axis=1)].tolist()
    closed = network.close([(a, b) for a, b in roads if "n2" in (a, b)])
    network_of = np.zeros(HOURS, np.int64)
    network_of[25:65] = 1
    shut = replace(city.stream, networks=(network, closed), network_of=network_of)
    assert find_faults(shut, np.array([2]))[0].runs == ()
    assert len(find_faults(city.stream, np.array([2]))[0].runs) == 1


def test_a_running_total_is_told_from_counts() -> None:
    values = busy()
    values[:, 1] = np.cumsum(values[:, 1])
    by_day = values[:, 2].reshape(-1, 24)
    values[:, 2] = np.cumsum(by_day, axis=1).ravel()  # starts again at midnight
    found = faults_of(values)
    assert [each.running_total for each in found] == [False, True, True, False, False]
    assert "running total" in found[1].unfit


def test_a_clock_that_is_off_is_told_by_busy_nights() -> None:
    values = busy()
    values[:, 1] = np.roll(values[:, 1], 12)
    found = faults_of(values)
    assert [each.night is not None for each in found] == [False, True, False, False, False]
    assert "clock" in found[1].unfit
    assert all(each.night is None for each in faults_of(np.roll(busy(), 12, axis=0)))  # then so are all the others


def test_a_level_that_jumps_is_told_from_a_busy_week() -> None:
    values = busy()
    midnight = 24 * 7 - FIRST_H
    values[midnight:, 1] *= 5
    values[midnight:] *= 3  # everywhere
    found = faults_of(values)
    assert [each.jump is not None for each in found] == [False, True, False, False, False]
    assert found[1].jump is not None
    assert found[1].jump.snapshot == midnight
    assert found[1].jump.factor == pytest.approx(5, rel=0.25)
    assert not found[1].unfit  # nobody can say which of the two levels is right


def test_a_sensor_that_is_stuck_for_most_of_the_time_is_unfit() -> None:
    values = busy()
    values[50:, 1] = 30_000
    found = faults_of(values)
    assert "30000 without a break" in found[1].unfit
    assert found[1].broken_share == pytest.approx(1 - 50 / HOURS)
