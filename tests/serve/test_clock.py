"""The clock issues one forecast for each step, whatever happens around it. Time is set by the tests."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from frigate.city.faults import STUCK_COUNTS
from frigate.forecasting.plan import RoadChange
from frigate.pages.wire import rounded
from frigate.serve import clock
from frigate.serve import service as serving
from frigate.serve.clock import ForecastClock
from frigate.serve.issued import IssuedForecast, read_issued
from frigate.serve.retention import EVERY_S, Retention
from frigate.serve.scoring import accuracy
from frigate.serve.sensors import sensor_health
from frigate.serve.service import Service
from frigate.serve.store import Reading, Store, open_store
from tests.support.service import HORIZON, PAST, STEP_S, FakeTime, Town, start_clock

FIRST = 36  # snapshot of the record that tests begin with: 9 in the morning


def end_s(town: Town, snapshot: int) -> int:
    """When a snapshot of the record is complete."""
    return int(town.city.stream.times_s[snapshot]) + STEP_S


def latest(town: Town, store: Store, issued_s: int | None = None) -> IssuedForecast:
    issued = read_issued(store, town.served, issued_s)
    assert issued is not None
    return issued


@pytest.fixture
def time(town: Town) -> FakeTime:
    return FakeTime(end_s(town, FIRST) + 20)


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    made: list[Store] = []

    def make() -> Store:
        made.append(open_store(str(tmp_path / f"{len(made)}.db")))
        return made[-1]

    yield make
    for store in made:
        store.close()


def run_steps(
    town: Town, store: Store, clock: ForecastClock, time: FakeTime, first: int, stop: int
) -> NDArray[np.float32]:
    """Readings of some snapshots come in on time, and the clock turns after each."""
    for snapshot in range(first, stop):
        store.add_readings(town.reading_rows(snapshot, snapshot + 1), 0)
        time.now_s = end_s(town, snapshot) + 20
        assert clock.turn() and not clock.turn()
    return latest(town, store).forecast.values


def test_a_forecast_waits_for_the_grace_time_and_is_made_once(town: Town, new_store: Callable[[], Store]) -> None:
    store = new_store()
    time = FakeTime(end_s(town, FIRST) + 19.9)
    clock = start_clock(town, store, time)
    store.add_readings(town.reading_rows(FIRST - PAST, FIRST + 1), 0)
    assert clock.due_s() == end_s(town, FIRST - 1) and clock.next_s() == end_s(town, FIRST) + 20
    assert clock.turn() and latest(town, store).issued_s == end_s(town, FIRST - 1)
    time.now_s += 0.2
    assert clock.turn() and not clock.turn()
    issued = latest(town, store)
    assert issued.issued_s == end_s(town, FIRST) == int(
        issued.forecast.times_s[0]
    ) and issued.forecast.values.shape == (HORIZON, 100)
    assert clock.wait_s() == pytest.approx(STEP_S - 0.1) and clock.state.forecasts == 2


def test_a_restart_takes_up_where_it_stopped(town: Town, new_store: Callable[[], Store], time: FakeTime) -> None:
    straight = new_store()
    stopped = new_store()
    expected = run_steps(town, straight, start_clock(town, straight, time), time, FIRST, FIRST + PAST + 3)
    run_steps(town, stopped, start_clock(town, stopped, time), time, FIRST, FIRST + PAST)
    stopped.release_clock()
    found = run_steps(town, stopped, start_clock(town, stopped, time), time, FIRST + PAST, FIRST + PAST + 3)
    np.testing.assert_allclose(found, expected, rtol=1e-3)  # both are rounded
    assert np.abs(expected).max() > 1


def test_late_readings_and_corrections_come_to_the_same(
    town: Town, new_store: Callable[[], Store], time: FakeTime
) -> None:
    """Once a snapshot's readings are there, it does not matter when, in which order and how often they came."""
    on_time = new_store()
    late = new_store()
    expected = run_steps(town, on_time, start_clock(town, on_time, time), time, FIRST, FIRST + 5)
    clock = start_clock(town, late, time)
    first = town.reading_rows(FIRST, FIRST + 4)
    late.add_readings([reading._replace(value=reading.value + 50) for reading in first[::2]], 0)
    time.now_s = end_s(town, FIRST + 3) + 20
    assert clock.turn() and not np.allclose(latest(town, late).forecast.values, expected, rtol=0.01)
    late.add_readings(first[::-1], 0)
    late.add_readings(first, 0)
    np.testing.assert_allclose(run_steps(town, late, clock, time, FIRST + 4, FIRST + 5), expected, rtol=1e-3)


