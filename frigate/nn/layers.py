"""The gated directional convolution (paper, section "GNN Module").

Snapshots that share a topology are columns of one matrix: h is [N,M,D], M of the batch's B*T snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.nn import ops
from frigate.nn.topology import Topology

# sigmoid(-1) = 0.27: with two to three roads each way, the gates of one direction initially sum to about 0.7.
INITIAL_GATE_BIAS = -1.0


class Gate(nn.Module):
    """The parameters of a layer's gates: one number in (0, 1) per directed road (see `compute_gates`)."""

    def __init__(self, *, positions: int, length_width: int, width: int) -> None:
        super().__init__()
        self.positions = positions  # K; 0: the gate reads only the length
        self.edge = nn.Linear(length_width + 2 * positions, width, bias=False)  # W_L
        self.weight = nn.Linear(width, 1)  # w and b
        nn.init.constant_(self.weight.bias, INITIAL_GATE_BIAS)


class GatedConv(nn.Module):
    """The parameters of one layer: its gates, and W_1 for the node and its gated sums over out- and in-neighbours."""

    def __init__(self, width: int, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.linear = nn.Linear(3 * width, width, bias=False)  # W_1
        initialise_as_mean(self.linear.weight)


class ResidualGatedConv(nn.Module):
    """GatedConv with layer norm on its input, a residual, and dropout of features and roads (preset `default`)."""

    def __init__(self, width: int, gate: Gate, *, dropout: float, edge_dropout: float) -> None:
        super().__init__()
        self.gate = gate
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(3 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.edge_dropout = nn.Dropout(edge_dropout)

    def forward(self, h: Tensor, gate: Tensor, topology: Topology) -> Tensor:
        gate = self.edge_dropout(gate)
        normal = ops.normalise(h, self.norm)
        update = ops.gated_layers(normal, [gate], [self.linear.weight], topology, [self.linear.bias])
        dropped: Tensor = self.dropout(update)
        return h + dropped


def compute_gates(gates: Sequence[Gate], length: Tensor, topology: Topology) -> tuple[Tensor, ...]:
    """beta [E] of each layer, from w_delta * delta [E,d_delta]: all layers at once, since they share their inputs.

    Gates depend on neither readings nor time: they are computed once per topology, and identically for every backend.
    """
    W_L = torch.cat([gate.edge.weight for gate in gates])  # [L*d_Le,d_delta+2K]
    w = torch.cat([gate.weight.weight for gate in gates])
    b = torch.cat([gate.weight.bias for gate in gates])
    inputs = length
    if gates[0].positions:
        ends = topology.positions[topology.senders], topology.positions[topology.receivers]
        inputs = torch.cat([length, *ends], dim=-1)
    edge = torch.relu(functional.linear(inputs, W_L))  # eq:edgeposition
    # 2, not -1: onnxruntime mishandles a negative axis when there are no roads.
    omega = (edge.view(topology.num_edges, *w.shape) * w).sum(2) + b  # eq:edgescalar
    return torch.sigmoid(omega).T.contiguous().unbind()  # eq:sigmoid


class Layers(nn.ModuleList):
    """A stack of layers, each with a `gate` and called as layer(h, gate, topology)."""

    saved_per_layer = 8  # activations saved for backward per node and snapshot, in units of D

    def gates(self, length: Tensor, topology: Topology) -> tuple[Tensor, ...]:
        """beta [E] of each layer, from w_delta * delta [E,d_delta]."""
        return compute_gates([cast(Gate, layer.gate) for layer in self], length, topology)

    def forward(self, h: Tensor, gates: Sequence[Tensor], topology: Topology) -> Tensor:
        """[N,M,D] after the last layer."""
        for layer, gate in zip(self, gates, strict=True):
            h = layer(h, gate, topology)
        return h


class GatedLayers(Layers):
    """The paper's GNN: GatedConv layers with nothing between them."""

    saved_per_layer = 2

    def forward(self, h: Tensor, gates: Sequence[Tensor], topology: Topology) -> Tensor:
        """[N,M,D]: z from h^0; each layer sums over out- and in-neighbours, then applies W_1."""
        weights = [cast(GatedConv, layer).linear.weight for layer in self]
        return ops.gated_layers(h, gates, weights, topology)  # eq:aggregation_out, eq:aggregation_in, eq:hl


class ResidualGatedLayers(Layers):
    """The GNN of preset `default`."""

    saved_per_layer = 6


@torch.no_grad()
def initialise_as_mean(weight: Tensor) -> None:
    """W_1 = [I/3 | I/3 | I/3] plus a little noise: each layer starts by averaging a node with its neighbours.

    The equations have no normalisation, and with the usual random initialisation half of a prototype's runs diverged.
    With this start and gates that sum to about 0.7, activations neither explode nor vanish over ten layers. No
    equation is changed.
    """
    D = weight.shape[0]
    nn.init.normal_(weight, std=0.1 / D**0.5)
    weight += torch.eye(D).repeat(1, 3) / 3
