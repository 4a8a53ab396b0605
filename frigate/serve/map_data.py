"""What the map shows, as arrays: the roads of a city, sent once, and the flow on every road from that at every node."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import RoadNetwork
from frigate.data.stream import RoadNetworkStream
from frigate.demand.estimate import Demand, bins_at
from frigate.serve.wire import encode
from frigate.sources.geometry import road_lines

Floats = NDArray[np.float32]

LITTLE_FLOW = 0.05  # of the mean flow, added to both flows: a node that nobody passes does not change a hundredfold
MAX_FACTOR = 4.0  # by which the forecast of its ends moves a road from its usual flow, up or down


def network_container(
    network: RoadNetwork,
    stream: RoadNetworkStream,
    sensors: NDArray[np.bool_],
    *,
    name: str,
    horizon: int,
    has_demand: bool,
    **more: Any,
) -> bytes:
    """The geometry that the page needs, as a container (see `frigate.serve.wire`).

    Parameters
    ----------
    network
        With every road that can carry traffic, those included that are closed for now.
    stream
        For the quantity, its unit, the length of a step and the time zone.
    sensors
        [N] nodes whose readings are used.
    name
        Of the city.
    horizon
        Steps of a forecast.
    has_demand
        Whether trips through a road can be asked for.
    more
        Goes into the header as it is.
    """
    lines, _ = road_lines(network, network.edges)
    names, street = np.unique(np.append(network.edges.name.astype(str), ""), return_inverse=True)  # "" comes first
    arrays: dict[str, NDArray[Any]] = {
        "lon": network.lon.astype(np.float64),
        "lat": network.lat.astype(np.float64),
        "sensor": sensors.astype(np.uint8),
        "source": network.senders.astype(np.uint32),
        "target": network.receivers.astype(np.uint32),
        "street": street[:-1].astype(np.uint32),
        "line_start": np.cumsum([0, *(len(line) for line in lines)]).astype(np.uint32),
        "line_lonlat": np.concatenate([*lines, np.zeros((0, 2))]),
    }
    meta = {
        "name": name,
        "quantity": stream.quantity,
        "unit": stream.unit,
        "timezone": stream.timezone,
        "step_seconds": stream.step_s,
        "horizon": horizon,
        "node_ids": network.node_ids.tolist(),
        "street_names": names.tolist(),
        "has_demand": has_demand,
        **more,
    }
    version = hashlib.sha256(encode(meta, arrays)).hexdigest()[:12]
    return encode({"version": version, **meta}, arrays)


def road_flows(
    values: NDArray[np.floating],
    network: RoadNetwork,
    *,
    demand: Demand | None = None,
    local_s: NDArray[np.int64] | None = None,
    node_change: Floats | None = None,
    road_change: Floats | None = None,
) -> Floats:
    """[T,E] the flow on every road from the values [T,N] of every node.

    With demand it is the usual flow of the road at that hour, moved as its two ends are moved from theirs. Without, it
    is the mean of the two ends.

    Parameters
    ----------
    values
        In the unit of the readings; NaN where not known.
    network
        The one that the demand was estimated on.
    demand
        Of a city of counts.
    local_s
        [T] local times in seconds since 1970, with demand.
    node_change, road_change
        [N] and [E] of `frigate.demand.rerouting.Rerouted`, where roads are closed.
    """
    ends = network.senders, network.receivers
    if demand is None or local_s is None:
        flows = (values[:, ends[0]] + values[:, ends[1]]) / 2
        return flows.astype(np.float32)
    bins = bins_at(local_s)
    usual = demand.node_flow[bins] * (1 if node_change is None else node_change)
    little = max(LITTLE_FLOW * float(demand.node_flow.mean()), 1e-6)
    factor = np.clip((values + little) / (usual + little), 1 / MAX_FACTOR, MAX_FACTOR)
    road = demand.road_flow[bins] * (1 if road_change is None else road_change)
    moved: Floats = (road * np.sqrt(factor[:, ends[0]] * factor[:, ends[1]])).astype(np.float32)
    return moved
