"""A stored city is sent to a service as if it were live, and the service's clock follows."""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from frigate.calendar import utc_iso
from frigate.city.stream import RoadNetworkStream
from frigate.errors import ServiceError, SettingsError
from frigate.serve.client import ServiceClient, ServiceGoneError
from frigate.serve.issued import IssuedForecast, read_issued
from frigate.serve.replay import Replay, snapshots_between
from frigate.serve.store import Store, open_store
from tests.support.command_line import assert_refused, frigate
from tests.support.errors import raises
from tests.support.service import PAST, STEP_S, FakeTime, Town, start_clock
from tests.support.service_process import Nursery, answers, free_port, until

FIRST, STOP = 36, 40


class FakeService(ServiceClient):
    """Answers as a service does, notes what it was sent, and is gone when told so."""

    def __init__(self, replay: bool = True) -> None:
        super().__init__("http://127.0.0.1:1")
        self.replay = replay
        self.gone = 0
        self.sent = list[tuple[str, str, Any]]()

    def send(self, method: str, path: str, body: Any = None) -> Any:
        if self.gone:
            self.gone -= 1
            raise ServiceGoneError("gone")
        self.sent.append((method, path, body))
        if path == "/v1/time":
            return {"time": "", "replay": self.replay, "past_steps": PAST}
        return {"refused": 0} if path == "/v1/readings" else {"id": "c0ffee"}

    def paths(self) -> list[str]:
        return [f"{method} {path}" for method, path, _ in self.sent]


class FakeClock(FakeTime):
    def wait(self, seconds: float) -> None:
        self.now_s += seconds


def with_a_closure(town: Town) -> tuple[RoadNetworkStream, dict[str, str]]:
    """The town's readings, with a road closed in one snapshot."""
    stream = town.city.stream
    network = town.city.network
    a, b = (network.node_ids[ends[0]].item() for ends in (network.senders, network.receivers))
    closed = (np.arange(stream.num_snapshots) == FIRST + 1).astype(np.int64)
    changed = replace(stream, networks=(network, network.close([(a, b)])), network_of=closed)
    return changed, {"source": str(a), "target": str(b)}


def last_forecast(town: Town, store: Store) -> IssuedForecast:
    issued = read_issued(store, town.served)
    assert issued is not None
    return issued


def test_a_replay_comes_to_the_forecast_of_the_record(town: Town, nursery: Nursery, tmp_path: Path) -> None:
    """Also when the service is killed on the way: the replay waits for it, and goes on."""
    stream = town.city.stream
    path = tmp_path / "replay.db"
    words = ("--replay", "--store", str(path))
    port = free_port()
    service = nursery.serve(tmp_path / "log", *words, port=port)
    said: list[str] = []

    def start_again(_: float) -> None:
        if len(said) == 1 and service.is_gone() and not started:
            started.append(nursery.start(tmp_path / "log", *words, port=port))
        time.sleep(0.02)

    started: list[object] = []
    client = service.client()
    sent = Replay(stream, client, speed=1e6, say=said.append, wait=start_again).run(FIRST, STOP)
    for snapshot in range(FIRST, FIRST + 2):
        each = next(sent)
        assert (each.snapshot, each.readings, each.refused) == (snapshot, int(stream.observed[snapshot].sum()), 0)
    service.kill()
    last = list(sent)[-1]
    client.close()
    assert last.snapshot == STOP - 1 and last.time_s == int(stream.times_s[STOP])
    assert ["does not respond" in line for line in said] == [True, False]

    store = open_store(str(path))
    direct = open_store(str(tmp_path / "direct.db"))
    until(lambda: store.state()[0] == last.time_s, "the last forecast is there")
    direct.add_readings(town.reading_rows(STOP - PAST, STOP), 0)
    assert start_clock(town, direct, FakeTime(last.time_s + 20)).turn()
    np.testing.assert_array_equal(
        last_forecast(town, store).forecast.values, last_forecast(town, direct).forecast.values
    )
    store.close()
    direct.close()

    live = frigate("serve", town.folder / "run", "--store", path)
    assert_refused(live, "replayed", "--store")


