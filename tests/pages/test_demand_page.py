"""The flows of a city as a file: the page holds the demand's numbers, fetches nothing, and escapes what it is given."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from frigate.city.city import City
from frigate.city.stream import make_stream
from frigate.demand.estimate import Demand
from frigate.demand.flows import Through, trips_through
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_model import estimate_demand
from frigate.errors import CityError, SettingsError
from frigate.pages.demand_page import HOUR, fit_classes, write_flows
from frigate.pages.map_data import road_text
from frigate.roads.on_roads import on_roads
from frigate.simulate.demo_city import demo_city
from tests.support.errors import raises
from tests.support.map_page import MapFile

STEPS_PER_HOUR = 2
ODD = "</script><img src=x onerror=alert(1)> & Söhne"


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
def page(city: City, demand: Demand, tmp_path_factory: pytest.TempPathFactory) -> MapFile:
    path = tmp_path_factory.mktemp("flows") / "new" / "flows.html"
    assert write_flows(path, demand, city) == path
    return MapFile(path)


def test_the_page_holds_the_flows_of_the_demand(page: MapFile, city: City, demand: Demand) -> None:
    flow = demand.road_flow * STEPS_PER_HOUR
    np.testing.assert_allclose(page.values("flow", "roads"), flow, rtol=4e-3)
    about = page.layers["flow"]["roads"]
    np.testing.assert_allclose(page.arrays[about["spread"]], demand.road_spread, rtol=4e-3)
    assert page.layers["flow"]["kinds"] == ["weekday", "weekend"]
    assert about["unit"] == {"text": "vehicles", "per_s": 3600}
    sensors = demand.sensors
    counted, estimated = page.history("counted"), page.history("estimated")
    for shown, of in ((counted, demand.usual_counts), (estimated, demand.node_flow)):
        np.testing.assert_allclose(shown[:, sensors], of[:, sensors] * STEPS_PER_HOUR, rtol=4e-3)
        assert np.isnan(shown[:, ~sensors]).all()
    fit = page.values("flow", "nodes")
    np.testing.assert_array_equal(page.values("fit"), fit)
    off = estimated - counted
    with np.errstate(invalid="ignore"):
        right = (np.abs(off) <= 0.15 * counted) | (np.abs(off) <= 1)
        expected = np.where(right, 0, np.where(off > 0, 1, 2))
    np.testing.assert_array_equal(fit[:, sensors], expected[:, sensors])
    assert len(set(fit[:, sensors].ravel().tolist())) > 1
    assert page.meta["open"] == {"layer": "flow", "frame": HOUR} and page.meta["select"] is None
    assert page.network_meta["node_ids"] == city.network.node_ids.tolist()
    np.testing.assert_array_equal(page.network["sensor"], sensors)
    (busiest,) = page.blocks("flows", "table")
    daily = 24 * (5 * flow[:24].mean(0) + 2 * flow[24:].mean(0)) / 7
    order = np.argsort(-daily)[:10].tolist()
    assert [row[0]["road"] for row in busiest["rows"]] == order
    assert busiest["rows"][0][0]["text"] == road_text(city.network, order[0])
    assert float(busiest["rows"][0][1]["text"].replace(",", "")) == pytest.approx(daily[order[0]], rel=1e-2)
    (worst,) = page.blocks("sensors", "table")
    assert len(worst["rows"]) == 10 and all(sensors[row[0]["node"]] for row in worst["rows"])


def test_the_trips_through_a_road_have_a_layer_of_their_own(
    city: City, demand: Demand, through: Through, tmp_path: Path
) -> None:
    page = MapFile(write_flows(tmp_path / "through.html", demand, city, through=through))
    assert list(page.layers) == ["through", "flow", "fit"]
    assert page.meta["open"]["layer"] == "through" and page.meta["select"] == {"road": through.row}
    np.testing.assert_allclose(page.values("through", "roads"), through.road_flow, rtol=4e-3)
    assert page.values("flow", "roads").sum() > page.values("through", "roads").sum()
    trips = page.meta["place"]["trips"]
    assert trips["vehicles_per_day"] == pytest.approx(through.vehicles_per_day, rel=1e-3)
    assert trips["vehicles_per_hour"] == pytest.approx(through.road_flow[HOUR, through.row], abs=0.01)
    network = city.network
    row_of = {str(node): row for row, node in enumerate(network.node_ids.tolist())}
    for key, at, daily in (
        ("from", network.senders, through.starting),
        ("to", network.receivers, through.ending),
    ):
        share = np.bincount(at, weights=daily, minlength=network.num_nodes) / through.vehicles_per_day
        shown = {row_of[end["node"]]: end["share"] for end in trips[key]}
        assert sorted(shown) == np.flatnonzero(share).tolist()
        assert [shown[row] for row in shown] == pytest.approx(share[list(shown)].tolist(), abs=1e-5)
    first, ours = trips["movements"][0], through.movements[0]
    assert (first["origin"]["source"], first["destination"]["target"]) == (
        str(ours.origin[0]),
        str(ours.destination[1]),
    )
    assert trips["movements_in_all"] == len(through.movements)
    assert f"{through.vehicles_per_day:,.0f} vehicles a day" in page.said("flows")


def test_a_city_on_roads_has_the_flow_of_its_roads(city: City, tmp_path: Path) -> None:
    town = demo_city(seed=3, intersections=100, days=2, step_s=3600, closures=0)
    line = on_roads(town)
    ends = town.network.senders
    values = np.where(np.arange(line.num_nodes) % 3 == 0, town.stream.values[:, ends] / 3, np.nan)
    stream = make_stream(values, line, start_s=town.stream.start_s, step_s=3600, quantity="count")
    whole = City("On roads", stream)
    made = estimate_demand(whole, settings=DemandSettings(sets=2))
    road = line.node_ids.tolist()[int(made.node_flow.sum(0).argmax())]
    through = trips_through(made, road)
    assert through.is_node and line.node_ids[through.row] == road
    source, target = road.split(">")
    assert trips_through(made, (source, target)).row == through.row
    np.testing.assert_allclose(through.own_flow, through.node_flow[:, through.row])
    page = MapFile(write_flows(tmp_path / "roads.html", made, whole, through=through))
    np.testing.assert_allclose(page.values("flow"), made.node_flow, rtol=4e-3)
    np.testing.assert_allclose(page.values("through"), through.node_flow, rtol=4e-3)
    assert page.meta["select"] == {"node": through.row}
    (busiest,) = page.blocks("flows", "table")
    assert busiest["rows"][0][0]["text"] == road


def test_an_estimate_near_its_count_is_right() -> None:
    counted = np.array([[100, 100, 100, 100, 2, 2, 2]], np.float32)
    estimated = np.array([[100, 114, 117, 80, 2.9, 3.1, 0.8]], np.float32)
    assert fit_classes(counted, estimated).tolist() == [[0, 0, 1, 2, 0, 1, 2]]


def test_a_node_is_no_road_in_a_city_on_intersections(demand: Demand) -> None:
    with raises(CityError, '"41"', "41,42"):
        trips_through(demand, "41")


def test_nothing_is_fetched_and_everything_is_escaped(page: MapFile) -> None:
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', page.text)
    assert len(policy) == 1 and policy[0].startswith("default-src 'none';") and "http" not in policy[0]
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"'](?!data:,)", page.text)
    assert "onerror" not in page.text and "<b>1</b>" not in page.text
    assert page.network_meta["name"] == ODD and page.network_meta["node_ids"][0] == "<b>1</b>"
    assert ODD in page.network_meta["street_names"]


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
