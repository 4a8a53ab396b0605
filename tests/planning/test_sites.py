"""Which places may be chosen, and that what cannot be asked for is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frigate.city.network import Edges, RoadNetwork
from frigate.errors import CityError, SettingsError
from frigate.planning.sites import Sites, find_sites, read_costs
from tests.support.errors import raises

IDS = np.array(["A", "B", "C", "D", "E"])


def network() -> RoadNetwork:
    """A street of four nodes, and one node without a road."""
    roads = Edges.of([0, 1, 2], [1, 2, 3], [100.0] * 3, name=["Main Street", "Main Street", "Mill Lane"])
    return RoadNetwork(IDS, np.linspace(6, 6.1, 5), np.full(5, 49.6), roads)


def find(**asked: Any) -> Sites:
    sensors = np.array([True, False, False, False, False])
    return find_sites(network(), sensors, **{"budget": 1, **asked})


def ids(sites: Sites) -> list[str]:
    return IDS[sites.candidates].tolist()


def test_every_node_with_a_road_and_without_a_sensor_is_a_candidate() -> None:
    assert ids(find()) == ["B", "C", "D"]
    assert ids(find(candidates=["C", "B"])) == ["B", "C"]


def test_forbidden_are_nodes_and_streets() -> None:
    assert ids(find(forbid=["D"])) == ["B", "C"]
    assert ids(find(forbid="main street")) == ["D"]


def test_a_forced_site_is_a_candidate_whatever_else_is_said() -> None:
    sites = find(force=["D"], candidates=["B"])
    assert ids(sites) == ["B", "D"] and IDS[sites.forced].tolist() == ["D"]


def test_with_costs_only_what_has_one_is_a_candidate() -> None:
    sites = find(costs={"B": 500, "D": 900}, budget=1200)
    assert ids(sites) == ["B", "D"] and sites.in_money and sites.costs[3] == 900


def test_a_closed_or_absent_node_is_no_candidate() -> None:
    for gone, left in ((network().remove_nodes(["C"]), ["A", "B"]), (network().close_nodes(["C"]), ["A", "B"])):
        assert IDS[find_sites(gone, np.zeros(5, bool), budget=1).candidates].tolist() == left


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"budget": 0}, ["budget 0"]),
        ({"budget": -3}, ["budget -3"]),
        ({"budget": 1.5}, ["1.5"]),
        ({"budget": float("nan")}, ["nan"]),
        ({"budget": 4}, ["budget 4", "3"]),
        ({"force": ["Z"]}, ["force", '"Z"']),
        ({"force": ["A"]}, ["force", '"A"', "sensor"]),
        ({"candidates": ["A", "B"]}, ["candidates", '"A"', "sensor"]),
        ({"forbid": ["Mian Street"]}, ["forbid", '"Mian Street"', '"Main Street"']),
        ({"forbid": ["B"], "force": ["B"]}, ['"B"']),
        ({"force": ["B", "C"]}, ["2", "1"]),
        ({"forbid": ["B", "C", "D"]}, ["no place"]),
        ({"costs": {"B": 500.0}, "budget": 100}, ["100", "500"]),
        ({"costs": {"B": 5.0}, "force": ["C"]}, ["force", '"C"']),
        ({"costs": {"B": 5.0}, "candidates": ["C"]}, ["candidates", '"C"']),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], named: list[str]) -> None:
    with raises(SettingsError, *named):
        find(**asked)


def test_costs_are_read_from_a_table(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text("node_id,cost\nB,500\nD,900.5\n")
    assert read_costs(path, network()) == {"B": 500.0, "D": 900.5}
    for wrong, named in (("B,0", "line 2"), ("B,", "line 2"), ("Z,3", '"Z"'), ("B,5\nB,6", "line 3"), ("B,x", '"x"')):
        path.write_text(f"node_id,cost\n{wrong}\n")
        with raises(CityError, "costs.csv", named):
            read_costs(path, network())
