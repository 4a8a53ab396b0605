"""Services as processes: killed at random moments under load, on a full disk, three of them on one PostgreSQL.

Their time is that of a replay, told by the tests: a forecast is due when a test says so.
"""

from __future__ import annotations

import random
import resource
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from frigate.calendar import utc_iso
from frigate.serve.client import ServiceClient, ServiceGoneError
from frigate.serve.store import Store, StoreGoneError, open_store
from tests.support.postgres import PostgresServer
from tests.support.service import STEP_S, Town
from tests.support.service_process import Nursery, ServiceProcess, answers, until

FIRST = 36
BATCH = 20  # readings in a request
SENDERS = 3


def end_s(town: Town, snapshot: int) -> int:
    return int(town.city.stream.times_s[snapshot]) + STEP_S


def tell_time(service: ServiceProcess, time_s: int) -> None:
    with closing(service.client()) as client:
        client.send("PUT", "/v1/time", {"time": utc_iso(time_s)})


def await_forecast(store: Store, issued_s: int) -> None:
    until(lambda: store.state()[0] == issued_s, f"the forecast of {utc_iso(issued_s)}")


@dataclass
class Load:
    """Sends readings from several threads until the service is gone, and keeps what was acknowledged."""

    service: ServiceProcess
    node: str
    begin_us: int  # every reading has a microsecond of its own, from here on
    acknowledged: dict[int, float] = field(default_factory=dict)
    sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._send) for _ in range(SENDERS)]
        for thread in self._threads:
            thread.start()
        until(lambda: bool(self.acknowledged), "a reading is acknowledged")
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        with closing(self.service.client()) as client:
            while True:
                with self._lock:
                    first = self.sent
                    self.sent = self.sent + BATCH
                rows = {self.begin_us + k: float(k % 7) for k in range(first, first + BATCH)}
                body = [{"node": self.node, "time": at / 1e6, "value": value} for at, value in rows.items()]
                try:
                    answer = client.send("POST", "/v1/readings", {"readings": body})
                except ServiceGoneError:
                    return
                assert answer["accepted"] == BATCH, answer
                self.acknowledged |= rows


def live_and_die(town: Town, nursery: Nursery, folder: Path, lives: int) -> None:
    path = folder / "store.db"
    draws = random.Random(lives)
    words = ("--replay", "--store", str(path))
    node = town.served.node_names[0]
    told_s = None
    acknowledged: dict[int, float] = {}
    for life in range(lives):
        service = nursery.serve(folder / "log", *words)
        if told_s is not None:  # the service that was told may not have lived to forecast: this one does
            with closing(open_store(str(path))) as store:
                await_forecast(store, told_s)
        told_s = end_s(town, FIRST + life % 50)
        begin_us = (told_s - STEP_S) * 1_000_000
        tell_time(service, told_s)
        with Load(service, node, begin_us + len(acknowledged)) as load:
            time.sleep(draws.uniform(0, 0.3))
            service.kill()
        acknowledged |= load.acknowledged
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with closing(open_store(str(path))) as store:
            _, times_us, values = store.readings(0, 10**17, node)
        stored = dict(zip(times_us.tolist(), values.tolist(), strict=True))
        assert {at: stored.get(at) for at in acknowledged} == acknowledged
    assert len(acknowledged) >= lives * BATCH


def test_acknowledged_readings_survive_a_power_cut(town: Town, nursery: Nursery, tmp_path: Path) -> None:
    live_and_die(town, nursery, tmp_path, 3)


@pytest.mark.slow
def test_acknowledged_readings_survive_fifty_power_cuts(town: Town, nursery: Nursery, tmp_path: Path) -> None:
    live_and_die(town, nursery, tmp_path, 50)


def holders(services: list[ServiceProcess]) -> list[ServiceProcess]:
    return [service for service in services if service.metric("frigate_clock_holder")]


