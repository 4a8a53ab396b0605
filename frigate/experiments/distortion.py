"""How well positions keep road distances: the distortion (Definition 4) against the number and choice of anchors."""

from __future__ import annotations

import math

import numpy as np

from frigate.config import ANCHOR_CHOICES
from frigate.data.network import RoadNetwork
from frigate.experiments import plots
from frigate.experiments.plan import Plan
from frigate.experiments.table import Cell, Row, Table
from frigate.graph.positions import Distortion, choose_anchors, distances_m, distortion

DRAWS = 5  # of the anchors; odd, so that the median is one of them
PAIRS = 2000
PAIRS_SEED = 0  # the same pairs for every choice and number
FULL = "full"  # bourgain's sets, as many as the theorem asks for
LABELS = {"random": "random", "farthest": "farthest first", "bourgain": "Bourgain sets"}
COLUMNS = {
    "choice": "how anchors are chosen; full: sets of 1, 2, 4, ... nodes, ceil(log2 n)² of them",
    "anchors": "coordinates of a position: anchors, or sets of them",
    "distortion": "expansion × contraction, median over the draws; 1 is a perfect embedding; none: infinite",
    "low": "least of the draws",
    "high": "largest of the draws; none: infinite",
    "expansion": "largest d_Y/d_X of a pair, median over the draws",
    "contraction": "largest d_X/d_Y of a pair, median over the draws; none: infinite",
    "infinite": "draws in which two nodes of a pair share a position",
    "draws": "draws of the anchors, seeds 0, 1, ...",
    "pairs": "pairs of nodes compared",
}


def measure(plan: Plan) -> Table:
    """Distortion over the same pairs for every choice and number of anchors, some draws each."""
    network = plan.city.network
    rows = [_row(network, choice, count) for choice in ANCHOR_CHOICES for count in plan.effort.anchors]
    rows.append(_row(network, FULL, None))
    nodes = int(network.present.sum())
    return Table(
        "distortion",
        f"Distortion of positions against the anchors: {plan.city.name}",
        rows=rows,
        columns=COLUMNS,
        notes=[
            f"Raw positions of the {nodes:,} nodes, in metres, on the roads of the last snapshot. d_X is the mean of "
            "the distances there and back, d_Y the mean absolute difference of the coordinates.",
            f"Over a sample of pairs of nodes (seed {PAIRS_SEED}), the same for every row: the worst pair of all is "
            "worse. Pairs without a road both ways are left out.",
            f"log2 n is {math.log2(max(nodes, 1)):.1f}: thm:bourgain promises a distortion of that order for its own "
            "number of sets. The experiments use 16 random anchors, about which it says nothing.",
        ],
    )


def _row(network: RoadNetwork, choice: str, count: int | None) -> Row:
    found: list[Distortion] = []
    for seed in range(DRAWS):
        anchors = choose_anchors(network, count=count or 1, choice=choice, seed=seed)
        found.append(distortion(network, distances_m(network, anchors), pairs=PAIRS, seed=PAIRS_SEED))
    values = [each.distortion for each in found]
    return {
        "choice": choice,
        "anchors": len(anchors),
        "distortion": _number(np.median(values)),
        "low": _number(min(values)),
        "high": _number(max(values)),
        "expansion": _number(np.median([each.expansion for each in found])),
        "contraction": _number(np.median([each.contraction for each in found])),
        "infinite": sum(math.isinf(value) for value in values),
        "draws": DRAWS,
        "pairs": found[0].pairs,
    }


def _number(value: float | np.floating) -> float | None:
    return float(value) if math.isfinite(value) else None


def draw(table: Table) -> plots.Figure:
    """A curve for each choice, from its least to its largest draw, on log axes."""
    figure, (ax, *_) = plots.figure()
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    finite = [value for row in table.rows for value in (row["low"], row["high"]) if isinstance(value, float)]
    top = 2 * max(finite, default=10.0)
    for choice, name in LABELS.items():
        rows = [row for row in table.rows if row["choice"] == choice and row["pairs"]]
        low, value, high = ([_height(row[column], top) for row in rows] for column in ("low", "distortion", "high"))
        plots.line(ax, [_height(row["anchors"], top) for row in rows], value, label=name, low=low, high=high)
    for row in table.rows:
        if row["choice"] == FULL and row["pairs"]:
            at, colour = [_height(row["anchors"], top)], plots.colour(LABELS["bourgain"])
            ax.vlines(at, _height(row["low"], top), _height(row["high"], top), color=colour, linewidth=1.5)
            words = "as many sets as the theorem has"
            ax.plot(at, [_height(row["distortion"], top)], "*", color=colour, markersize=12, linestyle="", label=words)
    counts = sorted({int(_height(row["anchors"], top)) for row in table.rows})
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.xaxis.minorticks_off()
    ax.set_ylim(1, top)
    ax.legend(frameon=False)
    off = "; off the top: infinite" if any(row["infinite"] for row in table.rows) else ""
    plots.label(ax, x="anchors, or sets of them", y=f"distortion (1 is perfect{off})", title=table.title)
    return figure


def _height(cell: Cell, top: float) -> float:
    """A number to draw; what is not finite goes off the top of the axis."""
    return float(cell) if isinstance(cell, int | float) else 10 * top
