"""Triton kernels of the gated sum. Sorted rows, no atomics; inputs of any float type, sums in fp32.

One program handles one node (or road) and one block of columns; both directions in one pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from frigate.batch import Topology

BLOCK = 1024


@triton.jit
def _row_sum(x, gates, first, stop, order, end, columns, mask, C,
             ORDERED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(first, stop):
        road = tl.load(order + k) if ORDERED else k
        row = tl.load(end + road)
        total += tl.load(gates + road) * tl.load(x + row * C + columns, mask, 0.0).to(tl.float32)
    return total


@triton.jit
def _both_sums(x, gates, senders, receivers, out_start, in_start, in_order,
               out, in_, C, BLOCK: tl.constexpr):  # fmt: skip
    v = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < C
    total = _row_sum(
        x,
        gates,
        tl.load(out_start + v),
        tl.load(out_start + v + 1),
        in_order,
        receivers,
        columns,
        mask,
        C,
        False,
        BLOCK,
    )
    tl.store(out + v * C + columns, total.to(out.dtype.element_ty), mask)
    total = _row_sum(
        x, gates, tl.load(in_start + v), tl.load(in_start + v + 1), in_order, senders, columns, mask, C, True, BLOCK
    )
    tl.store(in_ + v * C + columns, total.to(in_.dtype.element_ty), mask)


@triton.jit
def _grad_features(grad_out, grad_in, gates, senders, receivers, out_start, in_start,
                   in_order, grad, C, BLOCK: tl.constexpr):  # fmt: skip
    v = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < C
    total = _row_sum(
        grad_in,
        gates,
        tl.load(out_start + v),
        tl.load(out_start + v + 1),
        in_order,
        receivers,
        columns,
        mask,
        C,
        False,
        BLOCK,
    )
    total += _row_sum(
        grad_out,
        gates,
        tl.load(in_start + v),
        tl.load(in_start + v + 1),
        in_order,
        senders,
        columns,
        mask,
        C,
        True,
        BLOCK,
    )
    tl.store(grad + v * C + columns, total.to(grad.dtype.element_ty), mask)


@triton.jit
def _grad_gates(grad_out, grad_in, x, senders, receivers, grad, C, BLOCK: tl.constexpr):
    road = tl.program_id(0)
    v, u = tl.load(senders + road), tl.load(receivers + road)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, C, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        mask = columns < C
        total += tl.load(grad_out + v * C + columns, mask, 0.0).to(tl.float32) * tl.load(
            x + u * C + columns, mask, 0.0
        ).to(tl.float32)
        total += tl.load(grad_in + u * C + columns, mask, 0.0).to(tl.float32) * tl.load(
            x + v * C + columns, mask, 0.0
        ).to(tl.float32)
    tl.store(grad + road, tl.sum(total))


def _grid(rows: int, C: int) -> tuple[int, int]:
    return rows, triton.cdiv(C, BLOCK)


def _roads(topology: Topology) -> tuple[Tensor, ...]:
    return topology.senders, topology.receivers, topology.out_start, topology.in_start, topology.in_order


def both_sums(features: Tensor, gates: Tensor, topology: Topology) -> tuple[Tensor, Tensor]:
    N, C = features.shape
    out, in_ = torch.empty_like(features), torch.empty_like(features)
    _both_sums[_grid(N, C)](features, gates, *_roads(topology), out, in_, C, BLOCK=BLOCK)
    return out, in_


def grad_features(grad_out: Tensor, grad_in: Tensor, gates: Tensor, topology: Topology) -> Tensor:
    N, C = grad_out.shape
    grad = torch.empty_like(grad_out)
    _grad_features[_grid(N, C)](grad_out, grad_in, gates, *_roads(topology), grad, C, BLOCK=BLOCK)
    return grad


def grad_gates(grad_out: Tensor, grad_in: Tensor, features: Tensor, topology: Topology) -> Tensor:
    grad = torch.empty(topology.num_edges, dtype=torch.float32, device=features.device)
    if topology.num_edges:
        C = features.shape[1]
        _grad_gates[(topology.num_edges,)](
            grad_out, grad_in, features, topology.senders, topology.receivers, grad, C, BLOCK=BLOCK
        )
    return grad
