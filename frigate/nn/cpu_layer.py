"""Gated layers on a CPU: a few snapshots at a time through all layers, so that what lies between stays in the cache.

A snapshot's messages are summed and multiplied by their part of W_1 at once: neither [h, m_out, m_in] nor its gradient
is ever whole in memory. The snapshots lie one after the other in memory, [M,N,D], whatever the order of the dimensions;
the result does so too, and what reads it next copies nothing. Backward keeps the input and each layer's result. With g
the gradient before a layer's relu:

    g_out[u] = sum over roads v -> u of gate * g[v]         grad h = g W_self + g_out W_out + g_in W_in
    g_in[v]  = sum over roads v -> u of gate * g[u]         grad W_1 = [g^T h, g_out^T h, g_in^T h]
    grad gate[v,u] = g[v] . W_out h[u] + W_in h[v] . g[u]
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from frigate.batch import Topology

BLOCK_ROWS = 4096  # nodes of the snapshots of a block: with D = 64, a megabyte for each tensor in between


def cpu_layer(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    """[N,M,D] as `layer.reference`."""
    biases = () if bias is None else (bias,)
    result: Tensor = _Layers.apply(h, topology, 1, gates.to(h.dtype), weight, *biases)  # type: ignore[no-untyped-call]
    return result


def cpu_layers(h: Tensor, gates: Sequence[Tensor], weights: Sequence[Tensor], topology: Topology) -> Tensor:
    """One layer after the other, without biases."""
    told = [gate.to(h.dtype) for gate in gates]
    result: Tensor = _Layers.apply(h, topology, len(told), *told, *weights)  # type: ignore[no-untyped-call]
    return result


class _Layers(torch.autograd.Function):
    """L layers; the tensors are L times gates [E], L times W_1 [D,3D], and L times or no time b [D]."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, topology: Topology, count: int, *tensors: Tensor) -> Tensor:
        gates, weights, biases = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        snapshots = h.transpose(0, 1).contiguous()  # [M,N,D]
        M, N, D = snapshots.shape
        turned = [weight.T.contiguous().chunk(3) for weight in weights]  # as a product reads them fastest
        keeps = any(ctx.needs_input_grad)
        results = [h.new_empty(M, N, D) for _ in range(count if keeps else 1)]
        for part, roads in _blocks(M, topology, gates):
            rows = snapshots[part].flatten(0, 1)
            between = [torch.empty_like(rows) for _ in range(0 if keeps else min(2, count - 1))]
            for layer, (of_self, of_out, of_in) in enumerate(turned):
                last = layer == count - 1
                into = results[layer if keeps else 0][part].flatten(0, 1) if keeps or last else between[layer % 2]
                torch.mm(rows, of_self, out=into)
                into.addmm_(roads.over_out(rows, layer), of_out)
                into.addmm_(roads.over_in(rows, layer), of_in)
                if biases:
                    into.add_(biases[layer])
                rows = into.clamp_min_(0)
        if keeps:
            ctx.save_for_backward(*gates, *weights, snapshots, *results)
            ctx.topology, ctx.count = topology, count
        return results[-1].transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count, saved = ctx.count, ctx.saved_tensors
        gates, weights, kept = saved[:count], saved[count : 2 * count], saved[2 * count :]
        need_h, _, _, *needs = ctx.needs_input_grad
        need_gates, need_weights, need_biases = needs[:count], needs[count : 2 * count], needs[2 * count :]
        above, M = grads[0].transpose(0, 1), len(kept[0])
        grad_h = torch.empty_like(kept[0]) if need_h else None
        of_gates = [torch.zeros_like(gate) if need else None for gate, need in zip(gates, need_gates, strict=True)]
        of_weights = [torch.zeros_like(w) if need else None for w, need in zip(weights, need_weights, strict=True)]
        of_biases = [weights[0].new_zeros(len(weights[0])) if need else None for need in need_biases]
        for part, roads in _blocks(M, ctx.topology, gates):
            rows = kept[-1][part].flatten(0, 1)
            g = _before_relu(above[part].contiguous().flatten(0, 1), rows)
            turns = [torch.empty_like(g) for _ in range(2)]
            for layer in reversed(range(count)):
                rows, (of_self, of_out, of_in) = kept[layer][part].flatten(0, 1), weights[layer].chunk(3, dim=1)
                if (of_gate := of_gates[layer]) is not None:
                    of_gate += roads.dots(g, rows @ of_out.T, rows @ of_in.T)
                if need_biases and (of_bias := of_biases[layer]) is not None:
                    of_bias += g.sum(0)
                g_out, g_in = roads.over_in(g, layer), roads.over_out(g, layer)
                if (of_weight := of_weights[layer]) is not None:
                    for total, gradient in zip(of_weight.chunk(3, dim=1), (g, g_out, g_in), strict=True):
                        total.addmm_(gradient.T, rows)
                if layer > 0 or grad_h is not None:
                    into = turns[layer % 2] if layer > 0 or grad_h is None else grad_h[part].flatten(0, 1)
                    torch.mm(g, of_self, out=into)
                    into.addmm_(g_out, of_out).addmm_(g_in, of_in)
                    g = _before_relu(into, rows) if layer > 0 else into
        return None if grad_h is None else grad_h.transpose(0, 1), None, None, *of_gates, *of_weights, *of_biases


