"""Where a node is: anchors, the Lipschitz embedding, and its distortion.

Distances are raw metres until `positions` bounds them. The lemmas and the distortion refer to raw distances.
N nodes, K anchors (or anchor sets).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import chain, compress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from frigate.city.network import SAME_PLACE_M, NodeId, RoadNetwork
from frigate.config import ANCHOR_CHOICES, is_a, require, require_one_of
from frigate.coordinates import coordinate_fault, haversine_m
from frigate.draws import Draw, generator
from frigate.errors import CityError, SettingsError

T = TypeVar("T")
Nested = tuple[tuple[T, ...], ...]


@dataclass(frozen=True)
class Anchors:
    """K sets of nodes from which positions are measured.

    A set has one node for `random` and `farthest`, and 2^j nodes for `bourgain` and `full`. A model keeps anchors by id
    and place, so that it can look for them on another network.
    """

    choice: str
    seed: int
    sets: Nested[NodeId]
    lon: Nested[float]  # degrees, nested as `sets`
    lat: Nested[float]

    def __len__(self) -> int:
        return len(self.sets)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Anchors:
        nested = {name: tuple(tuple(members) for members in stored[name]) for name in ("sets", "lon", "lat")}
        require_one_of("choice", stored["choice"], (*ANCHOR_CHOICES, "full"))
        require(is_a(stored["seed"], "int") and stored["seed"] >= 0, "seed", stored["seed"], "give a whole number")
        sizes = {tuple(map(len, each)) for each in nested.values()}
        require(len(sizes) == 1, "sets", sizes, "as many lon and lat as nodes")
        ids = [*chain(*nested["sets"])]
        ok = all(is_a(i, "int") for i in ids) or all(is_a(i, "str") for i in ids)
        ok = ok and all(isinstance(members, list) for members in stored["sets"])
        require(ok, "sets", ids[:3], "give lists of node ids, whole numbers or texts")
        for lon, lat in zip(chain(*nested["lon"]), chain(*nested["lat"]), strict=True):
            ok = is_a(lon, "float") and is_a(lat, "float") and not coordinate_fault(lon, lat)
            require(ok, "lon, lat", (lon, lat), "not a place on earth")
        return cls(choice=stored["choice"], seed=stored["seed"], **nested)


def choose_anchors(network: RoadNetwork, *, count: int = 16, choice: str = "random", seed: int = 0) -> Anchors:
    """Choose anchors among the present nodes. `full` takes ceil(log2 n)^2 sets and ignores `count`.

    The choice depends on the node ids, not on their order. If there are fewer nodes than `count`, some are used twice:
    the width of a position depends on the model, not on the network.
    """
    if choice == "full":
        sets = choose_anchors(network, count=_scales(int(network.present.sum())) ** 2, choice="bourgain", seed=seed)
        return replace(sets, choice=choice)
    if count < 1:
        raise SettingsError(f"anchors: count = {count}; give 1 or more")
    nodes = np.flatnonzero(network.present)
    if len(nodes) == 0:
        raise CityError("the network has no present node to use as an anchor; add nodes")
    nodes = nodes[np.argsort(network.node_ids[nodes], kind="stable")]
    rng = generator(seed, Draw.ANCHORS)
    match choice:
        case "random":
            rows = [np.array([row]) for row in np.resize(rng.permutation(nodes), count)]
        case "farthest":
            rows = [np.array([row]) for row in np.resize(_farthest(network, nodes, count, rng), count)]
        case "bourgain":
            # thm:bourgain, after Linial, London and Rabinovich: random sets of every power of two below n
            scale_of = np.arange(count) * _scales(len(nodes)) // count
            rows = [rng.choice(nodes, size=2**j, replace=False) for j in scale_of.tolist()]
        case _:
            raise SettingsError(f'anchors: "{choice}" is not one of random, farthest, bourgain, full')
    return Anchors(
        choice,
        seed,
        sets=tuple(tuple(network.node_ids[r].tolist()) for r in rows),
        lon=tuple(tuple(network.lon[r].tolist()) for r in rows),
        lat=tuple(tuple(network.lat[r].tolist()) for r in rows),
    )


def _scales(num_nodes: int) -> int:
    """How many powers of two, from 1, are below the number of nodes."""
    return max(1, math.ceil(math.log2(max(num_nodes, 1))))


def _farthest(
    network: RoadNetwork, nodes: NDArray[np.int64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Each anchor is the node farthest from all before it, within the largest strongly connected part.

    Elsewhere the two-way distance is infinite: without this restriction, isolated nodes would become anchors.
    """
    _, part = connected_components(road_matrix(network), directed=True, connection="strong")
    nodes = nodes[part[nodes] == np.bincount(part[nodes]).argmax()]
    chosen = [int(rng.choice(nodes))]
    nearest = np.full(network.num_nodes, np.inf)
    while len(chosen) < min(count, len(nodes)):
        nearest = np.minimum(nearest, two_way_m(network, np.array(chosen[-1:]))[0])
        chosen.append(int(nodes[nearest[nodes].argmax()]))
    return np.array(chosen)


