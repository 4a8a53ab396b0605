"""Triton kernels: the gated messages with their gradients, and a sparse product of fixed weights.

Sorted rows, no atomics; inputs of any float type, sums in fp32. One program handles one node (or road) and one block of
columns. A row of h is its M snapshots of D numbers; a row of messages has three such parts side by side in each
snapshot, [h, out, in], and is written and read in place: no part is ever copied.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from frigate.nn.batch import Topology

BLOCK = 1024


@triton.jit
def _row_sum(x, gates, first, stop, order, end, columns, mask, C,
             ORDERED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The gated sum of the rows of x (C numbers apart) at the far ends of roads first .. stop."""
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(first, stop):
        road = tl.load(order + k) if ORDERED else k
        row = tl.load(end + road)
        total += tl.load(gates + road) * tl.load(x + row * C + columns, mask, 0.0).to(tl.float32)
    return total


@triton.jit
def _messages(h, gates, senders, receivers, out_start, in_start, in_order, messages, C,
              D: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    v = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < C
    at = messages + v * 3 * C + (columns // D) * 3 * D + columns % D
    tl.store(at, tl.load(h + v * C + columns, mask, 0.0), mask)
    total = _row_sum(h, gates, tl.load(out_start + v), tl.load(out_start + v + 1), in_order, receivers, columns, mask,
                     C, False, BLOCK)  # fmt: skip
    tl.store(at + D, total.to(messages.dtype.element_ty), mask)
    total = _row_sum(h, gates, tl.load(in_start + v), tl.load(in_start + v + 1), in_order, senders, columns, mask,
                     C, True, BLOCK)  # fmt: skip
    tl.store(at + 2 * D, total.to(messages.dtype.element_ty), mask)


@triton.jit
def _grad_h(grad, gates, senders, receivers, out_start, in_start, in_order, grad_h, C,
            D: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """What v sent: to itself, to those it is an out-neighbour of (u -> v), to those it is an in-neighbour of."""
    v = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < C
    part = (columns // D) * 3 * D + columns % D
    total = tl.load(grad + v * 3 * C + part, mask, 0.0).to(tl.float32)
    total += _row_sum(grad, gates, tl.load(in_start + v), tl.load(in_start + v + 1), in_order, senders, part + D, mask,
                      3 * C, True, BLOCK)  # fmt: skip
    total += _row_sum(grad, gates, tl.load(out_start + v), tl.load(out_start + v + 1), in_order, receivers,
                      part + 2 * D, mask, 3 * C, False, BLOCK)  # fmt: skip
    tl.store(grad_h + v * C + columns, total.to(grad_h.dtype.element_ty), mask)


@triton.jit
def _grad_gates(grad, h, senders, receivers, grad_gates, C, D: tl.constexpr, BLOCK: tl.constexpr):
    road = tl.program_id(0)
    v, u = tl.load(senders + road), tl.load(receivers + road)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, C, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        mask = columns < C
        part = (columns // D) * 3 * D + columns % D
        out = tl.load(grad + v * 3 * C + part + D, mask, 0.0).to(tl.float32)
        total += out * tl.load(h + u * C + columns, mask, 0.0).to(tl.float32)
        in_ = tl.load(grad + u * 3 * C + part + 2 * D, mask, 0.0).to(tl.float32)
        total += in_ * tl.load(h + v * C + columns, mask, 0.0).to(tl.float32)
    tl.store(grad_gates + road, tl.sum(total))


@triton.jit
def _row_sums(x, weights, start, index, out, C, BLOCK: tl.constexpr):
    v = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < C
    total = _row_sum(x, weights, tl.load(start + v), tl.load(start + v + 1), index, index, columns, mask,
                     C, False, BLOCK)  # fmt: skip
    tl.store(out + v * C + columns, total.to(out.dtype.element_ty), mask)


def _grid(rows: int, C: int) -> tuple[int, int]:
    return rows, triton.cdiv(C, BLOCK)


def _roads(topology: Topology) -> tuple[Tensor, ...]:
    return topology.senders, topology.receivers, topology.out_start, topology.in_start, topology.in_order


def messages(h: Tensor, gates: Tensor, topology: Topology) -> Tensor:
    """[N,M,3D] from h [N,M,D], contiguous, and gates [E] in fp32."""
    N, M, D = h.shape
    result = h.new_empty(N, M, 3 * D)
    if result.numel():
        _messages[_grid(N, M * D)](h, gates, *_roads(topology), result, M * D, D=D, BLOCK=BLOCK)
    return result


def grad_h(grad: Tensor, gates: Tensor, topology: Topology) -> Tensor:
    """[N,M,D] from the gradient [N,M,3D] of the messages, contiguous."""
    N, M, D = grad.shape[0], grad.shape[1], grad.shape[2] // 3
    result = grad.new_empty(N, M, D)
    if result.numel():
        _grad_h[_grid(N, M * D)](grad, gates, *_roads(topology), result, M * D, D=D, BLOCK=BLOCK)
    return result


def grad_gates(grad: Tensor, h: Tensor, topology: Topology) -> Tensor:
    """[E] in fp32."""
    result = torch.empty(topology.num_edges, dtype=torch.float32, device=h.device)
    if topology.num_edges:
        _, M, D = h.shape
        _grad_gates[(topology.num_edges,)](
            grad, h, topology.senders, topology.receivers, result, M * D, D=max(D, 1), BLOCK=BLOCK
        )
    return result


def row_sums(features: Tensor, weights: Tensor, start: Tensor, index: Tensor) -> Tensor:
    """The product of a sparse matrix of fixed weights (rows start, columns index) and features [N,C]."""
    N, C = features.shape
    out = torch.empty_like(features)
    _row_sums[_grid(N, C)](features, weights, start, index, out, C, BLOCK=BLOCK)
    return out


@triton.jit
def _norm(x, weight, bias, y, means, scales, rows, eps,
          D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    mask = (row < rows)[:, None] & (column < D)[None, :]
    at = row[:, None] * D + column[None, :]
    value = tl.load(x + at, mask, 0.0).to(tl.float32)
    mean = tl.sum(value, axis=1) / D
    centred = tl.where(mask, value - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + eps)
    w = tl.load(weight + column, column < D, 0.0)[None, :]
    b = tl.load(bias + column, column < D, 0.0)[None, :]
    tl.store(y + at, (centred * scale[:, None] * w + b).to(y.dtype.element_ty), mask)
    tl.store(means + row, mean, row < rows)
    tl.store(scales + row, scale, row < rows)


@triton.jit
def _grad_norm(grad, x, weight, means, scales, grad_x, grad_weight, grad_bias, rows,
               D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, LOOPS: tl.constexpr):  # fmt: skip
    """The gradient of x; and of weight and bias, summed over the rows of this program: added up afterwards."""
    column = tl.arange(0, WIDE)
    w = tl.load(weight + column, column < D, 0.0)[None, :]
    sum_weight = tl.zeros([WIDE], tl.float32)
    sum_bias = tl.zeros([WIDE], tl.float32)
    for loop in range(LOOPS):
        row = (tl.program_id(0).to(tl.int64) * LOOPS + loop) * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & (column < D)[None, :]
        at = row[:, None] * D + column[None, :]
        g = tl.load(grad + at, mask, 0.0).to(tl.float32)
        scale = tl.load(scales + row, row < rows, 0.0)[:, None]
        normal = (tl.load(x + at, mask, 0.0).to(tl.float32) - tl.load(means + row, row < rows, 0.0)[:, None]) * scale
        normal = tl.where(mask, normal, 0.0)
        sum_weight += tl.sum(g * normal, axis=0)
        sum_bias += tl.sum(g, axis=0)
        g = g * w
        centre = tl.sum(g, axis=1)[:, None] / D
        slope = tl.sum(g * normal, axis=1)[:, None] / D
        tl.store(grad_x + at, ((g - centre - normal * slope) * scale).to(grad_x.dtype.element_ty), mask)
    tl.store(grad_weight + tl.program_id(0) * WIDE + column, sum_weight)
    tl.store(grad_bias + tl.program_id(0) * WIDE + column, sum_bias)


def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm over the last, short dimension of x, contiguous; and the mean and scale of each row.

    Torch's own gives a block of threads to each row, and ours are only some sixty numbers long.
    """
    D, rows = x.shape[-1], x.numel() // max(1, x.shape[-1])
    y = torch.empty_like(x)
    means, scales = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    if rows:
        wide = triton.next_power_of_2(D)
        height = max(1, 4096 // wide)
        _norm[(triton.cdiv(rows, height),)](x, weight, bias, y, means, scales, rows, eps, D=D, WIDE=wide, ROWS=height)
    return y, means, scales


def grad_norm(grad: Tensor, x: Tensor, weight: Tensor, means: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias."""
    D, rows = x.shape[-1], x.numel() // max(1, x.shape[-1])
    wide = triton.next_power_of_2(D)
    height, loops = max(1, 4096 // wide), 16
    programs = max(1, triton.cdiv(rows, height * loops))
    grad_x = torch.empty_like(x)
    grad_weight, grad_bias = (torch.zeros(programs, wide, device=x.device) for _ in range(2))
    if rows:
        _grad_norm[(programs,)](
            grad, x, weight, means, scales, grad_x, grad_weight, grad_bias, rows,
            D=D, WIDE=wide, ROWS=height, LOOPS=loops,
        )  # fmt: skip
    return grad_x, grad_weight.sum(0)[:D], grad_bias.sum(0)[:D]
