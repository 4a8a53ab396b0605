"""The maps of a report: roads, a dot for each intersection, a square for each sensor, a colour for each value."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import RoadNetwork
from frigate.evaluation.results import Evaluation
from frigate.forecasting.forecast import Forecast
from frigate.graph.road_features import class_levels
from frigate.report.words import clock, round_number, span
from frigate.training.run import RunOnCity

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAP_W = 1000.0  # of a map's view box; its height follows from the place
BINS = 7  # colours of a map; report.css has as many


@dataclass(frozen=True)
class MapProjection:
    """Where things lie on a map: local metres, north up, fitted into the view box."""

    lon0: float
    lat0: float
    squeeze: float  # of a degree of longitude, at this latitude
    scale: float  # view box units a degree of latitude
    height: float
    network: RoadNetwork

    @classmethod
    def of(cls, network: RoadNetwork) -> MapProjection:
        here = network.present if network.present.any() else np.ones(network.num_nodes, bool)
        lon, lat = network.lon[here], network.lat[here]
        squeeze = max(0.01, math.cos(math.radians(float(lat.mean()))))
        wide, high = float(np.ptp(lon)) * squeeze, float(np.ptp(lat))
        room = MAP_W * 0.94
        scale = min(room / max(wide, 1e-6), 1.1 * room / max(high, 1e-6))
        height = high * scale + 0.06 * MAP_W + 40
        middle = float(lon.min() + lon.max()) / 2
        return cls(middle, float(lat.max()), squeeze, scale, height, network)

    def xy(self, lon: Floats, lat: Floats) -> tuple[list[float], list[float]]:
        x = MAP_W / 2 + (np.asarray(lon) - self.lon0) * self.squeeze * self.scale
        y = 0.03 * MAP_W + (self.lat0 - np.asarray(lat)) * self.scale
        return np.round(x, 1).tolist(), np.round(y, 1).tolist()

    @property
    def dot(self) -> float:
        """Diameter of a node."""
        return float(np.clip(400 / math.sqrt(max(1, self.network.num_nodes)), 4.5, 20))

    def roads(self) -> str:
        """Roads by class, each street once, as few paths as there are widths."""
        edges = self.network.edges
        pair = np.sort(np.stack([edges.senders, edges.receivers]), axis=0)
        _, once = np.unique(pair, axis=1, return_index=True)
        level = np.nan_to_num(class_levels(edges.road_class), nan=1.0).astype(int)
        paths: dict[int, list[str]] = {}
        for e in once.tolist():
            lon, lat = _line(self.network, e)
            xs, ys = self.xy(lon, lat)
            corners = "L".join(f"{x:g} {y:g}" for x, y in zip(xs, ys, strict=True))
            paths.setdefault(int(level[e]), []).append(f"M{corners}")
        thin = 0.08 * self.dot
        return "".join(
            f'<path class="road" stroke-width="{max(0.7, thin * (1 + k)):.2f}" d="{"".join(paths[k])}"/>'
            for k in sorted(paths)
        )

    def ruler(self) -> str:
        """A scale bar of a round length, about a fifth of the map."""
        metre = self.scale / 111_195
        length_m = round_number(0.2 * MAP_W / metre)
        text = f"{length_m / 1000:g} km" if length_m >= 1000 else f"{length_m:g} m"
        x, y = 0.03 * MAP_W, self.height - 18
        return (
            f'<path class="ruler" d="M{x:g} {y - 8:g}v8h{length_m * metre:.1f}v-8"/>'
            f'<text x="{x + length_m * metre + 12:.1f}" y="{y + 2:g}">{text}</text>'
        )


def _line(network: RoadNetwork, edge: int) -> tuple[Floats, Floats]:
    """A road's course: its WKB line string, or straight from end to end."""
    wkb = network.edges.geometry[edge]
    if isinstance(wkb, bytes) and len(wkb) > 9:
        order = "<" if wkb[0] == 1 else ">"
        kind, count = struct.unpack_from(f"{order}II", wkb, 1)
        if kind == 2 and len(wkb) == 9 + 16 * count:
            points = np.frombuffer(wkb, f"{order}f8", offset=9).reshape(count, 2)
            return points[:, 0], points[:, 1]
    ends = [int(network.senders[edge]), int(network.receivers[edge])]
    return network.lon[ends], network.lat[ends]


