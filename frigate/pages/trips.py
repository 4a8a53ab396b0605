"""The trips through one road, as the page shows them: `Trips` in page/src/service.ts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import NodeId, RoadNetwork
from frigate.demand.flows import Through

LISTED = 10  # movements


def trips_meta(through: Through, network: RoadNetwork, *, hour: int, ends: int | None = None) -> dict[str, Any]:
    """Where the trips start and end, and the largest movements.

    Parameters
    ----------
    through
        The trips.
    network
        Their network.
    hour
        Kind of day and hour (`frigate.calendar.hourly_bins`) of the vehicles per hour.
    ends
        At most so many origins, and destinations. Default: all.
    """
    origins, destinations = through.end_shares(network)
    return {
        "vehicles_per_hour": round(float(through.own_flow[hour]), 2),
        "vehicles_per_day": round(through.vehicles_per_day, 1),
        "from": _ends(origins, network, ends),
        "to": _ends(destinations, network, ends),
        "movements": [
            {
                "origin": _road(movement.origin),
                "destination": _road(movement.destination),
                "vehicles_per_day": round(movement.vehicles_per_day, 2),
            }
            for movement in through.movements[:LISTED]
        ],
        "movements_in_all": len(through.movements),
    }


def _ends(share: NDArray[np.float64], network: RoadNetwork, most: int | None) -> list[dict[str, Any]]:
    """The nodes with a share of the trips, largest first."""
    return [
        {
            "node": str(network.node_ids[row]),
            "lon": float(network.lon[row]),
            "lat": float(network.lat[row]),
            "share": round(float(share[row]), 5),
        }
        for row in np.argsort(-share, kind="stable")[:most].tolist()
        if share[row] > 0
    ]


def _road(ends: tuple[NodeId, NodeId]) -> dict[str, str]:
    source, target = ends
    return {"source": str(source), "target": str(target)}
