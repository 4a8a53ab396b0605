"""What the paper proves about positions, measured: how well they preserve road distances (Definition 4, distortion),
and that they distinguish isomorphic neighbourhoods, which message passing alone does not (Lemma 2 and its corollary).

The paper's source lacks the figure of Lemma 2. We use a ring, on which all nodes have the same neighbourhood at any
number of hops: v1 has the positions [2, 2] and v2 [5, 5], as in the proof.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import make_stream
from frigate.config import ANCHOR_CHOICES, BASELINES, PRESETS, Settings, change, preset
from frigate.experiments import plots
from frigate.experiments.plan import LABELS, Plan
from frigate.experiments.table import ResultTable, Row, Rows, number_or
from frigate.nn.batch import Batch
from frigate.nn.network_views import NetworkViews
from frigate.nn.scaling import Scaling, build_topologies
from frigate.nn.windows import Windows
from frigate.roads.features import FEATURES, fit_feature_scaling
from frigate.roads.positions import Anchors, choose_anchors, distances_m, distortion
from frigate.training.run import build_model

DRAWS = 5  # of anchors; odd, so that the median is one of them
PAIRS = 2000
PAIRS_SEED = 0  # the same pairs for every choice and number
FULL = "full"  # Bourgain's sets, as many as the theorem requires
CHOICES = {"random": "random", "farthest": "farthest first", "bourgain": "Bourgain sets"}


def measure_distortion(plan: Plan) -> ResultTable:
    """Distortion over the same pairs for every choice and number of anchors, several draws each."""
    network = plan.city.network
    rows = [_distortion_row(network, choice, count) for choice in ANCHOR_CHOICES for count in plan.effort.anchors]
    rows.append(_distortion_row(network, FULL, None))
    nodes = int(network.present.sum())
    log_nodes = math.log2(max(nodes, 1))
    return ResultTable.make("distortion", rows, city=plan.city.name, nodes=nodes, log_nodes=log_nodes, seed=PAIRS_SEED)


def _distortion_row(network: RoadNetwork, choice: str, count: int | None) -> Row:
    anchors = [choose_anchors(network, count=count or 1, choice=choice, seed=seed) for seed in range(DRAWS)]
    found = [distortion(network, distances_m(network, each), pairs=PAIRS, seed=PAIRS_SEED) for each in anchors]
    values = [each.distortion for each in found]
    numbers = {"distortion": np.median(values), "low": min(values), "high": max(values)}
    numbers |= {name: np.median([getattr(each, name) for each in found]) for name in ("expansion", "contraction")}
    return {
        "choice": choice,
        "anchors": len(anchors[0]),
        **{name: float(value) if math.isfinite(value) else None for name, value in numbers.items()},
        "infinite": sum(math.isinf(value) for value in values),
        "draws": DRAWS,
        "pairs": found[0].pairs,
    }


def draw_distortion(table: ResultTable) -> plots.Figure:
    """A curve for each choice with the range of its draws, on log axes; infinite values go off the top."""
    figure, (ax,) = plots.figure()
    ax.set(xscale="log", yscale="log")
    finite = [value for row in table.rows for value in (row["low"], row["high"]) if isinstance(value, float)]
    top = 2 * max(finite, default=10.0)

    def column(rows: Rows, name: str) -> list[float]:
        return [number_or(10 * top, row[name]) for row in rows]

    for choice, label in CHOICES.items():
        rows = [row for row in table.rows if row["choice"] == choice and row["pairs"]]
        low, value, high = (column(rows, name) for name in ("low", "distortion", "high"))
        plots.line(ax, column(rows, "anchors"), value, label=label, low=low, high=high)
    full = [row for row in table.rows if row["choice"] == FULL and row["pairs"]]
    if full:
        at = column(full, "anchors")
        colour, _ = plots.look(CHOICES["bourgain"])
        ax.vlines(at, column(full, "low"), column(full, "high"), color=colour, linewidth=1.5)
        label = "as many sets as the theorem requires"
        ax.plot(at, column(full, "distortion"), "*", color=colour, markersize=12, linestyle="", label=label)
    counts = sorted({int(count) for count in column(table.rows, "anchors")})
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.xaxis.minorticks_off()
    ax.set_ylim(1, top)
    ax.legend()
    off = "; off the top: infinite" if any(row["infinite"] for row in table.rows) else ""
    ax.set(xlabel="anchors, or sets of them", ylabel=f"distortion (1 is perfect{off})")
    return figure


NODES = 14
ANCHORS = (0, 4)
V1 = 2
V2 = 9
BESIDE_V1 = 3  # the only node with another reading in the control
READING = 5.0
OTHER_READING = 9.0
SEEDS = 5  # of the weights
ROUNDING = 1e-5  # smaller differences are fp32 rounding, accumulated over the layers
LEMMA = {"paper": ("on", "off"), "dcrnn": ("none",), "stgcn": ("none",), "stgode": ("none",)}  # models that it covers
WINDOWS = ("missing", "equal", "control")  # of the batch: no readings, equal readings, one different reading


def measure_expressivity(plan: Plan) -> ResultTable:
    """How far apart each model puts the two nodes, over several draws of its weights. The plan's city is not used."""
    rows = [row for model in plan.wanted(*PRESETS, *BASELINES) for row in _expressivity_rows(model)]
    angle = np.pi / 2 - 2 * np.pi * (np.arange(NODES) - V1) / NODES  # v1 on top, v2 at the bottom
    more = {"ring": {"x": np.cos(angle).tolist(), "y": np.sin(angle).tolist()}, "rounding": ROUNDING}
    return ResultTable.make("expressivity", rows, more, nodes=NODES, anchors=ANCHORS, v1=V1, v2=V2, seeds=SEEDS)


