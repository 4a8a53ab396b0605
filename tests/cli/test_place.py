"""`frigate place` as a person types it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import frigate as fg
from tests.support.command_line import assert_refused, frigate
from tests.support.map_page import MapFile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A town with sensors at a tenth of its nodes, and the same one without."""
    folder = tmp_path_factory.mktemp("towns")
    made = fg.demo_city(seed=3, intersections=100, days=2, step_s=3600, closures=0)
    for name, share in (("town", 0.1), ("bare", 0.0)):
        observed = made.stream.observed & (np.random.default_rng(0).random(100) < share)
        fg.write_city(fg.City(name, replace(made.stream, observed=observed)), folder / name)
    return folder


def test_sites_are_printed_with_their_reasons(folder: Path) -> None:
    said = frigate("place", folder / "town", "--budget", 3, "--days", 2, "--remove", 1, "-o", folder / "sites.html")
    assert said.status == 0, said.err
    assert "3 of" in said.out and "vehicles a day pass" in said.out and "Count on " in said.out
    assert "3 sites " in said.out and "Without it the expected error grows" in said.out
    assert set(MapFile(folder / "sites.html").layers) == {"sites", "unsure", "after", "redundant"}


def test_json_is_what_python_gives(folder: Path) -> None:
    said = frigate("place", folder / "bare", "--budget", 2, "--weight", "even", "--json")
    assert said.status == 0, said.err
    found = fg.place(fg.read_city(folder / "bare"), budget=2, weight="even")
    assert json.loads(said.out) == json.loads(json.dumps(found.to_json()))


def test_files_of_candidates_targets_and_costs(folder: Path) -> None:
    sensors = set(np.flatnonzero(fg.read_city(folder / "town").stream.sensors).tolist())
    ids = fg.read_city(folder / "town").network.node_ids
    some = [int(ids[row]) for row in range(100) if row not in sensors][:6]
    (folder / "some.txt").write_text("\n".join(map(str, some)))
    (folder / "costs.csv").write_text("node_id,cost\n" + "\n".join(f"{node},{100 + node}" for node in some))
    lists = ("--candidates", folder / "some.txt", "--targets", folder / "some.txt", "--costs", folder / "costs.csv")
    said = frigate(
        "place", folder / "town", "--budget", 1000, *lists, "--forbid", some[0], "--force", some[1], "--json"
    )
    assert said.status == 0, said.err
    sites = json.loads(said.out)["sites"]
    nodes = [site["node"] for site in sites]
    assert nodes[0] == some[1] and some[0] not in nodes and set(nodes) <= set(some)
    assert [site["cost"] for site in sites] == [100 + node for node in nodes]


def test_a_mistake_is_told_in_one_line(folder: Path) -> None:
    town = folder / "town"
    sensor = fg.read_city(town).network.node_ids[fg.read_city(town).stream.sensors][0]
    (folder / "sensor.txt").write_text(str(sensor))
    for words, named in (
        (("--budget", 0), "budget 0"),
        (("--budget", 500), "500"),
        ((), "budget"),
        (("--budget", 1, "--force", "nowhere"), '"nowhere"'),
        (("--budget", 1, "--forbid", "Nowhere Street"), '"Nowhere Street"'),
        (("--budget", 1, "--candidates", folder / "sensor.txt"), f'"{sensor}"'),
        (("--budget", 1, "--candidates", folder / "absent.txt"), "absent.txt"),
        (("--budget", 1, "--costs", folder / "absent.csv"), "absent.csv"),
        (("--budget", 1, "-o", folder / "sites.txt"), "sites.txt"),
    ):
        assert_refused(frigate("place", town, *words), named)
