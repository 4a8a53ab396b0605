"""How traffic spreads over the nodes (the paper's fig:traffic) and over the day (its fig:nodetimeseries).

The paper draws the traffic of edges; our readings are at nodes, so this is the distribution over nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.data.stream import DAY_S, RoadNetworkStream
from frigate.experiments import plots
from frigate.experiments.datasets import node_sums
from frigate.experiments.plan import Plan
from frigate.experiments.table import Row, Table, number_or

PERCENTILES = (1, 10, 25, 50, 75, 90, 95, 99, 100)
DRAWN = (99, 90, 50)  # the example nodes: by rank, not by hand
DAYS = ("weekdays", "weekends")
CURVE_POINTS = 300


def measure(plan: Plan) -> Table:
    """Nodes at set percentiles of the mean reading, and how their traffic comes and goes with the hours."""
    stream = plan.city.stream
    count, total = node_sums(stream)
    nodes = np.flatnonzero(count > 0)
    mean = total[nodes] / count[nodes]
    order = np.lexsort((stream.node_ids[nodes], mean))  # equal means by id, so that the nodes' order plays no part
    nodes, mean = nodes[order], mean[order]
    ranks = {p: round(p / 100 * (len(nodes) - 1)) for p in PERCENTILES} if len(nodes) else {}
    tides: dict[int, dict[str, Any]] = {
        p: {"percentile": p, "node": str(stream.node_ids[nodes[rank]]), **tide(stream, int(nodes[rank]))}
        for p, rank in ranks.items()
    }
    rows = [_row(tides[p], mean, rank) for p, rank in ranks.items()]
    table = Table.make("profile", rows, city=plan.city.name)
    more = {"curve": _curve(mean), "slopes": _slopes(mean), "tides": [tides[p] for p in DRAWN if p in tides]}
    return replace(table, notes=[*table.notes, *_notes(mean, stream)], more=more)


def tide(stream: RoadNetworkStream, node: int) -> dict[str, Any]:
    """Mean and quartiles of a node's readings by local hour, on weekdays and on weekends; None without any."""
    local_s = stream.times_s + stream.utc_offset_s
    hour = local_s % DAY_S // 3600
    weekend = (local_s // DAY_S + 3) % 7 >= 5  # 1970-01-01 was a Thursday
    observed, values = stream.observed[:, node], stream.values[:, node].astype(np.float64)

    def by_hour(days: NDArray[np.bool_], measure: Callable[..., Any], *options: float) -> list[float | None]:
        groups = [values[observed & days & (hour == h)] for h in range(24)]
        return [float(measure(group, *options)) if len(group) else None for group in groups]

    found: dict[str, Any] = {
        name: {
            "mean": by_hour(days, np.mean),
            "low": by_hour(days, np.quantile, 0.25),
            "high": by_hour(days, np.quantile, 0.75),
        }
        for name, days in zip(DAYS, (~weekend, weekend), strict=True)
    }
    means = [mean for mean in by_hour(observed, np.mean) if mean is not None]
    return {**found, "swing": max(means) / min(means) if means and min(means) > 0 else None}


def _row(tides: dict[str, Any], mean: NDArray[np.float64], rank: int) -> Row:
    total = float(mean.sum())
    row: Row = {
        "percentile": tides["percentile"],
        "node": tides["node"],
        "mean": float(mean[rank]),
        "share_percent": 100 * float(mean[rank:].sum()) / total if total > 0 else None,
    }
    for name in DAYS:
        means = [(value, -hour) for hour, value in enumerate(tides[name]["mean"]) if value is not None]
        peak, hour = max(means, default=(None, None))  # of equal hours the first
        row |= {f"{name[:-1]}_peak_hour": None if hour is None else -hour, f"{name[:-1]}_peak": peak}
    return {**row, "swing": tides["swing"]}


def _curve(mean: NDArray[np.float64]) -> dict[str, list[float]]:
    """Share of the nodes with at least so much traffic, at ranks even on a log scale; sorted means come in."""
    ranks = np.unique(np.round(np.geomspace(1, max(len(mean), 1), CURVE_POINTS)).astype(int))
    ranks = ranks[ranks <= len(mean)]
    return {"mean": mean[len(mean) - ranks].tolist(), "share": (ranks / max(len(mean), 1)).tolist()}


def _notes(mean: NDArray[np.float64], stream: RoadNetworkStream) -> list[str]:
    notes = []
    if stream.quantity == "count" and (mean == 0).any():
        notes.append(f"{int((mean == 0).sum())} nodes never counted anything: a log axis cannot show them.")
    slopes = _slopes(mean)
    if slopes is not None:
        notes.append(
            "A power law is a straight line on log axes. From the 50th to the 90th percentile the share of nodes "
            f"falls with the power {slopes[0]:.2g} of the traffic, from the 90th to the 99th with {slopes[1]:.2g}; in "
            "a power law the two are equal."
        )
    return notes


def _slopes(mean: NDArray[np.float64]) -> list[float] | None:
    """How steeply the curve falls, log over log, in its middle and in its tail; None where too few nodes tell."""
    if len(mean) < 100:
        return None
    x = mean[[round(p / 100 * (len(mean) - 1)) for p in (50, 90, 99)]]
    if x[0] <= 0 or not x[0] < x[1] < x[2]:
        return None
    return [float(np.log(0.5 / 0.1) / np.log(x[1] / x[0])), float(np.log(0.1 / 0.01) / np.log(x[2] / x[1]))]


def draw(table: Table) -> plots.Figure:
    """The share of nodes with at least so much traffic, and the day at three nodes."""
    figure, axes = plots.figure(10.0, 7.0, rows=2, columns=2)
    _draw_curve(axes[0], table)
    for ax, tides in zip(axes[1:], table.more["tides"], strict=False):
        for name in DAYS:
            if any(value is not None for value in tides[name]["mean"]):
                day = {side: tides[name][side] for side in ("low", "high")}
                plots.line(ax, range(24), tides[name]["mean"], label=name, dashed=name == DAYS[1], **day)
        ax.set_xticks(range(0, 25, 6))
        bottom, top = ax.get_ylim()
        ax.set_ylim(0 if ax.dataLim.y0 >= 0 else bottom, top + 0.2 * (top - bottom))  # room for the legend
        ax.legend(loc="upper left")
        ax.set(xlabel="local hour", ylabel=table.unit)
        ax.set_title(f"Node {tides['node']}, busier than {tides['percentile']} % of nodes")
    for ax in axes[1 + len(table.more["tides"]) :]:
        ax.set_axis_off()
    return figure


def _draw_curve(ax: plots.Axes, table: Table) -> None:
    mean, share = (np.array(table.more["curve"][name]) for name in ("mean", "share"))
    ax.set(xscale="log", yscale="log")
    plots.line(ax, mean[mean > 0], share[mean > 0], label="the nodes")
    means = {row["percentile"]: number_or(0, row["mean"]) for row in table.rows}
    for percentile in DRAWN:
        if (x := means.get(percentile, 0)) > 0:
            spot = (x, share[np.abs(mean - x).argmin()])
            ax.plot(*spot, "o", color=plots.INK, markersize=5, zorder=5)
            ax.annotate(f"{percentile}th percentile", spot, xytext=(-8, -4), textcoords="offset points", ha="right")
    if (slopes := table.more["slopes"]) is not None:
        # Through the 50th and the 90th percentile, and on until the shares or three times the busiest node end it.
        law = np.array([1.0, min((0.5 / share[0]) ** (1 / slopes[0]), 3 * mean[0] / means[50])])
        plots.line(ax, means[50] * law, 0.5 * law ** -slopes[0], label="a power law", dashed=True)
        ax.legend(loc="lower left")
    ax.set(xlabel=f"mean reading of a node, {table.unit}", ylabel="share of nodes with at least that")
    ax.set_title("Traffic over the nodes")
