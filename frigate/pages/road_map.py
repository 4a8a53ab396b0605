"""Maps of roads: lines on a canvas, coloured and widened by a value, drawn by `templates/road_map.js`.

Numbers are typed arrays in base64, so that 65,000 roads with 48 values each make a page of about ten megabytes. All
maps of a page share the road lines, the view and the road under the pointer.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.pages.maps import bin_edges, colour_of
from frigate.roads.geometry import Projection, road_lines

Floats = NDArray[np.floating]

BEND_M = 1.5  # tolerance when simplifying road lines
CODES = 32767  # largest code of a value
WIDTHS = (0.7, 1.0, 1.4, 2.0, 2.8, 3.8, 5.2)  # pixels, by colour from low to high


def encoded(array: NDArray[np.generic]) -> str:
    """The bytes of an array in base64, little-endian."""
    return base64.b64encode(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()).decode()


def encoded_values(values: Floats) -> dict[str, Any]:
    """Values as 16-bit codes c, value = top * c * |c| / CODES²: within 0.3 % down to 1/10,000 of the largest."""
    top = float(np.abs(values).max(initial=0)) or 1.0
    code = np.sign(values) * np.sqrt(np.abs(values) / top) * CODES
    return {"top": top, "codes": encoded(np.round(code).astype(np.int16))}


def road_lines_data(network: RoadNetwork) -> dict[str, Any]:
    """Data that all maps of a page share: each road's line in metres east and south, name and ends."""
    lines, _ = road_lines(network, network.edges)
    points = np.concatenate([*lines, np.zeros((0, 2))])
    road = np.repeat(np.arange(len(lines)), [len(line) for line in lines])
    x, y = Projection.of(network).metres(*points.T)
    plain = shapely.simplify(shapely.linestrings(x, y, indices=road), BEND_M) if len(lines) else np.zeros(0, object)
    xy, road = shapely.get_coordinates(plain, return_index=True)
    names, name = np.unique(network.edges.name.astype(str), return_inverse=True)
    key, back = (np.stack(ends, 1) @ [network.num_nodes, 1] for ends in _both_ways(network))
    return {
        "points": encoded((xy * [1, -1]).astype(np.float32)),
        "start": encoded(np.searchsorted(road, np.arange(network.num_edges + 1)).astype(np.uint32)),
        "ends": encoded(np.stack([network.senders, network.receivers], 1).astype(np.uint32)),
        "two_way": encoded(np.isin(key, back).astype(np.uint8)),
        "name": encoded(name.astype(np.uint32)),
        "names": names.tolist(),
        "ids": [str(node) for node in network.node_ids.tolist()],
    }


def _both_ways(network: RoadNetwork) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]:
    return (network.senders, network.receivers), (network.receivers, network.senders)


@dataclass(frozen=True)
class RoadLayer:
    """A value for every road and hour of each kind of day. K = 24 x the number of kinds."""

    name: str
    values: Floats  # [K,E]
    unit: str
    edges: tuple[float, ...]  # boundaries between colours

    @classmethod
    def of_flow(cls, name: str, values: Floats, unit: str) -> RoadLayer:
        """A layer of flows; the busiest hour sets the classes."""
        busiest = np.asarray(values, np.float64).max(axis=0)
        return cls(name, values, unit, tuple(bin_edges(busiest, skewed=True)))

    @property
    def any_zero(self) -> bool:
        """Whether some road has no vehicles, and is drawn without a colour."""
        return bool((self.values == 0).any())

    @property
    def classes(self) -> list[dict[str, Any]]:
        """Colour, width and text of each class, for the key and the lines."""
        ends = [f"{edge:g}".replace("-", "−") for edge in self.edges]
        between = [f"{low} to {high}" for low, high in pairwise(ends)]
        texts = [f"below {ends[0]}", *between, f"{ends[-1]} or more"] if ends else ["all"]
        colours = [colour_of(k, len(self.edges)) for k in range(len(texts))]
        return [{"colour": c, "width": WIDTHS[c], "text": text} for c, text in zip(colours, texts, strict=True)]


@dataclass(frozen=True)
class Symbols:
    """Symbols with areas proportional to a number."""

    shape: str  # round or diamond
    text: str  # for the key
    at: NDArray[np.int64]  # [P] rows of the roads at whose midpoints they are drawn
    size: Floats  # [P]


@dataclass(frozen=True)
class SensorFit:
    """Counts and estimates at the sensors, in the unit of the layers."""

    nodes: NDArray[np.int64]  # [V]
    measured: Floats  # [K,V]
    estimated: Floats  # [K,V]


@dataclass(frozen=True)
class RoadMap:
    """A map with one or more layers to choose from."""

    title: str
    network: RoadNetwork
    layers: tuple[RoadLayer, ...]
    kinds: tuple[str, ...]  # kinds of day, each with 24 hours
    hour: int = 17  # shown first
    spread: Floats | None = None  # [E] standard deviation of the logarithm of the values
    sensors: SensorFit | None = None
    marked: tuple[int, ...] = ()  # rows of highlighted roads
    mark: str = ""  # their text in the key
    symbols: tuple[Symbols, ...] = ()

    @property
    def data(self) -> dict[str, Any]:
        """For road_map.js."""
        fit = self.sensors
        x, y = Projection.of(self.network).metres(self.network.lon, self.network.lat)
        return {
            "layers": [
                {
                    "unit": layer.unit,
                    "edges": layer.edges,
                    "classes": layer.classes,
                    "values": encoded_values(layer.values),
                }
                for layer in self.layers
            ],
            "kinds": self.kinds,
            "hour": self.hour,
            "spread": None if self.spread is None else encoded_values(self.spread),
            "sensors": None
            if fit is None
            else {
                "node": encoded(fit.nodes.astype(np.uint32)),
                "x": encoded(x[fit.nodes].astype(np.float32)),
                "y": encoded(-y[fit.nodes].astype(np.float32)),
                "measured": encoded_values(fit.measured),
                "estimated": encoded_values(fit.estimated),
            },
            "marked": self.marked,
            "symbols": [
                {"shape": s.shape, "road": encoded(s.at.astype(np.uint32)), "size": encoded_values(s.size)}
                for s in self.symbols
            ],
        }


def named_road(network: RoadNetwork, row: int) -> str:
    """A road for display: its name, if any, and its two ends."""
    ends = f"{network.node_ids[network.senders[row]]} → {network.node_ids[network.receivers[row]]}"
    name = str(network.edges.name[row])
    return f"{name}, {ends}" if name else ends
