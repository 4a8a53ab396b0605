"""The operations behind the paper's equations in plain torch: the definition of what every backend computes.

N nodes, B windows of T past snapshots and H steps ahead, E roads, D width. Snapshots that share a topology are the
columns of one matrix: h is [N,M,D], M of the B*T snapshots. A state is [N*B,D]: row r is node r // B in window r % B.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.nn.ops.sparse import SparseMatrix, multiply
from frigate.nn.topology import Topology

Tensors = Sequence[Tensor]
State = tuple[Tensor, Tensor]  # hidden and cell state of an LSTM, each [N*B,D]


class Backend:
    """The reference backend, and the base class of the others, which override operations with faster ones."""

    name = "plain torch operations"
    records_cuda_graphs = False  # its operations can be captured by `cuda.recording`

    def embed(self, readings: Tensor, weights: Tensor, *beside: Tensor) -> Tensor:
        """[N,B,T,D]: readings [B,T,N,2] times weights [2,W], concatenated with other inputs [N,B,T,K]."""
        embedded = nodes_first(readings) @ weights
        return torch.cat([embedded, *beside], dim=-1) if beside else embedded  # eq:h0

    def gated_layers(
        self, h: Tensor, gates: Tensors, weights: Tensors, topology: Topology, biases: Tensors = ()
    ) -> Tensor:
        """[N,M,D] from h [N,M,D], after one layer per pair of gates beta [E] and weights W_1 [D,3D]."""
        for layer, (gate, weight) in enumerate(zip(gates, weights, strict=True)):
            beta = gate.to(h.dtype)[:, None, None]
            zeros = torch.zeros_like(h)
            m_out = zeros.index_add(0, topology.senders, beta * h[topology.receivers])  # eq:aggregation_out
            m_in = zeros.index_add(0, topology.receivers, beta * h[topology.senders])  # eq:aggregation_in
            bias = biases[layer] if biases else None
            h = torch.relu(functional.linear(torch.cat([h, m_out, m_in], dim=-1), weight, bias))  # eq:hl
        return h

    def normalise(self, h: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Layer norm in the type of h, even under autocast."""
        with torch.autocast(h.device.type, enabled=False):
            weight = norm.weight.to(h.dtype)
            bias = norm.bias.to(h.dtype)
            return functional.layer_norm(h, norm.normalized_shape, weight, bias, norm.eps)

    def encode(self, lstm: nn.LSTM, z: Tensor, state: State) -> State:
        """The state after the last snapshot, from z [N,B,T,D] and the state before the first."""
        hidden, cell = (each[None].contiguous() for each in state)
        _, (hidden, cell) = lstm(z.flatten(0, 1), (hidden, cell))  # eq:lstm
        return hidden[0], cell[0]

    def decode(
        self, lstm: nn.LSTMCell, readout: nn.Module, state: State, prior: Tensor, y: Tensor, known: Tensor
    ) -> Tensor:
        """[N*B,H] from the initial state, prior [N*B,P], y_0 [N*B,1] and known future inputs [B,H,C]."""
        steps = []
        for k in range(known.shape[1]):
            inputs = torch.cat([y, known[:, k].repeat(len(prior) // len(known), 1)], dim=-1)
            state = lstm(inputs, state)  # eq:decoder
            y = readout(torch.cat([*state, prior], dim=-1))  # y_k, fed back into the next step
            steps.append(y)
        return torch.cat(steps, dim=-1)

    def sparse_sum(self, matrix: SparseMatrix, features: Tensor) -> Tensor:
        """[N,...]: the product of a fixed sparse matrix and features [N,...]."""
        return multiply(matrix, features, _row_sums)

    def take_nodes(self, z: Tensor, nodes: Tensor | slice) -> Tensor:
        """[n,B,T,D] of z [N,B,T,D], in the memory layout of z."""
        return z[nodes]


def nodes_first(each: Tensor) -> Tensor:
    """[N,B,T,X] from [B,T,N,X]."""
    return each.permute(2, 0, 1, 3)


def _row_sums(features: Tensor, weight: Tensor, start: Tensor, index: Tensor) -> Tensor:
    rows = torch.repeat_interleave(torch.arange(len(features), device=features.device), start.diff())
    return torch.zeros_like(features).index_add(0, rows, weight.to(features.dtype)[:, None] * features[index])
