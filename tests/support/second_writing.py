"""The paper's equations, slow and literal: loops over nodes, roads and snapshots, in float64.

Written from the paper's text and the design's table of choices, not from `frigate.nn`. It shares the weights of a
model of preset `paper` (by name, so that gradients can be compared) and the numbers kept with it; everything else,
shortest paths and calendar too, it works out for itself from the stream. Inputs are rounded to float32 where the
model's are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.nn.model import Frigate
from frigate.nn.scaling import Scaling

Weights = Mapping[str, Tensor]
State = tuple[Tensor, Tensor]  # hidden and cell


@dataclass(frozen=True)
class Snapshot:
    """One road network snapshot (Definition 1)."""

    roads: dict[tuple[int, int], float]  # (u, v): metres
    reading: list[float | None]  # of each node, None: not observed
    position: list[list[float]]  # L_v of each node


def window(
    stream: RoadNetworkStream, scaling: Scaling, *, current: int, past: int, inputs: NDArray[np.bool_], ahead: int = 0
) -> list[Snapshot]:
    """The snapshots up to `current`, to forecast step `ahead`; nodes that are not `inputs` have no reading.

    Each snapshot has its own roads; if those of the step are not those of the last snapshot, all have them.
    """
    snapshots = []
    last, of_step = (stream.networks[int(stream.network_of[current + k])] for k in (0, ahead))
    for t in range(current - past + 1, current + 1):
        network = stream.networks[int(stream.network_of[t])] if of_step is last else of_step
        reading = [
            float(stream.values[t, v]) if stream.observed[t, v] and inputs[v] else None for v in range(stream.num_nodes)
        ]
        snapshots.append(Snapshot(roads_of(network), reading, positions(network, scaling)))
    return snapshots


def roads_of(network: RoadNetwork) -> dict[tuple[int, int], float]:
    table = zip(network.senders.tolist(), network.receivers.tolist(), network.length_m.tolist(), strict=True)
    return {(u, v): metres for u, v, metres in table}


def shortest_paths(num_nodes: int, roads: dict[tuple[int, int], float]) -> list[list[float]]:
    """sp(u, v) by Floyd and Warshall."""
    nodes = range(num_nodes)
    sp = [[0.0 if u == v else roads.get((u, v), math.inf) for v in nodes] for u in nodes]
    for w in nodes:
        for u in nodes:
            for v in nodes:
                sp[u][v] = min(sp[u][v], sp[u][w] + sp[w][v])
    return sp


def positions(network: RoadNetwork, scaling: Scaling) -> list[list[float]]:
    """L_v, bounded: 1 at an anchor, 0 where it is unreachable or gone."""
    if scaling.anchors is None:
        return [[] for _ in range(network.num_nodes)]
    sp = shortest_paths(network.num_nodes, roads_of(network))
    node_ids = network.node_ids.tolist()
    found = []
    for v in range(network.num_nodes):
        coordinates = []
        for (anchor,) in scaling.anchors.sets:
            a = node_ids.index(anchor)
            distance_m = (sp[a][v] + sp[v][a]) / 2  # def:lipschitz
            if not (network.present[a] and network.present[v]):
                distance_m = math.inf
            near = 0.0 if math.isinf(distance_m) else scaling.position_scale_m / (scaling.position_scale_m + distance_m)
            coordinates.append(float(np.float32(near)))
        found.append(coordinates)
    return found


def clock(stream: RoadNetworkStream, current: int) -> Tensor:
    """t: sine and cosine of the time of day and of the day of the week, in the city's time."""
    time_s = stream.start_s + current * stream.step_s + int(stream.utc_offset_s[current])
    local = datetime.fromtimestamp(time_s, UTC)
    day = (local.hour + local.minute / 60 + local.second / 3600) / 24
    week = (local.weekday() + day) / 7
    turns = [
        math.sin(2 * math.pi * day),
        math.cos(2 * math.pi * day),
        math.sin(2 * math.pi * week),
        math.cos(2 * math.pi * week),
    ]
    return vector(float(np.float32(x)) for x in turns)


def vector(numbers: Iterable[float]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.float64)


def forecast(model: Frigate, snapshots: Sequence[Snapshot], t: Tensor, *, horizon: int) -> list[list[Tensor]]:
    """Alg. 1 for every node in turn: y[v][k], in the user's unit."""
    w = dict(model.named_parameters())
    offset = model.value_offset.double()
    scale = model.value_scale.double()
    scaled = [
        Snapshot(s.roads, [None if x is None else float((x - offset) / scale) for x in s.reading], s.position)
        for s in snapshots
    ]
    z = [gnn(w, snapshot, length_scale_m=float(model.length_scale_m)) for snapshot in scaled]
    forecasts = []
    for v in range(len(scaled[0].reading)):
        D = len(z[0][v])
        start = mlp(w, "start", torch.cat([t, z[0][v]]))  # line 1, MLP1
        s: State = (start[:D], start[D:])
        for k in range(len(scaled)):
            s = lstm(w, "encoder", "_l0", s, z[k][v])  # line 5, eq:lstm
        m = mlp(w, "prior.mlp", vector(moments(neighbour_readings(scaled, v))))  # line 7, MLP3
        y = mlp(w, "first", torch.cat([*s, m]))  # line 8, MLP2
        q = s  # line 9
        steps = []
        for _ in range(horizon):
            q = lstm(w, "decoder", "", q, y)  # line 11, eq:decoder
            y = mlp(w, "readout", torch.cat([*q, m]))  # line 12, MLP4
            steps.append(y[0] * scale + offset)
        forecasts.append(steps)
    return forecasts


