"""The units that the decoder's dropout keeps, which its kernels never store."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from frigate.nn.ops.cuda.decoder_kernels import kept, tall


@triton.jit
def _mask(  # type: ignore[no-untyped-def]  # Triton reads the annotations
    out, seed, R, H, share, HIDDEN: tl.constexpr, TALL: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    unit = tl.arange(0, TALL)
    for k in range(H):
        units = kept(tl.load(seed), row, k, R, share, HIDDEN, TALL)
        tl.store(
            out + (k * tl.cast(R, tl.int64) + row)[:, None] * HIDDEN + unit[None, :],
            units.to(tl.int8),
            (row < R)[:, None] & (unit < HIDDEN)[None, :],
        )


def dropout_mask(seed: Tensor, *, horizon: int, rows: int, hidden: int, dropout: float) -> Tensor:
    """[H,R,hidden]: what dropout keeps."""
    out = torch.empty(horizon, rows, hidden, dtype=torch.int8, device=seed.device)
    with torch.cuda.device_of(seed):
        _mask[(triton.cdiv(rows, 32),)](out, seed, rows, horizon, dropout, HIDDEN=hidden, TALL=tall(hidden), ROWS=32)
    return out.bool()