def locate_anchors(network: RoadNetwork, anchors: Anchors) -> tuple[Anchors, str]:
    """A model's anchors on this network, and a notice or "".

    An anchor is found if both its id and place match, present or not: all networks of a node table have the same
    anchors. One that is not found is dropped from its set, and an empty set gives a position of 0. A set counts as
    found if at least half of it is. If fewer than half of the sets are found, new ones are chosen by the same rule and
    seed.
    """
    kept: list[NDArray[np.bool_]] = []
    found = 0
    for members, lon, lat in zip(anchors.sets, anchors.lon, anchors.lat, strict=True):
        rows = _rows_or_none(network, members)
        metres = haversine_m(np.array(lon), np.array(lat), network.lon[rows], network.lat[rows])
        matched = (rows >= 0) & (metres <= SAME_PLACE_M)
        kept.append(matched)
        found += bool(2 * matched.sum() >= max(len(members), 1))
    if 2 * found < len(anchors):
        choice = "bourgain" if anchors.choice == "full" else anchors.choice  # keeps the model's number of sets
        new = choose_anchors(network, count=len(anchors), choice=choice, seed=anchors.seed)
        return replace(new, choice=anchors.choice), (
            f"{found} of the model's {len(anchors)} anchors are on this network, by id and place "
            f"(within {SAME_PLACE_M:g} m): new ones were chosen by the same rule and seed "
            f"({anchors.choice}, {anchors.seed})."
        )
    if all(matched.all() for matched in kept):
        return anchors, ""

    def keep(nested: Nested[T]) -> Nested[T]:
        return tuple(tuple(compress(members, matched)) for members, matched in zip(nested, kept, strict=True))

    return replace(anchors, sets=keep(anchors.sets), lon=keep(anchors.lon), lat=keep(anchors.lat)), ""


def _rows_or_none(network: RoadNetwork, node_ids: Iterable[NodeId]) -> NDArray[np.int64]:
    """Rows of these nodes, -1 if not in the network."""

    def row(node_id: NodeId) -> int:
        try:
            return network.row_of(node_id)
        except CityError:
            return -1

    return np.array([row(node_id) for node_id in node_ids], np.int64)


def road_matrix(network: RoadNetwork, *, backward: bool = False) -> csr_array[np.float64]:
    """Road lengths as a sparse matrix, with one row per sender (backward: per receiver)."""
    ends = (network.receivers, network.senders) if backward else (network.senders, network.receivers)
    return csr_array((network.length_m, ends), shape=(network.num_nodes, network.num_nodes))


