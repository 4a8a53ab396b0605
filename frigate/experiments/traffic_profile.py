"""How traffic spreads over the nodes (the paper's fig:traffic) and over the day (its fig:nodetimeseries).

The paper draws the traffic of edges; our readings are at nodes, so this is the distribution over nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.data.stream import DAY_S, RoadNetworkStream
from frigate.experiments import plots
from frigate.experiments.datasets import node_sums, per_step
from frigate.experiments.plan import Plan
from frigate.experiments.table import Row, Table

PERCENTILES = (1, 10, 25, 50, 75, 90, 95, 99, 100)
DRAWN = (99, 90, 50)  # the example nodes: by rank, not by hand
DAYS = ("weekdays", "weekends")
CURVE_POINTS = 300
COLUMNS = {
    "percentile": "of the nodes, from the quietest to the busiest, %",
    "node": "the node at this rank",
    "mean": "its mean reading over the record, per step",
    "share_percent": "readings at it and at all busier nodes, % of the sum of the nodes' means",
    "weekday_peak_hour": "local hour with the highest mean reading, Monday to Friday",
    "weekday_peak": "mean reading in that hour, per step",
    "weekend_peak_hour": "the same, Saturday and Sunday",
    "weekend_peak": "mean reading in that hour, per step",
    "swing": "mean reading of the busiest over that of the quietest hour, all days; none where the latter is 0",
}


def measure(plan: Plan) -> Table:
    """Nodes at set percentiles of the mean reading, and how their traffic comes and goes with the hours."""
    stream = plan.city.stream
    count, total = node_sums(stream)
    nodes = np.flatnonzero(count > 0)
    mean = total[nodes] / count[nodes]
    order = np.lexsort((stream.node_ids[nodes], mean))  # equal means by id, so that the nodes' order plays no part
    nodes, mean = nodes[order], mean[order]
    ranks = {p: round(p / 100 * (len(nodes) - 1)) for p in PERCENTILES} if len(nodes) else {}
    tides = {p: tide(stream, int(nodes[rank])) for p, rank in ranks.items()}
    rows = [_row(stream, p, int(nodes[rank]), mean, rank, tides[p]) for p, rank in ranks.items()]
    return Table(
        "profile",
        f"Traffic over the nodes and over the day: {plan.city.name}",
        rows=rows,
        columns=COLUMNS,
        notes=_notes(mean, stream),
        more={
            "unit": per_step(stream),
            "curve": _curve(mean),
            "slopes": _slopes(mean),
            "tides": [
                {"percentile": p, "node": str(stream.node_ids[nodes[ranks[p]]]), **tides[p]}
                for p in DRAWN
                if p in ranks
            ],
        },
    )


def tide(stream: RoadNetworkStream, node: int) -> dict[str, Any]:
    """Mean and quartiles of a node's readings by local hour, on weekdays and on weekends; None without any."""
    local_s = stream.times_s + stream.utc_offset_s
    hour = local_s % DAY_S // 3600
    weekend = (local_s // DAY_S + 3) % 7 >= 5  # 1970-01-01 was a Thursday
    observed, values = stream.observed[:, node], stream.values[:, node].astype(np.float64)
    found: dict[str, Any] = {}
    for name, days in zip(DAYS, (~weekend, weekend), strict=True):
        groups = [values[observed & days & (hour == h)] for h in range(24)]
        found[name] = {
            "mean": [float(group.mean()) if len(group) else None for group in groups],
            "low": [float(np.quantile(group, 0.25)) if len(group) else None for group in groups],
            "high": [float(np.quantile(group, 0.75)) if len(group) else None for group in groups],
        }
    by_hour = [values[observed & (hour == h)] for h in range(24)]
    means = [float(group.mean()) for group in by_hour if len(group)]
    found["swing"] = max(means) / min(means) if means and min(means) > 0 else None
    return found


def _row(
    stream: RoadNetworkStream, percentile: int, node: int, mean: NDArray[np.float64], rank: int, tides: dict[str, Any]
) -> Row:
    total = float(mean.sum())
    row: Row = {
        "percentile": percentile,
        "node": str(stream.node_ids[node]),
        "mean": float(mean[rank]),
        "share_percent": 100 * float(mean[rank:].sum()) / total if total > 0 else None,
    }
    for name in DAYS:
        means = tides[name]["mean"]
        there = [h for h in range(24) if means[h] is not None]
        peak = max(there, key=lambda h: float(means[h]), default=None)
        row[f"{name[:-1]}_peak_hour"] = peak
        row[f"{name[:-1]}_peak"] = None if peak is None else means[peak]
    return {**row, "swing": tides["swing"]}


def _curve(mean: NDArray[np.float64]) -> dict[str, list[float]]:
    """Share of the nodes with at least so much traffic, at ranks even on a log scale; sorted means come in."""
    ranks = np.unique(np.round(np.geomspace(1, max(len(mean), 1), CURVE_POINTS)).astype(int))
    ranks = ranks[ranks <= len(mean)]
    return {"mean": mean[len(mean) - ranks].tolist(), "share": (ranks / max(len(mean), 1)).tolist()}


def _notes(mean: NDArray[np.float64], stream: RoadNetworkStream) -> list[str]:
    notes = [
        "Over nodes that ever have a reading. The paper draws edges: our readings are counts at intersections, from "
        "which the traffic of single roads does not follow.",
        "The nodes drawn are those at the 99th, 90th and 50th percentile of the mean reading: chosen by rank. Bands: "
        "the middle half of the single readings in an hour. Hours and days are the city's own.",
    ]
    if (stream.quantity == "count") and len(mean) and (mean == 0).any():
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
    unit = table.more["unit"]
    _draw_curve(axes[0], table)
    for ax, tides in zip(axes[1:], table.more["tides"], strict=False):
        for name in DAYS:
            day = tides[name]
            if any(value is not None for value in day["mean"]):
                plots.line(
                    ax, range(24), day["mean"], label=name, low=day["low"], high=day["high"], dashed=name == DAYS[1]
                )
        ax.set_xticks(range(0, 25, 6))
        bottom, top = ax.get_ylim()
        ax.set_ylim(0 if ax.dataLim.y0 >= 0 else bottom, top + 0.2 * (top - bottom))  # room for the legend
        ax.legend(frameon=False, loc="upper left")
        busier = f"busier than {tides['percentile']} % of nodes"
        plots.label(ax, x="local hour", y=unit, title=f"Node {tides['node']}, {busier}")
    for ax in axes[1 + len(table.more["tides"]) :]:
        ax.set_axis_off()
    return figure


def _draw_curve(ax: plots.Axes, table: Table) -> None:
    curve = table.more["curve"]
    shown = [(x, y) for x, y in zip(curve["mean"], curve["share"], strict=True) if x > 0]
    ax.set_xscale("log")
    ax.set_yscale("log")
    plots.line(ax, [x for x, _ in shown], [y for _, y in shown], label="the nodes")
    means = {row["percentile"]: row["mean"] for row in table.rows}
    for percentile in DRAWN:
        mean = means.get(percentile)
        if isinstance(mean, float) and mean > 0:
            share = curve["share"][int(np.argmin(np.abs(np.array(curve["mean"]) - mean)))]
            ax.plot([mean], [share], "o", color=plots.INK, markersize=5, zorder=5)
            spot = (mean, share)
            ax.annotate(f"{percentile}th percentile", spot, xytext=(-8, -4), textcoords="offset points", ha="right")
    median, slopes = means.get(50), table.more["slopes"]
    if slopes is not None and isinstance(median, float):
        # Through the 50th and the 90th percentile, and on until the shares or three times the busiest node end it.
        law = np.array([1.0, min((0.5 / curve["share"][0]) ** (1 / slopes[0]), 3 * curve["mean"][0] / median)])
        plots.line(ax, median * law, 0.5 * law ** -slopes[0], label="a power law", dashed=True)
        ax.legend(frameon=False, loc="lower left")
    x = f"mean reading of a node, {table.more['unit']}"
    plots.label(ax, x=x, y="share of nodes with at least that", title="Traffic over the nodes")
