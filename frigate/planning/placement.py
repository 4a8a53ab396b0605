"""Where the next sensors are worth most: `place`, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.network import NodeId, RoadNetwork
from frigate.demand.levels import Places, places_of
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_cache import cached_trips
from frigate.demand.trip_model import estimate_demand
from frigate.draws import keys_of
from frigate.errors import CityError, SettingsError
from frigate.notebook import card, sketch
from frigate.planning.greedy import Step, choose, expected_error, give_up
from frigate.planning.portable import CountDays, count_days
from frigate.planning.reasons import removal_reason, site_reason
from frigate.planning.sites import NO_ROWS, Names, Sites, find_sites
from frigate.planning.uncertainty import Floats, Knowledge, Rows, Traffic, Uncertainty
from frigate.progress import Progress
from frigate.roads.feature_cache import features_of
from frigate.roads.nearest_sensors import hops_to
from frigate.text import percent

WEIGHTS = ("traffic", "vehicle-km", "even")
PINNED = 3  # places that a site tells most of
SENSOR_ERROR = 1e-4  # variance of the logarithm of a lasting sensor's mean count
MAX_TARGETS = 4_000  # places that the error is summed over; in a larger city, a sample of them
MAX_CANDIDATES = 4_000  # those with the largest expected error of their own
MAX_SENSORS = 3_000  # present ones that are read
TOP_PERCENT = 99


@dataclass(frozen=True)
class Pinned:
    """A place of which a count at a site tells."""

    node: NodeId
    row: int
    street: str
    narrowed: float  # share of this place's own error that the count takes away


@dataclass(frozen=True)
class Site:
    """A place to count at."""

    node: NodeId
    row: int
    street: str  # "" if it has no name
    lon: float
    lat: float
    cost: float
    gain: float  # share of the present error over the network that its count takes away, at its turn
    error_left: float  # share of the present error that is left after it
    vehicles_per_day: float | None  # that pass, as far as is known; None: nothing is counted in this city
    busier_than: float  # share of all places
    unseen: float  # share of its vehicles that pass no sensor, present or chosen before
    hops: int  # roads to the nearest sensor, present or chosen before; -1: there is none
    forced: bool
    pins: tuple[Pinned, ...]
    reason: str


@dataclass(frozen=True)
class Redundant:
    """A sensor that would be missed little."""

    node: NodeId
    row: int
    street: str
    loss: float  # share by which the expected error over the network grows, once those before it are gone too
    elsewhere: float  # share of its vehicles that pass another sensor that stays
    reason: str


@dataclass(frozen=True)
class Placement:
    """Where to count next."""

    city: str
    network: RoadNetwork
    weight: str
    budget: float
    in_money: bool
    candidates: int
    sensors: NDArray[np.bool_]  # [N] present ones
    sites: tuple[Site, ...]  # best first
    redundant: tuple[Redundant, ...]  # least missed first
    error: Floats  # [N] standard deviation of the logarithm of the level at present; NaN where not looked at
    error_after: Floats  # [N] with all sites
    days: CountDays | None  # of a portable counter; None: sensors that stay
    notices: tuple[str, ...]

    @property
    def curve(self) -> tuple[float, ...]:
        """Share of the present error that is left with 0, 1, 2, ... of the sites."""
        return (1.0, *(site.error_left for site in self.sites))

    def __repr__(self) -> str:
        return f"<Placement: {', '.join(f'{name} {fact}' for name, fact in self._facts().items())}>"

    def _repr_html_(self) -> str:
        network = self.network
        chosen = np.zeros(network.num_nodes, bool)
        chosen[[site.row for site in self.sites]] = True
        return card(
            "Placement", self._facts(), sketch(network.lon, network.lat, network.senders, network.receivers, chosen)
        )

    def _facts(self) -> dict[str, str]:
        return {
            "city": self.city,
            "sensors": f"{int(self.sensors.sum()):,}",
            "sites": f"{len(self.sites):,} of {self.candidates:,} candidates",
            "expected error left": percent(self.curve[-1]),
        }

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON, without the errors of every place."""
        days = None if self.days is None else vars(self.days) | {"weekdays": list(self.days.weekdays)}
        return {
            "city": self.city,
            "weight": self.weight,
            "budget": self.budget,
            "in_money": self.in_money,
            "candidates": self.candidates,
            "sensors": int(self.sensors.sum()),
            "portable": days,
            "sites": [vars(site) | {"pins": [vars(pinned) for pinned in site.pins]} for site in self.sites],
            "curve": list(self.curve),
            "redundant": [vars(sensor) for sensor in self.redundant],
            "notices": list(self.notices),
        }


