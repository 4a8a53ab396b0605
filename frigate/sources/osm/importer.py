"""Import a road network from OpenStreetMap: .osm.pbf, .osm, .osm.gz, .osm.bz2, Overpass JSON, or GraphML from OSMnx.

`tags` decides which ways are roads and in which directions, `files` and `overpass_graphml` read them, and `simplify`
reduces them to intersections. Node ids are those of OpenStreetMap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import zone
from frigate.city.bucketing import Snapshots
from frigate.city.city import City, empty_turns
from frigate.city.city_toml import parse_step
from frigate.city.network import RoadNetwork
from frigate.city.network_tables import note_network
from frigate.errors import CityError, did_you_mean
from frigate.reading.notices import Notices
from frigate.reading.sandbox import reading, sandboxed
from frigate.roads.on_roads import on_roads
from frigate.sources.osm.files import GRAPHML, JSON, NAMED, open_map, read_osmium
from frigate.sources.osm.overpass_graphml import read_graphml, read_overpass
from frigate.sources.osm.simplify import (
    Chains,
    Segments,
    intersections,
    make_chains,
    make_edges,
    make_segments,
    strong_part,
)
from frigate.sources.osm.tags import DRIVABLE, NOT_FOR_CARS
from frigate.sources.osm.ways import Gathered, RawRoads
from frigate.sources.timezones import timezone_of

__all__ = ["DRIVABLE", "OsmRoads", "import_osm", "read_osm"]


@dataclass(frozen=True)
class OsmRoads:
    """A network and its forbidden turns."""

    network: RoadNetwork
    forbidden_turns: NDArray[np.int64]  # [K,3] rows of nodes: from, via, to
    notices: Notices


@sandboxed
def import_osm(
    file: str | Path,
    *,
    name: str | None = None,
    step: str = "5min",
    timezone: str | None = None,
    highways: Collection[str] = DRIVABLE,
    keep_all: bool = False,
    on: str = "nodes",
) -> City:
    """Make a city, without readings, from an OpenStreetMap file.

    Parameters
    ----------
    file
        .osm.pbf, .osm, .osm.gz, .osm.bz2, Overpass .json or OSMnx .graphml, recognised by its content.
    name
        Name of the city. Default: the name of the file.
    step, timezone
        Step and time zone of the readings that will be added. Default time zone: that of the place.
    highways
        Values of the tag `highway` that count as roads.
    keep_all
        Keep all roads. Default: only the largest strongly connected part, where every node can reach every other.
    on
        "nodes": a node is an intersection. "roads": a node is a road, and an edge is a turn that the map allows.
    """
    if on not in ("nodes", "roads"):
        raise CityError(f'on "{on}" is not known. Give nodes or roads')
    step_s = parse_step(step, where="step")
    if timezone is not None:
        zone(timezone)
    roads = read_osm(file, highways=highways, keep_all=keep_all)
    timezone = timezone_of(roads.network, timezone, roads.notices)
    ending = next((e for e in sorted(NAMED, key=len, reverse=True) if str(file).lower().endswith(e)), Path(file).suffix)
    name = name or Path(file).name.removesuffix(ending) or Path(file).name

    def city(network: RoadNetwork, turns: NDArray[np.int64] | None) -> City:
        stream = Snapshots.none(network.num_nodes, step_s, timezone).stream(network)
        return City.reported(name, stream, roads.notices, forbidden_turns=turns)

    on_nodes = city(roads.network, roads.forbidden_turns)
    return on_nodes if on == "nodes" else city(on_roads(on_nodes, notices=roads.notices), None)


@sandboxed
def read_osm(file: str | Path, *, highways: Collection[str] = DRIVABLE, keep_all: bool = False) -> OsmRoads:
    """Read the roads of an OpenStreetMap file, simplified to intersections, and its forbidden turns.

    Parameters
    ----------
    file, highways, keep_all
        As for `import_osm`.
    """
    wanted = frozenset([highways] if isinstance(highways, str) else highways)
    notices = Notices()
    source = open_map(file)
    reading(source.path)
    if source.named not in (None, source.kind):
        notices.add(f"Files named like {source.named} but read as {source.kind}, by their content", 1)
    gathered = Gathered(wanted, notices)
    if source.kind == JSON:
        raw = read_overpass(source, gathered)
    elif source.kind == GRAPHML:
        raw = read_graphml(source, gathered)
    else:
        raw = read_osmium(source, gathered)
    _refuse_misspelt(wanted, {kind.road_class for kind in raw.kinds})
    if not len(raw.refs):
        few = ", ".join(sorted(wanted)[:4])
        raise CityError(f"{source.path.name} has no drivable road (highway: {few}, ...). Choose others with highways")
    return _network(source.path, raw, notices, keep_all=keep_all)


def _refuse_misspelt(wanted: frozenset[str], found: set[str]) -> None:
    """Refuse a value of highway that is neither in the map nor a known one: it must be a typo."""
    known = {*DRIVABLE, *NOT_FOR_CARS}
    for word in sorted(wanted - found - known):
        hint = did_you_mean(word, sorted(known))
        raise CityError(f'highways: no way has highway "{word}"{hint}. Leave it out, or give one that is in the map')


def _network(path: Path, raw: RawRoads, notices: Notices, *, keep_all: bool) -> OsmRoads:
    M = len(raw.node_ids)
    segments = make_segments(raw, notices)
    if not len(segments):
        raise CityError(f"{path.name} has roads but not the coordinates of their nodes. Download it with its nodes")
    if not keep_all:
        segments = _strong(path, segments, M, notices)
    chains = make_chains(segments, M, notices=notices)
    nodes = np.unique(np.concatenate([chains.senders, chains.receivers]))
    edges = make_edges(raw, segments, chains, nodes, notices)
    network = RoadNetwork(raw.node_ids[nodes], raw.lon[nodes], raw.lat[nodes], edges)
    note_network(network, notices)
    return OsmRoads(network, _forbidden_turns(raw, segments, chains, nodes, notices), notices)


def _strong(path: Path, segments: Segments, M: int, notices: Notices) -> Segments:
    inside = strong_part(segments, M)
    if not inside.any():
        raise CityError(f"{path.name}: no two nodes can reach each other. Use keep_all to keep all roads")
    kept = segments.take(np.flatnonzero(inside))
    reached = np.zeros(M, bool)
    reached[kept.senders] = True
    lost_m = float(segments.length_m.sum() - kept.length_m.sum())
    what = "outside the largest strongly connected part were left out"
    notices.add(f"Intersections {what}", int((intersections(segments, M) & ~reached).sum()))
    notices.add(f"Kilometres of directed road {what}", 0 if inside.all() else max(1, round(lost_m / 1000)))
    return kept


# Turn restrictions


def _forbidden_turns(
    raw: RawRoads, segments: Segments, chains: Chains, nodes: NDArray[np.int64], notices: Notices
) -> NDArray[np.int64]:
    """[K,3] rows of nodes: the turns that a no_... restriction names, and all but the one that an only_... names."""
    if not raw.turns:
        return empty_turns()
    ends_at = _rows_by(segments.receivers)
    starts_at = _rows_by(segments.senders)
    row_of = dict(zip(raw.node_ids[nodes].tolist(), nodes.tolist(), strict=True))
    forbidden: set[tuple[int, int, int]] = set()
    only: dict[tuple[int, int], set[int]] = {}
    for turn in raw.turns:
        via = row_of.get(turn.via_node)
        if via is None:
            notices.add("Turn restrictions at nodes that are not intersections of the network were left out", 1)
            continue
        arriving = [s for s in ends_at(via) if raw.way_ids[segments.way[s]] == turn.from_way]
        leaving = [s for s in starts_at(via) if raw.way_ids[segments.way[s]] == turn.to_way]
        if not arriving or not leaving:
            notices.add("Turn restrictions whose roads are not in the network were left out", 1)
        elif len(arriving) > 1 or len(leaving) > 1:
            notices.add("Ambiguous turn restrictions, whose roads continue beyond the node, were left out", 1)
        else:
            sender = int(chains.senders[chains.chain_of[arriving[0]]])
            receiver = int(chains.receivers[chains.chain_of[leaving[0]]])
            if turn.kind.startswith("only_"):
                only.setdefault((sender, via), set()).add(receiver)
            else:
                forbidden.add((sender, via, receiver))
    for (sender, via), allowed in only.items():
        others = set(chains.receivers[chains.senders == via].tolist()) - allowed
        forbidden |= {(sender, via, receiver) for receiver in others}
    return np.searchsorted(nodes, np.array(sorted(forbidden), np.int64).reshape(-1, 3))


def _rows_by(nodes: NDArray[np.int64]) -> Callable[[int], list[int]]:
    """A function that returns the rows in `nodes` where a node occurs."""
    order = np.argsort(nodes, kind="stable")
    in_order = nodes[order]

    def rows(node: int) -> list[int]:
        first, stop = np.searchsorted(in_order, [node, node + 1])
        found: list[int] = order[first:stop].tolist()
        return found

    return rows
