"""Reduce ways to a network of intersections: a node is where roads meet, end, or change between one-way and two-way.

The ways between two nodes become one road, with their length and geometry. A network has at most one road from one node
to another and none from a node to itself. If the map has more, the longer road (or the loop) gets an extra node in its
middle, so that no road is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import shapely
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from frigate.city.network import MIN_ROAD_M, Edges
from frigate.coordinates import haversine_m
from frigate.reading.notices import Notices
from frigate.roads.features import SPEED_KPH, SPEED_OF_LEVEL_KPH, class_levels
from frigate.sources.osm.ways import RawRoads

LONG_M = 50_000.0  # if two nodes of a way are farther apart, one is usually misplaced


@dataclass(frozen=True)
class Segments:
    """The P directed pieces of road between one node of a way and the next."""

    senders: NDArray[np.int64]  # [P] rows of the M nodes
    receivers: NDArray[np.int64]  # [P]
    length_m: NDArray[np.float64]  # [P]
    way: NDArray[np.int64]  # [P]
    backward: NDArray[np.bool_]  # [P] against the direction of the way

    def __len__(self) -> int:
        return len(self.senders)

    def take(self, rows: NDArray[np.generic]) -> Segments:
        return Segments(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True)
class Chains:
    """The E roads between intersections, and the segments they consist of."""

    order: NDArray[np.int64]  # [P] rows of the segments: road after road, each from its start to its end
    first: NDArray[np.int64]  # [E] where a road begins in `order`
    chain_of: NDArray[np.int64]  # [P] the road of each segment
    senders: NDArray[np.int64]  # [E] rows of the M nodes
    receivers: NDArray[np.int64]  # [E]
    length_m: NDArray[np.float64]  # [E]

    def count(self) -> NDArray[np.int64]:
        """[E] number of segments in each road."""
        return np.diff(self.first, append=len(self.order))


def make_segments(raw: RawRoads, notices: Notices) -> Segments:
    """Directed segments, at most one from one node to another. Ways are cut where a node is missing."""
    located = ~np.isnan(raw.lon)
    a = raw.refs[:-1]
    b = raw.refs[1:]
    way = raw.way_of[:-1]
    together = way == raw.way_of[1:]
    missing = ~located[raw.refs]
    notices.add("Ways cut where their nodes are not in the file", len(np.unique(raw.way_of[missing])))
    notices.add("Nodes repeated in a row within a way were used once", int((together & (a == b)).sum()))
    whole = together & (a != b) & located[a] & located[b]
    a = a[whole]
    b = b[whole]
    way = way[whole]
    length_m = haversine_m(raw.lon[a], raw.lat[a], raw.lon[b], raw.lat[b])
    notices.add("Segments of over 50 km, perhaps with a misplaced node", int((length_m > LONG_M).sum()))
    length_m = length_m * _stated(raw, way, length_m)
    allowed = np.array([(k.forward, k.backward) for k in raw.kinds], bool).reshape(-1, 2)[raw.kind_of[way]]
    along = np.flatnonzero(allowed[:, 0])
    against = np.flatnonzero(allowed[:, 1])
    both = np.concatenate([along, against])
    segments = Segments(
        np.concatenate([a[along], b[against]]),
        np.concatenate([b[along], a[against]]),
        length_m[both],
        way[both],
        np.concatenate([np.zeros(len(along), bool), np.ones(len(against), bool)]),
    )
    _, once = np.unique(segments.senders * len(raw.node_ids) + segments.receivers, return_index=True)
    notices.add("Segments drawn more than once were kept once", len(segments) - len(once))
    return segments.take(np.sort(once))


def _stated(raw: RawRoads, way: NDArray[np.int64], length_m: NDArray[np.float64]) -> NDArray[np.float64]:
    """[P] factors that scale each way to the length stated in the file."""
    drawn = np.bincount(way, weights=length_m, minlength=len(raw.way_ids))
    usable = np.isfinite(raw.length_m) & (raw.length_m > 0) & (drawn > 0)
    return np.where(usable, raw.length_m / np.where(usable, drawn, 1), 1.0)[way]


def strong_part(segments: Segments, num_nodes: int) -> NDArray[np.bool_]:
    """[P] whether a segment is in the strongly connected part with the greatest length."""
    ones = np.ones(len(segments), np.int8)
    graph = coo_array((ones, (segments.senders, segments.receivers)), shape=(num_nodes, num_nodes)).tocsr()
    parts, label = connected_components(graph, directed=True, connection="strong")
    inside = label[segments.senders] == label[segments.receivers]
    metres = np.bincount(label[segments.senders[inside]], weights=segments.length_m[inside], minlength=parts)
    return np.asarray(inside & (label[segments.senders] == int(np.argmax(metres))))


def intersections(segments: Segments, num_nodes: int) -> NDArray[np.bool_]:
    """[M] nodes where roads meet, end, or change between one-way and two-way."""
    low = np.minimum(segments.senders, segments.receivers)
    high = np.maximum(segments.senders, segments.receivers)
    pairs = np.unique(low * num_nodes + high)
    neighbours = np.bincount(pairs // num_nodes, minlength=num_nodes) + np.bincount(
        pairs % num_nodes, minlength=num_nodes
    )
    arriving = np.bincount(segments.receivers, minlength=num_nodes)
    leaving = np.bincount(segments.senders, minlength=num_nodes)
    passed = (neighbours == 2) & (arriving == leaving)  # one in and one out, or two in and two out
    return np.asarray((neighbours > 0) & ~passed)


def make_chains(segments: Segments, num_nodes: int, *, notices: Notices) -> Chains:
    """The roads between intersections, at most one from one node to another and none from a node to itself."""
    kept = intersections(segments, num_nodes)
    at_first = int(kept.sum())
    while True:
        before = _before(segments, kept, num_nodes)
        root, rank = _follow(before)
        endless = before[root] != root
        if endless.any():  # a ring without an intersection
            kept[_one_of_each(segments, endless, num_nodes)] = True
            continue
        chains = _chains(segments, root, rank)
        middle = _middles(segments, chains)
        if not len(middle):
            notices.add(
                "Nodes added within loops and parallel roads, so that no two roads have the same ends",
                kept.sum() - at_first,
            )
            return chains
        kept[middle] = True


def _before(segments: Segments, kept: NDArray[np.bool_], num_nodes: int) -> NDArray[np.int64]:
    """[P] the previous segment of the road; itself at the start."""
    by_end = np.argsort(segments.receivers, kind="stable")
    arriving = np.bincount(segments.receivers, minlength=num_nodes)
    stop = np.cumsum(arriving)
    inner = ~kept[segments.senders]
    at = segments.senders[inner]
    before = np.arange(len(segments))
    one = by_end[stop[at] - arriving[at]]
    other = by_end[stop[at] - 1]
    back = segments.senders[one] == segments.receivers[inner]  # the opposite direction of the same piece
    before[inner] = np.where(back, other, one)
    return before


def _follow(before: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[P] the first segment of each segment's road, and the segment's rank on it, by pointer doubling."""
    root = before.copy()
    rank = (before != np.arange(len(before))).astype(np.int64)
    for _ in range(max(len(before), 1).bit_length() + 1):
        further = root[root]
        if np.array_equal(further, root):
            break
        rank += rank[root]
        root = further
    return root, rank