def two_way_m(network: RoadNetwork, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """d_X(u, v) = (sp(u, v) + sp(v, u)) / 2 from these rows to all [rows, N]; infinite at absent nodes."""
    away = dijkstra(road_matrix(network), indices=rows)
    back = dijkstra(road_matrix(network, backward=True), indices=rows)
    metres: NDArray[np.float64] = (away + back) / 2  # lem:metric_dist
    metres[:, ~network.present] = np.inf
    return metres


def distances_m(network: RoadNetwork, anchors: Anchors) -> NDArray[np.float64]:
    """Raw coordinates [N, K]: L_v[i] = (sp(a_i, v) + sp(v, a_i)) / 2; for a set, the nearest member each way.

    Infinite where unreachable, for anchors missing or absent in the network, and for absent nodes. For a set this is at
    most the min_a d_X(a, v) of thm:bourgain, which would take two searches per member. Expansion stays at most 1;
    distortion is larger where nearly every road is one-way.
    """
    members = [_rows_or_none(network, nodes) for nodes in anchors.sets]
    members = [rows[(rows >= 0) & network.present[rows]] for rows in members]
    metres = np.full((network.num_nodes, len(anchors)), np.inf)
    single = [k for k, rows in enumerate(members) if len(rows) == 1]
    if single:
        metres[:, single] = two_way_m(network, np.concatenate([members[k] for k in single])).T  # def:lipschitz
    forward = road_matrix(network)
    backward = road_matrix(network, backward=True)
    for k, rows in enumerate(members):
        if len(rows) > 1:
            away, back = (dijkstra(roads, indices=rows, min_only=True) for roads in (forward, backward))
            metres[:, k] = (away + back) / 2  # def:lipschitz, its set form (thm:bourgain)
    return metres


def position_scale_m(distance_m: NDArray[np.float64]) -> float:
    """The median finite distance; 1 if none is above 0, when any scale will do."""
    finite = distance_m[np.isfinite(distance_m)]
    scale = float(np.median(finite)) if len(finite) else 0.0
    return scale if scale > 0 else 1.0


def positions(distance_m: NDArray[np.float64], scale_m: float) -> NDArray[np.float32]:
    """Positions [N, K] that fall with distance: 1 at the anchor, 0 where unreachable."""
    return (scale_m / (scale_m + distance_m)).astype(np.float32)


@dataclass(frozen=True)
class Distortion:
    """How well raw positions keep road distances (paper, Definition 4).

    d_X is the two-way road distance. d_Y is L1 over m: the mean absolute difference of the coordinates that are finite
    at both nodes. Measured on a sample of pairs, so the true maxima may be larger. Contraction is infinite if two nodes
    share a position; all three are NaN if no pair is finite.
    """

    expansion: float
    contraction: float
    distortion: float
    pairs: int


def distortion(
    network: RoadNetwork, distance_m: NDArray[np.float64], *, pairs: int = 2000, seed: int = 0
) -> Distortion:
    """Expansion, contraction and their product over about `pairs` pairs of nodes, or all pairs if there are fewer."""
    nodes = np.flatnonzero(network.present)
    rng = generator(seed, Draw.ANCHOR_PAIRS)
    every = len(nodes) * (len(nodes) - 1) // 2 <= pairs
    each = 50  # pairs per shortest-path search
    sources = nodes if every else rng.choice(nodes, size=min(len(nodes), math.ceil(pairs / each)), replace=False)
    ratios: list[NDArray[np.float64]] = []
    for source, d_x in zip(sources, two_way_m(network, sources), strict=True):
        others = np.flatnonzero(np.isfinite(d_x) & (d_x > 0))
        if every:
            others = others[others > source]
        elif len(others) > each:
            others = rng.choice(others, size=each, replace=False)
        d_y = _mean_gap(distance_m[others], distance_m[source])
        ratios.append((d_y / d_x[others])[~np.isnan(d_y)])
    ratio = np.concatenate([np.empty(0), *ratios])
    if len(ratio) == 0:
        return Distortion(math.nan, math.nan, math.nan, 0)
    expansion = float(ratio.max())  # def:distortion
    least = float(ratio.min())
    contraction = 1 / least if least > 0 else math.inf  # def:distortion
    return Distortion(expansion, contraction, expansion * contraction if least > 0 else math.inf, len(ratio))


def _mean_gap(those: NDArray[np.float64], this: NDArray[np.float64]) -> NDArray[np.float64]:
    """d_Y of nodes [M, K] from one node [K]; NaN if they have no finite coordinate in common."""
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        gaps = np.ma.masked_invalid(np.abs(those - this))
    return np.asarray(gaps.mean(axis=1).filled(np.nan))
