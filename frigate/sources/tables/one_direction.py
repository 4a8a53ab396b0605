"""Whether detectors measure single roads, so that none of them counts all traffic of an intersection."""

from __future__ import annotations

from collections.abc import Sequence

from frigate.coordinates import coordinate_fault
from frigate.reading.columns import NodeIndex
from frigate.roads.geometry import PlaceIndex
from frigate.sources.tables.detectors import SNAP_M, RoadTable, SensorSite, both_ways, site_ids

MID_ROAD_M = 20.0  # from the nearest intersection: a detector farther away, and nearer to a road, is on the road


def one_direction(places: Sequence[SensorSite | None], names: Sequence[str], table: RoadTable) -> str:
    """Why these detectors do not measure all traffic of an intersection, as most do not; "" if they may.

    They say which direction or which road they measure, or they are on a road, away from intersections.
    """
    index = NodeIndex(table.network.node_ids)
    at_node = index.find(site_ids(places, "node_id")) >= 0
    rows = [i for i, place in enumerate(places) if place is not None and not at_node[i]]
    told = {i: _told_direction(place) for i in rows if (place := places[i]) is not None}
    directed = [i for i in rows if told[i]]
    if directed:
        first = f'"{names[directed[0]]}", {told[directed[0]]}'
        return f"{len(directed):,} of {len(places):,} detectors measure one direction of a road (first: {first})"
    located = [(i, place) for i in rows if (place := places[i]) is not None and place.has_point]
    located = [(i, place) for i, place in located if not coordinate_fault(place.lon, place.lat, allow_zero=False)]
    if not located or not len(table.edges):
        return ""
    nodes = PlaceIndex.of_nodes(table.network)
    roads = PlaceIndex.of_roads(table.network, table.edges)
    on_road = []
    for i, place in located:
        to_node_m, to_road_m = (float(each.near(place.lon, place.lat, 0)[1][0]) for each in (nodes, roads))
        if to_node_m > MID_ROAD_M and to_road_m < to_node_m / 2 and to_road_m <= SNAP_M:
            on_road.append((i, to_node_m, to_road_m))
    if len(on_road) * 2 <= len(located):
        return ""
    i, to_node_m, to_road_m = on_road[0]
    first = f'"{names[i]}", {to_node_m:.0f} m from the nearest intersection, {to_road_m:.0f} m from a road'
    return f"{len(on_road):,} of {len(places):,} detectors are on a road, not at an intersection (first: {first})"


def _told_direction(place: SensorSite) -> str:
    """What a detector says of its road or direction; "" for nothing, or both directions."""
    if place.road_id is not None:
        return f"road {place.road_id}"
    if place.source is not None and place.target is not None:
        return f"road {place.source},{place.target}"
    return f"bearing {place.bearing}" if place.bearing and not both_ways(place.bearing) else ""
