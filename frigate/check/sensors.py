"""Check each sensor of a city: its gaps, and whether it looks broken.

A sensor is a node that has any reading. Its gaps are counted over the snapshots in which the node is present. It is

    dead      if it only ever reads 0
    stuck     if it reads one value for hours without a break: a gauge or a count above 0 for STUCK_S; a count of 0 for
              ZERO_S in which, by its mean, it should have counted at least ZERO_EXPECTED
    silent    if it has no reading in the last tenth of the period, on which forecasts are scored
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S
from frigate.city.network import NodeId
from frigate.city.stream import RoadNetworkStream

STUCK_S = 6 * 3600
STUCK_READINGS = 12  # of a gauge; fewer equal readings mean nothing
STUCK_COUNTS = 24  # in a large network, some sensor reads the same small count 12 times in a row by chance
ZERO_S = DAY_S  # a road may be empty all night
ZERO_EXPECTED = 30.0  # vehicles; so many cannot be missing by chance
SILENT_SHARE = 0.1
SILENT_SNAPSHOTS = 12

ONLY_ZERO = "read only 0"
SHOWN = 5  # sensors or gaps named in the text; the JSON has all

BLOCK_CELLS = 16_000_000  # read from the file at a time

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class SensorCheck:
    """The result for one sensor, named by the user's id. Times are local."""

    node_id: NodeId
    missing_share: float  # of the snapshots in which the node is present
    longest_gap: int  # snapshots
    gap_from: str | None  # start of the longest gap
    faults: tuple[str, ...]  # descriptions: dead, stuck, silent
    stuck_snapshots: tuple[int, int] | None  # first and last snapshot of the longest run of one value
    silent_since: str | None  # start of the last reading
    detectors: str = ""  # names of its detectors

    @property
    def label(self) -> str:
        """The node id, and the names of its detectors if they have any."""
        return f"{self.node_id} ({self.detectors})" if self.detectors else str(self.node_id)

    @property
    def dead(self) -> bool:
        return ONLY_ZERO in self.faults


class _LongestRun(NamedTuple):
    """The longest run of one value at a sensor. Snapshots without a reading do not end a run."""

    readings: int
    first: int  # snapshot
    last: int
    value: float


def check_sensors(stream: RoadNetworkStream, detectors: NDArray[np.str_] | None = None) -> tuple[SensorCheck, ...]:
    """Check every sensor of a stream; most missing readings first. `detectors` [N] are the names at each node."""
    present = np.stack([network.present for network in stream.networks])
    tail = max(SILENT_SNAPSHOTS, math.ceil(SILENT_SHARE * stream.num_snapshots))

    def when(snapshot: int) -> str:
        return stream.local_time(int(stream.times_s[snapshot]))

    each = []
    for n, values, observed in _columns(stream):
        read = np.flatnonzero(observed)  # snapshots
        there = present[stream.network_of, n]
        gap, gap_first = _longest_gap(there & ~observed)
        faults = []
        run = None
        last = int(read[-1])
        if not values[read].any():
            faults.append(ONLY_ZERO)
        elif (run := _stuck_run(stream, values[read], read)) is not None:
            times = f"from {when(run.first)} to {when(run.last)}"
            faults.append(f"read {run.value:g} {run.readings:,} times in a row, {times}")
        silent = bool(stream.network.present[n]) and stream.num_snapshots - 1 - last >= tail
        if silent:
            faults.append(f"nothing since {when(last)}")
        check = SensorCheck(
            node_id=stream.node_ids[n : n + 1].tolist()[0],
            missing_share=1 - len(read) / max(1, int(there.sum())),
            longest_gap=gap,
            gap_from=when(gap_first) if gap else None,
            faults=tuple(faults),
            stuck_snapshots=None if run is None else (run.first, run.last),
            silent_since=when(last) if silent else None,
            detectors="" if detectors is None else str(detectors[n]),
        )
        each.append(check)
    return tuple(sorted(each, key=lambda sensor: -sensor.missing_share))


def _columns(stream: RoadNetworkStream) -> Iterator[tuple[int, NDArray[np.float64], Bools]]:
    """Each sensor with its values and mask [S], read in blocks because the file may be larger than memory."""
    rows = np.flatnonzero(stream.sensors)
    block = max(1, BLOCK_CELLS // max(1, stream.num_snapshots))
    for first in range(0, len(rows), block):
        some = rows[first : first + block]
        values = stream.values[:, some].T.astype(np.float64)
        observed = stream.observed[:, some].T.copy()
        yield from zip(some.tolist(), values, observed, strict=True)


def _longest_gap(missing: Bools) -> tuple[int, int]:
    """Length of the longest run without a reading, and its first snapshot."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]])))
    first = ends[::2]
    stop = ends[1::2]
    longest = int(np.argmax(stop - first)) if len(first) else -1
    return (int(stop[longest] - first[longest]), int(first[longest])) if len(first) else (0, 0)


def _stuck_run(stream: RoadNetworkStream, value: NDArray[np.float64], read: NDArray[np.int64]) -> _LongestRun | None:
    """The longest run in which a sensor was stuck, if it was."""
    starts = np.flatnonzero(np.diff(value, prepend=np.nan))
    lengths = np.diff(starts, append=len(value))

    def longest(of: Bools) -> _LongestRun:
        at = int(np.argmax(np.where(of, lengths, 0)))
        first = int(starts[at])
        count = int(lengths[at]) if of[at] else 0
        return _LongestRun(count, int(read[first]), int(read[first + max(count, 1) - 1]), float(value[first]))

    zeros = longest(value[starts] == 0)
    same = longest(value[starts] != 0)
    by_hours = math.ceil(STUCK_S / stream.step_s)
    if stream.quantity == "count":
        expected = float(value.mean()) * zeros.readings
        if zeros.readings >= max(STUCK_COUNTS, math.ceil(ZERO_S / stream.step_s)) and expected >= ZERO_EXPECTED:
            return zeros
        enough = max(STUCK_COUNTS, by_hours)
    else:
        enough = max(STUCK_READINGS, by_hours)
        if zeros.readings >= enough and zeros.readings > same.readings:
            return zeros
    always = len(starts) == 1 and len(value) >= STUCK_READINGS
    return same if same.readings >= enough or always else None


def fault_lines(sensors: Sequence[SensorCheck]) -> list[str]:
    """Sensors that look broken, as lines of text."""
    kinds = {
        "read only 0": [sensor for sensor in sensors if sensor.dead],
        "read one value for hours": [sensor for sensor in sensors if sensor.stuck_snapshots],
        "read nothing in the last tenth of the period": [sensor for sensor in sensors if sensor.silent_since],
    }
    lines = []
    for what, found in kinds.items():
        some = ", ".join(sensor.label for sensor in found[:SHOWN]) + ", ..." * (len(found) > SHOWN)
        lines += [f"Sensors that {what}: {len(found):,} ({some})"] if found else []
    faulty = [sensor for sensor in sensors if set(sensor.faults) - {ONLY_ZERO}]
    return lines + [f"  {sensor.label}: {'; '.join(sensor.faults)}" for sensor in faulty[:SHOWN]]