def bin_edges(values: Floats, *, by_factors: bool) -> list[float]:
    """At most BINS - 1 round numbers that part the values: 1, 2, 5, 10, ... for what is skewed, or equal steps."""
    known = values[np.isfinite(values)]
    if not len(known):
        return []
    low, high = (float(q) for q in np.quantile(known, [0.01, 0.99]))
    if by_factors and high > 0:
        top = math.floor(math.log10(high))
        edges = [step * 10.0**power for power in range(top - 3, top + 1) for step in (1, 2, 5)]
        edges = [edge for edge in edges if edge <= high][-(BINS - 1) :]
    else:
        step = next(size for size in _round_sizes(high - low) if (high - low) / size < BINS - 1)
        edges = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    shown = sorted({float(f"{edge:.6g}") for edge in edges})  # as the key shows them, so that colours and key agree
    return [edge for edge in shown if known.min() < edge <= known.max()]


def _round_sizes(span: float) -> list[float]:
    size = 10.0 ** math.floor(math.log10(max(span, 1e-6) / BINS))
    return [step * size for step in (1, 2, 5, 10, 20)]


@dataclass(frozen=True)
class Sheet:
    """What one map shows, and the words around it."""

    kind: str  # forecast or error: the name of its colours
    title: str
    aside: str  # HTML between the title and the map
    node_ids: NDArray[np.generic]  # [N]
    lon: Floats  # [N]
    lat: Floats  # [N]
    sensor: Bools  # [N] drawn as squares
    frames: Floats  # [H,N] the last is drawn; a slider shows the others. NaN: no value
    labels: tuple[str, ...]  # [H]
    shapes: tuple[tuple[str, str], ...]  # of the key: a shape's CSS class and what it stands for
    unit: str
    by_factors: bool  # colours by factors of about two, for what is skewed
    edges: tuple[float, ...] | None = None  # where one colour ends and the next begins; None: round numbers
    bins: tuple[str, ...] = ()  # the key's word for each colour; (): by its edges
    said: tuple[str, ...] = ()  # [N] what the pointer tells of a node in place of its value
    marks: str = ""  # SVG above the dots


def forecast_map(plan: MapProjection, forecast: Forecast, unit: str) -> str:
    """The forecast at every node, with a slider through its steps."""
    times = [clock(time) for time in forecast.local_times()]
    labels = tuple(f"{time}, {span((k + 1) * forecast.step_s)} ahead" for k, time in enumerate(times))
    start = forecast.horizon - 1
    slider = (
        f'<label class="slide">Time <input type="range" min="0" max="{start}" value="{start}">'
        f"<output>{escape(labels[start])}</output></label>"
    )
    sheet = Sheet(
        kind="forecast",
        title=f"The forecast made at {times[0]}",
        aside=slider,
        node_ids=forecast.node_ids,
        lon=forecast.lon,
        lat=forecast.lat,
        sensor=forecast.sensor,
        frames=forecast.values,
        labels=labels,
        shapes=(("square", "sensor"), ("round", "no sensor")),
        unit=unit,
        by_factors=forecast.quantity == "count",
    )
    return draw_map(plan, sheet)


def error_map(plan: MapProjection, run: RunOnCity, evaluation: Evaluation, unit: str) -> str:
    """The model's MAE at each node that was scored; sensors are hollow where it was scored without them."""
    network, split = run.city.network, run.split
    any_unseen = evaluation.model.unseen is not None
    scored = (split.unseen if any_unseen else split.seen) & network.present
    sheet = Sheet(
        kind="error",
        title=f"The error {'without a sensor' if any_unseen else 'at sensors'}: MAE in the test period",
        aside='<p class="slide">All steps ahead.</p>',
        node_ids=run.city.stream.node_ids,
        lon=network.lon,
        lat=network.lat,
        sensor=split.seen & network.present,
        frames=np.where(scored, evaluation.node_mae, np.nan)[None],
        labels=("MAE",),
        shapes=(("hollow", "sensor"), ("round", "no sensor, scored")) if any_unseen else (("square", "sensor"),),
        unit=unit,
        by_factors=True,
    )
    return draw_map(plan, sheet)


