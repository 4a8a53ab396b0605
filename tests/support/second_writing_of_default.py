"""Preset `default`, slow and literal: loops over nodes, roads and snapshots, in float64.

Written from the description of its parts, beside `second_writing`, which has what it shares with the paper's
equations. It uses a model's weights by name. Road features are given, as they are fitted to a city and kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.city.stream import RoadNetworkStream
from frigate.demand.estimate import Demand
from frigate.demand.sensor_shares import SensorShares
from frigate.nn.model import Frigate
from tests.support.second_writing import (
    Snapshot,
    State,
    Weights,
    clock,
    gate,
    kernel_mean,
    lstm,
    mlp,
    moments,
    neighbour_readings,
    relu,
    vector,
)

PRIOR, PRIOR_EVERYWHERE, MAX_CHANGE = 16.0, 50.0, 8.0
STEPS_TOWARDS_READINGS = 6
ON_NEW_ROADS = 0.1
FADES_S = 4 * 3600
LEAST_VISIBLE = 1e-4  # of the weight of near sensors: their mean fades to 0 below it


@dataclass(frozen=True)
class DemandInputs:
    """What demand tells of a window."""

    usual: list[list[float]]  # [T][N] vehicles
    forecast: list[list[float]]  # [H][N]
    log_change: list[float]  # [N] of the last hour
    spread: list[float]  # [N]
    sensor: list[float]  # [N] 1 at a sensor of this demand
    rerouted: list[float]  # [N] flow on the roads of the coming hour over that on the usual roads


def local_time(stream: RoadNetworkStream, t: int) -> datetime:
    return datetime.fromtimestamp(int(stream.times_s[t]) + int(stream.utc_offset_s[t]), UTC)


def calendar(stream: RoadNetworkStream, t: int) -> Tensor:
    """The paper's clock, and whether it is a weekend."""
    return torch.cat([clock(stream, t), vector([float(local_time(stream, t).weekday() >= 5)])])


def forecast(
    model: Frigate,
    snapshots: Sequence[Snapshot],
    features: Sequence[Tensor],
    sensors: NDArray[np.bool_],
    past: Sequence[Tensor],
    future: Sequence[Tensor],
    demand: DemandInputs | None,
    *,
    cutoff_m: float,
) -> list[list[Tensor]]:
    """y[v][k] in the user's unit, from road features and calendar of each past snapshot and the coming calendar."""
    w = dict(model.named_parameters())
    offset = model.value_offset.double()
    scale = model.value_scale.double()
    scaled = [
        Snapshot(s.roads, [None if x is None else float((x - offset) / scale) for x in s.reading], s.position)
        for s in snapshots
    ]
    nodes = range(len(sensors))
    z = []
    for t, snapshot in enumerate(scaled):
        near = kernel_mean(of_part(w, "embedding.kernel."), snapshot, features[t], sensors, heads=4, cutoff_m=cutoff_m)
        h = []
        for v in nodes:
            known = [features[t][v], past[t], faded(near[v])]
            if demand is not None:
                flow = demand.usual[t][v]
                known.append(vector([flow / float(scale), math.log1p(flow), demand.spread[v], demand.sensor[v]]))
            tau = snapshot.reading[v]
            reading = w["embedding.reading.missing"] if tau is None else w["embedding.reading.weight"] * tau
            context = w["embedding.context.weight"] @ torch.cat(known) + w["embedding.context.bias"]
            h.append(reading + context)
        z.append(residual_layers(w, h, snapshot, float(model.length_scale_m)))
    forecasts = []
    for v in nodes:
        D = len(z[0][v])
        start = mlp(w, "start", torch.cat([past[-1], z[0][v]]))
        s: State = (start[:D], start[D:])
        for t in range(len(scaled)):
            s = lstm(w, "encoder", "_l0", s, z[t][v])
        known = [vector(moments(neighbour_readings(scaled, v))), features[-1][v]]
        if demand is not None:
            ahead = math.fsum(row[v] for row in demand.forecast) / len(demand.forecast)
            known.append(vector([ahead / float(scale), demand.log_change[v], demand.spread[v], demand.sensor[v]]))
        m = mlp(w, "prior.mlp", torch.cat(known))
        y = mlp(w, "first", torch.cat([*s, m]))
        steps = []
        for k, time in enumerate(future):
            s = lstm(w, "decoder", "", s, torch.cat([y, time]))
            y = mlp(w, "readout", torch.cat([*s, m]))
            made = y[0] * scale + offset
            if demand is not None:  # a correction, less of it where traffic goes away
                r = demand.rerouted[v]
                made = demand.forecast[k][v] + made * (r**2 if r <= 1 else r**-2)
            steps.append(made)
        forecasts.append(steps)
    return forecasts


def of_part(w: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): weight for name, weight in w.items() if name.startswith(prefix)}


def faded(near: Sequence[Tensor]) -> Tensor:
    """The means of the heads, then their shares."""
    means, shares = torch.stack(list(near)).chunk(2)
    return torch.cat([means * (shares / LEAST_VISIBLE).clamp(max=1), shares])


