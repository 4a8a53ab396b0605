"""SUMO's files: the network that cars use, counts of edge data and induction loops, and files that are not right."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.coordinates import haversine_m
from frigate.errors import CityError, FrigateError
from frigate.roads.geometry import read_line
from frigate.roads.on_roads import on_roads
from frigate.sources.sumo.importer import import_sumo
from frigate.sources.sumo.net import road_class
from tests.support.errors import raises
from tests.support.shared_data import shared_data
from tests.support.sumo_files import (
    ROADS,
    UTM,
    Interval,
    all_roads,
    edge_xml,
    loop_output_xml,
    loops_xml,
    net_xml,
    small_files,
)

START_S = 1_704_067_200  # 2024-01-01T00:00Z

TURNS = {
    ("AB", "BC"),
    ("AB", "BC2"),
    ("AB", "BD"),
    ("BC", "CB"),
    ("BC2", "CB"),
    ("CB", "BA"),
    ("CB", "BD"),
    ("BD", "DB"),
    ("DB", "BA"),
    ("DB", "BC"),
    ("BA", "AB"),
}


@pytest.fixture
def town(tmp_path: Path) -> Path:
    path = tmp_path / "town.net.xml"
    path.write_text(net_xml(), encoding="utf-8")
    return path


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def by_node(city: City, snapshot: int) -> dict[str, float | None]:
    stream = city.stream
    cells = zip(stream.node_ids.tolist(), stream.values[snapshot], stream.observed[snapshot], strict=True)
    return {node: float(value) if seen else None for node, value, seen in cells}


# The network


def test_the_network_is_what_cars_can_use(town: Path) -> None:
    city = import_sumo(town)
    network = city.network
    assert network.node_ids.tolist() == ["A", "B", "C", "D"]
    ends = list(zip(network.node_ids[network.senders], network.node_ids[network.receivers], strict=True))
    assert [f"{a}{b}" for a, b in ends] == ["AB", "BA", "BC", "CB", "BD", "DB"]
    assert network.edges.road_class.tolist() == ["primary_link", "", "", "", "", ""]
    assert network.edges.lanes.tolist() == [2, 1, 1, 1, 1, 1]
    np.testing.assert_allclose(network.edges.speed_kph, 13.89 * 3.6)
    # A lane is 20 m shorter than its road, from junction to junction.
    np.testing.assert_allclose(network.length_m, [200, 200, 200, 200, 300, 300], atol=0.02)
    assert city.stream.num_snapshots == 0 and city.name == "town"
    said = "\n".join(city.notices)
    counted = "the shortest of each kept; their vehicles are still counted: 1"
    for notice in ("may not use, left out: 1", "without a road for cars, left out: 1", counted, "without any reading"):
        assert notice in said


def test_positions_are_those_on_the_map(tmp_path: Path) -> None:
    """Two junctions of Luxembourg: their places on OpenStreetMap, and where netconvert put them."""
    text = net_xml(location=f'<location netOffset="-285448.66,-5492398.13" projParameter="{UTM}"/>')
    text = text.replace('x="0" y="0"', 'x="6483.89" y="4641.57"').replace('x="200" y="0"', 'x="6710.05" y="8514.47"', 1)
    network = import_sumo(write(tmp_path, "lux.net.xml", text)).network
    assert network.node_ids.tolist()[:2] == ["A", "B"]
    np.testing.assert_allclose(network.lon[:2], [6.1209597, 6.1220357], atol=2e-7)
    np.testing.assert_allclose(network.lat[:2], [49.5900998, 49.624969], atol=2e-7)
    course = read_line(network.edges.geometry[0])
    np.testing.assert_allclose(course, np.stack([network.lon[:2], network.lat[:2]], axis=1), atol=1e-9)


@pytest.mark.parametrize("location", ["", '<location netOffset="0,0" projParameter="!"/>'])
@pytest.mark.parametrize("origin", [(6.13, 49.61), (-122.4, -37.8), (179.999, 0.0)])
def test_a_net_without_a_projection_lies_where_it_is_put(
    location: str, origin: tuple[float, float], tmp_path: Path
) -> None:
    path = write(tmp_path, "n.net.xml", net_xml(location=location).replace('x="400"', 'x="399"'))
    network = import_sumo(path, origin=origin).network
    at = {str(node): row for row, node in enumerate(network.node_ids)}
    lon = network.lon
    lat = network.lat
    np.testing.assert_allclose((lon[at["A"]], lat[at["A"]]), origin)
    for node, apart_m in (("B", 200), ("C", 399), ("D", np.hypot(200, 300))):
        away_m = haversine_m(lon[at["A"]], lat[at["A"]], lon[at[node]], lat[at[node]])
        np.testing.assert_allclose(away_m, apart_m, rtol=1e-4)
    assert 0 < (lon[at["B"]] - lon[at["A"]]) % 360 < 1 and lat[at["D"]] > lat[at["B"]]  # x is east, y is north


@pytest.mark.parametrize(
    ("origin", "named"),
    [
        ((49.61, 181.0), ("--origin", "49.61,181")),
        ((49.61, 106.13), ("--origin", "lon comes first")),
        ((6.13, 85.0), ("--origin", "80")),
        ((float("nan"), 49.0), ("--origin", "nan,49")),
    ],
)
def test_an_origin_that_is_no_place_is_refused(
    origin: tuple[float, float], named: tuple[str, ...], tmp_path: Path
) -> None:
    with raises(CityError, *named):
        import_sumo(write(tmp_path, "n.net.xml", net_xml(location="")), origin=origin)


def test_an_origin_for_a_net_that_has_a_place_is_refused(town: Path) -> None:
    with raises(CityError, "town.net.xml line", "--origin"):
        import_sumo(town, origin=(6.13, 49.61))


def test_a_net_that_leaves_the_earth_is_refused(tmp_path: Path) -> None:
    text = net_xml(location="").replace('x="200" y="0"', 'x="200" y="9e9"')
    with raises(CityError, "n.net.xml", "200,9e+09", "--origin"):
        import_sumo(write(tmp_path, "n.net.xml", text), origin=(6.13, 49.61))


def test_on_roads_parallel_roads_are_nodes_and_connections_edges(town: Path) -> None:
    city = import_sumo(town, on="roads")
    network = city.network
    assert network.node_ids.tolist() == list(ROADS)
    ids = network.node_ids
    turns = set(zip(ids[network.senders].tolist(), ids[network.receivers].tolist(), strict=True))
    # CB leads on, so it does not turn round; DB goes to BC2 by a lane that is not there.
    assert turns == TURNS
    assert "U-turns left out because the road leads on: 2." in city.notices
    entered = network.edges.take(ids[network.receivers] == "BC2")
    assert set(entered.road_class) == {"residential"} and set(entered.name) == {"Rue Longue"}
    half = network.length_m[(ids[network.senders] == "AB") & (ids[network.receivers] == "BC2")]
    np.testing.assert_allclose(half, [(200 + 400) / 2], atol=0.02)


def test_a_net_without_connections_allows_every_turn_but_back(tmp_path: Path) -> None:
    path = write(tmp_path, "bare.net.xml", re.sub(r"<connection [^>]*/>", "", net_xml()))
    city = import_sumo(path, on="roads")
    ids = city.network.node_ids
    network = city.network
    turns = set(zip(ids[network.senders].tolist(), ids[network.receivers].tolist(), strict=True))
    assert turns == TURNS | {("DB", "BC2")}
    assert any(n.startswith("Networks without connections") for n in city.notices)


@settings(max_examples=30)
@given(data=st.data())
def test_a_written_city_forbids_what_no_connection_makes(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Its line graph has the turns of the net's own: also at dead ends, and where a road ends without a way on."""
    folder = tmp_path_factory.mktemp("turns")
    net = re.sub(r'<edge id="BC2".*?</edge>|<connection [^>]*"BC2"[^>]*/>', "", net_xml(), flags=re.DOTALL)
    links = re.findall(r"<connection [^:>]*/>", net)
    for link in data.draw(st.sets(st.sampled_from(links[1:]))):  # a net without any turn is refused
        net = net.replace(link, "")
    path = write(folder, "town.net.xml", net)
    direct = import_sumo(path, on="roads")
    write_city(import_sumo(path), folder / "city")
    kept = on_roads(read_city(folder / "city"))
    ends = [[x.replace(">", "") for x in kept.node_ids[side].tolist()] for side in (kept.senders, kept.receivers)]
    line = direct.network
    theirs = zip(line.node_ids[line.senders].tolist(), line.node_ids[line.receivers].tolist(), strict=True)
    assert set(zip(*ends, strict=True)) == set(theirs)
    assert len(direct.forbidden_turns) == 0  # they are its edges