def place(
    city: City,
    *,
    budget: float | None = None,
    weight: str = "traffic",
    candidates: Names | None = None,
    force: Names = (),
    forbid: Names = (),
    costs: Mapping[NodeId, float] | None = None,
    targets: Names | None = None,
    days: int | None = None,
    remove: int = 0,
    settings: DemandSettings | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Placement:
    """Where the next sensors lower the expected error over the network most, and which present ones are missed least.

    Parameters
    ----------
    city : City
        Must measure counts, or have no readings at all: then the map alone decides. Nodes with a reading are its
        sensors.
    budget : float, optional
        How many sites; with `costs`, how much money. Default: none, with `remove`.
    weight : "traffic", "vehicle-km" or "even"
        What an error counts: as many vehicles as are missed, times the length of the road, or the same everywhere.
    candidates : node ids, optional
        Default: every node with a road and without a sensor.
    force : node ids
        Sites that are chosen first; they take their part of the budget.
    forbid : node ids or names of streets
        Sites that are never chosen.
    costs : mapping, optional
        Node id to cost. Nodes without one are no candidates.
    targets : node ids, optional
        The places whose error counts. Default: all.
    days : int, optional
        Count with portable counters for so many days at each site. Default: sensors that stay.
    remove : int
        How many of the present sensors to name that would be missed least.
    settings : DemandSettings, optional
        How demand is estimated. Default: as in `fg.estimate_demand`; without readings, the usual settings.
    seed : int
        Of the sampled trips.
    progress : callable, optional
        Called with what is spent, the budget and "".

    Returns
    -------
    Placement

    Examples
    --------
    >>> found = fg.place(city, budget=20)
    >>> [site.reason for site in found.sites[:3]]
    """
    _check(city, budget, weight, days, remove)
    network = city.stream.usual_network()
    sensors = city.stream.sensors & network.present
    sites = Sites(NO_ROWS, NO_ROWS, np.ones(network.num_nodes), 0.0)
    if budget is not None:
        sites = find_sites(
            network, sensors, budget=budget, candidates=candidates, force=force, forbid=forbid, costs=costs
        )
    if remove > sensors.sum():
        raise SettingsError(f"remove {remove}: the city has {int(sensors.sum()):,} sensors. Give fewer")
    aims = network.present.copy()
    if targets is not None:
        aims[:] = False
        aims[network.rows_of([targets] if isinstance(targets, str | int) else targets)] = True
    traffic, places = _known_traffic(city, network, sensors, settings, seed)
    survey = _survey(network, traffic, places, sensors, sites, aims, weight)
    portable = None if days is None else count_days(city.stream, days)
    error = SENSOR_ERROR if portable is None else portable.spread**2
    steps, after = choose(
        survey.now,
        survey.weights,
        survey.candidates,
        budget=sites.budget,
        costs=survey.costs,
        forced=survey.forced,
        error=error,
        progress=progress,
    )
    redundant = _redundant(network, traffic, survey, remove) if remove else ()
    return Placement(
        city=city.name,
        network=network,
        weight=weight,
        budget=float(budget or 0),
        in_money=sites.in_money,
        candidates=len(sites.candidates),
        sensors=sensors,
        sites=tuple(_sites(network, traffic, sensors, survey, steps, sites.costs)),
        redundant=redundant,
        error=survey.at_nodes(survey.now, network.num_nodes),
        error_after=survey.at_nodes(after, network.num_nodes),
        days=portable,
        notices=survey.notices + (() if traffic.per_day else (NO_COUNTS,)),
    )


NO_COUNTS = (
    "this city has no readings: the trips that its map suggests stand for its traffic, so there are shares, no vehicles"
)


def _check(city: City, budget: float | None, weight: str, days: int | None, remove: int) -> None:
    if budget is None and not remove:
        raise SettingsError("give a budget of sites, or a number of sensors to remove")
    if weight not in WEIGHTS:
        raise SettingsError(f'weight "{weight}": choose one of {", ".join(WEIGHTS)}')
    if days is not None and not 1 <= days <= 366:
        raise SettingsError(f"days {days}: give from 1 to 366")
    if remove < 0:
        raise SettingsError(f"remove {remove}: give at least 1")
    if city.stream.quantity != "count":
        raise CityError(
            f'{city.name} measures "{city.stream.quantity}". Where to count next is decided by trips, '
            "which need counts or no readings at all"
        )


def _known_traffic(
    city: City, network: RoadNetwork, sensors: NDArray[np.bool_], settings: DemandSettings | None, seed: int
) -> tuple[Traffic, Places]:
    """The traffic according to the sensors, or to the map if there are none; and what the map says of each node."""
    places = places_of(network, features_of([network.map], city)[0])
    if sensors.any():
        return Traffic.of_demand(estimate_demand(city, sensors, settings=settings, seed=seed)), places
    _, sets = cached_trips(
        network, settings or DemandSettings(), forbidden_turns=city.forbidden_turns, seed=seed, folder=city.folder
    )
    return Traffic.of_map(sets), places


@dataclass(frozen=True)
class _Survey:
    """The points that are looked at: targets, candidates and sensors."""

    points: Rows  # [P] rows of nodes
    site: Rows  # [C] point of each site: candidates first, then sensors
    before: Knowledge  # without any sensor
    now: Knowledge  # with the present sensors
    weights: Floats  # [P]
    costs: Floats  # [C]
    candidates: Rows  # sites
    forced: Rows  # sites
    sensors: Rows  # sites
    notices: tuple[str, ...]

    def node_of(self, site: int) -> int:
        return int(self.points[self.site[site]])

    def at_nodes(self, knowledge: Knowledge, num_nodes: int) -> Floats:
        """[N] the standard deviations; NaN where not looked at."""
        every = np.full(num_nodes, np.nan)
        every[self.points] = np.sqrt(knowledge.variance)
        return every


def _survey(
    network: RoadNetwork,
    traffic: Traffic,
    places: Places,
    sensors: NDArray[np.bool_],
    sites: Sites,
    aims: NDArray[np.bool_],
    weight: str,
) -> _Survey:
    uncertainty = Uncertainty.of(traffic, places)
    weights = np.where(aims, traffic.weights(weight, network), 0)
    keys = keys_of(network.node_ids)
    notices = []

    def some(rows: Rows, most: int, what: str) -> Rows:
        if len(rows) <= most:
            return rows
        notices.append(f"{len(rows):,} {what}: a sample of {most:,} of them is looked at")
        return np.sort(rows[np.argsort(keys[rows], kind="stable")[:most]])

    targets = some(np.flatnonzero(weights > 0), MAX_TARGETS, "places to estimate")
    read = some(np.flatnonzero(sensors), MAX_SENSORS, "sensors")
    free = np.setdiff1d(sites.candidates, sites.forced)
    if len(free) > MAX_CANDIDATES:
        notices.append(f"{len(free):,} candidates: the {MAX_CANDIDATES:,} whose own traffic counts most are compared")
        free = np.sort(free[np.argsort(-weights[free], kind="stable")[:MAX_CANDIDATES]])
    candidates = np.union1d(free, sites.forced).astype(np.int64)
    points = np.unique(np.concatenate([targets, candidates, read]))
    at = np.searchsorted(points, np.concatenate([candidates, read]))
    before = Knowledge.none(uncertainty, points, at)
    sensor_sites = np.arange(len(candidates), len(at))
    sampled = np.zeros(len(points))
    sampled[np.searchsorted(points, targets)] = weights[targets]
    return _Survey(
        points=points,
        site=at,
        before=before,
        now=before.after_all(sensor_sites, SENSOR_ERROR),
        weights=sampled,
        costs=np.concatenate([sites.costs[candidates], np.ones(len(read))]),
        candidates=np.arange(len(candidates)),
        forced=np.searchsorted(candidates, sites.forced),
        sensors=sensor_sites,
        notices=tuple(notices),
    )


def _sites(
    network: RoadNetwork,
    traffic: Traffic,
    sensors: NDArray[np.bool_],
    survey: _Survey,
    steps: list[Step],
    costs: Floats,
) -> list[Site]:
    whole = expected_error(survey.now, survey.weights)
    own = survey.weights * np.sqrt(survey.now.variance)
    rank = np.searchsorted(np.sort(traffic.levels[network.present]), traffic.levels) / max(
        int(network.present.sum()), 1
    )
    seen = sensors.copy()
    forced = set(survey.forced.tolist())
    found = []
    for step in steps:
        row = survey.node_of(step.site)
        site = Site(
            node=network.node_ids[row].item(),
            row=row,
            street=str(network.streets[row]),
            lon=float(network.lon[row]),
            lat=float(network.lat[row]),
            cost=float(costs[row]),
            gain=step.gain / whole,
            error_left=step.error / whole,
            vehicles_per_day=None if traffic.per_day is None else float(traffic.levels[row] * traffic.per_day),
            busier_than=float(min(rank[row], TOP_PERCENT / 100)),
            unseen=float(traffic.unseen_share(seen, np.array([row]))[0]),
            hops=int(hops_to(network, seen)[row]),
            forced=step.site in forced,
            pins=_pins(network, survey, step, own, row),
            reason="",
        )
        found.append(replace(site, reason=site_reason(site)))
        seen[row] = True
    return found


def _pins(network: RoadNetwork, survey: _Survey, step: Step, own: Floats, row: int) -> tuple[Pinned, ...]:
    """The other places whose error falls most."""
    best = [point for point in np.argsort(-step.lowered, kind="stable")[: PINNED + 1] if survey.points[point] != row]
    return tuple(
        Pinned(
            network.node_ids[survey.points[point]].item(),
            int(survey.points[point]),
            str(network.streets[survey.points[point]]),
            float(step.lowered[point] / own[point]),
        )
        for point in best[:PINNED]
        if step.lowered[point] > 0
    )


def _redundant(network: RoadNetwork, traffic: Traffic, survey: _Survey, count: int) -> tuple[Redundant, ...]:
    whole = expected_error(survey.now, survey.weights)
    rows = survey.points[survey.site[survey.sensors]]
    removals = give_up(survey.before, survey.weights, survey.sensors, count=min(count, len(rows)), error=SENSOR_ERROR)
    kept = np.zeros(network.num_nodes, bool)
    kept[rows] = True
    found = []
    for removal in removals:
        row = int(rows[removal.sensor])
        kept[row] = False
        elsewhere = 1 - float(traffic.unseen_share(kept, np.array([row]))[0])
        hops = int(hops_to(network, kept)[row])
        loss = removal.loss / whole
        found.append(
            Redundant(
                network.node_ids[row].item(),
                row,
                str(network.streets[row]),
                loss,
                elsewhere,
                removal_reason(loss=loss, elsewhere=elsewhere, hops=hops),
            )
        )
    return tuple(found)
