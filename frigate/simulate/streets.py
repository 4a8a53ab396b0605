"""The streets of an invented town: a walled centre, radials, a ring, a river with few bridges, irregular quarters.

Everything is drawn in metres in the river's frame, then rotated by a seeded angle and placed on the globe. In that
frame the river is a curve y(x), so a street crosses it exactly if its ends are on different sides.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra, minimum_spanning_tree
from scipy.spatial import Delaunay, cKDTree

from frigate.city.network import Edges, RoadNetwork
from frigate.coordinates import EARTH_RADIUS_M, haversine_m
from frigate.errors import SettingsError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOWN = "Brackwater"
CENTRE_LON = 7.012
CENTRE_LAT = 49.034
MIN_INTERSECTIONS = 100  # the arterials alone need about sixty
BANK_M = 45.0  # minimum distance of an intersection from the middle of the river

CLASSES = ("trunk", "primary", "secondary", "tertiary", "residential")
TRUNK, PRIMARY, SECONDARY, TERTIARY, RESIDENTIAL = range(5)
SPEED_KPH = np.array([70.0, 50.0, 40.0, 40.0, 30.0])
LANES = np.array([2.0, 2.0, 1.0, 1.0, 1.0])
RADIAL_DEG = np.array([14.0, 58.0, 103.0, 160.0, 238.0, 306.0])  # in the river's frame; the last two cross it
RADIAL_NAMES = ("Quay Road", "Mill Road", "Abbey Road", "Forge Road", "Salt Road", "Harbour Road")
BRIDGE_NAMES = ("Old Bridge", "Weir Bridge", "Ferry Bridge", "Tanner Bridge", "Long Bridge", "Ropewalk Bridge")


@dataclass(frozen=True)
class Town:
    """A network, and what a demand model needs to know about it."""

    network: RoadNetwork
    xy_m: Floats  # [N,2] metres from the market square
    radius_m: float
    node_class: Ints  # [N] the highest class of road at the node, an index into CLASSES
    gates: Ints  # [G] rows of the nodes where roads leave the town
    bridges: Ints  # [M,2] rows of the ends of each street over the river


@dataclass(frozen=True)
class _StreetPlan:
    """The large features of the town, in the river's frame."""

    radius_m: float
    river_waves: Floats  # [3,3] amplitude, wave number, phase
    outline_waves: Floats  # [3,3] the same for the town's edge, around the circle
    ring_waves: Floats  # [2,3]
    radial_rad: Floats  # [6] direction at the centre
    radial_bend: Floats  # [6] radians over one radius
    wall_m: Floats  # [6] where each radial starts, at the inner ring
    turn_rad: float

    def river_y(self, x: Floats) -> Floats:
        a, k, p = self.river_waves.T
        y: Floats = self.radius_m * (-0.27 + (a * np.sin(np.asarray(x)[..., None] / self.radius_m * k + p)).sum(-1))
        return y

    def north(self, xy: Floats) -> NDArray[np.bool_]:
        return np.asarray(xy[..., 1] > self.river_y(xy[..., 0]))

    def radius_at(self, angle: Floats, waves: Floats, mean: float) -> Floats:
        a, k, p = waves.T
        r: Floats = self.radius_m * mean * (1 + (a * np.cos(np.asarray(angle)[..., None] * k + p)).sum(-1))
        return r

    def radial_xy(self, which: int, r: Floats) -> Floats:
        return polar(r, self.radial_rad[which] + self.radial_bend[which] * r / self.radius_m)


def polar(r: Floats, angle: Floats) -> Floats:
    return np.stack([r * np.cos(angle), r * np.sin(angle)], -1)


def graph_of(pairs: Ints, num_nodes: int, weight: Floats | None = None) -> csr_array[np.float64]:
    """A sparse matrix of the streets between these pairs of nodes."""
    weight = np.ones(len(pairs)) if weight is None else weight
    return csr_array((weight, (pairs[:, 0], pairs[:, 1])), shape=(num_nodes, num_nodes))


