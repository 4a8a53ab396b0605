"""The data of the city: the paper's data table (tbl:dataset_details) with a row for our city, and the distribution of
traffic over the nodes (fig:traffic) and over the day (fig:nodetimeseries).

The paper shows the traffic of edges. Our readings are at nodes, so we show the distribution over nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from frigate.calendar import HOURS, KINDS_OF_DAY, hourly_bins
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.coordinates import EARTH_RADIUS_M
from frigate.experiments import plots
from frigate.experiments.plan import Plan
from frigate.experiments.table import ResultTable, Row, number_or

# tbl:dataset_details: nodes, roads, km2, mean, std, seen, trips
PAPER = {
    "Beijing": (28465, 64478, 16411, 3.22, 9.09, 5, 785709),
    "Chengdu": (3193, 7269, 14378, 4.54, 7.19, 50, 1448940),
    "Harbin": (6235, 15205, 53068, 77.85, 124.11, 30, 659141),
}
PAPER_STEP_MIN = 5


def measure_datasets(plan: Plan) -> ResultTable:
    """The row of the plan's city, the paper's rows, and the map for the plot."""
    city = plan.city
    stream = plan.city.stream
    network = stream.network
    count, total = node_sums(stream)
    readings = int(count.sum())
    summed = float(total.sum())
    sensors = int(stream.sensors.sum())
    mean = summed / readings if readings else None
    squares = float(np.einsum("sn,sn->", stream.values, stream.values, dtype=np.float64))
    ours: Row = {
        "city": city.name,
        "kind": "ours",
        "nodes": int(network.present.sum()),
        "roads": network.num_edges,
        "area_km2": area_km2(network.lon[network.present], network.lat[network.present]),
        "mean": mean,
        "std": None if mean is None else float(np.sqrt(max(0.0, squares / readings - mean**2))),
        "zero_percent": 100 * (1 - np.count_nonzero(stream.values) / readings) if readings else None,
        "missing_percent": 100 * (1 - readings / (sensors * stream.num_snapshots)) if readings else None,
        "sensors": sensors,
        "seen_percent": 100 * plan.seen,
        "snapshots": stream.num_snapshots,
        "step_min": stream.step_s / 60,
        "start": stream.local_time(stream.start_s),
        "end": stream.local_time(stream.end_s),
        "total": summed if stream.quantity == "count" else None,
        "trips": None,
    }
    versions = len({network.fingerprint for network in stream.networks})
    changed = f" The roads change during the record: {versions} different networks." if versions > 1 else ""
    more = {"map": _map(network, count, total), "count": stream.quantity == "count"}
    return ResultTable.make("datasets", [ours, *_paper_rows(ours)], more, city=city.name, changed=changed)


def node_sums(stream: RoadNetworkStream) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Number and sum of the readings of every node, each [N]; missing readings are 0 in a stream."""
    return stream.observed.sum(axis=0), stream.values.sum(axis=0, dtype=np.float64)


def area_km2(lon: NDArray[np.float64], lat: NDArray[np.float64]) -> float:
    """Area of the convex hull of these points, on a plane tangent at their centre; 0 if they are collinear."""
    if len(lon) < 3:
        return 0.0
    middle = np.radians((lat.min() + lat.max()) / 2)
    x = np.radians(lon - lon.min()) * np.cos(middle)
    y = np.radians(lat - lat.min())
    try:
        hull = ConvexHull(np.stack([x, y], axis=1) * EARTH_RADIUS_M / 1000)
    except QhullError:
        return 0.0
    return float(hull.volume)  # scipy's name for the area in two dimensions


def _paper_rows(ours: Row) -> list[Row]:
    names = ("city", "kind", "step_min", "nodes", "roads", "area_km2", "mean", "std", "seen_percent", "trips")
    cells = [(city, "paper", PAPER_STEP_MIN, *numbers) for city, numbers in PAPER.items()]
    return [{**dict.fromkeys(ours), **dict(zip(names, row, strict=True))} for row in cells]


