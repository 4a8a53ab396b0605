"""Intervals of issued forecasts: any level, in every form, and the same as those of the forecast object."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from frigate.pages.wire import decode
from frigate.serve.issued import read_issued, store_issued
from frigate.serve.store import open_store
from tests.support.service import HORIZON, Served, Town, serve_town

FIRST = 36


@pytest.fixture(scope="module")
def shared(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests that change nothing."""
    store = open_store(str(tmp_path_factory.mktemp("served") / "store.db"))
    with serve_town(town, store, first=FIRST - 2) as served:
        for snapshot in range(FIRST - 1, FIRST + 1):
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


def band_of(served: Served, level: float) -> tuple[Any, Any]:
    """Of the map's answer."""
    meta, arrays = decode(get(served, "/v1/forecast.bin", params={"level": level}).content)
    assert meta["level"] == level
    return arrays["lower"], arrays["upper"]


def test_the_map_is_told_a_level_and_gets_the_band_of_each(shared: Served) -> None:
    assert decode(get(shared, "/v1/network.bin").content)[0]["level"] == shared.service.city.level == 90
    meta, arrays = decode(get(shared, "/v1/forecast.bin").content)
    assert meta["level"] is None and "lower" not in arrays
    bands = {level: band_of(shared, level) for level in (50, 80.5, 90)}
    for lower, upper in bands.values():
        assert lower.shape == upper.shape == arrays["forecast"].shape
        assert (lower <= np.rint(arrays["forecast"])).all() and (np.rint(arrays["forecast"]) <= upper).all()
        assert (lower == np.rint(lower)).all() and (lower >= 0).all() and np.isfinite(upper).all()
    widths = [float((upper - lower).mean()) for lower, upper in bands.values()]
    assert widths[0] < widths[1] < widths[2]
    live = shared.service.engine.live
    issued = shared.service.latest.get().issued
    same = live.with_band(issued.forecast, np.ones(issued.forecast.values.shape), 90)
    np.testing.assert_array_equal(bands[90][0], same.lower)
    np.testing.assert_array_equal(bands[90][1], same.upper)


def test_every_table_and_a_node_have_the_same_band(shared: Served) -> None:
    lower, upper = band_of(shared, 90)
    names = shared.service.city.node_names
    document = get(shared, "/v1/forecast.json", params={"level": 90}).json()
    assert document["level"] == 90
    np.testing.assert_array_equal([node["lower"] for node in document["nodes"]], lower.T)
    np.testing.assert_array_equal([node["upper"] for node in document["nodes"]], upper.T)
    table = pl.read_csv(io.BytesIO(get(shared, "/v1/forecast.csv", params={"level": 90}).content))
    np.testing.assert_array_equal(table["upper"].to_numpy().reshape(-1, HORIZON), upper.T)
    assert "upper" not in get(shared, "/v1/forecast.csv").text
    two = get(shared, "/v1/forecast.json", params={"level": 90, "node": [names[7], names[3]]}).json()["nodes"]
    assert [node["upper"] for node in two] == upper[:, [7, 3]].T.tolist()
    details = get(shared, f"/v1/nodes/{names[3]}", params={"level": 90}).json()
    assert details["level"] == 90 and [each["lower"] for each in details["forecast"]] == lower[:, 3].tolist()
    without = get(shared, f"/v1/nodes/{names[3]}").json()
    assert without["level"] is None and without["forecast"][0]["upper"] is None
    assert [each["value"] for each in without["forecast"]] == [each["value"] for each in details["forecast"]]