def _expressivity_rows(model: str) -> list[Row]:
    settings = preset(model)
    if model == "paper":
        settings = change(settings, {"model": {"anchors": len(ANCHORS)}})
    scaling, batch = ring_batch(settings)
    views = {"on": batch, "off": without_positions(batch)} if scaling.anchors is not None else {"none": batch}
    apart: dict[tuple[str, str], list[Tensor]] = {}
    for seed in range(SEEDS):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            built = build_model(settings, scaling).eval()
        for positions, view in views.items():
            with torch.inference_mode():
                if built.encodes_snapshots:
                    z = built.encode_snapshots(view).permute(1, 0, 2, 3)  # [B,N,T,D]
                    apart.setdefault((positions, "embeddings"), []).append(difference(z.flatten(2)))
                forecast = built(view).transpose(1, 2)  # [B,N,H]
                apart.setdefault((positions, "forecasts"), []).append(difference(forecast))
    return [_expressivity_row(model, *key, torch.stack(found)) for key, found in apart.items()]


def ring_batch(settings: Settings) -> tuple[Scaling, Batch]:
    """The scaling of a model on the ring, and a batch with a window for each of WINDOWS."""
    i = np.arange(NODES)
    ends = np.concatenate([i, (i + 1) % NODES]), np.concatenate([(i + 1) % NODES, i])
    lon = lat = np.linspace(0, 1e-5 * (NODES - 1), NODES)  # only to identify the anchors; roads have their own length
    network = RoadNetwork(i, lon, lat, Edges.of(*ends, np.ones(2 * NODES)))
    at = tuple((float(lon[a]),) for a in ANCHORS)
    features = np.zeros((NODES, len(FEATURES)), np.float32)  # equal at all nodes, so 0 when standardized
    scaling = Scaling(
        value_offset=0.0,
        value_scale=1.0,
        length_scale_m=1.0,
        position_scale_m=3.0,
        anchors=Anchors("random", 0, tuple((a,) for a in ANCHORS), at, at)
        if settings.model.preset == "paper"
        else None,
        roads=fit_feature_scaling(features, i) if settings.model.roads else None,
    )
    task = settings.task
    length = task.past + task.horizon
    values = np.full((len(WINDOWS) * length, NODES), READING)
    values[:length] = np.nan
    values[length * WINDOWS.index("control") :, BESIDE_V1] = OTHER_READING
    stream = make_stream(values, network, start_s=0, step_s=300)
    topologies, _ = build_topologies(
        stream.networks, scaling, sensors=stream.sensors, features=[features] if settings.model.roads else None
    )
    windows = Windows(stream, NetworkViews.of_topologies(stream.networks, topologies))
    current = task.past - 1 + length * np.arange(len(WINDOWS))
    read = torch.ones(NODES, dtype=torch.bool)
    return scaling, windows.batch(current, past=task.past, horizon=task.horizon, inputs=read)


