"""SVG maps: the roads, a dot for each intersection, a square for each sensor, coloured by value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.pages.svg import Drawing, round_step
from frigate.roads.features import class_levels
from frigate.roads.geometry import NotALineError, read_line

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAP_W = 1000.0  # width of a map's view box; the height follows from the city's shape
BINS = 7  # colours of a map, as many as in style.css


@dataclass(frozen=True)
class BaseMap:
    """The map below the nodes: projection (north up, to scale), roads and scale bar."""

    lon0: float
    lat0: float
    squeeze: float  # length of a degree of longitude relative to one of latitude
    scale: float  # view box units per degree of latitude
    height: float
    network: RoadNetwork

    @classmethod
    def of(cls, network: RoadNetwork) -> BaseMap:
        present = network.present if network.present.any() else np.ones(network.num_nodes, bool)
        lon = network.lon[present]
        lat = network.lat[present]
        squeeze = max(0.01, math.cos(math.radians(float(lat.mean()))))
        wide = float(np.ptp(lon)) * squeeze
        high = float(np.ptp(lat))
        room = MAP_W * 0.94
        scale = min(room / max(wide, 1e-6), 1.1 * room / max(high, 1e-6))
        height = high * scale + 0.06 * MAP_W + 40
        middle = float(lon.min() + lon.max()) / 2
        return cls(middle, float(lat.max()), squeeze, scale, height, network)

    def xy(self, lon: Floats, lat: Floats) -> tuple[list[float], list[float]]:
        x = MAP_W / 2 + (np.asarray(lon) - self.lon0) * self.squeeze * self.scale
        y = 0.03 * MAP_W + (self.lat0 - np.asarray(lat)) * self.scale
        return np.round(x, 1).tolist(), np.round(y, 1).tolist()

    def course(self, network: RoadNetwork, edge: int) -> str:
        """The SVG path of a road."""
        xs, ys = self.xy(*_line(network, edge).T)
        corners = "L".join(f"{x:g} {y:g}" for x, y in zip(xs, ys, strict=True))
        return f"M{corners}"

    @property
    def dot(self) -> float:
        """Diameter of a node."""
        return float(np.clip(400 / math.sqrt(max(1, self.network.num_nodes)), 4.5, 20))

    def draw(self, name: str) -> Drawing:
        """Draw the roads, each two-way street once and one path per width, and a scale bar of a round length."""
        drawing = Drawing(name, MAP_W, self.height)
        edges = self.network.edges
        pair = np.sort(np.stack([edges.senders, edges.receivers]), axis=0)
        _, once = np.unique(pair, axis=1, return_index=True)
        level = np.nan_to_num(class_levels(edges.road_class), nan=1.0).astype(int)
        paths: dict[int, list[str]] = {}
        for e in once.tolist():
            paths.setdefault(int(level[e]), []).append(self.course(self.network, e))
        for k in sorted(paths):
            drawing.path("road", "".join(paths[k]), width=max(0.7, 0.08 * self.dot * (1 + k)))
        metre = self.scale / 111_195
        length_m = round_step(MAP_W / metre, 7)
        x = 0.03 * MAP_W
        y = self.height - 18
        drawing.path("ruler", f"M{x:g} {y - 8:g}v8h{length_m * metre:.1f}v-8")
        text = f"{length_m / 1000:g} km" if length_m >= 1000 else f"{length_m:g} m"
        drawing.text("", x + length_m * metre + 12, y + 2, text)
        return drawing


def _line(network: RoadNetwork, edge: int) -> Floats:
    """[points,2] lon and lat along a road, or of its ends if its shape is unknown."""
    try:
        return read_line(network.edges.geometry[edge])
    except NotALineError:
        ends = [network.senders[edge], network.receivers[edge]]
        return np.stack([network.lon[ends], network.lat[ends]], axis=1)


def bin_edges(values: Floats, *, skewed: bool) -> list[float]:
    """At most BINS - 1 round boundaries between colours: 1, 2, 5, 10, ... for skewed values, else equally spaced."""
    known = values[np.isfinite(values)]
    if not len(known):
        return []
    low, high = (float(q) for q in np.quantile(known, [0.01, 0.99]))
    if skewed and high > 0:
        top = math.floor(math.log10(high))
        edges = [step * 10.0**power for power in range(top - 3, top + 1) for step in (1, 2, 5)]
        edges = [edge for edge in edges if edge <= high][-(BINS - 1) :]
    else:
        step = round_step(high - low, BINS - 2)
        edges = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    shown = sorted({float(f"{edge:.6g}") for edge in edges})  # as in the key, so that colours and key agree
    return [edge for edge in shown if known.min() < edge <= known.max()]


@dataclass(frozen=True)
class MapLayer:
    """The nodes of one map and their values."""

    colours: str  # forecast or error: a colour scale in style.css
    title: str
    node_ids: NDArray[np.generic]  # [N]
    lon: Floats  # [N]
    lat: Floats  # [N]
    sensor: Bools  # [N] drawn as squares
    values: Floats  # [N] NaN: no value
    shapes: tuple[tuple[str, str], ...]  # for the key: CSS class and meaning of each shape
    unit: str
    edges: tuple[float, ...]  # boundaries between colours
    bins: tuple[str, ...] = ()  # the key's text for each colour; (): from the edges
    tips: tuple[str, ...] = ()  # [N] tooltips
    detectors: tuple[str, ...] = ()  # [N] names of the detectors at the node, shown after its id
    crosses: Bools | None = None  # [N] nodes to cross out


@dataclass(frozen=True)
class NodeMap:
    """A map for the template."""

    layer: MapLayer
    drawing: Drawing
    key: list[tuple[int, str]]  # colour, text
    data: dict[str, Any]  # for the tooltips of page.js


def draw_map(base: BaseMap, layer: MapLayer) -> NodeMap:
    """Draw a layer of nodes on the base map."""
    x, y = base.xy(layer.lon, layer.lat)
    drawing = base.draw(layer.title)
    _draw_nodes(drawing, layer, x, y, base.dot)
    if layer.crosses is not None and layer.crosses.any():
        r = 1.1 * base.dot
        cross = f"l{2 * r:.1f} {2 * r:.1f}m0 {-2 * r:.1f}l{-2 * r:.1f} {2 * r:.1f}"
        d = "".join(f"M{x[i] - r:.1f} {y[i] - r:.1f}{cross}" for i in np.flatnonzero(layer.crosses))
        drawing.path("fault", d, width=0.38 * base.dot)
    ends = [f"{edge:g}" for edge in layer.edges]
    between = [f"{low} to {high}" for low, high in pairwise(ends)]
    texts = layer.bins or ([f"below {ends[0]}", *between, f"{ends[-1]} or more"] if ends else ["all"])
    data = {
        "x": x,
        "y": y,
        "id": [
            f"{node} ({detectors})" if detectors else str(node)
            for node, detectors in zip(
                layer.node_ids.tolist(), layer.detectors or ("",) * len(layer.node_ids), strict=True
            )
        ],
        "sensor": layer.sensor.astype(int).tolist(),
        "reach": max(28.0, 2.4 * base.dot),
        "tips": layer.tips,
    }
    return NodeMap(layer, drawing, [(colour_of(k, len(layer.edges)), text) for k, text in enumerate(texts)], data)


def _draw_nodes(drawing: Drawing, layer: MapLayer, x: list[float], y: list[float], dot: float) -> None:
    """One path per colour."""
    at = [f"M{a:g} {b:g}h0" for a, b in zip(x, y, strict=True)]
    known = np.isfinite(layer.values)
    sensor = layer.sensor
    group = np.searchsorted(np.array(layer.edges), np.nan_to_num(layer.values), side="right")

    def add(nodes: Bools, css: str, width: float) -> None:
        drawing.path(css, "".join(at[i] for i in np.flatnonzero(nodes)), width=width)

    def add_coloured(nodes: Bools, shape: str, width: float) -> None:
        for k in range(len(layer.edges) + 1):
            add(known & nodes & (group == k), f"{shape} {layer.colours} b{colour_of(k, len(layer.edges))}", width)

    add(~known & ~sensor, "c none", 0.35 * dot)
    add(known & ~sensor, "c halo", 1.16 * dot)
    add_coloured(~sensor, "c", dot)
    add(sensor, "q ink", (1.24 if (known & sensor).any() else 0.8) * dot)
    add(sensor & ~known, "q hole", 0.5 * dot)
    add_coloured(sensor, "q", 0.86 * dot)


def colour_of(k: int, edges: int) -> int:
    """The colour of class k of `edges` + 1, spread over the whole scale."""
    return round(k * (BINS - 1) / max(1, edges))
