"""Counts by interval, as SUMO writes them, summed into the snapshots of a stream.

S snapshots, N nodes, K sensors: the roads of edge data, or induction loops.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from frigate.data.city_toml import step_text, whole_step
from frigate.data.network import RoadNetwork
from frigate.data.notices import Notices, Spot
from frigate.data.readings import Span, align_start_s, count_snapshots
from frigate.data.stream import RoadNetworkStream, make_stream
from frigate.errors import CityError
from frigate.sources.sumo.xml import Element

BLOCK_CELLS = 4_000_000  # snapshots x sensors that are summed at once
LAST_MS = 100 * 366 * 86_400_000  # a hundred years of simulation


@dataclass
class Counts:
    """Counts by interval and sensor (a road of edge data, or a loop), 12 bytes each."""

    names: list[str]  # of the sensors
    road: NDArray[np.int64]  # [sensors] row of the road each is on
    index_of: dict[tuple[int, int], int] = field(default_factory=dict)  # interval (begin, end) in ms since 1970 UTC
    interval: array[int] = field(default_factory=lambda: array("i"))
    sensor: array[int] = field(default_factory=lambda: array("i"))
    value: array[float] = field(default_factory=lambda: array("f"))
    unlisted_are_zero: bool = False

    def interval_of(self, element: Element, start_ms: int) -> int:
        """The number of an element's interval; -1 for one of no length, which a run may end with."""
        begin, end = (round(element.seconds(which) * 1000) for which in ("begin", "end"))
        if begin == end:
            return -1
        if not 0 <= begin < end <= LAST_MS:
            times = f'from "{element.text("begin")}" to "{element.text("end")}"'
            raise element.refuse(f"an interval {times} is none. Seconds of simulation are expected")
        return self.index_of.setdefault((start_ms + begin, start_ms + end), len(self.index_of))

    def add(self, interval: int, sensor: int, element: Element, attribute: str) -> None:
        if interval < 0:
            return
        value = element.number(attribute)
        if not 0 <= value <= 1e9:
            raise element.refuse(f'{attribute} "{element.text(attribute)}" is no number of vehicles')
        self.interval.append(interval)
        self.sensor.append(sensor)
        self.value.append(value)

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """Begin and end of each interval [intervals,2], and interval, sensor and value of each count."""
        interval, sensor = (np.frombuffer(x, np.int32) for x in (self.interval, self.sensor))
        return np.array(list(self.index_of), np.int64), interval, sensor, np.frombuffer(self.value, np.float32)


def counts_stream(
    counts: Counts,
    target: NDArray[np.int64],
    network: RoadNetwork,
    *,
    step_s: int | None,
    timezone: str,
    notices: Notices,
) -> RoadNetworkStream:
    """Counts summed into snapshots: over the intervals of a step, and over the sensors of a node (`target`)."""
    if not len(counts.value):
        raise CityError("the files have no count of a road in the network")
    when, interval, sensor, value = counts.arrays()
    _refuse_overlap(counts, when, interval, sensor)
    step_s = step_s or _usual_step_s(when, interval)
    first = int(np.argmin(when[:, 0]))
    start_s = align_start_s(int(when[first, 0]) * 1000, step_s=step_s, timezone=timezone)
    snapshot = _snapshots(when, start_s=start_s, step_s=step_s)
    ends = (Spot(f"the interval of {(b - a) / 1000:g} s") for a, b in (when[first], when[int(np.argmax(when[:, 0]))]))
    span = Span(int(when[:, 0].min()) * 1000, int(when[:, 0].max()) * 1000, *ends)
    N = network.num_nodes
    S = count_snapshots(span, start_s=start_s, step_s=step_s, num_nodes=N, num_readings=len(value))
    values, observed, incomplete = _summed(counts, target, snapshot, shape=(S, N), step_s=step_s)
    notices.add("Counts over a part of a step only, taken as not observed", incomplete)
    seen = np.flatnonzero(observed.any(axis=1))
    if not len(seen):
        raise CityError(f"no snapshot of {step_text(step_s)} is wholly counted at any node. Give a shorter step")
    part = slice(int(seen[0]), int(seen[-1]) + 1)
    notices.add(
        "Snapshots without a whole count before the first or after the last, left out", S - part.stop + part.start
    )
    return make_stream(
        values[part],
        network,
        start_s=start_s + part.start * step_s,
        step_s=step_s,
        observed=observed[part],
        timezone=timezone,
        unit="vehicles",
    )


