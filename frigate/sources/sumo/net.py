"""Read SUMO's road network file: junctions, roads for cars and the connections between them, in degrees.

J junctions, E roads, K turns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import MIN_ROAD_M, Edges, RoadNetwork
from frigate.coordinates import on_earth
from frigate.errors import CityError, MissingExtraError
from frigate.reading.columns import MAX_TEXT
from frigate.reading.notices import Notices
from frigate.roads.geometry import Projection, write_line
from frigate.roads.line_graph import dead_ends
from frigate.sources.sumo.xml import Element, elements

NO_ROAD = ("internal", "crossing", "walkingarea")  # functions of edges inside a junction or for pedestrians
FASTEST_MPS = 100.0
MAX_M = 1e6
MAX_ORIGIN_LAT = 80.0  # too close to a pole, a plane is too inaccurate
UNPLACED = ("!", "-", "")  # values of projParameter that mean no projection


@dataclass(frozen=True)
class Lane:
    road: int  # row of the road
    length_m: float
    for_cars: bool


@dataclass(frozen=True)
class SumoNet:
    """The network for cars with all its roads, including parallel roads and loops."""

    junctions: RoadNetwork  # those with a road; the roads themselves are in `roads`
    roads: Edges  # [E]
    road_ids: NDArray[np.str_]  # [E] SUMO's ids
    turns: NDArray[np.int64] | None  # [K,2] rows of the roads left and entered; None: the file has no connections
    lanes: dict[str, Lane]
    not_for_cars: frozenset[str]  # ids of all other roads
    u_turns: int  # left out of `turns` because the road leads on


@dataclass
class _Read:
    """The elements of the file, unprocessed."""

    location: Element | None = None
    junctions: dict[str, tuple[float, float]] = field(default_factory=dict)
    roads: dict[str, tuple[Element, list[Element]]] = field(default_factory=dict)  # an edge and its lanes
    connections: list[tuple[str, str, str, str, bool]] = field(default_factory=list)  # roads, lanes, whether a U-turn


def read_net(path: Path, *, notices: Notices, origin: tuple[float, float] | None = None) -> SumoNet:
    """Read a network file. `origin` is the place of its point 0,0, if it has no projection."""
    read = _read(path)
    cars = {name: [lane for lane in lanes if for_cars(lane)] for name, (_, lanes) in read.roads.items()}
    kept = [name for name in read.roads if cars[name]]
    if not kept:
        raise CityError(f"{path.name} has no road that passenger cars may use, of {len(read.roads)} roads")
    notices.add("Roads that passenger cars may not use, left out", len(read.roads) - len(kept))
    ends = [(read.roads[name][0].text("from"), read.roads[name][0].text("to")) for name in kept]
    used = {junction for pair in ends for junction in pair}
    for name, pair in zip(kept, ends, strict=True):
        for junction in pair:
            if junction not in read.junctions:
                raise read.roads[name][0].refuse(
                    f'road "{name}" ends at junction "{junction}", which is not in the file'
                )
    notices.add("Junctions without a road for cars, left out", len(read.junctions) - len(used))
    junctions = [junction for junction in read.junctions if junction in used]
    row_of = {junction: row for row, junction in enumerate(junctions)}
    to_degrees = _projection(path, read.location, origin)
    place = to_degrees(np.array([read.junctions[junction] for junction in junctions]))
    edges = _edges(read, kept, cars, np.array([[row_of[a], row_of[b]] for a, b in ends]), to_degrees, notices)
    road_of = {name: row for row, name in enumerate(kept)}
    lanes = {
        lane.text("id"): Lane(road_of[name], lane.number("length"), for_cars(lane))
        for name in kept
        for lane in read.roads[name][1]
    }
    turns, u_turns = _turns(read, road_of, lanes)
    return SumoNet(
        RoadNetwork(np.array(junctions, np.str_), place[:, 0], place[:, 1], Edges.none()),
        edges,
        np.array(kept, np.str_),
        turns,
        lanes,
        frozenset(read.roads) - frozenset(kept),
        u_turns,
    )


def _read(path: Path) -> _Read:
    read = _Read()
    lanes: list[Element] | None = None  # of the current edge; None if it is not a road
    for element in elements(path, roots=["net"]):
        match element.name:
            case "edge":
                name = element.text("id")
                if element.attributes.get("function") in NO_ROAD or name.startswith(":"):
                    lanes = None
                    continue
                if name in read.roads:
                    raise element.refuse(f'road "{name}" is already defined, at line {read.roads[name][0].line}')
                lanes = []
                read.roads[name] = (element, lanes)
            case "lane":
                if lanes is not None:
                    lanes.append(element)
            case "junction":
                name = element.text("id")
                if element.attributes.get("type") != "internal" and not name.startswith(":"):
                    if name in read.junctions:
                        raise element.refuse(f'junction "{name}" is defined twice')
                    read.junctions[name] = (element.number("x"), element.number("y"))
            case "connection":
                a = element.text("from")
                b = element.text("to")
                if not a.startswith(":") and not b.startswith(":") and for_cars(element):
                    ends = (f"{a}_{element.text('fromLane')}", f"{b}_{element.text('toLane')}")
                    read.connections.append((a, b, *ends, element.attributes.get("dir") == "t"))
            case "location":
                read.location = element
    if not read.roads or not read.junctions:
        raise CityError(f"{path.name} has {len(read.roads)} roads and {len(read.junctions)} junctions. It needs both")
    return read


def for_cars(element: Element) -> bool:
    """Whether a lane or connection may be used by SUMO's vehicle class "passenger"."""
    allow = element.attributes.get("allow")
    disallow = element.attributes.get("disallow")
    if allow is not None:
        return bool({"passenger", "all"} & set(allow.split()))
    return not {"passenger", "all"} & set((disallow or "").split())