def residual_layers(w: Weights, h: list[Tensor], snapshot: Snapshot, length_scale_m: float) -> list[Tensor]:
    """z_v of every node."""
    layer = 0
    while f"convolutions.{layer}.linear.weight" in w:
        name = f"convolutions.{layer}"
        beta = {road: gate(w, layer, snapshot, road, length_scale_m) for road in snapshot.roads}
        normal = [normalised(x) * w[f"{name}.norm.weight"] + w[f"{name}.norm.bias"] for x in h]
        new = []
        for v in range(len(h)):
            to = torch.zeros_like(h[v])
            of = torch.zeros_like(h[v])
            for a, b in snapshot.roads:
                if a == v:
                    to = to + beta[a, b] * normal[b]
                if b == v:
                    of = of + beta[a, b] * normal[a]
            update = w[f"{name}.linear.weight"] @ torch.cat([normal[v], to, of]) + w[f"{name}.linear.bias"]
            new.append(h[v] + relu(update))
        h = new
        layer = layer + 1
    return h


def normalised(x: Tensor) -> Tensor:
    mean = x.sum() / len(x)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).sum() / len(x) + 1e-5)


# What demand tells of a window


def demand_inputs(
    demand: Demand,
    sensor_shares: SensorShares,
    stream: RoadNetworkStream,
    readings: Sequence[Sequence[float | None]],
    *,
    current: int,
    horizon: int,
    past_roads: Sequence[Sequence[float]],
    coming_roads: Sequence[float],
) -> DemandInputs:
    """From the readings [T][N] that may be known, and what flow is multiplied by on the roads of each time."""
    T = len(readings)
    nodes = range(len(demand.sensors))
    settings = demand.settings

    def usual(v: int, hour: int) -> float:
        return float(demand.usual_counts[hour, v] if demand.sensors[v] else demand.node_flow[hour, v])

    def below(v: int, hour: int) -> float:
        if not demand.sensors[v]:
            return settings.median_gap + settings.median_gap_share * float(demand.node_flow[hour, v])
        own = float(demand.usual_counts[hour, v]) - float(demand.usual_medians[hour, v])
        own = settings.median_gap if math.isnan(own) else own
        return settings.own_median * own + (1 - settings.own_median) * settings.median_gap

    def of_week(v: int, t: int) -> float:
        """The factor of the three hours of the week in which the middle of a snapshot lies."""
        local = local_time(stream, t)
        middle = local.hour + (60 * local.minute + local.second + stream.step_s / 2) / 3600
        return float(demand.week[8 * local.weekday() + math.floor(middle % 24 / 3), v])

    def expected_at(v: int, t: int) -> float:
        return between(usual, v, stream, t) * of_week(v, t)

    past = [[expected_at(v, current - T + 1 + t) * past_roads[t][v] for v in nodes] for t in range(T)]
    counted = [0.0 for _ in nodes]
    expected = [0.0 for _ in nodes]
    known = [False for _ in nodes]
    for t in range(T):
        for v in nodes:
            value = readings[t][v]
            if value is not None and demand.sensors[v]:
                known[v] = True
                counted[v] += value
                expected[v] += past[t][v]
    everywhere = (sum(counted) + PRIOR_EVERYWHERE) / (sum(expected) + PRIOR_EVERYWHERE)
    ratio = [bounded((counted[v] + PRIOR * everywhere) / (expected[v] + PRIOR)) for v in nodes]

    def change(factor: list[float], v: int) -> float:
        leans = zip(sensor_shares.sensor[v].tolist(), sensor_shares.share[v].tolist(), strict=True)
        return sum(share * factor[u] for u, share in leans) + float(sensor_shares.rest[v]) * everywhere

    factor = [ratio[v] if known[v] else everywhere for v in nodes]
    for _ in range(STEPS_TOWARDS_READINGS - 1):
        made = [change(factor, v) for v in nodes]
        factor = [factor[v] * ratio[v] / max(made[v], 1e-3) if known[v] else made[v] for v in nodes]
    changes = [bounded(change(factor, v)) for v in nodes]
    new = [sum(abs(math.log(max(on[v], 1e-4))) for on in past_roads) / T for v in nodes]
    ahead = []
    for k in range(horizon):
        fresh = settings.power * math.exp(-(k + 1) * stream.step_s / FADES_S)
        lasts = [fresh + (1 - fresh) * min(new[v] / ON_NEW_ROADS, 1.0) for v in nodes]
        mean = [expected_at(v, current + 1 + k) * changes[v] ** lasts[v] for v in nodes]
        median = [mean[v] - between(below, v, stream, current + 1 + k) for v in nodes]
        ahead.append([max(median[v], 0.0) * coming_roads[v] for v in nodes])
    return DemandInputs(
        usual=past,
        forecast=ahead,
        log_change=[math.log(x) for x in changes],
        spread=[0.0 if demand.sensors[v] else float(demand.node_spread[v]) for v in nodes],
        sensor=[float(x) for x in demand.sensors],
        rerouted=list(coming_roads),
    )


def bounded(x: float) -> float:
    return min(max(x, 1 / MAX_CHANGE), MAX_CHANGE)


def between(table: Callable[[int, int], float], v: int, stream: RoadNetworkStream, t: int) -> float:
    """What a table of hours says of the middle of a snapshot: on the line between the middles of two hours."""
    local = local_time(stream, t)
    middle = local.hour + (60 * local.minute + local.second + stream.step_s / 2) / 3600 - 0.5
    first = math.floor(middle)
    weekend = 24 * (local.weekday() >= 5)
    share = middle - first
    before, after = (table(v, weekend + hour % 24) for hour in (first, first + 1))
    return before + share * (after - before)