def without_positions(batch: Batch) -> Batch:
    """As if every node were infinitely far from every anchor."""
    return replace(
        batch, topologies=tuple(replace(t, positions=torch.zeros_like(t.positions)) for t in batch.topologies)
    )


def difference(numbers: Tensor) -> Tensor:
    """[B] largest difference between the two nodes' numbers [B,N,X], relative to the largest number."""
    largest = numbers[:, [V1, V2]].abs().amax(dim=(1, 2))
    gap = (numbers[:, V1] - numbers[:, V2]).abs().amax(dim=1)
    return gap / largest.clamp(min=1e-30)


def _expressivity_row(model: str, positions: str, compared: str, found: Tensor) -> Row:
    """A row from differences [seeds, windows]."""
    control = WINDOWS.index("control")
    alike = found[:, :control].amax(dim=1)
    largest = float(alike.max())
    least = float(alike.min())
    expected = {"on": "different", "off": "equal", "none": "equal"}[positions]
    return {
        "model": LABELS[model],
        "positions": positions,
        "compared": compared,
        "largest": largest,
        "least": least,
        "equal": "yes" if largest <= ROUNDING else "no" if least > ROUNDING else "for some weights",
        "lemma": expected if positions in LEMMA.get(model, ()) else None,
        "control": float(found[:, control].min()),
    }


def draw_expressivity(table: ResultTable) -> plots.Figure:
    """The ring, and how far apart each model puts the two nodes."""
    figure, (left, right) = plots.figure(10.5, 5.0, columns=2)
    _draw_ring(left, table)
    names = []
    values = []
    for row in table.rows:
        what = "z" if row["compared"] == "embeddings" else "forecast"
        positions = "" if row["positions"] == "none" else f", positions {row['positions']}"
        names.append(f"{row['model']}{positions}: {what}")
        values.append(float(row["largest" if row["equal"] == "yes" else "least"] or 0))
    least = 1e-8  # start of the axis: a log axis has no 0
    labels = [f"{value:.1g}" if value else "exactly 0" for value in values]
    colours = [plots.look(str(row["model"]))[0] for row in table.rows]
    right.set_xscale("log")
    plots.bars(right, names, np.maximum(values, least), colours=colours, labels=labels)
    right.set_xlim(least, 3)
    right.axvline(table.more["rounding"], color=plots.INK, linestyle="--", linewidth=1.2)
    right.annotate(" ← rounding only", (table.more["rounding"], len(values) - 1), va="center", fontsize=9)
    right.set(xlabel="difference between v1 and v2, relative", title="Outputs of the models")
    return figure


def _draw_ring(ax: plots.Axes, table: ResultTable) -> None:
    x = np.array(table.more["ring"]["x"])
    y = np.array(table.more["ring"]["y"])
    ax.plot(np.append(x, x[0]), np.append(y, y[0]), color=plots.SOFT, linewidth=1.5, zorder=1)
    ax.scatter(x, y, s=60, color="white", edgecolors=plots.SOFT, zorder=2)
    for node, name, colour, marker in (
        *((a, f"a{k + 1}", plots.INK, "s") for k, a in enumerate(ANCHORS)),
        (V1, "v1: [2, 2]", "#d55e00", "o"),
        (V2, "v2: [5, 5]", "#0072b2", "o"),
    ):
        for beside in ((node - 1) % NODES, (node + 1) % NODES) if marker == "o" else ():
            ax.scatter(x[beside], y[beside], s=110, color=colour, alpha=0.35, linewidths=0, zorder=3)
        ax.scatter(x[node], y[node], s=150, color=colour, marker=marker, zorder=4)
        ax.annotate(name, (1.25 * x[node], 1.18 * y[node]), ha="center", va="center", color=colour)
    ax.set(aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.35, 1.35), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set(xlabel="positions in m, roads of 1 m;\nshaded: neighbours", title="Two nodes that differ only in position")