def build_town(rng: np.random.Generator, *, intersections: int) -> Town:
    """A town with exactly this many intersections, all in one strongly connected component."""
    if intersections < MIN_INTERSECTIONS:
        raise SettingsError(
            f"intersections = {intersections}: a town with a ring and a river needs at least {MIN_INTERSECTIONS}"
        )
    plan = _draw_plan(rng, radius_m=105.0 * np.sqrt(intersections))
    main_xy, main_pairs, main_class, main_name, gates = _arterials(plan)
    centres, local_xy = _local_points(rng, plan, main_xy, main_pairs, wanted=intersections - len(main_xy))
    while True:
        xy = np.concatenate([main_xy, local_xy[: intersections - len(main_xy)]])
        pairs, widest = _possible_streets(plan, xy, main_pairs)
        part = connected_components(graph_of(np.concatenate([main_pairs, pairs]), len(xy)), directed=False)[1]
        isolated = np.flatnonzero(part != part[0])
        if not len(isolated):
            break
        local_xy = np.delete(local_xy, isolated - len(main_xy), axis=0)  # replaced from the reserve
    pairs, road_class = _streets(rng, xy, main_pairs, main_class, pairs, widest)
    road_class = _collectors(rng, xy, pairs, road_class, centres)
    name = np.full(len(pairs), "", dtype="U24")
    name[: len(main_name)] = main_name
    over = plan.north(xy[pairs[:, 0]]) != plan.north(xy[pairs[:, 1]])
    name[over] = np.resize(BRIDGE_NAMES, int(over.sum()))
    one_way = _one_ways(rng, xy, pairs, road_class, radius_m=plan.radius_m)
    return _place(rng, plan, xy, pairs, road_class, name, one_way, over, gates)


def _draw_plan(rng: np.random.Generator, *, radius_m: float) -> _StreetPlan:
    def waves(amplitudes: tuple[float, ...], numbers: tuple[float, ...]) -> Floats:
        count = len(amplitudes)
        a = np.array(amplitudes) * rng.uniform(0.7, 1.3, count)
        return np.stack([a, np.array(numbers), rng.uniform(0, 2 * np.pi, count)], 1)

    return _StreetPlan(
        radius_m=radius_m,
        river_waves=waves((0.06, 0.03, 0.012), (1.9, 4.1, 9.0)),
        outline_waves=waves((0.07, 0.08, 0.05), (2, 3, 5)),
        ring_waves=waves((0.05, 0.04), (2, 3)),
        radial_rad=np.radians(RADIAL_DEG + rng.uniform(-7, 7, len(RADIAL_DEG))),
        radial_bend=np.radians(rng.uniform(-14, 14, len(RADIAL_DEG))),
        wall_m=radius_m * rng.uniform(0.11, 0.18, len(RADIAL_DEG)),
        turn_rad=float(rng.uniform(0, 2 * np.pi)),
    )


def _arterials(plan: _StreetPlan) -> tuple[Floats, Ints, Ints, list[str], Ints]:
    """Inner ring, ring and radials: nodes, pairs joined by streets, class and name of each street; and the gates."""
    count = len(plan.radial_rad)
    R = plan.radius_m
    edge_m = 1.22 * R
    meet = np.full(count, 0.64 * R)  # where radial and ring meet: a fixed point, as both curves bend
    for _ in range(8):
        meet = plan.radius_at(plan.radial_rad + plan.radial_bend * meet / R, plan.ring_waves, 0.64)
    points: list[Floats] = []
    chains: list[tuple[list[int], int, str]] = []

    def add(xy: Floats) -> list[int]:
        first = sum(len(p) for p in points)
        points.append(xy)
        return list(range(first, first + len(xy)))

    inner = []
    outer = []
    gates = []
    for k in range(count):
        within = max(2, round((meet[k] - plan.wall_m[k]) / 170))
        beyond = max(1, round((edge_m - meet[k]) / 270))
        rows = add(plan.radial_xy(k, np.linspace(plan.wall_m[k], meet[k], within + 1)))
        rest = add(plan.radial_xy(k, np.linspace(meet[k], edge_m, beyond + 1)[1:]))
        chains += [(rows, PRIMARY, RADIAL_NAMES[k]), ([rows[-1], *rest], PRIMARY, RADIAL_NAMES[k])]
        inner.append(rows[0])
        outer.append(rows[-1])
        gates.append(rest[-1])
    for ends, radii, spacing_m, road_class, name in (
        (inner, plan.wall_m, 125, SECONDARY, "Wall Street"),
        (outer, meet, 250, TRUNK, "Ring Road"),
    ):
        at = plan.radial_rad + plan.radial_bend * radii / R
        for k in range(count):
            stop = at[(k + 1) % count] + (2 * np.pi if k == count - 1 else 0)
            last = radii[(k + 1) % count]
            steps = max(1, round((stop - at[k]) * (radii[k] + last) / 2 / spacing_m))
            angle = np.linspace(at[k], stop, steps + 1)[1:-1]
            r = np.linspace(radii[k], last, steps + 1)[1:-1]
            if road_class == TRUNK:
                r = plan.radius_at(angle, plan.ring_waves, 0.64)
            rows = add(polar(r, angle))
            chains.append(([ends[k], *rows, ends[(k + 1) % count]], road_class, name))
    xy = np.concatenate(points)
    river = plan.river_y(xy[:, 0])
    gap = xy[:, 1] - river
    in_water = np.abs(gap) < BANK_M
    xy[in_water, 1] = np.where(gap > 0, river + BANK_M, river - BANK_M)[in_water]  # to the nearer bank
    pairs = np.array([pair for rows, _, _ in chains for pair in pairwise(rows)], np.int64)
    classes = np.array([c for rows, c, _ in chains for _ in rows[1:]], np.int64)
    names = [name for rows, _, name in chains for _ in rows[1:]]
    return xy, pairs, classes, names, np.array(gates, np.int64)


