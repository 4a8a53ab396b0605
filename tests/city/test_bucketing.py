"""Readings into snapshots: one meaning, whatever they come from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frigate.calendar import Steps
from frigate.city.bucketing import (
    Grid,
    Readings,
    Snapshots,
    bucket,
    bucket_matrix,
    bucket_sensors,
    in_time_order,
    repeated,
    usual_step_s,
    without_repeats,
)
from frigate.city.folder import read_city
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.coordinates import EARTH_RADIUS_M
from frigate.errors import CityError
from frigate.reading.notices import Notices
from frigate.sources.benchmarks.importer import import_benchmark
from frigate.sources.matrix import import_matrix
from frigate.sources.sumo.importer import import_sumo
from frigate.sources.tables.importer import import_tables
from frigate.sources.traces.importer import import_traces
from tests.support.errors import raises
from tests.support.sumo_files import UTM, loop_output_xml, loops_xml

START_S = 1_704_067_200  # 2024-01-01T00:00Z
GRID = Grid(Steps(1000, 60), 2)


def readings(time_s: Sequence[float], node: Sequence[int], value: Sequence[float]) -> Readings:
    time_us = np.round(np.array(time_s, np.float64) * 1e6).astype(np.int64)
    return Readings(time_us, np.array(node, np.int64), np.array(value, np.float32))


def into(
    time_s: Sequence[float], node: Sequence[int], value: Sequence[float], quantity: str
) -> tuple[list[list[float]], list[list[bool]]]:
    snapshots = bucket([readings(time_s, node, value)], GRID, num_nodes=2, quantity=quantity)
    return snapshots.values.tolist(), snapshots.observed.tolist()


def test_counts_are_summed_and_gauges_keep_the_latest() -> None:
    time_s = [1059.9, 1000, 1030, 1060, 1119.5]
    node = [0, 0, 0, 1, 0]
    value = [5, 1, 2, 7, 0]
    seen = [[True, False], [True, True]]
    assert into(time_s, node, value, "count") == ([[8, 0], [0, 7]], seen)
    assert into(time_s, node, value, "speed") == ([[5, 0], [0, 7]], seen)  # by time, not by row


def test_of_two_gauges_at_one_time_the_later_row_stands() -> None:
    assert into([1010, 1010], [1, 1], [3, 4], "speed")[0] == [[0, 4], [0, 0]]


def test_readings_outside_the_snapshots_are_dropped() -> None:
    values, observed = into([999.99, 1120, -5, 1e9], [0, 1, 0, 1], [1, 2, 3, 4], "count")
    assert values == [[0, 0], [0, 0]]
    assert not np.any(observed)


@given(st.lists(st.tuples(st.integers(1000, 1119), st.integers(0, 1), st.integers(0, 50)), max_size=20), st.randoms())
def test_the_order_of_rows_does_not_matter_for_counts(rows: list[tuple[int, int, int]], random: Random) -> None:
    mixed = list(rows)
    random.shuffle(mixed)
    columns = ([[row[k] for row in r] for k in range(3)] for r in (rows, mixed))
    results = [into(time_s, node, value, "count") for time_s, node, value in columns]
    assert results[0] == results[1]
    assert np.sum(results[0][0]) == sum(v for _, _, v in rows)


@given(
    st.lists(st.tuples(st.integers(1000, 1119), st.integers(0, 1), st.integers(0, 50)), max_size=20),
    st.integers(1, 20),
    st.sampled_from(["count", "speed"]),
)
def test_parts_do_not_matter(rows: list[tuple[int, int, int]], size: int, quantity: str) -> None:
    """Repeats are found, and times sorted, across parts as within one."""
    columns = [list(c) for c in zip(*rows, strict=True)] or [[], [], []]
    whole = readings(*columns)
    parts = [whole.take(slice(first, first + size)) for first in range(0, len(whole), size)] or [whole]
    found = []
    for each in (parts, [whole]):
        kept = without_repeats(in_time_order(list(each)), np.array([7, 8]), Notices())
        found.append(bucket(kept, GRID, num_nodes=2, quantity=quantity))
    np.testing.assert_array_equal(found[0].values, found[1].values)
    np.testing.assert_array_equal(found[0].observed, found[1].observed)
    last = {(t, n): v for t, n, v in rows}  # of one time and node, the last row
    latest = {((t - 1000) // 60, n): v for (t, n), v in sorted(last.items())}
    for (t, n), value in latest.items():
        cell = sum(v for (at, node), v in last.items() if ((at - 1000) // 60, node) == (t, n))
        assert found[0].values[t, n] == (cell if quantity == "count" else value)


def test_a_later_row_corrects_an_earlier_one() -> None:
    notices = Notices()
    given_ = readings([1000, 1030, 1030, 1030], [0, 0, 1, 0], [1, 2, 3, 9])
    assert repeated(given_).tolist() == [False, True, False, False]
    (kept,) = [p for p in without_repeats([given_], np.array(["a", "b"]), notices) if len(p) > 1]
    assert kept.value.tolist() == [3, 9]
    assert list(notices.counts.values()) == [1]


def test_sensors_of_a_node_are_summed_where_all_report_and_averaged_as_gauges() -> None:
    node_of = np.array([1, 1, 0, -1])
    given_ = readings([1000, 1001, 1002, 1061, 1062], [0, 1, 2, 0, 3], [3, 5, 7, 11, 13])
    counts = bucket_sensors(given_, GRID, node_of=node_of, num_nodes=3, quantity="count")
    assert counts.snapshots.values.tolist() == [[7, 8, 0], [0, 0, 0]]
    assert counts.snapshots.observed.tolist() == [[True, True, False], [False, False, False]]
    assert counts.partial.tolist() == [0, 1, 0]
    gauge = bucket_sensors(given_, GRID, node_of=node_of, num_nodes=3, quantity="speed").snapshots
    assert gauge.values.tolist() == [[7, 4, 0], [0, 11, 0]]
    assert gauge.observed.tolist() == [[True, True, False], [False, True, False]]


def test_intervals_have_to_fill_the_step() -> None:
    given_ = readings([1000, 1030, 1060], [0, 0, 0], [3, 5, 7])
    lasting = np.array([30_000, 30_000, 30_000])
    summed = bucket_sensors(given_, GRID, node_of=np.array([0]), num_nodes=1, quantity="count", duration_ms=lasting)
    assert summed.snapshots.observed.tolist() == [[True], [False]]
    assert summed.snapshots.values.tolist() == [[8], [0]]
    assert summed.incomplete == 1


def test_snapshots_without_a_reading_at_the_ends_can_be_left_out() -> None:
    observed = np.array([[False], [True], [False], [True], [False]])
    trimmed = Snapshots(observed.astype(np.float32), observed, Steps(0, 60)).trimmed(notices := Notices())
    assert (trimmed.steps.start_s, trimmed.observed.tolist()) == (60, [[True], [False], [True]])
    assert list(notices.counts.values()) == [2]


def test_the_usual_step() -> None:
    assert usual_step_s(np.array([300, 300, 600]) * 1_000_000, where="x.csv") == 300
    for gaps, said in (([], "one time"), ([1_500_000], "1.5 s"), ([7 * 10**6], "7s")):
        with raises(CityError, "x.csv", said):
            usual_step_s(np.array(gaps, np.int64), where="x.csv")


# The same readings through every source

NODES = ["a", "b"]
LON = [6.10, 6.11]
LAT = [49.60, 49.60]
# time after START_S, node, value: several in one step, one time twice, a step without any, a real 0
ROWS = [(0, "a", 5), (60, "a", 4), (120, "a", 6), (60, "b", 1), (300, "b", 0), (300, "b", 2), (900, "a", 3)]


def stamp(time_s: int) -> str:
    return f"{np.datetime64(START_S + time_s, 's')}Z"


def tables(folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    nodes = "\n".join(f"{n},{x},{y}" for n, x, y in zip(NODES, LON, LAT, strict=True))
    (folder / "nodes.csv").write_text(f"node_id,lon,lat\n{nodes}\n")
    (folder / "edges.csv").write_text("source,target,length_m\na,b,800\nb,a,800\n")
    rows = "\n".join(f"{stamp(t)},{n},{v}" for t, n, v in ROWS)
    (folder / "readings.csv").write_text(f"time,node_id,value\n{rows}\n")
    return {name: folder / f"{name}.csv" for name in ("nodes", "edges", "readings")}


def matrix(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    times = [*sorted({t for t, _, _ in ROWS}), 300]  # a row for each time, the one given twice as well
    values = np.full((len(times), 2), np.nan)
    for i, time in enumerate(times):
        rows = [r for r in ROWS if r[0] == time]
        for node in NODES:
            own = [v for _, n, v in rows if n == node]
            if own:
                values[i, NODES.index(node)] = own[-1] if i == len(times) - 1 else own[0]
    return START_S + np.array(times), values


def from_folder(folder: Path, quantity: str) -> RoadNetworkStream:
    tables(folder)
    (folder / "city.toml").write_text(f'step = "5min"\nquantity = "{quantity}"\n')
    return read_city(folder).stream


def from_tables(folder: Path, quantity: str) -> RoadNetworkStream:
    made = tables(folder)
    return import_tables(
        nodes=made["nodes"],
        edges=made["edges"],
        readings=made["readings"],
        step="5min",
        quantity=quantity,
        timezone="UTC",
    ).stream


def from_matrix(folder: Path, quantity: str) -> RoadNetworkStream:
    paths = tables(folder)
    time, values = matrix(folder)
    np.savez(folder / "m.npz", time=time, values=values)
    return import_matrix(
        folder / "m.npz",
        nodes=paths["nodes"],
        edges=paths["edges"],
        values="values",
        time="time",
        step="5min",
        quantity=quantity,
    ).stream


def from_libcity(folder: Path, quantity: str) -> RoadNetworkStream:
    folder.mkdir()
    places = "\n".join(f'{n},Point,"[{x}, {y}]"' for n, x, y in zip(NODES, LON, LAT, strict=True))
    (folder / "x.geo").write_text(f"geo_id,type,coordinates\n{places}\n")
    (folder / "x.rel").write_text("rel_id,type,origin_id,destination_id,distance\n0,geo,a,b,800\n1,geo,b,a,800\n")
    rows = "\n".join(f"{i},state,{stamp(t)},{n},{v}" for i, (t, n, v) in enumerate(ROWS))
    (folder / "x.dyna").write_text(f"dyna_id,type,time,entity_id,reading\n{rows}\n")
    ours = {"step_s": 300, "quantity": quantity, "timezone": "UTC"}
    (folder / "config.json").write_text(json.dumps({"info": {"data_col": ["reading"]}, "frigate": ours}))
    return import_benchmark("libcity", files=folder).stream


def from_rows_of_a_benchmark(folder: Path, quantity: str) -> RoadNetworkStream:
    """`import benchmark` reads a step from its rows: the matrix goes straight to what it calls."""
    time, values = matrix(folder)
    network = RoadNetwork(np.array(NODES), np.array(LON), np.array(LAT), Edges.of([0, 1], [1, 0], [800, 800]))
    snapshots, _ = bucket_matrix(
        values, time * 1_000_000, network, step_s=300, timezone="UTC", quantity=quantity, notices=Notices()
    )
    return snapshots.stream(network, quantity=quantity)


PASSED = {(time, node): value for time, node, value in ROWS}  # of one time and node, the last row
OBSERVED = np.array([[True, True], [False, True], [False, False], [True, False]])


def from_sumo(folder: Path, quantity: str) -> RoadNetworkStream:
    """Induction loops before both junctions write once a minute, throughout the steps in which they have a reading."""
    folder.mkdir()
    lanes = {"a": "ba", "b": "ab"}  # a loop counts at the end of its road
    roads = "".join(
        f'<edge id="{r}" from="{r[0]}" to="{r[1]}"><lane id="{r}_0" speed="14" length="800" shape="{x},0 {800 - x},0"/>'
        "</edge>"
        for r, x in (("ab", 0), ("ba", 800))
    )
    places = "".join(f'<junction id="{node}" x="{x}" y="0"/>' for node, x in (("a", 0), ("b", 800)))
    location = f'<location netOffset="-285000.00,-5492000.00" projParameter="{UTM}"/>'
    (folder / "x.net.xml").write_text(f"<net>{location}{roads}{places}</net>")
    (folder / "loops.add.xml").write_text(loops_xml({node: (f"{road}_0", 790) for node, road in lanes.items()}))
    minutes = [
        (time, time + 60, {node: PASSED.get((time, node), 0) for k, node in enumerate(NODES) if seen[k]})
        for step, seen in enumerate(OBSERVED)
        for time in range(300 * step, 300 * (step + 1), 60)
    ]
    (folder / "out.xml").write_text(loop_output_xml(minutes))
    files = [folder / "loops.add.xml", folder / "out.xml"]
    return import_sumo(folder / "x.net.xml", detectors=files, start=stamp(0), step="5min").stream


def from_traces(folder: Path, quantity: str) -> RoadNetworkStream:
    """As many vehicles as were counted drive past the node, from the middle of the block before to that of the next."""
    folder.mkdir()
    every_m = 2 * np.pi * EARTH_RADIUS_M / 360 * np.cos(np.radians(LAT[0])) * 0.005  # a block: half of a to b
    lon = LON[0] + 0.005 * np.arange(-1.0, 4)  # the city's end, a, between, b, the other end
    ends = np.arange(4), np.arange(1, 5)
    edges = Edges.of(np.concatenate(ends), np.concatenate(ends[::-1]), np.full(8, every_m))
    network = RoadNetwork(np.array(["w", "a", "m", "b", "e"]), lon, np.full(5, LAT[0]), edges)
    rows = ["vehicle,time,lon,lat"]
    vehicle = 0
    for (time, node), passing in PASSED.items():
        for _ in range(passing):
            vehicle += 1
            for k in range(-2, 3):  # 10 s apart; at the node itself 30 s after the time
                rows.append(f"{vehicle},{stamp(time + 30 + 10 * k)},{LON[NODES.index(node)] + 0.001 * k},{LAT[0]}")
    (folder / "x.csv").write_text("\n".join(rows) + "\n")
    stream = import_traces(folder / "x.csv", network, step="5min").stream
    both = [1, 3]
    only = replace(
        network,
        node_ids=network.node_ids[both],
        lon=lon[both],
        lat=network.lat[both],
        roads=Edges.none(),
        is_open=np.zeros(0, bool),
        present=network.present[both],
        passable=network.passable[both],
    )
    assert stream.values[:, 4].sum() == 0
    return replace(stream, values=stream.values[:, both], observed=stream.observed[:, both], networks=(only,))


SOURCES: dict[str, Callable[[Path, str], RoadNetworkStream]] = {
    "city folder": from_folder,
    "tables": from_tables,
    "matrix": from_matrix,
    "libcity": from_libcity,
    "benchmark": from_rows_of_a_benchmark,
    "sumo": from_sumo,
    "traces": from_traces,
}
COUNTS_ONLY = ("sumo", "traces")
EXPECTED = {  # snapshots at 00:00, 00:05, 00:10, 00:15
    "count": [[15, 1], [0, 2], [0, 0], [3, 0]],
    "speed": [[6, 1], [0, 2], [0, 0], [3, 0]],
}


@pytest.mark.parametrize(
    ("source", "quantity"),
    [
        (source, quantity)
        for source in SOURCES
        for quantity in EXPECTED
        if quantity == "count" or source not in COUNTS_ONLY
    ],
)
def test_every_source_makes_the_same_of_the_same_readings(tmp_path: Path, source: str, quantity: str) -> None:
    stream = SOURCES[source](tmp_path / "city", quantity)
    assert (stream.start_s, stream.step_s, stream.quantity) == (START_S, 300, quantity)
    assert [str(n) for n in stream.node_ids.tolist()] == NODES
    assert stream.values.tolist() == EXPECTED[quantity]
    # A fleet that reports at all passes every node, if only 0 times.
    observed = OBSERVED | OBSERVED.any(axis=1, keepdims=True) if source == "traces" else OBSERVED
    assert stream.observed.tolist() == observed.tolist()
