"""Triton kernel for a sparse product with fixed weights: sorted rows, no atomics, accumulates in fp32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _row_sums(x, weights, start, index, out, C, BLOCK: tl.constexpr):
    """One program computes one row of the product, for a block of columns."""
    v = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < C
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(tl.load(start + v), tl.load(start + v + 1)):
        row = tl.load(index + k)
        total += tl.load(weights + k) * tl.load(x + row * C + columns, mask, 0.0).to(tl.float32)
    tl.store(out + v * C + columns, total.to(out.dtype.element_ty), mask)


def row_sums(features: Tensor, weights: Tensor, start: Tensor, index: Tensor) -> Tensor:
    """[N,C]: the product of a CSR matrix (row v has columns index[start[v] .. start[v+1]]) and features [N,C]."""
    N, C = features.shape
    out = torch.empty_like(features)
    _row_sums[(N, triton.cdiv(C, BLOCK))](features, weights, start, index, out, C, BLOCK=BLOCK)
    return out
