"""The gated messages of a layer: one operation, three implementations.

    m_out[v] = sum over roads v -> u of gate[v,u] * h[u]      eq:aggregation_out
    m_in[v]  = sum over roads u -> v of gate[u,v] * h[u]      eq:aggregation_in

The result is [h, m_out, m_in] side by side, as W_1 reads it. `reference` is the equations in the fewest words (gather
and index_add, E x C in memory). `csr` sums each row's roads in place on a CPU. `triton` does the same on a GPU, writing
the three parts where they belong. They agree in value and gradient; `gated_messages` picks by the device
and `choice`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from frigate.nn.batch import Topology
from frigate.nn.choice import on_gpu, plain

Messages = Callable[[Tensor, Tensor, Topology], Tensor]


def gated_messages(h: Tensor, gates: Tensor, topology: Topology) -> Tensor:
    """[N,M,3D]: h [N,M,D], and its gated sums over out- and over in-neighbours; gates [E]."""
    return implementation(h)(h, gates, topology)


def implementation(h: Tensor) -> Messages:
    """The implementation that `gated_messages` uses for h."""
    if on_cpu(h):
        return csr
    return triton if on_gpu(h.device) else reference


def on_cpu(h: Tensor) -> bool:
    """Whether h is on a CPU, and of a type that has sparse products there."""
    return h.device.type == "cpu" and h.dtype in (torch.float32, torch.float64) and not plain()


def reference(h: Tensor, gates: Tensor, topology: Topology) -> Tensor:
    gates = gates.to(h.dtype)[:, None, None]
    nothing = torch.zeros_like(h)
    out = nothing.index_add(0, topology.senders, gates * h[topology.receivers])
    in_ = nothing.index_add(0, topology.receivers, gates * h[topology.senders])
    return torch.cat([h, out, in_], dim=-1)


def csr(h: Tensor, gates: Tensor, topology: Topology) -> Tensor:
    N, M, D = h.shape
    out, in_ = _Csr.apply(h.reshape(N, M * D), gates, topology)  # type: ignore[no-untyped-call]
    return torch.cat([h, out.view(N, M, D), in_.view(N, M, D)], dim=-1)


def triton(h: Tensor, gates: Tensor, topology: Topology) -> Tensor:
    messages: Tensor = _Triton.apply(h.contiguous(), gates.float(), topology)  # type: ignore[no-untyped-call]
    return messages


class _Csr(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, gates: Tensor, topology: Topology) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(features, gates)
        ctx.topology = topology
        gates = gates.to(features.dtype)
        return _out_sum(features, gates, topology), _in_sum(features, gates, topology)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        features, gates = ctx.saved_tensors
        topology: Topology = ctx.topology
        grad_out, grad_in = grads[0].contiguous(), grads[1].contiguous()
        grad_features = grad_gates = None
        if ctx.needs_input_grad[0]:
            weight = gates.to(features.dtype)
            grad_features = _in_sum(grad_out, weight, topology) + _out_sum(grad_in, weight, topology)
        if ctx.needs_input_grad[1]:
            # The product of a sparse row and a dense column at the roads alone: no E x C in between.
            roads = _zeros_at_roads(topology, features.dtype)
            dots = torch.sparse.sampled_addmm(roads, grad_out, features.T)
            dots = torch.sparse.sampled_addmm(dots, features, grad_in.T)
            grad_gates = dots.values().to(gates.dtype)
        return grad_features, grad_gates, None


def _out_sum(features: Tensor, gates: Tensor, topology: Topology) -> Tensor:
    return _bag(features, topology.receivers, topology.out_start, gates)


def _in_sum(features: Tensor, gates: Tensor, topology: Topology) -> Tensor:
    order = topology.in_order
    return _bag(features, topology.senders[order], topology.in_start, gates[order])


def _bag(features: Tensor, index: Tensor, start: Tensor, weights: Tensor) -> Tensor:
    if len(index) == 0 or features.numel() == 0:
        return torch.zeros_like(features)
    return functional.embedding_bag(index, features, start[:-1], mode="sum", per_sample_weights=weights)


def _zeros_at_roads(topology: Topology, dtype: torch.dtype) -> Tensor:
    N, E = topology.num_nodes, topology.num_edges
    return sparse_matrix(topology.out_start, topology.receivers, torch.zeros(E, dtype=dtype), (N, N))


def sparse_matrix(start: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A matrix of which row r has the columns and values from start[r] to before start[r+1], in any order."""
    return torch.sparse_csr_tensor(start, columns, values, shape, check_invariants=False)  # which ask for an order


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # The first of all CSR tensors says that they are "in beta state", once and for all.
    sparse_matrix(torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), torch.zeros(0), (0, 0))


class _Triton(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, gates: Tensor, topology: Topology) -> Tensor:
        from frigate.nn import kernels

        ctx.save_for_backward(h, gates)
        ctx.topology = topology
        return kernels.messages(h, gates, topology)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        from frigate.nn import kernels

        h, gates = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_h = kernels.grad_h(grad, gates, ctx.topology) if ctx.needs_input_grad[0] else None
        grad_gates = kernels.grad_gates(grad, h, ctx.topology) if ctx.needs_input_grad[1] else None
        return grad_h, grad_gates, None
