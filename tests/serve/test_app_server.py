"""The service behind a socket: event streams, slow and broken clients, an end in good order, a store that goes away."""

from __future__ import annotations

import json
import resource
import socket
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from frigate.calendar import utc_iso
from frigate.serve.auth import make_token
from frigate.serve.connections import KEPT, Connection
from frigate.serve.limits import Limits
from frigate.serve.packing import pack
from frigate.serve.store import open_store
from frigate.serve.store import postgres as postgres_store
from tests.support.postgres import PostgresServer
from tests.support.running_service import FIRST, Running, running, wait_for
from tests.support.service import STEP_S, FakeTime, Town

HEAD = "POST /v1/readings HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\nContent-Length: 1000\r\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the tests does not run: it is looked at often."""
    monkeypatch.setattr("frigate.serve.service.LONGEST_WAIT_S", 0.1)
    monkeypatch.setattr("frigate.serve.events.WATCH_S", 0.1)


@pytest.fixture
def one(town: Town, tmp_path: Path) -> Iterator[Running]:
    store = open_store(str(tmp_path / "store.db"))
    with running(town, store, limits=Limits(streams=2, streams_each=2)) as started:
        yield started
    store.close()


class Listener:
    """Reads an event stream, line by line."""

    def __init__(self, stream: httpx2.Response) -> None:
        self.lines = stream.iter_lines()
        self.until("retry: ")

    def until(self, wanted: str) -> str:
        return next(line for line in self.lines if line.startswith(wanted))

    def event(self, name: str) -> dict[str, object]:
        self.until(f"event: {name}")
        found: dict[str, object] = json.loads(self.until("data: ").removeprefix("data: "))
        return found


def test_listeners_hear_of_forecasts_and_closures_and_the_end(one: Running, town: Town) -> None:
    source, target = next(iter(one.service.city.road_of))
    with one.client.stream("GET", "/v1/events") as first, one.client.stream("GET", "/v1/events") as second:
        listeners = [Listener(first), Listener(second)]
        assert first.headers["content-type"].startswith("text/event-stream")
        assert one.client.get("/v1/events").status_code == 503  # the limit is two
        one.client.post("/v1/closures", json={"source": source, "target": target})
        assert [each.event("closures") for each in listeners] == [{"changes": 1}] * 2
        one.time.now_s += STEP_S
        issued_s = int(town.city.stream.times_s[FIRST]) + 2 * STEP_S
        assert [each.event("forecast") for each in listeners] == [{"issued_at": utc_iso(issued_s)}] * 2
        one.server.should_exit = True
        for each in listeners:
            id_of_last, *rest = each.lines  # ended, not cut: the client would raise an error
            assert id_of_last.startswith(f"id: {issued_s}.") and rest == [""]
    wait_for(lambda: not one.server.frigate.state.frigate.events.listeners)


def test_a_listener_that_comes_back_is_told_what_it_missed(one: Running) -> None:
    first, second = list(one.service.city.road_of)[:2]
    with one.client.stream("GET", "/v1/events") as stream:
        listener = Listener(stream)
        one.client.post("/v1/closures", json={"source": first[0], "target": first[1]})
        listener.event("closures")
        last = {"Last-Event-ID": listener.until("id: ").removeprefix("id: ")}
    one.client.post("/v1/closures", json={"source": second[0], "target": second[1]})
    with one.client.stream("GET", "/v1/events", headers=last) as stream:
        assert Listener(stream).event("closures") == {"changes": 2}
    issued_s = one.service.store.state()[0]
    with one.client.stream("GET", "/v1/events", headers={"Last-Event-ID": ".2"}) as stream:  # a forecast only
        assert Listener(stream).event("forecast") == {"issued_at": utc_iso(issued_s or 0)}
    for unknown in ("", "None", "7", "1.x", "-1.0", "."):
        with one.client.stream("GET", "/v1/events", headers={"Last-Event-ID": unknown}) as stream:
            listener = Listener(stream)
            one.client.delete(f"/v1/closures/{one.client.get('/v1/closures').json()['closures'][0]['id']}")
            one.client.post("/v1/closures", json={"source": first[0], "target": first[1]})
            assert listener.event("closures")["changes"]


