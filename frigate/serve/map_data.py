"""Arrays for the map: the road network, sent once, and road flows computed from node values."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.data.detectors import Detectors
from frigate.data.network import RoadNetwork
from frigate.data.stream import RoadNetworkStream, calendar
from frigate.demand.estimate import Demand
from frigate.demand.flows import HOUR_S
from frigate.demand.rerouting import Rerouted
from frigate.nn.clock import between_bins
from frigate.serve.wire import encode
from frigate.sources.geometry import read_line, road_lines

Floats = NDArray[np.float32]

LITTLE_FLOW = 0.05  # share of the mean flow added to both flows, so that nearly empty nodes do not change a hundredfold
MAX_CHANGE = 8.0  # largest factor between a road's usual flow and its forecast, up or down


def network_container(
    network: RoadNetwork,
    stream: RoadNetworkStream,
    sensors: NDArray[np.bool_],
    *,
    name: str,
    horizon: int,
    has_demand: bool,
    detectors: Detectors | None = None,
    **more: Any,
) -> bytes:
    """The network for the page, as a binary container (see `frigate.serve.wire`).

    Parameters
    ----------
    network
        All roads, including those closed at the moment.
    stream
        Gives the quantity, unit, step and time zone.
    sensors
        [N] nodes whose readings are used.
    name
        Name of the city.
    horizon
        Steps of a forecast.
    has_demand
        Whether trips on a road can be requested.
    detectors
        Their names, shown to users.
    more
        Further header fields.
    """
    lines, _ = road_lines(network, network.edges)
    names, street = np.unique(np.append(network.edges.name.astype(str), ""), return_inverse=True)  # "" sorts first
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
    if len(network.lines):  # a city on roads: its nodes are lines
        places = np.stack([network.lon, network.lat], axis=1)
        shapes = [read_line(line) if line else places[[n]] for n, line in enumerate(network.lines.tolist())]
        arrays["node_line_start"] = np.cumsum([0, *(len(shape) for shape in shapes)]).astype(np.uint32)
        arrays["node_line_lonlat"] = np.concatenate([*shapes, np.zeros((0, 2))])
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
    if detectors is not None:
        texts = detector_texts(*detectors.at_nodes(network.node_ids, network.node_ids))
        meta |= {"detectors": list(texts)} if any(texts) else {}
    version = hashlib.sha256(encode(meta, arrays)).hexdigest()[:12]
    return encode({"version": version, **meta}, arrays)


def detector_texts(names: NDArray[np.str_], moved_m: NDArray[np.float64]) -> tuple[str, ...]:
    """[N] the detectors at each node and how far the farthest was moved there; "" if none."""
    return tuple(
        f"{name}, moved {metres:.0f} m" if name and math.isfinite(metres) else name
        for name, metres in zip(names.tolist(), moved_m.tolist(), strict=True)
    )


def closed_roads(usual: RoadNetwork, now: RoadNetwork) -> NDArray[np.bool_]:
    """[E] usual roads that another network of the same nodes lacks."""
    usual_keys, keys_now = (network.senders * usual.num_nodes + network.receivers for network in (usual, now))
    return ~np.isin(usual_keys, keys_now)


def road_flows(
    values: NDArray[np.floating],
    network: RoadNetwork,
    *,
    closed: NDArray[np.bool_] | None = None,
    demand: Demand | None = None,
    rerouted: Rerouted | None = None,
    local_s: NDArray[np.int64] | None = None,
    step_s: int = HOUR_S,
) -> Floats:
    """[S,E] the flow on every road from the values [S,N] of the nodes.

    With demand: the usual flow of the road, after detours, scaled by how far its two ends deviate from usual, and at
    most the flow at either end. Without demand: the mean of the two ends.

    Parameters
    ----------
    values
        In the unit of the readings; NaN where unknown.
    network
        The usual roads, for which the demand was estimated.
    closed
        [E] roads without flow.
    demand
        Estimated demand; needs a city of counts.
    rerouted
        How the closures change the demand.
    local_s
        [S] local times in seconds since 1970; required with demand.
    step_s
        Length of a snapshot in seconds; used with demand.
    """
    ends = values[:, network.senders], values[:, network.receivers]
    if demand is None or local_s is None:
        flow = (ends[0] + ends[1]) / 2
    else:
        first, second, share = (each.numpy() for each in between_bins(torch.from_numpy(calendar(local_s)), step_s))

        def at(table: Floats) -> Floats:
            between: Floats = table[first] + (table[second] - table[first]) * share[:, None]
            return between

        expected = at(demand.node_flow) * (1 if rerouted is None else rerouted.node_change)
        little = LITTLE_FLOW * max(float(demand.node_flow.mean()), 1e-3)
        change = np.clip((values + little) / (expected + little), 1 / MAX_CHANGE, MAX_CHANGE)
        moved = (change[:, network.senders] + change[:, network.receivers]) / 2
        usual = at(demand.road_flow) * (1 if rerouted is None else rerouted.road_change)
        flow = np.minimum(usual * moved, np.minimum(*ends))
    flow = flow if closed is None else np.where(closed, 0, flow)
    return np.asarray(flow, np.float32)
