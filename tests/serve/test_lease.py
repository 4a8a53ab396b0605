"""The clock moves on from a process that is frozen or always fails, and no forecast is made twice."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from frigate.serve.clock import FAILURES, STUCK_S, ForecastClock
from frigate.serve.issued import read_issued
from frigate.serve.lease import ASIDE_S, BEAT_S, OLD_S, Lease
from frigate.serve.store import Store
from tests.support.service import STEP_S, FakeTime, Town, start_clock


@pytest.fixture
def steady() -> FakeTime:
    return FakeTime(1000.0)


@pytest.fixture
def two(reopen: Callable[[], Store], steady: FakeTime) -> list[Lease]:
    """Of two processes on one store."""
    return [Lease(reopen(), steady=steady) for _ in range(2)]


def test_a_live_process_keeps_the_lease_and_a_frozen_one_loses_it(two: list[Lease], steady: FakeTime) -> None:
    one, other = two
    assert one.hold() and not other.hold()
    for _ in range(20):  # its heart beats
        steady.now_s += BEAT_S
        assert one.beat() and not other.hold()
    steady.now_s += OLD_S - 0.1  # it is frozen, its lock is not
    assert not other.hold()
    steady.now_s += 0.2
    assert other.hold() and other.term == 2
    assert [one.term, one.beat(), one.term] == [1, False, None]  # it wakes up
    steady.now_s += BEAT_S
    assert other.beat() and not one.hold()
    steady.now_s += ASIDE_S
    assert other.beat() and not one.hold()  # there is nothing to take


def test_a_process_that_was_not_frozen_for_others_has_the_lock_again(
    two: list[Lease], reopen: Callable[[], Store], steady: FakeTime
) -> None:
    """So its own death is noticed at once."""
    one, other = two
    assert one.hold() and not other.hold()
    steady.now_s += OLD_S
    assert other.hold() and not one.beat()
    steady.now_s += BEAT_S
    assert other.beat() and not reopen().hold_clock()
    other._store.close()  # as when its process dies
    assert Lease(reopen(), steady=steady).hold()


def test_a_lease_that_is_given_back_is_taken_at_once(two: list[Lease], steady: FakeTime) -> None:
    one, other = two
    assert one.hold() and not other.hold()
    one.give_back()
    assert not one.hold() and other.hold()
    other.give_back()
    steady.now_s += ASIDE_S - 0.1
    assert not one.hold()
    steady.now_s += 0.1
    assert one.hold() and one.term == 3


def test_a_service_that_is_stopped_and_started_again_has_the_lease_at_once(two: list[Lease]) -> None:
    one, other = two
    assert one.hold()
    one.give_back(aside_s=0)
    assert one.hold() and one.term == 2
    one.give_back()
    assert not one.hold() and other.hold()


def test_two_that_find_an_old_lease_do_not_both_take_it(reopen: Callable[[], Store]) -> None:
    stores = [reopen() for _ in range(4)]
    found = stores[0].lease()
    together = threading.Barrier(4)
    terms: list[int | None] = []

    def take(store: Store) -> None:
        together.wait()
        terms.append(store.take_lease(found, "one of them"))

    threads = [threading.Thread(target=take, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(term for term in terms if term is not None) == [1] and stores[0].lease().term == 1


def test_a_forecast_made_before_a_freeze_is_not_stored(store: Store) -> None:
    term = store.take_lease(store.lease(), "one")
    assert store.take_lease(store.lease(), "other") == 2
    assert not store.add_forecast(300, made_s=0.0, network="v", body=b"late", term=term)
    assert store.add_forecast(300, made_s=0.0, network="v", body=b"its successor's", term=2)
    assert store.forecast("v", 300) == (300, 0.0, b"its successor's")
    store.end_lease(2)
    assert not store.beat(2) and not store.add_forecast(600, made_s=0.0, network="v", body=b"", term=2)


@pytest.fixture
def clocks(town: Town, two: list[Lease]) -> tuple[list[ForecastClock], FakeTime]:
    time = FakeTime(float(town.city.stream.times_s[36]) + STEP_S + 20)
    return [start_clock(town, lease._store, time, lease=lease) for lease in two], time


def test_a_clock_that_is_frozen_while_it_forecasts_is_replaced(
    town: Town, clocks: tuple[list[ForecastClock], FakeTime], steady: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, other), time = clocks
    assert one.turn() and not other.turn()
    time.now_s += STEP_S
    make = one.engine.forecast

    def frozen(issued_s: int, *, now_s: float) -> object:
        made = make(issued_s, now_s=now_s - 7)  # it can be told from the other's
        steady.now_s += OLD_S
        assert other.turn()  # meanwhile
        return made

    monkeypatch.setattr(one.engine, "forecast", frozen)
    assert not one.turn() and other.state.holder
    issued = read_issued(other.engine.store, town.served)
    assert issued is not None and issued.made_s == time.now_s
    steady.now_s += BEAT_S
    assert not one.turn() and not one.state.holder
    assert (one.state.forecasts, other.state.forecasts) == (1, 1)


def test_a_clock_that_always_fails_is_given_to_another(
    clocks: tuple[list[ForecastClock], FakeTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, other), time = clocks
    assert one.turn() and not other.turn()
    time.now_s += STEP_S
    monkeypatch.setattr(one.engine, "forecast", None)
    for _ in range(FAILURES):
        assert one.state.holder and not other.turn()
        with pytest.raises(TypeError):
            one.turn()
    assert not one.state.holder and other.turn() and other.state.holder
    assert not one.turn() and not one.state.holder


def test_a_clock_alone_tries_again(
    clocks: tuple[list[ForecastClock], FakeTime], steady: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = clocks[0][0]
    with monkeypatch.context() as patch:
        patch.setattr(one.engine, "forecast", None)
        for _ in range(FAILURES):
            with pytest.raises(TypeError):
                one.turn()
    assert not one.turn()
    steady.now_s += ASIDE_S
    assert one.turn()


def test_a_turn_that_does_not_end_is_no_sign_of_life(
    clocks: tuple[list[ForecastClock], FakeTime], steady: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, other), time = clocks
    assert one.turn() and not other.turn()
    time.now_s += STEP_S
    monotonic = FakeTime(0.0)
    monkeypatch.setattr("frigate.serve.clock.time.monotonic", monotonic)
    for late_s, taken in ((2 * STEP_S - 1, False), (2 * STEP_S, True)):

        def hangs(*_: object, late_s: float = late_s, **__: object) -> None:
            monotonic.now_s += late_s
            for _beat in range(int(OLD_S)):
                steady.now_s += BEAT_S
                one.beat()  # from the thread that does so
                other.lease.hold()
            raise TimeoutError

        monkeypatch.setattr(one.engine, "forecast", hangs)
        with pytest.raises(TimeoutError):
            one.turn()
        assert (other.lease.term is not None) == taken
    assert STUCK_S < 2 * STEP_S
