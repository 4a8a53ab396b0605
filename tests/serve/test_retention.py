"""What is old is deleted, and a clock that is wrong makes nothing old."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from frigate.serve.retention import EVEN_S, EVERY_S, Retention
from frigate.serve.steady_time import BELIEVED_S, SteadyTime
from frigate.serve.store import Reading, Store, open_store
from tests.support.service import FakeTime

DAY_S = 86_400
NOW_S = 1_700_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(str(tmp_path / "store.db"))
    yield made
    made.close()


@pytest.fixture
def wall() -> FakeTime:
    return FakeTime(NOW_S)


@pytest.fixture
def steady() -> FakeTime:
    return FakeTime(500.0)


def fill(store: Store, days: int, *, until_s: float = NOW_S) -> None:
    """A reading and a forecast a day, and closures that ended, end or do not end."""
    store.add_readings([Reading("A", int(until_s - k * DAY_S) * 1_000_000, 1.0) for k in range(days)], 0)
    for k in range(days):
        store.add_forecast(int(until_s - k * DAY_S), made_s=0.0, network="v", body=b"")
    for target, end_s in (("B", until_s - 9 * DAY_S), ("C", until_s + DAY_S), ("D", None)):
        end = None if end_s is None else int(end_s)
        store.add_closure("A", target, begin_s=int(until_s) - 20 * DAY_S, end_s=end, now_s=0)


def kept(store: Store) -> tuple[int, int, list[str]]:
    """How many readings and forecasts, and which closures, are left."""
    with store.transaction() as sql:
        ((forecasts,),) = sql.rows("SELECT COUNT(*) FROM forecasts")
    return len(store.readings(0, 2**62)[0]), forecasts, sorted(each.target for each in store.closures())


def pass_time(seconds: float, *clocks: FakeTime) -> None:
    for clock in clocks:
        clock.now_s += seconds


def test_old_data_are_deleted_at_the_start_and_every_hour(store: Store, wall: FakeTime, steady: FakeTime) -> None:
    """Forecasts, whose age the clock decides, only once it has run evenly."""
    fill(store, 12)
    retention = Retention(store, now=wall, keep_days=8, steady=steady)
    retention.run_if_due()
    assert kept(store) == (9, 12, ["C", "D"])
    pass_time(EVEN_S - 1, wall, steady)
    retention.run_if_due()
    assert kept(store) == (9, 12, ["C", "D"])
    pass_time(2, wall, steady)
    retention.run_if_due()
    assert kept(store) == (9, 8, ["C", "D"])
    fill(store, 1, until_s=NOW_S + DAY_S)
    pass_time(EVERY_S - 1, wall, steady)
    retention.run_if_due()
    assert kept(store)[0] == 10
    pass_time(DAY_S, wall, steady)
    retention.run_if_due()
    assert kept(store)[0] == 9


def test_a_clock_that_jumps_deletes_nothing(store: Store, wall: FakeTime, steady: FakeTime) -> None:
    """Forty days ahead, for three seconds, for an hour, or since before the start."""
    fill(store, 12)
    retention = Retention(store, now=wall, keep_days=8, steady=steady)
    for seconds in (3, 3600):
        wall.now_s += 40 * DAY_S
        store.add_forecast(int(wall()), made_s=0.0, network="v", body=b"")
        for _ in range(10):
            pass_time(seconds / 10, wall, steady)
            retention.run_if_due()
        wall.now_s -= 40 * DAY_S
        retention.run_if_due()
        assert kept(store)[0] >= 9 and kept(store)[2][-2:] == ["C", "D"]
    fill(store, 1, until_s=NOW_S + 3600)
    wall.now_s += 40 * DAY_S
    again = Retention(store, now=wall, keep_days=8, steady=steady)
    pass_time(EVEN_S + 1, wall, steady)
    again.run_if_due()
    assert kept(store)[0] >= 9 and kept(store)[2][-2:] == ["C", "D"]


def test_most_of_a_store_is_never_deleted_at_once(store: Store, wall: FakeTime, steady: FakeTime) -> None:
    """Even if a sensor's clock is as wrong as ours."""
    fill(store, 12)
    wall.now_s += 40 * DAY_S
    store.add_readings([Reading("A", int(wall()) * 1_000_000, 1.0)], 0)
    retention = Retention(store, now=wall, keep_days=8, steady=steady)
    pass_time(EVEN_S + 1, wall, steady)
    for left in (7, 7, 4):
        retention.run_if_due()
        assert kept(store)[0] == left
        pass_time(EVERY_S / 2, wall, steady)


def test_a_jump_of_the_clock_is_ignored_for_a_minute(wall: FakeTime, steady: FakeTime) -> None:
    now = SteadyTime(wall, steady)
    pass_time(10, wall, steady)
    assert now() == NOW_S + 10
    for jump_s in (40 * DAY_S, -40 * DAY_S):
        wall.now_s += jump_s
        for _ in range(3):
            pass_time(1, wall, steady)
            assert now() == wall() - jump_s
        wall.now_s -= jump_s
        pass_time(BELIEVED_S, wall, steady)
        assert now() == wall()
    wall.now_s += 3600
    assert now() == wall() - 3600
    pass_time(BELIEVED_S, wall, steady)
    assert now() == wall()  # it was a correction


def test_a_clock_that_is_brought_into_line_is_followed(wall: FakeTime, steady: FakeTime) -> None:
    now = SteadyTime(wall, steady)
    for _ in range(100):
        pass_time(60, wall, steady)
        wall.now_s += 1.5
        assert now() == wall()
