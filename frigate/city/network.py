"""A road network: a directed graph of intersections and roads (paper, Definition 1, without its readings).

Immutable: `close`, `reopen`, `add` and `remove_nodes` return a new network. The node table only grows: a removed node
stays in it with `present` False, so that column n of a stream is node n in every network.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.coordinates import coordinate_fault, haversine_m
from frigate.errors import CityError
from frigate.reading.notices import Notices, Place

SAME_PLACE_M = 50.0  # nodes of two networks are the same if they share an id and are at most this far apart

NodeId = str | int
Road = tuple[NodeId, NodeId]


@dataclass(frozen=True)
class Edges:
    """A table of directed roads. Unknown attributes are NaN (numbers), "" (words) or b"" (geometry)."""

    senders: NDArray[np.int64]  # [E] node the road leaves
    receivers: NDArray[np.int64]  # [E] node the road reaches
    length_m: NDArray[np.float64]  # [E]
    road_class: NDArray[np.str_]  # [E]
    lanes: NDArray[np.float64]  # [E]
    speed_kph: NDArray[np.float64]  # [E]
    name: NDArray[np.str_]  # [E]
    geometry: NDArray[np.object_]  # [E] WKB line strings

    def __post_init__(self) -> None:
        sizes = {f.name: len(getattr(self, f.name)) for f in fields(self)}
        if len(set(sizes.values())) > 1:
            others = ", ".join(f"{name} {size}" for name, size in sizes.items() if size != sizes["senders"])
            raise CityError(f"{sizes['senders']} roads, but other columns differ ({others}). Give one value per road")

    @classmethod
    def of(
        cls,
        senders: object,
        receivers: object,
        length_m: object,
        *,
        road_class: object = None,
        lanes: object = None,
        speed_kph: object = None,
        name: object = None,
        geometry: object = None,
    ) -> Edges:
        senders = np.asarray(senders, np.int64)
        count = len(senders)

        def column(values: object, dtype: type, unknown: object) -> NDArray[Any]:
            return np.full(count, unknown, dtype) if values is None else np.asarray(values, dtype)

        return cls(
            senders,
            np.asarray(receivers, np.int64),
            np.asarray(length_m, np.float64),
            column(road_class, np.str_, ""),
            column(lanes, np.float64, np.nan),
            column(speed_kph, np.float64, np.nan),
            column(name, np.str_, ""),
            column(geometry, np.object_, b""),
        )

    @classmethod
    def none(cls) -> Edges:
        return cls.of([], [], [])

    def __len__(self) -> int:
        return len(self.senders)

    def take(self, rows: NDArray[np.generic]) -> Edges:
        return Edges(*(getattr(self, f.name)[rows] for f in fields(self)))

    def join(self, other: Edges) -> Edges:
        return Edges(*(np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)))


def no_lines() -> NDArray[np.object_]:
    return np.zeros(0, np.object_)


def no_names() -> NDArray[np.str_]:
    return np.zeros(0, np.str_)


def no_mask() -> NDArray[np.bool_]:
    return np.zeros(0, bool)


@dataclass(frozen=True)
class RoadNetwork:
    """Intersections and the directed roads between them; or, in a city on roads, roads and the turns between them.

    All roads are in one table, open and closed: networks that differ only in what is closed share it. No road leads
    from a node to itself, and no two open roads have the same ends (E is a subset of V x V): `clean_edges` sees to it.
    """

    node_ids: NDArray[np.generic]  # [N] the user's own, integers or text
    lon: NDArray[np.float64]  # [N] degrees
    lat: NDArray[np.float64]  # [N] degrees
    roads: Edges  # open and closed
    present: NDArray[np.bool_] = field(default_factory=no_mask)  # [N]; empty: all
    lines: NDArray[np.object_] = field(default_factory=no_lines)  # [N] WKB if nodes are roads, else empty
    is_open: NDArray[np.bool_] = field(default_factory=no_mask)  # [R] roads not closed themselves; empty: all
    passable: NDArray[np.bool_] = field(default_factory=no_mask)  # [N] no road at a closed node is open; empty: all
    names: NDArray[np.str_] = field(default_factory=no_names)  # [N] the nodes' own street names; empty: none has any

    def __post_init__(self) -> None:
        N = len(self.node_ids)
        for name, count in (("present", N), ("is_open", len(self.roads)), ("passable", N)):
            if len(getattr(self, name)) == 0:
                object.__setattr__(self, name, np.ones(count, bool))
        shapes = {N, len(self.lon), len(self.lat), len(self.present), len(self.passable)}
        shapes |= {len(column) for column in (self.lines, self.names) if len(column)}
        if len(shapes) != 1:
            columns = "node_ids, lon, lat, present, passable, lines and names"
            raise CityError(f"{columns} differ in length: {sorted(shapes)}")
        if len(self.is_open) != len(self.roads):
            raise CityError(f"{len(self.roads)} roads, but is_open has {len(self.is_open)} values. Give one per road")
        if len(np.unique(self.node_ids)) != N:
            raise CityError("node ids are not unique")
        if len(self.roads):
            ends = np.concatenate([self.roads.senders, self.roads.receivers])
            if ends.min() < 0 or ends.max() >= N:
                raise CityError(f"a road ends at row {int(ends.max())} of a table of {N} nodes")
            self._refuse_unclean()

    def _refuse_unclean(self) -> None:
        N = len(self.node_ids)
        key = np.sort(self._keys[self._open])
        loops = self._keys[self.roads.senders == self.roads.receivers]
        wrong = np.concatenate([key[1:][key[1:] == key[:-1]], loops])
        if len(wrong):
            a, b = divmod(int(wrong[0]), N)
            what = "it leads from a node to itself" if a == b else "it occurs twice"
            remedy = "Clean the roads with frigate.city.network.clean_edges"
            raise CityError(f"road {self.node_ids[a]},{self.node_ids[b]}: {what}. {remedy}")

    def __repr__(self) -> str:
        closed = int((~self._open).sum())
        told = f", {closed:,} closed" if closed else ""
        return f"<RoadNetwork: {self.num_nodes:,} nodes, {self.num_edges:,} roads{told}>"

    def unchecked(self, **changes: object) -> RoadNetwork:
        """A copy with other fields that are known to fit: masks, or a table of roads that another network has."""
        other = object.__new__(RoadNetwork)
        other.__dict__.update({each.name: getattr(self, each.name) for each in fields(self)} | changes)
        other.__dict__["_row_of"] = self._row_of
        return other

    def with_roads(self, roads: Edges) -> RoadNetwork:
        """The same nodes with these roads, all of them open."""
        return replace(self, roads=roads, is_open=no_mask(), passable=no_mask())

    @property
    def num_nodes(self) -> int:
        return len(self.node_ids)

    @property
    def num_edges(self) -> int:
        return len(self.senders)

    @cached_property
    def _open(self) -> NDArray[np.bool_]:
        """[R] the roads that are open, between nodes that are."""
        return self.is_open & self.passable[self.roads.senders] & self.passable[self.roads.receivers]

    @property
    def _keys(self) -> NDArray[np.int64]:
        """[R] one number for the two ends of a road."""
        return self.roads.senders * len(self.node_ids) + self.roads.receivers

    @cached_property
    def edges(self) -> Edges:
        """The open roads."""
        return self.roads if self._open.all() else self.roads.take(self._open)

    @property
    def closed(self) -> Edges:
        """The closed roads."""
        return self.roads.take(~self._open)

    @cached_property
    def senders(self) -> NDArray[np.int64]:
        """[E] of the open roads, as the next ones."""
        return self.roads.senders[self._open]

    @cached_property
    def receivers(self) -> NDArray[np.int64]:
        return self.roads.receivers[self._open]

    @cached_property
    def length_m(self) -> NDArray[np.float64]:
        return self.roads.length_m[self._open]

    @cached_property
    def map(self) -> RoadNetwork:
        """The same network with every road open: what the map says, whatever is closed at the moment."""
        last = np.zeros(len(self.roads), bool)
        keys = self._keys
        order = np.lexsort((np.arange(len(keys)), self._open, keys))  # of roads with the same ends, the open one
        last[order[np.append(keys[order][1:] != keys[order][:-1], True)] if len(keys) else []] = True
        return self if self._open.all() else self.unchecked(is_open=last, passable=np.ones(self.num_nodes, bool))

    def map_with(self, other: RoadNetwork) -> RoadNetwork:
        """The map of this network, and what another with the same table of nodes has besides: new roads and nodes."""
        present = self.present | other.present
        new = np.zeros(other.num_edges, bool)
        if other.roads is not self.roads:
            new = ~np.isin(other._keys[other._open], self._keys)
        if not new.any() and np.array_equal(present, self.present):
            return self.map
        roads = self.map.edges.join(other.edges.take(new))
        return self.unchecked(
            roads=roads, present=present, passable=np.ones(self.num_nodes, bool), is_open=np.ones(len(roads), bool)
        )

    def despite_closures(self, now: RoadNetwork) -> RoadNetwork:
        """Another network of the same nodes, with those of its closed roads that are open in this one."""
        more = now.edges.take(~np.isin(now._keys[now._open], self._keys[self._open]))
        if not len(more) and np.array_equal(self.present, now.present):
            return self
        roads = self.edges.join(more)
        roads = roads.take(now.present[roads.senders] & now.present[roads.receivers])
        every = np.ones(len(roads), bool)
        return self.unchecked(roads=roads, present=now.present, is_open=every, passable=np.ones(self.num_nodes, bool))

    @cached_property
    def _row_of(self) -> dict[NodeId, int]:
        return {node_id: row for row, node_id in enumerate(self.node_ids.tolist())}

    def same_nodes(self, other: RoadNetwork) -> NDArray[np.int64]:
        """[N] row in `other` of each node, matched by id and place; -1 if there is none."""
        a = self.node_ids
        b = other.node_ids
        if all(np.array_equal(x, y) for x, y in ((a, b), (self.lon, other.lon), (self.lat, other.lat))):
            return np.arange(len(a))
        if len(b) == 0:
            return np.full(len(a), -1)
        alike = (a.dtype.kind == "U") == (b.dtype.kind == "U")  # 41 and "41" are the same id
        there = other._row_of if alike else {str(node_id): row for node_id, row in other._row_of.items()}
        row = np.array([there.get(x if alike else str(x), -1) for x in a.tolist()], np.int64)
        away_m = haversine_m(self.lon, self.lat, other.lon[row], other.lat[row])
        return np.where(away_m <= SAME_PLACE_M, row, -1)

    def rows_of(self, node_ids: Iterable[NodeId]) -> NDArray[np.int64]:
        """Rows of these nodes. Text is read as an integer if the network's ids are integers."""
        return np.array([self.row_of(node_id) for node_id in node_ids], np.int64)

    def row_of(self, node_id: NodeId) -> int:
        row = self._known_row(node_id)
        if row is None:
            known = ", ".join(str(x) for x in self.node_ids[:3].tolist())
            raise CityError(f'node "{node_id}" is not in the network of {self.num_nodes} nodes ({known}, ...)')
        return row

    def _known_row(self, node_id: NodeId) -> int | None:
        row = self._row_of.get(node_id)
        if row is None and isinstance(node_id, str) and self.node_ids.dtype.kind in "iu":
            row = self._row_of.get(int(node_id)) if re.fullmatch(r"\s*-?[0-9]{1,19}\s*", node_id) else None
        if row is None and not isinstance(node_id, str) and self.node_ids.dtype.kind == "U":
            row = self._row_of.get(str(node_id))
        return row

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with any node, road, length or attribute that affects a forecast."""
        digest = hashlib.sha256()
        every = self.roads
        rows = np.flatnonzero(self._open)
        rows = rows[np.lexsort((every.receivers[rows], every.senders[rows]))]
        of_roads = (every.senders, every.receivers, every.length_m, every.road_class, every.lanes, every.speed_kph)
        columns = (self.node_ids, self.lon, self.lat, self.present, *(column[rows] for column in of_roads))
        for column in columns:
            digest.update("\0".join(column.tolist()).encode() if column.dtype.kind == "U" else column.tobytes())
            digest.update(b"\1")
        return digest.hexdigest()[:16]

    @cached_property
    def streets(self) -> NDArray[np.str_]:
        """[N] each node's own name, else those of the roads at it, such as "Rue du Fort / Grand-Rue"; "" if none."""
        if len(self.lines) and len(self.names):
            return self.names  # a road's own name, not those of the roads that turns lead to
        e = self.roads
        names = [""] * self.num_nodes
        at = np.concatenate([e.senders, e.receivers])
        road = np.tile(np.arange(len(e)), 2)
        order = np.argsort(at, kind="stable")
        distinct, first = np.unique(at[order], return_index=True)
        for node, rows in zip(distinct.tolist(), np.split(road[order], first[1:]), strict=bool(len(e))):
            count = Counter(name for name in e.name[rows].tolist() if name)
            names[node] = " / ".join(sorted(count, key=lambda name: (-count[name], name)))
        streets = np.array(names, np.str_)
        return np.where(self.names != "", self.names, streets) if len(self.names) else streets

    def close(self, roads: Iterable[Road], *, missing_ok: bool = False) -> RoadNetwork:
        """The network without these roads.

        Parameters
        ----------
        roads
            One-way roads by their end nodes, such as [(41, 42)]. To close both directions, name both.
        missing_ok
            Leave out roads that are closed already or not on the map, instead of refusing them.
        """
        if missing_ok and not (roads := self._open_ones(roads)):
            return self
        is_open = self.is_open.copy()
        is_open[self._find(roads, self.is_open, "is not an open road")] = False
        return self.unchecked(is_open=is_open)

    def close_nodes(self, node_ids: Iterable[NodeId]) -> RoadNetwork:
        """The network with these nodes closed, and so all roads at them. In a city on roads this closes roads.

        Parameters
        ----------
        node_ids
            The nodes. They stay in the network; only `reopen_nodes` opens them again.
        """
        passable = self.passable.copy()
        for node_id in node_ids:
            row = self.row_of(node_id)
            if not passable[row]:
                raise CityError(f'node "{node_id}" is already closed')
            passable[row] = False
        return self.unchecked(passable=passable)

    def reopen(self, roads: Iterable[Road]) -> RoadNetwork:
        """The network with these closed roads open again.

        Parameters
        ----------
        roads
            One-way roads by their end nodes, closed before by `close`.
        """
        is_open = self.is_open.copy()
        roads = _pairs(roads)
        rows = self._find(roads, ~self.is_open, "was not closed")
        there = self._keys[self._open]
        for (a, b), key in zip(roads, self._keys[rows].tolist(), strict=True):
            if key in there:
                raise CityError(f"road {a},{b} is already open")
        is_open[rows] = True
        return self.unchecked(is_open=is_open)

    def reopen_nodes(self, node_ids: Iterable[NodeId]) -> RoadNetwork:
        """The network with these nodes open again. Roads that were closed on their own stay closed.

        Parameters
        ----------
        node_ids
            Nodes closed before by `close_nodes`.
        """
        passable = self.passable.copy()
        for node_id in node_ids:
            if passable[self.row_of(node_id)]:
                raise CityError(f'node "{node_id}" was not closed')
            passable[self.row_of(node_id)] = True
        return self.unchecked(passable=passable)

    def add(
        self,
        *,
        nodes: Sequence[tuple[NodeId, float, float]] = (),
        roads: Sequence[Road] = (),
        length_m: Sequence[float | None] | None = None,
        road_class: Sequence[str] | None = None,
        lanes: Sequence[float] | None = None,
        speed_kph: Sequence[float] | None = None,
    ) -> RoadNetwork:
        """The network with more nodes and roads.

        Parameters
        ----------
        nodes
            (id, longitude, latitude) of each. A node that was removed comes back where it was.
        roads
            One-way roads by their end nodes.
        length_m
            Of each road. None, for all or for one: the straight-line distance.
        road_class, lanes, speed_kph
            Of each road. None: unknown.
        """
        grown = self._add_nodes(nodes) if len(nodes) else self
        roads = _pairs(roads)
        if not roads:
            return grown
        senders = grown.rows_of(a for a, _ in roads)
        receivers = grown.rows_of(b for _, b in roads)
        straight = haversine_m(grown.lon[senders], grown.lat[senders], grown.lon[receivers], grown.lat[receivers])
        given = [None] * len(roads) if length_m is None else list(length_m)
        if len(given) != len(roads):
            raise CityError(f"{len(given)} lengths for {len(roads)} roads. Give one per road, None if unknown")
        try:
            metres = np.array([s if g is None else g for s, g in zip(straight, given, strict=True)], np.float64)
            new = Edges.of(senders, receivers, metres, road_class=road_class, lanes=lanes, speed_kph=speed_kph)
        except (TypeError, ValueError) as error:
            raise CityError(f"length_m, lanes and speed_kph of the roads to add: {error}. Give numbers") from None
        there = set(zip(self.senders.tolist(), self.receivers.tolist(), strict=True))
        for (a, b), pair, metre in zip(
            roads, zip(senders.tolist(), receivers.tolist(), strict=True), metres, strict=True
        ):
            if pair[0] == pair[1]:
                raise CityError(f"road {a},{b} leads from a node to itself. Name two different nodes")
            if pair in there:
                raise CityError(f"road {a},{b} is already there")
            if not grown.present[list(pair)].all():
                raise CityError(f"road {a},{b}: one of its ends has been removed")
            if not (np.isfinite(metre) and metre > 0):
                raise CityError(f"road {a},{b}: length {metre} m. Give a length above 0")
            there.add(pair)
        return grown.with_more(new)

    def with_more(self, roads: Edges) -> RoadNetwork:
        """The network with these roads as well, which are open."""
        is_open = np.concatenate([self.is_open, np.ones(len(roads), bool)])
        return replace(self, roads=self.roads.join(roads), is_open=is_open)

    def remove_nodes(self, node_ids: Iterable[NodeId]) -> RoadNetwork:
        """The network without these nodes and their roads.

        Parameters
        ----------
        node_ids
            The nodes. Their rows stay in the node table, with `present` False.
        """
        present = self.present.copy()
        present[self.rows_of(node_ids)] = False
        keep = present[self.roads.senders] & present[self.roads.receivers]
        return self.unchecked(present=present, roads=self.roads.take(keep), is_open=self.is_open[keep])

    def _add_nodes(self, nodes: Sequence[tuple[NodeId, float, float]]) -> RoadNetwork:
        present = self.present.copy()
        new: list[tuple[NodeId, float, float]] = []
        for node in nodes:
            if isinstance(node, str) or len(node) != 3:
                raise CityError(f"node {node!r}: give its id, lon and lat, such as (41, 6.13, 49.61)")
            node_id = self._own_id(node[0])
            row = self._row_of.get(node_id)
            if row is None:
                new.append((node_id, *_place(*node)))
            elif self.present[row]:
                raise CityError(f'node "{node_id}" is already there')
            else:
                present[row] = True  # a node that comes back keeps its row
        ids = np.array([n[0] for n in new], self.node_ids.dtype if self.node_ids.dtype.kind in "iu" else np.str_)
        return replace(
            self,
            node_ids=np.concatenate([self.node_ids, ids]),
            lon=np.concatenate([self.lon, np.array([n[1] for n in new], np.float64)]),
            lat=np.concatenate([self.lat, np.array([n[2] for n in new], np.float64)]),
            present=np.concatenate([present, np.ones(len(new), bool)]),
            passable=np.concatenate([self.passable, np.ones(len(new), bool)]),
            lines=np.append(self.lines, np.full(len(new), b"", np.object_)) if len(self.lines) else self.lines,
            names=np.append(self.names, np.full(len(new), "")) if len(self.names) else self.names,
        )

    def _own_id(self, node_id: Any) -> NodeId:
        """The id in the network's own type: text or integer."""
        if self.node_ids.dtype.kind == "U":
            return str(node_id)
        try:
            number = operator.index(int(node_id) if isinstance(node_id, str) else node_id)
            np.array(number, self.node_ids.dtype)
        except (TypeError, ValueError, OverflowError):
            raise CityError(f'node "{node_id}": ids in this network are whole numbers. Give one') from None
        return number

    def _find(self, roads: Iterable[Road], among: NDArray[np.bool_], otherwise: str) -> NDArray[np.int64]:
        """The rows of these roads in the table, among some of its rows; of those with the same ends, the last."""
        pairs = _pairs(roads)
        keys = [self.row_of(a) * self.num_nodes + self.row_of(b) for a, b in pairs]
        rows = np.flatnonzero(among & np.isin(self._keys, keys))
        row_of_key = dict(zip(self._keys[rows].tolist(), rows.tolist(), strict=True))
        for (a, b), key in zip(pairs, keys, strict=True):
            if key not in row_of_key:
                raise CityError(f"road {a},{b} {otherwise}{self._roads_from(a)}")
        return np.array([row_of_key[key] for key in keys], np.int64)

    def _open_ones(self, roads: Iterable[Road]) -> list[Road]:
        """Those of these roads that are on the map and not closed."""
        pairs = _pairs(roads)
        ends = [(self._known_row(a), self._known_row(b)) for a, b in pairs]
        keys = [-1 if a is None or b is None else a * self.num_nodes + b for a, b in ends]
        there = np.isin(keys, self._keys[self.is_open])
        return [road for road, found in zip(pairs, there.tolist(), strict=True) if found]

    def _roads_from(self, node_id: NodeId) -> str:
        ends = self.node_ids[self.receivers[self.senders == self.row_of(node_id)]].tolist()
        return f" (open roads from {node_id} lead to {', '.join(map(str, ends[:8]))})" if ends else ""


