"""The road network as the map page gets it: sent once, as a binary container."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.detectors import Detectors
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.pages.wire import encode
from frigate.roads.geometry import read_line, road_lines


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
    """The network for the page, as a binary container (see `frigate.pages.wire`).

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
    }
    if detectors is not None:
        texts = detector_texts(*detectors.at_nodes(network.node_ids, network.node_ids))
        meta |= {"detectors": list(texts)} if any(texts) else {}
    return encode({**meta, **more}, arrays)


def road_text(network: RoadNetwork, row: int) -> str:
    """A road for display: its name, if any, and its two ends."""
    ends = f"{network.node_ids[network.senders[row]]} → {network.node_ids[network.receivers[row]]}"
    name = str(network.edges.name[row])
    return f"{name}, {ends}" if name else ends


def detector_texts(names: NDArray[np.str_], moved_m: NDArray[np.float64]) -> tuple[str, ...]:
    """[N] the detectors at each node and how far the farthest was moved there; "" if none."""
    return tuple(
        f"{name}, moved {metres:.0f} m" if name and math.isfinite(metres) else name
        for name, metres in zip(names.tolist(), moved_m.tolist(), strict=True)
    )
