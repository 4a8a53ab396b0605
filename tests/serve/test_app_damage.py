"""Times that no calendar has are refused where they enter, and no row of the store breaks a read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frigate.serve.packing import pack
from frigate.serve.replay_time import FACT, ReplayTime
from frigate.serve.store import LAST_S, open_store
from tests.support.service import STEP_S, Served, Town, serve_town

TOO_FAR = ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "2200-01-01T00:00:01Z", "1969-12-31T23:59:59Z"]


@pytest.fixture
def served(town: Town, tmp_path: Path) -> Iterator[Served]:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store) as served:
        yield served
    store.close()


@pytest.mark.parametrize("time", TOO_FAR)
def test_a_time_that_no_calendar_has_is_refused_and_not_stored(served: Served, time: str) -> None:
    (source, target) = served.roads()[0]
    node = served.service.city.node_names[0]
    road = {"source": source, "target": target}
    client = served.client
    answers = [
        *(client.post("/v1/closures", json={**road, name: time}) for name in ("begin", "end")),
        *(client.get("/v1/history.json", params={"node": node, name: time}) for name in ("begin", "end")),
        client.get("/v1/forecast.json", params={"issued_at": time}),
        client.put("/v1/time", json={"time": time}),
    ]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [(422, "invalid")] * 6
    assert all("between 1970 and 2200" in each.json()["detail"] for each in answers)
    sent = client.post("/v1/readings", json={"readings": [{"node": node, "time": time, "value": 1}]})
    assert sent.json()["refused"] == 1
    assert client.get("/v1/closures?ended=true").json() == {"closures": []}


def test_the_last_time_of_the_calendar_can_be_named_and_read_again(served: Served) -> None:
    source, target = served.roads()[0]
    closed = served.client.post(
        "/v1/closures", json={"source": source, "target": target, "end": "2200-01-01T00:00:00Z"}
    )
    assert closed.status_code == 201 and served.client.get("/v1/closures").json()["closures"] == [closed.json()]
    served.step(37)
    assert served.client.get("/v1/forecast.bin").status_code == 200


def test_no_row_of_the_store_breaks_a_read(served: Served) -> None:
    """Rows as an earlier version, another program or a bad disk may have left them."""
    store = served.service.store
    city = served.service.city
    (source, target), other = served.roads()[:2]
    issued_s = int(served.time() // STEP_S * STEP_S)
    values = np.zeros((city.horizon, city.network.num_nodes), np.float32)
    no_notices = pack({"closures": []}, {"values": values})
    misshapen = pack({"closures": [], "notices": []}, {"values": values.T})
    one: dict[str, np.ndarray[Any, Any]] = {
        "error": np.ones(1, np.float32),
        "count": np.ones(1, np.uint32),
        "steps": np.ones((1, 3)),
    }
    nowhere = pack({}, {"row": np.array([city.network.num_nodes], np.uint32), **one})
    uneven = pack({}, {"row": np.zeros(2, np.uint32), **one, "count": np.ones(3, np.uint32)})
    with store.transaction(write=True) as sql:
        sql.run("INSERT INTO closures VALUES ('aa', ?, ?, 0, ?, 0)", source, target, 10**15)
        sql.run("INSERT INTO closures VALUES ('bb', ?, ?, ?, NULL, 0)", *other, -(10**15))
        sql.run("INSERT INTO closures VALUES ('cc', 'no such', 'road', 0, NULL, 0)")
        sql.run("INSERT INTO readings VALUES (?, ?, 1, 0)", 9 * 10**18, city.node_names[0])
        for back, body in ((1, b"not compressed"), (2, pack({}, {})), (3, misshapen), (4, no_notices)):
            sql.run("INSERT INTO forecasts VALUES (?, 0, ?, ?)", issued_s - back * STEP_S, city.version, body)
        for back, body in ((4, b"not compressed"), (5, pack({}, {})), (6, nowhere), (7, uneven)):
            sql.run("INSERT INTO scores VALUES (?, ?, ?)", issued_s - back * STEP_S, city.version, body)
    served.step(37)
    paths = [
        "/v1/closures",
        "/v1/closures?ended=true",
        "/v1/forecast.bin",
        "/v1/forecast.json",
        "/v1/flows.json",
        "/v1/accuracy",
        "/v1/sensors",
        "/readyz",
        "/metrics",
        f"/v1/nodes/{city.node_names[0]}",
        f"/v1/history.json?node={city.node_names[0]}",
    ]
    assert {path: served.client.get(path).status_code for path in paths} == dict.fromkeys(paths, 200)
    listed = {each["id"]: each for each in served.client.get("/v1/closures").json()["closures"]}
    assert (listed["aa"]["end"], listed["bb"]["begin"]) == ("2200-01-01T00:00:00Z", "1970-01-01T00:00:00Z")
    answer = served.client.get("/v1/forecast.json", params={"issued_at": issued_s - STEP_S})
    assert answer.status_code == 404
    assert served.client.delete("/v1/closures/aa").json()["state"] == "ended"


def test_a_time_of_a_replay_that_no_calendar_has_is_cut(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    store.set_fact(FACT, "1e18")
    assert ReplayTime(store, 0.0)() == LAST_S
    store.close()
