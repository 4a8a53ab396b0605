"""How well positions keep road distances: the distortion (Definition 4) against the number and choice of anchors."""

from __future__ import annotations

import math

import numpy as np

from frigate.config import ANCHOR_CHOICES
from frigate.data.network import RoadNetwork
from frigate.experiments import plots
from frigate.experiments.plan import Plan
from frigate.experiments.table import Row, Rows, Table, number_or
from frigate.graph.positions import choose_anchors, distances_m, distortion

DRAWS = 5  # of the anchors; odd, so that the median is one of them
PAIRS = 2000
PAIRS_SEED = 0  # the same pairs for every choice and number
FULL = "full"  # bourgain's sets, as many as the theorem asks for
LABELS = {"random": "random", "farthest": "farthest first", "bourgain": "Bourgain sets"}


def measure(plan: Plan) -> Table:
    """Distortion over the same pairs for every choice and number of anchors, some draws each."""
    network = plan.city.network
    rows = [_row(network, choice, count) for choice in ANCHOR_CHOICES for count in plan.effort.anchors]
    rows.append(_row(network, FULL, None))
    nodes = int(network.present.sum())
    log_nodes = math.log2(max(nodes, 1))
    return Table.make("distortion", rows, city=plan.city.name, nodes=nodes, log_nodes=log_nodes, seed=PAIRS_SEED)


def _row(network: RoadNetwork, choice: str, count: int | None) -> Row:
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


def draw(table: Table) -> plots.Figure:
    """A curve for each choice, from its least to its largest draw, on log axes; what is infinite goes off the top."""
    figure, (ax,) = plots.figure()
    ax.set(xscale="log", yscale="log")
    finite = [value for row in table.rows for value in (row["low"], row["high"]) if isinstance(value, float)]
    top = 2 * max(finite, default=10.0)

    def column(rows: Rows, name: str) -> list[float]:
        return [number_or(10 * top, row[name]) for row in rows]

    for choice, label in LABELS.items():
        rows = [row for row in table.rows if row["choice"] == choice and row["pairs"]]
        low, value, high = (column(rows, name) for name in ("low", "distortion", "high"))
        plots.line(ax, column(rows, "anchors"), value, label=label, low=low, high=high)
    full = [row for row in table.rows if row["choice"] == FULL and row["pairs"]]
    if full:
        at, (colour, _) = column(full, "anchors"), plots.look(LABELS["bourgain"])
        ax.vlines(at, column(full, "low"), column(full, "high"), color=colour, linewidth=1.5)
        words = "as many sets as the theorem has"
        ax.plot(at, column(full, "distortion"), "*", color=colour, markersize=12, linestyle="", label=words)
    counts = sorted({int(count) for count in column(table.rows, "anchors")})
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.xaxis.minorticks_off()
    ax.set_ylim(1, top)
    ax.legend()
    off = "; off the top: infinite" if any(row["infinite"] for row in table.rows) else ""
    ax.set(xlabel="anchors, or sets of them", ylabel=f"distortion (1 is perfect{off})", title=table.title)
    return figure
