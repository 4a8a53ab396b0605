"""OpenStreetMap files: every format gives the same network, and the network drives as the map does."""

from __future__ import annotations

import bz2
import gzip
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from frigate.city.folder import read_city, write_city
from frigate.city.network import Edges, RoadNetwork
from frigate.coordinates import haversine_m
from frigate.errors import CityError
from frigate.reading.notices import Notices
from frigate.roads.on_roads import on_roads
from frigate.sources.osm.files import open_map, read_osmium
from frigate.sources.osm.importer import DRIVABLE, OsmRoads, import_osm, read_osm
from frigate.sources.osm.tags import RoadKind, road_kind, speed_kph
from frigate.sources.osm.ways import Gathered
from frigate.sources.tables.importer import import_tables
from frigate.sources.timezones import timezone_of
from tests.support.command_line import assert_refused, frigate
from tests.support.errors import names, raises
from tests.support.osm_files import Map, Member, crossing, small_files, uncompressed
from tests.support.shared_data import shared_data


def write(folder: Path, text: str | bytes, name: str = "town.osm") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def points(wkb: bytes) -> np.ndarray:
    order, kind, count = struct.unpack_from("<BII", wkb)
    assert (order, kind) == (1, 2)
    return np.frombuffer(wkb, "<f8", offset=9).reshape(count, 2)


def roads_of(network: RoadNetwork) -> dict[tuple[Any, Any], int]:
    ids = network.node_ids
    return {
        pair: row
        for row, pair in enumerate(zip(ids[network.senders].tolist(), ids[network.receivers].tolist(), strict=True))
    }


def turns_of(roads: OsmRoads) -> set[tuple[int, ...]]:
    return {tuple(turn) for turn in roads.network.node_ids[roads.forbidden_turns].tolist()}


# Formats


def test_every_format_gives_the_same_network(tmp_path: Path) -> None:
    held = {kind: read_osm(path) for kind, path in small_files(tmp_path).items()}
    first = held["osm"]
    assert first.network.node_ids.tolist() == [1, 2, 3, 4, 5]
    assert sorted(roads_of(first.network)) == [(1, 5), (2, 4), (2, 5), (3, 5), (4, 5), (5, 1), (5, 2), (5, 3), (5, 4)]
    for kind, other in held.items():
        assert roads_of(other.network).keys() == roads_of(first.network).keys(), kind
        for pair, row in roads_of(first.network).items():
            there = roads_of(other.network)[pair]
            a = first.network.edges
            b = other.network.edges
            assert b.length_m[there] == pytest.approx(a.length_m[row], rel=1e-6), kind
            assert b.road_class[there] == a.road_class[row] and b.speed_kph[there] == a.speed_kph[row], kind
            assert np.array_equal(b.lanes[there], a.lanes[row], equal_nan=True) and b.name[there] == a.name[row], kind
            np.testing.assert_allclose(points(b.geometry[there]), points(a.geometry[row]), atol=1e-7)
        if kind != "graphml":  # which has no restrictions
            assert turns_of(other) == {(1, 5, 4)}, kind


def test_attributes_go_with_the_direction(tmp_path: Path) -> None:
    network = read_osm(small_files(tmp_path)["osm.pbf"]).network
    row = roads_of(network)
    edges = network.edges
    assert edges.speed_kph[row[1, 5]] == pytest.approx(48.28) and edges.lanes[row[1, 5]] == 1.5
    assert edges.name[row[5, 1]] == "Rue à l'Eau"
    bend = points(edges.geometry[row[2, 4]])
    assert bend.tolist() == [[6.12, 49.6], [6.121, 49.608], [6.11, 49.61]]
    assert edges.lanes[row[2, 4]] == 2 and edges.speed_kph[row[2, 4]] == 45  # tertiary, no limit given


def test_city_survives_its_folder(tmp_path: Path) -> None:
    city = import_osm(small_files(tmp_path)["osm.gz"], step="15min", timezone="Europe/Luxembourg")
    assert city.name == "town" and city.stream.num_snapshots == 0 and city.stream.step_s == 900
    write_city(city, tmp_path / "city")
    again = read_city(tmp_path / "city").network
    assert again.node_ids.tolist() == city.network.node_ids.tolist()
    assert roads_of(again).keys() == roads_of(city.network).keys()


