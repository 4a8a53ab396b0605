"""The flows of a city as a file: the page holds the demand's numbers, fetches nothing, and escapes what it is given."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import frigate.pages
from frigate.city.city import City
from frigate.demand.estimate import Demand
from frigate.demand.flows import Through, trips_through
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_model import estimate_demand
from frigate.errors import SettingsError
from frigate.pages.demand_page import write_flows
from frigate.pages.road_map import RoadLayer, encoded_values, road_lines_data
from frigate.roads.geometry import Projection
from frigate.simulate.demo_city import demo_city
from tests.support.errors import raises
from tests.support.html_page import Page

STEPS_PER_HOUR = 2
ODD = "</script><img src=x onerror=alert(1)> & Söhne"
SCRIPT = Path(frigate.pages.__file__).parent / "templates" / "road_map.js"


def values(data: dict[str, Any]) -> NDArray[np.float64]:
    """As road_map.js reads them."""
    code = np.frombuffer(base64.b64decode(data["codes"]), "<i2").astype(np.float64)
    return code * np.abs(code) * (data["top"] / 32767**2)


def array(text: str, kind: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.fixture(scope="module")
def city() -> City:
    """Sensors at a third of a small town; its first road and a node have awkward names."""
    town = demo_city(seed=3, intersections=100, days=2, step_s=3600 // STEPS_PER_HOUR, closures=0)
    stream = town.stream
    network = town.network
    name = network.edges.name.astype(object)
    name[0] = ODD
    ids = network.node_ids.astype(str).astype(object)
    ids[0] = "<b>1</b>"
    network = replace(network, node_ids=ids.astype(str), roads=replace(network.edges, name=name))
    observed = stream.observed & (np.random.default_rng(0).random(stream.num_nodes) < 0.33)
    return City(ODD, replace(stream, networks=(network,), observed=observed))


@pytest.fixture(scope="module")
def demand(city: City) -> Demand:
    return estimate_demand(city, settings=DemandSettings(sets=2))


@pytest.fixture(scope="module")
def through(city: City, demand: Demand) -> Through:
    network = city.network
    e = int(demand.road_flow.sum(0).argmax())
    ends = network.node_ids[[network.senders[e], network.receivers[e]]].tolist()
    return trips_through(demand, (ends[0], ends[1]))


@pytest.fixture(scope="module")
def page(city: City, demand: Demand, tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("flows") / "new" / "flows.html"
    assert write_flows(path, demand, city) == path
    return Page(path)


def test_the_page_holds_the_flows_of_the_demand(page: Page, city: City, demand: Demand) -> None:
    lines, shown = page.data
    E = city.network.num_edges
    (layer,) = shown["layers"]
    flow = demand.road_flow * STEPS_PER_HOUR
    np.testing.assert_allclose(values(layer["values"]).reshape(48, E), flow, rtol=4e-3, atol=2e-5 * flow.max())
    np.testing.assert_allclose(values(shown["spread"]), demand.road_spread, rtol=4e-3, atol=1e-4)
    assert shown["kinds"] == ["weekday", "weekend"]
    assert layer["unit"] == "vehicles per hour"
    nodes = array(shown["sensors"]["node"], "<u4")
    np.testing.assert_array_equal(nodes, np.flatnonzero(demand.sensors))
    for key, whose in (("measured", demand.usual_counts), ("estimated", demand.node_flow)):
        expected = whose[:, nodes] * STEPS_PER_HOUR
        found = values(shown["sensors"][key]).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=4e-3, atol=2e-5 * expected.max())
    assert lines["ids"] == city.network.node_ids.tolist()
    assert [lines["names"][k] for k in array(lines["name"], "<u4")] == city.network.edges.name.tolist()


def test_roads_lie_where_they_are(page: Page, city: City) -> None:
    lines = page.data[0]
    network = city.network
    points = array(lines["points"], "<f4").reshape(-1, 2)
    start = array(lines["start"], "<u4")
    assert start[-1] == len(points)
    x, y = Projection.of(network).metres(network.lon, network.lat)
    ends = np.stack([network.senders, network.receivers], 1)
    np.testing.assert_array_equal(array(lines["ends"], "<u4").reshape(-1, 2), ends)
    for at, side in ((start[:-1], 0), (start[1:] - 1, 1)):
        np.testing.assert_allclose(points[at], np.stack([x, -y], 1)[ends[:, side]], atol=0.5)
    back = {(b, a) for a, b in ends.tolist()}
    assert array(lines["two_way"], "u1").tolist() == [int((a, b) in back) for a, b in ends.tolist()]
    assert (np.diff(start) > 2).any()  # with their bends


def test_a_road_that_trips_pass_has_a_layer_of_its_own(
    city: City, demand: Demand, through: Through, tmp_path: Path
) -> None:
    page = Page(write_flows(tmp_path / "through.html", demand, city, through=through))
    shown = page.data[1]
    chosen, all_trips = shown["layers"]
    expected = through.road_flow
    np.testing.assert_allclose(
        values(chosen["values"]).reshape(expected.shape), expected, rtol=4e-3, atol=2e-5 * expected.max()
    )
    assert values(all_trips["values"]).sum() > values(chosen["values"]).sum()
    assert shown["marked"] == [through.row]
    for symbols, daily in zip(shown["symbols"], (through.starting, through.ending), strict=True):
        np.testing.assert_allclose(values(symbols["size"]), daily[array(symbols["road"], "<u4")], rtol=4e-3, atol=0.1)
    assert f"{through.vehicles_per_day:,.0f} vehicles a day" in page.text
    assert f"{len(through.movements):,} in all" in page.text


def test_nothing_is_fetched_and_everything_is_escaped(page: Page) -> None:
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttp", page.raw)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    assert not {"src", "href", "srcset", "action"} & {key for _, attributes in page.tags for key in attributes}
    assert ODD in page.text  # of the city, as words
    assert "<b>1</b>" not in page.raw
    assert not re.search("innerHTML|outerHTML|insertAdjacentHTML|document.write", page.raw)


def test_the_ending_says_the_format(city: City, demand: Demand, tmp_path: Path) -> None:
    roads = json.loads(write_flows(tmp_path / "a.geojson", demand, city).read_text())["features"]
    assert len(roads) == city.network.num_edges
    table = pl.read_parquet(write_flows(tmp_path / "a.parquet", demand, city))
    assert len(table) == 48 * city.network.num_edges
    assert write_flows(tmp_path / "A.HTML", demand, city).read_text().startswith("<!doctype html>")
    for name in ("flows.htm", "flows"):
        with raises(SettingsError, name, ".html", ".geojson", ".parquet"):
            write_flows(tmp_path / name, demand, city)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A.HTML", "a.geojson", "a.parquet"]


@given(st.lists(st.floats(-1e5, 1e5, allow_subnormal=False), max_size=30))
def test_values_survive_their_codes(some: list[float]) -> None:
    kept = np.array(some)
    top = np.abs(kept).max(initial=0)
    np.testing.assert_allclose(values(encoded_values(kept)), kept, rtol=4e-3, atol=1e-6 * top + 1e-300)


def test_classes_of_flow_follow_the_busiest_hour() -> None:
    flow = np.array([[1.0, 30, 200, 700, 900]] * 47 + [[2.0, 60, 400, 1400, 1800]])
    layer = RoadLayer.of_flow("flow", flow, "vehicles per hour")
    assert layer.edges[-1] == 1000
    assert [c["colour"] for c in layer.classes] == sorted({c["colour"] for c in layer.classes})
    assert layer.classes[-1]["colour"] == 6


def test_a_network_without_roads_has_no_lines(city: City) -> None:
    network = city.network
    bare = road_lines_data(network.with_roads(network.edges.take(np.zeros(0, np.int64))))
    assert bare["points"] == bare["ends"] == ""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_is_javascript() -> None:
    done = subprocess.run(["node", "--check", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