def _summed(
    counts: Counts, target: NDArray[np.int64], snapshot: NDArray[np.int64], *, shape: tuple[int, int], step_s: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_], int]:
    """Values and mask [S,N], and how many counts cover a part of a step. A node needs all its sensors all the step."""
    when, interval, sensor, value = counts.arrays()
    (S, N), K = shape, len(counts.names)
    order = np.argsort(snapshot[interval], kind="stable")
    row_snapshot, sensor, value = snapshot[interval][order], sensor[order], value[order]
    interval_ms = when[:, 1] - when[:, 0]
    row_ms = interval_ms[interval][order]
    covered_ms = np.bincount(snapshot, weights=interval_ms, minlength=S)
    joined = coo_array((np.ones(K), (target, np.arange(K))), shape=(N, K)).tocsr()
    sensors = np.bincount(target, minlength=N)
    values, observed = np.zeros((S, N), np.float32), np.zeros((S, N), bool)
    incomplete, at_once = 0, max(1, BLOCK_CELLS // K)
    for low in range(0, S, at_once):
        high = min(low + at_once, S)
        rows = slice(*np.searchsorted(row_snapshot, [low, high]))
        cell = (row_snapshot[rows] - low) * K + sensor[rows]
        sums, held_ms = (np.bincount(cell, x[rows], (high - low) * K).reshape(-1, K) for x in (value, row_ms))
        if counts.unlisted_are_zero:
            held_ms = np.repeat(covered_ms[low:high, None], K, axis=1)
        whole = held_ms == step_s * 1000
        incomplete += int(((held_ms > 0) & ~whole).sum())
        values[low:high] = (joined @ sums.T).T
        reporting = (joined @ whole.T.astype(np.float64)).T
        observed[low:high] = (reporting == sensors) & (sensors > 0)
    return values, observed, incomplete


def _refuse_overlap(
    counts: Counts, when: NDArray[np.int64], interval: NDArray[np.int32], sensor: NDArray[np.int32]
) -> None:
    order = np.lexsort((when[interval, 0], sensor))
    begin, end = when[interval[order], 0], when[interval[order], 1]
    twice = (np.diff(sensor[order]) == 0) & (begin[1:] < end[:-1])
    if twice.any():
        at = int(np.argmax(twice))
        name = counts.names[int(sensor[order][at])]
        raise CityError(
            f'"{name}" has two counts for the same time. Are the files of different days? Then give each its start. '
            "Does one file hold several measurements? Then write each to a file of its own"
        )
    ordered = when[np.argsort(when[:, 0])]
    if counts.unlisted_are_zero and (ordered[1:, 0] < ordered[:-1, 1]).any():
        raise CityError("intervals of the edge data overlap. Give files of one and the same period")


def _usual_step_s(when: NDArray[np.int64], interval: NDArray[np.int32]) -> int:
    long_ms, count = np.unique((when[:, 1] - when[:, 0])[interval], return_counts=True)
    usual_ms = int(long_ms[np.argmax(count)])
    if usual_ms % 1000:
        raise CityError(f"the intervals are mostly {usual_ms / 1000:g} s long. Give a step, such as 5min")
    return whole_step(usual_ms // 1000, where="the intervals of the files")


def _snapshots(when: NDArray[np.int64], *, start_s: int, step_s: int) -> NDArray[np.int64]:
    """The snapshot of each interval. One that lies in two is refused."""
    long_ms = when[:, 1] - when[:, 0]
    if (long_ms > step_s * 1000).any():
        longest = int(long_ms.max()) // 1000
        remedy = f"Give a step of {step_text(longest)}, or write shorter intervals with SUMO"
        raise CityError(f"intervals of {longest} s are longer than the step of {step_text(step_s)}. {remedy}")
    snapshot = (when[:, 0] - start_s * 1000) // (step_s * 1000)
    across = (when[:, 1] - 1 - start_s * 1000) // (step_s * 1000) != snapshot
    if across.any():
        a, b = when[int(np.argmax(across))] - start_s * 1000
        where = f"an interval from {a / 1000:g} s to {b / 1000:g} s after a whole step from local midnight"
        raise CityError(f"{where} lies across steps of {step_text(step_s)}. Give another start, or another step")
    return snapshot
