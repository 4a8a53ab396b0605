"""Detectors under their own names, and what an import reported, stay with the city and are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frigate.check.city import check_city
from frigate.city.city import City
from frigate.city.detectors import Detectors
from frigate.city.folder import open_cache, read_city, write_city
from frigate.errors import CityError
from frigate.forecasting.result import Forecast, make_forecast
from frigate.pages.check_page import write_check_page
from frigate.pages.map_data import network_container
from frigate.pages.wire import decode
from frigate.sources.tables.importer import import_tables
from tests.support.errors import raises
from tests.support.map_page import MapFile
from tests.support.towns import random_network, random_stream

NETWORK = random_network(6, seed=1)
BASE = City("town", random_stream([NETWORK], seed=1, snapshots=8))


def imported(folder: Path, *, csv: bool = False) -> City:
    """Two detectors, one of them 30 m north of its node, and one without a place that is known."""
    at = [(float(NETWORK.lon[i]), float(NETWORK.lat[i])) for i in (0, 1)]
    (folder / "where.csv").write_text(
        f"sensor_id,lon,lat\nA17,{at[0][0]},{at[0][1]}\nB 2,{at[1][0]},{at[1][1] + 30 / 111_195}\nfar,0.1,0.1\n"
    )
    rows = [f"2024-01-01T{h:02d}:00Z,{name},{h + 1}" for h in range(6) for name in ("A17", "B 2", "far")]
    (folder / "counts.csv").write_text("\n".join(["time,sensor_id,value", *rows]) + "\n")
    city = import_tables(network=BASE, readings=folder / "counts.csv", sensors=folder / "where.csv", step="1h")
    write_city(city, folder / "town", csv=csv)
    return read_city(folder / "town")


@pytest.mark.parametrize("csv", [False, True])
def test_names_and_how_far_each_was_moved_stay_with_the_city(csv: bool, tmp_path: Path) -> None:
    city = imported(tmp_path, csv=csv)
    assert city.detectors.names.tolist() == ["A17", "B 2"]
    assert city.network.node_ids[city.detectors.nodes].tolist() == NETWORK.node_ids[:2].tolist()
    np.testing.assert_allclose(city.detectors.moved_m, [0, 30], atol=0.1)
    for again in (read_city(tmp_path / "town"), open_cache(tmp_path / "town")):
        assert again.detectors.rows() == city.detectors.rows()
    write_city(city, tmp_path / "copy")
    assert read_city(tmp_path / "copy").detectors.rows() == city.detectors.rows()


def test_check_shows_them_and_what_the_import_reported(tmp_path: Path) -> None:
    city = imported(tmp_path)
    lines = check_city(city).lines()
    assert (
        f"Detectors: 2 at 2 nodes; moved there by 15 m (median), at most 30 m (B 2 to {NETWORK.node_ids[1]})" in lines
    )
    (left_out,) = (line for line in lines if line.startswith("  Sensors left out because they have no place"))
    assert 'network: 1 (first: "far" is ' in left_out and "another city" in left_out
    assert lines.index("Reported by the import:") < lines.index(left_out)
    assert json.loads(json.dumps(check_city(city).to_json()))["detectors"][0][0] == "B 2"
    silent = replace(city, stream=replace(city.stream, values=city.stream.values * 0))
    assert f"{NETWORK.node_ids[0]} (A17)" in "\n".join(check_city(silent).lines())


def test_forecasts_name_them(tmp_path: Path) -> None:
    city = imported(tmp_path)
    made = forecast_of(city)
    assert made.detectors.tolist() == ["A17", "B 2", "", "", "", ""]
    row = made.to_json()["nodes"][1]
    assert (row["detectors"], row["moved_m"]) == ("B 2", 30.0)
    assert made.to_json()["nodes"][2]["moved_m"] is None
    assert made.to_geojson()["features"][1]["properties"]["detectors"] == "B 2"
    lines = made.write(tmp_path / "f.csv").read_text().splitlines()
    assert lines[0].split(",")[4:6] == ["detectors", "moved_m"]
    assert lines[2].split(",")[4:6] == ["B 2", "30.0"]
    assert made.to_frame()["moved_m"].null_count() == 4


def forecast_of(city: City) -> Forecast:
    from frigate.training.run import TrainedOn

    return make_forecast(
        TrainedOn.of(city, (0, 1)),
        city.network,
        np.ones((1, 6)),
        city.stream.end_s,
        sensor=np.ones(6, bool),
        timezone="UTC",
        notices=(),
        city=city,
    )


def test_pages_name_them_and_how_far_they_were_moved(tmp_path: Path) -> None:
    city = imported(tmp_path)
    ids = [str(node_id) for node_id in NETWORK.node_ids.tolist()]
    sensors = city.stream.sensors
    about: dict[str, Any] = {"name": city.name, "horizon": 1, "has_demand": False, "detectors": city.detectors}
    meta, _ = decode(network_container(city.network, city.stream, sensors, **about))
    assert meta["detectors"] == ["A17, moved 0 m", "B 2, moved 30 m", *[""] * len(ids[2:])]
    page = MapFile(write_check_page(tmp_path / "check.html", city, check_city(city)))
    assert page.network_meta["detectors"][1] == "B 2, moved 30 m"
    said = page.said("notices")
    assert "Notices from the import" in said and "because they have no place in the network: 1" in said
    assert "at most 30 m (B 2 to" in said
    (listed,) = page.blocks("notices", "table")
    assert ["B 2", ids[1], "30 m"] in listed["rows"]


def test_a_detector_alone_at_its_node_can_be_excluded_by_its_name(tmp_path: Path) -> None:
    imported(tmp_path)
    left = read_city(tmp_path / "town", exclude=["B 2"]).stream
    assert left.node_ids[left.sensors].tolist() == [NETWORK.node_ids[0]]
    with raises(CityError, "--exclude", '"far"'):
        read_city(tmp_path / "town", exclude=["far"])


def test_several_detectors_of_a_node_are_named_together_and_not_alone() -> None:
    three = Detectors(np.array(["a", "b", "c"]), np.array([1, 1, 0]), *(np.array([1.0, np.nan, np.nan]) for _ in "xyz"))
    texts, moved_m = three.at_nodes(np.array([10, 20]), np.array([20, 10]))
    assert texts.tolist() == ["a; b", "c"]
    np.testing.assert_array_equal(moved_m, [1.0, np.nan])
    assert three.alone() == {"c": 0}


def test_damaged_notices_are_refused_by_name(tmp_path: Path) -> None:
    imported(tmp_path)
    (tmp_path / "town" / "notices.json").write_text("[1]")
    with raises(CityError, "notices.json", "Delete it"):
        read_city(tmp_path / "town")
