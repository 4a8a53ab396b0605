"""The API as the map page and other clients use it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from frigate.calendar import utc_iso
from frigate.pages.wire import decode
from frigate.serve.issued import read_issued
from frigate.serve.store import Reading, open_store
from tests.support.service import HORIZON, PAST, STEP_S, Served, Town, serve_town

FIRST = 36


@pytest.fixture(scope="module")
def shared(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests that change nothing."""
    store = open_store(str(tmp_path_factory.mktemp("served") / "store.db"))
    with serve_town(town, store, first=FIRST - 5) as served:
        for snapshot in range(FIRST - 4, FIRST + 1):
            served.step(snapshot)
        yield served
    store.close()


@pytest.fixture
def served(town: Town, tmp_path: Path) -> Iterator[Served]:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store, first=FIRST) as served:
        yield served
    store.close()


def get(served: Served, path: str, **options: Any) -> Any:
    answer = served.client.get(path, **options)
    assert answer.status_code == 200, answer.text
    return answer


def test_the_network_is_sent_once_and_not_again(shared: Served) -> None:
    answer = get(shared, "/v1/network.bin")
    meta, arrays = decode(answer.content)
    city = shared.service.city
    assert meta["node_ids"] == city.network.node_ids.tolist() and meta["has_demand"]
    assert (meta["horizon"], meta["step_seconds"], meta["name"]) == (HORIZON, STEP_S, city.name)
    np.testing.assert_array_equal(arrays["sensor"], city.sensors)
    again = shared.client.get("/v1/network.bin", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304 and not again.content
    features = get(shared, "/v1/network.geojson").json()["features"]
    assert len(features) == city.network.num_nodes + city.network.num_edges
    assert features[-1]["geometry"]["type"] == "LineString"


def test_the_version_is_that_of_the_rows(shared: Served) -> None:
    """Whatever is stored or sent by row has it; names and tiles may change without."""
    city = shared.service.city
    network = city.network
    same = replace(city, name="Elsewhere", tiles={"basemap": "https://tiles.example/{z}/{x}/{y}.png"})
    assert same.version == city.version and same.digest != city.digest
    others = (
        replace(city, network=replace(network, lon=network.lon + 1e-5)),
        replace(city, network=network.with_roads(network.edges.take(np.arange(network.num_edges)[::-1]))),
        replace(city, sensors=~city.sensors),
        replace(city, horizon=city.horizon + 1),
    )
    assert len({each.version for each in (city, *others)}) == 5
    store = shared.service.store
    assert read_issued(store, city) is not None and all(read_issued(store, each) is None for each in others)


def test_the_map_gets_an_hour_back_and_an_hour_ahead(shared: Served) -> None:
    meta, arrays = decode(get(shared, "/v1/forecast.bin").content)
    city, stream = shared.service.city, shared.town.city.stream
    issued_s = int(stream.times_s[FIRST]) + STEP_S
    assert meta["issued_at"] == utc_iso(issued_s) and not meta["stale"] and meta["closures"] == []
    assert meta["past_times"] == [utc_iso(t) for t in stream.times_s[FIRST - PAST + 1 : FIRST + 1].tolist()]
    assert meta["times"] == [utc_iso(issued_s + k * STEP_S) for k in range(HORIZON)]
    assert meta["version"] == decode(get(shared, "/v1/network.bin").content)[0]["version"]
    np.testing.assert_allclose(arrays["past"], stream.values[FIRST - PAST + 1 : FIRST + 1], rtol=1e-6)
    assert arrays["forecast"].shape == (HORIZON, city.network.num_nodes)
    assert arrays["road_past"].shape == (PAST, city.network.num_edges)
    assert arrays["road_forecast"].shape == (HORIZON, city.network.num_edges)
    assert np.isfinite(arrays["road_past"]).all() and not arrays["absent"].any()


def test_past_flows_come_from_readings_and_else_from_what_had_been_forecast(served: Served) -> None:
    """On roads between nodes without a reading too, once there are forecasts to tell."""
    names = served.service.city.node_names
    sensors = served.service.city.sensors
    used = {name for name, sensor in zip(names, sensors.tolist(), strict=True) if sensor}
    for snapshot in range(FIRST + 1, FIRST + PAST + 2):
        rows = [row for row in served.town.reading_rows(snapshot, snapshot + 1) if row.node in used]
        served.service.store.add_readings(rows, 0)
        served.step(snapshot, readings=False)
    arrays = decode(get(served, "/v1/forecast.bin").content)[1]
    np.testing.assert_array_equal(np.isfinite(arrays["past"]), np.tile(sensors, (PAST, 1)))
    assert np.isfinite(arrays["road_past"]).all() and (arrays["road_past"] > 0).any(0).mean() > 0.5


def test_a_forecast_is_the_same_in_every_form(shared: Served) -> None:
    city = shared.service.city
    values = decode(get(shared, "/v1/forecast.bin").content)[1]["forecast"]
    document = get(shared, "/v1/forecast.json").json()
    np.testing.assert_allclose([node["values"] for node in document["nodes"]], values.T, rtol=1e-6)
    table = pl.read_csv(io.BytesIO(get(shared, "/v1/forecast.csv").content))
    np.testing.assert_allclose(table["value"].to_numpy().reshape(-1, HORIZON), values.T, rtol=1e-6)
    assert pl.read_ipc_stream(io.BytesIO(get(shared, "/v1/forecast.arrow").content)).shape == table.shape
    some = city.node_names[7], city.node_names[3]
    two = get(shared, "/v1/forecast.json", params={"node": some}).json()
    assert [str(node["node_id"]) for node in two["nodes"]] == list(some)
    lon = city.network.lon
    lat = city.network.lat
    west = float(np.median(lon))
    north = float(np.median(lat))
    box = f"{west:.6f},{lat.min() - 1:.6f},{lon.max() + 1:.6f},{north:.6f}"
    inside = get(shared, "/v1/forecast.json", params={"box": box}).json()["nodes"]
    assert len(inside) == int(((lon >= round(west, 6)) & (lat <= round(north, 6))).sum()) > 0
    earlier = get(shared, "/v1/forecast.json", params={"issued_at": utc_iso(shared.time() // STEP_S * STEP_S - STEP_S)})
    assert earlier.json()["nodes"] != document["nodes"]


def test_the_flow_on_roads_is_a_table_too(shared: Served) -> None:
    flows = decode(get(shared, "/v1/forecast.bin").content)[1]["road_forecast"]
    document = get(shared, "/v1/flows.json").json()
    np.testing.assert_allclose([road["values"] for road in document["roads"]], flows.T, rtol=1e-6)
    assert (document["roads"][3]["source"], document["roads"][3]["target"]) == shared.roads()[3]
    table = pl.read_ipc_stream(io.BytesIO(get(shared, "/v1/flows.arrow").content))
    np.testing.assert_allclose(table["value"].to_numpy().reshape(-1, HORIZON), flows.T)


def test_a_node_has_its_past_its_forecast_and_its_supports(shared: Served) -> None:
    city = shared.service.city
    inferred = int(np.flatnonzero(~city.sensors)[0])
    values = decode(get(shared, "/v1/forecast.bin").content)[1]
    node = get(shared, f"/v1/nodes/{city.node_names[inferred]}").json()
    assert not node["sensor"] and len(node["main_sensors"]) > 2
    assert all(city.sensors[city.row_of[each["node"]]] for each in node["main_sensors"])
    assert all(0 < each["distance_m"] < 10_000 for each in node["main_sensors"])
    assert [row["value"] for row in node["forecast"]] == pytest.approx(values["forecast"][:, inferred].tolist(), 1e-6)
    assert [row["value"] for row in node["history"]] == pytest.approx(values["past"][:, inferred].tolist(), 1e-6)
    before = read_issued(shared.service.store, city, int(shared.town.city.stream.times_s[FIRST]))
    assert before is not None and node["issued"][-1]["time"] == utc_iso(before.issued_s)
    assert node["issued"][-1]["value"] is not None and node["history"][-1]["time"] == node["issued"][-1]["time"]


def test_what_if_answers_the_page_and_changes_nothing(shared: Served) -> None:
    road = _busy_road(shared)
    before = get(shared, "/v1/forecast.bin").content
    answer = shared.client.post("/v1/what-if", json={"close": [road]})
    meta, arrays = decode(answer.content)
    row = shared.service.city.road_of[road]
    assert arrays["road_before"][:, row].min() > 0 == arrays["road_after"][:, row].max()
    change = np.abs(arrays["after"].mean(0) - arrays["before"].mean(0))
    assert 0 < len(meta["largest"]) <= 10
    assert meta["largest"][0]["node"] == shared.service.city.node_names[int(np.argmax(change))]
    short = shared.client.post("/v1/what-if", json={"close": [road]}, headers={"Accept": "application/json"}).json()
    assert short["largest"] == meta["largest"]
    assert get(shared, "/v1/forecast.bin").content == before
    assert get(shared, "/v1/closures").json() == {"closures": []}


def _busy_road(served: Served) -> tuple[str, str]:
    flows = decode(get(served, "/v1/forecast.bin").content)[1]["road_forecast"]
    return served.roads()[int(np.argmax(flows.min(0)))]


def test_trips_through_a_road(shared: Served) -> None:
    source, target = _busy_road(shared)
    trips = get(shared, f"/v1/trips?source={source}&target={target}").json()
    assert trips["vehicles_per_hour"] > 0
    for ends in (trips["from"], trips["to"]):
        assert 0 < sum(end["share"] for end in ends) <= 1.001 and {"node", "lon", "lat", "share"} == ends[0].keys()
    assert 0 < len(trips["movements"]) <= trips["movements_in_all"]
    daily = [movement["vehicles_per_day"] for movement in trips["movements"]]
    assert daily == sorted(daily, reverse=True) and trips["vehicles_per_day"] >= daily[0]


def test_trips_come_with_their_flow_on_every_road(shared: Served) -> None:
    source, target = _busy_road(shared)
    asked = f"source={source}&target={target}"
    meta, arrays = decode(get(shared, f"/v1/trips.bin?{asked}").content)
    assert meta == get(shared, f"/v1/trips?{asked}").json()
    row = shared.service.city.road_of[source, target]
    flow = arrays["road_flow"]
    assert flow[row] == pytest.approx(meta["vehicles_per_hour"], rel=1e-3) == flow.max()
    assert (flow >= 0).all() and np.median(flow) < flow[row] / 2
    assert len(arrays["node_flow"]) == shared.service.city.network.num_nodes


def test_accuracy_and_sensors(shared: Served) -> None:
    accuracy = get(shared, "/v1/accuracy").json()
    assert accuracy["overall"]["count"] > 0 and len(accuracy["by_step"]) == HORIZON
    sensors = get(shared, "/v1/sensors").json()
    assert sensors["counts"]["ok"] == len(sensors["sensors"]) == 100


def test_history_is_what_was_read(shared: Served) -> None:
    node = shared.service.city.node_names[5]
    history = get(shared, "/v1/history.json", params={"node": node}).json()
    rows = [each for each in shared.town.reading_rows(FIRST - 5, FIRST + 1) if each.node == node]
    assert history["values"] == [each.value for each in rows]
    table = pl.read_csv(io.BytesIO(get(shared, "/v1/history.csv", params={"node": node}).content))
    assert table.columns == ["time", "node_id", "value"] and len(table) == len(rows)


def history_in_all_forms(served: Served, node: str, **options: str) -> list[list[tuple[str, float]]]:
    params = {"node": node, "begin": "2024-03-02T00:00:00Z", "end": "2024-03-03T00:00:00Z"}
    bodies = [
        get(served, f"/v1/history.{form}", params=params, headers={"Accept-Encoding": encoding})
        for form in ("json", "csv", "arrow")
        for encoding in ("identity", "gzip")
    ]
    found = []
    for answer in bodies[:2]:
        document = answer.json()
        found.append(list(zip(document["times"], document["values"], strict=True)))
    tables = [pl.read_csv(io.BytesIO(answer.content)) for answer in bodies[2:4]]
    tables += [
        pl.read_ipc_stream(io.BytesIO(answer.content)).with_columns(pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
        for answer in bodies[4:]
    ]
    for table in tables:
        assert table.columns == ["time", "node_id", "value"] and set(table["node_id"].cast(str)) <= {node}
        found.append(list(zip(table["time"].to_list(), table["value"].to_list(), strict=True)))
    return found


@pytest.mark.parametrize("count", [0, 1, 6, 7, 12, 13])
def test_a_long_history_is_sent_in_parts(served: Served, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Six readings at a time: the parts make one answer in every form, and the whole is never held at once."""
    begin_s = 1_709_337_600  # 2024-03-02, before the record
    node = served.service.city.node_names[0]
    expected = [(utc_iso(begin_s + k), k / 2) for k in range(count)]
    served.service.store.add_readings([Reading(node, (begin_s + k) * 1_000_000, k / 2) for k in range(count)], 0)
    monkeypatch.setattr("frigate.serve.store.base.PART_ROWS", 6)
    monkeypatch.setattr("frigate.serve.api.readings.VALUES_AT_ONCE", 6)
    whole: list[int] = []
    monkeypatch.setattr(served.service.store, "readings", lambda *_: whole.append(1))
    assert history_in_all_forms(served, node) == [expected] * 6 and not whole


def test_a_long_history_of_a_store_that_is_gone_is_an_error(served: Served) -> None:
    node = served.service.city.node_names[0]
    served.service.store.close()
    answer = served.client.get("/v1/history.csv", params={"node": node})
    assert answer.status_code == 503 and answer.json()["code"] == "unavailable"


def test_a_road_is_closed_for_everybody_and_opened_again(served: Served) -> None:
    source, target = road = _busy_road(served)
    made = served.client.post("/v1/closures", json={"source": source, "target": target})
    assert made.status_code == 201 and made.json()["state"] == "active"
    again = served.client.post("/v1/closures", json={"source": source, "target": target})
    assert again.status_code == 200 and again.json() == made.json()
    assert get(served, "/v1/closures").json() == {"closures": [made.json()]}
    assert decode(get(served, "/v1/forecast.bin").content)[0]["closures"] == [made.json()]
    served.step(FIRST + 1)
    row = served.service.city.road_of[road]
    assert decode(get(served, "/v1/forecast.bin").content)[1]["road_forecast"][:, row].max() == 0
    kept = served.client.post("/v1/what-if", json={"close": [road]}, headers={"Accept": "application/json"})
    assert kept.json()["largest"] == []  # it is closed already
    ended = served.client.delete(f"/v1/closures/{made.json()['id']}")
    assert ended.status_code == 200 and ended.json()["state"] == "ended"
    assert served.client.delete(f"/v1/closures/{made.json()['id']}").json() == ended.json()
    assert get(served, "/v1/closures").json() == {"closures": []}
    assert len(get(served, "/v1/closures?ended=true").json()["closures"]) == 1


def test_readings_are_answered_row_by_row(served: Served) -> None:
    city = served.service.city
    now = utc_iso(int(served.time()))
    a, b = city.node_names[:2]
    rows = [{"node": a, "time": now, "value": 3}, {"node": b, "time": now, "value": 4.5}]
    first = served.client.post("/v1/readings", json={"readings": [*rows, rows[0], rows[1] | {"value": 5}]})
    assert first.status_code == 200
    assert [row["status"] for row in first.json()["rows"]] == ["accepted", "accepted", "duplicate", "corrected"]
    assert first.json()["accepted"] == 2 and first.json()["refused"] == 0
    text = f"time,node_id,value\n{now},{a},3\n{now},{b},\n"
    second = served.client.post("/v1/readings", content=text, headers={"Content-Type": "text/csv"}).json()
    assert second["rows"] == [{"status": "duplicate"}, {"status": "refused", "reason": "value is missing"}]
    file = io.BytesIO()
    frame = pl.DataFrame({"node": [a], "time": [now], "value": [8.0]})
    frame.with_columns(pl.col("time").str.to_datetime("%+", time_zone="UTC")).write_ipc_stream(file)
    stream = {"Content-Type": "application/vnd.apache.arrow.stream"}
    assert served.client.post("/v1/readings", content=file.getvalue(), headers=stream).json()["corrected"] == 1


def test_health_and_metrics(served: Served) -> None:
    assert get(served, "/healthz").json() == {"status": "ok"}
    assert get(served, "/readyz").json() | {"issued_at": ""} == {
        "ready": True,
        "store": True,
        "writable": True,
        "issued_at": "",
        "stale": False,
        "network": True,
    }
    lines = get(served, "/metrics").text.splitlines()
    assert "frigate_forecasts_total 1.0" in lines and 'frigate_readings_total{status="accepted"} 0.0' in lines
    assert 'frigate_requests_total{method="GET",route="/healthz",status="200"} 1.0' in lines


def test_the_description_is_complete(shared: Served) -> None:
    """Every address says what it does, what it answers, and shows how the values look that it is sent."""
    described = get(shared, "/v1/openapi.json").json()
    operations = {
        f"{method} {path}": each for path, methods in described["paths"].items() for method, each in methods.items()
    }
    assert len(operations) == 28
    for name, operation in operations.items():
        assert len(operation["description"]) > 15 and operation["tags"], name
        (answer,) = [each for status, each in operation["responses"].items() if status == str(_success(operation))]
        assert "content" in answer or _success(operation) == 204, name
        for parameter in operation.get("parameters", []):
            shown = parameter.keys() | parameter["schema"].keys()
            assert shown & {"example", "examples", "enum", "description", "pattern"}, (name, parameter["name"])
        for body in operation.get("requestBody", {}).get("content", {}).values():
            assert any(word in json.dumps(body) for word in ("example", "$ref", "binary")), name
    assert all("503" in each["responses"] for name, each in operations.items() if name != "get /healthz")


def _success(operation: dict[str, Any]) -> int:
    return min(int(status) for status in operation["responses"] if status.startswith("2"))


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "nodes/nowhere", None, 404, 'no node "nowhere"'),
        ("GET", "nodes/100x", None, 404, 'Did you mean "100"?'),
        ("GET", "forecast.json?node=nowhere", None, 404, "no node"),
        ("GET", "forecast.json?node=34&box=7,49,8,50", None, 422, "either node or box"),
        ("GET", "forecast.json?box=7,50,8,49", None, 422, "south is greater than north"),
        ("GET", "forecast.json?box=7,49,8", None, 422, "query.box"),
        ("GET", "forecast.xml", None, 422, "path.form"),
        ("GET", "forecast.json?issued_at=2024-03-04T00:00:00Z", None, 404, "no forecast issued at 2024-03-04"),
        ("GET", "forecast.json?issued_at=2024-03-04T00:00:00", None, 422, "query.issued_at"),
        ("GET", "history.json?node=34&begin=2024-01-01T00:00:00Z&end=2024-02-02T00:00:00Z", None, 422, "31 days"),
        ("GET", "history.json?node=34&begin=2024-01-02T00:00:00Z&end=2024-01-01T00:00:00Z", None, 422, "before"),
        ("GET", "nodes/a%2Fb", None, 404, "no node"),
        ("GET", "trips?source=34", None, 422, "name a road by source and target"),
        ("GET", "trips.bin?node=34", None, 422, "only in a city on roads"),
        ("GET", "trips?source=34&target=1", None, 404, "no road from 34 to 1. Roads from 34 go to"),
        ("GET", "nothing", None, 404, "nothing here"),
        ("PUT", "closures", None, 405, "only GET, POST, HEAD"),
        ("PUT", "time", {"time": "2024-03-04T07:00:00Z"}, 409, "runs in real time. Start it with --replay"),
        ("POST", "what-if", {}, 422, "name a road to close or to add"),
        ("POST", "what-if", {"close": [["34"]]}, 422, "body.close.0.1"),
        ("POST", "what-if", {"close": [["34", "nowhere"]]}, 422, "no node"),
        ("POST", "what-if", {"close": [["34", "41"]] * 51}, 422, "body.close"),
        ("POST", "what-if", {"shut": []}, 422, "body.shut"),
        ("POST", "what-if", {"add": [["34", "41"]]}, 422, "the road from 34 to 41 already exists"),
        ("POST", "what-if", {"add": [["34", "34"]]}, 422, "or its ends are the same"),
        ("POST", "closures", {"source": "34", "target": "1"}, 422, "no road from 34 to 1"),
        ("POST", "closures", {"source": True, "target": "41"}, 422, "body.source"),
        ("POST", "closures", {"source": 34, "target": 41, "end": "2024-03-04T07:00:00Z"}, 422, "in the future"),
        ("POST", "closures", {"source": 34, "target": 41, "begin": "2024-03-03T08:00:00Z"}, 422, "more than a day ago"),
        (
            "POST",
            "closures",
            {"source": 34, "target": 41, "begin": "2025-03-03T08:00:00Z", "end": "2025-03-03T07:00:00Z"},
            422,
            "must be after begin",
        ),
        ("POST", "closures", {"source": 34, "target": 41, "end": "2030-01-01T00:00:00"}, 422, "body.end"),
        ("DELETE", "closures/abc", None, 404, "no such closure"),
        ("DELETE", "closures/xyz", None, 422, "path.closure_id"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused(
    shared: Served, method: str, path: str, body: Any, status: int, words: str
) -> None:
    answer = shared.client.request(method, f"/v1/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 50_000, b"\xff", b'{"close": [["\\ud800", "1"]]}', b"null"])
def test_broken_json_is_said(shared: Served, body: bytes) -> None:
    answer = shared.client.post("/v1/what-if", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422) and answer.json()["detail"]


def test_a_box_may_lie_across_the_date_line(shared: Served) -> None:
    west_of_it = get(shared, "/v1/forecast.json", params={"box": "6,-90,-170,90"}).json()["nodes"]
    assert len(west_of_it) == 100
    assert get(shared, "/v1/forecast.json", params={"box": "179,-90,-179,90"}).json()["nodes"] == []


def test_a_road_can_be_thought_of_that_is_not_there(shared: Served) -> None:
    city = shared.service.city
    a, b = next((a, b) for a in city.node_names for b in city.node_names if a != b and (a, b) not in city.road_of)
    answer = shared.client.post("/v1/what-if", json={"add": [[a, b]]}, headers={"Accept": "application/json"})
    assert answer.status_code == 200, answer.text


def test_before_the_first_forecast_there_is_none(town: Town, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store, first=None) as served:
        for path in ("/v1/forecast.bin", "/v1/forecast.json", "/v1/nodes/34", "/readyz"):
            answer = served.client.get(path)
            assert answer.status_code == 503 and answer.headers["retry-after"] == "5", path
        assert "no forecast yet" in served.client.get("/v1/forecast.bin").json()["detail"]
        assert get(served, "/v1/network.bin").content and get(served, "/v1/accuracy").json()["overall"]["count"] == 0
    store.close()


def test_an_old_forecast_is_called_so(served: Served) -> None:
    served.time.now_s += 2 * STEP_S + 1
    assert decode(get(served, "/v1/forecast.bin").content)[0]["stale"]
    assert get(served, "/v1/forecast.json").json()["stale"]
    assert not_ready(served) == {"stale": True}
    served.step(FIRST + 3)
    assert get(served, "/readyz").json()["ready"]


def not_ready(served: Served) -> dict[str, Any]:
    """What /readyz says is missing."""
    answer = served.client.get("/readyz")
    found = answer.json()
    assert answer.status_code == 503 and not found["ready"] and answer.headers["retry-after"]
    good = {"store": True, "writable": True, "stale": False, "network": True}
    return {name: found[name] for name, value in good.items() if found[name] != value}


def test_a_store_that_cannot_be_written_is_not_ready(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.service.probe_store()
    assert get(served, "/readyz").json()["ready"]
    monkeypatch.setattr("frigate.serve.store.sqlite.FREE_BYTES", 2**62)
    served.service.probe_store()
    assert not_ready(served) == {"writable": False} and get(served, "/v1/forecast.json").json()["nodes"]
    monkeypatch.undo()
    with served.service.store.transaction(write=True) as sql:
        sql.rows("PRAGMA query_only = ON")
    served.service.probe_store()
    assert not_ready(served) == {"writable": False}
    served.service.probe_store()  # with a new connection
    assert get(served, "/readyz").json()["ready"]


def test_a_forecast_of_another_network_is_not_ready_and_is_made_again(served: Served) -> None:
    """As after a start with a new run: the next step may be an hour away."""
    with served.service.store.transaction(write=True) as sql:
        sql.run("UPDATE forecasts SET network = 'another'")
    assert not_ready(served) == {"network": False}
    assert served.client.get("/v1/forecast.json").status_code == 503
    assert served.service.clock.turn() and not served.service.clock.turn()
    assert get(served, "/readyz").json()["ready"] and get(served, "/v1/forecast.json").json()["nodes"]
