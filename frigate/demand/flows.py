"""What a demand says of roads: their flow by hour for a map or a table, and the trips that pass one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import NodeId, RoadNetwork
from frigate.demand.estimate import KINDS_OF_DAY, Demand
from frigate.errors import CityError

HOUR_S = 3600


def road_columns(demand: Demand, network: RoadNetwork, *, step_s: int) -> dict[str, NDArray[Any]]:
    """A row for each road, kind of day and hour: source, target, kind_of_day, hour, vehicles_per_hour, spread."""
    K, E = demand.road_flow.shape
    per_hour = demand.road_flow * (HOUR_S / step_s)
    return {
        "source": np.tile(network.node_ids[network.senders], K),
        "target": np.tile(network.node_ids[network.receivers], K),
        "kind_of_day": np.repeat(np.array(KINDS_OF_DAY), K // len(KINDS_OF_DAY) * E),
        "hour": np.repeat(np.arange(K) % 24, E),
        "vehicles_per_hour": per_hour.ravel(),
        "spread": np.tile(demand.road_spread, K),
    }


def road_features_geojson(demand: Demand, network: RoadNetwork, *, step_s: int) -> dict[str, Any]:
    """A line for each road, with properties weekday_00 .. weekend_23 in vehicles an hour."""
    per_hour = demand.road_flow.T * (HOUR_S / step_s)  # [E,K]
    names = [f"{kind}_{hour:02d}" for kind in KINDS_OF_DAY for hour in range(24)]
    ids, lon, lat = network.node_ids.tolist(), network.lon, network.lat
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
            network.senders.tolist(), network.receivers.tolist(), network.edges.name, per_hour, demand.road_spread,
            strict=True,
        )
    ]  # fmt: skip
    return {"type": "FeatureCollection", "unit": "vehicles per hour", "features": features}


@dataclass(frozen=True)
class Movement:
    """Vehicles that go from one road to another and pass a third on their way."""

    origin: tuple[NodeId, NodeId]  # ends of the first road
    destination: tuple[NodeId, NodeId]  # ends of the last road
    vehicles_per_day: float


def find_road(network: RoadNetwork, road: tuple[NodeId, NodeId]) -> int:
    """The row of the road between two nodes, which may be given as text."""
    ends = (network.node_ids[rows].astype(str) for rows in (network.senders, network.receivers))
    found = np.flatnonzero(np.logical_and(*(column == str(end) for column, end in zip(ends, road, strict=True))))
    if len(found) == 0:
        raise CityError(f"there is no road from {road[0]} to {road[1]}. Name its two end nodes, as 41,42")
    return int(found[0])


def trips_through(
    demand: Demand, network: RoadNetwork, road: tuple[NodeId, NodeId], *, step_s: int
) -> tuple[Movement, ...]:
    """The trips that pass a road, most vehicles first: planners call it select-link analysis.

    Parameters
    ----------
    demand, network
        A demand and the network that it was estimated on.
    road
        Its two end nodes.
    step_s
        Seconds of a snapshot.
    """
    row = find_road(network, road)
    ends = network.node_ids[network.senders], network.node_ids[network.receivers]
    per_day = 24 * HOUR_S / step_s * np.repeat([5.0, 2.0], 24) / 168  # of a mean day of the week
    total: dict[tuple[int, int], float] = {}
    for origin, destination, vehicles in _passing(demand, row, per_day):
        total[origin, destination] = total.get((origin, destination), 0.0) + vehicles / len(demand.sets)
    ranked = sorted(total.items(), key=lambda item: -item[1])

    def named(row: int) -> tuple[NodeId, NodeId]:
        return ends[0][row].item(), ends[1][row].item()

    return tuple(Movement(named(a), named(b), vehicles) for (a, b), vehicles in ranked if vehicles > 0)


def _passing(demand: Demand, road: int, per_day: NDArray[np.float64]) -> Iterator[tuple[int, int, float]]:
    for k, trips in enumerate(demand.sets):
        rows = np.flatnonzero(trips.through_road[:, [road]].toarray().ravel())
        vehicles = demand.trips(k)[rows] @ per_day
        routes = trips.routes
        yield from zip(routes.origin[rows].tolist(), routes.destination[rows].tolist(), vehicles.tolist(), strict=True)
