"""The demo city: simulated traffic in an invented town, counted at every intersection.

Trip purposes and departure times give the demand; travel times under congestion give the routes, for every part of the
day and every set of closed roads; the vehicles on these routes give the counts. Everything follows from one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, dijkstra

from frigate.calendar import DAY_S, zone
from frigate.city.city import City
from frigate.city.network import Road, RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.city.timeline import ClosedRoads, Timeline
from frigate.errors import SettingsError
from frigate.simulate.assignment import AssignedRoads, Loading, TripShares, assign, assigned_roads
from frigate.simulate.streets import PRIMARY, TERTIARY, TOWN, Floats, Ints, Town, build_town, graph_of, polar

# Besides N and E: P flows (a purpose, outward or homeward), Z zones, K parts of a day.
TIMEZONE = "Europe/Luxembourg"
MONDAY = datetime(2024, 3, 4)
RESIDENTS_PER_INTERSECTION = 130
MAX_ZONES = 60
MAX_CLOSURES = 60  # each is one bit of an int64
PARTS_H = (
    (3.0, 6.5, 7.6, 9.0, 12.5, 15.5, 17.2, 19.0, 22.0),  # weekdays
    (3.0, 9.0, 11.5, 16.0, 20.0),  # Saturdays
    (3.0, 10.0, 15.0, 18.0, 21.5),  # Sundays
)
DISPERSION = 40.0  # gamma shape: signals form platoons, so counts vary a little more than Poisson

Curve = tuple[tuple[float, float, float], ...]  # a sum of (trips per resident, hour of departure, spread in hours)


@dataclass(frozen=True)
class Purpose:
    """Why people leave home, how far they go, and when: on weekdays, Saturdays and Sundays."""

    home: str
    activity: str
    reach_min: float  # a destination this much farther is e times less attractive
    outward: tuple[Curve, Curve, Curve]
    homeward: tuple[Curve, Curve, Curve]


PURPOSES = (
    Purpose(
        "homes",
        "jobs",
        9.0,
        (
            ((0.05, 5.6, 0.5), (0.22, 7.3, 0.6), (0.12, 8.4, 0.7), (0.05, 13.2, 0.8)),
            ((0.05, 7.5, 1.2),),
            ((0.025, 7.5, 1.5),),
        ),
        (
            ((0.05, 12.6, 0.6), (0.09, 14.6, 0.6), (0.22, 16.9, 0.7), (0.09, 18.4, 0.9)),
            ((0.05, 16.0, 2.0),),
            ((0.025, 16.5, 2.0),),
        ),
    ),
    Purpose(
        "homes",
        "schools",
        4.0,
        (((0.08, 7.7, 0.22), (0.015, 13.6, 0.3)), (), ()),
        (((0.035, 8.1, 0.25), (0.035, 12.4, 0.25), (0.045, 15.9, 0.35)), (), ()),
    ),
    Purpose(
        "homes",
        "shops",
        5.0,
        (((0.11, 10.3, 1.4), (0.13, 16.6, 1.7)), ((0.25, 10.6, 1.3), (0.14, 14.5, 1.6)), ((0.035, 9.2, 0.8),)),
        (((0.11, 11.4, 1.4), (0.13, 17.8, 1.6)), ((0.24, 12.0, 1.3), (0.15, 16.0, 1.6)), ((0.035, 10.1, 0.9),)),
    ),
    Purpose(
        "homes",
        "leisure",
        7.0,
        (((0.15, 19.0, 1.3),), ((0.12, 14.2, 1.8), (0.15, 19.4, 1.2)), ((0.09, 10.4, 1.2), (0.19, 14.2, 1.5))),
        (((0.14, 21.7, 1.2),), ((0.10, 17.6, 1.6), (0.15, 23.3, 1.4)), ((0.06, 12.4, 0.9), (0.20, 17.7, 1.5))),
    ),
    Purpose(
        "jobs",
        "jobs",
        12.0,
        (((0.10, 9.8, 1.2), (0.10, 14.2, 1.4)), ((0.03, 10.5, 1.6),), ()),
        (((0.07, 11.4, 1.3), (0.08, 15.3, 1.3)), ((0.02, 12.5, 1.5),), ()),
    ),
    Purpose(
        "gates",
        "gates",
        60.0,
        (((0.05, 7.6, 0.9), (0.07, 12.5, 3.6)), ((0.08, 12.5, 3.2),), ((0.06, 12.0, 2.6),)),
        (((0.06, 17.2, 1.2), (0.06, 13.5, 4.2)), ((0.08, 14.5, 3.4),), ((0.08, 17.0, 2.6),)),
    ),
    Purpose("homes", "stadium", 30.0, (((0.05, 18.6, 0.35),),) * 3, (((0.05, 21.3, 0.25),),) * 3),
)
EVENT = len(PURPOSES) - 1  # the last purpose is for match days only


@dataclass(frozen=True)
class SimulatedClosure:
    """Roads that are closed on some days between two hours of local time."""

    reason: str
    roads: tuple[Road, ...]
    first_day: int
    num_days: int
    from_h: float
    to_h: float

    def periods(self) -> list[ClosedRoads]:
        """One for each day, in seconds of local time since the start of the record."""
        days_s = DAY_S * np.arange(self.first_day, self.first_day + self.num_days)
        from_s, to_s = (round(3600 * hour) for hour in (self.from_h, self.to_h))
        return [ClosedRoads(self.roads, day_s + from_s, day_s + to_s) for day_s in days_s.tolist()]


@dataclass(frozen=True)
class Simulation:
    """A simulated city, with its town and closures."""

    stream: RoadNetworkStream
    town: Town
    closures: tuple[SimulatedClosure, ...]


def demo_city(*, seed: int = 0, intersections: int = 400, days: int = 14, step_s: int = 300, closures: int = 3) -> City:
    """Simulate a town with vehicle counts at every intersection, starting on a Monday.

    Parameters
    ----------
    seed
        Determines everything.
    intersections
        Number of intersections, at least 100.
    days
        Length of the record.
    step_s
        Length of a snapshot in seconds; must divide a day.
    closures
        How many times roads are closed for some hours, at most 60.
    """
    return City(TOWN, simulate(seed, intersections=intersections, days=days, step_s=step_s, closures=closures).stream)


def simulate(
    seed: int = 0, *, intersections: int = 400, days: int = 14, step_s: int = 300, closures: int = 3
) -> Simulation:
    """The demo city with the town and closures behind it."""
    if seed < 0:
        raise SettingsError(f"seed = {seed}: give 0 or more")
    if days < 1:
        raise SettingsError(f"days = {days}: give at least one")
    if not 0 <= closures <= MAX_CLOSURES:
        raise SettingsError(f"closures = {closures}: give 0 to {MAX_CLOSURES}")
    if step_s < 1 or DAY_S % step_s:
        raise SettingsError(f"step_s = {step_s} does not divide a day of {DAY_S} s; 300 does")
    town, roads, demand = _town_and_trips(seed, intersections)
    schedule = _schedule(np.random.default_rng([seed, 3]), town, count=closures, days=days)
    timeline = Timeline.closing(town.network, [period for each in schedule for period in each.periods()])
    networks, network_of, _ = timeline.course(step_s * np.arange(days * DAY_S // step_s))
    values = _counts(seed, town, roads, demand, networks, network_of, days=days, step_s=step_s)
    stream = make_stream(
        values,
        networks,
        network_of=network_of,
        start_s=int(MONDAY.replace(tzinfo=zone(TIMEZONE)).timestamp()),
        step_s=step_s,
        timezone=TIMEZONE,
        quantity="count",
        unit="vehicles",
    )
    return Simulation(stream, town, tuple(schedule))


def _town_and_trips(seed: int, intersections: int) -> tuple[Town, AssignedRoads, TripShares]:
    """The streets, the roads as drivers perceive them, and the demand."""
    # Separate generators: with other closures or more days, streets, people and earlier days stay the same.
    streets, tastes, land_use = (np.random.default_rng([seed, k]) for k in range(3))
    town = build_town(streets, intersections=intersections)
    roads = assigned_roads(tastes, town)
    return town, roads, _demand(land_use, town, roads)


@dataclass(frozen=True)
class UsualFlow:
    """Expected vehicles per hour on an ordinary weekday without a match, averaged over some hours."""

    node: Floats  # [N]
    road: Floats  # [E] on the roads of the first network; 0 if closed


def usual_weekday(
    networks: Sequence[RoadNetwork], *, seed: int = 0, intersections: int = 400, hours: Sequence[int]
) -> list[UsualFlow]:
    """Simulate a weekday of the demo city on other versions of its network. Drivers know about the closures.

    Parameters
    ----------
    networks
        The demo city's network, and the same with roads closed.
    seed, intersections
        Those of the demo city.
    hours
        Hours of the day to average over: 9 is from 09:00 to 10:00.
    """
    _, roads, demand = _town_and_trips(seed, intersections)
    N = roads.num_nodes
    residents = float(RESIDENTS_PER_INTERSECTION * roads.num_nodes)
    key = roads.senders * N + roads.receivers  # sorted
    rows = np.searchsorted(key, networks[0].senders * N + networks[0].receivers)
    middle_h = np.array(hours) + 0.5
    parts_h = PARTS_H[0]
    share = np.stack([np.interp(middle_h, parts_h, unit) for unit in np.eye(len(parts_h))], 1)  # [hours,K]
    parts = np.flatnonzero(share.any(0)).tolist()
    flows = []
    for network in networks:
        open_ = np.isin(key, network.senders * N + network.receivers)
        loads = [assign(roads, demand, open_, _usual_per_hour(0, parts_h[k], residents=residents)) for k in parts]
        node = np.zeros(N)
        road = np.zeros(len(key))
        for hour, weight in zip(middle_h, share[:, parts], strict=True):
            elapsed_h = np.tensordot(weight, [x.elapsed_s for x in loads], 1) / 3600
            leaving = _usual_per_hour(0, hour - elapsed_h, residents=residents)  # [P,N] of those who pass now
            passing = np.tensordot(weight, [x.passages.sum(1) for x in loads], 1)
            along = np.tensordot(weight, [x.road_passages for x in loads], 1)
            node += (leaving * passing).sum(0) / len(hours)
            road += (leaving[:, roads.senders] * along).sum(0) / len(hours)
        flows.append(UsualFlow(node, road[rows]))
    return flows


def _land_use(rng: np.random.Generator, town: Town) -> dict[str, Floats]:
    """The share of each land use at each node; each sums to 1."""
    xy = town.xy_m
    R = town.radius_m
    N = len(town.xy_m)
    r = np.linalg.norm(xy, axis=1) / R
    lumps = np.exp(_smooth(xy, 0.25 * R) @ rng.normal(0, 0.5, (N, 2)))  # some quarters are denser

    def spots(count: int, width: float, low: float, high: float) -> Floats:
        angle = rng.uniform(0, 2 * np.pi, count)
        far = rng.uniform(low, high, count) * R
        at = polar(far, angle)
        near = np.exp(-(((xy[:, None] - at) ** 2).sum(-1)) / (width * R) ** 2)
        total: Floats = (near / near.sum(0)).sum(1) / count
        return total

    outside = np.zeros(N)
    outside[town.gates] = rng.dirichlet(np.full(len(town.gates), 4.0))
    housing = (0.35 + np.exp(-((r / 0.6) ** 2))) * lumps[:, 0]
    housing *= np.array([0.1, 0.6, 0.9, 1.0, 1.0])[town.node_class]
    housing[town.gates] = 0
    centre = np.exp(-((r / 0.2) ** 2))
    trade = (0.25 + np.exp(-((r / 0.5) ** 2))) * lumps[:, 1]
    trade *= np.array([0.3, 1.6, 1.6, 1.3, 0.7])[town.node_class]
    centre, housing, trade = (w / w.sum() for w in (centre, housing, trade))
    industry = spots(1, 0.16, 0.7, 0.85)
    return {
        "homes": 0.72 * housing + 0.12 * spots(3, 0.14, 0.55, 0.8) + 0.16 * outside,
        "jobs": 0.30 * centre + 0.24 * industry + 0.36 * trade + 0.10 * outside,
        "schools": 0.8 * spots(max(4, N // 60), 0.05, 0.1, 0.8) + 0.2 * centre,
        "shops": 0.32 * centre + 0.36 * spots(3, 0.06, 0.3, 0.8) + 0.26 * trade + 0.06 * outside,
        "leisure": 0.3 * centre + 0.25 * spots(4, 0.07, 0.3, 0.9) + 0.2 * housing + 0.1 * trade + 0.15 * outside,
        "gates": outside,
        "stadium": spots(1, 0.03, 0.5, 0.7),
    }


def _smooth(xy: Floats, reach_m: float) -> Floats:
    """[N,N] matrix that turns independent unit normals into a field of unit variance, smooth over `reach_m`."""
    gap2 = ((xy[:, None] - xy[None]) ** 2).sum(-1)
    kernel = np.exp(-gap2 / reach_m**2)
    field: Floats = kernel / np.sqrt((kernel**2).sum(1, keepdims=True))
    return field


def _demand(rng: np.random.Generator, town: Town, roads: AssignedRoads) -> TripShares:
    """A gravity model, constrained at the home end. One end of each trip is a zone, the other any node."""
    use = _land_use(rng, town)
    roots = _zones(town)
    graph = roads.matrix(roads.free_s, np.ones(len(roads.free_s), bool))
    away_s = dijkstra(graph, indices=roots)  # [Z,N]
    round_min = (away_s + dijkstra(graph.T.tocsr(), indices=roots)) / 120
    zone_of = away_s.argmin(0)
    to_root = []
    from_root = []
    for purpose in PURPOSES:
        home = use[purpose.home]
        activity = use[purpose.activity]
        home_z, activity_z = (np.bincount(zone_of, share, len(roots)) for share in (home, activity))
        attraction = np.exp(-round_min / purpose.reach_min)
        attraction[np.arange(len(roots)), roots] = 0  # nobody drives to where they already are
        to_zone = attraction * activity_z[:, None]
        to_node = attraction * activity
        a = 0.5 * home * to_zone / np.maximum(to_zone.sum(0), 1e-300)  # home at a node, activity in a zone
        b = 0.5 * home_z[:, None] * to_node / np.maximum(to_node.sum(1, keepdims=True), 1e-300)  # the other way round
        total = a.sum() + b.sum()
        to_root += [a / total, b / total]  # outward, then homeward between the same places
        from_root += [b / total, a / total]
    return TripShares(roots, np.stack(to_root), np.stack(from_root))


def _zones(town: Town) -> Ints:
    """The gates, then nodes on through streets, each the farthest from all before it."""
    good = np.flatnonzero((town.node_class >= PRIMARY) & (town.node_class <= TERTIARY))
    roots = town.gates.tolist()
    gap = np.linalg.norm(town.xy_m[good, None] - town.xy_m[town.gates], axis=-1).min(1)
    for _ in range(min(MAX_ZONES, len(town.xy_m) // 5) - len(roots)):
        roots.append(int(good[gap.argmax()]))
        gap = np.minimum(gap, np.linalg.norm(town.xy_m[good] - town.xy_m[roots[-1]], axis=1))
    return np.array(roots, np.int64)


def _schedule(rng: np.random.Generator, town: Town, *, count: int, days: int) -> list[SimulatedClosure]:
    """A late bridge repair, a street festival on the last day and early roadworks; then more of each at random."""
    late = min(int(np.ceil(0.7 * days)), days - 1)
    early = int(0.15 * days)
    fixed = ((late, 2, 6.0, 20.0), (days - 1, 1, 10.0, 22.0), (early, 3, 7.0, 19.0))
    left = np.ones(town.network.num_edges, bool)
    ids = town.network.node_ids.tolist()
    found = []
    for i in range(count):
        first_day, num_days, from_h, to_h = fixed[i % 3]
        first_day = first_day if i < 3 else int(rng.integers(days))
        reason, wanted = _closure_site(rng, town, i)
        closed = _closable(town.network, wanted, left)
        left[closed] = False  # as if all closures were active at once, so that no place is ever cut off
        roads = tuple((ids[town.network.senders[row]], ids[town.network.receivers[row]]) for row in closed)
        found.append(SimulatedClosure(reason, roads, first_day, min(num_days, days - first_day), from_h, to_h))
    return found


def _closure_site(rng: np.random.Generator, town: Town, i: int) -> tuple[str, Ints]:
    """The reason for a closure, and the rows of the roads it would close."""
    e = town.network.edges
    xy = town.xy_m
    middle = (xy[e.senders] + xy[e.receivers]) / 2
    if i % 3 == 0:
        near = np.argsort(np.linalg.norm(xy[town.bridges].mean(1), axis=1))
        a, b = town.bridges[near[i // 3 % len(near)]]
        return "bridge repair", np.flatnonzero(np.isin(e.senders, (a, b)) & np.isin(e.receivers, (a, b)))
    if i % 3 == 1:
        at = rng.normal(0, 0.05, 2) * town.radius_m
        gap = np.linalg.norm(middle - at, axis=1)
        return "street festival", np.flatnonzero(gap < 0.15 * town.radius_m)
    arterial = (e.road_class == "primary") & (np.abs(np.linalg.norm(middle, axis=1) / town.radius_m - 0.4) < 0.12)
    name = rng.choice(np.unique(e.name[arterial]))
    return "roadworks", np.flatnonzero(arterial & (e.name == name))


def _closable(network: RoadNetwork, rows: Ints, left: NDArray[np.bool_]) -> list[int]:
    """Those of `rows` that can be closed, in addition to roads not in `left`, without cutting off any place."""
    left = left.copy()
    pairs = np.stack([network.senders, network.receivers], 1)
    closed = []
    for row in rows[left[rows]].tolist():
        left[row] = False
        if connected_components(graph_of(pairs[left], network.num_nodes), connection="strong")[0] == 1:
            closed.append(row)
        else:
            left[row] = True
    return closed


def _day_type(day: int) -> int:
    return max(0, day % 7 - 4)


def _per_hour(day_type: int, hour: Floats | float, *, residents: float) -> Floats:
    """[P,...] departures per hour of each flow; hours below 0 and above 24 are on the days before and after."""
    rates = []
    for purpose in PURPOSES:
        for curves in (purpose.outward, purpose.homeward):
            rate = np.zeros(np.shape(hour))
            for trips, mean, spread in curves[day_type]:
                rate += residents * trips * np.exp(-(((hour - mean) / spread) ** 2) / 2) / (spread * np.sqrt(2 * np.pi))
            rates.append(rate)
    return np.stack(rates)


def _usual_per_hour(day_type: int, hour: Floats | float, *, residents: float) -> Floats:
    """The same on a day without a match."""
    per_hour = _per_hour(day_type, hour, residents=residents)
    per_hour[2 * EVENT :] = 0
    return per_hour


def _departures(seed: int, *, residents: float, days: int, step_s: int) -> Floats:
    """[P,S'] departures in each step. S' starts a day early, for trips under way at the first midnight."""
    per_day = DAY_S // step_s
    hour = (np.arange((days + 1) * per_day) + 0.5) * step_s / 3600 - 24
    total = np.zeros((2 * len(PURPOSES), len(hour)))
    for day in range(-1, days):
        rng = np.random.default_rng([seed, 4, day + 1])
        factor = np.exp(rng.normal(0, 0.05) + rng.normal(0, 0.05, len(total)))  # some days are busier
        match_day = np.random.default_rng([seed, 5, day // 7 + 1]).choice([1, 2, 4, 5, 6])
        factor[2 * EVENT :] *= day % 7 == match_day
        # From the day before to the day after.
        around = slice(max(0, day * per_day), min(len(hour), (day + 3) * per_day))
        total[:, around] += factor[:, None] * _per_hour(_day_type(day), hour[around] - 24 * day, residents=residents)
    return total * step_s / 3600


def _counts(
    seed: int,
    town: Town,
    roads: AssignedRoads,
    demand: TripShares,
    networks: Sequence[RoadNetwork],
    network_of: Ints,
    *,
    days: int,
    step_s: int,
) -> NDArray[np.float32]:
    """[S,N] vehicle counts, simulated day by day."""
    N = roads.num_nodes
    per_day = DAY_S // step_s
    residents = float(RESIDENTS_PER_INTERSECTION * N)
    departures = _departures(seed, residents=residents, days=days, step_s=step_s)
    smooth = _smooth(town.xy_m[demand.roots], 0.5 * town.radius_m)
    key = roads.senders * N + roads.receivers
    open_ = [np.isin(key, network.senders * N + network.receivers) for network in networks]
    hours = (np.arange(per_day) + 0.5) * step_s / 3600

    @cache
    def solved(network: int, day_type: int, part: int) -> Loading:
        # Matches are too rare for drivers to expect their delays.
        per_hour = _usual_per_hour(day_type, PARTS_H[day_type][part], residents=residents)
        return assign(roads, demand, open_[network], per_hour)

    values = np.empty((days * per_day, N), np.float32)
    for day in range(days):
        parts_h = PARTS_H[_day_type(day)]
        share = np.stack([np.interp(hours, parts_h, unit) for unit in np.eye(len(parts_h))], 1)  # [steps,K]
        rng = np.random.default_rng([seed, 6, day])
        whole_day = rng.normal(0, 0.12, (len(smooth), 1))
        field = np.exp(smooth @ (whole_day + rng.normal(0, 0.07, (len(smooth), len(parts_h)))))  # [Z,K] random factors
        rate = np.empty((per_day, N))
        which = network_of[day * per_day : (day + 1) * per_day]
        for network in np.unique(which).tolist():
            steps = np.flatnonzero(which == network)
            parts = np.flatnonzero(share[steps].any(0)).tolist()
            loads = [solved(network, _day_type(day), k) for k in parts]
            passages = np.stack(
                [np.einsum("pzn,z->pn", x.passages, field[:, k]) for x, k in zip(loads, parts, strict=True)]
            )
            when = (day + 1) * per_day + steps[:, None] - share[steps][:, parts] @ [x.elapsed_s for x in loads] / step_s
            rate[steps] = _passing(departures, passages, share[steps][:, parts], when)
        platoons = rng.gamma(DISPERSION, 1 / DISPERSION, rate.shape)
        values[day * per_day : (day + 1) * per_day] = rng.poisson(rate * platoons)
    return values


def _passing(departures: Floats, passages: Floats, share: Floats, when: Floats) -> Floats:
    """[steps,N] expected vehicles: those that departed at `when`, earlier by the travel time."""
    before = np.floor(when).astype(np.int64)
    late = when - before
    rate = np.zeros(when.shape)
    for p, leaving in enumerate(departures):
        rate += (leaving[before] * (1 - late) + leaving[before + 1] * late) * (share @ passages[:, p])
    return rate
