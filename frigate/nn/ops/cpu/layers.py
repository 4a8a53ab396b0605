"""Gated layers on a CPU: a few snapshots at a time go through all layers, so that intermediate results stay in cache.

Each layer multiplies first, then sums: one dense product gives each node's own term and its messages in both
directions, and one sparse product sums over the node and its neighbours, so messages per road are never stored. With
W_1 in three parts:

    p = [W_self h, W_out h, W_in h]
    y[v] = relu(p_self[v] + sum over roads v -> u of gate * p_out[u] + sum over roads u -> v of gate * p_in[u] + b)

Snapshots are contiguous in memory, [M,N,D]; input and result are transposed views of that. Backward needs the input
and each layer's result. With g the gradient before the relu, it is the same computation with every road reversed; for
the weights, g itself is summed over the neighbours:

    q = [g W_self, g W_out, g W_in]
    grad h[v] = q_self[v] + sum over roads u -> v of gate * q_out[u] + sum over roads v -> u of gate * q_in[u]
    grad gate[v,u] = q_out[v] . h[u] + h[v] . q_in[u]
    grad W_1 = [g^T h, g_out^T h, g_in^T h], g_out[v] = sum over roads u -> v of gate * g[u], g_in[v] over roads v -> u
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from frigate.nn.topology import Topology

BLOCK_ROWS = 8192  # nodes times snapshots per block: with D = 64, eight megabytes of intermediate results
Matrices = TypeVar("Matrices")


def gated_layers(
    h: Tensor, gates: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor], topology: Topology
) -> Tensor:
    """[N,M,D] from h [N,M,D], as in the reference; `biases` has one entry per layer, or none."""
    gates = [gate.to(h.dtype) for gate in gates]
    # Checked here: inside `forward`, grad mode is always off.
    recording = torch.is_grad_enabled()
    y: Tensor = _CpuLayers.apply(h, topology, len(gates), recording, *gates, *weights, *biases)
    return y


class _CpuLayers(torch.autograd.Function):
    """L layers; the tensors are L gates [E], L weights W_1 [D,3D], and L or no biases b [D].

    Intermediate results reuse the same buffers, because allocating fresh memory is slow.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, topology: Topology, count: int, recording: bool, *tensors: Tensor) -> Tensor:
        gates = tensors[:count]
        weights = tensors[count : 2 * count]
        biases = tensors[2 * count :]
        snapshots = h.transpose(0, 1).contiguous()  # [M,N,D]
        M, N, D = snapshots.shape
        across = [torch.cat([part.T for part in weight.chunk(3, dim=1)], dim=1) for weight in weights]  # [D,3D]
        save = recording and any(ctx.needs_input_grad)
        results = [torch.empty_like(snapshots) for _ in range(count if save else 1)]
        terms = _terms(topology)
        block = _snapshots_per_block(M, N)
        products = h.new_empty(block * N, 3 * D)
        buffer = h.new_empty(block * N, D)
        for part, matrices in _blocks(M, block, lambda copies: terms.forward_matrices(gates, copies)):
            rows = snapshots[part].flatten(0, 1)
            p = products[: len(rows)]
            unsaved = buffer[: len(rows)]
            for layer in range(count):
                y = results[layer if save else 0][part].flatten(0, 1) if save or layer == count - 1 else unsaved
                torch.mm(rows, across[layer], out=p)
                _multiply(matrices[layer], _thirds(p), y)
                if biases:
                    y.add_(biases[layer])
                rows = y.clamp_min_(0)
        if save:
            ctx.save_for_backward(*gates, *weights, snapshots, *results)
            ctx.topology = topology
            ctx.count = count
        return results[-1].transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count = ctx.count
        saved = ctx.saved_tensors
        gates = saved[:count]
        weights = saved[count : 2 * count]
        results = saved[2 * count :]
        need_h, _, _, _, *needs = ctx.needs_input_grad
        need_gates = needs[:count]
        need_weights = needs[count : 2 * count]
        need_biases = needs[2 * count :]
        above = grads[0].transpose(0, 1)
        terms = _terms(ctx.topology)
        M, N, D = above.shape
        grad_h = torch.empty_like(results[0]) if need_h else None
        grad_terms = [above.new_zeros(terms.count) if need else None for need in need_gates]
        grad_weights = [above.new_zeros(D, 3 * D) if need else None for need in need_weights]
        grad_biases = [above.new_zeros(D) if need else None for need in need_biases]
        block = _snapshots_per_block(M, N)
        products, neighbour_sums, buffer = (above.new_empty(block * N, width) for width in (3 * D, 3 * D, D))
        for part, matrices in _blocks(M, block, lambda copies: terms.backward_matrices(gates, copies)):
            y = results[-1][part].flatten(0, 1)
            q = products[: len(y)]
            sums = neighbour_sums[: len(y)]
            g = buffer[: len(y)]
            _before_relu(above[part].reshape(len(y), D), y, g)
            for layer in reversed(range(count)):
                rows = results[layer][part].flatten(0, 1)
                if need_biases and (grad_bias := grad_biases[layer]) is not None:
                    grad_bias += g.sum(0)
                if (grad_weight := grad_weights[layer]) is not None:
                    _multiply(matrices.each_way[layer], g, _thirds(sums))
                    grad_weight.addmm_(rows.T, sums)
                torch.mm(g, weights[layer], out=q)
                if (grad_term := grad_terms[layer]) is not None:
                    grad_term += matrices.dots(rows, _thirds(q))
                if layer > 0:
                    _before_relu(_multiply(matrices.reversed[layer], _thirds(q), g), rows, g)
                elif grad_h is not None:
                    _multiply(matrices.reversed[layer], _thirds(q), grad_h[part].flatten(0, 1))
        return (
            None if grad_h is None else grad_h.transpose(0, 1),
            *(None, None, None),
            *(None if each is None else each[terms.out] + each[terms.in_] for each in grad_terms),
            *(None if each is None else _grad_w1(each) for each in grad_weights),
            *grad_biases,
        )


