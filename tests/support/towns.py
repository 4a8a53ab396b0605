"""Small random towns for tests: a network, a stream on it, and both presets' view of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.city.split import Split
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.config import ModelSettings
from frigate.demand.tables import DemandTables
from frigate.nn.batch import Batch
from frigate.nn.model import Frigate, default, paper
from frigate.nn.network_views import NetworkViews
from frigate.nn.ops import follow_readings
from frigate.nn.scaling import Scaling, build_topologies, fit_scaling
from frigate.nn.topology import Topology, make_topology
from frigate.nn.windows import Windows
from frigate.roads.features import road_features

PRESETS = ("paper", "default")
Follow = Callable[..., tuple[Tensor, Tensor, Tensor]]  # as `DemandTables.follow`
START_S = 1_704_096_000  # Monday 2024-01-01 08:00 UTC
TIMEZONE = "America/St_Johns"  # 04:30 then: a mistaken clock shows
CLASSES = np.array(["residential", "primary", "motorway", "secondary_link", ""])


def small_settings(preset: str, *, layers: int = 3, width: int = 8, anchors: int = 2) -> ModelSettings:
    """A model small enough for loops. `default` has positions in its gates here, so that they are tested."""
    dropout = 0.0 if preset == "paper" else 0.2
    return ModelSettings(
        preset=preset,
        width=width,
        layers=layers,
        anchors=anchors,
        length_width=3,
        gate_width=4,
        hidden=5,
        dropout=dropout,
        edge_dropout=dropout,
        demand=False,
    )


def random_network(num_nodes: int, *, seed: int, roads_per_node: float = 2.0, isolated: int = 0) -> RoadNetwork:
    """A strongly connected network with some attributes unknown; its last `isolated` nodes have no road.

    Ids are no rows, and lengths are whole metres, so that sums of them are exact in any order.
    """
    rng = np.random.default_rng(seed)
    ring = rng.permutation(num_nodes - isolated)
    more = rng.integers(0, num_nodes - isolated, (2, int((roads_per_node - 1) * len(ring))))
    senders = np.concatenate([ring, more[0]])
    receivers = np.concatenate([np.roll(ring, 1), more[1]])
    E = len(senders)
    edges = Edges.of(
        senders,
        receivers,
        rng.integers(40, 900, E),
        road_class=rng.choice(CLASSES, E),
        lanes=rng.choice([1.0, 2.0, 3.0, np.nan], E),
        speed_kph=rng.choice([30.0, 50.0, 90.0, np.nan], E),
    )
    node_ids = 1000 + 7 * rng.permutation(num_nodes)
    lon = 6.1 + 0.05 * rng.random(num_nodes)
    lat = 49.6 + 0.05 * rng.random(num_nodes)
    return RoadNetwork(node_ids, lon, lat, clean_edges(edges)[0])


def edited(network: RoadNetwork, *, seed: int, closed: int = 2) -> RoadNetwork:
    """The network with some roads closed, one road between new neighbours, and another length for none."""
    rng = np.random.default_rng([seed, 1])
    ids = network.node_ids.tolist()
    roads = list(zip(network.senders.tolist(), network.receivers.tolist(), strict=True))
    shut = rng.permutation(len(roads))[:closed]
    free = [(u, v) for u in range(len(ids)) for v in range(len(ids)) if u != v and (u, v) not in roads]
    u, v = free[int(rng.integers(len(free)))]
    return network.close([(ids[roads[i][0]], ids[roads[i][1]]) for i in shut]).add(
        roads=[(ids[u], ids[v])], length_m=[777]
    )


def random_stream(
    networks: Sequence[RoadNetwork],
    *,
    seed: int,
    snapshots: int = 30,
    silent: float = 0.3,
    missing: float = 0.2,
    quantity: str = "count",
) -> RoadNetworkStream:
    """Readings at most nodes, `silent` of the nodes never; the networks follow each other in equal parts."""
    rng = np.random.default_rng([seed, 2])
    N = networks[0].num_nodes
    values = rng.poisson(4.0, (snapshots, N)) + (0.0 if quantity == "count" else rng.normal(30, 5, (snapshots, N)))
    observed = (rng.random((snapshots, N)) > missing) & (rng.random(N) > silent)
    network_of = np.arange(snapshots) * len(networks) // snapshots
    return make_stream(
        values,
        networks,
        observed=observed,
        network_of=network_of,
        start_s=START_S,
        step_s=3600,
        timezone=TIMEZONE,
        quantity=quantity,
    )


def without_readings(stream: RoadNetworkStream, node: int) -> RoadNetworkStream:
    """The stream as if this node had never had a sensor."""
    observed = stream.observed.copy()
    observed[:, node] = False
    return replace(stream, values=stream.values * observed, observed=observed)


@dataclass(frozen=True)
class Town:
    """A stream, what a model keeps of it, and the model's view of it."""

    stream: RoadNetworkStream
    settings: ModelSettings
    scaling: Scaling
    windows: Windows

    @property
    def topologies(self) -> tuple[Topology, ...]:
        return self.windows.topologies

    def batch(
        self,
        current: Sequence[int],
        *,
        past: int = 4,
        horizon: int = 3,
        inputs: NDArray[np.bool_] | None = None,
    ) -> Batch:
        read = np.ones(self.stream.num_nodes, bool) if inputs is None else inputs
        return self.windows.batch(np.array(current), past=past, horizon=horizon, inputs=torch.from_numpy(read))


