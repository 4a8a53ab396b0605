"""A placement as a file: the page and the GeoJSON hold what was found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frigate.city.city import City
from frigate.city.stream import make_stream
from frigate.demand.settings import DemandSettings
from frigate.errors import SettingsError
from frigate.pages.placement_page import write_placement
from frigate.planning.placement import Placement, place
from frigate.roads.on_roads import on_roads
from frigate.simulate.demo_city import demo_city
from tests.support.errors import raises
from tests.support.map_page import MapFile

FEW = DemandSettings(sets=2)


@pytest.fixture(scope="module")
def city() -> City:
    town = demo_city(seed=3, intersections=100, days=2, step_s=3600, closures=0)
    observed = town.stream.observed & (np.random.default_rng(0).random(100) < 0.2)
    return City("Ville <b>", replace(town.stream, observed=observed))


@pytest.fixture(scope="module")
def placement(city: City) -> Placement:
    return place(city, budget=4, remove=2, days=3, settings=FEW)


@pytest.fixture(scope="module")
def page(city: City, placement: Placement, tmp_path_factory: pytest.TempPathFactory) -> MapFile:
    path = tmp_path_factory.mktemp("sites") / "new" / "sites.html"
    assert write_placement(path, placement, city) == path
    return MapFile(path)


def test_the_layers_hold_the_errors(page: MapFile, placement: Placement) -> None:
    now, after = page.values("unsure")[0], page.values("after")[0]
    np.testing.assert_allclose(now, np.exp(placement.error), rtol=1e-5)
    np.testing.assert_allclose(after, np.exp(placement.error_after), rtol=1e-5)
    less = 100 * (1 - np.log(after) / np.log(now))
    np.testing.assert_allclose(page.values("sites")[0], less, atol=0.1)
    assert page.rows("sites", "crossed") == [site.row for site in placement.sites]
    missed = page.values("redundant")[0]
    assert np.flatnonzero(np.isfinite(missed)).tolist() == sorted(sensor.row for sensor in placement.redundant)
    assert page.meta["open"]["layer"] == "sites"


def test_the_panels_name_sites_and_reasons(page: MapFile, placement: Placement) -> None:
    assert placement.days is not None
    said = page.said("sites")
    assert all(site.reason in said for site in placement.sites) and placement.days.sentence() in said
    (table,) = page.blocks("sites", "table")
    assert [row[0]["node"] for row in table["rows"]] == [site.row for site in placement.sites]
    (chart,) = page.blocks("sites", "chart")
    np.testing.assert_allclose(chart["lines"][0]["values"], 100 * np.array(placement.curve), atol=0.01)
    (table,) = page.blocks("redundant", "table")
    assert [row[0]["node"] for row in table["rows"]] == [sensor.row for sensor in placement.redundant]
    remarks = page.meta["place"]["remarks"]
    assert all(site.reason in remarks[str(site.row)][0] for site in placement.sites)


def test_sensors_alone_have_a_page(city: City, placement: Placement, tmp_path: Path) -> None:
    page = MapFile(write_placement(tmp_path / "p.html", replace(placement, sites=()), city))
    assert list(page.layers) == ["unsure", "redundant"] and [each["key"] for each in page.meta["panels"]] == [
        "redundant"
    ]


def test_geojson_has_a_point_for_each_site(city: City, placement: Placement, tmp_path: Path) -> None:
    written = json.loads(write_placement(tmp_path / "p.geojson", placement, city).read_text())
    sites = [each for each in written["features"] if each["properties"]["kind"] == "site"]
    assert [each["properties"]["node"] for each in sites] == [site.node for site in placement.sites]
    assert [each["properties"]["rank"] for each in sites] == [1, 2, 3, 4]
    for feature, site in zip(sites, placement.sites, strict=True):
        assert feature["geometry"] == {"type": "Point", "coordinates": [site.lon, site.lat]}
        assert feature["properties"]["reason"] == site.reason
    others = [each["properties"] for each in written["features"] if each["properties"]["kind"] == "redundant"]
    assert [each["node"] for each in others] == [sensor.node for sensor in placement.redundant]


def test_on_roads_a_site_is_a_line(city: City, tmp_path: Path) -> None:
    line = on_roads(city)
    nothing = np.full((48, line.num_nodes), np.nan)
    stream = make_stream(nothing, line, start_s=city.stream.start_s, step_s=3600, quantity="count")
    roads = City("roads", stream)
    found = place(roads, budget=2, settings=FEW)
    written = json.loads(write_placement(tmp_path / "p.geojson", found, roads).read_text())
    assert {each["geometry"]["type"] for each in written["features"]} == {"LineString"}
    page = MapFile(write_placement(tmp_path / "p.html", found, roads))
    assert page.values("sites").shape == (1, line.num_nodes)


def test_a_file_of_another_kind_is_refused(city: City, placement: Placement, tmp_path: Path) -> None:
    for name in ("sites.csv", "sites"):
        with raises(SettingsError, name, ".geojson"):
            write_placement(tmp_path / name, placement, city)
