"""Detectors: where each is in the network, and how often it reports."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.calendar import DAY_S
from frigate.city.bucketing import Readings
from frigate.city.city_toml import step_text, whole_step
from frigate.city.network import Edges, RoadNetwork
from frigate.coordinates import coordinate_fault, haversine_m
from frigate.errors import CityError
from frigate.reading.columns import NodeIndex
from frigate.roads.geometry import PlaceIndex, bearing_gap_deg

SNAP_M = 50.0  # default maximum distance of a detector from its node or road
SAME_M = 1.0  # roads or nodes this close together cannot be told apart
FEW_GAPS = 4  # fewer gaps between readings may just be missing readings, not a coarse detector
ALONG_DEG = 60.0  # maximum angle between a road and a detector's bearing

COMPASS = {
    word: deg
    for deg, words in {
        0: ("n", "north", "northbound", "nb"),
        45: ("ne", "northeast", "northeastbound"),
        90: ("e", "east", "eastbound", "eb"),
        135: ("se", "southeast", "southeastbound"),
        180: ("s", "south", "southbound", "sb"),
        225: ("sw", "southwest", "southwestbound"),
        270: ("w", "west", "westbound", "wb"),
        315: ("nw", "northwest", "northwestbound"),
    }.items()
    for word in words
}


BOTH_WAYS = ("both", "bothways", "bothdirections", "bidirectional", "twoway", "total")


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

    @property
    def has_point(self) -> bool:
        return math.isfinite(self.lon) and math.isfinite(self.lat)


@dataclass(frozen=True)
class RoadTable:
    """The roads that detectors are attached to: road e is node e of their line graph."""

    network: RoadNetwork  # of intersections
    edges: Edges  # the roads, including parallel ones
    ids: Mapping[str, tuple[tuple[int, bool], ...]] = field(default_factory=dict)  # road id -> rows of edges, forward?


@dataclass(frozen=True)
class Attached:
    """The nodes to which D detectors are attached."""

    node_of: NDArray[np.int64]  # [D] row of the node; -1: not attached
    second_of: NDArray[np.int64]  # [D] row of the other direction, if it measures both; else -1
    moved_m: NDArray[np.float64]  # [D] distance to the node or road; NaN if the location is unknown
    reasons: list[str]  # [D] why it is not attached


@dataclass(frozen=True)
class _Found:
    row: int
    metres: float = math.nan
    second: int = -1


# Attaching


def attach(
    places: Sequence[SensorSite | None], network: RoadNetwork, *, roads: RoadTable | None, snap_m: float | None
) -> Attached:
    """Find the node or the road of each detector."""
    within_m = SNAP_M if snap_m is None else snap_m
    finder = _NodeFinder(network, places) if roads is None else _RoadFinder(network, roads, places)
    none = "is not among the sensors"
    found = [none if place is None else finder.find(i, place, within_m) for i, place in enumerate(places)]
    there = [_Found(-1) if isinstance(each, str) else each for each in found]
    second = NodeIndex(network.node_ids).find(_ids(places, "second_id"))
    return Attached(
        np.array([each.row for each in there], np.int64),
        np.maximum(second, np.array([each.second for each in there], np.int64)),
        np.array([each.metres for each in there], np.float64),
        [each if isinstance(each, str) else "" for each in found],
    )


class _NodeFinder:
    def __init__(self, network: RoadNetwork, places: Sequence[SensorSite | None]) -> None:
        self.network = network
        self.index = NodeIndex(network.node_ids)
        self.known = self.index.find(_ids(places, "node_id"))
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
    def __init__(self, line_graph: RoadNetwork, roads: RoadTable, places: Sequence[SensorSite | None]) -> None:
        self.roads = roads
        self.known = NodeIndex(line_graph.node_ids).find(_ids(places, "node_id"))
        self.names = line_graph.node_ids
        self.edges = roads.edges
        index = NodeIndex(roads.network.node_ids)
        self.ends = [index.find(_ids(places, end)) for end in ("source", "target")]
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
            return self._by_point(place, within_m)
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
        bearing = bearing_deg(place.bearing)
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

    def _by_point(self, place: SensorSite, within_m: float) -> _Found | str:
        fault = coordinate_fault(place.lon, place.lat, allow_zero=False)
        if fault:
            return f"is at {fault}"
        both = both_ways(place.bearing)
        bearing = None if both else bearing_deg(place.bearing)
        if isinstance(bearing, str):
            return bearing
        roads, metres, heading = self.lines.near(place.lon, place.lat, within_m)
        if metres[0] > within_m:
            return _too_far(self.lines, place, f"the nearest road, {self._name(int(roads[0]))}", metres[0])
        if both:
            return self._either(roads[:1], float(metres[0]))
        if bearing is not None:
            along = bearing_gap_deg(heading, bearing) <= ALONG_DEG
            if not along.any():
                return f"has no road within {within_m:g} m that leads in direction {bearing:g} degrees"
            return _Found(int(roads[along][0]), float(metres[along][0]))
        tied = roads[metres <= metres[0] + SAME_M]
        return _Found(int(tied[0]), float(metres[0])) if len(tied) == 1 else self._both(tied)

    def _both(self, rows: NDArray[np.int64]) -> str:
        names = " or ".join(self._name(int(r)) for r in rows[:3])
        words = "degrees, or N, NE, ...; both, if it measures both directions together"
        return f"could be on road {names}. Say which direction it measures with a column bearing ({words})"

    def _name(self, row: int) -> str:
        return str(self.names[row])


def _ids(sites: Sequence[SensorSite | None], column: str) -> pl.Series:
    return pl.Series([getattr(site, column) if site else None for site in sites], dtype=pl.String)


def both_ways(text: str | None) -> bool:
    """Whether a detector measures both directions of its road together."""
    return re.sub(r"[\s_-]", "", (text or "").lower()) in BOTH_WAYS


def bearing_deg(text: str | None) -> float | str | None:
    """Degrees clockwise from north, None if not given, or the reason why it is not a bearing."""
    if text is None or not text.strip():
        return None
    word = re.sub(r"[\s_-]", "", text.lower()).removesuffix("°")
    if word in COMPASS:
        return float(COMPASS[word])
    try:
        degrees = float(word.replace(",", "."))
    except ValueError:
        return f'has a bearing "{text}" that is neither degrees nor a compass word'
    return degrees % 360 if math.isfinite(degrees) else f'has a bearing "{text}" that is not a number of degrees'


def _too_far(index: PlaceIndex, place: SensorSite, what: str, metres: float) -> str:
    away = f"{math.ceil(metres):,} m" if metres < 10_000 else f"{metres / 1000:,.0f} km"
    swapped_m = math.inf if abs(place.lon) > 90 else index.near(place.lat, place.lon, 0)[1][0]
    if metres > 10 * swapped_m and metres > 1000:
        return f"is {away} from {what}: lon and lat look swapped"
    if metres > 5_000:
        return f"is {away} from {what}: is it in another city?"
    power = 10 ** math.floor(math.log10(max(metres, 1)))
    enough_m = next(k * power for k in (1, 2, 5, 10) if k * power >= metres)
    return f"is {away} from {what}. Pass --snap {enough_m} to attach it"


# Time


def settle_step(readings: Readings, names: Sequence[str], *, step_s: int | None, quantity: str, where: str) -> int:
    """The step, inferred if not given. Detectors that report less often than once per step are refused."""
    every_s, gaps = _intervals_s(readings, len(names))
    known = every_s[every_s > 0]
    if step_s is None:
        if not len(known):
            raise CityError(f"{where}: the step of its readings cannot be inferred. Pass one, such as --step 5min")
        each, count = np.unique(known, return_counts=True)
        step_s = whole_step(int(each[len(each) - 1 - np.argmax(count[::-1])]), where=where)
    every_s = np.where(gaps >= FEW_GAPS, every_s, 0)
    coarse = np.flatnonzero(every_s > step_s)
    if len(coarse):
        needed_s = int(every_s.max())
        fits = next((s for s in range(needed_s, DAY_S + 1) if DAY_S % s == 0 and s % needed_s == 0), None)
        worst = int(coarse[np.argmax(every_s[coarse])])
        remedy = f"Pass --step {step_text(fits)}" if fits else "Remove their readings"
        raise CityError(
            f'{where}: sensor "{names[worst]}" reports every {step_text(needed_s)}, coarser than the step of '
            f"{step_text(step_s)} (so do {len(coarse)} of {len(names)} sensors). {remedy}"
        )
    uneven = np.flatnonzero((every_s > 0) & (step_s % np.maximum(every_s, 1) != 0))
    if len(uneven) and quantity == "count":
        first = int(uneven[0])
        raise CityError(
            f'{where}: sensor "{names[first]}" counts every {step_text(int(every_s[first]))}, which does not divide '
            f"the step of {step_text(step_s)}. Pass a --step that is a multiple of it"
        )
    return step_s


def _intervals_s(readings: Readings, num_detectors: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[D] usual seconds between a detector's readings, 0 if irregular; and the number of gaps this is based on."""
    order = np.lexsort((readings.time_us, readings.column))
    detector = readings.column[order]
    time_us = readings.time_us[order]
    gap_us = np.diff(time_us)
    inside = (np.diff(detector) == 0) & (gap_us > 0)
    of = detector[1:][inside]
    gap_us = gap_us[inside]
    every_s = np.zeros(num_detectors, np.int64)
    seen = np.zeros(num_detectors, np.int64)
    which, first = np.unique(of, return_index=True)
    for i, gaps in zip(which.tolist(), np.split(gap_us, first[1:]), strict=False):
        each, count = np.unique(gaps, return_counts=True)
        usual = int(each[np.argmax(count)])
        # Irregular readings, such as one per passing vehicle, have no usual gap.
        regular = count.max() * 2 >= len(gaps) and (gaps % usual == 0).mean() >= 0.9 and len(gaps) >= 2
        every_s[i] = usual // 1_000_000 if regular and usual % 1_000_000 == 0 else 0
        seen[i] = len(gaps)
    return every_s, seen
