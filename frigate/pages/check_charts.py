"""Charts of the check page: the mean at each sensor, the usual day, and the roads that change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S
from frigate.city.network import NodeId, RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.pages.charts import Chart
from frigate.pages.maps import BaseMap
from frigate.pages.svg import Drawing

BLOCK_CELLS = 16_000_000  # values read from the file at once
MIN_BIN_S = 900  # of the usual day
KINDS = ("Monday to Friday", "Saturday and Sunday")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Usual:
    """Mean readings."""

    of_node: Floats  # [N] NaN: no reading
    of_day: Floats  # [2,K] by kind of day (see KINDS) and time of day; NaN: no reading
    bin_s: int  # width of a time-of-day bin


def usual(stream: RoadNetworkStream) -> Usual:
    """The mean reading of each node, and of all nodes by time of day."""
    S, N = stream.values.shape
    bin_s = min(DAY_S, max(MIN_BIN_S, stream.step_s))
    local_s = stream.times_s + stream.utc_offset_s
    weekend = (local_s // DAY_S + 3) % 7 >= 5  # 1970-01-01 was a Thursday
    group = weekend * (DAY_S // bin_s) + local_s % DAY_S // bin_s  # [S]
    sums = np.zeros(N)
    counts = np.zeros(N)
    of_day, count_of_day = (np.zeros(2 * (DAY_S // bin_s)) for _ in range(2))
    for first in range(0, S, max(1, BLOCK_CELLS // max(1, N))):
        part = slice(first, first + max(1, BLOCK_CELLS // max(1, N)))
        values = stream.values[part]
        observed = stream.observed[part]
        sums += values.sum(axis=0, dtype=np.float64)
        counts += observed.sum(axis=0)
        np.add.at(of_day, group[part], values.sum(axis=1, dtype=np.float64))
        np.add.at(count_of_day, group[part], observed.sum(axis=1))
    with np.errstate(invalid="ignore"):
        return Usual(sums / counts, (of_day / count_of_day).reshape(2, -1), bin_s)


def day_chart(usual: Usual, unit: str) -> Chart:
    """The usual day as two lines: weekdays and weekends."""
    hours = (np.arange(usual.of_day.shape[1]) + 0.5) * usual.bin_s / 3600
    ticks = [(float(h), f"{h}:00") for h in range(0, 25, 3)]
    title = "Mean of all sensors by time of day"
    chart = Chart(title, unit, (0.0, 24.0), list(usual.of_day), ticks, x_label="local time")
    for css, line in zip(("s0", "s4"), usual.of_day, strict=True):
        if len(hours) > 1:
            chart.line(css, hours, line)
        else:  # steps of a day
            chart.line(css, np.array([0.0, 24.0]), np.repeat(line, 2))
    return chart


# Roads that change


@dataclass(frozen=True)
class RoadChange:
    """The roads that close and open at a snapshot."""

    time: str  # local
    closed: list[tuple[NodeId, NodeId]]
    opened: list[tuple[NodeId, NodeId]]


def road_changes(stream: RoadNetworkStream) -> list[RoadChange]:
    """Every snapshot whose roads differ from those of the snapshot before."""
    keys = [_keys(network) for network in stream.networks]
    ids = stream.node_ids.tolist()
    N = stream.num_nodes

    def named(roads: NDArray[np.int64]) -> list[tuple[NodeId, NodeId]]:
        return [(ids[road // N], ids[road % N]) for road in roads.tolist()]

    changes = []
    for snapshot in (np.flatnonzero(np.diff(stream.network_of)) + 1).tolist():
        old, new = (keys[int(stream.network_of[s])] for s in (snapshot - 1, snapshot))
        closed = np.setdiff1d(old, new)
        opened = np.setdiff1d(new, old)
        if len(closed) or len(opened):
            time = stream.local_time(int(stream.times_s[snapshot]))
            changes.append(RoadChange(time, named(closed), named(opened)))
    return changes


def _keys(network: RoadNetwork) -> NDArray[np.int64]:
    return network.senders * network.num_nodes + network.receivers


def change_map(base: BaseMap, stream: RoadNetworkStream) -> tuple[Drawing, dict[str, int]]:
    """The network with the roads that change marked, and their number by kind (a CSS class)."""
    drawing = base.draw("Roads that change")
    keys = [_keys(network) for network in stream.networks]
    first, last = (keys[int(stream.network_of[end])] for end in (0, -1))
    counts = {"for-a-time": 0, "lasting": 0}
    drawn = np.zeros(0, np.int64)
    for network, own in zip(stream.networks, keys, strict=True):
        others = [np.isin(own, each) for each in keys]
        changing = ~np.logical_and.reduce(others) & ~np.isin(own, drawn)
        lasting = np.isin(own, first) != np.isin(own, last)
        for edge in np.flatnonzero(changing).tolist():
            kind = "lasting" if lasting[edge] else "for-a-time"
            drawing.path(f"changed {kind}", base.course(network, edge), width=max(5.0, 0.6 * base.dot))
            counts[kind] += 1
        drawn = np.concatenate([drawn, own[changing]])
    return drawing, counts