def gnn(w: Weights, snapshot: Snapshot, *, length_scale_m: float) -> list[Tensor]:
    """z_v of every node."""
    nodes = range(len(snapshot.reading))
    h = []
    for v in nodes:
        tau = snapshot.reading[v]
        reading = w["embedding.reading.missing"] if tau is None else w["embedding.reading.weight"] * tau
        h.append(torch.cat([reading, vector(snapshot.position[v])]))  # eq:h0
    layer = 0
    while f"convolutions.{layer}.linear.weight" in w:
        beta = {road: gate(w, layer, snapshot, road, length_scale_m) for road in snapshot.roads}
        new = []
        for v in nodes:
            m_out = torch.zeros_like(h[v])
            m_in = torch.zeros_like(h[v])
            for u in nodes:
                if (v, u) in snapshot.roads:
                    m_out = m_out + beta[v, u] * h[u]  # eq:aggregation_out
                if (u, v) in snapshot.roads:
                    m_in = m_in + beta[u, v] * h[u]  # eq:aggregation_in
            new.append(relu(w[f"convolutions.{layer}.linear.weight"] @ torch.cat([h[v], m_out, m_in])))  # eq:hl
        h = new
        layer = layer + 1
    return h


def gate(w: Weights, layer: int, snapshot: Snapshot, road: tuple[int, int], length_scale_m: float) -> Tensor:
    """beta of the road from v_i to v_j."""
    i, j = road
    name = f"convolutions.{layer}.gate"
    delta = float(np.float32(snapshot.roads[road])) / length_scale_m
    ends = vector(snapshot.position[i] + snapshot.position[j])
    edge = relu(w[f"{name}.edge.weight"] @ torch.cat([w["length"] * delta, ends]))  # eq:edgeposition
    omega = w[f"{name}.weight.weight"][0] @ edge + w[f"{name}.weight.bias"][0]  # eq:edgescalar
    return 1 / (1 + torch.exp(-omega))  # eq:sigmoid


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0)


def mlp(w: Weights, name: str, x: Tensor) -> Tensor:
    hidden = relu(w[f"{name}.0.weight"] @ x + w[f"{name}.0.bias"])
    return w[f"{name}.3.weight"] @ hidden + w[f"{name}.3.bias"]


def lstm(w: Weights, name: str, suffix: str, state: State, x: Tensor) -> State:
    """One step; rows of the weights are the input, forget, cell and output gates."""
    hidden, cell = state
    rows = w[f"{name}.weight_ih{suffix}"] @ x + w[f"{name}.bias_ih{suffix}"]
    rows = rows + w[f"{name}.weight_hh{suffix}"] @ hidden + w[f"{name}.bias_hh{suffix}"]
    D = len(hidden)
    i = rows[:D]
    f = rows[D : 2 * D]
    g = rows[2 * D : 3 * D]
    o = rows[3 * D :]
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def neighbour_readings(snapshots: Sequence[Snapshot], v: int) -> list[float]:
    """What the neighbours of v read, each by the roads of the snapshot itself and once, v left out."""
    found = []
    for snapshot in snapshots:
        for u, tau in enumerate(snapshot.reading):
            if tau is not None and u != v and ((u, v) in snapshot.roads or (v, u) in snapshot.roads):
                found.append(tau)
    return found


def moments(readings: Sequence[float]) -> list[float]:
    """log1p(count), mean, std, skewness, excess kurtosis, and whether there is none."""
    if not readings:
        return [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    n = len(readings)
    mean = math.fsum(readings) / n
    second, third, fourth = (math.fsum((x - mean) ** p for x in readings) / n for p in (2, 3, 4))
    std = math.sqrt(second)
    if std < 1e-9 * (1 + abs(mean)):  # equal readings, but for rounding
        return [math.log1p(n), mean, 0.0, 0.0, 0.0, 0.0]
    skewness = min(max(third / std**3, -10), 10)
    kurtosis = min(max(fourth / std**4 - 3, -30), 30)
    return [math.log1p(n), mean, std, skewness, kurtosis, 0.0]


def kernel_mean(
    w: Weights,
    snapshot: Snapshot,
    features: Tensor,
    sensors: NDArray[np.bool_],
    *,
    heads: int,
    cutoff_m: float,
) -> list[list[Tensor]]:
    """Of every node: the mean of its visible sensors by each head, then the share of the weight that is visible."""
    N = len(snapshot.reading)
    sp = shortest_paths(N, snapshot.roads)
    query, key = (features @ w[f"{name}.weight"].T for name in ("query", "key"))
    width = query.shape[1] // heads
    rows = []
    for v in range(N):
        metres = {u: min(sp[u][v], sp[v][u]) for u in range(N) if sensors[u] and u != v}
        near = [u for u in metres if metres[u] <= cutoff_m]
        means, shares = [], []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            bandwidth_m = torch.exp(w["log_bandwidth_m"][head])
            weight = {u: torch.exp(query[v, part] @ key[u, part] - metres[u] / bandwidth_m) for u in near}
            everything = torch.zeros((), dtype=torch.float64) + sum(weight.values())
            total = torch.zeros_like(everything)
            visible = torch.zeros_like(everything)
            for u in near:
                tau = snapshot.reading[u]
                if tau is not None:
                    total = total + weight[u] / everything * tau
                    visible = visible + weight[u] / everything
            means.append(total / visible if visible > 0 else total)
            shares.append(visible)
        rows.append(means + shares)
    return rows
