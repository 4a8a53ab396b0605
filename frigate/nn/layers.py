"""The gated directional convolution (paper, section "GNN Module").

Snapshots that share a topology are columns of one matrix: h is [N,M,D], M of the batch's B*T snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.nn.batch import Topology
from frigate.nn.choice import plain
from frigate.nn.layer import gated_layer
from frigate.nn.norm import ShortNorm

# sigmoid(-1) = 0.27: with two to three roads each way, the gates of one direction sum to about 0.7 at the start.
GATE_BIAS_AT_START = -1.0


class Gate(nn.Module):
    """How much of a message a road lets through: one number in (0, 1) for each directed road."""

    def __init__(self, *, positions: int, length_width: int, width: int) -> None:
        super().__init__()
        self.edge = nn.Linear(length_width + 2 * positions, width, bias=False)  # W_L
        self.weight = nn.Linear(width, 1)  # w and b
        nn.init.constant_(self.weight.bias, GATE_BIAS_AT_START)

    def forward(self, length: Tensor, topology: Topology) -> Tensor:
        """[E] from w_delta * delta [E,d_delta] and the positions of both ends."""
        edge = torch.relu(self.edge(_ends(length, topology)))  # eq:edgeposition
        omega = self.weight(edge).squeeze(-1)  # eq:edgescalar
        return torch.sigmoid(omega)  # eq:sigmoid


def gates_of(layers: Sequence[Gate], length: Tensor, topology: Topology) -> list[Tensor]:
    """The gates [E] of each of these layers: `Gate` for all of them at once, since they read the same."""
    if plain() or any(type(gate) is not Gate for gate in layers):
        return [gate(length, topology) for gate in layers]
    edge = functional.linear(_ends(length, topology), torch.cat([gate.edge.weight for gate in layers])).relu()
    weight = torch.cat([gate.weight.weight for gate in layers])  # [L,width]
    edge = edge.view(topology.num_edges, *weight.shape)
    omega = (edge * weight).sum(-1) + torch.cat([gate.weight.bias for gate in layers])
    return list(torch.sigmoid(omega).T.contiguous())


def _ends(length: Tensor, topology: Topology) -> Tensor:
    ends = (topology.positions[topology.senders], topology.positions[topology.receivers])
    return torch.cat([length, *ends], dim=-1)


class GatedConv(nn.Module):
    """One layer: h of the next layer from h, and the gated sums over outgoing and incoming neighbours."""

    def __init__(self, width: int, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.linear = nn.Linear(3 * width, width, bias=False)  # W_1
        start_mixing(self.linear.weight)

    def forward(self, h: Tensor, length: Tensor, topology: Topology, gates: Tensor | None = None) -> Tensor:
        gates = self.gate(length, topology) if gates is None else gates
        return gated_layer(h, gates, self.linear.weight, None, topology)


class ResidualGatedConv(nn.Module):
    """GatedConv with a normalised input, a residual and dropout of features and roads (preset `default`)."""

    def __init__(self, width: int, gate: Gate, *, dropout: float, edge_dropout: float) -> None:
        super().__init__()
        self.gate = gate
        self.norm = ShortNorm(width)
        self.linear = nn.Linear(3 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.edge_dropout = nn.Dropout(edge_dropout)

    def forward(self, h: Tensor, length: Tensor, topology: Topology, gates: Tensor | None = None) -> Tensor:
        gates = self.gate(length, topology) if gates is None else gates
        gates = self.edge_dropout(gates)
        update = gated_layer(self.norm(h), gates, self.linear.weight, self.linear.bias, topology)
        dropped: Tensor = self.dropout(update)
        return h + dropped


@torch.no_grad()
def start_mixing(weight: Tensor) -> None:
    """W_1 = [I/3 | I/3 | I/3] and a little noise: the layers start by averaging a node with both kinds of neighbours.

    The equations have no normalisation, and from the usual random start half of a prototype's runs diverged. From here,
    with gates that sum to about 0.7, ten sums neither grow nor vanish. Only the start is ours; no equation is changed.
    """
    D = weight.shape[0]
    nn.init.normal_(weight, std=0.1 / D**0.5)
    weight += torch.eye(D).repeat(1, 3) / 3
