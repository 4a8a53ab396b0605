"""Read maps from Overpass (JSON) and OSMnx (GraphML). Files are read whole, so memory grows with their size."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np

from frigate.errors import CityError
from frigate.reading.files import parsing
from frigate.roads.geometry import NotALineError, read_line
from frigate.sources.osm.files import MapFile, open_unpacked
from frigate.sources.osm.tags import road_kind
from frigate.sources.osm.ways import IDS, Gathered, RawRoads, checked_places

Place = tuple[float, float]  # lon, lat


def read_overpass(file: MapFile, gathered: Gathered) -> RawRoads:
    """Read the roads of an Overpass answer: `out body` with nodes, or `out geom`."""
    with parsing(file.path), open_unpacked(file.path) as packed:
        answer = json.loads(packed.read())
    if not isinstance(answer, dict) or not isinstance(answer.get("elements"), list):
        found = ", ".join(list(answer)[:5]) if isinstance(answer, dict) else type(answer).__name__
        raise CityError(f'{file.path.name} has no list "elements" ({found}). Ask Overpass with [out:json]')
    remark = answer.get("remark")
    if isinstance(remark, str) and remark:
        if not answer["elements"]:
            raise CityError(f"{file.path.name}: Overpass only answered: {remark[:200]}. Ask again")
        gathered.notices.add(f'Remarks from Overpass ("{remark[:100]}"): the map may be incomplete', 1)
    places: dict[int, Place] = {}
    unnamed: dict[Place, int] = {}
    for item in answer["elements"]:
        if not _take_element(item, gathered, places, unnamed):
            gathered.notices.add("Unreadable elements were left out", 1)
    return _located(file, gathered, places)


def _take_element(item: Any, gathered: Gathered, places: dict[int, Place], unnamed: dict[Place, int]) -> bool:
    """Keep an element; False if it is unreadable."""
    if not isinstance(item, dict):
        return False
    tags = {k: v for k, v in _dict(item.get("tags")).items() if isinstance(v, str)}
    sort = item.get("type")
    ident = _id(item.get("id"))
    if sort == "node":
        place = _place(item)
        if ident is None or place is None:
            return False
        if places.get(ident, place) != place:
            gathered.notices.add("Nodes that occur more than once, the last kept", 1)
        places[ident] = place
    elif sort == "way":
        if "highway" not in tags:
            return True
        line = item.get("geometry")
        spots = [_place(p) for p in line] if isinstance(line, list) else []
        refs = _refs(item.get("nodes"), spots, unnamed)
        if ident is None or refs is None:
            return False
        if len(spots) == len(refs):
            places |= {r: p for r, p in zip(refs, spots, strict=True) if p is not None and r not in places}
        gathered.add_way(ident, refs, tags)
    elif sort == "relation" and tags.get("type") == "restriction":
        members = [_dict(m) for m in item["members"]] if isinstance(item.get("members"), list) else []
        found = [(str(m.get("role")), str(m.get("type"))[:1], _id(m.get("ref"))) for m in members]
        gathered.add_turn(tags, [(role, kind, ref) for role, kind, ref in found if ref is not None])
    return True


def _refs(nodes: Any, spots: Sequence[Place | None], unnamed: dict[Place, int]) -> list[int] | None:
    """The ids of a way's nodes. If only coordinates are given, each becomes a node with a negative id."""
    if isinstance(nodes, list):
        refs = [_id(n) for n in nodes]
        return None if None in refs else [r for r in refs if r is not None]
    if not spots:
        return None
    return [-1 - unnamed.setdefault(p, len(unnamed)) for p in spots if p is not None]


def _dict(item: Any) -> Mapping[str, Any]:
    return item if isinstance(item, dict) else {}