def _local_points(
    rng: np.random.Generator, plan: _StreetPlan, main_xy: Floats, main_pairs: Ints, *, wanted: int
) -> tuple[Floats, Floats]:
    """Centres of quarters, which differ in direction, block size and regularity; and `wanted` intersections plus some
    in reserve, from the centre outwards."""
    R = plan.radius_m
    count = max(6, round((wanted + len(main_xy)) / 28))
    k = np.arange(count, dtype=np.float64)
    r = R * np.sqrt((k + 0.5) / count)
    angle: Floats = k * 2.39996 + rng.uniform(0, 2 * np.pi)  # golden angle, as in a sunflower, to cover the disc evenly
    centres = polar(r, angle) + rng.normal(0, 0.07 * R, (count, 2))
    turn = rng.uniform(0, np.pi / 2, count)
    long = rng.uniform(1.0, 1.7, count)
    disorder = rng.choice([0.07, 0.14, 0.24], count, p=[0.4, 0.35, 0.25])
    block = (0.72 + 0.5 * np.linalg.norm(centres, axis=1) / R) * rng.uniform(0.9, 1.15, count)
    noise_seed = int(rng.integers(2**31))
    spread_rad = rng.uniform(0, 2 * np.pi)
    park = 0.36 * R * np.array([np.cos(spread_rad), np.abs(np.sin(spread_rad))])
    share = np.linspace(0, 1, 6)[:, None, None]
    avoid = cKDTree((main_xy[main_pairs[:, 0]] * (1 - share) + main_xy[main_pairs[:, 1]] * share).reshape(-1, 2))

    def points(spacing_m: float) -> Floats:
        noise = np.random.default_rng(noise_seed)
        cells = np.arange(-24, 25)
        found = []
        for q in range(count):
            grid = np.stack(np.meshgrid(cells * long[q], cells / np.sqrt(long[q])), -1).reshape(-1, 2)
            local = (grid + noise.normal(0, disorder[q], grid.shape)) * spacing_m * block[q]
            c = np.cos(turn[q])
            s = np.sin(turn[q])
            xy = local @ np.array([[c, s], [-s, c]]) + centres[q]
            found.append(xy[cKDTree(centres).query(xy)[1] == q])
        xy = np.concatenate(found)
        out = np.linalg.norm(xy, axis=1) / plan.radius_at(np.arctan2(xy[:, 1], xy[:, 0]), plan.outline_waves, 1.0)
        clear = (out < 1) & (np.abs(xy[:, 1] - plan.river_y(xy[:, 0])) > 1.2 * BANK_M)
        clear &= (avoid.query(xy)[0] > 0.52 * spacing_m) & (np.linalg.norm(xy - park, axis=1) > 0.11 * R)
        xy = xy[clear]
        out = out[clear]
        close = cKDTree(xy).query_pairs(0.58 * spacing_m, output_type="ndarray")
        apart = np.ones(len(xy), bool)
        apart[close.max(1)] = False
        return np.asarray(xy[apart][np.argsort(out[apart], kind="stable")])

    spacing_m = 230.0
    while len(xy := points(spacing_m)) < wanted + 8 + wanted // 20:
        spacing_m *= 0.98
    return centres, xy


