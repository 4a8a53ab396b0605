"""What the sensors counted in the days before, against what is usual: by hand, without what a window may not know."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from frigate.calendar import BINS, DAY_S, HOUR_S, WEEK_PARTS
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.config import change, preset
from frigate.demand.recent_days import (
    DAYS,
    DAYS_AS_USUAL,
    FADES_DAYS,
    SAME_WEEKDAY,
    VEHICLES_AS_USUAL,
    PastDays,
    RecentDays,
    slot_length_s,
)
from frigate.training.train import new_run
from tests.support.grids import grid_network, tidal_grid

SIDE = 3
MONDAY_S = 1_704_067_200  # 2024-01-01 00:00 UTC
USUAL = np.full((BINS, SIDE * SIDE), 100.0)  # vehicles in an hour
ALL = np.arange(SIDE * SIDE)
SETTINGS = change(preset("default"), {"model": {"width": 8, "layers": 2, "hidden": 8}})


def weeks(values: NDArray[np.floating], step_s: int = HOUR_S, network: RoadNetwork | None = None) -> RoadNetworkStream:
    network = network or grid_network(SIDE)
    return make_stream(values, network, start_s=MONDAY_S, step_s=step_s, timezone="UTC", quantity="count")


def factors(stream: RoadNetworkStream, current: int, *, ahead: int, past: int = 12) -> NDArray[np.floating]:
    """[past+ahead,N] of the window that ends with a snapshot."""
    usual = USUAL * stream.step_s / HOUR_S
    recent = RecentDays.of(PastDays.of(stream, ALL, stream.usual_network()), usual, None)
    assert recent is not None
    local_s = MONDAY_S + stream.step_s * np.arange(current + 1 - past, current + 1 + ahead)[None]
    asked = recent.asked(local_s, local_s[:, past - 1 : past], reach_s=(past - 1) * stream.step_s)
    return asked.at(asked.slots, asked.between)[0].numpy()


def test_the_mean_of_the_days_before_by_hand() -> None:
    values = np.full((24 * 40, SIDE * SIDE), 100.0)
    by_day = 100.0 + np.arange(40)
    values[:, 4] = np.repeat(by_day, 24)
    current = 24 * 31 + 8  # a Thursday
    made = factors(weeks(values), current, ahead=3)
    counted, expected = (DAYS_AS_USUAL * 100 + VEHICLES_AS_USUAL for _ in range(2))
    for day in range(1, DAYS + 1):
        if (31 - day) % 7 < 5:
            weight = math.exp(-day / FADES_DAYS) * (SAME_WEEKDAY if day % 7 == 0 else 1)
            counted += weight * by_day[31 - day]
            expected += weight * 100
    np.testing.assert_allclose(made[12:, 4], counted / expected, rtol=1e-5)
    np.testing.assert_allclose(made[:, 0], 1)
    on_saturday = factors(weeks(values), 24 * 33 + 8, ahead=3)[12:, 4]
    assert (on_saturday < made[12:, 4]).all()  # of few days, all of them longer ago


@pytest.mark.parametrize("step_s", [300, 900, HOUR_S, 6 * HOUR_S, DAY_S])
@pytest.mark.parametrize("ahead", [3, 40])
def test_nothing_is_asked_that_a_window_has_or_that_comes_later(step_s: int, ahead: int) -> None:
    """However far ahead it looks: what it does not ask may be anything."""
    count = 30 * DAY_S // step_s
    rng = np.random.default_rng(0)
    values = rng.poisson(100 * step_s / HOUR_S, (count, SIDE * SIDE)).astype(np.float64)
    current = count - 5
    first = current + 1 - 12
    poisoned = values.copy()
    poisoned[first:] = 1e6
    expected = factors(weeks(values, step_s), current, ahead=ahead)
    np.testing.assert_array_equal(factors(weeks(poisoned, step_s), current, ahead=ahead), expected)
    poisoned[first - 2 * DAY_S // step_s : first] = 1e6
    assert not np.allclose(factors(weeks(poisoned, step_s), current, ahead=ahead), expected)
    assert expected.std() > 0


def test_a_snapshot_of_the_past_is_told_the_same_in_every_window() -> None:
    rng = np.random.default_rng(0)
    stream = weeks(rng.poisson(100, (24 * 30, SIDE * SIDE)).astype(np.float64))
    one, next_one = (factors(stream, current, ahead=12) for current in (600, 601))
    np.testing.assert_array_equal(one[1:12], next_one[:11])


def test_what_lies_between_the_hours_is_found() -> None:
    """Usual counts are lines between the middles of hours. A single busy hour is steeper, as the days before show."""
    step_s = 300
    hour = np.arange(20 * DAY_S // step_s) // 12 % 24
    stream = weeks(np.where(hour == 8, 100.0, 10.0)[:, None] * np.ones(SIDE * SIDE), step_s)
    usual = np.full((BINS, SIDE * SIDE), 10.0)
    usual[[8, 32]] = 100.0
    recent = RecentDays.of(PastDays.of(stream, ALL, stream.usual_network()), usual, None)
    assert recent is not None and recent.slot_s == 900
    local_s = MONDAY_S + 17 * DAY_S + step_s * np.arange(24 * 12)[None]
    asked = recent.asked(local_s, local_s, reach_s=0)
    made = asked.at(asked.slots, asked.between)[0, :, 0]
    assert made[12 * 8 + 6] > 1.05 and made[12 * 7 + 3] < 0.9 and made[12 * 9 + 9] < 0.9
    torch.testing.assert_close(made[12 * 15], torch.tensor(1.0))


def test_a_sensor_that_is_not_known_says_nothing() -> None:
    stream = weeks(np.full((24 * 20, SIDE * SIDE), 300.0))
    usual = USUAL.copy()
    usual[:, 3] = np.nan
    recent = RecentDays.of(PastDays.of(stream, ALL[:5], stream.usual_network()), usual, None)
    assert recent is not None
    local_s = MONDAY_S + HOUR_S * np.array([[24 * 17]])
    factor = recent.asked(local_s, local_s, reach_s=0).slots[0]
    assert factor[3] == 1 and (factor[5:] == 1).all() and (factor[:3] > 2).all()


def test_the_part_of_the_week_is_usual() -> None:
    """A Friday that is always busier than other weekdays is no busy day."""
    values = np.full((24 * 20, SIDE * SIDE), 100.0)
    friday = np.arange(24 * 20) // 24 % 7 == 4
    values[friday] = 150.0
    week = np.ones((WEEK_PARTS, SIDE * SIDE))
    week[4 * 8 : 5 * 8] = 1.5
    stream = weeks(values)
    days = PastDays.of(stream, ALL, stream.usual_network())
    recent = RecentDays.of(days, USUAL, week)
    assert recent is not None
    local_s = MONDAY_S + HOUR_S * (24 * 18 + np.arange(24))[None]  # a Friday
    np.testing.assert_allclose(recent.asked(local_s, local_s, reach_s=0).slots, 1, rtol=1e-6)


def test_readings_of_a_closed_road_are_no_usual_days() -> None:
    usual = grid_network(SIDE)
    shut = usual.close([(a, b) for a, b in zip(*usual_ends(usual), strict=True) if usual.node_ids[4] in (a, b)])
    values = np.full((24 * 20, SIDE * SIDE), 100.0)
    values[24 * 10 :, 4] = 0.0
    stream = weeks(values)
    closed = replace(stream, networks=(usual, shut), network_of=(np.arange(24 * 20) >= 24 * 10).astype(np.int64))
    days = PastDays.of(closed, ALL, usual)
    assert (
        (days.read[24 * 10 :, 4] == 0).all() and (days.read[: 24 * 10, 4] == 1).all() and (days.read[:, 3] == 1).all()
    )


def usual_ends(network: RoadNetwork) -> tuple[list[int], list[int]]:
    return network.node_ids[network.senders].tolist(), network.node_ids[network.receivers].tolist()


def test_days_that_grow_are_those_of_the_whole_record() -> None:
    rng = np.random.default_rng(0)
    values = rng.poisson(8, (2000, SIDE * SIDE)).astype(np.float64)
    stream = weeks(values, 900)
    whole = PastDays.of(stream, ALL, stream.usual_network())
    grown = PastDays.none(900, ALL)
    for first in range(0, 2000, 7):
        some = slice(first, first + 7)
        grown = grown.adding(stream.times_s[some], stream.values[some], stream.observed[some])
    for name in ("counted", "read"):
        np.testing.assert_array_equal(getattr(whole.of_slots(grown.first, grown.stop), name), getattr(grown, name))
    few = whole.at(np.array([7, 2]))
    np.testing.assert_array_equal(few.counted, whole.counted[:, [7, 2]])


@pytest.mark.parametrize(
    ("step_s", "slot_s"),
    [(60, 900), (300, 900), (420, HOUR_S), (600, 1200), (1800, 1800), (5400, 5400), (5 * HOUR_S, None), (DAY_S, DAY_S)],
)
def test_slots_divide_a_day(step_s: int, slot_s: int | None) -> None:
    assert slot_length_s(step_s) == slot_s


def test_steps_of_which_no_day_has_the_same_are_left_out() -> None:
    stream = weeks(np.full((200, SIDE * SIDE), 500.0), 5 * HOUR_S)
    days = PastDays.of(stream, ALL, stream.usual_network())
    assert not len(days.counted) and RecentDays.of(days, USUAL, None) is None
    assert days.adding(stream.times_s, stream.values, stream.observed) is days


def test_tensors_are_where_they_are_asked_for() -> None:
    stream = weeks(np.full((24 * 20, SIDE * SIDE), 300.0))
    recent = RecentDays.of(PastDays.of(stream, ALL, stream.usual_network()), USUAL, None, torch.device("cpu"))
    assert recent is not None and recent.counted.dtype == torch.float32


def test_sensors_tell_the_places_around_them_of_the_season_but_hidden_ones_do_not() -> None:
    """The factor of a demand without a sensor does not depend on that sensor's days."""
    run = new_run(City("Tidal", tidal_grid()), settings=SETTINGS, seen=0.6)
    stream = run.city.stream
    seen = run.split.seen
    hidden = int(np.flatnonzero(seen)[0])
    others = seen & (np.arange(len(seen)) != hidden)
    views = run.windows(sensors=[seen, others]).views
    tables = views.tables([views.view(run.usual_roads)])
    assert tables is not None

    def made(values: NDArray[np.floating], which: int) -> torch.Tensor:
        recent = views.recent_days(views.past_days(replace(stream, values=values.astype(np.float32))))
        assert recent is not None
        local_s = (stream.times_s + stream.utc_offset_s)[None, -8:]
        return tables.now_usual(recent.asked(local_s, local_s[:, :1], reach_s=0), torch.tensor([which]))[0]

    one = np.where(np.arange(len(seen)) == hidden, 20, 1)
    knowing, as_usual = made(one * stream.values, 0), made(stream.values, 0)
    assert (knowing[:, hidden] > 1.5).all() and (knowing - as_usual)[:, ~seen].abs().max() > 1e-3
    np.testing.assert_array_equal(made(one * stream.values, 1), made(stream.values, 1))
    everyone = made(5 * stream.values, 0)
    assert (everyone[:, ~seen] > 1.1).any() and (everyone[:, ~seen] < everyone[:, seen].max()).all()
