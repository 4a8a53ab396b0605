"""What the tests of the deep baselines share: small models of each kind, and parts of their equations by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frigate.baselines.deep import DeepBaseline
from frigate.config import Settings, change, preset
from frigate.nn.batch import Batch
from frigate.nn.calendar import calendar
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology
from frigate.training.run import build_model
from tests.support.models import forecasts

Array = NDArray[np.float64]
T, H = 9, 3  # STGCN needs 9 snapshots
# What a baseline takes beside the T and H that it was built for. Anything else is refused.
OTHER_PAST = {"dcrnn", "graph-wavenet", "localegn"}
OTHER_HORIZON = {"dcrnn"}
LAYERS = {"graph-wavenet": 4}  # in the tests; for the others the preset's


def small_baseline_settings(
    name: str, *, roads: bool = False, past: int = T, horizon: int = H, **model: int
) -> Settings:
    sizes = {"width": 6, "layers": LAYERS.get(name, preset(name).model.layers), "roads": roads, **model}
    return change(preset(name), {"task": {"past": past, "horizon": horizon}, "model": sizes})


def small_baseline(name: str, scaling: Scaling, *, seed: int = 0, noise: float = 0.2, **sizes: Any) -> DeepBaseline:
    """A model in use. Noise on all weights: some start at 0, at 1 or at the identity, which would hide much."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(small_baseline_settings(name, **sizes), scaling)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=noise)
    assert isinstance(model, DeepBaseline)
    return model.eval()


def in_training(model: DeepBaseline, batch: Batch, seed: int = 0) -> Tensor:
    """As a step of training would see it, of a copy: DCRNN counts the windows that it has seen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return forecasts(copy.deepcopy(model).train(), batch)


# Equations by hand, in float64


def inputs_by_hand(model: DeepBaseline, batch: Batch, b: int, t: int) -> Array:
    """[N,F] that a model reads of snapshot t of window b."""
    observed = batch.observed[b, t].numpy()
    scaled = (batch.values[b, t].double().numpy() - float(model.value_offset)) / float(model.value_scale)
    known = np.tile(calendar(batch.time_past[b, t]).double().numpy(), (batch.num_nodes, 1))
    x = np.column_stack([np.where(observed, scaled, 0), observed, known])
    if model.settings.roads:
        x = np.hstack([x, batch.topologies[int(batch.topology_of[b, t])].road_features.double().numpy()])
    return x


def in_users_unit(model: DeepBaseline, steps: Array) -> Array:
    return steps * float(model.value_scale) + float(model.value_offset)


def walks_by_hand(topology: Topology, length_scale_m: float) -> list[Array]:
    """I, P_f, P_f^2, P_b, P_b^2, each [N,N]."""
    N = topology.num_nodes
    W = np.zeros((N, N))
    closeness = np.exp(-((topology.length_m.double().numpy() / (2 * length_scale_m)) ** 2))
    np.add.at(W, (topology.senders.numpy(), topology.receivers.numpy()), closeness)
    found = [np.eye(N)]
    for walk in (W, W.T):
        degree = walk.sum(axis=1, keepdims=True)
        P = np.divide(walk, degree, out=np.zeros((N, N)), where=degree > 0)
        found += [P, P @ P]
    return found


def normalised_by_hand(topology: Topology, length_scale_m: float) -> Tensor:
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


def linear(layer: nn.Module, x: Array) -> Array:
    """W x + b for x [...,C]."""
    assert isinstance(layer, nn.Linear)
    result: Array = x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
    return result


def layer_norm(layer: nn.LayerNorm, h: Tensor) -> Tensor:
    centred = h - h.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result
