"""Sum SUMO's counts by interval into the snapshots of a stream.

S snapshots, N nodes, K sensors: the roads of edge data, or induction loops.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from frigate.city.bucketing import Grid, Readings, Span, bucket_sensors, snapshot_grid, usual_step_s
from frigate.city.city_toml import step_text
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.errors import CityError
from frigate.reading.notices import Notices
from frigate.sources.sumo.xml import Element

LAST_MS = 100 * 366 * 86_400_000  # a hundred years of simulation


@dataclass
class Counts:
    """Counts by interval and sensor (a road of edge data, or a loop). Each takes 12 bytes."""

    names: list[str]  # of the sensors
    road: NDArray[np.int64]  # [sensors] row of each sensor's road
    index_of: dict[tuple[int, int], int] = field(default_factory=dict)  # interval (begin, end) in ms since 1970 UTC
    interval: array[int] = field(default_factory=lambda: array("i"))
    sensor: array[int] = field(default_factory=lambda: array("i"))
    value: array[float] = field(default_factory=lambda: array("f"))
    unlisted_are_zero: bool = False

    def interval_of(self, element: Element, start_ms: int) -> int:
        """The number of an element's interval; -1 if its length is 0, which can happen at the end of a run."""
        begin, end = (round(element.seconds(which) * 1000) for which in ("begin", "end"))
        if begin == end:
            return -1
        if not 0 <= begin < end <= LAST_MS:
            times = f'from "{element.text("begin")}" to "{element.text("end")}"'
            raise element.refuse(f"the interval {times} is not valid. Seconds of simulation are expected")
        return self.index_of.setdefault((start_ms + begin, start_ms + end), len(self.index_of))

    def add(self, interval: int, sensor: int, element: Element, attribute: str) -> None:
        if interval < 0:
            return
        value = element.number(attribute)
        if not 0 <= value <= 1e9:
            raise element.refuse(f'{attribute} "{element.text(attribute)}" is not a number of vehicles')
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
    """Sum counts into snapshots: over the intervals of a step, and over the sensors of a node (`target`)."""
    if not len(counts.value):
        raise CityError("the files have no count on any road of the network")
    when, interval, sensor, value = counts.arrays()
    _refuse_overlap(counts, when, interval, sensor)
    interval_us = 1000 * (when[:, 1] - when[:, 0])
    step_s = step_s or usual_step_s(interval_us[interval], where="the intervals of the files")
    span = Span.of(1000 * when[:, 0], lambda i: f"an interval of {interval_us[i] / 1e6:g} s")
    N = network.num_nodes
    grid = snapshot_grid(span, step_s=step_s, timezone=timezone, num_nodes=N, num_readings=len(value))
    snapshot = _snapshots(when, grid)
    duration_ms = interval_us // 1000
    covered_ms = np.bincount(snapshot, weights=duration_ms, minlength=grid.num_snapshots)
    summed = bucket_sensors(
        Readings(1000 * when[interval, 0], sensor, value),
        grid,
        node_of=target,
        num_nodes=N,
        quantity="count",
        duration_ms=duration_ms[interval],
        covered_ms=covered_ms if counts.unlisted_are_zero else None,
    )
    notices.add("Counts that cover only part of a step, taken as not observed", summed.incomplete)
    if not summed.snapshots.observed.any():
        raise CityError(f"counts cover no snapshot of {step_text(step_s)} completely. Give a shorter step")
    return summed.snapshots.trimmed(notices).stream(network, unit="vehicles")


def _refuse_overlap(
    counts: Counts, when: NDArray[np.int64], interval: NDArray[np.int32], sensor: NDArray[np.int32]
) -> None:
    order = np.lexsort((when[interval, 0], sensor))
    begin = when[interval[order], 0]
    end = when[interval[order], 1]
    twice = (np.diff(sensor[order]) == 0) & (begin[1:] < end[:-1])
    if twice.any():
        at = int(np.argmax(twice))
        name = counts.names[int(sensor[order][at])]
        raise CityError(
            f'"{name}" has two counts for the same time. If the files are of different days, give each its start. '
            "If a file holds several measurements, write each to its own file"
        )
    ordered = when[np.argsort(when[:, 0])]
    if counts.unlisted_are_zero and (ordered[1:, 0] < ordered[:-1, 1]).any():
        raise CityError("intervals of the edge data overlap. Give files whose intervals do not")


def _snapshots(when: NDArray[np.int64], grid: Grid) -> NDArray[np.int64]:
    """The snapshot of each interval. An interval that spans two snapshots is refused."""
    step_s = grid.steps.step_s
    longest = int((when[:, 1] - when[:, 0]).max())
    if longest > step_s * 1000:
        remedy = f"Give a step of {step_text(longest // 1000)}, or write shorter intervals with SUMO"
        raise CityError(f"intervals of {longest // 1000} s are longer than the step of {step_text(step_s)}. {remedy}")
    snapshot, last = (grid.snapshot_of(1000 * ms) for ms in (when[:, 0], when[:, 1] - 1))
    across = last != snapshot
    if across.any():
        a, b = when[int(np.argmax(across))] - grid.steps.start_s * 1000
        where = f"an interval from {a / 1000:g} s to {b / 1000:g} s after a whole step from local midnight"
        raise CityError(f"{where} spans two steps of {step_text(step_s)}. Give another start, or another step")
    return snapshot