def test_a_turn_is_forbidden_where_no_parallel_road_makes_it(tmp_path: Path) -> None:
    def forbidden(net: str) -> list[str]:
        city = import_sumo(write(tmp_path, "n.net.xml", net))
        return ["".join(turn) for turn in city.network.node_ids[city.forbidden_turns].tolist()]

    assert forbidden(net_xml()) == []
    links = net_xml().splitlines()
    without = [line for line in links if 'from="AB" to="BC"' not in line]  # BC2 is still entered from AB
    assert forbidden("\n".join(without)) == []
    assert forbidden("\n".join(line for line in without if 'from="AB" to="BC2"' not in line)) == ["ABC"]
    assert forbidden(re.sub(r"<connection [^>]*/>", "", net_xml())) == []


@pytest.mark.parametrize(
    ("sumo_type", "ours"),
    [("highway.motorway_link", "motorway_link"), ("railway.tram|highway.primary", "primary"), ("my", "my"), ("", "")],
)
def test_road_classes(sumo_type: str, ours: str) -> None:
    assert road_class(sumo_type) == ours


def test_an_own_length_is_kept(tmp_path: Path) -> None:
    """A lane may be declared longer than it is drawn: then its own length counts, with the stretch in the junctions."""
    path = write(tmp_path, "n.net.xml", net_xml().replace('length="280.00"', 'length="1280.00"'))
    network = import_sumo(path).network
    np.testing.assert_allclose(network.length_m, [200, 200, 200, 200, 1300, 1300], atol=0.02)


