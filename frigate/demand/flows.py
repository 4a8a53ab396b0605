"""Link flows of a demand, by hour, as a table or GeoJSON; and select-link analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import BINS, HOUR_S, KINDS_OF_DAY
from frigate.city.network import NodeId, Road, RoadNetwork
from frigate.demand.estimate import Demand
from frigate.errors import CityError


def road_columns(demand: Demand) -> dict[str, NDArray[Any]]:
    """One row per road, kind of day and hour: source, target, kind_of_day, hour, vehicles_per_hour, spread."""
    (K, E) = demand.road_flow.shape
    network = demand.network
    per_hour = demand.road_flow * (HOUR_S / demand.step_s)
    return {
        "source": np.tile(network.node_ids[network.senders], K),
        "target": np.tile(network.node_ids[network.receivers], K),
        "kind_of_day": np.repeat(np.array(KINDS_OF_DAY), K // len(KINDS_OF_DAY) * E),
        "hour": np.repeat(np.arange(K) % 24, E),
        "vehicles_per_hour": per_hour.ravel(),
        "spread": np.tile(demand.road_spread, K),
    }


def road_features_geojson(demand: Demand) -> dict[str, Any]:
    """One line per road, with properties weekday_00 .. weekend_23 in vehicles per hour."""
    network = demand.network
    per_hour = demand.road_flow.T * (HOUR_S / demand.step_s)  # [E,K]
    names = [f"{kind}_{hour:02d}" for kind in KINDS_OF_DAY for hour in range(24)]
    ids = network.node_ids.tolist()
    lon = network.lon
    lat = network.lat
    features = [
        {
            "type": "Feature",
            "geometry": {
                "type": "LineString",
                "coordinates": [[float(lon[a]), float(lat[a])], [float(lon[b]), float(lat[b])]],
            },
            "properties": {
                "source": ids[a],
                "target": ids[b],
                "name": str(name),
                **dict(zip(names, np.round(flow, 2).tolist(), strict=True)),
                "spread": round(float(spread), 3),
            },
        }
        for a, b, name, flow, spread in zip(
            network.senders.tolist(),
            network.receivers.tolist(),
            network.edges.name,
            per_hour,
            demand.road_spread,
            strict=True,
        )
    ]
    return {"type": "FeatureCollection", "unit": "vehicles per hour", "features": features}


@dataclass(frozen=True)
class Movement:
    """The flow between one origin and destination that passes the selected road."""

    origin: tuple[NodeId, NodeId]  # end nodes of the first road
    destination: tuple[NodeId, NodeId]  # end nodes of the last road
    vehicles_per_day: float


def find_road(network: RoadNetwork, road: Road | NodeId) -> tuple[int, bool]:
    """The row of a road, and whether it is that of a node: in a city on roads, a node is a road.

    A road is named by its two end nodes, in a city on roads also by its own id. Ids may be given as text.
    """
    on_roads = len(network.lines) > 0
    if isinstance(road, tuple):
        by_ends = np.flatnonzero(network.node_ids.astype(str) == ">".join(map(str, road)))
        if on_roads and len(by_ends):
            return int(by_ends[0]), True
        ends = (network.node_ids[rows].astype(str) for rows in (network.senders, network.receivers))
        found = np.flatnonzero(np.logical_and(*(column == str(end) for column, end in zip(ends, road, strict=True))))
        if len(found) == 0:
            raise CityError(f"there is no road from {road[0]} to {road[1]}. Name its two end nodes, as 41,42")
        return int(found[0]), False
    if not on_roads:
        raise CityError(f'"{road}" is no road. Name a road by its two end nodes, as 41,42')
    return network.row_of(road), True


@dataclass(frozen=True)
class Through:
    """The trips that pass a road (select-link analysis), averaged over the route sets."""

    row: int  # of the road
    is_node: bool  # whether that is the row of a node: a road of a city on roads
    movements: tuple[Movement, ...]  # largest flow first
    road_flow: NDArray[np.float64]  # [K,E] their flow on each road, vehicles per hour, by kind of day and hour
    node_flow: NDArray[np.float64]  # [K,N] their flow at each node
    starting: NDArray[np.float64]  # [E] vehicles per day whose trip starts on each road
    ending: NDArray[np.float64]  # [E] vehicles per day whose trip ends there

    @property
    def own_flow(self) -> NDArray[np.float64]:
        """[K] vehicles per hour on the road itself."""
        return (self.node_flow if self.is_node else self.road_flow)[:, self.row]

    @property
    def vehicles_per_day(self) -> float:
        return float(self.starting.sum())

    def end_shares(self, network: RoadNetwork) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[N] the share of the trips that start at each node, and [N] of those that end there."""
        total = max(self.vehicles_per_day, 1e-12)

        def at(nodes: NDArray[np.int64], daily: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.bincount(nodes, weights=daily, minlength=network.num_nodes) / total

        return at(network.senders, self.starting), at(network.receivers, self.ending)


def trips_through(demand: Demand, road: Road | NodeId) -> Through:
    """The trips that pass a road: their origins, destinations and routes.

    Parameters
    ----------
    demand
        An estimated demand.
    road
        Source and target node of the road; in a city on roads, its id.
    """
    network = demand.network
    per_hour = HOUR_S / demand.step_s / len(demand.sets)
    row, is_node = find_road(network, road)
    E = network.num_edges
    per_day = 24 * np.repeat([5.0, 2.0], 24) / 168  # hourly flows to vehicles on an average day
    flow = np.zeros((BINS, E))
    node_flow = np.zeros((BINS, network.num_nodes))
    starting = np.zeros(E)
    ending = np.zeros(E)
    total: dict[tuple[int, int], float] = {}
    for k, trips in enumerate(demand.sets):
        passed = trips.through_node if is_node else trips.through_road
        some = np.flatnonzero(passed[:, [row]].toarray().ravel())
        vehicles = demand.trips(k)[some].astype(np.float64) * per_hour  # [trips,K]
        flow += (trips.through_road[some].T @ vehicles).T
        node_flow += (trips.through_node[some].T @ vehicles).T
        ends = trips.routes.origin[some], trips.routes.destination[some]
        daily = vehicles @ per_day
        for at, where in zip(ends, (starting, ending), strict=True):
            np.add.at(where, at, daily)
        for a, b, number in zip(ends[0].tolist(), ends[1].tolist(), daily.tolist(), strict=True):
            total[a, b] = total.get((a, b), 0.0) + number
    ids = network.node_ids[[network.senders, network.receivers]].T.tolist()  # [E] end nodes of each road
    ranked = sorted(total.items(), key=lambda item: -item[1])
    movements = tuple(Movement((*ids[a],), (*ids[b],), number) for (a, b), number in ranked if number > 0)
    return Through(row, is_node, movements, flow, node_flow, starting, ending)
