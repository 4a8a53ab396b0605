"""Gated layers on a CPU: a few snapshots at a time through all layers, so that what lies between stays near.

A layer multiplies first and sums then. One product gives each node's own part and what it sends either way, and one sum
over a node and its neighbours gives the result; no message is ever in memory by itself. With W_1 in three parts:

    p = [W_self h, W_out h, W_in h]
    y[v] = relu(p_self[v] + sum over roads v -> u of gate * p_out[u] + sum over roads u -> v of gate * p_in[u] + b)

The snapshots lie one after the other in memory, [M,N,D], whatever the order of the dimensions; the result does so too,
and what reads it next copies nothing. Backward keeps the input and each layer's result. With g the gradient before the
relu it goes the same way, the roads turned round; for the weights g itself is summed over the neighbours:

    q = [g W_self, g W_out, g W_in]
    grad h[v] = q_self[v] + sum over roads u -> v of gate * q_out[u] + sum over roads v -> u of gate * q_in[u]
    grad gate[v,u] = q_out[v] . h[u] + h[v] . q_in[u]
    grad W_1 = [g^T h, g_out^T h, g_in^T h], g_out[v] = sum over roads u -> v of gate * g[u], g_in[v] over roads v -> u
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from frigate.nn.aggregate import sparse_matrix
from frigate.nn.batch import Topology

BLOCK_ROWS = 8192  # nodes of the snapshots of a block: with D = 64, eight megabytes between the layers
Roads = TypeVar("Roads")


def cpu_layer(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    """[N,M,D] as `layer.reference`."""
    biases = () if bias is None else (bias,)
    return _apply(h, topology, [gates], [weight], biases)


def cpu_layers(h: Tensor, gates: Sequence[Tensor], weights: Sequence[Tensor], topology: Topology) -> Tensor:
    """One layer after the other, without biases."""
    return _apply(h, topology, gates, weights, ())


def _apply(
    h: Tensor, topology: Topology, gates: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Tensor:
    told = [gate.to(h.dtype) for gate in gates]
    # Asked here: in `forward` torch never wants gradients.
    result: Tensor = _Layers.apply(h, topology, len(told), torch.is_grad_enabled(), *told, *weights, *biases)  # type: ignore[no-untyped-call]
    return result


class _Layers(torch.autograd.Function):
    """L layers; the tensors are L times gates [E], L times W_1 [D,3D], and L times or no time b [D].

    What lies between is written to the same place again and again: fresh memory is slow to get.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, topology: Topology, count: int, keeps: bool, *tensors: Tensor) -> Tensor:
        gates, weights, biases = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        snapshots = h.transpose(0, 1).contiguous()  # [M,N,D]
        M, N, D = snapshots.shape
        across = [torch.cat([part.T for part in weight.chunk(3, dim=1)], dim=1) for weight in weights]  # [D,3D]
        keeps = keeps and any(ctx.needs_input_grad)
        results = [torch.empty_like(snapshots) for _ in range(count if keeps else 1)]
        items, block = _items(topology), _block_of(M, N)
        sent, between = h.new_empty(block * N, 3 * D), h.new_empty(block * N, D)
        for part, around in _blocks(M, block, lambda copies: items.along(gates, copies)):
            rows = snapshots[part].flatten(0, 1)
            p, aside = sent[: len(rows)], between[: len(rows)]
            for layer in range(count):
                into = results[layer if keeps else 0][part].flatten(0, 1) if keeps or layer == count - 1 else aside
                torch.mm(rows, across[layer], out=p)
                _sum(around[layer], _thirds(p), into)
                if biases:
                    into.add_(biases[layer])
                rows = into.clamp_min_(0)
        if keeps:
            ctx.save_for_backward(*gates, *weights, snapshots, *results)
            ctx.topology, ctx.count = topology, count
        return results[-1].transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count, saved = ctx.count, ctx.saved_tensors
        gates, weights, kept = saved[:count], saved[count : 2 * count], saved[2 * count :]
        need_h, _, _, _, *needs = ctx.needs_input_grad
        need_gates, need_weights, need_biases = needs[:count], needs[count : 2 * count], needs[2 * count :]
        above, items = grads[0].transpose(0, 1), _items(ctx.topology)
        M, N, D = above.shape
        grad_h = torch.empty_like(kept[0]) if need_h else None
        of_items = [above.new_zeros(items.count) if need else None for need in need_gates]
        of_weights = [above.new_zeros(D, 3 * D) if need else None for need in need_weights]
        of_biases = [above.new_zeros(D) if need else None for need in need_biases]
        block = _block_of(M, N)
        sent, around, between = (
            above.new_empty(block * N, 3 * D),
            above.new_empty(block * N, 3 * D),
            above.new_empty(block * N, D),
        )
        for part, roads in _blocks(M, block, lambda copies: items.turned(gates, copies)):
            y = kept[-1][part].flatten(0, 1)
            q, sums, g = sent[: len(y)], around[: len(y)], between[: len(y)]
            _before_relu(above[part].reshape(len(y), D), y, g)
            for layer in reversed(range(count)):
                rows = kept[layer][part].flatten(0, 1)
                if need_biases and (of_bias := of_biases[layer]) is not None:
                    of_bias += g.sum(0)
                if (of_weight := of_weights[layer]) is not None:
                    _sum(roads.beside[layer], g, _thirds(sums))
                    of_weight.addmm_(rows.T, sums)
                torch.mm(g, weights[layer], out=q)
                if (of_item := of_items[layer]) is not None:
                    of_item += roads.dots(rows, _thirds(q))
                if layer > 0:
                    _before_relu(_sum(roads.against[layer], _thirds(q), g), rows, g)
                elif grad_h is not None:
                    _sum(roads.against[layer], _thirds(q), grad_h[part].flatten(0, 1))
        return (
            None if grad_h is None else grad_h.transpose(0, 1),
            *(None, None, None),
            *(None if each is None else each[items.out] + each[items.in_] for each in of_items),
            *(None if each is None else _upright(each) for each in of_weights),
            *of_biases,
        )


