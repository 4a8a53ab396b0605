"""A city on its roads: roads become nodes, and turns become edges (`--on roads`).

Detectors are on roads, not at intersections; here the count of a road detector is a reading of a node. A segment is
placed at its midpoint. A turn runs from the midpoint of one segment to that of the next, so its length is half of each
and its geometry follows the street; class, lanes, speed and name are those of the segment it enters. The result is an
ordinary network whose nodes have lines: closing an edge closes a turn, closing a node closes a road. E roads, K turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.network import Edges, NodeId, RoadNetwork
from frigate.city.network_tables import node_names
from frigate.errors import CityError
from frigate.reading.notices import Notices
from frigate.roads.geometry import Line, road_lines, write_line
from frigate.roads.line_graph import every_turn, onward

Restriction = tuple[NodeId, NodeId, NodeId, str]  # from, via, to, and "no" or "only"


def on_roads(
    base: RoadNetwork | City,
    *,
    edges: Edges | None = None,
    ids: Sequence[NodeId] | NDArray[np.generic] | None = None,
    turns: NDArray[np.integer] | None = None,
    restrictions: Iterable[Restriction] = (),
    notices: Notices | None = None,
) -> RoadNetwork:
    """Turn roads into nodes and turns into edges: the line graph of the open roads, in the same order.

    Parameters
    ----------
    base
        A network, or a city, whose forbidden turns are respected.
    edges
        Roads to use instead of the network's own. Parallel roads and loops are allowed.
    ids
        Ids of the roads. Default: "A>B" for the road from A to B, "A>B#2" for the second shortest of parallel roads.
    turns
        [K,2] rows of the roads left and entered. Default: every turn, but U-turns only at dead ends.
    restrictions
        (from, via, to, kind), with node ids. As in OpenStreetMap, "no" forbids this turn and "only" forbids all others
        from that road. Restrictions whose roads are not in the network are counted and ignored.
    notices
        Collects what is left out.
    """
    network = base.network if isinstance(base, City) else base
    if isinstance(base, City):
        own = network.node_ids[base.forbidden_turns].tolist()
        restrictions = [*((a, via, b, "no") for a, via, b in own), *restrictions]
    edges = network.edges if edges is None else edges
    if not len(edges):
        raise CityError("the network has no open road, but a city on roads needs one")
    left, entered = every_turn(edges.senders, edges.receivers) if turns is None else _given_turns(edges, turns)
    allowed = ~_forbidden(network.node_ids, edges, list(restrictions), notices or Notices(), left, entered)
    if turns is None:
        allowed &= left != entered
    left = left[allowed]
    entered = entered[allowed]
    if turns is None:
        kept = onward(edges.senders, edges.receivers, left, entered)
        left = left[kept]
        entered = entered[kept]
    lon, lat, first, second = _halves(network, edges)
    course = np.empty(len(left), np.object_)
    course[:] = [write_line(np.concatenate([second[a], first[b][1:]])) for a, b in zip(left, entered, strict=True)]
    turn = replace(
        edges.take(entered),
        senders=left,
        receivers=entered,
        length_m=(edges.length_m[left] + edges.length_m[entered]) / 2,
        geometry=course,
    )
    road_ids = _road_ids(network.node_ids, edges, ids)
    lines = np.empty(len(edges), np.object_)
    lines[:] = [write_line(np.concatenate([a, b[1:]])) for a, b in zip(first, second, strict=True)]
    return RoadNetwork(road_ids, lon, lat, turn, lines=lines, names=node_names(edges.name))


# Nodes


def _road_ids(
    node_ids: NDArray[np.generic], edges: Edges, given: Sequence[NodeId] | NDArray[np.generic] | None
) -> NDArray[np.str_] | NDArray[np.int64]:
    names = node_ids.tolist()
    ends = zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True)
    ids: NDArray[np.str_] | NDArray[np.int64]
    if given is None:
        ids = _names_by_ends([(names[a], names[b]) for a, b in ends], edges.length_m)
    elif len(given) != len(edges):
        raise CityError(f"{len(given)} ids for {len(edges)} roads. Give one for each")
    else:
        own = np.asarray(given)
        ids = own.astype(np.int64) if own.dtype.kind in "iu" else own.astype(np.str_)
    unique, first, count = np.unique(ids, return_index=True, return_counts=True)
    if len(unique) < len(ids):
        which = int(np.argmax(count > 1))
        twice = f'road id "{unique[which]}" stands for {int(count[which])} roads (the first is row {int(first[which])})'
        raise CityError(f"{twice}. Every road needs an id of its own, in each direction")
    return ids


def _names_by_ends(ends: list[tuple[NodeId, NodeId]], length_m: NDArray[np.float64]) -> NDArray[np.str_]:
    named: dict[tuple[NodeId, NodeId], int] = {}
    ids = [""] * len(ends)
    for row in np.argsort(length_m, kind="stable").tolist():
        count = named[ends[row]] = named.get(ends[row], 0) + 1
        ids[row] = f"{ends[row][0]}>{ends[row][1]}" + (f"#{count}" if count > 1 else "")
    return np.array(ids, np.str_)


def _halves(
    nodes: RoadNetwork, edges: Edges
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Line], list[Line]]:
    """The midpoint of every road, and its line before and after it."""
    first: list[Line] = []
    second: list[Line] = []
    for points in road_lines(nodes, edges)[0]:
        step = np.diff(points, axis=0)
        step[:, 0] = (step[:, 0] + 180) % 360 - 180  # a road may cross the date line
        metre = np.hypot(step[:, 0] * np.cos(np.radians(points[0, 1])), step[:, 1])
        along = np.concatenate([[0], np.cumsum(metre)])
        at = min(int(np.searchsorted(along, along[-1] / 2, side="right")) - 1, len(step) - 1)
        share = (along[-1] / 2 - along[at]) / metre[at] if metre[at] > 0 else 0.0
        middle = points[at] + share * step[at]
        middle[0] = (middle[0] + 180) % 360 - 180
        first.append(np.concatenate([points[: at + 1], middle[None]]))
        second.append(np.concatenate([middle[None], points[at + 1 :]]))
    middles = np.array([half[0] for half in second])
    return middles[:, 0], middles[:, 1], first, second


# Turns


def _given_turns(edges: Edges, turns: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    pairs = np.unique(np.asarray(turns, np.int64).reshape(-1, 2), axis=0)
    left, entered = pairs[pairs[:, 0] != pairs[:, 1]].T  # not from a loop into itself
    if len(left) and (pairs.min() < 0 or pairs.max() >= len(edges)):
        raise CityError(f"a turn names road row {int(pairs.max())} of a table of {len(edges)} roads")
    apart = edges.receivers[left] != edges.senders[entered]
    if apart.any():
        at = int(np.argmax(apart))
        raise CityError(f"turn {left[at]},{entered[at]}: the second road does not begin where the first ends")
    return left, entered


def _forbidden(
    node_ids: NDArray[np.generic],
    edges: Edges,
    restrictions: list[Restriction],
    notices: Notices,
    left: NDArray[np.int64],
    entered: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """[K] which of these turns the restrictions forbid."""
    E = len(edges)
    names = node_ids.tolist()
    between: dict[tuple[NodeId, NodeId], list[int]] = {}
    for row, (a, b) in enumerate(zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True)):
        between.setdefault((names[a], names[b]), []).append(row)
    turns: dict[str, list[int]] = {"no": [], "only": []}
    lost = np.zeros(len(restrictions), bool)
    for i, (a, via, b, kind) in enumerate(restrictions):
        word = kind.partition("_")[0]
        if word not in turns:
            raise CityError(f'turn restriction from {a} over {via} to {b}: kind "{kind}" is neither "no" nor "only"')
        found = [x * E + y for x in between.get((a, via), []) for y in between.get((via, b), [])]
        lost[i] = not found
        turns[word] += found

    def spot(i: int) -> str:
        a, via, b, _ = restrictions[i]
        return f"from {a} over {via} to {b}"

    notices.add_rows("Turn restrictions left out, one of their roads is not in the network", lost, spot)
    turn = left * E + entered
    only = np.array(turns["only"], np.int64)
    forbidden: NDArray[np.bool_] = np.isin(turn, turns["no"]) | (np.isin(left, only // E) & ~np.isin(turn, only))
    return forbidden