def test_sieve_of_osmium_finds_the_same_places(tmp_path: Path) -> None:
    town = crossing()
    far = {i: (i if i < 4 else i + (7 << 31)) for i in town.nodes}  # ids of two spans
    spread = Map(
        {far[i]: p for i, p in town.nodes.items()}, [(w, [far[r] for r in refs], t) for w, refs, t in town.ways]
    )
    spread.write_pbf(tmp_path / "spread.osm.pbf")
    file = open_map(tmp_path / "spread.osm.pbf")
    sieved, plain = (read_osmium(file, Gathered(frozenset(DRIVABLE), Notices()), filtered=f) for f in (True, False))
    assert np.isfinite(plain.lon).all()
    assert np.array_equal(sieved.lon, plain.lon) and np.array_equal(sieved.lat, plain.lat)


# Simplification


@st.composite
def maps(draw: st.DrawFn) -> Map:
    side = draw(st.integers(2, 4))
    ids = draw(st.permutations([i - side for i in range(side * side)]))  # some negative
    nodes = {n: (6 + 0.01 * (k % side), 49 + 0.01 * (k // side)) for k, n in enumerate(ids)}
    ways = []
    for way in range(draw(st.integers(1, 6))):
        refs = draw(st.lists(st.sampled_from(ids), min_size=2, max_size=7))
        oneway = draw(st.sampled_from(["yes", "no", "-1", "reversible", "", ""]))
        speed = draw(st.sampled_from(["30", "50", "20 mph"]))
        tags = {"highway": draw(st.sampled_from(["residential", "primary"])), "maxspeed": speed}
        ways.append((way + 1, refs, tags | ({"oneway": oneway} if oneway else {})))
    return Map(nodes, ways)


def segment_graph(town: Map) -> dict[tuple[int, int], float]:
    """Length of every directed stretch between one node of a way and the next."""
    found: dict[tuple[int, int], float] = {}
    for _, refs, tags in town.ways:
        kind = road_kind(tags, highways=DRIVABLE, notices=Notices())
        assert kind is not None
        for a, b in pairwise(refs):
            metres = float(haversine_m(*(np.array(x) for x in (*town.nodes[a], *town.nodes[b]))))
            if a != b:
                found |= {(a, b): metres} if kind.forward else {}
                found |= {(b, a): metres} if kind.backward else {}
    return found


def distances(pairs: dict[tuple[int, int], float], ids: list[int]) -> np.ndarray:
    row = {n: i for i, n in enumerate(ids)}
    s, r = ([row[p[k]] for p in pairs] for k in (0, 1))
    return np.asarray(dijkstra(coo_array((list(pairs.values()), (s, r)), shape=(len(ids), len(ids))).tocsr()))


@settings(max_examples=80)
@given(town=maps())
def test_network_drives_as_the_map_does(town: Map, tmp_path_factory: pytest.TempPathFactory) -> None:
    pairs = segment_graph(town)
    path = write(tmp_path_factory.mktemp("map"), town.xml())
    if not pairs:
        with pytest.raises(CityError):
            read_osm(path, keep_all=True)
        return
    network = read_osm(path, keep_all=True).network
    edges = network.edges
    ids = network.node_ids.tolist()
    assert (edges.senders != edges.receivers).all() and len(roads_of(network)) == len(edges)
    assert edges.length_m.sum() == pytest.approx(sum(pairs.values()), rel=1e-6)  # no road is lost, none is doubled
    driven: list[tuple[int, int]] = []
    place_of = {(round(x, 7), round(y, 7)): n for n, (x, y) in town.nodes.items()}
    for (a, b), row in roads_of(network).items():
        line = [place_of[round(x, 7), round(y, 7)] for x, y in points(edges.geometry[row]).tolist()]
        assert line[0] == a and line[-1] == b
        stretches = list(pairwise(line))
        assert edges.length_m[row] == pytest.approx(sum(pairs[p] for p in stretches), rel=1e-6)
        driven += stretches
    assert sorted(driven) == sorted(pairs)
    every = sorted({n for p in pairs for n in p})
    on_map = distances(pairs, every)[np.ix_(*([[every.index(n) for n in ids]] * 2))]
    on_network = distances({p: float(edges.length_m[r]) for p, r in roads_of(network).items()}, ids)
    np.testing.assert_allclose(on_network, on_map, rtol=1e-6)


@settings(max_examples=40)
@given(town=maps())
def test_everything_is_reached_from_everywhere(town: Map, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write(tmp_path_factory.mktemp("map"), town.xml())
    pairs = segment_graph(town)
    every = sorted({n for p in pairs for n in p})
    between = distances(pairs, every) if pairs else np.zeros((0, 0))
    if not (np.isfinite(between) & np.isfinite(between.T) & (between > 0)).any():
        with pytest.raises(CityError):
            read_osm(path)
        return
    roads = read_osm(path)
    ids = roads.network.node_ids.tolist()
    held = {p: float(roads.network.length_m[r]) for p, r in roads_of(roads.network).items()}
    assert np.isfinite(distances(held, ids)).all()
    assert not any(what.startswith("Strongly connected parts") for what in roads.notices.counts)
    everything = read_osm(path, keep_all=True).network.length_m.sum()
    lost = [n for what, n in roads.notices.counts.items() if what.startswith("Kilometres")]
    assert bool(lost) == (roads.network.length_m.sum() < everything - 1)


def test_a_ring_alone_and_a_lollipop(tmp_path: Path) -> None:
    square = {1: (6.0, 49.0), 2: (6.01, 49.0), 3: (6.01, 49.01), 4: (6.0, 49.01), 5: (5.99, 49.0)}
    ring = Map(square, [(1, [1, 2, 3, 4, 1], {"highway": "residential", "junction": "roundabout"})])
    network = read_osm(write(tmp_path, ring.xml())).network
    assert (network.num_nodes, network.num_edges) == (2, 2)  # one-way: there and on
    lollipop = Map(square, [(1, [5, 1, 2, 3, 4, 1], {"highway": "residential"})])
    roads = read_osm(write(tmp_path, lollipop.xml()))
    assert {1, 5} < set(roads.network.node_ids.tolist()) and roads.network.num_nodes == 4
    assert (
        roads.notices.counts["Nodes added within loops and parallel roads, so that no two roads have the same ends"]
        == 2
    )


def test_speed_of_a_road_of_parts_takes_as_long(tmp_path: Path) -> None:
    line = {1: (6.0, 0.1), 2: (6.01, 0.1), 3: (6.04, 0.1)}
    ways = [
        (1, [1, 2], {"highway": "primary", "maxspeed": "30"}),
        (2, [2, 3], {"highway": "tertiary", "maxspeed": "90"}),
    ]
    edges = read_osm(write(tmp_path, Map(line, ways).xml())).network.edges
    assert len(edges) == 2
    assert edges.speed_kph.tolist() == pytest.approx([4 / (1 / 30 + 3 / 90)] * 2, abs=0.01)
    assert edges.road_class.tolist() == ["tertiary"] * 2


# Tags


def kind(**tags: str) -> RoadKind | None:
    named = {k.replace("__", ":"): v for k, v in tags.items()}
    return road_kind({"highway": "residential"} | named, highways=(*DRIVABLE, "service"), notices=Notices())


@pytest.mark.parametrize(
    ("text", "kph"),
    [
        ("50", 50),
        ("30 mph", 48.28),
        ("30mph", 48.28),
        ("80 km/h", 80),
        ("50;30", 30),
        ("100|80", 80),
        ("walk", 7),
        ("none", 130),
        ("RO:urban", 50),
        ("DE:rural", 100),
        ("GB:nsl_single", 96.56),
        ("DE:zone:30", 30),
        ("FR:zone30", 30),
        ("DE:30", 30),
        ("10 knots", 18.52),
        (" 70 ", 70),
        ("50.5", 50.5),
    ],
)
def test_speed_limits(text: str, kph: float) -> None:
    assert speed_kph(text) == pytest.approx(kph, abs=0.01)


@pytest.mark.parametrize(
    "text", ["", "signals", "variable", "fast", "-5", "0", "5000", "50 mps", "XX:moon", "nan", "1e3"]
)
def test_no_speed_limit(text: str) -> None:
    assert np.isnan(speed_kph(text))


@settings(max_examples=200)
@given(text=st.text(max_size=30))
def test_any_text_is_a_speed_or_none(text: str) -> None:
    assert np.isnan(speed_kph(text)) or 0 < speed_kph(text) <= 200


@pytest.mark.parametrize(
    ("tags", "ways"),
    [
        ({"oneway": "yes"}, "+"),
        ({"oneway": "true"}, "+"),
        ({"oneway": "1"}, "+"),
        ({"oneway": "-1"}, "-"),
        ({"oneway": "reverse"}, "-"),
        ({"oneway": "no"}, "+-"),
        ({}, "+-"),
        ({"oneway": "reversible"}, "+-"),
        ({"oneway": "alternating"}, "+-"),
        ({"junction": "roundabout"}, "+"),
        ({"junction": "circular"}, "+"),
        ({"junction": "roundabout", "oneway": "no"}, "+-"),
        ({"highway": "motorway"}, "+"),
        ({"highway": "motorway_link"}, "+"),
        ({"highway": "motorway", "oneway": "no"}, "+-"),
        ({"highway": "motorway", "oneway": "-1"}, "-"),
        ({"oneway": "yes", "oneway__motor_vehicle": "no"}, "+-"),
        ({"oneway": "sometimes"}, "+-"),
        ({"oneway": "sometimes", "junction": "roundabout"}, "+"),
    ],
)
def test_directions(tags: dict[str, str], ways: str) -> None:
    found = kind(**tags)
    assert found is not None
    assert "+" * found.forward + "-" * found.backward == ways


@pytest.mark.parametrize(
    ("tags", "kept"),
    [
        ({"access": "private"}, False),
        ({"access": "no"}, False),
        ({"access": "no", "motor_vehicle": "yes"}, True),
        ({"access": "yes", "motorcar": "no"}, False),
        ({"vehicle": "no", "motor_vehicle": "destination"}, True),
        ({"access": "customers"}, True),
        ({"access": "destination"}, True),
        ({"access": "agricultural;forestry"}, False),
        ({"access": "private;destination"}, True),
        ({"area": "yes"}, False),
        ({"highway": "construction"}, False),
        ({"highway": "proposed"}, False),
        ({"highway": "footway"}, False),
        ({"highway": "service"}, True),
        ({"highway": "service", "service": "alley"}, True),
        ({"highway": "service", "service": "parking_aisle"}, False),
    ],
)
def test_what_is_a_road(tags: dict[str, str], kept: bool) -> None:
    assert (kind(**tags) is not None) == kept


@pytest.mark.parametrize(
    ("tags", "lanes"),
    [
        ({"lanes": "2"}, (1, 1)),
        ({"lanes": "3"}, (1.5, 1.5)),
        ({"lanes": "1"}, (1, 1)),
        ({}, (0, 0)),
        ({"lanes": "3", "lanes__forward": "2"}, (2, 1)),
        ({"lanes": "5", "lanes__both_ways": "1"}, (2, 2)),
        ({"lanes": "3", "oneway": "yes"}, (3, 3)),
        ({"lanes": "2;3", "oneway": "yes"}, (2, 2)),
        ({"lanes": "many"}, (0, 0)),
        ({"lanes": "999"}, (0, 0)),
        ({"lanes": "-2"}, (0, 0)),
        ({"lanes__forward": "2", "lanes__backward": "1"}, (2, 1)),
    ],
)
def test_lanes(tags: dict[str, str], lanes: tuple[float, float]) -> None:
    found = kind(**tags)
    assert found is not None
    assert (found.lanes_forward, found.lanes_backward) == lanes


@pytest.mark.parametrize(
    ("lon", "lat", "name"),
    [(6.13, 49.61, "Europe/Luxembourg"), (-122.4, 37.8, "America/Los_Angeles"), (-30, 0, "UTC")],
)
def test_a_map_has_the_time_zone_of_its_place(lon: float, lat: float, name: str) -> None:
    notices = Notices()
    network = RoadNetwork(np.arange(3), lon + np.array([0, 0, 0.001]), np.full(3, float(lat)), Edges.none())
    assert timezone_of(network, None, notices) == name
    assert len(notices.counts) == 1
    assert timezone_of(network, "Asia/Tokyo", Notices()) == "Asia/Tokyo"
    with raises(CityError, '"Mars"'):
        timezone_of(network, "Mars", notices)


@pytest.mark.parametrize("ending", ["json.gz", "json.bz2", "graphml.gz"])
def test_compressed_answers_are_read_like_plain_ones(ending: str, tmp_path: Path) -> None:
    town = crossing()
    pack = bz2.compress if ending.endswith("bz2") else gzip.compress
    text = town.overpass(geom=False) if "json" in ending else town.graphml()
    plain = import_osm(write(tmp_path, text, f"town.{ending.partition('.')[0]}"))
    packed = import_osm(write(tmp_path, pack(text.encode()), f"town.{ending}"))
    assert packed.network.fingerprint == plain.network.fingerprint
    assert (packed.name, packed.notices) == ("town", plain.notices)


def test_a_name_without_end_is_cut(tmp_path: Path) -> None:
    town = crossing()
    town.ways[0][2]["name"] = "n" * 100_000
    roads = read_osm(write(tmp_path, town.overpass(geom=False), "town.json"))
    assert roads.network.edges.name.dtype.itemsize <= 4 * 60
    assert roads.notices.counts["Names of roads cut to 60 characters"] == 1


def test_limits_by_direction() -> None:
    found = kind(maxspeed__forward="70", maxspeed="50")
    assert found is not None
    assert (found.speed_forward_kph, found.speed_backward_kph) == (70, 50)


def test_the_filter_can_be_replaced(tmp_path: Path) -> None:
    path = small_files(tmp_path)["osm"]
    assert set(read_osm(path, highways=["primary"]).network.edges.road_class.tolist()) == {"primary"}
    with raises(CityError, "no drivable road"):
        read_osm(path, highways=["track"])


# Restrictions


def restricted(kind: str, members: list[Member], **tags: str) -> Map:
    town = crossing()
    return Map(town.nodes, town.ways, [(1, members, {"type": "restriction", "restriction": kind, **tags})])


TURN: list[Member] = [("from", "w", 11), ("via", "n", 5), ("to", "w", 12)]


def test_only_leaves_no_other_turn(tmp_path: Path) -> None:
    roads = read_osm(write(tmp_path, restricted("only_straight_on", TURN).xml()))
    assert turns_of(roads) == {(1, 5, 1), (1, 5, 3), (1, 5, 4)}
    roads = read_osm(write(tmp_path, restricted("no_u_turn", [TURN[0], TURN[1], ("to", "w", 11)]).xml()))
    assert turns_of(roads) == {(1, 5, 1)}


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (TURN[:2], "missing members"),
        ([TURN[0], ("via", "n", 77), TURN[2]], "not intersections"),
        ([TURN[0], TURN[1], ("to", "w", 77)], "not in the network"),
        ([TURN[0], ("via", "w", 13), TURN[2]], "via a way"),
        ([TURN[0], ("via", "n", 9), TURN[2]], "not intersections"),
    ],
)
def test_restrictions_that_name_no_turn_are_counted(tmp_path: Path, members: list[Member], said: str) -> None:
    roads = read_osm(write(tmp_path, restricted("no_left_turn", members).xml()))
    assert len(roads.forbidden_turns) == 0
    assert [n for what, n in roads.notices.counts.items() if said in what] == [1]


def test_restrictions_for_others_are_passed_over(tmp_path: Path) -> None:
    except_cars = restricted("no_left_turn", TURN, **{"except": "bus;motorcar"})
    assert len(read_osm(write(tmp_path, except_cars.xml())).forbidden_turns) == 0
    assert len(read_osm(write(tmp_path, restricted("give_way", TURN).xml())).forbidden_turns) == 0


@settings(max_examples=25)
@given(town=maps(), data=st.data())
def test_a_written_city_forbids_what_the_map_does(
    town: Map, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The line graph of the city's folder is that of the map: also where ways were merged, or a kind is only_..."""
    ways = st.sampled_from(town.ways)
    for number in range(data.draw(st.integers(1, 12))):
        (one, refs, _), (other, _, _) = data.draw(ways), data.draw(ways)
        members: list[Member] = [("from", "w", one), ("via", "n", data.draw(st.sampled_from(refs))), ("to", "w", other)]
        kind = data.draw(st.sampled_from(["no_left_turn", "only_straight_on", "no_u_turn"]))
        town.relations.append((number, members, {"type": "restriction", "restriction": kind}))
    folder = tmp_path_factory.mktemp("turns")
    path = write(folder, town.xml())
    try:
        city = import_osm(path, keep_all=True)
    except CityError:
        return  # a map without a road
    write_city(city, folder / "city")
    kept = on_roads(read_city(folder / "city"))
    direct = import_osm(path, keep_all=True, on="roads")
    assert roads_of(kept).keys() == roads_of(direct.network).keys()
    assert len(direct.forbidden_turns) == 0  # they are its edges


def test_a_written_city_has_its_turns_in_a_table(tmp_path: Path) -> None:
    city = import_osm(small_files(tmp_path)["osm.pbf"])
    assert city.network.node_ids[city.forbidden_turns].tolist() == [[1, 5, 4]]
    write_city(city, tmp_path / "city", csv=True)
    assert (tmp_path / "city" / "turns.csv").read_text().splitlines() == ["source,via,target", "1,5,4"]
    on = import_tables(network=tmp_path / "city", on="roads")
    direct = import_osm(small_files(tmp_path)["osm.pbf"], on="roads")
    assert roads_of(on.network).keys() == roads_of(direct.network).keys()
    assert ("1>5", "5>4") not in roads_of(on.network)
    for other in (import_tables(network=tmp_path / "city"), import_tables(network=city, timezone="Asia/Tokyo")):
        np.testing.assert_array_equal(other.forbidden_turns, city.forbidden_turns)


# Hand-edited and cut maps


@pytest.mark.parametrize("form", ["osm", "json"])
def test_ways_are_cut_where_nodes_are_missing(tmp_path: Path, form: str) -> None:
    town = crossing()
    ways = [*town.ways, (16, [4, 400, 401, 3], {"highway": "residential"}), (17, [3], {"highway": "residential"})]
    more = Map(town.nodes, [(w, [-r for r in refs], t) for w, refs, t in ways])
    more.nodes = {-i: p for i, p in town.nodes.items()}
    text = more.xml() if form == "osm" else more.overpass(geom=True)
    roads = read_osm(write(tmp_path, text, f"town.{form}"))
    assert sorted(roads.network.node_ids.tolist()) == [-5, -4, -3, -2, -1]
    assert roads.network.num_edges == 9
    assert roads.notices.counts["Ways cut where their nodes are not in the file"] == 1
    assert roads.notices.counts["Ways of fewer than two nodes were left out"] == 1


def test_duplicates_survive(tmp_path: Path) -> None:
    town = crossing()
    doubled = Map(town.nodes, [*town.ways, town.ways[0], (18, [5, 5, 1], {"highway": "primary"})])
    xml = doubled.xml().replace('<node id="5"', '<node id="5" lon="1" lat="1"/><node id="5"', 1)
    roads = read_osm(write(tmp_path, xml))
    counts = roads.notices.counts
    assert roads.network.num_edges == 9
    assert roads.network.lon[roads.network.row_of(5)] == pytest.approx(6.11)
    assert counts["Nodes that occur more than once, the last kept"] == 1
    assert counts["Ways with the id of a later way were left out"] == 1
    assert counts["Nodes repeated in a row within a way were used once"] == 1
    assert counts["Segments drawn more than once were kept once"] == 2


def test_text_that_is_not_utf8_in_a_pbf(tmp_path: Path) -> None:
    town = crossing()
    town.ways[0][2]["name"] = "QQQQ"
    town.write_pbf(tmp_path / "plain.osm.pbf")
    uncompressed(tmp_path / "plain.osm.pbf", tmp_path / "raw.osm.pbf")
    raw = (tmp_path / "raw.osm.pbf").read_bytes()
    assert b"QQQQ" in raw
    roads = read_osm(write(tmp_path, raw.replace(b"QQQQ", b"\xff\xfeQQ"), "raw.osm.pbf"))
    assert roads.notices.counts["Tags that are not UTF-8 text were ignored"] == 1


# Bad input


OUTSIDE = "<!DOCTYPE graphml SYSTEM 'file:///etc/passwd'>"


def bombed(xml: str) -> str:
    return xml.replace("<osm ", '<!DOCTYPE osm [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><osm ', 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "empty"),
        (b"  \n\t", "empty"),
        (bombed(crossing().xml()).encode(), "document type"),
        (("<!--" + "x" * 200_000 + "-->" + bombed(crossing().xml()).partition("?>")[2]).encode(), "document type"),
        (crossing().graphml().replace("<graphml", f"{OUTSIDE}<graphml", 1).encode(), "document type"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"PK\x03\x04rest", "zip"),
        (b"PAR1rest", "Parquet"),
        (b"<gpx></gpx>", "GPX"),
        (b"<kml:kml></kml:kml>", "KML"),
        (crossing().xml().encode("utf-16"), "UTF-16"),
        (b"node_id,lon,lat\n1,2,3\n", "begins with"),
        (b"<?xml", "no first element"),
        (crossing().xml()[:-40].encode(), "cut short"),
        (crossing().overpass(geom=False)[:-40].encode(), "damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"rows": []}', "elements"),
        (b'{"elements": [], "remark": "runtime error: timed out"}', "timed out"),
        (b'{"elements": []}', "no drivable road"),
        (crossing().graphml()[:-40].encode(), "cut short"),
        (crossing().graphml().replace('id="1"', 'id="one"').encode(), "whole number"),
        (gzip.compress(crossing().xml().encode())[:-20], "damaged"),
        (gzip.compress(crossing().overpass(geom=False).encode())[:-20], "damaged"),
        (b"\x1f\x8bnonsense", "damaged"),
        (b"BZh9nonsense", "damaged"),
        (b"\0\0\0\x0e\x0a\x09OSMHeader\x18\x05nonsense", "damaged"),
        (
            b'<osm version="0.6"><way id="1"><nd ref="1"/><nd ref="2"/><tag k="highway" v="road"/></way></osm>',
            "coordinates",
        ),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: bytes, said: str) -> None:
    with raises(CityError, "town.osm", said):
        import_osm(write(tmp_path, text))


def test_a_truncated_pbf_is_refused(tmp_path: Path) -> None:
    whole = small_files(tmp_path)["osm.pbf"].read_bytes()
    for cut in range(1, len(whole) - 1, max(1, len(whole) // 25)):
        with pytest.raises(CityError):
            import_osm(write(tmp_path, whole[:cut], "cut.osm.pbf"))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_file_that_expands_a_thousandfold_is_refused(
    tmp_path: Path, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRIGATE_READ_SECONDS", "0.2")
    noise = np.random.default_rng(0).bytes(8000).hex().encode()  # osmium drops bzip2 members of the last 5,000 bytes
    first, block, last = map(pack, (b'<osm version="0.6">', b" " * (8 << 20), b"<!--%s--></osm>" % noise))
    packed = first + block * 200 + last  # members one after another are one text; whole: only the limit refuses it
    with raises(CityError, "town.osm", "0.2 s"):
        import_osm(write(tmp_path, packed))


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    pbf = small_files(tmp_path)["osm.pbf"].read_bytes()
    city = import_osm(write(tmp_path, pbf, "town.osm.gz"))
    assert city.network.num_edges == 9
    assert "Files named like OSM XML, gzip but read as OSM PBF, by their content: 1." in city.notices
    with raises(CityError, "no such file"):
        import_osm(tmp_path / "nothing.osm")


@pytest.mark.parametrize("form", ["osm", "json"])
def test_places_that_cannot_be(tmp_path: Path, form: str) -> None:
    def text(town: Map) -> str:
        return town.xml() if form == "osm" else town.overpass(geom=False)

    town = crossing()
    town.nodes = {i: (x, y + 60) for i, (x, y) in town.nodes.items()}  # where lat is over 90
    with raises(CityError, "swapped"):
        read_osm(write(tmp_path, text(town), f"town.{form}"))
    town = crossing()
    town.nodes[3], town.nodes[9] = (6.0, 149.0), (0.0, 0.0)
    counts = read_osm(write(tmp_path, text(town), f"town.{form}")).notices.counts
    assert counts["Nodes whose coordinates are not on earth were treated as missing"] == 1
    assert counts["Nodes at longitude 0 and latitude 0 were treated as missing"] == 1


@settings(max_examples=60)
@given(data=st.data())
def test_mutated_text_is_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    files = small_files(folder)
    path = files[data.draw(st.sampled_from(["overpass-body.json", "overpass-geom.json", "graphml", "osm"]))]
    whole = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=5)):
        whole[at] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(whole))
    said = path.name
    try:
        assert import_osm(path).network.num_edges > 0
    except CityError as error:
        said = str(error)
    assert path.name in said


# The shared extracts


# Roads that are left out


def star(*kinds: str) -> Map:
    """Roads of these kinds that meet in one place."""
    nodes = {1: (6.0, 49.6)} | {2 + i: (6 + 0.01 * (i % 3 - 1), 49.61 + 0.01 * i) for i in range(len(kinds))}
    return Map(nodes, [(i + 1, [1, 2 + i], {"highway": kind}) for i, kind in enumerate(kinds)])


def test_ways_of_an_unknown_kind_are_counted_and_named(tmp_path: Path) -> None:
    file = write(tmp_path, star("residential", "residental", "residental", "footway").xml())
    notices = read_osm(file, keep_all=True).notices.sentences()
    said = next(sentence for sentence in notices if names(sentence, "highway=residental"))
    assert names(said, "2") and names(said, "--highways")
    assert not any("footway" in sentence for sentence in notices)
    kept = read_osm(file, keep_all=True, highways=("residential", "residental"))
    assert kept.network.num_edges == 6 and not any("residental" in sentence for sentence in kept.notices.sentences())


def test_a_misspelt_value_of_highways_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, star("residential", "residential", "primary", "primary").xml())
    said = frigate("import", "osm", file, "-o", tmp_path / "city", "--highways", "primry,residential")
    assert_refused(said, '"primry"', '"primary"')
    read_osm(file, highways=("residential", "primary", "motorway"))  # a map need not have them all


def test_classes_that_no_feature_knows_are_told(tmp_path: Path) -> None:
    kinds = ("residential", "strada", "strada", "viale")
    file = write(tmp_path, star(*kinds).xml())
    said = frigate("import", "osm", file, "-o", tmp_path / "city", "--highways", ",".join(kinds)).err
    assert names(said, "6 of 8 roads") and names(said, '"strada" 4') and names(said, '"viale" 2')
    assert names(frigate("check", tmp_path / "city").out, "6 of 8 roads")


@pytest.mark.shared
@pytest.mark.parametrize("name", ["helsinki_centre.osm.pbf", "helsinki_small.osm.pbf", "luxembourg_city_lust.osm.gz"])
def test_shared_extracts_import(name: str) -> None:
    city = import_osm(shared_data("osm-extracts") / name)
    network = city.network
    assert network.num_nodes > 100
    straight = haversine_m(
        network.lon[network.senders],
        network.lat[network.senders],
        network.lon[network.receivers],
        network.lat[network.receivers],
    )
    assert (network.length_m >= straight * (1 - 1e-9)).all()
    assert np.isfinite(network.edges.speed_kph).all()


@pytest.mark.shared
def test_luxembourg_is_as_long_as_it_should_be() -> None:
    network = import_osm(shared_data("osm-extracts") / "luxembourg_city_lust.osm.gz").network
    assert network.length_m.sum() / 1000 == pytest.approx(971, rel=0.02)
    assert network.num_nodes == pytest.approx(2100, rel=0.1)


@pytest.mark.shared
def test_what_lux_sim_has_less() -> None:
    """Its 905 km: the simulator's roads end at the border of a junction, about 15 m earlier than at its middle."""
    pl = pytest.importorskip("polars")
    nodes = pl.read_parquet(shared_data("lux-sim") / "nodes.parquet")
    edges = pl.read_parquet(shared_data("lux-sim") / "edges.parquet")
    file = shared_data("osm-extracts") / "luxembourg_city_lust.osm.gz"
    network = read_osm(file, keep_all=True).network
    row = {(str(a), str(b)): r for (a, b), r in roads_of(network).items()}
    name = nodes["source_id"].to_list()
    pairs = [(name[a], name[b]) for a, b in zip(edges["src"].to_list(), edges["dst"].to_list(), strict=True)]
    matched = [
        (network.length_m[row[p]], m) for p, m in zip(pairs, edges["length_m"].to_list(), strict=True) if p in row
    ]
    less_m = np.array([a - b for a, b in matched])
    assert len(matched) > 0.9 * len(pairs)
    assert 14 < less_m.mean() < 17
    parallel = 134  # roads that lux-sim counts and then drops
    assert network.length_m.sum() / 1000 - (len(pairs) + parallel) * less_m.mean() / 1000 == pytest.approx(905, abs=5)