def test_snapshots_are_sent_as_fast_as_asked_and_those_before_at_once(town: Town) -> None:
    service = FakeService()
    clock = FakeClock(0.0)
    replay = Replay(town.city.stream, service, speed=10, clock=clock, wait=clock.wait)
    at = [clock.now_s for _ in replay.run(FIRST, STOP)]
    assert at == [STEP_S / 10 * k for k in range(1, STOP - FIRST + 1)]
    times = [body["time"] for method, path, body in service.sent if (method, path) == ("PUT", "/v1/time")]
    assert times == [utc_iso(t) for t in town.city.stream.times_s[FIRST : STOP + 1].tolist()]
    words = service.paths()
    assert words[: PAST + 2] == ["GET /v1/time", *["POST /v1/readings"] * PAST, "PUT /v1/time"]


def test_a_pause_is_not_made_up_for(town: Town) -> None:
    """The service's clock stood still meanwhile."""
    service = FakeService()
    clock = FakeClock(0.0)
    sent = Replay(town.city.stream, service, speed=10, say=lambda _: None, clock=clock, wait=clock.wait).run(0, 9)
    next(sent)
    clock.now_s += 1000
    next(sent)
    at = clock.now_s
    next(sent)
    assert clock.now_s - at == STEP_S / 10


def test_roads_are_closed_and_opened_as_in_the_record(town: Town) -> None:
    stream, road = with_a_closure(town)
    service = FakeService()
    for _ in Replay(stream, service, speed=1e9).run(FIRST, STOP):
        pass
    closures = [(method, path, body) for method, path, body in service.sent if "closures" in path]
    assert closures == [("POST", "/v1/closures", road), ("DELETE", "/v1/closures/c0ffee", None)]
    words = service.paths()
    begin_s = int(stream.times_s[FIRST + 1])
    end_s = int(stream.times_s[FIRST + 2])
    told = [body["time"] if path == "/v1/time" and body else "" for _, path, body in service.sent]
    assert told.index(utc_iso(begin_s)) < words.index("POST /v1/closures") < told.index(utc_iso(end_s))


def test_a_service_on_the_real_time_is_refused(town: Town) -> None:
    with raises(ServiceError, "http://127.0.0.1:1", "--replay"):
        next(Replay(town.city.stream, FakeService(replay=False)).run(FIRST, STOP))


def test_wrong_options_are_refused_by_name(town: Town) -> None:
    city = town.folder / "city"
    assert_refused(frigate("replay", city, "--speed", "0"), "--speed", "0")
    assert_refused(frigate("replay", city, "--to", "somewhere"), '"somewhere"', "http://127.0.0.1:8350")
    assert_refused(frigate("replay", city, "--from", "noon"), "--from", '"noon"')
    assert_refused(frigate("replay", city, "--from", "2030-01-01"), "--from", "2030-01-01", "2024-03-04T00:00:00+01:00")
    with raises(SettingsError, "--until", "2020-01-01"):
        snapshots_between(town.city.stream, None, "2020-01-01")
    assert snapshots_between(town.city.stream, "2024-03-04T09:00", "2024-03-04") == (36, 96)
    assert snapshots_between(town.city.stream, None, None) == (0, town.city.stream.num_snapshots)


def test_the_demo_opens_a_map_with_the_replay_running(town: Town, nursery: Nursery, tmp_path: Path) -> None:
    for part in ("city", "run"):
        shutil.copytree(town.folder / part, tmp_path / part)
    (tmp_path / "report.html").touch()  # a demo that is finished
    service = nursery.run(tmp_path / "log", "demo", "--serve", "-o", str(tmp_path))
    until(lambda: answers(service), "it answers")
    with closing(open_store(str(tmp_path / "replay.db"))) as store:
        until(lambda: store.state()[0] is not None, "a forecast is there")
        first = last_forecast(town, store)
        assert town.city.stream.local_time(first.issued_s) == "2024-03-05T06:30:00+01:00"
        _, window = start_clock(town, store, FakeTime(0)).engine.window(first.issued_s)
    assert np.isfinite(window[:, town.city.stream.sensors]).all()
    assert_refused(frigate("demo", "--serve", "-o", tmp_path, "--port", "0"), "replay.db", "-o")
    service.interrupt()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert_refused(frigate("demo", "--serve", "-o", tmp_path, "--port", taken.getsockname()[1]), "--port")
    said = (tmp_path / "log").read_text()
    assert service.url in said and "2024-03-05T06:30" in said and "Traceback" not in said
