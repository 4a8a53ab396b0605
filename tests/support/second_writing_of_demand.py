"""Demand, slow and literal: loops over trips, sensors and hours, in Python's own numbers.

Written from the description of its parts. Trips are given, as lists of roads: what is estimated is how many vehicles
make each, and where they are at which hour.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

HOURS = 48  # of a weekday, then of a weekend day
LEAST_FLOW = 1e-4
LEAST_SHARE = 0.002
STEPS_TOWARDS_READINGS = 6
LITTLE = 0.05  # of the mean flow
QUIET = 0.1  # of the mean flow

Trip = Sequence[int]  # its roads, in order; none if it cannot be made
Shares = list[dict[int, float]]  # by node: the share of its vehicles that each sensor counts


@dataclass(frozen=True)
class Roads:
    """The ends of each road."""

    senders: Sequence[int]
    receivers: Sequence[int]
    nodes: int

    def passed(self, trip: Trip) -> Counter[int]:
        """How often a trip passes each node: those between its roads."""
        return Counter(self.receivers[road] for road in trip[:-1])


@dataclass(frozen=True)
class Estimate:
    """What is estimated from the counts."""

    numbers: list[list[float]]  # by set and trip: vehicles in a mean hour of the week
    level: list[float]  # by node
    spread: list[float]
    shares: Shares
    node_flow: list[list[float]]  # by hour and node
    road_flow: list[list[float]]  # by hour and road
    road_spread: list[float]


def week_mean(hourly: Sequence[float]) -> float:
    return math.fsum(count * (5 if hour < 24 else 2) for hour, count in enumerate(hourly)) / 168


def estimated(
    roads: Roads,
    sets: Sequence[Sequence[Trip]],
    counts: dict[int, Sequence[float]],
    *,
    iterations: int,
    hold: float,
    most_sensors: int,
) -> Estimate:
    """From the usual counts of each sensor in every hour."""
    mean = {v: week_mean(hourly) for v, hourly in counts.items()}
    numbers = [calibrated([roads.passed(trip) for trip in trips], mean, iterations, hold) for trips in sets]
    flows = [flow_at(roads, *pair) for pair in zip(sets, numbers, strict=True)]
    level, spread = zip(*(middle_of_sets([flow[v] for flow in flows]) for v in range(roads.nodes)), strict=True)
    shares = sensor_shares(roads, sets, numbers, set(counts), most_sensors)
    node_flow, of_road = [], []
    for hour in range(HOURS):
        city = math.fsum(hourly[hour] for hourly in counts.values()) / math.fsum(mean.values())
        factor = factors({u: counts[u][hour] / mean[u] for u in counts}, shares, city)
        node_flow.append([level[v] * change_at(shares[v], factor, city) for v in range(roads.nodes)])
        of_road.append([road_flows(roads, *pair, factor, city) for pair in zip(sets, numbers, strict=True)])
    E = len(roads.senders)
    flow = [[middle_of_sets([each[e] for each in of_sets])[0] for e in range(E)] for of_sets in of_road]
    means = [[math.fsum(of_sets[k][e] for of_sets in of_road) / HOURS for k in range(len(sets))] for e in range(E)]
    road_spread = [middle_of_sets(of_sets)[1] for of_sets in means]
    return Estimate(numbers, list(level), list(spread), shares, node_flow, flow, road_spread)


def calibrated(passed: Sequence[Counter[int]], mean: dict[int, float], iterations: int, hold: float) -> list[float]:
    """Expectation maximisation from equal numbers. The prior weighs as much as `hold` sensors on the way."""
    sensors = [{v: times for v, times in nodes.items() if v in mean} for nodes in passed]
    met = math.fsum(sum(nodes.values()) for nodes in sensors)
    start = math.fsum(mean.values()) / met if met else 0.0
    numbers = [start] * len(passed)
    for _ in range(iterations):
        flow = dict.fromkeys(mean, 0.0)
        for number, nodes in zip(numbers, sensors, strict=True):
            for v, times in nodes.items():
                flow[v] += times * number
        for trip, nodes in enumerate(sensors):
            met = sum(nodes.values())
            if met:  # a trip that no sensor counts stays as it is
                wanted = math.fsum(times * mean[v] / flow[v] for v, times in nodes.items()) / met
                weight = hold / met
                numbers[trip] = (numbers[trip] * wanted + weight * start) / (1 + weight)
    return numbers


def flow_at(roads: Roads, trips: Sequence[Trip], numbers: Sequence[float]) -> list[float]:
    flow = [0.0] * roads.nodes
    for trip, number in zip(trips, numbers, strict=True):
        for v, times in roads.passed(trip).items():
            flow[v] += times * number
    return flow


def middle_of_sets(flows: Sequence[float]) -> tuple[float, float]:
    """The median, 0 where nobody passes; and the standard deviation of the logarithm."""
    logs = [math.log(max(flow, LEAST_FLOW)) for flow in flows]
    middle = math.exp(statistics.median(logs))
    return (middle if middle > 1.01 * LEAST_FLOW else 0.0), statistics.pstdev(logs)


def sensor_shares(
    roads: Roads,
    sets: Sequence[Sequence[Trip]],
    numbers: Sequence[Sequence[float]],
    sensors: set[int],
    most_sensors: int,
) -> Shares:
    """A vehicle that several sensors count is divided between them. Of many sensors, those with most are kept."""
    mean: Shares = [{} for _ in range(roads.nodes)]
    for trips, of_trips in zip(sets, numbers, strict=True):
        flow = flow_at(roads, trips, of_trips)
        share: Shares = [{} for _ in range(roads.nodes)]
        for trip, number in zip(trips, of_trips, strict=True):
            nodes = roads.passed(trip)
            met = sum(times for v, times in nodes.items() if v in sensors)
            for v, times in nodes.items():
                for u in sensors & set(nodes):
                    share[v][u] = share[v].get(u, 0.0) + times * number * nodes[u] / met / flow[v]
        for v, found in enumerate(share):
            for u, x in found.items():
                if x >= LEAST_SHARE:
                    mean[v][u] = mean[v].get(u, 0.0) + x / len(sets)
    kept: Shares = []
    for found in mean:
        largest = sorted(found, key=lambda u: -found[u])[:most_sensors]
        scale = min(math.fsum(found.values()), 1.0) / max(math.fsum(found[u] for u in largest), 1e-9)
        kept.append({u: found[u] * scale for u in largest})
    return kept


def change_at(shares: dict[int, float], factor: dict[int, float], city: float) -> float:
    """By what the flow of a node changes: that of the sensors its vehicles pass, and the city's for the others."""
    return math.fsum(share * factor[u] for u, share in shares.items()) + (1 - math.fsum(shares.values())) * city


