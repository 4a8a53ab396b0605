"""Detectors: the node or the road that each one measures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.city.network import Edges, RoadNetwork
from frigate.coordinates import coordinate_fault, haversine_m
from frigate.reading.column_names import plain
from frigate.reading.columns import NodeIndex
from frigate.roads.geometry import PlaceIndex, bearing_gap_deg, line_length_m, read_line
from frigate.sources.tables.street_names import names_street, same_street

SNAP_M = 50.0  # default maximum distance of a detector from its node or road
SAME_M = 1.0  # roads or nodes this close together cannot be told apart
END_DECIMALS = 6  # of degrees: roads whose lines end this close together meet
SEARCHED_M = 500.0  # for a road in the direction of a detector, to say how far away it is
ALONG_DEG = 60.0  # maximum angle between a road and a detector's bearing

COMPASS = {  # "o" is east in German and west in French, so it is none
    word: deg
    for deg, words in {
        0: ("n", "north", "northbound", "nb", "nord"),
        45: ("ne", "northeast", "northeastbound", "nordost", "nordest"),
        90: ("e", "east", "eastbound", "eb", "ost", "est"),
        135: ("se", "southeast", "southeastbound", "suedost", "sudest"),
        180: ("s", "south", "southbound", "sb", "sued", "sud"),
        225: ("sw", "southwest", "southwestbound", "suedwest", "sudouest"),
        270: ("w", "west", "westbound", "wb", "ouest"),
        315: ("nw", "northwest", "northwestbound", "nordwest", "nordouest"),
    }.items()
    for word in words
}
BOTH_WAYS = (
    *("both", "bothways", "bothdirections", "bidirectional", "twoway", "total"),
    *("beide", "beiderichtungen", "querschnitt", "deuxsens", "lesdeuxsens", "doublesens"),
)
TOWARDS = ("fahrtrichtung", "richtung", "direction", "towards", "vers", "sens")
FEW_CODES = {"0", "1", "2"}  # numbers for the two directions of a road, not degrees


@dataclass(frozen=True)
class SensorSite:
    """What is known about the location of a sensor."""

    node_id: str | None = None
    road_id: str | None = None
    source: str | None = None
    target: str | None = None
    lon: float = math.nan
    lat: float = math.nan
    second_id: str | None = None  # node of the other direction, if it measures both
    bearing: str | None = None  # degrees, a compass word or "both"; with a road_id also forward or backward
    street: str | None = None

    @property
    def has_point(self) -> bool:
        return math.isfinite(self.lon) and math.isfinite(self.lat)


@dataclass(frozen=True)
class RoadTable:
    """The roads that detectors are attached to: road e is node e of their line graph."""

    network: RoadNetwork  # of intersections
    edges: Edges  # the roads, including parallel ones
    ids: Mapping[str, tuple[tuple[int, bool], ...]] = field(default_factory=dict)  # road id -> rows of edges, forward?

    @staticmethod
    def of_line_graph(network: RoadNetwork) -> RoadTable:
        """The roads of a city whose nodes are roads, by their lines."""
        lines = [read_line(line) for line in network.lines.tolist()]
        ends = np.array([line[[0, -1]] for line in lines]).reshape(-1, 2)  # first, last, first, ...
        places, at = np.unique(np.round(ends, END_DECIMALS), axis=0, return_inverse=True)
        at = at.reshape(-1)
        names = network.names if len(network.names) else None
        metres = [line_length_m(line) for line in lines]
        edges = Edges.of(at[0::2], at[1::2], metres, name=names, geometry=network.lines)
        unnamed = np.array([f"end {k} of a road" for k in range(len(places))], np.str_)
        lon, lat = places.T
        return RoadTable(RoadNetwork(unnamed, lon.copy(), lat.copy(), Edges.none()), edges)


@dataclass(frozen=True)
class Attached:
    """The nodes to which D detectors are attached."""

    node_of: NDArray[np.int64]  # [D] row of the node; -1: not attached
    second_of: NDArray[np.int64]  # [D] row of the other direction, if it measures both; else -1
    moved_m: NDArray[np.float64]  # [D] distance to the node or road; NaN if the location is unknown
    reasons: list[str]  # [D] why it is not attached
    other_street: list[str]  # [D] why it is on a road of another name than its street's; "" if it is not


@dataclass(frozen=True)
class _Found:
    row: int
    metres: float = math.nan
    second: int = -1
    other_street: str = ""


# Attaching


def attach(
    places: Sequence[SensorSite | None],
    network: RoadNetwork,
    *,
    names: Sequence[str],
    roads: RoadTable | None,
    snap_m: float | None,
) -> Attached:
    """Find the node or the road of each detector, given its own name."""
    within_m = SNAP_M if snap_m is None else snap_m
    finder = _NodeFinder(network, places) if roads is None else _RoadFinder(network, roads, places, names)
    none = "is not among the sensors"
    found = [none if place is None else finder.find(i, place, within_m) for i, place in enumerate(places)]
    there = [_Found(-1) if isinstance(each, str) else each for each in found]
    second = NodeIndex(network.node_ids).find(site_ids(places, "second_id"))
    return Attached(
        np.array([each.row for each in there], np.int64),
        np.maximum(second, np.array([each.second for each in there], np.int64)),
        np.array([each.metres for each in there], np.float64),
        [each if isinstance(each, str) else "" for each in found],
        [each.other_street for each in there],
    )


class _NodeFinder:
    def __init__(self, network: RoadNetwork, places: Sequence[SensorSite | None]) -> None:
        self.network = network
        self.index = NodeIndex(network.node_ids)
        self.known = self.index.find(site_ids(places, "node_id"))
        self.places = PlaceIndex.of_nodes(network)

    def find(self, i: int, place: SensorSite, within_m: float) -> _Found | str:
        if place.node_id is not None:
            if self.known[i] >= 0:
                return self._at(int(self.known[i]), place)
            if not place.has_point:
                hint = self.index.nearest(place.node_id)
                return f'is at node "{place.node_id}", which is not in the network{hint}'
        if not place.has_point:
            return "has no location: give lon and lat, or a node_id"
        fault = coordinate_fault(place.lon, place.lat, allow_zero=False)
        if fault:
            return f"is at {fault}"
        at, metres, _ = self.places.near(place.lon, place.lat, within_m)
        names = self.network.node_ids[at]
        if metres[0] > within_m:
            return _too_far(self.places, place, f"the nearest node, {names[0]}", metres[0])
        if len(at) > 1 and metres[1] - metres[0] < 0.01:
            return f"could be at node {names[0]} or {names[1]}, which are in one place. Name one with node_id"
        return self._at(int(at[0]), place)

    def _at(self, row: int, place: SensorSite) -> _Found:
        lon = np.array([place.lon])
        lat = np.array([place.lat])
        return _Found(row, float(haversine_m(lon, lat, self.network.lon[[row]], self.network.lat[[row]])[0]))


class _RoadFinder:
    def __init__(
        self, line_graph: RoadNetwork, roads: RoadTable, places: Sequence[SensorSite | None], own: Sequence[str]
    ) -> None:
        self.roads = roads
        self.own = own  # names of the detectors
        given = {place.bearing for place in places if place is not None and place.bearing}
        self.codes = given if len(given) > 1 and given <= FEW_CODES else set()
        self.known = NodeIndex(line_graph.node_ids).find(site_ids(places, "node_id"))
        self.names = line_graph.node_ids
        self.edges = roads.edges
        index = NodeIndex(roads.network.node_ids)
        self.ends = [index.find(site_ids(places, end)) for end in ("source", "target")]
        self.lines = PlaceIndex.of_roads(roads.network, roads.edges)
        self.of_pair: dict[tuple[int, int], list[int]] = {}
        for row, pair in enumerate(zip(self.edges.senders.tolist(), self.edges.receivers.tolist(), strict=True)):
            self.of_pair.setdefault(pair, []).append(row)

    def find(self, i: int, place: SensorSite, within_m: float) -> _Found | str:
        if self.known[i] >= 0:
            return _Found(int(self.known[i]))
        if place.road_id is not None:
            return self._by_id(place)
        if place.source is not None and place.target is not None:
            known = np.array(self.of_pair.get((int(self.ends[0][i]), int(self.ends[1][i])), []), np.int64)
            if not len(known):
                return f"is on road {place.source},{place.target}, which is not in the network"
            if len(known) > 1:
                either = " or ".join(self.names[known].tolist())
                return f"could be on road {either}, which have the same ends. Name one with node_id"
            return self._either(known) if both_ways(place.bearing) else _Found(int(known[0]))
        if place.has_point:
            return self._by_point(place, self.own[i], within_m)
        return "has no road: give lon and lat, source and target, or a road_id"

    def _by_id(self, place: SensorSite) -> _Found | str:
        there = self.roads.ids.get(str(place.road_id), ())
        if not there:
            return "is on a road that is not in the network"
        word = (place.bearing or "").lower()
        if word in ("forward", "backward"):
            there = tuple(r for r in there if r[1] == (word == "forward"))
            return _Found(there[0][0]) if len(there) == 1 else f"is on a road that has no {word} direction"
        rows = np.array([row for row, _ in there])
        if both_ways(place.bearing):
            return self._either(rows)
        if len(rows) == 1:
            return _Found(int(rows[0]))
        bearing = self._bearing(place.bearing)
        if isinstance(bearing, str):
            return bearing
        if bearing is None:
            return self._both(rows)
        turn = [bearing_gap_deg(self.lines.bearing_deg[self.lines.row == r], bearing).min() for r in rows]
        return _Found(int(rows[int(np.argmin(turn))]))

    def _either(self, rows: NDArray[np.int64], metres: float = math.nan) -> _Found:
        """Both directions of the road in these rows, or the only one if it is one-way."""
        first = int(rows[0])
        back = self.of_pair.get((int(self.edges.receivers[first]), int(self.edges.senders[first])), [])
        of_these = [row for row in back if row in rows]
        return _Found(first, metres, (of_these or back or [-1])[0])

    def _by_point(self, place: SensorSite, own: str, within_m: float) -> _Found | str:
        fault = coordinate_fault(place.lon, place.lat, allow_zero=False)
        if fault:
            return f"is at {fault}"
        both = both_ways(place.bearing)
        bearing = None if both else self._bearing(place.bearing)
        if isinstance(bearing, str):
            return bearing
        roads, metres, heading = self.lines.near(place.lon, place.lat, within_m)
        if metres[0] > within_m:
            return _too_far(self.lines, place, f"the nearest road, {self._name(int(roads[0]))}", metres[0])
        on_street, other_street = self._on_street(place, own, roads)
        roads = roads[on_street]
        metres = metres[on_street]
        heading = heading[on_street]
        if bearing is not None:
            along = bearing_gap_deg(heading, bearing) <= ALONG_DEG
            if not along.any():
                return self._none_along(place, bearing, within_m)
            return _Found(int(roads[along][0]), float(metres[along][0]), other_street=other_street)
        tied = roads[metres <= metres[0] + SAME_M]
        if both:
            return replace(self._either(tied[:1], float(metres[0])), other_street=other_street)
        if len(tied) > 1:
            return self._both(tied)
        return _Found(int(tied[0]), float(metres[0]), other_street=other_street)

    def _none_along(self, place: SensorSite, bearing: float, within_m: float) -> str:
        said = f"has no road within {within_m:g} m that leads in direction {bearing:g} degrees"
        roads, metres, heading = self.lines.near(place.lon, place.lat, SEARCHED_M)
        along = bearing_gap_deg(heading, bearing) <= ALONG_DEG
        if not along.any():
            return said
        away_m = float(metres[along][0])
        nearest = f"the nearest, {self._name(int(roads[along][0]))}, is {math.ceil(away_m):,} m away"
        return f"{said}; {nearest}. Pass --snap {_enough_m(away_m)} to attach it"

    def _on_street(self, place: SensorSite, own: str, roads: NDArray[np.int64]) -> tuple[NDArray[np.bool_], str]:
        """Which of the near roads are of the detector's street, or all; and why none is, if it names one."""
        streets = self.edges.name[roads].tolist()
        if place.street:
            of_street = np.array([same_street(place.street, street) for street in streets], bool)
        else:
            of_street = np.array([names_street(own, street) for street in streets], bool)
        if of_street.any():
            return of_street, ""
        known = list(dict.fromkeys(filter(None, streets)))
        wrong = f'street "{place.street}", but near it are {", ".join(known[:3])}' if place.street and known else ""
        return np.ones(len(roads), bool), wrong

    def _bearing(self, text: str | None) -> float | str | None:
        if text in self.codes:
            return f'has a direction "{text}", which is a code. Map it to degrees, or N, NE, ... in a column bearing'
        return bearing_deg(text)

    def _both(self, rows: NDArray[np.int64]) -> str:
        names = " or ".join(self._name(int(r)) for r in rows[:3])
        words = "degrees, or N, NE, ...; both, if it measures both directions together"
        return (
            f"could be on road {names}. Say which direction it measures with a column bearing ({words}), or pass "
            "--bearing both if all of them measure both"
        )

    def _name(self, row: int) -> str:
        return str(self.names[row])


