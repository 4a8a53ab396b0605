"""STGCN against its equations written out with N x N matrices, and which snapshots meet the roads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from frigate.baselines.stgcn import STGCN, GatedTemporal, Residual, STGCNBlock
from frigate.config import BaselineSettings, Task
from frigate.errors import SettingsError
from frigate.nn.batch import Batch
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology
from tests.support.baselines import inputs_by_hand, layer_norm, normalised_by_hand, small_baseline
from tests.support.errors import raises
from tests.support.models import forecasts
from tests.support.towns import in_float64, random_town

PAST = 10


def stgcn(scaling: Scaling, *, layers: int = 2) -> STGCN:
    """Wider than the bottleneck and than what is read."""
    model = small_baseline("stgcn", scaling, past=PAST, width=20, layers=layers, seed=5)
    assert isinstance(model, STGCN)
    return model


# The equations


def scaled_laplacian(topology: Topology, length_scale_m: float) -> Tensor:
    """[N,N] 2 L / lambda_max - I with lambda_max = 2."""
    identity = torch.eye(topology.num_nodes, dtype=torch.float64)
    laplacian = identity - normalised_by_hand(topology, length_scale_m)
    return 2 * laplacian / 2 - identity


def aligned(residual: Residual, x: Tensor, channels: int) -> Tensor:
    if x.shape[-1] > channels:
        assert isinstance(residual.linear, torch.nn.Linear)
        return x @ residual.linear.weight.T
    return torch.cat([x, x.new_zeros(*x.shape[:-1], channels - x.shape[-1])], dim=-1)


def gated(layer: GatedTemporal, x: list[Tensor]) -> list[Tensor]:
    """Of the snapshots x, each [N,C]: one less than the kernel fewer."""
    weight = layer.linear.weight
    bias = layer.linear.bias
    outputs = len(bias) // 2
    inputs = x[0].shape[1]
    result = []
    for t in range(layer.kernel - 1, len(x)):
        total = bias.expand(len(x[0]), -1)
        for k in range(layer.kernel):
            total = total + x[t - layer.kernel + 1 + k] @ weight[:, k * inputs : (k + 1) * inputs].T
        value = total[:, :outputs] + aligned(layer.residual, x[t], outputs)
        result.append(value * (1 / (1 + torch.exp(-total[:, outputs:]))))
    return result


def block_by_hand(block: STGCNBlock, x: list[Tensor], laplacians: list[Tensor]) -> list[Tensor]:
    """`laplacians` are of the last snapshots: as many as there are after the first convolution, at least."""
    h = gated(block.before, x)
    thetas = block.roads.theta.weight.chunk(3)
    mixed = []
    for snapshot, laplacian in zip(h, laplacians[-len(h) :], strict=True):
        identity = torch.eye(len(laplacian), dtype=torch.float64)
        polynomials = (identity, laplacian, 2 * laplacian @ laplacian - identity)
        total = sum(p @ snapshot @ theta.T for p, theta in zip(polynomials, thetas, strict=True))
        mixed.append(torch.relu(total + block.roads.bias + aligned(block.roads.residual, snapshot, 16)))
    return [layer_norm(block.norm, snapshot) for snapshot in gated(block.after, mixed)]


def by_hand(model: STGCN, batch: Batch) -> Tensor:
    """[B,H,N] in the user's unit, window by window."""
    found = []
    for b in range(batch.num_windows):
        laplacians = [
            scaled_laplacian(batch.topologies[i], model.length_scale_m) for i in batch.topology_of[b].tolist()
        ]
        x = [torch.from_numpy(inputs_by_hand(model, batch, b, t)) for t in range(batch.past)]
        for block in model.blocks:
            assert isinstance(block, STGCNBlock)
            x = block_by_hand(block, x, laplacians)
        (h,) = gated(model.last, x)
        steps = layer_norm(model.norm, h) @ model.readout.weight.T + model.readout.bias
        found.append(model.unscaled(steps.T))
    return torch.stack(found)


@pytest.mark.parametrize("topologies", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
def test_it_is_its_equations(topologies: int, layers: int) -> None:
    town = random_town("paper", topologies=topologies)
    batch = in_float64(town.batch([10, 16, 19], past=PAST))
    assert len(batch.topologies) == topologies
    assert topologies == 1 or 0 < batch.topology_of[1].sum() < PAST  # the roads change within a window
    model = stgcn(town.scaling, layers=layers).double()
    with torch.inference_mode():
        expected = by_hand(model, batch)
        assert expected.std(dim=2).min() > 1e-2
        # The weights of the roads are kept in fp32.
        torch.testing.assert_close(model(batch), expected, rtol=1e-5, atol=1e-5)


def test_roads_of_every_snapshot_that_meets_them_matter() -> None:
    """The first two snapshots of a window are only convolved before the roads are met."""
    town = random_town("paper", topologies=2)
    batch = replace(town.batch([16], past=PAST), topology_of=torch.zeros(1, PAST, dtype=torch.int64))
    model = stgcn(town.scaling)
    before = forecasts(model, batch)
    for t in range(PAST):
        topology_of = torch.zeros(1, PAST, dtype=torch.int64)
        topology_of[0, t] = 1
        changed = forecasts(model, replace(batch, topology_of=topology_of))
        assert torch.allclose(changed, before, atol=1e-6) == (t < 2)


def test_too_few_snapshots_for_the_blocks() -> None:
    scaling = random_town("paper").scaling
    settings = BaselineSettings("stgcn", width=20, layers=2)
    assert STGCN(settings, Task(past=9, horizon=1), scaling).last.kernel == 1
    for past, remedy in ((8, ("past = 9", "layers = 1")), (4, ("past = 9",))):
        with raises(SettingsError, f"past = {past}", *remedy):
            STGCN(settings, Task(past=past, horizon=1), scaling)