def _pairs(roads: Iterable[Road]) -> list[Road]:
    pairs = list(roads)
    for road in pairs:
        if isinstance(road, str) or len(road) != 2:
            raise CityError(f"road {road!r}: name a one-way road by its two end nodes, such as (41, 42)")
    return pairs


def _place(node_id: NodeId, lon: float, lat: float) -> tuple[float, float]:
    try:
        there = float(lon), float(lat)
    except (TypeError, ValueError):
        raise CityError(f'node "{node_id}": lon {lon!r}, lat {lat!r} are not degrees. Give two numbers') from None
    if fault := coordinate_fault(*there):
        raise CityError(f'node "{node_id}": {fault}')
    return there


@dataclass(frozen=True)
class Cleaned:
    """[E] which roads `clean_edges` left out or repaired."""

    self_loops: NDArray[np.bool_]
    parallel: NDArray[np.bool_]
    zero_length: NDArray[np.bool_]

    @property
    def kept(self) -> NDArray[np.bool_]:
        return ~self.self_loops & ~self.parallel

    def note(self, notices: Notices, place: Callable[[int], Place] | None = None) -> None:
        """Add notices of these roads, with their places in the input."""
        notices.add_rows("Roads from a node to itself were left out", self.self_loops, place)
        notices.add_rows("Parallel roads were left out, the shortest of each kept", self.parallel, place)
        notices.add_rows("Roads of no length were given one metre", self.zero_length, place)