def test_a_what_if_has_a_band_before_and_after(served: Served) -> None:
    road = max(served.roads(), key=lambda road: served.service.latest.get().road_forecast[0][
        served.service.city.road_of[road]
    ])  # fmt: skip
    asked = {"close": [road]}
    meta, arrays = decode(served.client.post("/v1/what-if", params={"level": 90}, json=asked).content)
    lower, upper = band_of(served, 90)
    np.testing.assert_array_equal(arrays["lower_before"], lower)
    np.testing.assert_array_equal(arrays["upper_before"], upper)
    changed = np.abs(arrays["after"] - arrays["before"]).max(0) > 0.2 * arrays["before"].max(0) + 1
    assert changed.any() and (arrays["upper_after"] != upper)[:, changed].any()
    first = meta["largest"][0]
    row = served.service.city.row_of[first["node"]]
    assert first["upper"] == pytest.approx(float(arrays["upper_after"][:, row].mean()), abs=1e-3)
    plain = served.client.post("/v1/what-if", json=asked, headers={"Accept": "application/json"}).json()
    assert plain["level"] is None and plain["largest"][0]["upper"] is None
    # Closed for real, the forecast has the band that the question had.
    assert served.client.post("/v1/closures", json={"source": road[0], "target": road[1]}).status_code == 201
    served.step(FIRST + 1)
    issued = read_issued(served.service.store, served.service.city)
    assert issued is not None and issued.changes is not None and (issued.changes != 1).any()
    open_again = replace(issued, changes=None)
    engine = served.service.engine
    closed, usual = (engine.with_intervals(each, 90) for each in (issued, open_again))
    assert closed.upper is not None and usual.upper is not None and (closed.upper != usual.upper).any()
    np.testing.assert_array_equal(band_of(served, 90)[1], closed.upper)


def test_an_earlier_forecast_keeps_its_band(served: Served) -> None:
    issued = served.service.latest.get().issued
    asked = {"level": 90, "issued_at": "2024-01-01T00:00:00Z"}
    asked["issued_at"] = decode(get(served, "/v1/forecast.bin").content)[0]["issued_at"]
    before = get(served, "/v1/forecast.json", params=asked).json()["nodes"]
    served.step(FIRST + 1)
    assert served.service.latest.get().issued.issued_s > issued.issued_s
    assert get(served, "/v1/forecast.json", params=asked).json()["nodes"] == before


def test_a_forecast_of_another_run_has_no_band_and_says_so(served: Served) -> None:
    service = served.service
    issued = service.latest.get().issued
    other = replace(issued, forecast=replace(issued.forecast, at_s=issued.issued_s + 900), intervals="another")
    assert store_issued(service.store, service.city, other)
    document = get(served, "/v1/forecast.json", params={"level": 90}).json()
    assert document["nodes"][0]["lower"] == [None] * HORIZON and "another run" in document["notices"][-1]
    _, arrays = decode(get(served, "/v1/forecast.bin", params={"level": 90}).content)
    assert np.isnan(arrays["upper"]).all() and np.isfinite(arrays["forecast"]).any()


@pytest.mark.parametrize("level", ["0", "100", "-5", "0.9", "nan", "inf", "ninety", "99.999"])
def test_a_level_that_is_none_is_refused_with_a_reason(shared: Served, level: str) -> None:
    node = shared.service.city.node_names[0]
    for path in ("/v1/forecast.bin", "/v1/forecast.json", "/v1/forecast.csv", f"/v1/nodes/{node}"):
        answer = shared.client.get(path, params={"level": level})
        assert answer.status_code == 422 and "level" in answer.json()["detail"]
    answer = shared.client.post("/v1/what-if", params={"level": level}, json={"close": [shared.roads()[0]]})
    assert answer.status_code == 422 and "level" in answer.json()["detail"]


def test_a_run_without_intervals_says_how_to_measure_them(town: Town, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    bare = replace(town, run=replace(town.run, intervals=None))
    with serve_town(bare, store, first=FIRST) as served:
        assert decode(get(served, "/v1/network.bin").content)[0]["level"] is None
        answer = served.client.get("/v1/forecast.json", params={"level": 90})
        assert answer.status_code == 422 and "frigate train" in answer.json()["detail"]
    store.close()


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
def test_a_box_with_nothing_in_it_has_no_band_either(shared: Served, form: str) -> None:
    answer = get(shared, f"/v1/forecast.{form}", params={"level": 90, "box": "1,1,2,2"})
    if form == "json":
        assert answer.json()["nodes"] == []
