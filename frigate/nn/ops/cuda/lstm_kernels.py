"""Triton kernels for an LSTM over T steps: forward, backward, and the sums for the gradients of the weights.

    gates_t = W_ih x_t + W_hh h_{t-1} + b_ih + b_hh          (i, f, g, o as torch orders them)
    c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g),   h_t = sigmoid(o) tanh(c_t)

One program handles a block of rows for all steps; h and c stay on the chip, c in fp32. For backward, the forward kernel
stores the state *before* each step (h_{t-1}, c_{t-1}: [R,T,D] each, in the type of x). Backward goes from the last step
to the first, recomputes the gates, and takes c_t from the step after. It writes dx and the gradients of the gates
[R,T,4D]; a second pass over these, x and h_{t-1} sums the gradients of the weights: one partial sum per program, no
atomics. Operands are in the type of x, sums in fp32; fp32 operands are multiplied in full precision ("ieee").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass
class LSTMTuning:
    """Launch parameters."""

    forward: tuple[int, int] = (64, 4)  # rows per program, warps
    backward: tuple[int, int] = (64, 4)
    backward_stages: int = 1  # forward always uses one: with more, Triton evicts the weights from shared memory
    sums_block: tuple[int, int, int] = (64, 8, 3)  # rows per tile, warps, stages


TUNING = LSTMTuning()


@triton.jit
def _inverse(x, MATH: tl.constexpr):
    if MATH == 0:
        y = 1.0 / x
    else:
        y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def tanh(x, MATH: tl.constexpr):
    return 1.0 - 2.0 * _inverse(1.0 + tl.exp(2.0 * x), MATH)


@triton.jit
def sigmoid(x, MATH: tl.constexpr):
    return _inverse(1.0 + tl.exp(-x), MATH)


@triton.jit
def tile(w, stride, rows: tl.constexpr, columns: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr):
    """[TALL,WIDE]: the first `rows` rows and `columns` columns of a matrix; 0 beyond."""
    row = tl.arange(0, TALL)
    column = tl.arange(0, WIDE)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(w + row[:, None] * stride + column[None, :], mask, 0.0)


@triton.jit
def early(w, D: tl.constexpr, WIDE: tl.constexpr, HOLD: tl.constexpr):
    """With HOLD, a weight matrix loaded once for all steps; else its address. `late` returns the weights either way."""
    return tile(w, D, D, D, WIDE, WIDE) if HOLD else w


@triton.jit
def late(held, D: tl.constexpr, WIDE: tl.constexpr, HOLD: tl.constexpr):
    return held if HOLD else tile(held, D, D, D, WIDE, WIDE)


@triton.jit
def vector(v, count: tl.constexpr, WIDE: tl.constexpr):
    column = tl.arange(0, WIDE)
    return tl.load(v + column, column < count, 0.0).to(tl.float32)[None, :]


@triton.jit
def _gate(x, h, held_x, held_h, bias, D: tl.constexpr, WIDE: tl.constexpr, HOLD: tl.constexpr):
    """[ROWS,WIDE]: the pre-activation of one gate; the weights are [gate,input]."""
    total = tl.dot(x, tl.trans(late(held_x, D, WIDE, HOLD)), input_precision="ieee")
    total = tl.dot(h, tl.trans(late(held_h, D, WIDE, HOLD)), total, input_precision="ieee")
    return total + vector(bias, D, WIDE)


@triton.jit
def _lstm(
    x,
    h0,
    c0,
    w_ih,
    w_hh,
    bias,
    hs,
    cs,
    h_last,
    c_last,
    R,
    T,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    KEEP: tl.constexpr,
    HOLD: tl.constexpr,
    MATH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    mask = (row < R)[:, None] & (column < D)[None, :]
    once = row[:, None] * D + column[None, :]
    each = row[:, None] * (T * D) + column[None, :]
    square: tl.constexpr = D * D
    wi_x = early(w_ih, D, WIDE, HOLD)
    wi_h = early(w_hh, D, WIDE, HOLD)
    wf_x = early(w_ih + square, D, WIDE, HOLD)
    wf_h = early(w_hh + square, D, WIDE, HOLD)
    wg_x = early(w_ih + 2 * square, D, WIDE, HOLD)
    wg_h = early(w_hh + 2 * square, D, WIDE, HOLD)
    wo_x = early(w_ih + 3 * square, D, WIDE, HOLD)
    wo_h = early(w_hh + 3 * square, D, WIDE, HOLD)
    kind = x.dtype.element_ty
    h = tl.load(h0 + once, mask, 0.0).to(kind)
    c = tl.load(c0 + once, mask, 0.0).to(tl.float32)
    following = tl.load(x + each, mask, 0.0)
    for t in range(T):
        now = following
        following = tl.load(x + each + tl.minimum(t + 1, T - 1) * D, mask, 0.0)  # prefetch the next step
        if KEEP:
            tl.store(hs + each + t * D, h, mask)
            tl.store(cs + each + t * D, c.to(kind), mask)
        # One gate at a time, so that at most two are in registers at once.
        new = sigmoid(_gate(now, h, wi_x, wi_h, bias, D, WIDE, HOLD), MATH)
        new = new * tanh(_gate(now, h, wg_x, wg_h, bias + 2 * D, D, WIDE, HOLD), MATH)
        c = new + c * sigmoid(_gate(now, h, wf_x, wf_h, bias + D, D, WIDE, HOLD), MATH)
        h = (sigmoid(_gate(now, h, wo_x, wo_h, bias + 3 * D, D, WIDE, HOLD), MATH) * tanh(c, MATH)).to(kind)
    tl.store(h_last + once, h, mask)
    tl.store(c_last + once, c.to(kind), mask)


@triton.jit
def _grad_lstm(
    grad_h,
    grad_c,
    x,
    hs,
    cs,
    c_last,
    w_ih,
    w_hh,
    bias,
    grad_gates,
    grad_x,
    grad_h0,
    grad_c0,
    R,
    T,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    HOLD: tl.constexpr,
    MATH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    mask = (row < R)[:, None] & (column < D)[None, :]
    once = row[:, None] * D + column[None, :]
    each = row[:, None] * (T * D) + column[None, :]
    wide = row[:, None] * (T * 4 * D) + column[None, :]
    square: tl.constexpr = D * D
    wi_x = early(w_ih, D, WIDE, HOLD)
    wi_h = early(w_hh, D, WIDE, HOLD)
    wf_x = early(w_ih + square, D, WIDE, HOLD)
    wf_h = early(w_hh + square, D, WIDE, HOLD)
    wg_x = early(w_ih + 2 * square, D, WIDE, HOLD)
    wg_h = early(w_hh + 2 * square, D, WIDE, HOLD)
    wo_x = early(w_ih + 3 * square, D, WIDE, HOLD)
    wo_h = early(w_hh + 3 * square, D, WIDE, HOLD)
    kind = x.dtype.element_ty
    dh = tl.load(grad_h + once, mask, 0.0).to(tl.float32)
    dc = tl.load(grad_c + once, mask, 0.0).to(tl.float32)
    c = tl.load(c_last + once, mask, 0.0)
    for step in range(T):
        t = T - 1 - step
        now = tl.load(x + each + t * D, mask, 0.0)
        h = tl.load(hs + each + t * D, mask, 0.0)
        before = tl.load(cs + each + t * D, mask, 0.0)
        at = grad_gates + wide + t * 4 * D

        squashed = tanh(c.to(tl.float32), MATH)
        o = sigmoid(_gate(now, h, wo_x, wo_h, bias + 3 * D, D, WIDE, HOLD), MATH)
        passed = dh * o
        dc += passed - passed * squashed * squashed
        d = (passed * squashed * (1.0 - o)).to(kind)
        tl.store(at + 3 * D, d, mask)
        dx = tl.dot(d, late(wo_x, D, WIDE, HOLD), input_precision="ieee")
        dh = tl.dot(d, late(wo_h, D, WIDE, HOLD), input_precision="ieee")

        i = sigmoid(_gate(now, h, wi_x, wi_h, bias, D, WIDE, HOLD), MATH)
        g = tanh(_gate(now, h, wg_x, wg_h, bias + 2 * D, D, WIDE, HOLD), MATH)
        d = (dc * g * i * (1.0 - i)).to(kind)
        tl.store(at, d, mask)
        dx = tl.dot(d, late(wi_x, D, WIDE, HOLD), dx, input_precision="ieee")
        dh = tl.dot(d, late(wi_h, D, WIDE, HOLD), dh, input_precision="ieee")
        d = (dc * i * (1.0 - g * g)).to(kind)
        tl.store(at + 2 * D, d, mask)
        dx = tl.dot(d, late(wg_x, D, WIDE, HOLD), dx, input_precision="ieee")
        dh = tl.dot(d, late(wg_h, D, WIDE, HOLD), dh, input_precision="ieee")

        f = sigmoid(_gate(now, h, wf_x, wf_h, bias + D, D, WIDE, HOLD), MATH)
        d = (dc * before.to(tl.float32) * f * (1.0 - f)).to(kind)
        tl.store(at + D, d, mask)
        dx = tl.dot(d, late(wf_x, D, WIDE, HOLD), dx, input_precision="ieee")
        dh = tl.dot(d, late(wf_h, D, WIDE, HOLD), dh, input_precision="ieee")
        dc = dc * f

        tl.store(grad_x + each + t * D, dx.to(kind), mask)
        c = before
    tl.store(grad_h0 + once, dh.to(grad_h0.dtype.element_ty), mask)
    tl.store(grad_c0 + once, dc.to(grad_c0.dtype.element_ty), mask)


@triton.jit
def _sums(
    a,
    b,
    c,
    extra,
    out,
    rows,
    chunk,
    A: tl.constexpr,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    TWO: tl.constexpr,
    EXTRA: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program's a^T [b, c, extra] over `chunk` rows: [A, 2D + 16]. EXTRA: 0 none, 1 ones, 2 a table."""
    first = tl.program_id(0).to(tl.int64) * chunk
    stop = tl.minimum(first + chunk, rows)
    left = tl.program_id(1) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, WIDE)
    narrow = tl.arange(0, 16)
    with_b = tl.zeros([TALL, WIDE], tl.float32)
    with_c = tl.zeros([TALL, WIDE], tl.float32)
    with_extra = tl.zeros([TALL, 16], tl.float32)
    kind = a.dtype.element_ty
    for start in range(0, chunk, ROWS):
        row = first + start + tl.arange(0, ROWS)
        valid = (row < stop)[:, None]
        part = tl.trans(tl.load(a + row[:, None] * A + left[None, :], valid & (left < A)[None, :], 0.0))
        mask = valid & (column < D)[None, :]
        at = row[:, None] * D + column[None, :]
        with_b = tl.dot(part, tl.load(b + at, mask, 0.0), with_b, input_precision="ieee")
        if TWO:
            with_c = tl.dot(part, tl.load(c + at, mask, 0.0), with_c, input_precision="ieee")
        if EXTRA == 1:
            with_extra = tl.dot(part, tl.full([ROWS, 16], 1.0, tl.float32).to(kind), with_extra, input_precision="ieee")
        if EXTRA == 2:
            more = tl.load(extra + row[:, None] * 16 + narrow[None, :], valid, 0.0)
            with_extra = tl.dot(part, more, with_extra, input_precision="ieee")
    width: tl.constexpr = 2 * D + 16
    into = out + tl.program_id(0).to(tl.int64) * A * width + left[:, None] * width
    inside = (left < A)[:, None]
    tl.store(into + column[None, :], with_b, inside & (column < D)[None, :])
    if TWO:
        tl.store(into + D + column[None, :], with_c, inside & (column < D)[None, :])
    if EXTRA:
        tl.store(into + 2 * D + narrow[None, :], with_extra, inside)