def test_silence_degrades_the_forecast_and_never_stops_it(
    town: Town, new_store: Callable[[], Store], time: FakeTime
) -> None:
    store = new_store()
    clock = start_clock(town, store, time)
    time.now_s -= 0.5 * STEP_S  # no reading has ever come
    assert clock.turn() and len(latest(town, store).forecast.notices) == 1
    run_steps(town, store, clock, time, FIRST, FIRST + 2)
    assert latest(town, store).forecast.notices == ()
    health = sensor_health(store, town.served, now_s=time())
    assert health["counts"] == {"ok": 100, "late": 0, "silent": 0, "stuck": 0}
    for skip, state in ((2, "late"), (PAST, "silent")):
        time.now_s += skip * STEP_S
        assert clock.turn() and np.isfinite(latest(town, store).forecast.values).all()
        assert sensor_health(store, town.served, now_s=time())["counts"][state] == 100
    assert latest(town, store).forecast.notices


def test_a_stuck_sensor_is_told(town: Town, new_store: Callable[[], Store], time: FakeTime) -> None:
    store = new_store()
    names = town.served.node_names
    for back in range(24):
        at_us = (int(time()) - back * STEP_S) * 1_000_000
        readings = zip(names, [7.0, 0.0, float(back)], strict=False)
        store.add_readings([Reading(name, at_us, value) for name, value in readings], 0)
    states = {each["node"]: each["state"] for each in sensor_health(store, town.served, now_s=time())["sensors"]}
    assert [states[name] for name in names[:3]] == ["stuck", "ok", "ok"]  # an empty road is no fault


@pytest.mark.parametrize(("readings", "state"), [(STUCK_COUNTS - 1, "ok"), (STUCK_COUNTS, "stuck")])
def test_a_few_readings_of_one_value_are_no_fault(
    town: Town, new_store: Callable[[], Store], time: FakeTime, readings: int, state: str
) -> None:
    store = new_store()
    name = town.served.node_names[0]
    same = [Reading(name, (int(time()) - back * STEP_S) * 1_000_000, 7.0) for back in range(readings)]
    store.add_readings(same, 0)
    states = {each["node"]: each["state"] for each in sensor_health(store, town.served, now_s=time())["sensors"]}
    assert states[name] == state


def test_ticks_that_were_missed_are_counted_and_not_made_up_for(
    town: Town, new_store: Callable[[], Store], time: FakeTime
) -> None:
    store = new_store()
    clock = start_clock(town, store, time)
    run_steps(town, store, clock, time, FIRST, FIRST + 1)
    time.now_s += 5 * STEP_S
    assert clock.turn() and not clock.turn()
    assert clock.state.skipped == 4 and clock.state.forecasts == 2
    assert latest(town, store).issued_s == end_s(town, FIRST + 5)


def test_a_time_that_goes_back_withdraws_what_was_forecast_of_the_future(
    town: Town, new_store: Callable[[], Store], time: FakeTime
) -> None:
    store = new_store()
    clock = start_clock(town, store, time)
    time.now_s += 10 * 86_400
    assert clock.turn()
    time.now_s -= 10 * 86_400
    assert clock.turn() and latest(town, store).issued_s == end_s(town, FIRST)
    time.now_s -= 60  # by less than a step: nothing is withdrawn or forecast twice
    assert not clock.turn() and latest(town, store).issued_s == end_s(town, FIRST)


def test_one_clock_for_all_processes_and_another_takes_over(
    town: Town, reopen: Callable[[], Store], time: FakeTime
) -> None:
    one = reopen()
    other = reopen()
    clocks = [start_clock(town, store, time) for store in (one, other)]
    assert clocks[0].turn() and not clocks[1].turn()
    assert (clocks[0].state.holder, clocks[1].state.holder) == (True, False)
    assert clocks[1].state.issued_s == end_s(town, FIRST) and clocks[1].wait_s() < 5
    time.now_s += STEP_S
    one.close()  # as when its process dies
    assert clocks[1].turn() and clocks[1].state.holder
    assert not other.add_forecast(end_s(town, FIRST + 1), made_s=0.0, network=town.served.version, body=b"")