def site_ids(sites: Sequence[SensorSite | None], column: str) -> pl.Series:
    return pl.Series([getattr(site, column) if site else None for site in sites], dtype=pl.String)


def both_ways(text: str | None) -> bool:
    """Whether a detector measures both directions of its road together."""
    return plain(text or "").replace("_", "") in BOTH_WAYS


def bearing_deg(text: str | None) -> float | str | None:
    """Degrees clockwise from north, None if not given, or the reason why it is not a bearing."""
    if text is None or not text.strip():
        return None
    try:
        degrees = float(re.sub(r"[\s°]", "", text).replace(",", "."))
    except ValueError:
        words = [word for word in plain(text).split("_") if word not in TOWARDS]
        if "".join(words) in COMPASS:
            return float(COMPASS["".join(words)])
        return f'has a bearing "{text}" that is neither degrees nor a compass word'
    return degrees % 360 if math.isfinite(degrees) else f'has a bearing "{text}" that is not a number of degrees'


def _too_far(index: PlaceIndex, place: SensorSite, what: str, metres: float) -> str:
    away = f"{math.ceil(metres):,} m" if metres < 10_000 else f"{metres / 1000:,.0f} km"
    swapped_m = math.inf if abs(place.lon) > 90 else index.near(place.lat, place.lon, 0)[1][0]
    if metres > 10 * swapped_m and metres > 1000:
        return f"is {away} from {what}: lon and lat look swapped"
    if metres > 5_000:
        return f"is {away} from {what}: is it in another city?"
    return f"is {away} from {what}. Pass --snap {_enough_m(metres)} to attach it"


def _enough_m(metres: float) -> int:
    """A round number of metres that is at least this many."""
    power: int = 10 ** math.floor(math.log10(max(metres, 1)))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= metres)
