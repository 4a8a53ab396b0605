"""Triton kernels for the decoder: one for all H steps, and one for backward.

Each step k, for every row (row r belongs to window r % B):

    gates = W_hh h + w_ih[:, 0] y + W_ih[:, 1:] known[b, k] + b_ih + b_hh,   (h, c) = the LSTM cell's new state
    y = w2 . dropout(relu(W1 [h, c] + base)) + b2,                           fed back unchanged

States are stored step by step, [H+1,R,D], so that the states before and after the steps are plain matrices. Backward
recomputes gates, hidden layer and dropout mask; it writes the gradients of the gates [H,R,4D] and of the hidden layer
[H,R,hidden], which `lstm_kernels.sums` reduces to the gradients of the weights. y, the biases, w_ih[:, 0] and w2 are in
fp32; everything else is as in `lstm_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from frigate.nn.ops.cuda.lstm_kernels import early, late, math, rows_and_warps, sigmoid, sizes, tanh, tile, vector


@dataclass
class DecoderTuning:
    """Launch parameters."""

    forward: tuple[int, int] = (64, 4)  # rows per program, warps
    backward: tuple[int, int] = (64, 4)
    backward_stages: int = 1


TUNING = DecoderTuning()


@triton.jit
def kept(seed, row, k, R, share, HIDDEN: tl.constexpr, TALL: tl.constexpr):
    """[ROWS,TALL]: the hidden units that dropout keeps in step k; identical in forward and backward."""
    at = (k * R + row)[:, None] * HIDDEN + tl.arange(0, TALL)[None, :]
    return tl.rand(seed, at.to(tl.int32), 7) >= share  # Philox 4x32-7


@triton.jit
def _cell_gate(
    h, y, known, held, w_known, w_y, bias, D: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr, HOLD: tl.constexpr
):
    """[ROWS,WIDE]: the pre-activation of one gate."""
    total = tl.dot(h, tl.trans(late(held, D, WIDE, HOLD)), input_precision="ieee")
    if C:
        total = tl.dot(known, tl.trans(tile(w_known, 16, D, 16, WIDE, 16)), total, input_precision="ieee")
    # Not used to initialise the accumulator: the tensor cores would have to wait for it.
    y, weight = tl.broadcast(y, vector(w_y, D, WIDE))
    return tl.fma(y, weight, total) + vector(bias, D, WIDE)


@triton.jit
def _known(known, window, k, H, C: tl.constexpr):
    """[ROWS,16]: the known inputs of step k in each row's window; 0 beyond the first C columns."""
    column = tl.arange(0, 16)
    return tl.load(known + ((window * H + k) * C)[:, None] + column[None, :], (column < C)[None, :], 0.0)


