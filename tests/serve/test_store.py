"""The store: the same tests for SQLite and PostgreSQL."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frigate.errors import ServiceError
from frigate.serve.store import PERIOD_US, Reading, Store, StoreGoneError, Token, open_store
from frigate.serve.store.schema import MIGRATIONS
from frigate.serve.store.sqlite import READERS
from tests.support.errors import raises
from tests.support.postgres import PostgresServer

DAY_US = 86_400_000_000
NODES = st.sampled_from(["A17", "4411", "Ü/'\"; DROP TABLE readings --", "日本"])
READINGS = st.lists(
    st.builds(Reading, NODES, st.integers(0, 5), st.sampled_from([0.0, -1.5, 1e300, 1 / 3])), max_size=12
)


def stored(store: Store) -> dict[tuple[str, int], float]:
    nodes, times, values = store.readings(-DAY_US, DAY_US)
    return dict(zip(zip(nodes, times.tolist(), strict=True), values.tolist(), strict=True))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(READINGS, max_size=4))
def test_readings_are_known_by_node_and_time_and_the_last_value_stays(
    store: Store, batches: list[list[Reading]]
) -> None:
    """Against a dictionary, whatever comes how often and in which order; batches do not matter."""
    with store.transaction(write=True) as sql:
        sql.run("DELETE FROM readings")
    expected: dict[tuple[str, int], float] = {}
    for batch in batches:
        answers = store.add_readings(batch, 0.0)
        for reading, answer in zip(batch, answers, strict=True):
            before = expected.get((reading.node, reading.time_us))
            assert answer == ("accepted" if before is None else "duplicate" if before == reading.value else "corrected")
            expected[reading.node, reading.time_us] = reading.value
    assert stored(store) == expected


def test_stored_readings_are_visible_to_others_in_time_order(store: Store, reopen: Callable[[], Store]) -> None:
    store.add_readings([Reading("B", 3, 1.0), Reading("A", 1, 2.0), Reading("A", 2, 0.1), Reading("A", 9, 5.0)], 7.0)
    nodes, times, values = reopen().readings(1, 9)
    assert (nodes, times.tolist(), values.tolist()) == (["A", "A", "B"], [1, 2, 3], [2.0, 0.1, 1.0])
    assert reopen().readings(0, 99, "A")[1].tolist() == [1, 2, 9]
    assert store.sensor_facts(2, 3) == [("A", 9, 5.0, 2, 1, 5.0, 5.0), ("B", 3, 1.0, 1, 1, 1.0, 1.0)]
    assert store.sensor_facts(3, 4)[1][4:] == (0, None, None)


def test_changes_are_counted_by_period(store: Store) -> None:
    here = 7 * PERIOD_US
    there = 9 * PERIOD_US + 1
    store.add_readings([Reading("A", here, 1.0), Reading("B", here + 5, 1.0), Reading("A", there, 1.0)], 0.0)
    assert store.reading_changes(here, there) == {7: 1, 9: 1}
    store.add_readings([Reading("A", here, 1.0)], 0.0)  # known
    store.add_readings([Reading("A", there, 2.0)], 0.0)
    assert store.reading_changes(here, there) == {7: 1, 9: 2} and store.reading_changes(0, here - 1) == {}


def test_a_batch_is_stored_whole_or_not_at_all(store: Store) -> None:
    good = [Reading("A", time_us, 1.0) for time_us in range(100)]
    with pytest.raises(Exception):  # noqa: B017, PT011  # no node at all, whatever the driver says of it
        store.add_readings([*good, Reading(None, 100, 1.0)], 0.0)  # type: ignore[arg-type]
    assert stored(store) == {}
    assert store.add_readings(good, 0.0) == ["accepted"] * 100


def test_two_writers_at_once_lose_nothing(store: Store) -> None:
    def write(writer: int) -> None:
        for k in range(10):
            store.add_readings([Reading(f"{writer}", 10 * k + i, 1.0) for i in range(10)], 0.0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(stored(store)) == 400


def test_closures_begin_end_and_cover_each_other(store: Store) -> None:
    lasting, new = store.add_closure("A", "B", begin_s=100, end_s=None, now_s=90)
    assert new and not lasting.active(99) and lasting.active(100) and lasting.active(10**9)
    assert store.add_closure("A", "B", begin_s=150, end_s=200, now_s=100) == (lasting, False)
    earlier, new = store.add_closure("A", "B", begin_s=50, end_s=120, now_s=50)
    assert new and store.add_closure("B", "A", begin_s=100, end_s=None, now_s=90)[1]
    ended = store.end_closure(lasting.id, 130)
    assert ended is not None and ended.end_s == 130 and store.end_closure(lasting.id, 180) == ended
    assert {(c.source, c.end_s) for c in store.closures(125)} == {("A", 130), ("B", None)}
    planned, _ = store.add_closure("A", "B", begin_s=500, end_s=600, now_s=400)
    cancelled = store.end_closure(planned.id, 450)
    assert cancelled is not None and not any(cancelled.active(time_s) for time_s in (450, 500, 550))
    assert store.end_closure("none", 0) is None
    assert {c.id for c in store.closures()} >= {earlier.id, planned.id}


def test_closures_can_be_read_in_parts(store: Store) -> None:
    for begin_s in (30, 10, 10, 20):
        store.add_closure("A", f"to {len(store.closures())}", begin_s=begin_s, end_s=None, now_s=0)
    gone, _ = store.add_closure("A", "B", begin_s=5, end_s=6, now_s=0)
    whole = store.closures(15)
    assert [each.begin_s for each in whole] == [10, 10, 20, 30] and gone in store.closures()
    for first in range(4):
        rest = store.closures(15, after=(whole[first].begin_s, whole[first].id), most=2)
        assert rest == whole[first + 1 : first + 3]


def test_two_operators_who_close_and_open_a_road_at_once_agree(store: Store) -> None:
    together = threading.Barrier(4)

    def operate(_: int) -> str:
        together.wait()
        return store.add_closure("A", "B", begin_s=10, end_s=None, now_s=10)[0].id

    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(operate, range(4)))
        assert len(ids) == 1 == len(store.closures())
        ended = list(pool.map(lambda _: store.end_closure(min(ids), 25), range(4)))
    assert {closure.end_s for closure in ended if closure} == {25} and store.closures()[0].end_s == 25
    assert store.state() == (None, 2)


def test_one_forecast_for_each_time(store: Store, reopen: Callable[[], Store]) -> None:
    assert store.forecast("v1") is None and store.state() == (None, 0)
    body = bytes(range(256))
    assert store.add_forecast(300, made_s=301.5, network="v1", body=body)
    assert not store.add_forecast(300, made_s=400.0, network="v1", body=b"other")
    assert store.add_forecast(600, made_s=601.0, network="v1", body=b"second")
    again = reopen()
    assert again.forecast("v1", 300) == (300, 301.5, body) and again.forecast("v1") == (600, 601.0, b"second")
    assert again.forecast("v1", 601) is None and again.forecast("v2", 300) is None and again.state()[0] == 600
    assert store.add_forecast(900, made_s=901.0, network="v2", body=b"third") and store.forecast("v1") is None
    assert store.withdraw_forecasts(599.9) == 2 and store.state()[0] == 300


def test_scores_are_replaced_and_belong_to_a_network(store: Store) -> None:
    store.add_scores(300, "v1", b"a")
    store.add_scores(300, "v1", b"b")
    store.add_scores(600, "v2", b"c")
    assert store.scores(0, "v1") == [(300, b"b")] and store.scores(301, "v1") == []


def test_tokens_are_kept_and_revoked_once(store: Store) -> None:
    token = Token("ab12", "gate 4 'x'", "write", b"\0" * 32, 10, None, 90, ("A", "B 'x'"), 60)
    store.add_token(token)
    assert store.tokens() == [token]
    assert store.revoke_token("ab12", 20) and not store.revoke_token("ab12", 30)
    assert store.tokens() == [replace(token, revoked_s=20)]


def test_one_holder_of_the_clock(store: Store, reopen: Callable[[], Store]) -> None:
    other = reopen()
    assert store.hold_clock() and store.hold_clock() and not other.hold_clock()
    store.release_clock()
    assert other.hold_clock() and not store.hold_clock()
    other.close()
    assert store.hold_clock()


def test_old_data_are_deleted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frigate.serve.store.base.FORGET_ROWS", 7)
    store.add_readings([Reading("A", k * 1_000_000, 1.0) for k in range(100)], 0.0)
    store.add_forecast(10, made_s=0.0, network="v", body=b"")
    store.add_scores(10, "v", b"")
    store.add_closure("A", "B", begin_s=0, end_s=10, now_s=0)
    store.add_closure("A", "C", begin_s=0, end_s=None, now_s=0)
    assert store.newest_reading_s(49.5) == 49 and store.newest_reading_s(-1) is None
    assert store.forget_readings(60) == 60 and store.forget_forecasts(60) == 2 and store.forget_closures(60) == 1
    assert min(time for _, time in stored(store)) == 60_000_000 and store.forecast("v") is None
    assert [closure.target for closure in store.closures()] == ["C"]
    assert store.forget_readings(60) == store.forget_forecasts(60) == store.forget_closures(60) == 0


def test_the_middle_of_a_store_is_that_of_its_rows(store: Store) -> None:
    assert store.middle_reading_s() is store.middle_forecast_s() is None
    for period in (1, 2, 3, 900, 901):
        store.add_readings([Reading("A", period * PERIOD_US + k, 1.0) for k in range(10)], 0.0)
        store.add_forecast(period, made_s=0.0, network="v", body=b"")
    assert store.middle_reading_s() == 3 * PERIOD_US // 1_000_000 and store.middle_forecast_s() == 3


def test_an_older_store_is_brought_up_to_date_and_a_newer_one_refused(store_url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("frigate.serve.store.base.MIGRATIONS", MIGRATIONS[:1])
        old = open_store(store_url)
        with old.transaction(write=True) as sql:
            sql.put([Reading("A", 1, 2.0)], 0.0)
        with pytest.raises(Exception, match="scores"):
            old.add_scores(1, "v", b"")
        old.close()
    new = open_store(store_url)
    new.add_scores(1, "v", b"")
    assert stored(new) == {("A", 1): 2.0}
    with new.transaction(write=True) as sql:
        sql.run("UPDATE schema_version SET version = ?", 99)
    new.close()
    with raises(ServiceError, "99"):
        open_store(store_url)


def test_a_store_belongs_to_one_city(store: Store) -> None:
    store.claim("Town, 300 s, count")
    store.claim("Town, 300 s, count")
    with raises(ServiceError, "Town, 300 s, count", "Village"):
        store.claim("Village")


# What only one kind can do


def test_a_full_disk_is_said_and_nothing_is_stored(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    store.add_readings([Reading("A", 1, 1.0)], 0.0)
    with store.transaction(write=True) as sql:
        pages = sql.rows("PRAGMA page_count")[0][0]
        sql.rows(f"PRAGMA max_page_count = {pages}")
    with raises(StoreGoneError, "store.db", "full"):
        store.add_readings([Reading("A", k, 1.0) for k in range(10_000)], 0.0)
    assert stored(store) == {("A", 1): 1.0}  # a new connection, with room again
    assert store.add_readings([Reading("A", 2, 1.0)], 0.0) == ["accepted"]
    store.close()


def test_a_store_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"not a database, but long enough to look at" * 100)
    with raises(StoreGoneError, "store.db"):
        open_store(str(tmp_path / "store.db"))
    with raises(StoreGoneError, str(tmp_path / "none" / "store.db")):
        open_store(str(tmp_path / "none" / "store.db"))
    with raises(ServiceError, "mysql"):
        open_store("mysql://somewhere/db")


def test_sqlite_waits_for_the_disk(tmp_path: Path) -> None:
    """A reply means that it is on disk: WAL with synchronous=FULL."""
    store = open_store(f"sqlite:{tmp_path / 'store.db'}")
    with store.transaction() as sql:
        assert sql.rows("PRAGMA synchronous") == [(2,)] and sql.rows("PRAGMA journal_mode") == [("wal",)]
    store.close()
    assert sqlite3.connect(tmp_path / "store.db").execute("SELECT version FROM schema_version").fetchall() == [
        (len(MIGRATIONS),)
    ]


def connections_to(path: Path) -> int:
    """How many descriptors of this process are open on a store's file."""
    found = (os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return sum(name == str(path) for name in found)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists descriptors")
def test_threads_leave_no_connections_behind(tmp_path: Path) -> None:
    """A server's threads end when they have been idle for a while, and others take their place."""
    path = tmp_path / "store.db"
    store = open_store(str(path))
    for _ in range(5):
        together = threading.Barrier(20)

        def read_and_write(k: int, together: threading.Barrier = together) -> None:
            together.wait()
            store.closures()
            store.add_readings([Reading("A", k, 1.0)], 0.0)

        threads = [threading.Thread(target=read_and_write, args=(k,)) for k in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 0 < connections_to(path) <= READERS + 1
    with store.transaction():
        store.close()
    assert connections_to(path) == 0  # not even the one that was in use
    with raises(StoreGoneError, "closed"):
        store.closures()


def test_a_request_that_waits_too_long_is_asked_to_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frigate.serve.store.sqlite.WAIT_S", 0.05)
    store = open_store(str(tmp_path / "store.db"))
    with ExitStack() as busy:
        for _ in range(READERS):
            busy.enter_context(store.transaction())
        with raises(StoreGoneError, "busy"):
            store.closures()
        store.add_readings([Reading("A", 1, 1.0)], 0.0)  # who writes has a connection of its own
    assert store.closures() == [] and stored(store) == {("A", 1): 1.0}
    store.close()


def test_who_has_had_a_part_waits_longer_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of an answer has been sent by then."""
    monkeypatch.setattr("frigate.serve.store.sqlite.WAIT_S", 0.01)
    monkeypatch.setattr("frigate.serve.store.base.NEXT_PART_ATTEMPTS", 10**6)
    monkeypatch.setattr("frigate.serve.store.base.PART_ROWS", 2)
    store = open_store(str(tmp_path / "store.db"))
    store.add_readings([Reading("A", k, 1.0) for k in range(5)], 0.0)
    parts = store.reading_parts(0, 10)
    times_us = next(parts)[1].tolist()
    with ExitStack() as busy:
        for _ in range(READERS):
            busy.enter_context(store.transaction())
        waiting = threading.Thread(target=lambda: times_us.extend(at for part in parts for at in part[1].tolist()))
        waiting.start()
        waiting.join(0.2)
        with raises(StoreGoneError, "busy"):
            next(store.reading_parts(0, 10))
    waiting.join()
    assert times_us == list(range(5))
    store.close()


def test_postgresql_that_stops_is_said_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frigate.serve.store.postgres.WAIT_S", 0.3)
    server = PostgresServer()
    try:
        store = open_store(server.url)
        assert store.hold_clock()
        server.stop()
        for _ in range(2):
            with pytest.raises(StoreGoneError):
                store.add_readings([Reading("A", 1, 1.0)], 0.0)
        with pytest.raises(StoreGoneError):
            store.hold_clock()
        server.start()
        for _ in range(2000):  # as clients do, who are told to come back
            with suppress(StoreGoneError):
                if store.add_readings([Reading("A", 1, 1.0)], 0.0) == ["accepted"]:
                    break
        assert store.hold_clock()
        assert np.array_equal(store.readings(0, 9)[2], [1.0])
        store.close()
    finally:
        server.remove()