def make_town(stream: RoadNetworkStream, settings: ModelSettings, *, seed: int = 0) -> Town:
    """What training would fit on all of the stream, and the whole path to its windows."""
    raw = [road_features(network) for network in stream.networks] if settings.preset == "default" else None
    none = np.zeros(stream.num_nodes, bool)
    split = Split(stream.sensors, none, none, (0, stream.num_snapshots), (0, 0), (0, 0))
    scaling = fit_scaling(stream, split, settings, features=None if raw is None else raw[-1], seed=seed)
    return seen_by(stream, settings, scaling, features=raw)


def seen_by(
    stream: RoadNetworkStream,
    settings: ModelSettings,
    scaling: Scaling,
    *,
    features: Sequence[NDArray[np.float32]] | None = None,
    sensors: NDArray[np.bool_] | None = None,
) -> Town:
    """A stream as a model that was fitted elsewhere sees it."""
    topologies, _ = build_topologies(
        stream.networks, scaling, sensors=stream.sensors if sensors is None else sensors, features=features
    )
    return Town(stream, settings, scaling, windows_on(stream, topologies))


def windows_on(stream: RoadNetworkStream, topologies: Sequence[Topology], device: str = "cpu") -> Windows:
    """A stream whose topologies are already model input."""
    there = [topology.to(device) for topology in topologies]
    return Windows(stream, NetworkViews.of_topologies(stream.networks, there))


def following(
    tables: DemandTables,
    batch: Batch,
    which: Sequence[int] = (0,),
    *on: Tensor,
    by: Follow = follow_readings,
    recent: Tensor | None = None,
) -> Batch:
    """The batch with what these tables of demand tell it; `on` are `past_on` and `ahead_on`."""
    device = batch.values.device
    clock = torch.cat([batch.time_past, batch.time_future], dim=1)
    roads = on or (None, None)
    rows = torch.tensor(which, device=device)
    usual, ahead, node = by(tables, batch.values, batch.observed, clock, rows, *roads, recent)
    return replace(batch, usual_past=usual, demand=ahead, demand_node=node)


def random_town(
    preset: str,
    *,
    seed: int = 0,
    num_nodes: int = 13,
    isolated: int = 1,
    topologies: int = 1,
    quantity: str = "count",
) -> Town:
    networks = [random_network(num_nodes, seed=seed, isolated=isolated)]
    for i in range(1, topologies):
        networks.append(edited(networks[-1], seed=seed + i))
    stream = random_stream(networks, seed=seed, quantity=quantity)
    return make_town(stream, small_settings(preset), seed=seed)


