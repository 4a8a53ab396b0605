"""Every `frigate import` and `frigate export` command, typed as a user would, from files to a forecast."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import frigate as fg
from frigate.roads.geometry import read_line
from tests.support import benchmark_files, osm_files, sumo_files, table_files
from tests.support.command_line import assert_refused
from tests.support.command_line import frigate as typed
from tests.support.shared_data import shared_data

TINY = """
[task]
past = 3
horizon = 3
[model]
width = 8
layers = 1
anchors = 4
[train]
epochs = 1
steps_per_epoch = 2
batch_size = 4
validation_windows = 4
"""


def frigate(*words: object) -> str:
    """What the command printed, without an error."""
    done = typed(*words)
    assert done.status == 0, done.err
    return done.out


def readings_at(network: fg.RoadNetwork, path: Path, *, snapshots: int = 120) -> Path:
    """A detector's table at every third node, by place: a time in German, and a count."""
    rows = np.arange(0, network.num_nodes, 3)
    start = datetime(2024, 5, 6)
    rng = np.random.default_rng(0)
    lines = ["when;lon;lat;vehicles"]
    for k in range(snapshots):
        when = (start + timedelta(minutes=15 * k)).strftime("%d.%m.%Y %H:%M")
        lines += [f"{when};{network.lon[r]:.6f};{network.lat[r]:.6f};{rng.poisson(9)}" for r in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_map_and_a_table_of_readings_make_a_forecast(tmp_path: Path) -> None:
    pbf = shared_data("osm-extracts") / "helsinki_small.osm.pbf"
    frigate("import", "osm", pbf, "-o", tmp_path / "map")
    network = fg.read_city(tmp_path / "map").network
    table = readings_at(network, tmp_path / "readings.csv")
    (tmp_path / "tiny.toml").write_text(TINY)
    told = (
        "--readings",
        table,
        "--map",
        "when=time,vehicles=value",
        "--timezone",
        "Europe/Helsinki",
        "--step",
        "15min",
    )
    said = frigate("import", "osm", pbf, *told, "-o", tmp_path / "town")
    assert f"{network.num_nodes} nodes, {network.num_edges} roads, 120 snapshots" in said
    frigate(
        "train", tmp_path / "town", "-o", tmp_path / "run", "--settings", tmp_path / "tiny.toml", "--preset", "paper"
    )
    frigate("forecast", tmp_path / "run", "--parquet", tmp_path / "forecast.parquet")
    assert len(pl.read_parquet(tmp_path / "forecast.parquet")) == 3 * network.num_nodes


@pytest.mark.shared
def test_the_first_example_of_the_page_counts_each_direction_on_its_road(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sources" / "osm.md").read_text(encoding="utf-8")
    command = page.split("```sh\n")[1].splitlines()[0].split()
    table = [line.strip() for line in page.split("Each row of `counts.csv`")[1].split("\n\n")[1].splitlines()]
    assert command[:3] == ["frigate", "import", "osm"] and table[0].split(",")[-2:] == ["bearing", "value"]
    pbf = shared_data("osm-extracts") / "helsinki_small.osm.pbf"
    roads = fg.import_osm(pbf, on="roads").network
    ends = [read_line(line)[[0, -1]] for line in roads.lines.tolist() if len(line) == 9 + 3 * 16]  # straight
    straight = np.flatnonzero([len(line) == 9 + 3 * 16 for line in roads.lines.tolist()])
    north = np.array([1.0, np.cos(np.radians(roads.lat.mean()))])  # degrees of equal length
    rows = [table[0]]
    for row, (start, end) in zip(straight[::2].tolist(), ends[::2], strict=True):
        east_m, north_m = 111_195 * (end - start) * north[::-1]
        length_m = np.hypot(east_m, north_m)
        if length_m > 60:
            right_m = 4 * np.array([north_m, -east_m]) / length_m  # of the middle: cars keep to the right
            lon, lat = (start + end) / 2 + right_m / 111_195 / north[::-1]
            bearing = np.degrees(np.arctan2(east_m, north_m)) % 360
            rows += [f"2024-03-04T{k:02d}:00,{lon:.6f},{lat:.6f},{bearing:.0f},{row}" for k in range(24)]
    counts = tmp_path / "counts.csv"
    counts.write_text("\n".join(rows) + "\n")
    files = {"luxembourg.osm.pbf": pbf, "counts.csv": counts, "Europe/Luxembourg": "Europe/Helsinki"}
    words = [files.get(word, word) for word in command[1:-1]]
    frigate(*words, tmp_path / "town", "--step", "1h")
    stream = fg.read_city(tmp_path / "town").stream
    read = np.flatnonzero(stream.sensors)
    right = [row for row in read.tolist() if (stream.values[:, row] == row).all()]
    assert len(read) > 50 and len(right) > 0.9 * len(read)  # a few are nearer to another road in that direction
    asked = [word for k, word in enumerate(words) if word != "--on" and (k == 0 or words[k - 1] != "--on")]
    refused = typed(*asked, tmp_path / "other", "--step", "1h")
    assert refused.status == 2 and "--on roads" in refused.err and not (tmp_path / "other").exists()


@pytest.mark.parametrize("kind", ["osm", "osm.gz", "osm.pbf", "overpass-body.json", "graphml"])
def test_a_map(kind: str, tmp_path: Path) -> None:
    files = osm_files.small_files(tmp_path)
    frigate("import", "osm", files[kind], "--keep-all", "-o", tmp_path / "town")
    assert fg.read_city(tmp_path / "town").network.num_edges > 0


def test_osm_on_roads_respects_turn_restrictions(tmp_path: Path) -> None:
    files = osm_files.small_files(tmp_path)
    frigate("import", "osm", files["osm"], "--keep-all", "-o", tmp_path / "nodes")
    said = frigate("import", "osm", files["osm"], "--keep-all", "--on", "roads", "-o", tmp_path / "roads")
    assert "roads, " in said and "turns, no readings" in said
    nodes, roads = (fg.read_city(tmp_path / name).network for name in ("nodes", "roads"))
    assert roads.num_nodes == nodes.num_edges


def test_tables_on_the_network_of_another_city(tmp_path: Path) -> None:
    files = table_files.small_files(tmp_path / "files")
    frigate("import", "tables", "--nodes", files["nodes.csv"], "--edges", files["edges.csv"], "-o", tmp_path / "map")
    said = frigate(
        "import", "tables", "--network", tmp_path / "map", "--readings", files["readings.csv"], "-o", tmp_path / "town"
    )
    assert "snapshots" in said
    assert fg.read_city(tmp_path / "town").stream.observed.any()


def test_traces(tmp_path: Path) -> None:
    town = fg.demo_city(intersections=100, days=1).network
    stream = fg.make_stream(np.zeros((0, 100), np.float32), town, start_s=0, step_s=300)
    fg.write_city(fg.City("map", stream), tmp_path / "map")
    rng = np.random.default_rng(0)
    rows, row = [], 0
    for k in range(40):  # a vehicle that drives on at every crossing, seen once at each
        rows.append((1, 1_700_000_000 + 30 * k, town.lon[row], town.lat[row]))
        row = int(rng.choice(town.receivers[town.senders == row]))
    table = pl.DataFrame(rows, schema=["cab", "t", "x", "y"], orient="row")
    table.write_parquet(tmp_path / "traces.parquet")
    for on in ("nodes", "roads"):
        words = ("--network", tmp_path / "map", "--map", "cab=vehicle,t=time,x=lon,y=lat", "--on", on)
        frigate("import", "traces", tmp_path / "traces.parquet", *words, "-o", tmp_path / on)
    on_nodes, on_roads = (fg.read_city(tmp_path / on).stream for on in ("nodes", "roads"))
    assert on_nodes.values.sum() > 20
    assert on_roads.num_nodes == town.num_edges
    assert on_roads.values.sum() > 20


def test_a_simulation(tmp_path: Path) -> None:
    files = sumo_files.small_files(tmp_path)
    for on in ("nodes", "roads"):
        words = ("--edgedata", files["edgedata_gz"], "--on", on, "-o", tmp_path / on)
        assert "2 snapshots" in frigate("import", "sumo", files["net"], *words)
    detectors = ("--detectors", files["loops"], "--detectors", files["loop_output"])
    assert "1 snapshots" in frigate("import", "sumo", files["net_gz"], *detectors, "-o", tmp_path / "loops")
    (tmp_path / "made.net.xml").write_text(sumo_files.net_xml(location=""))
    frigate("import", "sumo", tmp_path / "made.net.xml", "--origin", "-122.4,37.8", "-o", tmp_path / "made")
    assert fg.read_city(tmp_path / "made").network.lon[0] == -122.4


@pytest.mark.parametrize("kind", ["metr-la", "pems-bay", "pems03", "pems04", "frigate", "libcity"])
def test_benchmarks_there_and_back(kind: str, tmp_path: Path) -> None:
    benchmark_files.small_files(tmp_path / "files")
    frigate("import", "benchmark", kind, tmp_path / "files" / kind, "-o", tmp_path / "town")
    frigate("export", "libcity", tmp_path / "town", "-o", tmp_path / "atomic")
    frigate("import", "benchmark", "libcity", tmp_path / "atomic", "-o", tmp_path / "back")
    there, back = (fg.read_city(tmp_path / name).stream for name in ("town", "back"))
    assert np.array_equal(there.values, back.values)
    assert np.array_equal(there.observed, back.observed)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("osm", "nowhere.osm.pbf"), "nowhere.osm.pbf"),
        (("sumo", "nowhere.net.xml"), "nowhere.net.xml"),
        (("sumo", "nowhere.net.xml", "--origin", "6.13"), '--origin "6.13"'),
        (("tables",), "edges"),
        (("traces", "t.csv", "--network", "nowhere"), "nowhere"),
        (("benchmark", "metr", "."), '"metr-la"'),
        (("osm", "x.osm", "--on", "lanes"), "nodes, roads"),
    ],
)
def test_a_mistake_is_answered(words: tuple[str, ...], remedy: str, tmp_path: Path) -> None:
    said = typed("import", *words, "-o", tmp_path / "town")
    assert_refused(said, remedy)
    assert not (tmp_path / "town").exists()