def test_a_stream_without_news_is_kept_alive(one: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.1)
    with one.client.stream("GET", "/v1/events") as stream:
        listener = Listener(stream)
        assert [listener.until(": ") for _ in range(2)] == [": ping"] * 2


def test_a_listener_that_goes_away_is_forgotten(one: Running) -> None:
    events = one.server.frigate.state.frigate.events
    with one.connect() as raw:
        raw.sendall(f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n{one.authorization}\r\n".encode())
        wait_for(lambda: events.listeners == 1)
    wait_for(lambda: events.listeners == 0)


def test_the_stream_of_a_revoked_token_ends_and_no_other(one: Running) -> None:
    token = make_token(one.service.store, "Ana", "read", 0)
    headers = {"Authorization": f"Bearer {token}"}
    wait_for(lambda: one.client.get("/v1/session", headers=headers).status_code == 200)
    ask = one.client.stream
    with ask("GET", "/v1/events", headers=headers) as revoked, ask("GET", "/v1/events") as other:
        listeners = [Listener(revoked), Listener(other)]
        one.service.store.revoke_token(token.split("_")[1], 1)
        # Ended, not cut. A forecast may have been announced before.
        assert {line.partition(":")[0] for line in listeners[0].lines} <= {"", "event", "data", "id"}
        assert "event: closures" not in listeners[0].lines
        assert one.client.get("/v1/events", headers=headers).status_code == 401
        source, target = next(iter(one.service.city.road_of))
        one.client.post("/v1/closures", json={"source": source, "target": target})
        assert listeners[1].event("closures") == {"changes": 1}


def test_one_token_has_a_share_of_the_streams(town: Town, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    with running(town, store, limits=Limits(streams=3, streams_each=1)) as one:
        token = make_token(store, "Ana", "read", 0)
        other = {"Authorization": f"Bearer {token}"}
        wait_for(lambda: one.client.get("/v1/session", headers=other).status_code == 200)
        with one.client.stream("GET", "/v1/events") as first:
            Listener(first)
            refused = one.client.get("/v1/events")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
            with one.client.stream("GET", "/v1/events", headers=other) as second:
                Listener(second)
        wait_for(lambda: not one.server.frigate.state.frigate.events.listeners)
        with one.client.stream("GET", "/v1/events") as again:
            Listener(again)
    store.close()


def test_answers_are_sent_at_once(one: Running) -> None:
    """Nagle's algorithm would hold back the body of each until the client has acknowledged its head."""
    assert one.client.get("/healthz").status_code == 200
    (connection,) = one.server.server_state.connections
    at_the_service = connection.transport.get_extra_info("socket")
    assert at_the_service.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_body_that_does_not_come_is_not_waited_for(town: Town, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    with running(town, store, limits=Limits(body_s=0.3)) as one, one.connect() as slow:
        slow.sendall(f"{HEAD}{one.authorization}\r\nnode,time".encode())
        assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")
    store.close()


@pytest.mark.parametrize("target", ["POST /v1/closures", "POST /v1/what-if", "POST /v1/readings", "PUT /v1/time"])
def test_strangers_are_refused_before_their_body_is_read(town: Town, tmp_path: Path, target: str) -> None:
    """No byte of the body is sent, so that an answer shows that none was waited for."""
    store = open_store(str(tmp_path / "store.db"))
    token = make_token(store, "Ana", "read" if target.endswith("readings") else "write", 0)  # not the right one
    with running(town, store, limits=Limits(rate=1)) as one:
        head = f"{target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n"
        assert [one.raw(f"{head}{of}\r\n") for of in ("", f"Authorization: Bearer {token}\r\n")] == [401, 403]
        assert [one.raw(f"{head}\r\n") for _ in range(2)][-1] == 429
    store.close()


@pytest.mark.parametrize("target", ["POST /v1/closures", "POST /v1/what-if", "PUT /v1/time"])
def test_only_readings_may_be_large(one: Running, target: str) -> None:
    head = f"{target} HTTP/1.1\r\nHost: localhost\r\n{one.authorization}"
    head += "Content-Type: application/json\r\nContent-Length: "
    assert one.raw(f"{head}{128 * 1024 + 1}\r\n\r\n") == 413
    assert one.raw(f"{head}2\r\n\r\n{{}}") == 422


def test_broken_clients_have_defined_answers(one: Running) -> None:
    with one.connect() as cut:
        cut.sendall(f"{HEAD}{one.authorization}\r\nnode,time,value\n".encode())
    with one.connect() as large:
        large.sendall(
            f"{HEAD}{one.authorization}\r\n".replace(": 1000", ": 1000000000").encode()
        )  # refused before it is sent
        assert large.recv(4096).startswith(b"HTTP/1.1 413 ")
    with one.connect() as nonsense:
        nonsense.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert nonsense.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert one.client.get("/readyz").status_code == 200
    assert one.service.ingest.counts.total() == 0


def test_a_connection_that_brings_nothing_is_closed(one: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frigate.serve.connections.IDLE_S", 0.1)
    for words in (b"", b"GET /healthz HTTP/1.1\r\nHost: loc"):
        with one.connect() as raw:
            raw.sendall(words)
            assert raw.recv(4096) == b""
    with one.connect() as raw:
        raw.sendall(
            f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n{one.authorization}\r\n".encode()
        )  # that is answered for ever
        head = raw.recv(4096)
        threading.Event().wait(0.5)
        raw.settimeout(0.1)
        assert head.startswith(b"HTTP/1.1 200") and one.server.frigate.state.frigate.events.listeners == 1


def test_connections_leave_descriptors_for_the_store(one: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Connection.most == resource.getrlimit(resource.RLIMIT_NOFILE)[0] - KEPT
    monkeypatch.setattr(Connection, "most", 3)
    one.client.close()
    wait_for(lambda: not one.server.server_state.connections)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(one.connect())
        wait_for(lambda: len(one.server.server_state.connections) == 3)
        with one.connect() as fourth:
            assert fourth.recv(4096).startswith(b"HTTP/1.1 503 ")
    wait_for(lambda: not one.server.server_state.connections)
    assert one.raw("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") == 200


def test_an_end_waits_for_readings_that_are_under_way(one: Running) -> None:
    """Whoever is answered finds the readings stored."""
    node = one.service.city.node_names[0]
    rows = [{"node": node, "time": one.time() - 3000 + k, "value": k} for k in range(50)]

    def send(k: int) -> int:
        try:
            return one.client.post("/v1/readings", json={"readings": [rows[k]]}).json()["accepted"] * (k + 1)
        except httpx2.TransportError:
            return 0

    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(send, range(50))
        one.server.should_exit = True
        stored = {k - 1 for k in answers if k}
    wait_for(lambda: not one._thread.is_alive())
    times_us = set(one.service.store.readings(0, 2**62, node)[1].tolist())
    assert {int(rows[k]["time"] * 1_000_000) for k in stored} <= times_us  # type: ignore[operator]


def test_readings_do_not_wait_for_long_answers(one: Running) -> None:
    """However many clients wait for a forecast, sensors are answered."""
    latest = one.service.latest
    threads = 60
    row = {"node": one.service.city.node_names[0], "time": one.time(), "value": 1}
    with ThreadPoolExecutor(threads) as pool:
        with latest._lock:  # as when the forecast is being prepared
            asked = [pool.submit(one.client.get, "/v1/nodes/34") for _ in range(threads)]
            wait_for(lambda: one.client.get("/healthz").status_code == 200)
            assert one.client.post("/v1/readings", json={"readings": [row]}).json()["accepted"] == 1
            assert one.client.get("/readyz").status_code == 200 and not any(each.done() for each in asked)
        assert {each.result().status_code for each in asked} == {200}


def test_two_operators_at_once_agree(one: Running) -> None:
    source, target = next(iter(one.service.city.road_of))

    def operate(k: int) -> int:
        if k % 2 == 0:
            return one.client.post("/v1/closures", json={"source": source, "target": target}).status_code
        there = one.client.get("/v1/closures").json()["closures"]
        return one.client.delete(f"/v1/closures/{there[0]['id']}").status_code if there else 200

    with ThreadPoolExecutor(6) as pool:
        statuses = set(pool.map(operate, range(60)))
    assert statuses <= {200, 201}
    there = one.client.get("/v1/closures").json()["closures"]
    assert len(there) <= 1
    assert one.client.post("/v1/closures", json={"source": source, "target": target}).status_code == 201 - len(there)


def test_a_clock_that_jumps_leaves_one_forecast_and_answers(one: Running) -> None:
    issued = one.client.get("/readyz").json()["issued_at"]
    one.time.now_s += 40 * STEP_S
    wait_for(lambda: one.client.get("/readyz").json()["issued_at"] > issued)
    one.time.now_s -= 40 * STEP_S
    wait_for(lambda: one.client.get("/readyz").json()["issued_at"] == issued)
    assert one.client.get("/v1/forecast.bin").status_code == 200


def test_a_forecast_that_cannot_be_read_does_not_end_the_events(one: Running) -> None:
    source, target = next(iter(one.service.city.road_of))
    with one.client.stream("GET", "/v1/events") as stream:
        listener = Listener(stream)
        later_s = int(one.time()) // STEP_S * STEP_S + STEP_S
        for body in (b"not compressed", zlib.compress(b"\0" * 100), pack({"closures": [1], "notices": []}, {})):
            one.service.store.add_forecast(later_s, made_s=0.0, network=one.service.city.version, body=body)
            while listener.event("forecast") != {"issued_at": utc_iso(later_s)}:  # that of the start may come first
                pass
            later_s += 1
        one.client.post("/v1/closures", json={"source": source, "target": target})
        assert listener.event("closures") == {"changes": 1}


def test_several_processes_on_one_postgresql_answer_alike(town: Town, postgres: PostgresServer) -> None:
    """A closure made at one is told by all; the forecast of the one with the clock is that of all."""
    url = postgres.database("several")
    stores = [open_store(url) for _ in range(3)]
    time = FakeTime(float(town.city.stream.times_s[FIRST]) + STEP_S + 20)
    with ExitStack() as stack:
        all_three = [stack.enter_context(running(town, store, time=time)) for store in stores]
        a, b, c = all_three
        source, target = next(iter(a.service.city.road_of))
        with b.client.stream("GET", "/v1/events") as at_b, c.client.stream("GET", "/v1/events") as at_c:
            listeners = [Listener(at_b), Listener(at_c)]
            made = a.client.post("/v1/closures", json={"source": source, "target": target}).json()
            assert [each.event("closures") for each in listeners] == [{"changes": 1}] * 2
            assert [each.client.get("/v1/closures").json()["closures"] for each in all_three] == [[made]] * 3
            time.now_s += STEP_S
            assert len({str(each.event("forecast")) for each in listeners}) == 1
        answers = {each.client.get("/v1/forecast.bin").content for each in all_three}
        assert len(answers) == 1
        assert sum(each.service.clock.state.holder for each in all_three) == 1
        assert sum(each.service.clock.state.forecasts for each in all_three) == 2
    for store in stores:
        store.close()


def test_a_store_that_goes_away_is_said_and_comes_back(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is acknowledged meanwhile; afterwards everything goes on by itself."""
    monkeypatch.setattr(postgres_store, "WAIT_S", 0.3)
    server = PostgresServer()
    store = open_store(server.database("frigate"))
    with running(town, store) as one:
        reading = {"node": one.service.city.node_names[0], "time": one.time(), "value": 1}
        server.stop()
        refused = one.client.post("/v1/readings", json={"readings": [reading]})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
        assert refused.json()["code"] == "unavailable" and server.url not in refused.text
        asked = [one.client.get(path) for path in ("/v1/forecast.bin", "/v1/closures", "/readyz")]
        assert [answer.status_code for answer in asked] == [503] * 3
        assert one.client.get("/healthz").status_code == 200
        server.start()
        wait_for(lambda: one.client.get("/readyz").status_code == 200)
        wait_for(lambda: one.client.post("/v1/readings", json={"readings": [reading]}).json().get("accepted") == 1)
        one.time.now_s += STEP_S
        wait_for(lambda: one.service.clock.state.forecasts == 2)
    store.close()
    server.remove()
