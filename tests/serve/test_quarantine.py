"""Readings far beyond what their sensor has read are kept, told, and not used until somebody releases them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frigate.calendar import utc_iso
from frigate.serve.auth import make_token
from frigate.serve.issued import read_issued
from frigate.serve.store import PERIOD_US, Reading, Store, open_store
from tests.support.service import STEP_S, Served, Town, serve_town


@pytest.fixture
def served(town: Town, tmp_path: Path) -> Iterator[Served]:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store) as served:
        yield served
    store.close()


def sensor(served: Served) -> tuple[str, float]:
    """A sensor that forecasts use, and the highest reading that is plausible of it."""
    city = served.service.city
    row = int(np.flatnonzero(city.sensors)[0])
    return city.node_names[row], city.ranges.limits[1][row]


def post(served: Served, node: str, value: float, *, back_s: int = STEP_S + 10) -> dict[str, Any]:
    reading = {"node": node, "time": served.time() - back_s, "value": value}
    return dict(served.client.post("/v1/readings", json={"readings": [reading]}).json())


def forecast(served: Served, snapshot: int) -> np.ndarray[Any, Any]:
    served.step(snapshot, readings=False)
    issued = read_issued(served.service.store, served.service.city)
    assert issued is not None
    return issued.forecast.values


def test_a_value_far_beyond_the_record_is_kept_and_told(served: Served) -> None:
    node, most = sensor(served)
    answer = post(served, node, most + 1)
    assert (answer["accepted"], answer["quarantined"], answer["refused"]) == (0, 1, 0)
    (row,) = answer["rows"]
    assert row["status"] == "quarantined" and f'node "{node}" has read 0 to' in row["reason"]
    listed = served.client.get("/v1/quarantine").json()
    time = utc_iso(served.time() - STEP_S - 10)
    assert listed == {"readings": [{"node": node, "time": time, "value": most + 1}], "counts": {node: 1}}
    assert served.client.get("/v1/quarantine", params={"node": node}).json() == listed
    assert served.client.get(f"/v1/history.json?node={node}").json()["values"][-1] != most + 1
    (health,) = [each for each in served.client.get("/v1/sensors").json()["sensors"] if each["node"] == node]
    assert health["quarantined"] == 1 and health["last_value"] != most + 1
    served.service.probe_store()
    told = served.client.get("/metrics").text.splitlines()
    assert 'frigate_readings_total{status="quarantined"} 1.0' in told and "frigate_quarantine_readings 1.0" in told
    assert f'frigate_quarantine_node_readings{{node="{node}"}} 1.0' in told


def test_the_record_of_the_sensor_decides_and_not_only_of_the_city(served: Served) -> None:
    node, most = sensor(served)
    assert post(served, node, most)["accepted"] == 1
    ranges = served.service.city.ranges
    row = served.service.city.row_of[node]
    assert most == pytest.approx(4 * max(ranges.most[row], ranges.usual[1]))
    busiest = int(np.argmax(ranges.most))
    quietest = int(np.argmin(ranges.most))
    assert ranges.limits[1][busiest] > ranges.limits[1][quietest]
    between = (ranges.limits[1][busiest] + ranges.limits[1][quietest]) / 2
    names = served.service.city.node_names
    assert post(served, names[busiest], between)["accepted"] == 1
    assert post(served, names[quietest], between)["quarantined"] == 1


def test_no_forecast_uses_it_until_it_is_released(served: Served) -> None:
    node, most = sensor(served)
    without = forecast(served, 37)
    assert post(served, node, 3 * most)["quarantined"] == 1
    served.service.store.withdraw_forecasts(0)
    np.testing.assert_array_equal(forecast(served, 37), without)
    body = {"node": node}
    assert served.client.post("/v1/quarantine/release", json=body).json() == {"node": node, "released": 1}
    assert served.client.get("/v1/quarantine").json() == {"readings": [], "counts": {}}
    served.service.store.withdraw_forecasts(0)
    assert np.abs(forecast(served, 37) - without).max() > 1
    assert served.client.post("/v1/quarantine/release", json=body).json()["released"] == 0
    assert post(served, node, 3 * most)["duplicate"] == 1  # sent once more
    assert post(served, node, 2 * most, back_s=1)["accepted"] == 1  # the road carries so much now
    assert post(served, node, 3 * most + 1, back_s=2)["quarantined"] == 1


def test_a_plausible_correction_takes_it_out_and_an_implausible_one_changes_nothing(served: Served) -> None:
    node, most = sensor(served)
    assert post(served, node, most * 2)["quarantined"] == post(served, node, most * 3)["quarantined"] == 1
    assert [each["value"] for each in served.client.get("/v1/quarantine").json()["readings"]] == [most * 3]
    assert post(served, node, 5)["accepted"] == 1
    assert served.client.get("/v1/quarantine").json()["readings"] == []
    assert post(served, node, most * 2)["quarantined"] == 1 and post(served, node, 5)["duplicate"] == 1
    assert served.client.get(f"/v1/history.json?node={node}").json()["values"][-1] == 5


def test_roles_that_may_see_and_release_quarantined_readings(served: Served) -> None:
    node, _ = sensor(served)
    expected = {"write": (403, 403), "read": (200, 403), "operate": (200, 200)}
    tokens = {role: make_token(served.service.store, role, role, 0) for role in expected}
    served.service.gate.refresh()
    for role, statuses in expected.items():
        headers = {"Authorization": f"Bearer {tokens[role]}"}
        seen = served.stranger.get("/v1/quarantine", headers=headers)
        released = served.stranger.post("/v1/quarantine/release", headers=headers, json={"node": node})
        assert (seen.status_code, released.status_code) == statuses
    for answer in (
        served.client.get("/v1/quarantine?node=nowhere"),
        served.client.post("/v1/quarantine/release", json={"node": "nowhere"}),
    ):
        assert answer.status_code == 404 and "no node" in answer.json()["detail"]


def test_releases_are_known_to_other_processes(served: Served, town: Town) -> None:
    node, most = sensor(served)
    assert post(served, node, 3 * most)["quarantined"] == 1
    served.service.store.release(node, 0)  # by another process
    assert post(served, node, 2 * most, back_s=1)["quarantined"] == 1
    served.service.probe_store()
    assert post(served, node, 2 * most, back_s=2)["accepted"] == 1


def test_quarantine_is_kept_by_node_and_time_and_forgotten_like_readings(store: Store) -> None:
    readings = [Reading(node, time_us, 9.0) for node in "BA" for time_us in (PERIOD_US, 2 * PERIOD_US)]
    assert store.add_readings(readings, 0.0, implausible=range(4)) == ["quarantined"] * 4
    assert store.quarantined(most=9) == sorted(readings) and store.readings(0, 10**12)[0] == []
    assert store.quarantined(after=("A", 2 * PERIOD_US), most=1) == [Reading("B", PERIOD_US, 9.0)]
    assert store.reading_changes(0, 10**12) == {}
    assert store.release("A", 0.0) == 2 and store.released() == {"A": (0.0, 9.0)}
    assert store.reading_changes(0, 10**12) == {1: 1, 2: 1}
    assert store.forget_readings(2 * PERIOD_US // 1_000_000) == 2
    assert store.quarantined(most=9) == [Reading("B", 2 * PERIOD_US, 9.0)] and store.count_quarantined() == {"B": 1}
