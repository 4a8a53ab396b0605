"""Which counts contradict each other: what the other sensors say of each, and sensors that should count the same.

GEH compares hourly volumes: sqrt(2 (M - C)^2 / (M + C)); below 5 is good, above 10 is bad. Where every vehicle that
passes one sensor must also pass another, since there is no exit between them, the first cannot count more than the
second; where that holds both ways, the two should count the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import HOUR_S
from frigate.city.city import City
from frigate.city.network import NodeId, RoadNetwork
from frigate.demand.cross_check import CrossCheck
from frigate.demand.trip_model import ask_sensors
from frigate.text import percent, table_lines, three_digits

SHOWN = 10  # sensors or pairs in the text; the JSON has all
DOUBTED = 3.0  # usual differences from which a sensor is worth a look
GOOD_GEH = 5.0
LEAST_APART = 0.1  # of the larger count: less is no conflict, however busy the road
MAX_BETWEEN = 20  # nodes without a sensor between two of a pair

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class SensorDoubt:
    """A sensor against what the others say of it. Volumes are vehicles an hour, averaged over the week."""

    node_id: NodeId
    counted: float
    expected: float | None  # None: too few sensors to say
    geh: float | None
    suspicion: float  # how far apart, in usual differences; above 0: too high
    contradicted: bool  # too far apart: left out of demand
    influence: float  # share of all vehicles, summed over the nodes, whose number rests on this sensor


@dataclass(frozen=True)
class PairConflict:
    """Two sensors with no exit between them: all vehicles that pass the first must pass the second."""

    first: NodeId
    second: NodeId
    counted: tuple[float, float]  # vehicles an hour
    geh: float
    both_ways: bool  # and all that pass the second must have passed, or will pass, the first


@dataclass(frozen=True)
class Conflicts:
    """What the sensors of a city say of one another."""

    sensors: tuple[SensorDoubt, ...]  # most suspect first
    pairs: tuple[PairConflict, ...]  # worst first

    @property
    def doubted(self) -> tuple[SensorDoubt, ...]:
        return tuple(each for each in self.sensors if abs(each.suspicion) >= DOUBTED and (each.geh or 0) >= GOOD_GEH)

    def lines(self) -> list[str]:
        lines = []
        if self.doubted:
            lines.append(
                f"Sensors that the others contradict: {len(self.doubted):,} (vehicles an hour, mean over the week)"
            )
            rows = [_row(each) for each in self.doubted[:SHOWN]]
            lines += [f"  {line}" for line in table_lines(rows, width=78, left=("sensor",))[0]]
            if len(self.doubted) > SHOWN:
                lines.append(f"  and {len(self.doubted) - SHOWN:,} more, in --json")
        if self.pairs:
            lines.append(f"Pairs of sensors with no exit between them that contradict each other: {len(self.pairs):,}")
            for pair in self.pairs[:SHOWN]:
                what = "should be the same" if pair.both_ways else "the first cannot be more"
                counted = " and ".join(three_digits(x) for x in pair.counted)
                lines.append(f"  {pair.first} and {pair.second}: {counted} an hour, GEH {pair.geh:.0f}; {what}")
        return lines


def _row(each: SensorDoubt) -> dict[str, str]:
    return {
        "sensor": str(each.node_id),
        "counts": three_digits(each.counted),
        "others say": "-" if each.expected is None else three_digits(each.expected),
        "GEH": "-" if each.geh is None else f"{each.geh:.0f}",
        "apart": f"{each.suspicion:+.1f}",
        "influence": percent(each.influence),
        "left out": "yes" if each.contradicted else "",
    }


def find_conflicts(city: City) -> Conflicts | None:
    """Ask every sensor of a city of counts about the others; None if there are no counts to compare."""
    stream = city.stream
    if stream.quantity != "count" or not stream.num_snapshots or int(stream.sensors.sum()) < 2:
        return None
    asked = ask_sensors(city, stream.sensors)
    hourly = HOUR_S / stream.step_s
    sensors = _doubts(asked, stream.node_ids, hourly)
    return Conflicts(sensors, tuple(_pairs(stream.usual_network(), asked, hourly)))


def _doubts(asked: CrossCheck, node_ids: NDArray[np.generic], hourly: float) -> tuple[SensorDoubt, ...]:
    doubts = []
    for k, node_id in enumerate(node_ids[asked.rows].tolist()):
        counted = float(asked.counted[k]) * hourly
        known = bool(np.isfinite(asked.expected[k]))
        expected = float(asked.expected[k]) * hourly if known else None
        doubts.append(
            SensorDoubt(
                node_id=node_id,
                counted=counted,
                expected=expected,
                geh=None if expected is None else geh(counted, expected),
                suspicion=float(asked.suspicion[k]),
                contradicted=bool(asked.contradicted[k]),
                influence=float(asked.influence[k]),
            )
        )
    return tuple(sorted(doubts, key=lambda each: -abs(each.suspicion)))


def geh(a: float, b: float) -> float:
    """Geoffrey E. Havers' statistic of two hourly volumes."""
    return float(np.sqrt(2 * (a - b) ** 2 / (a + b))) if a + b > 0 else 0.0


def _pairs(network: RoadNetwork, asked: CrossCheck, hourly: float) -> list[PairConflict]:
    """Pairs in conflict, worst first."""
    counted = np.full(network.num_nodes, np.nan)
    counted[asked.rows] = asked.counted * hourly
    found = []
    inside = contained(network, asked.rows)
    for a, b in inside:
        if (b, a) in inside and a > b:
            continue
        both_ways = (b, a) in inside
        first, second = float(counted[a]), float(counted[b])
        far = abs(first - second) > LEAST_APART * max(first, second) and geh(first, second) > GOOD_GEH
        if far and (both_ways or first > second):
            ids = network.node_ids[[a, b]].tolist()
            found.append(PairConflict(ids[0], ids[1], (first, second), geh(first, second), both_ways))
    return sorted(found, key=lambda pair: -pair.geh)


def contained(network: RoadNetwork, rows: Rows) -> set[tuple[int, int]]:
    """Pairs (a, b) of sensors, with none between them, where all vehicles that pass a must also pass b.

    Nobody turns around on the way, and trips that begin or end between the two are not thought of.
    """
    out_of, into = _neighbours(network)
    sensor = np.zeros(network.num_nodes, bool)
    sensor[rows] = True
    found = set()
    for a in rows.tolist():
        reached = {a}
        waiting = deque([(a, 0)])
        while waiting:
            node, between = waiting.popleft()
            for b in _all_pass(node, out_of, into) - reached:
                reached.add(b)
                if sensor[b]:
                    found.add((a, b))
                elif between < MAX_BETWEEN:
                    waiting.append((b, between + 1))
    return found


def _neighbours(network: RoadNetwork) -> tuple[list[set[int]], list[set[int]]]:
    out_of: list[set[int]] = [set() for _ in range(network.num_nodes)]
    into: list[set[int]] = [set() for _ in range(network.num_nodes)]
    for a, b in zip(network.senders.tolist(), network.receivers.tolist(), strict=True):
        out_of[a].add(b)
        into[b].add(a)
    return out_of, into


def _all_pass(a: int, out_of: list[set[int]], into: list[set[int]]) -> set[int]:
    """The neighbours that all vehicles at a node pass, before or after it; dead ends are where trips begin and end."""
    return {
        b
        for b in out_of[a] | into[a]
        if (out_of[b] | into[b]) - {a}
        and all(before == b or out_of[a] - {before} == {b} for before in into[a])
        and (into[a] or out_of[a] == {b})
    }
