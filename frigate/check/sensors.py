"""Check each sensor of a city: its gaps, and whether it looks broken.

A sensor is a node that has any reading. Its gaps are counted over the snapshots in which the node is present. It is

    dead      if it only ever reads 0
    silent    if it has no reading in the last tenth of the period, on which forecasts are scored

and `frigate.city.faults` says what else its own record has against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.city.faults import Faults, ValueRun, find_faults
from frigate.city.network import NodeId
from frigate.city.stream import RoadNetworkStream

SILENT_SHARE = 0.1
SILENT_SNAPSHOTS = 12

ONLY_ZERO = "read only 0"
SHOWN = 5  # sensors or gaps named in the text; the JSON has all

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class BrokenPeriod:
    """A period in which a sensor looks broken. Local times."""

    start: str
    end: str  # exclusive
    fault: str


@dataclass(frozen=True)
class SensorCheck:
    """The result for one sensor, named by the user's id. Times are local."""

    node_id: NodeId
    missing_share: float  # of the snapshots in which the node is present
    longest_gap: int  # snapshots
    gap_from: str | None  # start of the longest gap
    faults: tuple[str, ...]  # descriptions: dead, stuck, silent, and what its record says against it
    stuck_snapshots: tuple[int, int] | None  # first and last snapshot of the longest run of one value
    broken_periods: tuple[BrokenPeriod, ...]  # every run of one value
    unfit: str  # why none of its readings should be used, or ""
    silent_since: str | None  # start of the last reading
    detectors: str = ""  # names of its detectors

    @property
    def label(self) -> str:
        """The node id, and the names of its detectors if they have any."""
        return f"{self.node_id} ({self.detectors})" if self.detectors else str(self.node_id)

    @property
    def dead(self) -> bool:
        return ONLY_ZERO in self.faults


def check_sensors(stream: RoadNetworkStream, detectors: NDArray[np.str_] | None = None) -> tuple[SensorCheck, ...]:
    """Check every sensor of a stream; most missing readings first. `detectors` [N] are the names at each node."""
    present = np.stack([network.present for network in stream.networks])
    tail = max(SILENT_SNAPSHOTS, math.ceil(SILENT_SHARE * stream.num_snapshots))
    rows = np.flatnonzero(stream.sensors)
    each = []
    for n, faults in zip(rows.tolist(), find_faults(stream, rows), strict=True):
        observed = np.asarray(stream.observed[:, n])
        there = present[stream.network_of, n]
        gap, gap_first = _longest_gap(there & ~observed)
        last = int(np.flatnonzero(observed)[-1])
        dead = not stream.values[observed, n].any()
        silent = bool(stream.network.present[n]) and stream.num_snapshots - 1 - last >= tail
        since = _start(stream, last) if silent else None
        run = None if dead else faults.longest
        check = SensorCheck(
            node_id=stream.node_ids[n : n + 1].tolist()[0],
            missing_share=1 - int(observed.sum()) / max(1, int(there.sum())),
            longest_gap=gap,
            gap_from=_start(stream, gap_first) if gap else None,
            faults=tuple(_words(stream, faults, dead=dead, silent_since=since)),
            stuck_snapshots=None if run is None else (run.first, run.last),
            broken_periods=() if dead else tuple(_period(stream, each) for each in faults.runs),
            unfit=faults.unfit if faults.running_total or faults.night is not None else "",
            silent_since=since,
            detectors="" if detectors is None else str(detectors[n]),
        )
        each.append(check)
    return tuple(sorted(each, key=lambda sensor: -sensor.missing_share))


def _start(stream: RoadNetworkStream, snapshot: int) -> str:
    return stream.local_time(int(stream.times_s[snapshot]))


def _period(stream: RoadNetworkStream, run: ValueRun) -> BrokenPeriod:
    end_s = int(stream.times_s[run.last]) + stream.step_s
    what = f"read {run.value:g} {run.readings:,} times in a row"
    return BrokenPeriod(_start(stream, run.first), stream.local_time(end_s), what)


def _words(stream: RoadNetworkStream, faults: Faults, *, dead: bool, silent_since: str | None) -> list[str]:
    """What to say of a sensor's faults."""
    words = [ONLY_ZERO] if dead else []
    run = faults.longest
    if run is not None and not dead:
        times = f"from {_start(stream, run.first)} to {_start(stream, run.last)}"
        others = len(faults.runs) - 1
        more = f", and {others:,} other such run{'s' * (others > 1)}" if others else ""
        words.append(f"read {run.value:g} {run.readings:,} times in a row, {times}{more}")
    if faults.running_total or faults.night is not None:
        words.append(faults.unfit)
    if faults.jump is not None:
        factor = faults.jump.factor
        how = f"{factor:.1f} times as much" if factor > 1 else f"only {factor:.0%} as much"
        words.append(f"counts {how} from {_start(stream, faults.jump.snapshot)} on, unlike the others")
    return [*words, f"nothing since {silent_since}"] if silent_since is not None else words


def _longest_gap(missing: Bools) -> tuple[int, int]:
    """Length of the longest run without a reading, and its first snapshot."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]])))
    first = ends[::2]
    stop = ends[1::2]
    longest = int(np.argmax(stop - first)) if len(first) else -1
    return (int(stop[longest] - first[longest]), int(first[longest])) if len(first) else (0, 0)


def fault_lines(sensors: Sequence[SensorCheck]) -> list[str]:
    """Sensors that look broken, as lines of text."""
    kinds = {
        "read only 0": [sensor for sensor in sensors if sensor.dead],
        "read one value for hours": [sensor for sensor in sensors if sensor.stuck_snapshots],
        "send a running total, or have a clock that is off": [sensor for sensor in sensors if sensor.unfit],
        "read nothing in the last tenth of the period": [sensor for sensor in sensors if sensor.silent_since],
    }
    lines = []
    for what, found in kinds.items():
        some = ", ".join(sensor.label for sensor in found[:SHOWN]) + ", ..." * (len(found) > SHOWN)
        lines += [f"Sensors that {what}: {len(found):,} ({some})"] if found else []
    faulty = [sensor for sensor in sensors if set(sensor.faults) - {ONLY_ZERO}]
    return lines + [f"  {sensor.label}: {'; '.join(sensor.faults)}" for sensor in faulty[:SHOWN]]