def build_model(settings: ModelSettings, scaling: Scaling, *, seed: int = 0, noise: float = 0.2) -> Frigate:
    """A model in use. Noise on all weights: W_1 starts at the identity, which would hide exchanged blocks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (paper if settings.preset == "paper" else default)(settings, scaling)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=noise)
    return model.eval()


def rows_alone(batch: Batch) -> Batch:
    """The batch as if each of its rows were a window of its own, with roads that do not change ahead."""
    return replace(batch, window_of=None, holds=None)


def keep_past(batch: Batch, snapshots: Sequence[int]) -> Batch:
    """The batch with only these past snapshots."""
    keep = list(snapshots)
    names = ("values", "observed", "time_past", "topology_of")
    return replace(batch, **{name: getattr(batch, name)[:, keep] for name in names})


def hide(batch: Batch, hidden: Tensor) -> Batch:
    """The batch without any reading of the nodes where `hidden` [B,N]."""
    observed = batch.observed & ~hidden[:, None, :]
    return replace(batch, values=batch.values.where(observed, 0.0), observed=observed)


def in_float64(batch: Batch) -> Batch:
    """The batch in double precision, for a model in it."""

    def double(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    return replace(
        batch,
        values=batch.values.double(),
        topologies=tuple(Topology(*(double(getattr(t, f.name)) for f in fields(t))) for t in batch.topologies),
    )


def bare_topology(num_nodes: int, senders: Sequence[int], receivers: Sequence[int]) -> Topology:
    """Roads of one length and nothing else: no positions, features or sensors."""
    network = RoadNetwork(
        np.arange(num_nodes),
        np.zeros(num_nodes),
        np.zeros(num_nodes),
        Edges.of(senders, receivers, np.ones(len(senders))),
    )
    return make_topology(
        network,
        positions=np.zeros((num_nodes, 0), np.float32),
        road_features=np.zeros((num_nodes, 0), np.float32),
        near_sensor=np.full((num_nodes, 0), -1),
        near_distance_m=np.zeros((num_nodes, 0), np.float32),
    )


def random_roads(num_nodes: int, num_edges: int, seed: int) -> Topology:
    """Distinct roads, no self-loops; some nodes have none."""
    rng = np.random.default_rng(seed)
    pair = rng.choice(num_nodes**2, min(num_nodes**2, num_edges + num_nodes), replace=False)
    u = pair // num_nodes
    v = pair % num_nodes
    keep = np.flatnonzero(u != v)[:num_edges]
    return bare_topology(num_nodes, u[keep].tolist(), v[keep].tolist())


def permuted(network: RoadNetwork, order: np.ndarray) -> RoadNetwork:
    """Row i of the new network is row order[i] of the old; its roads are shuffled too."""
    new_row = np.argsort(order)
    edges = replace(network.edges, senders=new_row[network.senders], receivers=new_row[network.receivers])
    shuffled = edges.take(np.random.default_rng(0).permutation(len(edges)))
    return RoadNetwork(
        network.node_ids[order], network.lon[order], network.lat[order], shuffled, network.present[order]
    )


def reordered(stream: RoadNetworkStream, order: NDArray[np.int64]) -> RoadNetworkStream:
    """The same record with its nodes in another order."""
    return replace(
        stream,
        values=stream.values[:, order],
        observed=stream.observed[:, order],
        networks=tuple(permuted(network, order) for network in stream.networks),
    )


def roads_at(network: RoadNetwork, node: int) -> list[tuple[int, int]]:
    at = (network.senders == node) | (network.receivers == node)
    return list(
        zip(
            network.node_ids[network.senders[at]].tolist(),
            network.node_ids[network.receivers[at]].tolist(),
            strict=True,
        )
    )