def factors(ratio: dict[int, float], shares: Shares, city: float) -> dict[int, float]:
    """By what the vehicles that pass each sensor are multiplied, so that its count changes by its ratio."""
    factor = dict(ratio)
    for _ in range(STEPS_TOWARDS_READINGS - 1):
        factor = {u: factor[u] * ratio[u] / max(change_at(shares[u], factor, city), 1e-3) for u in ratio}
    return factor


def road_flows(
    roads: Roads, trips: Sequence[Trip], numbers: Sequence[float], factor: dict[int, float], city: float
) -> list[float]:
    """By road, in one hour."""
    flow = [0.0] * len(roads.senders)
    for trip, number in zip(trips, numbers, strict=True):
        met = [factor[v] for v in roads.passed(trip).elements() if v in factor]
        hourly = number * (math.fsum(met) / len(met) if met else city)
        for road in trip:
            flow[road] += hourly
    return flow


# Closed roads


def changes(
    roads: Roads,
    before: Sequence[Sequence[Trip]],
    after: Sequence[Sequence[Trip]],
    numbers: Sequence[Sequence[float]],
    level: Sequence[float],
    *,
    fewer: float,
    more: float,
) -> list[float]:
    """By node: new flow over old, as drivers answer it."""
    old = [flow_at(roads, *pair) for pair in zip(before, numbers, strict=True)]
    new = [flow_at(roads, *pair) for pair in zip(after, numbers, strict=True)]
    made = []
    least = max(1e-3 * math.fsum(level) / len(level), LEAST_FLOW)
    floors = [max(x, least) for x in level]
    for v in range(roads.nodes):
        logs = []
        for a, b in zip(old, new, strict=True):
            little = max(LITTLE * math.fsum(a) / len(a), LEAST_FLOW)
            logs.append(math.log((b[v] + little) / (a[v] + little)))
        ratio = math.exp(middle_half(logs))
        moved = middle_half([b[v] - a[v] for a, b in zip(old, new, strict=True)])
        quiet = min(max(1 - floors[v] / (QUIET * math.fsum(floors) / len(floors)), 0), 1)
        if ratio > 1:  # in quiet streets the vehicles are added
            ratio = (1 - quiet) * ratio + quiet * max(ratio, 1 + moved / floors[v])
        total = math.fsum(flow[v] for flow in old), math.fsum(flow[v] for flow in new)
        nobody = total[0] > 0 and total[1] <= 1e-6 * total[0]
        made.append(0.0 if nobody else ratio ** (fewer if ratio < 1 else more))
    return made


def middle_half(values: Sequence[float]) -> float:
    ranked = sorted(values)
    cut = len(ranked) // 4
    return statistics.fmean(ranked[cut : len(ranked) - cut])
