"""What the tests of several baselines share: a noisy model, a whole town without a split, and learning a tide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from frigate.baselines.deep import DeepBaseline
from frigate.config import BaselineSettings
from frigate.data.split import Split
from frigate.data.stream import RoadNetworkStream
from frigate.nn.batch import Batch, Windows
from frigate.nn.scaling import Scaling, build_topologies, fit_scaling
from frigate.nn.topology import Topology
from tests.support.towns import Town, edited, in_float64, make_town, random_network, random_stream, small_settings

Some = TypeVar("Some", bound=DeepBaseline)


def noisy(make: Callable[[], Some], *, noise: float, seed: int) -> Some:
    """Noise on all weights: biases and norms start at 0 and 1, which would hide exchanged ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=noise)
    return model


def whole_town(settings: BaselineSettings, *, topologies: int = 1, num_nodes: int = 11) -> tuple[Windows, Scaling]:
    """A town with a node without roads and some without readings."""
    networks = [random_network(num_nodes, seed=3, isolated=1)]
    for i in range(1, topologies):
        networks.append(edited(networks[-1], seed=i))
    return view(random_stream(networks, seed=3), settings)


def view(stream: RoadNetworkStream, settings: BaselineSettings) -> tuple[Windows, Scaling]:
    none = np.zeros(stream.num_nodes, bool)
    split = Split(stream.sensors, none, none, (0, stream.num_snapshots), (0, 0), (0, 0))
    scaling = fit_scaling(stream, split, settings, features=None, seed=0)
    topologies, _ = build_topologies(stream.topologies, scaling, sensors=stream.sensors)
    return Windows(stream, topologies), scaling


def dense_normalised(topology: Topology, length_scale_m: float) -> Tensor:
    """[N,N] D^-1/2 W D^-1/2 of the roads taken both ways, road by road."""
    size = topology.num_nodes
    weight = torch.zeros(size, size, dtype=torch.float64)
    roads = zip(topology.senders.tolist(), topology.receivers.tolist(), topology.length_m.tolist(), strict=True)
    for sender, receiver, length_m in roads:
        close = float(np.exp(-((length_m / (2 * length_scale_m)) ** 2)))
        weight[sender, receiver] = max(float(weight[sender, receiver]), close)
        weight[receiver, sender] = weight[sender, receiver] = max(weight[sender, receiver], weight[receiver, sender])
    degree = weight.sum(dim=1)
    root = torch.where(degree > 0, degree, 1.0).rsqrt()
    return root[:, None] * weight * root[None, :]


def forecast(model: DeepBaseline, batch: Batch) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(batch)
    return found


def exactly(model: DeepBaseline, batch: Batch) -> Tensor:
    return forecast(model.double(), in_float64(batch))


def tides() -> Town:
    """Tides that differ from node to node, as a gauge."""
    stream = random_stream([random_network(13, seed=0)], seed=0, silent=0.2, quantity="speed")
    hours = np.arange(stream.num_snapshots)[:, None] + np.arange(stream.num_nodes) % 4 * 3
    values = (6 + 5 * np.sin(2 * np.pi * hours / 12)).astype(np.float32)
    return make_town(replace(stream, values=values * stream.observed), small_settings("paper"))


def assert_it_learns_tides(make: Callable[[Scaling], DeepBaseline]) -> None:
    """From the mean, the loss in use falls by more than half in thirty steps."""
    town = tides()
    batch = town.batch(list(range(4, 26)), past=4, horizon=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make(town.scaling)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

        def loss() -> Tensor:
            assert batch.target is not None and batch.target_observed is not None
            error: Tensor = (model(batch) - batch.target).abs() * batch.target_observed
            return error.sum() / batch.target_observed.sum()

        def in_use() -> float:
            model.eval()
            with torch.no_grad():
                return float(loss())

        before = in_use()
        assert 3 < before < 3.5  # 5 * 2 / pi is the mean's
        model.train()
        for _ in range(30):
            optimiser.zero_grad()
            torch.autograd.backward(loss())
            optimiser.step()
        assert in_use() < 0.5 * before