def draw_map(plan: MapProjection, sheet: Sheet) -> str:
    """A figure with the map, its key, and what its script needs."""
    x, y = plan.xy(sheet.lon, sheet.lat)
    edges = bin_edges(sheet.frames, by_factors=sheet.by_factors) if sheet.edges is None else list(sheet.edges)
    title = escape(sheet.title)
    return (
        f'<figure class="map"><figcaption>{title}</figcaption>{sheet.aside}'
        f'<div class="sheet"><svg viewBox="0 0 {MAP_W:g} {plan.height:.0f}" role="img" aria-label="{title}">'
        f"{plan.roads()}{_dots(plan, sheet, edges, x, y)}{sheet.marks}{plan.ruler()}</svg>"
        f'<div class="tip" hidden></div></div>'
        f"{_key(sheet, edges)}{_data(plan, sheet, edges, x, y)}</figure>"
    )


def _dots(plan: MapProjection, sheet: Sheet, edges: list[float], x: list[float], y: list[float]) -> str:
    """The last frame, as few paths as there are colours; data-k tells the script which nodes belong in a path."""
    at = [f"M{a:g} {b:g}h0" for a, b in zip(x, y, strict=True)]
    shown, sensor, dot = sheet.frames[-1], sheet.sensor, plan.dot
    known, inside = np.isfinite(sheet.frames).any(axis=0), np.isfinite(shown)
    group = np.searchsorted(edges, np.nan_to_num(shown), side="right")

    def path(nodes: Bools, css: str, width: float, key: str = "") -> str:
        d = "".join(at[i] for i in np.flatnonzero(nodes))
        return f'<path class="{css}" stroke-width="{width:.2f}" data-k="{key}" d="{d}"/>'

    def coloured(nodes: Bools, shape: str, width: float) -> list[str]:
        return [
            path(inside & nodes & (group == k), f"{shape} {sheet.kind} b{_shade(k, edges)}", width, f"{shape}{k}")
            for k in range(len(edges) + 1)
        ]

    parts = [
        path(~known & ~sensor, "c none", 0.35 * dot),
        path(known & ~sensor, "c halo", 1.16 * dot),
        *coloured(~sensor, "c", dot),
        path(sensor, "q ink", (1.24 if (known & sensor).any() else 0.8) * dot),
        path(sensor & ~known, "q hole", 0.5 * dot),
        *coloured(sensor, "q", 0.86 * dot),
    ]
    return "".join(parts)


def _data(plan: MapProjection, sheet: Sheet, edges: list[float], x: list[float], y: list[float]) -> str:
    """What report.js needs to move the slider and to name what is under the pointer."""
    data = {
        "x": x,
        "y": y,
        "id": [str(n) for n in sheet.node_ids.tolist()],
        "sensor": sheet.sensor.astype(int).tolist(),
        "edges": edges,
        "frames": [[None if math.isnan(v) else float(f"{v:.3g}") for v in frame] for frame in sheet.frames.tolist()],
        "labels": sheet.labels,
        "unit": sheet.unit,
        "reach": max(28.0, 2.4 * plan.dot),
        "what": "MAE " if sheet.kind == "error" else "",
        "said": sheet.said,
    }
    inline = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json">{inline}</script>'


def _shade(k: int, edges: list[float]) -> int:
    """Spread fewer bins over the whole range of colours."""
    return round(k * (BINS - 1) / max(1, len(edges)))


def _key(sheet: Sheet, edges: list[float]) -> str:
    ends = [f"{edge:g}" for edge in edges]
    texts = ["all"] if not ends else [f"below {ends[0]}", *ends[:-1], f"{ends[-1]} and more"]
    for k in range(1, len(ends)):
        texts[k] = f"{ends[k - 1]} to {ends[k]}"
    texts = list(sheet.bins) or texts
    shapes = "".join(f'<span><i class="{css}"></i>{escape(words)}</span>' for css, words in sheet.shapes)
    swatches = "".join(
        f'<span><i class="swatch {sheet.kind} b{_shade(k, edges)}"></i>{text}</span>' for k, text in enumerate(texts)
    )
    return f'<div class="key">{shapes}</div><div class="key">{swatches}<em>{escape(sheet.unit)}</em></div>'