def _map(network: RoadNetwork, count: NDArray[np.int64], total: NDArray[np.float64]) -> dict[str, Any]:
    """Coordinates, means and streets of the present nodes, rounded to plotting precision."""
    rows = np.flatnonzero(network.present)
    row_of = np.cumsum(network.present) - 1
    streets = np.unique(np.sort(row_of[[network.senders, network.receivers]], axis=0), axis=1).tolist()
    means = [float(f"{t / c:.4g}") if c else None for c, t in zip(count[rows], total[rows], strict=True)]
    return {
        "lon": np.round(network.lon[rows], 5).tolist(),
        "lat": np.round(network.lat[rows], 5).tolist(),
        "mean": means,
        "from": streets[0],
        "to": streets[1],
    }


def draw_datasets(table: ResultTable) -> plots.Figure:
    """The map of the nodes, coloured by their mean reading."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LogNorm

    drawn = table.more["map"]
    place = np.array([drawn["lon"], drawn["lat"]], float).T
    mean = np.array(drawn["mean"], float)
    squeeze = np.cos(np.radians(place[:, 1].mean()))  # degree of longitude relative to latitude
    wide, high = np.ptp(place, axis=0) * [squeeze, 1]
    tall = high / max(wide, 1e-9)
    width = min(6.0, 6.5 / max(tall, 0.3))
    figure, (ax,) = plots.figure(width + 2.4, max(width * tall, 3.0) + 1.0)
    streets = place[np.array([drawn["from"], drawn["to"]], int).T]
    # Rasterized even in an SVG: ten thousand streets would make it megabytes.
    ax.add_collection(LineCollection(list(streets), colors="0.8", linewidths=0.6, zorder=0.5, rasterized=True))
    size = float(np.clip(25000 / len(mean), 3, 60))
    silent = np.isnan(mean)
    order = np.argsort(mean, kind="stable")  # busy nodes on top
    if silent.any():
        x, y = place[silent].T
        ax.scatter(x, y, s=size, facecolors="none", edgecolors="0.6", linewidths=0.6, label="no readings")
        ax.legend(loc="best")
    norm = None
    if table.more["count"] and (mean > 0).any():
        # Three decades of colour are distinguishable; the few quieter nodes get the palest colour.
        most = np.nanmax(mean)
        least = mean[mean > 0].min()
        norm = LogNorm(max(least, most / 1e3) if least < most else most / 10, most, clip=True)
    if not silent.all():
        x, y = place[order].T
        dots = ax.scatter(x, y, c=mean[order], s=size, cmap="viridis_r", norm=norm, linewidths=0, rasterized=True)
        figure.colorbar(dots, ax=ax, label=f"mean reading, {table.unit}", shrink=0.8)
    ax.grid(visible=False)
    ax.set_aspect(1 / squeeze)
    ax.set(xlabel="longitude, degrees", ylabel="latitude, degrees")
    ax.set_title("Mean reading of each node")
    return figure


PERCENTILES = (1, 10, 25, 50, 75, 90, 95, 99, 100)
DRAWN = (99, 90, 50)  # percentiles of the example nodes
DAYS = ("weekdays", "weekends")
CURVE_POINTS = 300


def measure_profile(plan: Plan) -> ResultTable:
    """Nodes at fixed percentiles of the mean reading, and their traffic by hour."""
    stream = plan.city.stream
    count, total = node_sums(stream)
    nodes = np.flatnonzero(count > 0)
    mean = total[nodes] / count[nodes]
    order = np.lexsort((stream.node_ids[nodes], mean))  # ties by id, so that the order of nodes does not matter
    nodes = nodes[order]
    mean = mean[order]
    ranks = {p: round(p / 100 * (len(nodes) - 1)) for p in PERCENTILES} if len(nodes) else {}
    tides: dict[int, dict[str, Any]] = {
        p: {"percentile": p, "node": str(stream.node_ids[nodes[rank]]), **tide(stream, int(nodes[rank]))}
        for p, rank in ranks.items()
    }
    rows = [_profile_row(tides[p], mean, rank) for p, rank in ranks.items()]
    table = ResultTable.make("profile", rows, city=plan.city.name)
    more = {"curve": _curve(mean), "slopes": _slopes(mean), "tides": [tides[p] for p in DRAWN if p in tides]}
    return replace(table, notes=[*table.notes, *_profile_notes(mean, stream)], more=more)


def tide(stream: RoadNetworkStream, node: int) -> dict[str, Any]:
    """Mean and quartiles of a node's readings by local hour, for weekdays and weekends; None where there are none."""
    kind, hour = np.divmod(hourly_bins(stream.wall_clock), HOURS)
    weekend = kind == KINDS_OF_DAY.index("weekend")
    observed = stream.observed[:, node]
    values = stream.values[:, node].astype(np.float64)

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


