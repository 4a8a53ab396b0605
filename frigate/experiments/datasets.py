"""The paper's table of data (tbl:dataset_details) for our city, beside its own three rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from frigate.data.coordinates import EARTH_RADIUS_M
from frigate.data.network import RoadNetwork
from frigate.data.stream import RoadNetworkStream
from frigate.experiments import plots
from frigate.experiments.plan import Plan
from frigate.experiments.table import Row, Table

ROWS_AT_ONCE = 512  # snapshots: readings lie in a file that need not be in memory whole

# tbl:dataset_details: nodes, roads, km2, mean, std, seen, trips
PAPER = {
    "Beijing": (28465, 64478, 16411, 3.22, 9.09, 5, 785709),
    "Chengdu": (3193, 7269, 14378, 4.54, 7.19, 50, 1448940),
    "Harbin": (6235, 15205, 53068, 77.85, 124.11, 30, 659141),
}
COLUMNS = {
    "city": "name",
    "kind": "ours, or paper for the rows of its own table",
    "nodes": "intersections",
    "roads": "directed roads",
    "area_km2": "ours: convex hull of the nodes; the paper's: of the whole municipality, it seems; km²",
    "mean": "of all readings (node, step) that there are, zeros among them; vehicles per step, or the city's unit",
    "std": "standard deviation of the same readings",
    "zero_percent": "readings that are 0, % of the readings",
    "missing_percent": "pairs of a sensor and a step without a reading, %",
    "sensors": "nodes that ever have a reading",
    "seen_percent": "sensors that a model may read in the experiments, unless they say otherwise, %",
    "snapshots": "steps of the record",
    "step_min": "minutes in a step",
    "start": "start of the first snapshot, local time",
    "end": "end of the last snapshot, local time",
    "total": "sum of all readings; of counts only: a vehicle is counted at every node that it passes",
    "trips": "as the paper has them; counts at nodes do not tell how many trips there were",
}
PAPER_STEP_MIN = 5


def measure(plan: Plan) -> Table:
    """The row of the plan's city, and its map for the plot."""
    city, stream = plan.city, plan.city.stream
    network = stream.network
    count, total = node_sums(stream)
    readings = int(count.sum())
    mean, std, zeros = _spread(stream, readings, float(total.sum()))
    sensors = int(stream.sensors.sum())
    ours: Row = {
        "city": city.name,
        "kind": "ours",
        "nodes": int(network.present.sum()),
        "roads": network.num_edges,
        "area_km2": area_km2(network.lon[network.present], network.lat[network.present]),
        "mean": mean,
        "std": std,
        "zero_percent": 100 * zeros / readings if readings else None,
        "missing_percent": 100 * (1 - readings / (sensors * stream.num_snapshots)) if readings else None,
        "sensors": sensors,
        "seen_percent": 100 * plan.seen,
        "snapshots": stream.num_snapshots,
        "step_min": stream.step_s / 60,
        "start": stream.local_time(stream.start_s),
        "end": stream.local_time(stream.start_s + stream.num_snapshots * stream.step_s),
        "total": float(total.sum()) if stream.quantity == "count" else None,
        "trips": None,
    }
    return Table(
        "datasets",
        f"The data: {city.name}",
        rows=[ours, *_paper_rows()],
        columns=COLUMNS,
        notes=_notes(stream),
        more={"map": _map(network, count, total), "unit": per_step(stream), "count": stream.quantity == "count"},
    )


