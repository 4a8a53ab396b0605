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

# tbl:dataset_details: nodes, roads, km2, mean, std, seen, trips
PAPER = {
    "Beijing": (28465, 64478, 16411, 3.22, 9.09, 5, 785709),
    "Chengdu": (3193, 7269, 14378, 4.54, 7.19, 50, 1448940),
    "Harbin": (6235, 15205, 53068, 77.85, 124.11, 30, 659141),
}
PAPER_STEP_MIN = 5


def measure(plan: Plan) -> Table:
    """The row of the plan's city, and its map for the plot."""
    city, stream = plan.city, plan.city.stream
    network = stream.network
    count, total = node_sums(stream)
    readings, summed, sensors = int(count.sum()), float(total.sum()), int(stream.sensors.sum())
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
        "end": stream.local_time(stream.start_s + stream.num_snapshots * stream.step_s),
        "total": summed if stream.quantity == "count" else None,
        "trips": None,
    }
    versions = len({network.fingerprint for network in stream.topologies})
    changed = f" The roads change during the record: {versions} different networks." if versions > 1 else ""
    more = {"map": _map(network, count, total), "count": stream.quantity == "count"}
    return Table.make("datasets", [ours, *_paper_rows(ours)], more, city=city.name, changed=changed)


def node_sums(stream: RoadNetworkStream) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Readings and their sum of every node, each [N]; what is not observed is 0 in a stream."""
    return stream.observed.sum(axis=0), stream.values.sum(axis=0, dtype=np.float64)


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


def _paper_rows(ours: Row) -> list[Row]:
    names = ("city", "kind", "step_min", "nodes", "roads", "area_km2", "mean", "std", "seen_percent", "trips")
    cells = [(city, "paper", PAPER_STEP_MIN, *numbers) for city, numbers in PAPER.items()]
    return [{**dict.fromkeys(ours), **dict(zip(names, row, strict=True))} for row in cells]


def _map(network: RoadNetwork, count: NDArray[np.int64], total: NDArray[np.float64]) -> dict[str, Any]:
    """Places, means and streets of the present nodes, rounded to what a picture shows."""
    rows, row_of = np.flatnonzero(network.present), np.cumsum(network.present) - 1
    streets = np.unique(np.sort(row_of[[network.senders, network.receivers]], axis=0), axis=1).tolist()
    means = [float(f"{t / c:.4g}") if c else None for c, t in zip(count[rows], total[rows], strict=True)]
    return {
        "lon": np.round(network.lon[rows], 5).tolist(),
        "lat": np.round(network.lat[rows], 5).tolist(),
        "mean": means,
        "from": streets[0],
        "to": streets[1],
    }


def draw(table: Table) -> plots.Figure:
    """The map of the nodes, coloured by their mean reading."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LogNorm

    here = table.more["map"]
    place = np.array([here["lon"], here["lat"]], float).T
    mean = np.array(here["mean"], float)
    squeeze = np.cos(np.radians(place[:, 1].mean()))  # of a degree of longitude
    wide, high = np.ptp(place, axis=0) * [squeeze, 1]
    tall = high / max(wide, 1e-9)
    width = min(6.0, 6.5 / max(tall, 0.3))
    figure, (ax,) = plots.figure(width + 2.4, max(width * tall, 3.0) + 1.0)
    streets = place[np.array([here["from"], here["to"]], int).T]
    # As pixels even in an SVG: ten thousand streets would make it megabytes.
    ax.add_collection(LineCollection(list(streets), colors="0.8", linewidths=0.6, zorder=0.5, rasterized=True))
    size = float(np.clip(25000 / len(mean), 3, 60))
    silent, order = np.isnan(mean), np.argsort(mean, kind="stable")  # the busy ones on top
    if silent.any():
        x, y = place[silent].T
        ax.scatter(x, y, s=size, facecolors="none", edgecolors="0.6", linewidths=0.6, label="never a reading")
        ax.legend(loc="best")
    norm = None
    if table.more["count"] and (mean > 0).any():
        # Three decades are what eyes can tell apart; the few quieter nodes have the palest colour.
        most, least = np.nanmax(mean), mean[mean > 0].min()
        norm = LogNorm(max(least, most / 1e3) if least < most else most / 10, most, clip=True)
    if not silent.all():
        x, y = place[order].T
        dots = ax.scatter(x, y, c=mean[order], s=size, cmap="viridis_r", norm=norm, linewidths=0, rasterized=True)
        figure.colorbar(dots, ax=ax, label=f"mean reading, {table.unit}", shrink=0.8)
    ax.grid(visible=False)
    ax.set_aspect(1 / squeeze)
    ax.set(xlabel="longitude, degrees", ylabel="latitude, degrees")
    ax.set_title(f"{table.rows[0]['city']}: mean reading of each node")
    return figure