MIN_ROAD_M = 1.0


def clean_edges(edges: Edges, *, keep_parallel: bool = False) -> tuple[Edges, Cleaned]:
    """Drop self-loops and all but the shortest of parallel roads (unless kept); give roads of no length one metre."""
    loops = edges.senders == edges.receivers
    short = (edges.length_m <= 0) & ~loops
    edges = replace(edges, length_m=np.where(short, MIN_ROAD_M, edges.length_m))
    order = np.lexsort((edges.length_m, edges.receivers, edges.senders))
    parallel = np.zeros(len(edges), bool)
    parallel[order[1:]] = (np.diff(edges.senders[order]) == 0) & (np.diff(edges.receivers[order]) == 0)
    parallel &= ~loops & (not keep_parallel)
    return edges.take(~loops & ~parallel), Cleaned(loops, parallel, short)


def usual_roads(networks: Sequence[RoadNetwork], weight: NDArray[np.number]) -> RoadNetwork:
    """The network of the roads that are open, and the nodes that are present, for more than half of the weight.

    This is the heaviest of the networks if it is so, else a network made from them.
    """
    first = networks[int(np.argmax(weight))]
    N = networks[0].num_nodes
    if len(networks) == 1:
        return first
    half = weight.sum() / 2
    present = np.sum([w * network.present for network, w in zip(networks, weight, strict=True)], axis=0) > half
    tables = {id(network.roads): network.roads for network in networks}
    if len(tables) == 1:
        open_for = np.sum([w * network._open for network, w in zip(networks, weight, strict=True)], axis=0)
        usual = (open_for > half) & present[first.roads.senders] & present[first.roads.receivers]
        if np.array_equal(first._open, usual) and np.array_equal(first.present, present):
            return first
        return first.unchecked(present=present, is_open=usual, passable=np.ones(N, bool))
    keys = [network.senders * N + network.receivers for network in networks]
    distinct, back = np.unique(np.concatenate(keys), return_inverse=True)
    open_for = np.bincount(back, weights=np.repeat(weight, [len(key) for key in keys]), minlength=len(distinct))
    usual = distinct[open_for > half]
    usual = usual[present[usual // N] & present[usual % N]]
    if np.array_equal(np.sort(keys[int(np.argmax(weight))]), usual) and np.array_equal(first.present, present):
        return first
    every = Edges(*(np.concatenate([getattr(n.edges, f.name) for n in networks]) for f in fields(Edges)))
    _, row = np.unique(np.concatenate(keys), return_index=True)
    row = np.sort(row)  # the order in which the networks list them
    is_usual = np.isin((every.senders * N + every.receivers)[row], usual)
    return replace(first, roads=every.take(row), is_open=is_usual, present=present, passable=np.ones(N, bool))


def shut_nodes(usual: RoadNetwork, now: RoadNetwork) -> NDArray[np.bool_]:
    """[N] nodes that have lost all roads into them, or all roads out of them."""
    lost = (_degree(usual, usual.receivers) > 0) & (_degree(now, now.receivers) == 0)
    lost |= (_degree(usual, usual.senders) > 0) & (_degree(now, now.senders) == 0)
    return np.asarray(lost)


def joined_nodes(network: RoadNetwork) -> NDArray[np.bool_]:
    """[N] nodes that have a road."""
    joined: NDArray[np.bool_] = _degree(network, network.senders) + _degree(network, network.receivers) > 0
    return joined


def _degree(network: RoadNetwork, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.bincount(ends, minlength=network.num_nodes)
