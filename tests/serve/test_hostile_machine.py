"""A hostile machine: processes killed and stopped, clocks that jump, full disks, damaged rows (`make test-hostile`).

All of it happens to one service, and after each it must be as before: `tests.support.siege`.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from frigate.serve.auth import make_token
from frigate.serve.packing import pack
from frigate.serve.store import Reading, open_store
from tests.support.mqtt import KIND, PASSWORD, USER, MqttBroker
from tests.support.service import Town
from tests.support.service_process import until
from tests.support.siege import STEP_S, Siege

pytestmark = [pytest.mark.slow, pytest.mark.hostile]
DAY_S = 86_400
MESSAGES, ROWS = 300, 1_000  # more than may wait for the store at once


def test_power_cuts(siege: Siege, draws: random.Random) -> None:
    for _ in range(6):
        siege.await_forecast()
        time.sleep(draws.uniform(0, 2 * STEP_S))
        siege.service.kill()
        siege.service = siege.serve()
        siege.check_stored()


def test_a_restart_in_the_middle_of_requests(siege: Siege) -> None:
    for _ in range(3):
        before = len(siege.sender.acknowledged)
        until(lambda before=before: len(siege.sender.acknowledged) > before, "readings come")  # type: ignore[misc]
        siege.service.terminate()
        siege.service = siege.serve()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_holder_of_the_clock_that_stops(siege: Siege, how: signal.Signals) -> None:
    """Another process goes on with the forecasts. The first, if it comes back, leaves them to it."""
    first, second = siege.service, siege.serve()
    until(lambda: first.is_gone() or siege.service_metric("frigate_clock_holder") == 1, "the first holds the clock")
    os.kill(first.pid, how)
    siege.service = second
    until(lambda: siege.service_metric("frigate_clock_holder") == 1, "the second has taken the clock")
    siege.await_forecast()
    if how is signal.SIGKILL:
        return
    os.kill(first.pid, signal.SIGCONT)
    siege.service = first
    until(lambda: siege.service_metric("frigate_clock_holder") == 0, "it learns that it does not hold it any more")
    siege.await_forecast()
    second.terminate()
    until(lambda: siege.service_metric("frigate_clock_holder") == 1, "the first has it again")


def test_a_clock_that_jumps_for_seconds(siege: Siege, draws: random.Random) -> None:
    """Days ahead and back: the service goes on by its own time, and forgets nothing."""
    source, target = next(iter(siege.city.road_of))
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + DAY_S))
    closed = siege.ask("POST", "/v1/closures", json={"source": source, "target": target, "end": ends}).json()
    with closing(open_store(str(siege.store))) as store:
        token = make_token(store, "for a month", "read", int(time.time()), days=30)
    for days in (40, -40, *(draws.uniform(-1000, 10_000) for _ in range(3))):
        siege.clock.set_ahead(days * DAY_S)
        time.sleep(3)
        guest = siege.ask("GET", "/v1/closures", role=None, headers={"Authorization": f"Bearer {token}"})
        assert guest.status_code == 200, f"{days:.0f} days: {guest.text}"
        assert [each["state"] for each in guest.json()["closures"]] == ["active"]
        for path in ("forecast.bin", "forecast.json", "sensors", "accuracy"):
            assert siege.ask("GET", f"/v1/{path}").status_code == 200
        assert siege.ask("GET", "/readyz").status_code in (200, 503)
        siege.clock.set_ahead(0)
        siege.await_forecast()
    assert siege.ask("DELETE", f"/v1/closures/{closed['id']}").status_code == 200


def test_a_clock_that_is_wrong_for_minutes(siege: Siege) -> None:
    """Long enough to be believed: then there are forecasts of another day, and they are withdrawn."""
    siege.clock.set_ahead(40 * DAY_S)
    until(lambda: (siege.latest() or 0) > time.time() + 30 * DAY_S, "the new time is believed")
    assert siege.ask("GET", "/v1/forecast.bin").status_code == 200
    siege.clock.set_ahead(0)
    until(lambda: (siege.latest() or 0) < time.time() + DAY_S, "the old time is believed again")


def test_a_full_disk(siege: Siege) -> None:
    for _ in range(3):
        resource.prlimit(siege.service.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        until(lambda: siege.ask("GET", "/readyz").status_code == 503, "it says that it is not ready")
        body = {"readings": [{"node": siege.node(), "time": time.time(), "value": 1}]}
        assert siege.ask("POST", "/v1/readings", json=body).status_code == 503
        source, target = next(iter(siege.city.road_of))
        assert siege.ask("POST", "/v1/closures", json={"source": source, "target": target}).status_code == 503
        for path in ("forecast.bin", "closures", "sensors"):
            assert siege.ask("GET", f"/v1/{path}").status_code == 200
        resource.prlimit(siege.service.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        siege.await_forecast()


def test_damaged_rows(siege: Siege, draws: random.Random) -> None:
    """As a bad disk, an older version or a curious hand leaves them."""
    now_s = int(time.time())
    source, target = next(iter(siege.city.road_of))
    network = siege.city.version
    nowhere = {"row": [10**6], "error": [1.0], "count": [1], "steps": [[1.0, 1.0, 1.0]]}
    kinds = {"row": np.uint32, "error": np.float32, "count": np.uint32, "steps": np.float64}
    scores = pack({}, {name: np.array(value, kinds[name]) for name, value in nowhere.items()})
    bodies = [b"", b"\0", draws.randbytes(3000), pack({}, {}), pack({"closures": 1, "notices": 2}, {}), scores]
    times = [0, -1, 2**62, -(2**62), 253_402_300_800, now_s - 5, now_s, now_s + 5]
    rows: list[tuple[str, tuple[object, ...]]] = [
        *(("INSERT OR REPLACE INTO scores VALUES (?, ?, ?)", (at - k, network, body))
          for at in times[5:] for k, body in enumerate(bodies)),
        *(("INSERT INTO closures VALUES (?, ?, ?, ?, ?, ?)", (f"bad{k}", source, target, at, None if k % 2 else at, 0))
          for k, at in enumerate(times)),
        ("INSERT INTO closures VALUES ('bad8', 'nowhere', 'neither', 0, NULL, 0)", ()),
        ("INSERT INTO readings VALUES (?, 'nowhere', 1, 0)", (now_s * 1_000_000,)),
        *(("INSERT OR REPLACE INTO readings VALUES (?, ?, ?, 0)", (at * 1_000_000 % 2**63, siege.sensors[1], value))
          for at in (0, now_s - 3, now_s - 4, 7_258_118_401) for value in (-1.0, 1e300, float("inf"))),
        ("INSERT OR REPLACE INTO reading_changes VALUES (-5, -5)", ()),
        ("INSERT INTO tokens (id, name, role, hash, created_s) VALUES ('zz', ?, 'king', ?, 0)", ("\0\n", b"")),
        ("INSERT OR REPLACE INTO facts VALUES ('written', '')", ()),
    ]  # fmt: skip
    with closing(sqlite3.connect(siege.store, timeout=60)) as database:
        for text, values in rows:
            database.execute(text, values)
        database.commit()
    for path in _READS:
        answer = siege.ask("GET", path.format(node=siege.sensors[1]))
        assert answer.status_code == 200, f"{path}: {answer.text[:300]}"
        assert "json" not in answer.headers["content-type"] or answer.json() is not None
    for body in bodies[:-1]:
        with closing(sqlite3.connect(siege.store, timeout=60)) as database:
            database.execute("UPDATE forecasts SET body = ? WHERE issued_s > ?", (body, now_s - 4 * STEP_S))
            database.commit()
        siege.await_forecast()
    with closing(sqlite3.connect(siege.store, timeout=60)) as database:
        database.execute("DELETE FROM closures WHERE id LIKE 'bad%'")
        database.commit()


_READS = (
    "/v1/closures", "/v1/closures?ended=true", "/v1/sensors", "/v1/accuracy", "/v1/history.json?node={node}",
    "/v1/history.csv?node={node}", "/v1/history.json?node={node}&begin=1970-01-01T00:00:00Z&end=1970-01-02T00:00:00Z",
    "/v1/forecast.bin", "/v1/forecast.json", "/v1/flows.json", "/v1/nodes/{node}", "/metrics", "/v1/network.bin",
)  # fmt: skip


def test_an_mqtt_backlog(town_under_siege: Town, draws: random.Random, tmp_path: Path) -> None:
    """What sensors published while the service was down is more than it holds in memory."""
    if KIND != "Mosquitto":
        pytest.skip("no Mosquitto on the path: amqtt keeps no backlog")
    import aiomqtt

    broker = MqttBroker(tmp_path)
    broker.start()
    siege = Siege(tmp_path, town_under_siege, "--mqtt", broker.url("traffic", "siege"))
    try:
        until(lambda: siege.service_metric("frigate_mqtt_connected") == 1, "it has subscribed")
        siege.service.kill()
        begin_us = int((time.time() - 2 * DAY_S) * 1e6)
        node = siege.sensors[2]

        async def publish() -> None:
            async with aiomqtt.Client("127.0.0.1", broker.port, username=USER, password=PASSWORD) as client:
                for k in range(MESSAGES):
                    rows = (f"{node},{(begin_us + k * ROWS + n) / 1e6:.6f},{n % 30}" for n in range(ROWS))
                    await client.publish("traffic", "\n".join(["node,time,value", *rows]).encode(), qos=1)
                    if k % 30 == 0:
                        await client.publish("traffic", draws.randbytes(draws.choice([0, 10, 3_000_000])), qos=1)

        asyncio.run(publish())
        siege.service = siege.serve()
        expected = {(node, begin_us + k): float(k % ROWS % 30) for k in range(MESSAGES * ROWS)}
        until(lambda: _count(siege, node, begin_us) == len(expected), "the backlog has drained")
        siege.sender.acknowledged |= expected
        siege.check("an MQTT backlog")
    finally:
        siege.close()
        broker.stop()
    print("", *siege.told, sep="\n")


def _count(siege: Siege, node: str, begin_us: int) -> int:
    with closing(sqlite3.connect(siege.store, timeout=60)) as database:
        text = "SELECT COUNT(*) FROM readings WHERE node = ? AND time_us >= ? AND time_us < ?"
        (found,) = database.execute(text, (node, begin_us, begin_us + MESSAGES * ROWS)).fetchone()
    return int(found)


def test_a_store_that_another_holds(siege: Siege) -> None:
    """A backup, or a hand with a transaction that it forgot: the service waits, says so, and goes on."""
    with closing(sqlite3.connect(siege.store, timeout=60, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        body = {"readings": [{"node": siege.node(), "time": time.time(), "value": 1}]}
        assert siege.ask("POST", "/v1/readings", json=body).status_code == 503
        assert siege.ask("GET", "/v1/closures").status_code == 200
        database.execute("ROLLBACK")
    with closing(open_store(str(siege.store))) as store:
        store.add_readings([Reading(siege.node(), int(time.time() * 1e6), 1.0)], time.time())