def lstm(
    x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h_T, c_T and, with `keep`, the states before each step. All tensors contiguous; weights in the type of x."""
    R, T, D = x.shape
    h = x.new_empty(R, D)
    c = x.new_empty(R, D)
    hs, cs = (torch.empty_like(x), torch.empty_like(x)) if keep else (x, x)
    rows, warps = rows_and_warps(D, x, TUNING.forward)
    if R:
        with torch.cuda.device_of(x):
            _lstm[(triton.cdiv(R, rows),)](
                x,
                h0,
                c0,
                w_ih,
                w_hh,
                bias,
                hs,
                cs,
                h,
                c,
                R,
                T,
                **sizes(D, x),
                ROWS=rows,
                KEEP=keep,
                MATH=math(x),
                num_warps=warps,
                num_stages=1,
            )
    return h, c, hs, cs


def grad_lstm(
    grad_h: Tensor,
    grad_c: Tensor,
    x: Tensor,
    hs: Tensor,
    cs: Tensor,
    c_last: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor,
    *,
    kinds: tuple[torch.dtype, torch.dtype],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the gates [R,T,4D], x, h_0 and c_0; the last two in the types `kinds`."""
    R, T, D = x.shape
    grad_gates = x.new_empty(R, T, 4 * D)
    grad_x = torch.empty_like(x)
    grad_h0, grad_c0 = (torch.empty(R, D, dtype=kind, device=x.device) for kind in kinds)
    rows, warps = rows_and_warps(D, x, TUNING.backward)
    if R:
        with torch.cuda.device_of(x):
            _grad_lstm[(triton.cdiv(R, rows),)](
                grad_h,
                grad_c,
                x,
                hs,
                cs,
                c_last,
                w_ih,
                w_hh,
                bias,
                grad_gates,
                grad_x,
                grad_h0,
                grad_c0,
                R,
                T,
                **sizes(D, x),
                ROWS=rows,
                MATH=math(x),
                num_warps=warps,
                num_stages=TUNING.backward_stages,
            )
    return grad_gates, grad_x, grad_h0, grad_c0


def sums(
    a: Tensor, b: Tensor, c: Tensor | None = None, extra: Tensor | None = None, *, ones: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """a^T b, a^T c and a^T extra [rows,16] in fp32; with `ones`, the last has the sum of a's rows in every column.

    Outputs that were not requested are uninitialised.
    """
    rows, A = a.shape
    D = b.shape[1]
    if _full(a) or not rows:
        more = _product(a, extra) if extra is not None else a.float().sum(0)[:, None].expand(A, 16)
        return _product(a, b), _product(a, b if c is None else c), more
    wide = max(16, triton.next_power_of_2(D))
    height, warps, stages = TUNING.sums_block
    tall = max(16, min(triton.next_power_of_2(A), 16384 // wide))
    large = tall * wide >= 8192
    tiles = triton.cdiv(A, tall)
    processors = torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 3
    wanted = processors * (1 if large else 3) // tiles
    chunk = triton.cdiv(triton.cdiv(rows, max(1, wanted)), height) * height
    programs = triton.cdiv(rows, chunk)
    out = torch.empty(programs, A, 2 * D + 16, dtype=torch.float32, device=a.device)
    with torch.cuda.device_of(a):
        _sums[(programs, tiles)](
            a,
            b,
            b if c is None else c,
            a if extra is None else extra,
            out,
            rows,
            chunk,
            A=A,
            D=D,
            WIDE=wide,
            TALL=tall,
            TWO=c is not None,
            EXTRA=2 if extra is not None else int(ones),
            ROWS=height,
            num_warps=warps if large else 4,
            num_stages=stages,
        )
    total = out.sum(0)
    return total[:, :D], total[:, D : 2 * D], total[:, 2 * D :]


def _product(a: Tensor, b: Tensor) -> Tensor:
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a.T, b, out_dtype=torch.float32)
    return (a.T @ b).float()


def _full(x: Tensor) -> bool:
    """fp32 on a GPU: no tensor cores, used only in tests. Tiles must be small, or compilation takes minutes."""
    return x.is_cuda and x.dtype == torch.float32


def sizes(D: int, x: Tensor) -> dict[str, Any]:
    """HOLD: if they fit, weights stay in shared memory for all steps; otherwise each step reads them from L2."""
    return {"D": D, "WIDE": triton.next_power_of_2(D), "HOLD": D <= 64 and not _full(x)}


def math(x: Tensor) -> int:
    """Division mode: 1 uses rcp.approx (1 ulp); 0 is for the Triton interpreter, which cannot run inline assembly."""
    return int(x.is_cuda)


def rows_and_warps(D: int, x: Tensor, wanted: tuple[int, int]) -> tuple[int, int]:
    return (16, 8) if _full(x) else wanted if D <= 64 else (64, 8)