def node_sums(stream: RoadNetworkStream) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Readings and their sum of every node, each [N]."""
    count, total = np.zeros(stream.num_nodes, np.int64), np.zeros(stream.num_nodes)
    for first in range(0, stream.num_snapshots, ROWS_AT_ONCE):
        observed = stream.observed[first : first + ROWS_AT_ONCE]
        values = stream.values[first : first + ROWS_AT_ONCE]
        count += observed.sum(axis=0)
        total += np.where(observed, values, 0).sum(axis=0, dtype=np.float64)
    return count, total


def _spread(stream: RoadNetworkStream, readings: int, total: float) -> tuple[float | None, float | None, int]:
    """Mean and standard deviation of all readings, and how many are 0."""
    if readings == 0:
        return None, None, 0
    mean, squares, zeros = total / readings, 0.0, 0
    for first in range(0, stream.num_snapshots, ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        values = stream.values[part][stream.observed[part]].astype(np.float64)
        squares += float(((values - mean) ** 2).sum())
        zeros += int((values == 0).sum())
    return mean, float(np.sqrt(squares / readings)), zeros


def area_km2(lon: NDArray[np.float64], lat: NDArray[np.float64]) -> float:
    """Of the convex hull of these places, on a plane that touches the Earth in their middle; 0 if all are in line."""
    if len(lon) < 3:
        return 0.0
    middle = np.radians((lat.min() + lat.max()) / 2)
    x, y = np.radians(lon - lon.min()) * np.cos(middle), np.radians(lat - lat.min())
    try:
        hull = ConvexHull(np.stack([x, y], axis=1) * EARTH_RADIUS_M / 1000)
    except QhullError:
        return 0.0
    return float(hull.volume)  # in two dimensions scipy calls the area so


def per_step(stream: RoadNetworkStream) -> str:
    """The unit of a reading, for an axis."""
    unit = stream.unit or ("vehicles" if stream.quantity == "count" else stream.quantity)
    return f"{unit} per {stream.step_s / 60:g} min" if stream.quantity == "count" else unit


def _paper_rows() -> list[Row]:
    names = ("nodes", "roads", "area_km2", "mean", "std", "seen_percent", "trips")
    rows: list[Row] = []
    for city, numbers in PAPER.items():
        known: Row = {"city": city, "kind": "paper", "step_min": PAPER_STEP_MIN, "snapshots": None}
        rows.append({**dict.fromkeys(COLUMNS), **known, **dict(zip(names, numbers, strict=True))})
    return rows


def _notes(stream: RoadNetworkStream) -> list[str]:
    others = len({network.fingerprint for network in stream.topologies})
    changed = f" The roads change during the record: {others} different networks." if others > 1 else ""
    return [
        "Mean, spread and zeros are over the readings that there are; the paper does not say over which cells its own "
        "are taken.",
        "Nodes and roads are those of the last snapshot." + changed,
        "The paper's areas seem to be those of the whole municipalities; ours is the convex hull of the nodes, so the "
        "two do not compare.",
        "The paper counts trips. Our readings are counts of passing vehicles at nodes: their total is no number of "
        "trips, since one trip is counted at every node on its way.",
    ]


def _map(network: RoadNetwork, count: NDArray[np.int64], total: NDArray[np.float64]) -> dict[str, Any]:
    """Places, means and streets of the present nodes, rounded to what a picture shows."""
    rows = np.flatnonzero(network.present)
    row_of = np.full(network.num_nodes, -1)
    row_of[rows] = np.arange(len(rows))
    ends = np.sort(row_of[np.stack([network.senders, network.receivers], axis=1)], axis=1)
    streets = np.unique(ends[(ends >= 0).all(axis=1)], axis=0)
    means = [float(f"{t / c:.4g}") if c else None for c, t in zip(count[rows], total[rows], strict=True)]
    return {
        "lon": np.round(network.lon[rows], 5).tolist(),
        "lat": np.round(network.lat[rows], 5).tolist(),
        "mean": means,
        "from": streets[:, 0].tolist(),
        "to": streets[:, 1].tolist(),
    }


def draw(table: Table) -> plots.Figure:
    """The map of the nodes, coloured by their mean reading."""
    here = table.more["map"]
    lon, lat = np.array(here["lon"], float), np.array(here["lat"], float)
    mean = np.array([np.nan if value is None else value for value in here["mean"]])
    tall = np.ptp(lat) / max(np.ptp(lon) * np.cos(np.radians(lat.mean())), 1e-9)
    width = min(6.0, 6.5 / max(tall, 0.3))
    figure, (ax, *_) = plots.figure(width + 2.4, max(width * tall, 3.0) + 1.0)  # says so where matplotlib is missing

    from matplotlib.collections import LineCollection

    place = np.stack([lon, lat], axis=1)
    streets = place[np.stack([here["from"], here["to"]], axis=1).astype(int)]
    # As pixels even in an SVG: ten thousand streets would make it megabytes.
    ax.add_collection(LineCollection(list(streets), colors="0.8", linewidths=0.6, zorder=1, rasterized=True))
    _dots(figure, ax, place, mean, table)
    ax.grid(visible=False)
    ax.set_aspect(1 / np.cos(np.radians(lat.mean())))
    plots.label(
        ax, x="longitude, degrees", y="latitude, degrees", title=f"{table.rows[0]['city']}: mean reading of each node"
    )
    return figure


def _dots(
    figure: plots.Figure, ax: plots.Axes, place: NDArray[np.float64], mean: NDArray[np.float64], table: Table
) -> None:
    from matplotlib.colors import LogNorm, Normalize

    size = float(np.clip(25000 / len(mean), 3, 60))
    silent = np.isnan(mean)
    if silent.any():
        ax.scatter(
            place[silent, 0], place[silent, 1], s=size, facecolors="none", edgecolors="0.6", linewidths=0.6, zorder=2
        )
        ax.scatter([], [], s=30, facecolors="none", edgecolors="0.6", label="never a reading")
        ax.legend(loc="best", frameon=False)
    if silent.all():
        return
    known, norm = mean[~silent], None
    if table.more["count"] and (known > 0).any():
        # Three decades are what eyes can tell apart; the few quieter nodes have the palest colour.
        most, least = known.max(), known[known > 0].min()
        norm = LogNorm(max(least, most / 1e3) if least < most else most / 10, most, clip=True)
    order = np.flatnonzero(~silent)[np.argsort(known, kind="stable")]  # the busy ones on top
    dots = ax.scatter(
        place[order, 0], place[order, 1], c=mean[order], s=size, cmap="viridis_r", norm=norm or Normalize(),
        linewidths=0, zorder=3, rasterized=True,
    )  # fmt: skip
    figure.colorbar(dots, ax=ax, label=f"mean reading, {table.more['unit']}", shrink=0.8)