# Counts


@settings(max_examples=25)
@given(data=st.data())
def test_a_junction_counts_what_leaves_the_roads_into_it(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("counts")
    left = data.draw(
        st.lists(st.fixed_dictionaries({r: st.integers(0, 99) for r in (*ROADS, "CE")}), min_size=1, max_size=4)
    )
    net = write(folder, "n.net.xml", net_xml())
    edges = write(folder, "e.xml", edge_xml((300 * i, 300 * i + 300, counts) for i, counts in enumerate(left)))
    city = import_sumo(net, edgedata=[edges])
    assert (city.stream.start_s, city.stream.step_s, city.stream.unit) == (START_S, 300, "vehicles")
    for i, counts in enumerate(left):
        into: Counter[str] = Counter()
        for road in ROADS:
            into[road[1]] += int(counts[road])
        assert by_node(city, i) == {node: into[node] for node in "ABCD"}
        assert by_node(import_sumo(net, edgedata=[edges], on="roads"), i) == {r: counts[r] for r in ROADS}


@pytest.mark.parametrize("kind", ["edgedata", "loop_output"])
def test_gzip_is_known_by_its_bytes(tmp_path: Path, kind: str) -> None:
    files = small_files(tmp_path)
    misnamed = tmp_path / "misnamed.xml"
    shutil.copy(files[f"{kind}_gz"], misnamed)
    for net in (files["net"], files["net_gz"]):
        streams = []
        for file in (files[kind], files[f"{kind}_gz"], misnamed):
            given: dict[str, Any] = (
                {"edgedata": [file]} if kind == "edgedata" else {"detectors": [files["loops_gz"], file]}
            )
            streams.append(import_sumo(net, **given).stream)
        for other in streams[1:]:
            np.testing.assert_array_equal(other.values, streams[0].values)
            np.testing.assert_array_equal(other.observed, streams[0].observed)


def test_files_follow_each_other_and_what_is_missing_is_a_gap(town: Path, tmp_path: Path) -> None:
    first = write(tmp_path, "a.xml", edge_xml([(0, 300, all_roads(1))]))
    second = write(tmp_path, "b.xml", edge_xml([(900, 1200, all_roads(2))]))
    for files in ([first, second], [second, first]):
        stream = import_sumo(town, edgedata=files).stream
        assert stream.observed.all(axis=1).tolist() == [True, False, False, True]
        assert stream.values.max(axis=1).tolist() == [3, 0, 0, 6]
    with raises(CityError, '"AB"', "two counts"):
        import_sumo(town, edgedata=[first, first])
    stream = import_sumo(
        town, edgedata=[first, first], start=["2024-03-30T00:00", "2024-03-31T00:00"], timezone="Europe/Luxembourg"
    ).stream
    assert stream.num_snapshots == 289
    assert stream.local_time(stream.start_s) == "2024-03-30T00:00:00+01:00"
    with raises(CityError, "2 starts for 1 files"):
        import_sumo(town, edgedata=[first], start=["2024-03-30", "2024-03-31"])


def test_roads_that_an_interval_does_not_list(town: Path, tmp_path: Path) -> None:
    every = {"AB": 3, "CB": 4, "DB": 5, "BA": 6}
    same = write(tmp_path, "same.xml", edge_xml([(0, 300, every), (300, 600, every)]))
    city = import_sumo(town, edgedata=[same])
    # BC, BC2 and BD are never listed: C and D are not known.
    assert by_node(city, 0) == {"A": 6, "B": 12, "C": None, "D": None}
    assert "Roads that are not in the edge data, taken as not observed: 3." in city.notices
    empty = write(tmp_path, "empty.xml", edge_xml([(0, 300, every), (300, 600, {"BC": 1}), (600, 900, {})]))
    city = import_sumo(town, edgedata=[empty])
    assert [by_node(city, i) for i in range(3)] == [
        {"A": 6, "B": 12, "C": 0, "D": 0},
        {"A": 0, "B": 0, "C": 1, "D": 0},
        {"A": 0, "B": 0, "C": 0, "D": 0},
    ]
    assert any(n.startswith("Counts taken as 0 because an interval does not list the road") for n in city.notices)


def test_a_longer_step_sums_whole_intervals_only(town: Path, tmp_path: Path) -> None:
    parts = [(300 * i, 300 * i + 300, all_roads(i)) for i in (0, 1, 2, 3, 5)] + [(1800, 1801, all_roads(9))]
    file = write(tmp_path, "e.xml", edge_xml(parts))
    city = import_sumo(town, edgedata=[file], step="10min", on="roads")
    assert by_node(city, 0)["AB"] == 1 and by_node(city, 1)["AB"] == 5
    assert city.stream.num_snapshots == 2  # the third lacks an interval, the fourth lasts a second
    said = "\n".join(city.notices)
    assert "Counts that cover only part of a step, taken as not observed: 14." in said
    usual = import_sumo(town, edgedata=[file]).stream
    assert usual.step_s == 300 and usual.num_snapshots == 6
    with raises(CityError, "300 s", "1min", "5min"):
        import_sumo(town, edgedata=[file], step="1min")
    with raises(CityError, "10min"):
        import_sumo(town, edgedata=[file], step="10min", start="2024-01-01T00:08")


def test_times_as_clock(town: Path, tmp_path: Path) -> None:
    text = edge_xml([(0, 300, all_roads(1))]).replace('begin="0" end="300"', 'begin="07:00:00.00" end="1:00:00:00"')
    with raises(CityError, "17h"):
        import_sumo(town, edgedata=[write(tmp_path, "e.xml", text)])
    text = text.replace("1:00:00:00", "07:05:00")
    stream = import_sumo(town, edgedata=[write(tmp_path, "e.xml", text)], timezone="Europe/Luxembourg").stream
    assert stream.local_time(stream.start_s) == "2024-01-01T07:00:00+01:00"


def test_roads_and_vehicles_that_are_not_ours(town: Path, tmp_path: Path) -> None:
    extra = all_roads(1) | {":B_0": 50, "CE": 50, "nowhere": 50}
    city = import_sumo(town, edgedata=[write(tmp_path, "e.xml", edge_xml([(0, 300, extra)]))])
    assert by_node(city, 0) == {"A": 1, "B": 3, "C": 2, "D": 1}
    assert 'Roads of the edge data that are not in the network, left out: 1 (first: "nowhere").' in city.notices
    other = {f"x{i}": 1.0 for i in range(9)} | all_roads(1)
    with raises(CityError, "e.xml", '"x0"', "9 of 17"):
        import_sumo(town, edgedata=[write(tmp_path, "e.xml", edge_xml([(0, 300, other)]))])


# Loops


def loop_city(folder: Path, intervals: Sequence[Interval], *, on: str, loops: str | None = None) -> City:
    net = write(folder, "n.net.xml", net_xml())
    placed = write(folder, "loops.add.xml", loops or loops_xml())
    return import_sumo(net, detectors=[write(folder, "e1.xml", loop_output_xml(intervals)), placed], on=on)


def test_loops_are_summed_where_all_of_a_road_report(tmp_path: Path) -> None:
    intervals = [
        (0, 300, {"ab0": 3, "ab1": 4, "ab0early": 90, "db": 5, "bus": 7}),
        (300, 600, {"ab0": 3, "db": 6}),
        (600, 900, {"ab0": 1, "ab1": 1}),
    ]
    city = loop_city(tmp_path, intervals, on="roads")
    assert [by_node(city, i)["AB"] for i in range(3)] == [7, None, 2]
    assert [by_node(city, i)["DB"] for i in range(3)] == [5, 6, None]
    assert city.stream.sensors.sum() == 2
    said = "\n".join(city.notices)
    assert "Loops on lanes that passenger cars may not use, left out: 1." in said
    assert "Loops upstream of another loop on the same lane, left out: 1." in said
    assert "not in the network" not in said and "additional files" not in said
    city = loop_city(tmp_path, intervals, on="nodes")
    assert by_node(city, 0) == {"A": None, "B": 12, "C": None, "D": None}
    assert city.stream.num_snapshots == 1  # later B is never whole
    assert any("only some of the roads to them" in n and "1 (first: junction" in n for n in city.notices)


def test_a_road_with_a_loop_on_one_of_two_lanes_says_so(tmp_path: Path) -> None:
    city = loop_city(tmp_path, [(0, 300, {"ab1": 2})], on="roads", loops=loops_xml({"ab1": ("AB_1", 1)}))
    assert by_node(city, 0)["AB"] == 2
    assert any("loops on only some of their lanes" in n and 'road "AB"' in n for n in city.notices)


def test_loops_of_two_periods_need_a_step(tmp_path: Path) -> None:
    net = write(tmp_path, "n.net.xml", net_xml())
    intervals: list[Interval] = [(60 * i, 60 * i + 60, {"db": 1}) for i in range(10)]
    intervals += [(0, 300, {"ab0": 9, "ab1": 9}), (300, 600, {"ab0": 1, "ab1": 1})]
    files = [write(tmp_path, "l.xml", loops_xml()), write(tmp_path, "e1.xml", loop_output_xml(intervals))]
    with raises(CityError, "5min"):
        import_sumo(net, detectors=files)
    city = import_sumo(net, detectors=files, step="5min", on="roads")
    assert [by_node(city, i)["AB"] for i in (0, 1)] == [18, 2]
    assert [by_node(city, i)["DB"] for i in (0, 1)] == [5, 5]


@pytest.mark.parametrize("on", ["nodes", "roads"])
def test_an_imported_city_comes_back_from_disk(town: Path, tmp_path: Path, on: str) -> None:
    files = small_files(tmp_path)
    city = import_sumo(town, edgedata=[files["edgedata"]], on=on, name="Here")
    write_city(city, tmp_path / "city")
    back = read_city(tmp_path / "city")
    assert back.name == "Here" and back.network.fingerprint == city.network.fingerprint
    np.testing.assert_array_equal(back.stream.values, city.stream.values)
    np.testing.assert_array_equal(back.stream.observed, city.stream.observed)


# What is not right


BOMB = '<!DOCTYPE net [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE net [<!ENTITY x SYSTEM "file:///etc/hostname">]>'
REFUSED_NETS: dict[str, tuple[Callable[[], str | bytes], tuple[str, ...]]] = {
    "bomb": (lambda: net_xml().replace("<net", f"{BOMB}<net", 1), ("n.net.xml line 3", "document type")),
    "outside": (lambda: net_xml().replace("<net", f"{OUTSIDE}<net", 1), ("n.net.xml", "document type")),
    "empty": (lambda: "", ("n.net.xml", "empty")),
    "cut": (lambda: net_xml()[:-200], ("n.net.xml", "cut short")),
    "not xml": (lambda: "from,to\n1,2\n", ("n.net.xml line 1", "XML")),
    "not text": (lambda: bytes(range(256)) * 9, ("n.net.xml line 1", "XML")),
    "latin": (lambda: net_xml().replace("Rue", "Rué").encode("latin-1"), ("n.net.xml", "XML")),
    "encoding": (lambda: '<?xml version="1.0" encoding="no-such"?><net/>', ("n.net.xml",)),
    "root": (lambda: "<routes/>", ("n.net.xml", "<routes>")),
    "nothing": (lambda: "<net/>", ("n.net.xml", "0 roads", "0 junctions")),
    "deep": (lambda: "<net>" + "<a>" * 200, ("n.net.xml line 1", "cut short")),
    "long": (lambda: f"<net a='{'x' * (5 << 20)}'/>", ("n.net.xml", "0 roads", "0 junctions")),
    "no cars": (
        lambda: re.sub(r'(dis)?allow="[a-z ]*"', "", net_xml()).replace("speed=", 'allow="rail" speed='),
        ("n.net.xml", "8 roads"),
    ),
    "no place": (
        lambda: net_xml(location='<location netOffset="0,0" projParameter="!"/>'),
        ("n.net.xml", 'projParameter="!"', "--origin LON,LAT"),
    ),
    "no location": (lambda: net_xml(location=""), ("n.net.xml", "no place on earth", "--origin LON,LAT")),
    "projection": (
        lambda: net_xml(location='<location netOffset="0,0" projParameter="+proj=nix"/>'),
        ("projParameter", '"+proj=nix"'),
    ),
    "offset": (
        lambda: net_xml(location=f'<location netOffset="0" projParameter="{UTM}"/>'),
        ('netOffset "0"', "x,y"),
    ),
    "far": (
        lambda: net_xml(location=f'<location netOffset="-1e11,0" projParameter="{UTM}"/>'),
        ("n.net.xml", "not on earth"),
    ),
    "nan": (lambda: net_xml().replace('x="200"', 'x="nan"', 1), ("n.net.xml line", 'x "nan"')),
    "speed": (
        lambda: net_xml().replace('speed="13.89"', 'speed="130"'),
        ("n.net.xml line", "speed 130"),
    ),
    "length": (
        lambda: net_xml().replace('length="180.00"', 'length="-1"'),
        ("n.net.xml line", "length -1"),
    ),
    "shape": (lambda: net_xml().replace("400.00,-100.00,5.00", "400.00"), ('"400.00"', "x,y,z")),
    "junction": (
        lambda: net_xml(
            roads='<edge id="AZ" from="A" to="Z"><lane id="AZ_0" speed="9" length="9" shape="0,0 1,1"/></edge>'
        ),
        ('"AZ"', '"Z"'),
    ),
    "road twice": (
        lambda: net_xml(roads='<edge id="AB" from="A" to="B"/>'),
        ('road "AB"', "line"),
    ),
    "junction twice": (lambda: net_xml(junctions='<junction id="A" x="1" y="1"/>'), ('junction "A"',)),
    "no id": (lambda: net_xml(roads="<edge/>"), ("n.net.xml line", "<edge>", "id")),
}


@pytest.mark.parametrize("what", REFUSED_NETS)
def test_a_net_that_is_refused(tmp_path: Path, what: str) -> None:
    make, named = REFUSED_NETS[what]
    text = make()
    path = tmp_path / "n.net.xml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with raises(CityError, *named):
        import_sumo(path)


def meandata(edges: str, root: str = "meandata") -> str:
    return f'<{root}><interval begin="0" end="300">{edges}</interval></{root}>'


REFUSED_COUNTS: dict[str, tuple[Callable[[Path], dict[str, Any]], tuple[str, ...]]] = {
    "no file": (lambda d: {"edgedata": [d / "none.xml"]}, ("none.xml", "no such file")),
    "a folder": (lambda d: {"edgedata": [d]}, ("Is a directory",)),
    "net for edges": (lambda d: {"edgedata": [d / "town.net.xml"]}, ("town.net.xml", "road network")),
    "edges for loops": (lambda d: {"detectors": [d / "edge.xml"]}, ("edge.xml", "edge data", "additional file")),
    "no output": (lambda d: {"detectors": [d / "loops.add.xml"]}, ("1 additional", "0 output")),
    "both": (lambda d: {"detectors": [d / "e1.xml"], "edgedata": [d / "edge.xml"]}, ("different things",)),
    "on": (lambda d: {"on": "lanes"}, ('on "lanes"',)),
    "start": (lambda d: {"start": "noon", "edgedata": [d / "edge.xml"]}, ('start "noon"',)),
    "zone": (lambda d: {"timezone": "Mars"}, ('time zone "Mars"',)),
    "only entered": (
        lambda d: {"edgedata": [write(d, "x.xml", meandata('<edge id="AB" entered="3" speed="9"/>'))]},
        ("x.xml", "left", "only entered, speed", "writeAttributes"),
    ),
    "no attribute": (
        lambda d: {"edgedata": [write(d, "x.xml", meandata('<edge id="AB"/>'))]},
        ("x.xml", "left", "nor any other", "writeAttributes"),
    ),
    "lane data": (
        lambda d: {"edgedata": [write(d, "x.xml", meandata('<edge id="AB"><lane id="AB_0" left="3"/></edge>'))]},
        ("x.xml", "left", "lane data", "<edgeData>"),
    ),
    "emissions": (
        lambda d: {"edgedata": [write(d, "x.xml", meandata('<edge id="AB" CO2_abs="3" traveltime="2"/>'))]},
        ("x.xml", "left", "emissions", "CO2_abs", "without a type"),
    ),
    "counts for routeSampler": (
        lambda d: {"edgedata": [write(d, "x.xml", meandata('<edge id="AB" count="3"/>'))]},
        ("x.xml", "left", "routeSampler"),
    ),
    "data of routeSampler": (
        lambda d: {"edgedata": [write(d, "x.xml", meandata('<edge id="AB" entered="3"/>', root="data"))]},
        ("x.xml", "routeSampler", "frigate import tables"),
    ),
    "no intervals": (lambda d: {"edgedata": [write(d, "x.xml", "<meandata/>")]}, ("x.xml", "interval")),
    "backwards": (
        lambda d: {"edgedata": [write(d, "x.xml", edge_xml([(300, 0, all_roads(1))]))]},
        ("x.xml line 4", '"300"', '"0"'),
    ),
    "far": (
        lambda d: {"edgedata": [write(d, "x.xml", edge_xml([(0, 1e30, all_roads(1))]))]},
        ("x.xml line 4", "too large"),
    ),
    "late": (lambda d: {"edgedata": [write(d, "x.xml", edge_xml([(0, 1e11, all_roads(1))]))]}, ("x.xml line 4",)),
    "word": (
        lambda d: {"edgedata": [write(d, "x.xml", edge_xml([(0, 300, {"AB": "many"})]))]},  # type: ignore[dict-item]
        ("x.xml line 5", 'left "many"'),
    ),
    "negative": (
        lambda d: {"edgedata": [write(d, "x.xml", edge_xml([(0, 300, {"AB": -1})]))]},
        ("x.xml line 5", 'left "-1"'),
    ),
    "odd step": (lambda d: {"edgedata": [write(d, "x.xml", edge_xml([(0, 7, all_roads(1))]))]}, ("intervals", "7s")),
    "half seconds": (
        lambda d: {"edgedata": [write(d, "x.xml", edge_xml([(0, 0.5, all_roads(1))]))]},
        ("intervals", "0.5 s"),
    ),
    "mistaken time": (
        lambda d: {"edgedata": [write(d, "x.xml", edge_xml([(0, 1, all_roads(1)), (3e9, 3e9 + 1, all_roads(1))]))]},
        ("2119-01-25T05:20:00Z", "an interval of 1 s"),
    ),
    "two in one file": (
        lambda d: {"edgedata": [write(d, "x.xml", edge_xml([(0, 300, all_roads(1)), (0, 600, all_roads(1))]))]},
        ('"AB"', "several measurements"),
    ),
    "cut gzip": (lambda d: {"edgedata": [_cut(d / "edge.xml.gz")]}, ("edge.xml.gz", "cut short")),
    "lost gzip": (lambda d: {"edgedata": [_cut(d / "edge.xml.gz", keep=2)]}, ("edge.xml.gz",)),
    "loop twice": (
        lambda d: {"detectors": [d / "e1.xml", d / "loops.add.xml", d / "loops.add.xml"]},
        ("loops.add.xml line", '"ab0"'),
    ),
    "other lanes": (
        lambda d: {"detectors": [d / "e1.xml", write(d, "x.xml", loops_xml({"a": ("ZZ_0", 1)}))]},
        ("x.xml", '"ZZ_0"'),
    ),
    "bus loops": (
        lambda d: {"detectors": [d / "e1.xml", write(d, "x.xml", loops_xml({"a": ("CE_0", 1)}))]},
        ("x.xml", "induction loop"),
    ),
    "other loops": (
        lambda d: {"detectors": [d / "e1.xml", write(d, "x.xml", loops_xml({"zz": ("AB_0", 1)}))]},
        ("e1.xml", '"ab0"', "5 of 5"),
    ),
    "not e1": (
        lambda d: {
            "detectors": [
                d / "loops.add.xml",
                write(d, "x.xml", '<detector><interval begin="0" end="1" id="a"/></detector>'),
            ]
        },
        ("x.xml", "nVehContrib"),
    ),
}


def _cut(path: Path, *, keep: int = 100) -> Path:
    path.write_bytes(path.read_bytes()[:keep])
    return path


@pytest.mark.parametrize("what", REFUSED_COUNTS)
def test_counts_that_are_refused(tmp_path: Path, what: str) -> None:
    files = small_files(tmp_path)
    options, named = REFUSED_COUNTS[what]
    with raises(CityError, *named):
        import_sumo(files["net"], **options(tmp_path))


def test_a_file_that_expands_a_thousandfold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRIGATE_READ_SECONDS", "0.2")
    path = tmp_path / "bomb.net.xml.gz"
    block = b'<type a="%s"/>' % (b"x" * 10_000) * 100
    packed = gzip.compress(block)
    assert len(packed) * 500 < len(block)
    path.write_bytes(gzip.compress(b"<net>") + packed * 1000 + gzip.compress(b"</net>"))  # whole: the limit refuses it
    with raises(CityError, "bomb.net.xml.gz", "0.2 s"):
        import_sumo(path)


@pytest.mark.parametrize("kind", ["net", "edgedata", "loops", "loop_output", "net_gz", "edgedata_gz"])
def test_damaged_files_give_an_error_or_a_city(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for _ in range(40):
        files = small_files(tmp_path)
        data = bytearray(files[kind].read_bytes())
        at = rng.integers(0, len(data), rng.integers(1, 6))
        how = rng.integers(3)
        if how == 0:
            for i in at:
                data[i] = rng.integers(256)
        elif how == 1:
            data = data[: at[0]]
        else:
            data = data[: at[0]] + data[at[0] // 2 : at[0]] + data[at[0] :]
        files[kind].write_bytes(data)
        stem = kind.removesuffix("_gz")
        given = {stem: files[kind]}
        net = given.get("net", files["net"])
        try:
            if "loop" in kind:
                placed = given.get("loops", files["loops"])
                output = given.get("loop_output", files["loop_output"])
                city = import_sumo(net, detectors=[placed, output])
            else:
                city = import_sumo(net, edgedata=[given.get("edgedata", files["edgedata"])])
        except FrigateError:
            continue
        assert np.isfinite(city.stream.values).all() and np.isfinite(city.network.length_m).all()


# SUMO itself, where it is installed


def _run_sumo(folder: Path) -> None:
    """A grid of 25 junctions on earth, 400 random trips of half an hour, and what SUMO measured."""
    rng = np.random.default_rng(0)
    nodes = [f'<node id="{x}_{y}" x="{6 + 0.003 * x}" y="{49 + 0.002 * y}"/>' for x in range(5) for y in range(5)]
    pairs = [
        ((x, y), (x + i, y + j))
        for x in range(5)
        for y in range(5)
        for i, j in ((1, 0), (0, 1))
        if x + i < 5 and y + j < 5
    ]
    pairs += [(b, a) for a, b in pairs]
    edges = [
        f'<edge id="{a[0]}{a[1]}{b[0]}{b[1]}" from="{a[0]}_{a[1]}" to="{b[0]}_{b[1]}" numLanes="2"/>' for a, b in pairs
    ]
    write(folder, "g.nod.xml", f"<nodes>{''.join(nodes)}</nodes>")
    write(folder, "g.edg.xml", f"<edges>{''.join(edges)}</edges>")
    subprocess.run(
        ["netconvert", "-n", "g.nod.xml", "-e", "g.edg.xml", "--proj.utm", "-o", "g.net.xml"], cwd=folder, check=True
    )
    names = [f"{a[0]}{a[1]}{b[0]}{b[1]}" for a, b in pairs]
    trips = [rng.choice(names, 2, replace=False) for _ in range(400)]
    lines = [f'<trip id="{i}" depart="{4 * i}" from="{a}" to="{b}"/>' for i, (a, b) in enumerate(trips)]
    write(folder, "t.xml", f"<routes>{''.join(lines)}</routes>")
    loops = [
        f'<inductionLoop id="l{n}_{i}" lane="{n}_{i}" pos="-40" period="300" file="e1.xml"/>'
        for n in names
        for i in (0, 1)
    ]
    data = """<edgeData id="e" file="edge.xml" period="300"/>
        <edgeData id="x" file="some.xml.gz" period="300" excludeEmpty="true"/>"""
    write(folder, "a.xml", f"<additional>{data}{''.join(loops)}</additional>")
    measure = ["--vehroute-output", "routes.xml", "--vehroute-output.exit-times", "--end", "3000", "--no-step-log"]
    subprocess.run(["sumo", "-n", "g.net.xml", "-r", "t.xml", "-a", "a.xml", *measure], cwd=folder, check=True)


@pytest.mark.slow
def test_counts_are_the_passages_of_the_routes_that_sumo_drove(tmp_path: Path) -> None:
    if not (shutil.which("sumo") and shutil.which("netconvert")):
        pytest.skip("SUMO is not installed")
    _run_sumo(tmp_path)
    passed: Counter[tuple[int, str]] = Counter()
    driven: Counter[tuple[int, str]] = Counter()
    for vehicle in ET.parse(tmp_path / "routes.xml").getroot().iter("vehicle"):
        route = next(vehicle.iter("route"))
        times = [int(float(time) // 300) for time in route.attrib["exitTimes"].split()]
        exits = list(zip(times, route.attrib["edges"].split(), strict=True))
        driven.update(exits)
        passed.update((time, f"{road[2]}_{road[3]}") for time, road in exits[:-1])  # at the last one it arrives
    for file in ("edge.xml", "some.xml.gz"):
        city = import_sumo(tmp_path / "g.net.xml", edgedata=[tmp_path / file])
        assert city.stream.observed.all()
        truth = [[passed[t, node] for node in city.stream.node_ids.tolist()] for t in range(city.stream.num_snapshots)]
        np.testing.assert_array_equal(city.stream.values, truth)
    network = city.network
    place = {node: (float(node[0]), float(node[2])) for node in network.node_ids.tolist()}
    np.testing.assert_allclose(network.lon, [6 + 0.003 * place[n][0] for n in network.node_ids.tolist()], atol=1e-6)
    np.testing.assert_allclose(network.lat, [49 + 0.002 * place[n][1] for n in network.node_ids.tolist()], atol=1e-6)
    loops = import_sumo(tmp_path / "g.net.xml", detectors=[tmp_path / "a.xml", tmp_path / "e1.xml"], on="roads").stream
    assert loops.observed.all() and loops.values.sum() > 1000
    truth = [[driven[t, road] for road in loops.node_ids.tolist()] for t in range(loops.num_snapshots)]
    # The loops lie 40 m before the end: some vehicles pass them in one step and leave in the next.
    assert np.abs(loops.values - truth).mean() < 0.2
    assert np.abs((loops.values - truth).sum(axis=0)).mean() < 0.05


@pytest.mark.shared
@pytest.mark.slow
def test_the_network_of_lux_sim_is_built_again(tmp_path: Path) -> None:
    folder = shared_data("lux-sim")
    maps = shared_data("osm-extracts")
    if not shutil.which("netconvert"):
        pytest.skip("SUMO is not installed")
    options = ["--junctions.join", "--geometry.remove", "--ramps.guess", "--keep-edges.by-vclass", "passenger"]
    osm = str(maps / "luxembourg_city_lust.osm.gz")
    subprocess.run(["netconvert", "--osm-files", osm, "-o", "lux.net.xml", *options], cwd=tmp_path, check=True)
    network = import_sumo(tmp_path / "lux.net.xml").network
    theirs = pl.read_parquet(folder / "nodes.parquet")
    row_of = {node: row for row, node in enumerate(network.node_ids.tolist())}
    rows = [(i, row_of[s]) for i, s in enumerate(theirs["source_id"]) if s in row_of]
    assert len(rows) > 0.99 * len(theirs)
    at, ours = np.array(rows).T
    np.testing.assert_allclose(network.lon[ours], theirs["lon"].to_numpy()[at], atol=2e-6)
    np.testing.assert_allclose(network.lat[ours], theirs["lat"].to_numpy()[at], atol=2e-6)