def _one_of_each(segments: Segments, endless: NDArray[np.bool_], num_nodes: int) -> NDArray[np.int64]:
    """One node of each ring, the one with the lowest row."""
    some = segments.take(np.flatnonzero(endless))
    graph = coo_array((np.ones(len(some), np.int8), (some.senders, some.receivers)), shape=(num_nodes, num_nodes))
    _, label = connected_components(graph.tocsr(), directed=False)
    nodes = np.unique(some.senders)
    return nodes[np.unique(label[nodes], return_index=True)[1]]


def _chains(segments: Segments, root: NDArray[np.int64], rank: NDArray[np.int64]) -> Chains:
    order = np.lexsort((rank, root))
    begins = np.ones(len(order), bool)
    begins[1:] = np.diff(root[order]) != 0
    first = np.flatnonzero(begins)
    chain_of = np.empty(len(order), np.int64)
    chain_of[order] = np.cumsum(begins) - 1
    last = np.append(first[1:], len(order)) - 1
    length_m = np.add.reduceat(segments.length_m[order], first)
    return Chains(order, first, chain_of, segments.senders[order[first]], segments.receivers[order[last]], length_m)


def _middles(segments: Segments, chains: Chains) -> NDArray[np.int64]:
    """Nodes in the middle of loops, and of all but one of parallel roads."""
    inner = chains.count() > 1
    # Of parallel roads, the one without inner nodes stays unchanged, else the shortest. Lengths are rounded to
    # millimetres, so that both directions, summed in different order, make the same choice.
    by = np.lexsort((np.rint(chains.length_m * 1000), inner, chains.receivers, chains.senders))
    again = np.zeros(len(by), bool)
    again[by[1:]] = (np.diff(chains.senders[by]) == 0) & (np.diff(chains.receivers[by]) == 0)
    split = inner & (again | (chains.senders == chains.receivers))
    if not split.any():
        return np.zeros(0, np.int64)
    in_order = chains.chain_of[chains.order]
    begins = np.flatnonzero(split[in_order])
    begins = begins[~np.isin(begins, chains.first)]  # segments that begin at an inner node
    run = np.cumsum(segments.length_m[chains.order])
    offset = run[begins - 1] - (run[chains.first] - segments.length_m[chains.order[chains.first]])[in_order[begins]]
    off_middle = np.rint(np.abs(offset - chains.length_m[in_order[begins]] / 2) * 1000)
    nodes = segments.senders[chains.order[begins]]
    best = np.lexsort((nodes, off_middle, in_order[begins]))
    _, one = np.unique(in_order[begins][best], return_index=True)
    return np.unique(nodes[best[one]])