def _profile_row(tides: dict[str, Any], mean: NDArray[np.float64], rank: int) -> Row:
    total = float(mean.sum())
    row: Row = {
        "percentile": tides["percentile"],
        "node": tides["node"],
        "mean": float(mean[rank]),
        "share_percent": 100 * float(mean[rank:].sum()) / total if total > 0 else None,
    }
    for name in DAYS:
        means = [(value, -hour) for hour, value in enumerate(tides[name]["mean"]) if value is not None]
        peak, hour = max(means, default=(None, None))  # of equal hours, the first
        row |= {f"{name[:-1]}_peak_hour": None if hour is None else -hour, f"{name[:-1]}_peak": peak}
    return {**row, "swing": tides["swing"]}


def _curve(mean: NDArray[np.float64]) -> dict[str, list[float]]:
    """Share of nodes with at least this much traffic, at log-spaced ranks; `mean` is sorted."""
    ranks = np.unique(np.round(np.geomspace(1, max(len(mean), 1), CURVE_POINTS)).astype(int))
    ranks = ranks[ranks <= len(mean)]
    return {"mean": mean[len(mean) - ranks].tolist(), "share": (ranks / max(len(mean), 1)).tolist()}


def _profile_notes(mean: NDArray[np.float64], stream: RoadNetworkStream) -> list[str]:
    notes = []
    if stream.quantity == "count" and (mean == 0).any():
        notes.append(f"{int((mean == 0).sum())} nodes never counted a vehicle and are not on the log axis.")
    slopes = _slopes(mean)
    if slopes is not None:
        notes.append(
            "A power law is a straight line on log axes. The exponent is "
            f"{slopes[0]:.2g} from the 50th to the 90th percentile, and {slopes[1]:.2g} from the 90th to the 99th; in "
            "a power law the two would be equal."
        )
    return notes


def _slopes(mean: NDArray[np.float64]) -> list[float] | None:
    """Log-log slope of the curve in its middle and in its tail; None if there are too few nodes."""
    if len(mean) < 100:
        return None
    x = mean[[round(p / 100 * (len(mean) - 1)) for p in (50, 90, 99)]]
    if x[0] <= 0 or not x[0] < x[1] < x[2]:
        return None
    return [float(np.log(0.5 / 0.1) / np.log(x[1] / x[0])), float(np.log(0.1 / 0.01) / np.log(x[2] / x[1]))]


def draw_profile(table: ResultTable) -> plots.Figure:
    """The share of nodes with at least this much traffic, and the day at three nodes."""
    figure, axes = plots.figure(10.0, 7.0, rows=2, columns=2)
    _draw_curve(axes[0], table)
    for ax, tides in zip(axes[1:], table.more["tides"], strict=False):
        for name in DAYS:
            mean, low, high = (tides[name][part] for part in ("mean", "low", "high"))
            if any(value is not None for value in mean):
                plots.line(ax, range(24), mean, label=name, low=low, high=high, dashed=name == DAYS[1])
        ax.set_xticks(range(0, 25, 6))
        bottom, top = ax.get_ylim()
        ax.set_ylim(0 if ax.dataLim.y0 >= 0 else bottom, top + 0.2 * (top - bottom))  # room for the legend
        ax.legend(loc="upper left")
        ax.set(xlabel="local hour", ylabel=table.unit)
        ax.set_title(f"Node {tides['node']}, busier than {tides['percentile']} % of nodes")
    for ax in axes[1 + len(table.more["tides"]) :]:
        ax.set_axis_off()
    return figure


def _draw_curve(ax: plots.Axes, table: ResultTable) -> None:
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
        # Through the 50th and 90th percentile, extended to the smallest share or three times the busiest node.
        law = np.array([1.0, min((0.5 / share[0]) ** (1 / slopes[0]), 3 * mean[0] / means[50])])
        plots.line(ax, means[50] * law, 0.5 * law ** -slopes[0], label="a power law", dashed=True)
        ax.legend(loc="lower left")
    ax.set(xlabel=f"mean reading of a node, {table.unit}", ylabel="share of nodes with at least this")
    ax.set_title("Traffic over the nodes")
