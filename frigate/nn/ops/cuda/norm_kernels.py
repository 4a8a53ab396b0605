"""Triton kernels for layer norm over a short last dimension, and its gradients; accumulates in fp32.

torch's own kernel assigns a thread block to each row, which is wasteful for rows of about sixty numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm(x, weight, bias, y, means, scales, rows, eps, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr):
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
def _grad_norm(
    grad,
    x,
    weight,
    means,
    scales,
    grad_x,
    grad_weight,
    grad_bias,
    rows,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    LOOPS: tl.constexpr,
):
    """The gradient of x, and this program's partial sums for the gradients of weight and bias."""
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
    """Layer norm over the last dimension of x (contiguous); also the mean and inverse std of each row."""
    D = x.shape[-1]
    rows = x.numel() // max(1, x.shape[-1])
    y = torch.empty_like(x)
    means, scales = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    if rows:
        wide = triton.next_power_of_2(D)
        height = max(1, 4096 // wide)
        _norm[(triton.cdiv(rows, height),)](x, weight, bias, y, means, scales, rows, eps, D=D, WIDE=wide, ROWS=height)
    return y, means, scales


def grad_norm(grad: Tensor, x: Tensor, weight: Tensor, means: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias."""
    D = x.shape[-1]
    rows = x.numel() // max(1, x.shape[-1])
    wide = triton.next_power_of_2(D)
    height = max(1, 4096 // wide)
    loops = 16
    programs = max(1, triton.cdiv(rows, height * loops))
    grad_x = torch.empty_like(x)
    grad_weight, grad_bias = (torch.zeros(programs, wide, device=x.device) for _ in range(2))
    if rows:
        _grad_norm[(programs,)](
            grad,
            x,
            weight,
            means,
            scales,
            grad_x,
            grad_weight,
            grad_bias,
            rows,
            D=D,
            WIDE=wide,
            ROWS=height,
            LOOPS=loops,
        )
    return grad_x, grad_weight.sum(0)[:D], grad_bias.sum(0)[:D]