def make_edges(raw: RawRoads, segments: Segments, chains: Chains, nodes: NDArray[np.int64], notices: Notices) -> Edges:
    """The roads with their attributes; `nodes` are the rows of the intersections, ascending.

    Class, name and lanes are those of the longest part of a road. The speed is chosen to give the same travel time.
    """
    classes = np.array([k.road_class for k in raw.kinds], np.str_)
    level = class_levels(classes)
    usual = np.where(np.isnan(level), SPEED_KPH, SPEED_OF_LEVEL_KPH[np.nan_to_num(level).astype(np.int64)])
    kind = raw.kind_of[segments.way]
    sense = segments.backward.astype(np.int64)
    given = np.array([(k.speed_forward_kph, k.speed_backward_kph) for k in raw.kinds]).reshape(-1, 2)[kind, sense]
    speed = np.where(given > 0, given, usual[kind])
    E = len(chains.first)
    weight = np.maximum(segments.length_m, 1e-3)  # so that a road of length 0 has a speed too
    metres, hours = (np.bincount(chains.chain_of, weights=w, minlength=E) for w in (weight, weight / speed))
    filled = np.bincount(chains.chain_of, weights=(given == 0), minlength=E) > 0
    notices.add(
        "Roads without a speed limit on all or part of their length: the typical speed of their class was used",
        int(filled.sum()),
    )
    main = _longest_part(chains, kind * 2 + sense, weight)
    lanes = np.array([(k.lanes_forward, k.lanes_backward) for k in raw.kinds]).reshape(-1, 2)[main // 2, main % 2]
    notices.add("Roads whose number of lanes is not known", int((lanes == 0).sum()))
    short = chains.length_m <= 0
    notices.add("Roads of length 0 were given one metre", int(short.sum()))
    return Edges.of(
        np.searchsorted(nodes, chains.senders),
        np.searchsorted(nodes, chains.receivers),
        np.where(short, MIN_ROAD_M, chains.length_m),
        road_class=classes[main // 2],
        lanes=np.where(lanes > 0, lanes, np.nan),
        speed_kph=np.round(metres / hours, 2),
        name=np.array([k.name for k in raw.kinds], np.str_)[main // 2],
        geometry=_geometry(raw, segments, chains),
    )


def _longest_part(chains: Chains, code: NDArray[np.int64], weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """[E] the code of the longest part of each road."""
    width = int(code.max()) + 1
    parts, at = np.unique(chains.chain_of * width + code, return_inverse=True)
    metres = np.bincount(at.reshape(-1), weights=weight)
    by = np.lexsort((metres, parts // width))
    last = np.append(np.diff(parts[by] // width) != 0, True)
    return np.asarray(parts[by][last] % width)


def _geometry(raw: RawRoads, segments: Segments, chains: Chains) -> NDArray[np.object_]:
    """[E] the line of each road in its own direction, as WKB."""
    E = len(chains.first)
    stops = np.append(chains.first[1:], len(chains.order))
    rows = np.insert(segments.senders[chains.order], stops, chains.receivers)
    road = np.insert(np.repeat(np.arange(E), chains.count()), stops, np.arange(E))
    lines = shapely.linestrings(np.stack([raw.lon[rows], raw.lat[rows]], axis=1), indices=road)
    return np.asarray(shapely.to_wkb(lines, byte_order=1), np.object_)