def test_of_three_processes_another_takes_the_clock(
    town: Town, nursery: Nursery, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.database("three")
    words = ("--replay", "--store", url)
    # All in one log, where the first of them says the token.
    services = [nursery.start(tmp_path / "log", *words) for _ in range(3)]
    for service in services:
        until(partial(answers, service), "it answers")
    with closing(open_store(url)) as store:
        tell_time(services[0], end_s(town, FIRST))
        await_forecast(store, end_s(town, FIRST))
        (holder,) = holders(services)
        holder.kill()
        others = [service for service in services if service is not holder]
        told = time.monotonic()
        tell_time(others[1], end_s(town, FIRST + 1))
        await_forecast(store, end_s(town, FIRST + 1))
        assert time.monotonic() - told < STEP_S
        (successor,) = holders(others)
        tell_time(others[0], end_s(town, FIRST + 2))
        await_forecast(store, end_s(town, FIRST + 2))
        assert successor.metric("frigate_forecasts_total") == 2 and successor.metric("frigate_ticks_skipped_total") == 0
        assert [service.metric("frigate_forecasts_total") for service in others if service is not successor] == [0]
    for service in others:
        service.terminate()


def freeze_between_transactions(service: ServiceProcess, store: Store) -> None:
    """Not while it writes: SQLite's lock would then be frozen with it."""
    while True:
        service.freeze()
        try:
            store.check_writable()
        except StoreGoneError:
            service.thaw()
        else:
            return


def test_a_frozen_holder_of_the_clock_is_replaced_and_makes_nothing_twice(
    town: Town, nursery: Nursery, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frigate.serve.store.sqlite.BUSY_S", 0.5)  # of this process, which only looks on
    services = [nursery.start(tmp_path / "log", "--replay", "--store", store_url) for _ in range(2)]
    for service in services:
        until(partial(answers, service), "it answers")
    with closing(open_store(store_url)) as store:
        tell_time(services[0], end_s(town, FIRST))
        await_forecast(store, end_s(town, FIRST))
        (frozen,) = holders(services)
        (other,) = [service for service in services if service is not frozen]
        freeze_between_transactions(frozen, store)
        tell_time(other, end_s(town, FIRST + 1))
        await_forecast(store, end_s(town, FIRST + 1))
        assert holders([other]) == [other]
        frozen.thaw()
        until(lambda: holders(services) == [other], "it has noticed")
        tell_time(frozen, end_s(town, FIRST + 2))
        await_forecast(store, end_s(town, FIRST + 2))
        assert [service.metric("frigate_forecasts_total") for service in (frozen, other)] == [1, 2]
    for service in services:
        service.terminate()


def post(client: ServiceClient, node: str, time_s: float, value: float) -> Any:
    return client.send("POST", "/v1/readings", {"readings": [{"node": node, "time": time_s, "value": value}]})


def is_ready(client: ServiceClient) -> bool:
    try:
        return bool(client.get("/readyz")["ready"])
    except ServiceGoneError:
        return False


def test_a_full_disk_is_said_and_recovered_from(town: Town, nursery: Nursery, tmp_path: Path) -> None:
    """The system lets the process write no file beyond a size, until it does again."""
    path = tmp_path / "store.db"
    node = town.served.node_names[0]
    now_s = end_s(town, FIRST)
    service = nursery.serve(tmp_path / "log", "--replay", "--store", str(path))
    tell_time(service, now_s)
    with closing(open_store(str(path))) as store, closing(service.client()) as client:
        await_forecast(store, now_s)
        assert post(client, node, now_s - 1, 1)["accepted"] == 1
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        with pytest.raises(ServiceGoneError) as gone:
            post(client, node, now_s - 2, 2)
        assert gone.value.retry_after_s is not None and gone.value.retry_after_s > 0
        until(lambda: not is_ready(client), "it says so")
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(lambda: is_ready(client), "it says that there is room again")
        assert post(client, node, now_s - 3, 3)["accepted"] == 1
        assert sorted(store.readings(0, 10**17, node)[2].tolist()) == [1, 3]
        tell_time(service, now_s + STEP_S)
        await_forecast(store, now_s + STEP_S)
    service.terminate()


def test_a_database_that_takes_no_writes_is_said_and_recovered_from(
    town: Town, nursery: Nursery, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.database("read_only")
    node = town.served.node_names[0]
    now_s = end_s(town, FIRST)
    service = nursery.serve(tmp_path / "log", "--replay", "--store", url)
    tell_time(service, now_s)

    def set_read_only(words: str) -> None:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE read_only {words}")
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'read_only'")

    with closing(service.client()) as client:
        assert post(client, node, now_s - 1, 1)["accepted"] == 1
        set_read_only("SET default_transaction_read_only = on")
        with pytest.raises(ServiceGoneError) as gone:
            post(client, node, now_s - 2, 2)
        assert gone.value.retry_after_s is not None and gone.value.retry_after_s > 0
        assert client.get("/v1/closures") == {"closures": []}
        set_read_only("RESET default_transaction_read_only")
        assert post(client, node, now_s - 3, 3)["accepted"] == 1
        tell_time(service, now_s + STEP_S)
        with closing(open_store(url)) as store:
            await_forecast(store, now_s + STEP_S)
            assert sorted(store.readings(0, 10**17, node)[2].tolist()) == [1, 3]
    service.terminate()
