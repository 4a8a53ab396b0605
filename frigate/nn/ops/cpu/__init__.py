"""The CPU backend, for fp32 and fp64.

Encodings are stored snapshot by snapshot, [B,T,N,D], and viewed as [N,B,T,D]: the layers read a few whole snapshots at
a time, the LSTM a few nodes at a time, with no copy in between.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from frigate.nn.ops.cpu.layers import gated_layers
from frigate.nn.ops.reference import Backend, State, Tensors, nodes_first
from frigate.nn.ops.sparse import SparseMatrix, multiply
from frigate.nn.topology import Topology

BLOCK_ROWS = 2048  # nodes times windows whose gates are in memory at once


class CpuBackend(Backend):
    name = "CPU kernels"

    def embed(self, readings: Tensor, weights: Tensor, *beside: Tensor) -> Tensor:
        h = readings @ weights
        if beside:
            h = torch.cat([h, *(each.permute(1, 2, 0, 3) for each in beside)], dim=-1)
        return nodes_first(h)

    def gated_layers(
        self, h: Tensor, gates: Tensors, weights: Tensors, topology: Topology, biases: Tensors = ()
    ) -> Tensor:
        return gated_layers(h, gates, weights, biases, topology)

    def normalise(self, h: Tensor, norm: nn.LayerNorm) -> Tensor:
        if h.is_contiguous():
            return super().normalise(h, norm)
        # torch would copy a non-contiguous input; the transpose, [M,N,D], is contiguous.
        weight = norm.weight.to(h.dtype)
        bias = norm.bias.to(h.dtype)
        return functional.layer_norm(h.transpose(0, 1), norm.normalized_shape, weight, bias, norm.eps).transpose(0, 1)

    def encode(self, lstm: nn.LSTM, z: Tensor, state: State) -> State:
        """Same as the reference. In training, gates are computed again in backward: storing them is no faster."""
        encode = partial(super().encode, lstm)
        if not torch.is_grad_enabled():
            return encode(z, state)
        B = z.shape[1]
        block = max(1, BLOCK_ROWS // B)
        ends = []
        for first in range(0, max(1, len(z)), block):
            nodes = slice(first, first + block)
            rows = slice(first * B, (first + block) * B)
            part = z[nodes], (state[0][rows], state[1][rows])
            ends.append(checkpoint(encode, *part, use_reentrant=False, preserve_rng_state=False))
        hidden, cell = zip(*ends, strict=True)
        return torch.cat(hidden), torch.cat(cell)

    def decode(
        self, lstm: nn.LSTMCell, readout: nn.Module, state: State, prior: Tensor, y: Tensor, known: Tensor
    ) -> Tensor:
        """Same as the reference, but the prior's term in the readout's first layer is computed once for all steps."""
        if not (isinstance(readout, nn.Sequential) and isinstance(readout[0], nn.Linear)):
            return super().decode(lstm, readout, state, prior, y, known)
        D = lstm.hidden_size
        N = len(prior) // len(known)
        first, *rest = readout
        assert isinstance(first, nn.Linear)
        of_hidden, of_cell, of_prior = torch.split(first.weight.T, [D, D, prior.shape[1]])
        constant = torch.addmm(first.bias, prior, of_prior)
        steps = []
        for k in range(known.shape[1]):
            state = lstm(torch.cat([y, known[:, k].repeat(N, 1)], dim=-1), state)
            y = torch.addmm(constant, state[0], of_hidden).addmm_(state[1], of_cell)
            for layer in rest:
                y = layer(y)
            steps.append(y)
        return torch.cat(steps, dim=-1)

    def sparse_sum(self, matrix: SparseMatrix, features: Tensor) -> Tensor:
        return multiply(matrix, features, _row_sums)

    def take_nodes(self, z: Tensor, nodes: Tensor | slice) -> Tensor:
        if isinstance(nodes, slice) or z.is_contiguous():
            return z[nodes]
        return nodes_first(z.permute(1, 2, 0, 3).index_select(2, nodes))


def _row_sums(features: Tensor, weight: Tensor, start: Tensor, index: Tensor) -> Tensor:
    return functional.embedding_bag(
        index, features, start[:-1], mode="sum", per_sample_weights=weight.to(features.dtype)
    )