def _possible_streets(plan: _StreetPlan, xy: Floats, main_pairs: Ints) -> tuple[Ints, Floats]:
    """Delaunay edges that cross neither river nor arterials, and the widest angle of each as seen from another node."""
    N = len(xy)
    triangles = Delaunay(xy).simplices
    sides = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    apex = xy[np.concatenate([triangles[:, 2], triangles[:, 0], triangles[:, 1]])]
    to_a = xy[sides[:, 0]] - apex
    to_b = xy[sides[:, 1]] - apex
    angle = np.degrees(np.arccos(np.clip((to_a * to_b).sum(1) / np.sqrt((to_a**2).sum(1) * (to_b**2).sum(1)), -1, 1)))
    key, back = np.unique(np.sort(sides, axis=1) @ [N, 1], return_inverse=True)
    widest = np.zeros(len(key))
    np.maximum.at(widest, back, angle)
    pairs = np.stack([key // N, key % N], 1)
    arterial = np.isin(key, np.sort(main_pairs, axis=1) @ [N, 1])
    dry = plan.north(xy[pairs[:, 0]]) == plan.north(xy[pairs[:, 1]])
    gate = np.linalg.norm(xy[pairs], axis=2).max(1) > 1.15 * plan.radius_m  # only radials lead out of town
    allowed = ~arterial & dry & ~gate & ~_crosses(xy, pairs, main_pairs)
    return pairs[allowed], widest[allowed]


def _streets(
    rng: np.random.Generator, xy: Floats, main_pairs: Ints, main_class: Ints, pairs: Ints, widest: Floats
) -> tuple[Ints, Ints]:
    """The arterials, then local streets: most of those around squarish blocks, and those needed to connect all."""
    N = len(xy)
    mains = len(main_pairs)
    length = np.linalg.norm(xy[pairs[:, 0]] - xy[pairs[:, 1]], axis=1)
    both = np.concatenate([main_pairs, pairs])
    cost = np.concatenate([np.full(mains, 1.0), length])  # so cheap that arterials enter the tree first
    tree = minimum_spanning_tree(graph_of(both, N, cost)).tocoo()
    needed = np.isin(pairs @ [N, 1], tree.row.astype(np.int64) * N + tree.col)
    on_ring = np.zeros(N, bool)
    on_ring[main_pairs[main_class == TRUNK]] = True
    at_ring = on_ring[pairs].any(1)
    kept = (widest < 84) & (length < 2.4 * np.median(length)) & (rng.random(len(pairs)) < np.where(at_ring, 0.55, 0.88))
    pairs = pairs[kept | needed]
    return np.concatenate([main_pairs, pairs]), np.concatenate([main_class, np.full(len(pairs), RESIDENTIAL)])


def _crosses(xy: Floats, pairs: Ints, others: Ints) -> NDArray[np.bool_]:
    """Which pairs cross any of the others, except at an end."""
    a = xy[pairs[:, 0], None]
    b = xy[pairs[:, 1], None]
    c = xy[None, others[:, 0]]
    d = xy[None, others[:, 1]]

    def side(p: Floats, q: Floats, r: Floats) -> Floats:
        x1, y1 = np.moveaxis(q - p, -1, 0)
        x2, y2 = np.moveaxis(r - p, -1, 0)
        return np.asarray(np.sign(x1 * y2 - y1 * x2))

    apart = (pairs[:, None, :, None] != others[None, :, None, :]).all((2, 3))
    return np.asarray((apart & (side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0)).any(1))


def _collectors(rng: np.random.Generator, xy: Floats, pairs: Ints, road_class: Ints, centres: Floats) -> Ints:
    """Streets on the shortest paths between neighbouring quarters become collectors."""
    N = len(xy)
    length = np.linalg.norm(xy[pairs[:, 0]] - xy[pairs[:, 1]], axis=1) * rng.uniform(1, 1.15, len(pairs))
    middle = np.unique(cKDTree(xy).query(centres)[1])
    before = dijkstra(graph_of(pairs, N, length), directed=False, indices=middle, return_predecessors=True)[1]
    triangles = np.sort(Delaunay(xy[middle]).simplices, axis=1)
    neighbours = {tuple(pair) for ends in ([0, 1], [1, 2], [0, 2]) for pair in triangles[:, ends].tolist()}
    passed = set()
    for a, b in neighbours:
        v = int(middle[b])
        while (u := int(before[a, v])) >= 0:
            passed.add(min(u, v) * N + max(u, v))
            v = u
    on_path = np.isin(np.sort(pairs, axis=1) @ [N, 1], list(passed))
    return np.where(on_path & (road_class == RESIDENTIAL), TERTIARY, road_class)


def _one_ways(
    rng: np.random.Generator, xy: Floats, pairs: Ints, road_class: Ints, *, radius_m: float
) -> NDArray[np.bool_]:
    """Some residential streets, most of them in the centre, are one-way, from the first end to the second."""
    central = np.linalg.norm(xy[pairs].mean(1), axis=1) < 0.4 * radius_m
    one_way = (road_class == RESIDENTIAL) & (rng.random(len(pairs)) < np.where(central, 0.4, 0.1))
    directed = np.concatenate([pairs, pairs[~one_way][:, ::-1]])
    part = connected_components(graph_of(directed, len(xy)), connection="strong")[1]
    # Streets between two components become two-way. All streets are connected, so one component is left.
    return np.asarray(one_way & (part[pairs[:, 0]] == part[pairs[:, 1]]))


def _place(
    rng: np.random.Generator,
    plan: _StreetPlan,
    xy: Floats,
    pairs: Ints,
    road_class: Ints,
    name: NDArray[np.str_],
    one_way: NDArray[np.bool_],
    over: NDArray[np.bool_],
    gates: Ints,
) -> Town:
    """The town: directed roads with slightly curved lines, rotated and placed on the globe; rows go north to south."""
    c = np.cos(plan.turn_rad)
    s = np.sin(plan.turn_rad)
    xy = xy @ np.array([[c, s], [-s, c]])
    order = np.argsort(-xy[:, 1], kind="stable")
    row = np.argsort(order)
    xy = xy[order]
    pairs = row[pairs]
    gates = row[gates]
    a = xy[pairs[:, 0]]
    b = xy[pairs[:, 1]]
    bend = np.where(over, 0.0, rng.normal(0, np.where(road_class == RESIDENTIAL, 0.05, 0.025)))
    middle = (a + b) / 2 + bend[:, None] * 2 * (b - a)[:, ::-1] * [-1, 1]
    t = np.linspace(0, 1, 7)[:, None, None]
    line = _lonlat(((1 - t) ** 2 * a + 2 * t * (1 - t) * middle + t**2 * b).transpose(1, 0, 2))  # [E,7,2] a parabola
    both = np.concatenate([np.arange(len(pairs)), np.flatnonzero(~one_way)])
    back = np.arange(len(both)) >= len(pairs)
    line = np.where(back[:, None, None], line[both, ::-1], line[both])
    hops = haversine_m(line[:, :-1, 0], line[:, :-1, 1], line[:, 1:, 0], line[:, 1:, 1])
    ends = np.where(back[:, None], pairs[both, ::-1], pairs[both])
    rural = (road_class == PRIMARY) & (np.linalg.norm(xy[pairs], axis=2).min(1) > 0.8 * plan.radius_m)
    geometry = np.empty(len(both), object)
    geometry[:] = [struct.pack("<BII14d", 1, 2, 7, *points.ravel()) for points in line]
    edges = Edges.of(
        ends[:, 0],
        ends[:, 1],
        np.round(hops.sum(1) * 1.004, 1) + 0.1,  # kerbs and crossings: a road is never shorter than its line
        road_class=np.array(CLASSES)[road_class[both]],
        lanes=np.where(rural, 1.0, LANES[road_class])[both],
        speed_kph=np.where(rural, 70.0, SPEED_KPH[road_class])[both],
        name=name[both],
        geometry=geometry,
    )
    lonlat = _lonlat(xy)
    node_class = np.full(len(xy), RESIDENTIAL)
    np.minimum.at(node_class, pairs.ravel(), np.repeat(road_class, 2))
    network = RoadNetwork(np.arange(1, len(xy) + 1), lonlat[:, 0], lonlat[:, 1], edges)
    return Town(network, xy, plan.radius_m, node_class, gates, pairs[over])


def _lonlat(xy_m: Floats) -> Floats:
    degrees = np.degrees(xy_m / EARTH_RADIUS_M)
    return np.stack([CENTRE_LON + degrees[..., 0] / np.cos(np.radians(CENTRE_LAT)), CENTRE_LAT + degrees[..., 1]], -1)