def _before_relu(grad: Tensor, y: Tensor, into: Tensor) -> None:
    """The gradient before a relu that gave y."""
    torch.ops.aten.threshold_backward(grad, y, 0, grad_input=into)


def _upright(of_weight: Tensor) -> Tensor:
    """[D,3D] the gradient of W_1 from [h^T g, h^T g_in, h^T g_out]."""
    of_self, of_in, of_out = of_weight.chunk(3, dim=1)
    return torch.cat([of_self.T, of_out.T, of_in.T], dim=1)


def _thirds(wide: Tensor) -> Tensor:
    """[3*R,D] from [R,3*D]"""
    return wide.view(3 * len(wide), wide.shape[1] // 3)


def _sum(roads: Tensor, rows: Tensor, into: Tensor) -> Tensor:
    """The product of a sparse matrix and rows."""
    if into.numel():
        if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
            into.zero_()  # 0 times what happens to be there may be no number
        torch.addmm(into, roads, rows, beta=0, out=into)
    return into


@dataclass(frozen=True)
class _Turned:
    """The matrices of backward."""

    beside: list[Tensor]  # [3R,R] of each layer
    against: list[Tensor]  # [R,3R] of each layer
    places: Tensor  # as against; its values are written over
    copies: int

    def dots(self, h: Tensor, q: Tensor) -> Tensor:
        """[N+2E] the product of each item's q with its node's h: of two dense matrices at these places alone."""
        if h.numel():
            self.places.values().zero_()  # as in `_sum`
            torch.sparse.sampled_addmm(self.places, h, q.T, beta=0, out=self.places)
        return self.places.values().view(self.copies, -1).sum(0)


@dataclass(frozen=True)
class _Items:
    """What a node sums over: itself, then the nodes that its roads lead to, then those whose roads lead to it.

    All items of all nodes are one row after the other of a sparse matrix, N + 2E in all. The matrices are of C copies
    of the network, for C snapshots that lie one after the other.
    """

    itself: Tensor  # [N] which items are the nodes themselves: the first of each node
    out: Tensor  # [E] which item is this road at its sender
    in_: Tensor  # [E] and at its receiver
    first_in: Tensor  # [N] the first of the items whose roads lead to a node
    node: Tensor  # [N+2E] the node that the item is
    kind: Tensor  # [N+2E] 0 the node itself, 1 out, 2 in
    road: Tensor  # [N+2E] 1 + the road; 0 for the node itself

    @property
    def count(self) -> int:
        return len(self.node)

    def along(self, gates: Sequence[Tensor], copies: int) -> list[Tensor]:
        """[C*N,3*C*N] of each layer: p_self + p_out + p_in from p."""
        return self._matrices(self.itself, 3 * self.node + self.kind, 3, self._values(gates), copies)

    def turned(self, gates: Sequence[Tensor], copies: int) -> _Turned:
        values, against = self._values(gates), 3 * self.node + (3 - self.kind) % 3
        starts = torch.stack([self.itself, self.itself + 1, self.first_in], dim=1).flatten()
        return _Turned(
            beside=self._matrices(starts, self.node, 1, values, copies),
            against=self._matrices(self.itself, against, 3, values, copies),
            places=self._matrices(self.itself, against, 3, torch.zeros_like(values[:1]), copies)[0],
            copies=copies,
        )

    def _values(self, gates: Sequence[Tensor]) -> Tensor:
        """[L,N+2E] the gate of each item; 1 for a node itself."""
        return torch.stack([torch.cat([gate.new_ones(1), gate]) for gate in gates])[:, self.road]

    def _matrices(self, starts: Tensor, columns: Tensor, wide: int, values: Tensor, copies: int) -> list[Tensor]:
        copy, shape = torch.arange(copies)[:, None], (copies * len(starts), copies * wide * len(self.itself))
        crow = torch.cat([(starts + self.count * copy).flatten(), starts.new_tensor([copies * self.count])]).int()
        col = (columns + wide * len(self.itself) * copy).flatten().int()
        return [sparse_matrix(crow, col, each, shape) for each in values.repeat(1, copies)]


def _items(topology: Topology) -> _Items:
    N, E, senders, receivers = topology.num_nodes, topology.num_edges, topology.senders, topology.receivers
    out_start, in_start = topology.out_start, topology.in_start
    nodes, roads = torch.arange(N), torch.arange(E)
    by_receiver = torch.empty_like(roads)
    by_receiver[topology.in_order] = roads
    itself = nodes + out_start[:-1] + in_start[:-1]
    first_in = itself + 1 + out_start.diff()
    out = itself[senders] + 1 + roads - out_start[senders]
    in_ = first_in[receivers] + by_receiver - in_start[receivers]
    node, kind, road = (torch.zeros(N + 2 * E, dtype=torch.int64) for _ in range(3))
    node[itself], node[out], node[in_] = nodes, receivers, senders
    kind[out], kind[in_] = 1, 2
    road[out] = road[in_] = roads + 1
    return _Items(itself, out, in_, first_in, node, kind, road)


def _block_of(M: int, N: int) -> int:
    """How many of M snapshots make a block."""
    return max(1, min(M, BLOCK_ROWS // max(1, N)))


def _blocks(M: int, block: int, make: Callable[[int], Roads]) -> Iterator[tuple[slice, Roads]]:
    """M snapshots in blocks: which, and what was made for as many copies of the network."""
    roads = make(block)
    for first in range(0, M, block):
        last = min(M, first + block)
        yield slice(first, last), roads if last - first == block else make(last - first)