@triton.jit
def _decoder(
    h0,
    c0,
    y0,
    base,
    known,
    w_hh,
    w_known,
    w_y,
    bias,
    w1,
    w2,
    b2,
    seed,
    hs,
    cs,
    ys,
    R,
    B,
    H,
    share,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    HIDDEN: tl.constexpr,
    TALL: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    KEEP: tl.constexpr,
    DROPOUT: tl.constexpr,
    HOLD: tl.constexpr,
    MATH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    unit = tl.arange(0, TALL)
    valid = row < R
    mask = valid[:, None] & (column < D)[None, :]
    at = row[:, None] * D + column[None, :]
    window = row % B
    step_of = tl.cast(R, tl.int64) * D
    square: tl.constexpr = D * D
    kind = w_hh.dtype.element_ty
    wi = early(w_hh, D, WIDE, HOLD)
    wf = early(w_hh + square, D, WIDE, HOLD)
    wg = early(w_hh + 2 * square, D, WIDE, HOLD)
    wo = early(w_hh + 3 * square, D, WIDE, HOLD)
    w1_h = tile(w1, 2 * D, HIDDEN, D, TALL, WIDE)
    w1_c = tile(w1 + D, 2 * D, HIDDEN, D, TALL, WIDE)
    fixed = tl.load(base + row[:, None] * HIDDEN + unit[None, :], valid[:, None] & (unit < HIDDEN)[None, :], 0.0)
    fixed = fixed.to(tl.float32)
    out_weight = vector(w2, HIDDEN, TALL)
    out_bias = tl.load(b2)
    if DROPOUT:
        random = tl.load(seed)
    h = tl.load(h0 + at, mask, 0.0).to(kind)
    c = tl.load(c0 + at, mask, 0.0).to(tl.float32)
    y = tl.load(y0 + row, valid, 0.0).to(tl.float32)
    tl.store(ys + row, y, valid)
    for k in range(H):
        if KEEP:
            tl.store(hs + k * step_of + at, h, mask)
            tl.store(cs + k * step_of + at, c.to(kind), mask)
        told = _known(known, window, k, H, C) if C else 0
        back = y[:, None]
        new = sigmoid(_cell_gate(h, back, told, wi, w_known, w_y, bias, D, WIDE, C, HOLD), MATH)
        new = new * tanh(
            _cell_gate(h, back, told, wg, w_known + 32 * D, w_y + 2 * D, bias + 2 * D, D, WIDE, C, HOLD), MATH
        )
        c = new + c * sigmoid(
            _cell_gate(h, back, told, wf, w_known + 16 * D, w_y + D, bias + D, D, WIDE, C, HOLD), MATH
        )
        o = sigmoid(_cell_gate(h, back, told, wo, w_known + 48 * D, w_y + 3 * D, bias + 3 * D, D, WIDE, C, HOLD), MATH)
        h = (o * tanh(c, MATH)).to(kind)
        z = tl.dot(h, tl.trans(w1_h), input_precision="ieee")
        z = tl.dot(c.to(kind), tl.trans(w1_c), z, input_precision="ieee")
        active = tl.maximum(z + fixed, 0.0)
        if DROPOUT:
            active = tl.where(kept(random, row, k, R, share, HIDDEN, TALL), active / (1.0 - share), 0.0)
        y = tl.sum(active * out_weight, axis=1) + out_bias
        tl.store(ys + (k + 1) * tl.cast(R, tl.int64) + row, y, valid)
    if KEEP:
        tl.store(hs + H * step_of + at, h, mask)
        tl.store(cs + H * step_of + at, c.to(kind), mask)


@triton.jit
def _grad_decoder(
    grad,
    base,
    known,
    w_hh,
    w_known,
    w_y,
    bias,
    w1,
    w2,
    seed,
    hs,
    cs,
    ys,
    grad_gates,
    grad_z,
    grad_h0,
    grad_c0,
    grad_y0,
    grad_w2,
    grad_b2,
    R,
    B,
    H,
    share,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    HIDDEN: tl.constexpr,
    TALL: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    DROPOUT: tl.constexpr,
    HOLD: tl.constexpr,
    MATH: tl.constexpr,
):
    """`grad` [H,R]; grad_w2 [programs,TALL] and grad_b2 [programs] are the sums over this program's rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    unit = tl.arange(0, TALL)
    valid = row < R
    mask = valid[:, None] & (column < D)[None, :]
    at = row[:, None] * D + column[None, :]
    at_z = row[:, None] * HIDDEN + unit[None, :]
    mask_z = valid[:, None] & (unit < HIDDEN)[None, :]
    window = row % B
    rows_of = tl.cast(R, tl.int64)
    square: tl.constexpr = D * D
    kind = w_hh.dtype.element_ty
    wi = early(w_hh, D, WIDE, HOLD)
    wf = early(w_hh + square, D, WIDE, HOLD)
    wg = early(w_hh + 2 * square, D, WIDE, HOLD)
    wo = early(w_hh + 3 * square, D, WIDE, HOLD)
    w1_h = tile(w1, 2 * D, HIDDEN, D, TALL, WIDE)
    w1_c = tile(w1 + D, 2 * D, HIDDEN, D, TALL, WIDE)
    if DROPOUT:
        random = tl.load(seed)
    dh = tl.zeros([ROWS, WIDE], tl.float32)
    dc = tl.zeros([ROWS, WIDE], tl.float32)
    back = tl.zeros([ROWS], tl.float32)  # gradient of y from the next step, which reads it
    sum_w2 = tl.zeros([ROWS, TALL], tl.float32)
    sum_b2 = tl.zeros([ROWS], tl.float32)
    h = tl.load(hs + H * rows_of * D + at, mask, 0.0)
    c = tl.load(cs + H * rows_of * D + at, mask, 0.0)
    for step in range(H):
        k = H - 1 - step
        z = tl.dot(h, tl.trans(w1_h), input_precision="ieee")
        z = tl.dot(c, tl.trans(w1_c), z, input_precision="ieee") + tl.load(base + at_z, mask_z, 0.0).to(tl.float32)
        dy = tl.load(grad + k * rows_of + row, valid, 0.0).to(tl.float32) + back
        slope = tl.where(z > 0.0, 1.0, 0.0)
        if DROPOUT:
            slope = tl.where(kept(random, row, k, R, share, HIDDEN, TALL), slope / (1.0 - share), 0.0)
        sum_w2 += dy[:, None] * (z * slope)
        sum_b2 += dy
        dz = (dy[:, None] * slope * vector(w2, HIDDEN, TALL)).to(kind)
        tl.store(grad_z + k * rows_of * HIDDEN + at_z, dz, mask_z)
        dh = tl.dot(dz, w1_h, dh, input_precision="ieee")
        dc = tl.dot(dz, w1_c, dc, input_precision="ieee")

        before = tl.load(cs + k * rows_of * D + at, mask, 0.0)
        h = tl.load(hs + k * rows_of * D + at, mask, 0.0)
        y = tl.load(ys + k * rows_of + row, valid, 0.0)[:, None]
        told = _known(known, window, k, H, C) if C else 0
        into = grad_gates + k * rows_of * (4 * D) + row[:, None] * (4 * D) + column[None, :]

        squashed = tanh(c.to(tl.float32), MATH)
        o = sigmoid(_cell_gate(h, y, told, wo, w_known + 48 * D, w_y + 3 * D, bias + 3 * D, D, WIDE, C, HOLD), MATH)
        passed = dh * o
        d = passed * squashed
        dc += passed - d * squashed
        d = d * (1.0 - o)
        back = tl.sum(d * vector(w_y + 3 * D, D, WIDE), axis=1)
        tl.store(into + 3 * D, d.to(kind), mask)
        dh = tl.dot(d.to(kind), late(wo, D, WIDE, HOLD), input_precision="ieee")

        i = sigmoid(_cell_gate(h, y, told, wi, w_known, w_y, bias, D, WIDE, C, HOLD), MATH)
        g = tanh(_cell_gate(h, y, told, wg, w_known + 32 * D, w_y + 2 * D, bias + 2 * D, D, WIDE, C, HOLD), MATH)
        d = dc * g * i * (1.0 - i)
        back += tl.sum(d * vector(w_y, D, WIDE), axis=1)
        tl.store(into, d.to(kind), mask)
        dh = tl.dot(d.to(kind), late(wi, D, WIDE, HOLD), dh, input_precision="ieee")
        d = dc * i * (1.0 - g * g)
        back += tl.sum(d * vector(w_y + 2 * D, D, WIDE), axis=1)
        tl.store(into + 2 * D, d.to(kind), mask)
        dh = tl.dot(d.to(kind), late(wg, D, WIDE, HOLD), dh, input_precision="ieee")

        f = sigmoid(_cell_gate(h, y, told, wf, w_known + 16 * D, w_y + D, bias + D, D, WIDE, C, HOLD), MATH)
        d = dc * before.to(tl.float32) * f * (1.0 - f)
        back += tl.sum(d * vector(w_y + D, D, WIDE), axis=1)
        tl.store(into + D, d.to(kind), mask)
        dh = tl.dot(d.to(kind), late(wf, D, WIDE, HOLD), dh, input_precision="ieee")
        dc = dc * f

        c = before
    tl.store(grad_h0 + at, dh.to(grad_h0.dtype.element_ty), mask)
    tl.store(grad_c0 + at, dc.to(grad_c0.dtype.element_ty), mask)
    tl.store(grad_y0 + row, back.to(grad_y0.dtype.element_ty), valid)
    tl.store(grad_w2 + tl.program_id(0) * TALL + unit, tl.sum(sum_w2, axis=0))
    tl.store(grad_b2 + tl.program_id(0), tl.sum(sum_b2, axis=0))


def decoder(
    h0: Tensor,
    c0: Tensor,
    y0: Tensor,
    base: Tensor,
    known: Tensor,
    weights: tuple[Tensor, ...],
    *,
    seed: Tensor | None,
    dropout: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """hs and cs [H+1,R,D] (only with `keep`), and ys [H+1,R]: y_0 and the forecasts. No dropout without a seed.

    All contiguous. Weights: w_hh [4D,D], w_known [4D,16], w_y [4D], bias [4D], w1 [hidden,2D], w2 [hidden], b2 [1].
    """
    (R, D) = h0.shape
    (B, H, C) = known.shape
    hidden = base.shape[1]
    kind = weights[0].dtype
    hs, cs = (torch.empty(H + 1 if keep else 0, R, D, dtype=kind, device=h0.device) for _ in range(2))
    ys = torch.empty(H + 1, R, dtype=torch.float32, device=h0.device)
    rows, warps = rows_and_warps(D, weights[0], TUNING.forward)
    if R:
        with torch.cuda.device_of(h0):
            _decoder[(triton.cdiv(R, rows),)](
                h0,
                c0,
                y0,
                base,
                known,
                *weights,
                ys if seed is None else seed,
                hs,
                cs,
                ys,
                R,
                B,
                H,
                dropout,
                **sizes(D, weights[0]),
                HIDDEN=hidden,
                TALL=tall(hidden),
                C=C,
                ROWS=rows,
                KEEP=keep,
                DROPOUT=seed is not None,
                MATH=math(weights[0]),
                num_warps=warps,
                num_stages=1,
            )
    return hs, cs, ys


def grad_decoder(
    grad: Tensor,
    base: Tensor,
    known: Tensor,
    weights: tuple[Tensor, ...],
    hs: Tensor,
    cs: Tensor,
    ys: Tensor,
    *,
    seed: Tensor | None,
    dropout: float,
    kinds: tuple[torch.dtype, ...],
) -> tuple[Tensor, ...]:
    """Gradients of the gates [H,R,4D] and hidden layer [H,R,hidden]; of h_0, c_0, y_0 in types `kinds`; of w2, b2."""
    _, R, D = hs.shape
    (B, H, C) = known.shape
    hidden = base.shape[1]
    rows, warps = rows_and_warps(D, hs, TUNING.backward)
    programs = triton.cdiv(R, rows)
    grad_gates = hs.new_empty(H, R, 4 * D)
    grad_z = hs.new_empty(H, R, hidden)
    shapes = (R, D), (R, D), (R,)
    of_first = [torch.empty(s, dtype=kind, device=hs.device) for s, kind in zip(shapes, kinds, strict=True)]
    grad_w2 = ys.new_empty(programs, tall(hidden))
    grad_b2 = ys.new_empty(programs)
    if R:
        with torch.cuda.device_of(hs):
            _grad_decoder[(programs,)](
                grad,
                base,
                known,
                *weights[:-1],
                ys if seed is None else seed,
                hs,
                cs,
                ys,
                grad_gates,
                grad_z,
                *of_first,
                grad_w2,
                grad_b2,
                R,
                B,
                H,
                dropout,
                **sizes(D, hs),
                HIDDEN=hidden,
                TALL=tall(hidden),
                C=C,
                ROWS=rows,
                DROPOUT=seed is not None,
                MATH=math(hs),
                num_warps=warps,
                num_stages=TUNING.backward_stages,
            )
    return grad_gates, grad_z, *of_first, grad_w2.sum(0)[:hidden], grad_b2.sum()[None]


def tall(hidden: int) -> int:
    """Columns of the hidden layer's tile: a power of 2, at least 16 as tl.dot requires."""
    return max(16, 1 << (hidden - 1).bit_length())