def _before_relu(grad: Tensor, y: Tensor) -> Tensor:
    """The gradient before a relu that gave y."""
    before: Tensor = torch.ops.aten.threshold_backward(grad, y, 0)
    return before


@dataclass(frozen=True)
class _Roads:
    """The roads of C snapshots that lie one after the other: C copies of one network, row c * N + v."""

    num_edges: int  # of one copy
    receivers: Tensor  # [C*E] sorted by sender, as the topology's
    out_start: Tensor  # [C*N+1]
    out_gates: tuple[Tensor, ...]  # [C*E] of each layer
    senders: Tensor  # [C*E] sorted by receiver
    in_start: Tensor  # [C*N+1]
    in_gates: tuple[Tensor, ...]  # [C*E] of each layer

    def over_out(self, rows: Tensor, layer: int) -> Tensor:
        """The gated sum over the out-neighbours of each of the rows [C*N,D]."""
        return _sums(rows, self.receivers, self.out_start, self.out_gates[layer])

    def over_in(self, rows: Tensor, layer: int) -> Tensor:
        return _sums(rows, self.senders, self.in_start, self.in_gates[layer])

    def dots(self, g: Tensor, of_out: Tensor, of_in: Tensor) -> Tensor:
        """[E] g[v] . of_out[u] + of_in[v] . g[u] of each road v -> u, summed over the copies."""
        if len(self.receivers) == 0:
            return g.new_zeros(self.num_edges)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse")  # CSR tensors are "in beta state"; ours are valid
            roads = torch.sparse_csr_tensor(
                self.out_start, self.receivers, g.new_zeros(len(self.receivers)), (len(g),) * 2, check_invariants=False
            )
        # The product of two dense matrices at the roads alone: no E x D in between.
        found = torch.sparse.sampled_addmm(torch.sparse.sampled_addmm(roads, g, of_out.T), of_in, g.T)
        total: Tensor = found.values().view(-1, self.num_edges).sum(0)
        return total


def _blocks(M: int, topology: Topology, gates: Sequence[Tensor]) -> Iterator[tuple[slice, _Roads]]:
    """M snapshots in blocks: which, and their roads."""
    size = max(1, min(M, BLOCK_ROWS // max(1, topology.num_nodes)))
    roads = _copies(topology, gates, size)
    for first in range(0, M, size):
        last = min(M, first + size)
        yield slice(first, last), roads if last - first == size else _copies(topology, gates, last - first)


def _copies(topology: Topology, gates: Sequence[Tensor], count: int) -> _Roads:
    N, E, order = topology.num_nodes, topology.num_edges, topology.in_order
    copy = torch.arange(count)[:, None]

    def starts(start: Tensor) -> Tensor:
        return torch.cat([(start[:-1] + E * copy).flatten(), start.new_tensor([E * count])])

    return _Roads(
        num_edges=E,
        receivers=(topology.receivers + N * copy).flatten(),
        out_start=starts(topology.out_start),
        out_gates=tuple(gate.repeat(count) for gate in gates),
        senders=(topology.senders[order] + N * copy).flatten(),
        in_start=starts(topology.in_start),
        in_gates=tuple(gate[order].repeat(count) for gate in gates),
    )


def _sums(rows: Tensor, index: Tensor, start: Tensor, weights: Tensor) -> Tensor:
    if len(index) == 0 or rows.numel() == 0:
        return torch.zeros_like(rows)
    return functional.embedding_bag(
        index, rows, start, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
