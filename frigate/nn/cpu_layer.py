"""The gated layer on a CPU: a few snapshots at a time, so that all that lies between stays in the cache.

A snapshot's messages are summed and multiplied by their part of W_1 at once: neither [h, m_out, m_in] nor its gradient
is ever whole in memory. The snapshots lie one after the other in memory, [M,N,D], whatever the order of the dimensions;
the result of a layer does so too, and the next layer copies nothing. Backward keeps h and the result. With g the
gradient before the relu:

    g_out[u] = sum over roads v -> u of gate * g[v]         grad h = g W_self + g_out W_out + g_in W_in
    g_in[v]  = sum over roads v -> u of gate * g[u]         grad W_1 = [g^T h, g_out^T h, g_in^T h]
    grad gate[v,u] = g[v] . W_out h[u] + W_in h[v] . g[u]
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from frigate.batch import Topology

BLOCK_ROWS = 4096  # nodes of the snapshots of a block: with D = 64, a megabyte for each tensor in between


def cpu_layer(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    """[N,M,D] as `layer.reference`."""
    result: Tensor = _Layer.apply(h, gates.to(h.dtype), weight, bias, topology)  # type: ignore[no-untyped-call]
    return result


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
        snapshots = h.transpose(0, 1).contiguous()  # [M,N,D]
        M, N, _ = snapshots.shape
        of_self, of_out, of_in = weight.T.contiguous().chunk(3)  # as a product reads them fastest
        result = h.new_empty(M, N, len(weight))
        for part, roads in _blocks(M, topology, gates):
            rows, into = snapshots[part].flatten(0, 1), result[part].flatten(0, 1)
            torch.mm(rows, of_self, out=into)
            into.addmm_(roads.over_out(rows), of_out)
            into.addmm_(roads.over_in(rows), of_in)
            if bias is not None:
                into.add_(bias)
            into.clamp_min_(0)
        result = result.transpose(0, 1)
        ctx.save_for_backward(snapshots, gates, weight, result)
        ctx.topology = topology
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        snapshots, gates, weight, result = ctx.saved_tensors
        need_h, need_gates, need_weight, need_bias, _ = ctx.needs_input_grad
        M = len(snapshots)
        of_self, of_out, of_in = weight.chunk(3, dim=1)
        above, result = grads[0].transpose(0, 1), result.transpose(0, 1)
        grad_h = torch.empty_like(snapshots) if need_h else None
        grad_gates = torch.zeros_like(gates) if need_gates else None
        grad_weight = torch.zeros_like(weight) if need_weight else None
        grad_bias = weight.new_zeros(len(weight)) if need_bias else None
        for part, roads in _blocks(M, ctx.topology, gates):
            rows = snapshots[part].flatten(0, 1)
            g = torch.ops.aten.threshold_backward(above[part].contiguous(), result[part], 0).flatten(0, 1)
            if grad_gates is not None:
                grad_gates += roads.dots(g, rows @ of_out.T, rows @ of_in.T)
            if grad_bias is not None:
                grad_bias += g.sum(0)
            if grad_h is None and grad_weight is None:
                continue
            g_out, g_in = roads.over_in(g), roads.over_out(g)
            if grad_h is not None:
                into = grad_h[part].flatten(0, 1)
                torch.mm(g, of_self, out=into)
                into.addmm_(g_out, of_out).addmm_(g_in, of_in)
            if grad_weight is not None:
                for into, gradient in zip(grad_weight.chunk(3, dim=1), (g, g_out, g_in), strict=True):
                    into.addmm_(gradient.T, rows)
        return None if grad_h is None else grad_h.transpose(0, 1), grad_gates, grad_weight, grad_bias, None


@dataclass(frozen=True)
class _Roads:
    """The roads of C snapshots that lie one after the other: C copies of one network, row c * N + v."""

    num_edges: int  # of one copy
    receivers: Tensor  # [C*E] sorted by sender, as the topology's
    out_start: Tensor  # [C*N+1]
    out_gates: Tensor  # [C*E]
    senders: Tensor  # [C*E] sorted by receiver
    in_start: Tensor  # [C*N+1]
    in_gates: Tensor  # [C*E]

    def over_out(self, rows: Tensor) -> Tensor:
        """The gated sum over the out-neighbours of each of the rows [C*N,D]."""
        return _sums(rows, self.receivers, self.out_start, self.out_gates)

    def over_in(self, rows: Tensor) -> Tensor:
        return _sums(rows, self.senders, self.in_start, self.in_gates)

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


def _blocks(M: int, topology: Topology, gates: Tensor) -> Iterator[tuple[slice, _Roads]]:
    """M snapshots in blocks: which, and their roads."""
    size = max(1, min(M, BLOCK_ROWS // max(1, topology.num_nodes)))
    roads = _copies(topology, gates, size)
    for first in range(0, M, size):
        last = min(M, first + size)
        yield slice(first, last), roads if last - first == size else _copies(topology, gates, last - first)


def _copies(topology: Topology, gates: Tensor, count: int) -> _Roads:
    N, E, order = topology.num_nodes, topology.num_edges, topology.in_order
    copy = torch.arange(count)[:, None]

    def starts(start: Tensor) -> Tensor:
        return torch.cat([(start[:-1] + E * copy).flatten(), start.new_tensor([E * count])])

    return _Roads(
        num_edges=E,
        receivers=(topology.receivers + N * copy).flatten(),
        out_start=starts(topology.out_start),
        out_gates=gates.repeat(count),
        senders=(topology.senders[order] + N * copy).flatten(),
        in_start=starts(topology.in_start),
        in_gates=gates[order].repeat(count),
    )


def _sums(rows: Tensor, index: Tensor, start: Tensor, weights: Tensor) -> Tensor:
    if len(index) == 0 or rows.numel() == 0:
        return torch.zeros_like(rows)
    return functional.embedding_bag(
        index, rows, start, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