ToDegrees = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # from the file's metres [P,2] to lon, lat


def _projection(path: Path, location: Element | None, origin: tuple[float, float] | None) -> ToDegrees:
    parameter = "" if location is None else location.attributes.get("projParameter", "").strip()
    if location is None or parameter in UNPLACED:
        if origin is None:
            raise CityError(
                f'{path.name} has no place on earth (projParameter="{parameter}"). '
                "Say where its point 0,0 is with --origin LON,LAT, such as --origin 6.13,49.61"
            )
        return _around(path, origin)
    if origin is not None:
        raise location.refuse(f'the network has a projection (projParameter="{parameter[:80]}"). Leave out --origin')
    try:
        import pyproj
    except ImportError:
        raise MissingExtraError("pyproj", "sumo") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about outdated projection syntax
            project = pyproj.Proj(parameter)
    except (pyproj.exceptions.ProjError, ValueError, TypeError):
        raise location.refuse(f'projParameter "{parameter[:80]}" is not a projection that PROJ knows') from None
    offset = location.points("netOffset", location.text("netOffset"))
    if len(offset) != 1:
        raise location.refuse(f'netOffset "{location.text("netOffset")[:40]}" is not one point x,y')

    def to_degrees(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        metres = xy - np.array(offset[0])
        lon, lat = project(metres[:, 0], metres[:, 1], inverse=True)
        wrong = ~on_earth(lon, lat)
        if wrong.any():
            x, y = xy[int(np.argmax(wrong))]
            raise location.refuse(f"{x:g},{y:g} is not on earth by this netOffset and projParameter")
        return np.stack([lon, lat], axis=1)

    return to_degrees


def _around(path: Path, origin: tuple[float, float]) -> ToDegrees:
    """From metres on a plane that touches the earth at the origin."""
    plane = Projection(*origin)
    lon_lat = np.array(origin)
    if not (on_earth(*lon_lat) and abs(plane.lat) <= MAX_ORIGIN_LAT):
        hint = "; lon comes first" if on_earth(*lon_lat[::-1]) else ""
        found = f"--origin {plane.lon:g},{plane.lat:g} cannot be a city{hint}"
        raise CityError(f"{found}. Give LON,LAT, with LAT within {MAX_ORIGIN_LAT:g} degrees")

    def to_degrees(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        lon, lat = plane.degrees(xy[:, 0], xy[:, 1])
        wrong = ~on_earth(lon, lat)
        if wrong.any():
            x, y = xy[int(np.argmax(wrong))]
            raise CityError(f"{path.name}: {x:g},{y:g} is not on earth with this --origin. Move it")
        return np.stack([lon, lat], axis=1)

    return to_degrees


def _edges(
    read: _Read,
    kept: list[str],
    cars: dict[str, list[Element]],
    ends: NDArray[np.int64],
    to_degrees: ToDegrees,
    notices: Notices,
) -> Edges:
    """The roads [E], with line, true length and attributes."""
    lines = []
    length_m = np.zeros(len(kept))
    speed_kph = np.zeros(len(kept))
    for row, name in enumerate(kept):
        edge = read.roads[name][0]
        lane = cars[name][0]
        line = edge.points("shape", edge.attributes.get("shape", ""))
        if len(line) < 2:  # no shape: straight from junction to junction
            line = [read.junctions[edge.text("from")], read.junctions[edge.text("to")]]
        lines.append(np.array(line))
        length_m[row] = lane.number("length")
        if not 0 <= length_m[row] <= MAX_M:
            raise lane.refuse(f"lane length {length_m[row]:g} is not plausible in metres, SUMO's unit")
        # A lane ends at the border of the junction. Add the stretch inside.
        length_m[row] += max(0.0, _metres(lines[-1]) - _metres(np.array(lane.points("shape", lane.text("shape")))))
        fastest_mps = max(each.number("speed") for each in cars[name])
        if not 0 <= fastest_mps <= FASTEST_MPS:
            raise lane.refuse(f"lane speed {fastest_mps:g} is not plausible in metres per second, SUMO's unit")
        speed_kph[row] = 3.6 * fastest_mps if fastest_mps > 0 else np.nan
    short = length_m < MIN_ROAD_M
    notices.add_rows("Roads shorter than a metre were given one metre", short, lambda row: f'road "{kept[row]}"')
    cuts = np.cumsum([len(line) for line in lines])[:-1]
    geometry = np.empty(len(kept), np.object_)
    geometry[:] = [write_line(line) for line in np.split(to_degrees(np.concatenate(lines)), cuts)]
    of = [read.roads[name][0].attributes for name in kept]
    names = [edge.get("name", "") for edge in of]
    notices.add(f"Names of roads cut to {MAX_TEXT} characters", sum(len(name) > MAX_TEXT for name in names))
    return Edges.of(
        ends[:, 0],
        ends[:, 1],
        np.maximum(length_m, MIN_ROAD_M),
        road_class=[road_class(edge.get("type", "")) for edge in of],
        lanes=[len(cars[name]) for name in kept],
        speed_kph=speed_kph,
        name=[name[:MAX_TEXT] for name in names],
        geometry=geometry,
    )


def _metres(line: NDArray[np.float64]) -> float:
    return float(np.hypot(*np.diff(line, axis=0).T).sum()) if len(line) > 1 else 0.0


def road_class(sumo_type: str) -> str:
    """ "residential" for "highway.residential|railway.tram"; types not from OpenStreetMap are kept unchanged."""
    for part in sumo_type.split("|"):
        if part.startswith("highway."):
            return part.removeprefix("highway.")
    return sumo_type


def _turns(read: _Read, road_of: dict[str, int], lanes: dict[str, Lane]) -> tuple[NDArray[np.int64] | None, int]:
    """Allowed turns, and the number of U-turns left out: SUMO says which turns are."""
    if not read.connections:
        return None, 0
    onward: set[tuple[int, int]] = set()
    back: set[tuple[int, int]] = set()
    for a, b, lane_a, lane_b, turns_round in read.connections:
        ends = (lanes.get(lane_a), lanes.get(lane_b))
        if a in road_of and b in road_of and all(lane is not None and lane.for_cars for lane in ends):
            (back if turns_round else onward).add((road_of[a], road_of[b]))
    may_turn_round = dead_ends(np.array([a for a, _ in onward], np.int64), len(read.roads))
    kept = onward | {(a, b) for a, b in back if may_turn_round[a]}
    return np.array(sorted(kept), np.int64).reshape(-1, 2), len(onward | back) - len(kept)
