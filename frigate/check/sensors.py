"""A city's sensors one by one: their gaps, and those that look broken.

A sensor is a node that was ever read. Its gaps are counted over the snapshots in which the node was there. It is called

    dead      where it only ever read 0
    stuck     where it read one value without a break for hours: a gauge or a count above 0 for STUCK_S; a count of 0
              for ZERO_S, though by its mean it should have counted ZERO_EXPECTED and more in that time
    silent    where it was read no more in the last tenth of the period, which is what forecasts are judged on
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import NodeId
from frigate.data.stream import DAY_S, RoadNetworkStream

STUCK_S = 6 * 3600
STUCK_READINGS = 12  # of a gauge; fewer equal readings say nothing
STUCK_COUNTS = 24  # of a count: in a wide network some small count is read 12 times in a row by chance
ZERO_S = DAY_S  # a road may be empty all night
ZERO_EXPECTED = 30.0  # vehicles; as many missing by chance is out of the question
SILENT_SHARE = 0.1
SILENT_SNAPSHOTS = 12

ONLY_ZERO = "read only 0"

Bools = NDArray[np.bool_]

# What a walk through the snapshots finds at a node. Gaps and runs are the longest ones, by their first snapshot.
TALLY = np.dtype(
    [
        ("due", np.int64),  # snapshots in which the node was there
        ("count", np.int64),  # readings
        ("total", np.float64),  # sum of them
        ("low", np.float64),
        ("high", np.float64),
        ("last_read", np.int64),  # snapshot
        ("gap", np.int64),  # snapshots without a reading
        ("gap_first", np.int64),
        ("same", np.int64),  # readings of one value other than 0; snapshots without a reading do not end a run
        ("same_first", np.int64),
        ("same_last", np.int64),
        ("same_value", np.float64),
        ("zeros", np.int64),  # readings of 0
        ("zeros_first", np.int64),
        ("zeros_last", np.int64),
        ("gap_now", np.int64),
        ("run_now", np.int64),
        ("run_first", np.int64),
        ("value_now", np.float64),
    ]
)


@dataclass(frozen=True)
class SensorCheck:
    """One sensor, named by the user's id; times are local."""

    node_id: NodeId
    missing_share: float  # of the snapshots in which the node was there
    longest_gap: int  # snapshots
    gap_from: str | None  # start of the longest gap
    faults: tuple[str, ...]  # in words: dead, stuck, silent
    stuck_snapshots: tuple[int, int] | None  # first and last of the longest time at one value


@dataclass(frozen=True)
class Sensors:
    """What is found at the nodes of a stream."""

    due: NDArray[np.int64]  # [N] snapshots in which the node was there
    count: NDArray[np.int64]  # [N] readings
    dead: Bools  # [N]
    stuck: Bools  # [N]
    silent: Bools  # [N]
    each: tuple[SensorCheck, ...]  # sensors alone, the one that misses most first


def check_sensors(stream: RoadNetworkStream) -> Sensors:
    """Look at every sensor of a stream."""
    tally = _tally(stream)
    sensor = tally["count"] > 0
    dead = sensor & (tally["low"] == 0) & (tally["high"] == 0)
    stuck, at_zero = _stuck(stream, tally)
    tail = max(SILENT_SNAPSHOTS, math.ceil(SILENT_SHARE * stream.num_snapshots))
    since = stream.num_snapshots - 1 - tally["last_read"]
    silent = sensor & stream.network.present & (since >= tail)
    stuck, at_zero = stuck & ~dead, at_zero & ~dead
    each = _each(stream, tally, dead=dead, stuck=stuck, at_zero=at_zero, silent=silent)
    return Sensors(tally["due"], tally["count"], dead, stuck, silent, each)