def test_a_snapshot_is_read_again_only_if_its_readings_have_changed(
    town: Town, reopen: Callable[[], Store], time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever process has stored the change; and what was kept is what would be read."""
    store = reopen()
    other = reopen()
    engine = start_clock(town, store, time).engine
    read: list[int] = []
    find = store.reading_parts

    def watched(begin_us: int, end_us: int, node: str | None = None) -> Any:
        read.append((begin_us // 1_000_000 - end_s(town, FIRST)) // STEP_S)
        return find(begin_us, end_us, node)

    monkeypatch.setattr(store, "reading_parts", watched)
    readings = town.reading_rows(FIRST - PAST + 1, FIRST + 1)
    store.add_readings(readings, 0)
    _, values = engine.window(end_s(town, FIRST))
    assert set(read) == set(range(-PAST, 0)) and np.isfinite(values).any(1).all()
    read.clear()
    assert np.array_equal(engine.window(end_s(town, FIRST))[1], values, equal_nan=True) and not read
    other.add_readings([readings[0], readings[-1]._replace(value=77)], 0)  # the first is known
    _, corrected = engine.window(end_s(town, FIRST))
    assert set(read) == {-1} and corrected[-1].max() >= 77
    fresh = start_clock(town, other, time).engine.window(end_s(town, FIRST))[1]
    assert np.array_equal(corrected, fresh, equal_nan=True)


def test_a_closed_road_holds_from_the_next_forecast_until_it_is_opened(
    town: Town, new_store: Callable[[], Store], time: FakeTime
) -> None:
    store = new_store()
    served = town.served
    clock = start_clock(town, store, time)
    run_steps(town, store, clock, time, FIRST, FIRST + 2)
    busy = int(
        np.argmax(
            clock.engine.road_flow(latest(town, store).forecast.times_s, latest(town, store).forecast.values, []).sum(0)
        )
    )
    road = next(ends for ends, row in served.road_of.items() if row == busy)
    now = int(time())
    asked = clock.engine.what_if(end_s(town, FIRST + 1), RoadChange([road]))
    assert asked.road_before[:, busy].min() > 0 == asked.road_after[:, busy].max()
    closure, _ = store.add_closure(*road, begin_s=now, end_s=None, now_s=now)
    asked = clock.engine.what_if(end_s(town, FIRST + 1), RoadChange([road]))  # it begins within the first step
    assert asked.road_before[0, busy] > 0 == asked.road_before[1:, busy].max() == asked.road_after[:, busy].max()
    assert latest(town, store).closures == ()
    run_steps(town, store, clock, time, FIRST + 2, FIRST + 3)
    issued = latest(town, store)
    assert issued.closures == (closure,)
    flows = clock.engine.road_flow(issued.forecast.times_s, issued.forecast.values, issued.closures)
    assert flows[:, busy].max() == 0 and flows.sum() > 0
    store.end_closure(closure.id, int(time()))
    run_steps(town, store, clock, time, FIRST + 3, FIRST + 4)
    assert latest(town, store).closures == ()


def test_no_road_carries_more_than_its_ends(town: Town, new_store: Callable[[], Store], time: FakeTime) -> None:
    store = new_store()
    network = town.served.network
    clock = start_clock(town, store, time)
    values = run_steps(town, store, clock, time, FIRST, FIRST + 2)
    flows = clock.engine.road_flow(latest(town, store).forecast.times_s, values, [])
    assert (flows <= np.minimum(values[:, network.senders], values[:, network.receivers])).all()
    assert flows.min() >= 0 and np.median(flows.max(0)) > 0


def test_forecasts_are_judged_by_what_came_then(town: Town, new_store: Callable[[], Store], time: FakeTime) -> None:
    """Against the plain definition, cell by cell; a late reading changes the score."""
    store = new_store()
    clock = start_clock(town, store, time)
    run_steps(town, store, clock, time, FIRST, FIRST + 6)
    stream = town.city.stream
    errors: list[tuple[int, float, float]] = []
    for made in range(FIRST, FIRST + 6):
        made_of = latest(town, store, end_s(town, made)).forecast
        for ahead in range(HORIZON):
            truth = made + 1 + ahead
            if truth < FIRST + 6:
                off = np.abs(made_of.values[ahead] - stream.values[truth])
                naive = np.abs(stream.values[made] - stream.values[truth])
                errors += [(ahead, *pair) for pair in zip(off.tolist(), naive.tolist(), strict=True)]
    found = accuracy(store, town.served, since_s=0)
    table = np.array(errors)
    assert found["overall"]["count"] == len(table) == 100 * (5 + 4 + 3)
    assert found["overall"]["mae"] == pytest.approx(table[:, 1].mean(), abs=1e-3)
    assert found["overall"]["mae_persistence"] == pytest.approx(table[:, 2].mean(), abs=1e-3)
    assert [row["count"] for row in found["by_step"]] == [500, 400, 300]
    assert found["by_step"][2]["mae"] == pytest.approx(table[table[:, 0] == 2, 1].mean(), abs=1e-3)
    assert sum(row["count"] for row in found["by_hour"]) == 1200 and len(found["worst"]) == 10
    late = town.reading_rows(FIRST + 5, FIRST + 6)[0]
    store.add_readings([late._replace(value=late.value + 1000)], 0)
    run_steps(town, store, clock, time, FIRST + 6, FIRST + 7)
    assert accuracy(store, town.served, since_s=0)["worst"][0]["node"] == late.node


def test_a_core_stays_free_for_requests(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    service = Service(town.run, town.city, open_store(str(tmp_path / "store.db")), now=FakeTime(0.0), device="cpu")
    threads: Queue[int] = Queue()
    monkeypatch.setattr(service.clock, "turn", lambda: threads.put(torch.get_num_threads()))
    ours = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        service.start()
        assert threads.get(timeout=60) == 1
        service.stop()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(ours)
        service.store.close()


def test_memory_that_answers_took_is_given_back_by_every_process(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by one that makes no forecasts."""
    told: Queue[int] = Queue()
    monkeypatch.setattr(serving, "GIVE_BACK_S", 0.0)
    monkeypatch.setattr(serving, "give_back_memory", lambda: told.put(1))
    service = Service(town.run, town.city, open_store(str(tmp_path / "store.db")), now=FakeTime(0.0), device="cpu")
    monkeypatch.setattr(service.clock, "turn", lambda: False)
    service.start()
    assert told.get(timeout=60) == 1
    service.stop()
    service.store.close()


HOARD = """
from pathlib import Path
from frigate.serve.memory import give_back_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

pieces = [b"x" * (100_000 + k % 2) for k in range(3000)]
last = b"x" * 100_000  # above them: without a word, the C library gives back nothing below it
del pieces
before = resident_mb()
give_back_memory()
print(before - resident_mb())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has to be told")
def test_memory_that_was_freed_is_given_back_after_a_forecast(
    town: Town, new_store: Callable[[], Store], time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.run([sys.executable, "-c", HOARD], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 200  # of 300 MB
    told: list[int] = []
    monkeypatch.setattr(clock, "give_back_memory", lambda: told.append(1))
    turning = start_clock(town, new_store(), time)
    time.now_s += STEP_S
    assert turning.turn() and not turning.turn()
    assert told == [1]


def test_old_readings_are_forgotten_by_who_holds_the_clock(
    town: Town, reopen: Callable[[], Store], time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no forecast can be made: the disk may be full of them."""
    store = reopen()
    clocks = [
        start_clock(town, each, time, retention=Retention(each, now=time, keep_days=1 / 24, steady=time))
        for each in (store, reopen())
    ]
    assert clocks[0].turn()
    store.add_readings(town.reading_rows(FIRST - 5, FIRST + 1), 0)
    time.now_s += EVERY_S
    assert not clocks[1].turn() and len(store.readings(0, 2**62)[0]) == 600
    monkeypatch.setattr(clocks[0].engine, "forecast", None)
    with pytest.raises(TypeError):
        clocks[0].turn()
    times_us = store.readings(0, 2**62)[1]
    assert times_us.min() == (end_s(town, FIRST) - STEP_S - 3600) * 1_000_000


def test_issued_values_are_nearly_the_forecast_ones() -> None:
    values = np.random.default_rng(0).lognormal(0, 5, (3, 1000)) * [[1], [-1], [0]]
    values[0, :5] = np.nan
    found = rounded(values)
    assert np.array_equal(np.isnan(found), np.isnan(values))
    np.testing.assert_allclose(found, values, rtol=1.3e-4)