def _id(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and IDS.min < value < IDS.max else None


def _place(item: Any) -> Place | None:
    lon = _dict(item).get("lon")
    lat = _dict(item).get("lat")
    if not isinstance(lon, int | float) or not isinstance(lat, int | float):
        return None
    return (float(lon), float(lat)) if abs(lon) < 1e9 and abs(lat) < 1e9 else None


def _located(file: MapFile, gathered: Gathered, places: Mapping[int, Place], *, hint: str = "") -> RawRoads:
    wanted = gathered.wanted()
    found = [places.get(node_id, (math.nan, math.nan)) for node_id in wanted.tolist()]
    lon, lat = np.array(found, np.float64).reshape(-1, 2).T
    return gathered.roads(wanted, *checked_places(file.path, lon, lat, gathered.notices, hint=hint))


# GraphML


def read_graphml(file: MapFile, gathered: Gathered) -> RawRoads:
    """Read the roads of a graph saved by OSMnx, simplified or not. Each edge is one direction of a road.

    Inner points of an edge's geometry become nodes with negative ids, which `simplify` removes again.
    """
    with parsing(file.path), open_unpacked(file.path) as packed:
        root = ElementTree.parse(packed).getroot()
    names = {key.get("id"): key.get("attr.name", key.get("id", "")) for key in root.iterfind("{*}key")}
    directed = all(graph.get("edgedefault") != "undirected" for graph in root.iterfind("{*}graph"))
    places: dict[int, Place] = {}
    for node in root.iterfind("{*}graph/{*}node"):
        attributes = _attributes(node, names)
        x, y = (_number(attributes.get(key, "")) for key in ("x", "y"))
        places[_node_id(file, node.get("id", ""))] = (x, y)
    free = min([0, *places])
    within: dict[tuple[int, int, Place], int] = {}
    for row, edge in enumerate(root.iterfind("{*}graph/{*}edge")):
        u, v = (_node_id(file, edge.get(end, "")) for end in ("source", "target"))
        attributes = _attributes(edge, names)
        line = _line(attributes.get("geometry", ""))
        refs = [u]
        for place in line[1:-1]:
            new = within.setdefault((min(u, v), max(u, v), place), free - 1 - len(within))
            places[new] = place
            refs.append(new)
        _add_edge(gathered, row, [*refs, v], attributes, directed=directed)
    hint = "Save the graph in degrees: ox.project_graph(G, to_latlong=True)"
    return _located(file, gathered, places, hint=hint)


def _attributes(item: ElementTree.Element, names: Mapping[str | None, str]) -> dict[str, str]:
    """The attributes of a node or edge, by the names that the file declares."""
    held = ((names.get(data.get("key")), data.text) for data in item.iterfind("{*}data"))
    return {name: (text or "").strip() for name, text in held if name is not None}


def _add_edge(gathered: Gathered, row: int, refs: list[int], attributes: Mapping[str, str], *, directed: bool) -> None:
    tags = {key: _first(text) for key, text in attributes.items() if key != "maxspeed"}
    tags["maxspeed"] = ";".join(_listed(attributes.get("maxspeed", "")))
    tags["lanes"] = ";".join(_listed(attributes.get("lanes", "")))
    kind = road_kind(tags, highways=gathered.highways, notices=gathered.notices)
    if kind is None:
        return
    if directed:  # the edge is one direction, even of a two-way road
        other = _first(attributes.get("reversed", "")).lower() == "true" and not (kind.forward and not kind.backward)
        lanes = kind.lanes_backward if other else kind.lanes_forward
        speed = kind.speed_backward_kph if other else kind.speed_forward_kph
        kind = replace(kind, forward=True, backward=False, lanes_forward=lanes, speed_forward_kph=speed)
    gathered.add_kind(row, refs, kind, length_m=_number(attributes.get("length", "")))


def _node_id(file: MapFile, name: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", name.strip()):
        raise CityError(
            f'{file.path.name}: node "{name[:40]}" is not a whole number, but OSMnx writes whole numbers as ids'
        )
    return int(name)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if abs(number) < 1e9 else math.nan


def _listed(text: str) -> list[str]:
    """The values in "['a', 'b']", the way OSMnx writes a list; plain text is one value."""
    if text.startswith("[") and text.endswith("]"):
        return re.findall(r"['\"]([^'\"]*)['\"]", text) or [w.strip() for w in text[1:-1].split(",")]
    return [text]


def _first(text: str) -> str:
    return next(iter(_listed(text)), "")


def _line(wkt: str) -> list[Place]:
    """The points of "LINESTRING (6.1 49.6, 6.2 49.7)"; empty if it is not a line."""
    try:
        return [(lon, lat) for lon, lat in read_line(wkt).tolist()] if wkt else []
    except NotALineError:
        return []