def _stuck(stream: RoadNetworkStream, tally: NDArray[np.void]) -> tuple[Bools, Bools]:
    """[N] which nodes are stuck, and which of them by their run of zeros."""
    step_s, same, zeros = stream.step_s, tally["same"], tally["zeros"]
    always = (tally["low"] == tally["high"]) & (tally["count"] >= STUCK_READINGS)
    if stream.quantity == "count":
        mean = tally["total"] / np.maximum(1, tally["count"])
        at_value = same >= max(STUCK_COUNTS, math.ceil(STUCK_S / step_s))
        at_zero = (zeros >= max(STUCK_COUNTS, math.ceil(ZERO_S / step_s))) & (mean * zeros >= ZERO_EXPECTED)
    else:
        long = max(STUCK_READINGS, math.ceil(STUCK_S / step_s))
        at_value = same >= long
        at_zero = (zeros >= long) & (zeros > same)
    return at_value | at_zero | always, at_zero


def _each(
    stream: RoadNetworkStream, tally: NDArray[np.void], *, dead: Bools, stuck: Bools, at_zero: Bools, silent: Bools
) -> tuple[SensorCheck, ...]:
    ids = stream.node_ids.tolist()
    missing = 1 - tally["count"] / np.maximum(1, tally["due"])
    rows = np.flatnonzero(tally["count"] > 0)

    def when(snapshot: int) -> str:
        return stream.local_time(stream.start_s + int(snapshot) * stream.step_s)

    def checked(n: int) -> SensorCheck:
        words, span = [ONLY_ZERO] if dead[n] else [], None
        if stuck[n]:
            run = "zeros" if at_zero[n] else "same"
            count, first, last = (int(tally[of][n]) for of in (run, f"{run}_first", f"{run}_last"))
            value = 0.0 if at_zero[n] else float(tally["same_value"][n])
            words.append(f"read {value:g} {count:,} times in a row, from {when(first)} to {when(last)}")
            span = first, last
        if silent[n]:
            words.append(f"nothing since {when(tally['last_read'][n])}")
        gap = int(tally["gap"][n])
        start = when(tally["gap_first"][n]) if gap else None
        return SensorCheck(ids[n], float(missing[n]), gap, start, tuple(words), span)

    return tuple(checked(n) for n in rows[np.argsort(-missing[rows], kind="stable")].tolist())


def _tally(stream: RoadNetworkStream) -> NDArray[np.void]:
    tally = np.zeros(stream.num_nodes, TALLY)
    tally["low"], tally["high"] = np.inf, -np.inf
    present = np.stack([network.present for network in stream.topologies])
    for first in range(0, stream.num_snapshots, 256):  # a part at a time: the stream may be larger than memory
        part = slice(first, first + 256)
        values, observed = np.array(stream.values[part], np.float64), np.array(stream.observed[part])
        _compiled_walk()(values, observed, present[stream.topology_of[part]], first, tally)
    return tally


@cache
def _compiled_walk() -> Callable[..., None]:
    from numba import njit

    compiled: Callable[..., None] = njit(cache=True)(_walk)
    return compiled


def _walk(values: NDArray[np.float64], observed: Bools, present: Bools, first: int, tally: Any) -> None:
    """Go on with a tally, in place, over more snapshots, the arrays of which are [snapshots,N]; compiled by numba."""
    for t in range(first, first + len(values)):
        for n in range(len(tally)):
            node = tally[n]
            if not present[t - first, n]:
                node["gap_now"] = 0
                continue
            node["due"] += 1
            if not observed[t - first, n]:
                node["gap_now"] += 1
                if node["gap_now"] > node["gap"]:
                    node["gap"] = node["gap_now"]
                    node["gap_first"] = t - node["gap_now"] + 1
                continue
            value = values[t - first, n]
            if node["count"] == 0 or value != node["value_now"]:
                node["value_now"] = value
                node["run_now"] = 0
                node["run_first"] = t
            node["gap_now"] = 0
            node["run_now"] += 1
            node["count"] += 1
            node["total"] += value
            node["low"] = min(node["low"], value)
            node["high"] = max(node["high"], value)
            node["last_read"] = t
            if value == 0:
                if node["run_now"] > node["zeros"]:
                    node["zeros"] = node["run_now"]
                    node["zeros_first"] = node["run_first"]
                    node["zeros_last"] = t
            elif node["run_now"] > node["same"]:
                node["same"] = node["run_now"]
                node["same_first"] = node["run_first"]
                node["same_last"] = t
                node["same_value"] = value
