"""A plain PyTorch Geometric baseline: the same equations and weights, in a straightforward implementation.

Each layer's sums use PyTorch Geometric's MessagePassing if it is installed, else the gather and index_add of the
reference backend. The rest is plain torch: concatenation, a linear layer, LSTM and LSTM cell, and gates computed at
each call.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from typing import Any, cast

import torch
from torch import Tensor, nn

from frigate.config import ModelSettings, Task
from frigate.nn import ops
from frigate.nn.forecast_model import ForecastModel
from frigate.nn.layers import GatedConv, Layers, ResidualGatedConv, compute_gates
from frigate.nn.topology import Topology

INDEX_ADD = "gather and index_add_"


def plain_copy(model: ForecastModel) -> tuple[ForecastModel, str]:
    """A copy of a Frigate model with the same weights, and how it sums. Call it under `use_kernels("reference")`."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if isinstance(module, nn.LSTM):
            module.flatten_parameters()  # cuDNN needs contiguous weights; a copy's are not
    geometric = _geometric()
    if geometric is None:
        return copied, INDEX_ADD
    layers = copied.get_submodule("convolutions")
    copied.convolutions = _MessagePassingLayers(_MessagePassingLayer(layer, geometric) for layer in layers.children())
    return copied, f"PyTorch Geometric {geometric.__version__}'s MessagePassing"


def plain_bytes(settings: ModelSettings, task: Task, *, nodes: int, edges: int, number: int) -> int:
    """Estimated memory of a training step per window; measured: 27 GB for 32 windows of Chengdu's size in bf16."""
    D = settings.width
    layers = settings.layers
    of_nodes = nodes * D * (task.past * (8 * layers + 24) + task.horizon * 24)
    return number * (of_nodes + 2 * edges * D * task.past * layers)


def _geometric() -> Any | None:
    """torch_geometric, or None if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it uses deprecated torch functions
            package = importlib.import_module("torch_geometric")
            importlib.import_module("torch_geometric.nn")
    except ImportError:
        return None
    return package


def _gated_sum(geometric: Any, flow: str) -> nn.Module:
    """The gated sum of one direction: messages from the far end of a road to the near one."""

    class GatedSum(geometric.nn.MessagePassing):  # type: ignore[misc]  # the package may be absent
        def forward(self, h: Tensor, gates: Tensor, roads: Tensor) -> Tensor:
            summed: Tensor = self.propagate(roads, h=h, gates=gates)
            return summed

        def message(self, h_j: Tensor, gates: Tensor) -> Tensor:
            return gates[:, None, None] * h_j

    module: nn.Module = GatedSum(aggr="add", flow=flow, node_dim=0)
    return module


class _MessagePassingLayers(Layers):
    def gates(self, length: Tensor, topology: Topology) -> tuple[Tensor, ...]:
        """Computed layer by layer, unlike ours."""
        gates = (cast(_MessagePassingLayer, layer).layer.gate for layer in self)
        return tuple(compute_gates([gate], length, topology)[0] for gate in gates)


class _MessagePassingLayer(nn.Module):
    """A layer of either preset, with the parameters of the original."""

    def __init__(self, layer: nn.Module, geometric: Any) -> None:
        super().__init__()
        assert isinstance(layer, GatedConv | ResidualGatedConv)
        self.layer = layer
        self.out = _gated_sum(geometric, "target_to_source")
        self.into = _gated_sum(geometric, "source_to_target")

    def forward(self, h: Tensor, gate: Tensor, topology: Topology) -> Tensor:
        layer = self.layer
        roads = torch.stack([topology.senders, topology.receivers])
        if isinstance(layer, GatedConv):
            return self._update(h, gate, roads)
        normal = ops.normalise(h, layer.norm)
        update: Tensor = layer.dropout(self._update(normal, layer.edge_dropout(gate), roads))
        return h + update

    def _update(self, h: Tensor, gate: Tensor, roads: Tensor) -> Tensor:
        gate = gate.to(h.dtype)
        sums = (self.out(h, gate, roads), self.into(h, gate, roads))
        return torch.relu(self.layer.linear(torch.cat([h, *sums], dim=-1)))