def _before_relu(grad: Tensor, y: Tensor, into: Tensor) -> None:
    """The gradient before a relu with output y."""
    torch.ops.aten.threshold_backward(grad, y, 0, grad_input=into)


def _grad_w1(products: Tensor) -> Tensor:
    """[D,3D] the gradient of W_1 from [h^T g, h^T g_in, h^T g_out]."""
    of_self, of_in, of_out = products.chunk(3, dim=1)
    return torch.cat([of_self.T, of_out.T, of_in.T], dim=1)


def _thirds(wide: Tensor) -> Tensor:
    """[3*R,D] from [R,3*D]"""
    return wide.view(3 * len(wide), wide.shape[1] // 3)


def _multiply(matrix: Tensor, rows: Tensor, into: Tensor) -> Tensor:
    """The sparse product matrix @ rows, written to `into`."""
    if into.numel():
        if not torch.backends.mkl.is_available():
            into.zero_()  # uninitialised memory may hold NaN, and 0 * NaN is NaN
        torch.addmm(into, matrix, rows, beta=0, out=into)
    return into


@dataclass(frozen=True)
class _BackwardMatrices:
    each_way: list[Tensor]  # [3R,R] of each layer: g itself, its sums over out-neighbours and over in-neighbours
    reversed: list[Tensor]  # [R,3R] of each layer: q_self + q_out + q_in with every road reversed
    pattern: Tensor  # sparsity of `reversed`; its values are scratch space
    copies: int

    def dots(self, h: Tensor, q: Tensor) -> Tensor:
        """[N+2E] for each term, the dot product of its q with its row's h: a dense product sampled at the terms."""
        if h.numel():
            self.pattern.values().zero_()  # against NaN, as in `_multiply`
            torch.sparse.sampled_addmm(self.pattern, h, q.T, beta=0, out=self.pattern)
        return self.pattern.values().view(self.copies, -1).sum(0)


@dataclass(frozen=True)
class _Terms:
    """The terms of each node's sum: the node itself, then its out-neighbours, then its in-neighbours.

    The N + 2E terms of all nodes are the entries of a sparse matrix, row by row. The matrix is block diagonal with C
    copies of the network, for C consecutive snapshots in memory.
    """

    own: Tensor  # [N] index of each node's own term, the first of its row
    out: Tensor  # [E] index of each road's term in its sender's row
    in_: Tensor  # [E] and in its receiver's row
    first_in: Tensor  # [N] index of each row's first in-neighbour term
    node: Tensor  # [N+2E] the node that is summed
    kind: Tensor  # [N+2E] 0 the node itself, 1 out, 2 in
    road: Tensor  # [N+2E] 1 + the road; 0 for the node itself

    @property
    def count(self) -> int:
        return len(self.node)

    def forward_matrices(self, gates: Sequence[Tensor], copies: int) -> list[Tensor]:
        """[C*N,3*C*N] of each layer, which maps p to p_self + p_out + p_in."""
        return self._matrices(self.own, 3 * self.node + self.kind, 3, self._values(gates), copies)

    def backward_matrices(self, gates: Sequence[Tensor], copies: int) -> _BackwardMatrices:
        values = self._values(gates)
        reversed_ = 3 * self.node + (3 - self.kind) % 3
        starts = torch.stack([self.own, self.own + 1, self.first_in], dim=1).flatten()
        return _BackwardMatrices(
            each_way=self._matrices(starts, self.node, 1, values, copies),
            reversed=self._matrices(self.own, reversed_, 3, values, copies),
            pattern=self._matrices(self.own, reversed_, 3, torch.zeros_like(values[:1]), copies)[0],
            copies=copies,
        )

    def _values(self, gates: Sequence[Tensor]) -> Tensor:
        """[L,N+2E] the gate of each term; 1 for the node itself."""
        return torch.stack([torch.cat([gate.new_ones(1), gate]) for gate in gates])[:, self.road]

    def _matrices(self, starts: Tensor, columns: Tensor, wide: int, values: Tensor, copies: int) -> list[Tensor]:
        copy = torch.arange(copies)[:, None]
        shape = (copies * len(starts), copies * wide * len(self.own))
        crow = torch.cat([(starts + self.count * copy).flatten(), starts.new_tensor([copies * self.count])]).int()
        col = (columns + wide * len(self.own) * copy).flatten().int()
        return [_csr_matrix(crow, col, each, shape) for each in values.repeat(1, copies)]


def _terms(topology: Topology) -> _Terms:
    N = topology.num_nodes
    E = topology.num_edges
    senders = topology.senders
    receivers = topology.receivers
    out_start = topology.out_start
    in_start = topology.in_start
    nodes = torch.arange(N)
    roads = torch.arange(E)
    by_receiver = torch.empty_like(roads)
    by_receiver[topology.in_order] = roads
    own = nodes + out_start[:-1] + in_start[:-1]
    first_in = own + 1 + out_start.diff()
    out = own[senders] + 1 + roads - out_start[senders]
    in_ = first_in[receivers] + by_receiver - in_start[receivers]
    node, kind, road = (torch.zeros(N + 2 * E, dtype=torch.int64) for _ in range(3))
    node[own] = nodes
    node[out] = receivers
    node[in_] = senders
    kind[out] = 1
    kind[in_] = 2
    road[out] = road[in_] = roads + 1
    return _Terms(own, out, in_, first_in, node, kind, road)


def _csr_matrix(start: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A CSR matrix whose columns may be in any order within a row."""
    return torch.sparse_csr_tensor(start, columns, values, shape, check_invariants=False)  # they require sorted columns


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # The first CSR tensor triggers torch's one-time "in beta state" warning.
    _csr_matrix(torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), torch.zeros(0), (0, 0))


def _snapshots_per_block(M: int, N: int) -> int:
    return max(1, min(M, BLOCK_ROWS // max(1, N)))


def _blocks(M: int, block: int, make: Callable[[int], Matrices]) -> Iterator[tuple[slice, Matrices]]:
    """M snapshots in blocks: the slice of each, and the matrices for that many copies of the network."""
    matrices = make(block)
    for first in range(0, M, block):
        last = min(M, first + block)
        yield slice(first, last), matrices if last - first == block else make(last - first)
