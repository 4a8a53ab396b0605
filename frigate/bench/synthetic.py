"""Synthetic networks, readings and runs of given sizes, to measure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import Delaunay

from frigate.calendar import BINS, WEEK_PARTS
from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.city.split import make_split
from frigate.city.stream import make_stream
from frigate.config import Settings
from frigate.coordinates import haversine_m
from frigate.demand.sensor_shares import MAX_SENSORS
from frigate.demand.tables import DemandTables
from frigate.errors import SettingsError
from frigate.nn.scaling import fit_scaling
from frigate.roads.features import FEATURES
from frigate.training.run import RunOnCity, build_model

ROADS_PER_NODE = 2.28  # Chengdu's; Beijing has 2.27
MIN_NODES = 20
MAX_NODES = 10**8
CELLS = {"cuda": 102_144, "cpu": 12_768}  # nodes x windows of a step: 32 and 4 windows of Chengdu's size
MAX_WINDOWS = {"cuda": 64, "cpu": 8}  # for a small network
SENSORS = 0.5
STEP_S = 300
START_S = 1_700_000_000
SNAPSHOTS = 300


@dataclass(frozen=True)
class Size:
    name: str
    nodes: int
    roads: int


SIZES = (Size("chengdu", 3_192, 7_269), Size("beijing", 28_392, 64_478))


def parse_size(text: str) -> Size:
    for size in SIZES:
        if text.strip().lower() == size.name:
            return size
    remedy = f"Use {', '.join(size.name for size in SIZES)}, or a number of nodes from {MIN_NODES:,} to {MAX_NODES:,}"
    try:
        nodes = int(text.replace(",", ""))
    except ValueError:
        raise SettingsError(f'--size "{text}" is not a size. {remedy}') from None
    if not MIN_NODES <= nodes <= MAX_NODES:
        raise SettingsError(f"--size {text}: {'too few' if nodes < MIN_NODES else 'too many'} nodes. {remedy}")
    return Size(f"{nodes}", nodes, round(ROADS_PER_NODE * nodes))


def windows_for(size: Size, device: torch.device) -> int:
    """As many windows as make a step about the same work for any size; fewer on a CPU, which is slower."""
    return min(MAX_WINDOWS[device.type], max(1, round(CELLS[device.type] / size.nodes)))


def synthetic_network(rng: np.random.Generator, *, nodes: int, roads: int) -> RoadNetwork:
    """Random nodes, as dense as Chengdu's, joined by two-way streets: a minimum spanning tree, and some more.

    It has `roads` roads, at least 2 (nodes - 1). It is strongly connected, as a city is: otherwise positions and
    betweenness would be too cheap.
    """
    side = 0.3 * (nodes / 3_192) ** 0.5
    lon = 104.0 + rng.uniform(0, side, nodes)
    lat = 30.6 + rng.uniform(0, side, nodes)
    corners = Delaunay(np.stack([lon, lat], 1)).simplices
    sides = np.sort(np.concatenate([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]]]), axis=1)
    a, b = np.unique(sides, axis=0).astype(np.int64).T
    metres = haversine_m(lon[a], lat[a], lon[b], lat[b])
    tree = minimum_spanning_tree(coo_array((metres, (a, b)), shape=(nodes, nodes))).tocoo()
    rest = np.flatnonzero(~np.isin(a * nodes + b, tree.row.astype(np.int64) * nodes + tree.col))
    more, one_way = divmod(roads - 2 * (nodes - 1), 2)
    near = rest[np.argsort(metres[rest])][: max(more + one_way, len(rest) // 2)]  # edges of the hull are too long
    chosen = rng.permutation(near)[: more + one_way]
    first = np.concatenate([tree.row, a[chosen]])
    second = np.concatenate([tree.col, b[chosen]])
    back = slice(0, len(first) - one_way)
    senders = np.concatenate([first, second[back]])
    receivers = np.concatenate([second, first[back]])
    length_m = haversine_m(lon[senders], lat[senders], lon[receivers], lat[receivers])
    edges, _ = clean_edges(Edges.of(senders, receivers, length_m))
    return RoadNetwork(np.arange(nodes), lon, lat, edges)


def synthetic_demand(nodes: int, *, seed: int, device: torch.device) -> DemandTables:
    """Random demand tables."""
    rng = torch.Generator().manual_seed(seed)
    share = torch.rand(1, 1, nodes, MAX_SENSORS, generator=rng)
    return DemandTables(
        usual=torch.rand(1, BINS, nodes, generator=rng).to(device),
        week=torch.ones(1, WEEK_PARTS, nodes, device=device),
        is_sensor=(torch.rand(1, nodes, generator=rng) < SENSORS).to(device),
        spread=torch.rand(1, nodes, generator=rng).to(device),
        sensor=torch.randint(nodes, share.shape, generator=rng, dtype=torch.int32).to(device),
        share=(share / share.sum(-1, keepdim=True)).to(device),
        rest=torch.zeros(1, 1, nodes, device=device),
        roads=None,
        below=torch.zeros(1, BINS, nodes, device=device),
        power=1.0,
        step_s=STEP_S,
    )


def synthetic_run(settings: Settings, size: Size) -> RunOnCity:
    """An untrained run on random readings and road features: speed does not depend on them."""
    seed = settings.train.seed
    windows = settings.train.batch_size
    rng = np.random.default_rng(seed)
    network = synthetic_network(rng, nodes=size.nodes, roads=size.roads)
    snapshots = max(SNAPSHOTS, 2 * (windows + settings.task.past + settings.task.horizon))
    values = rng.poisson(4, (snapshots, size.nodes)).astype(np.float32)
    stream = make_stream(values, network, start_s=START_S, step_s=STEP_S, quantity="speed")  # not clamped at 0
    split = make_split(stream, seen=SENSORS, seed=seed)
    features = rng.normal(size=(size.nodes, len(FEATURES))).astype(np.float32)
    scaling = fit_scaling(stream, split, settings.model, features=features if settings.model.roads else None, seed=seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = build_model(settings, scaling).eval()
    city = City("Synthetic", stream, road_features={network.fingerprint: features})
    return RunOnCity.untrained(city, split, settings, scaling, model)
