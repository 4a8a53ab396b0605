"""Triton kernels for one gated layer and its gradients: messages are summed in registers and never written to memory.

A program handles one node and a block of its snapshots, a tile [ROWS,D]. It sums the tiles of the neighbours in both
directions in one loop, and multiplies its own tile and both sums by the parts of W_1. Concurrent programs handle the
same snapshots of other nodes, so neighbour tiles come from cache: a layer reads its input from memory once and writes
its output once. Sums are in fp32; no atomics.

Backward has one more kernel of the same kind, and one for grad W_1. With g the gradient before the relu,

    grad h   = g W_s + s_out W_o + s_in W_i     s_out[v] = sum over roads u -> v of gate[u,v] g[u], s_in over v -> u
    grad W_1 = [g^T h, s_out^T h, s_in^T h]     sums of gradients instead of messages
    grad gate[v,u] = <g[v], W_o h[u]> + <g[u], W_i h[v]>, first term computed at u, second at v, from a neighbour's g
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from frigate.nn.topology import Topology


@dataclass
class LayerTuning:
    """Launch parameters, tuned on an H200."""

    rows: int = 64  # snapshots per tile; 16 if there are fewer snapshots than this
    warps: int = 4  # for tiles of `rows` rows; one for 16 rows
    programs: int = 132  # for grad W_1
    product_rows: int = 64
    product_warps: int = 4
    product_stages: int = 3


TUNING = LayerTuning()


@triton.jit
def _tile(x, node, rows, columns, M, limit, D: tl.constexpr):
    """A tile of a node's M rows; 0 from row `limit` on."""
    at = node.to(tl.int64) * M * D + rows[:, None] * D + columns[None, :]
    return tl.load(x + at, (rows < limit)[:, None] & (columns < D)[None, :], 0.0)


@triton.jit
def _part(weight, part, columns, D: tl.constexpr, TURNED: tl.constexpr):
    """One of the three square parts of W_1 [D,3D]; with TURNED, transposed to [in,out]."""
    a = columns[:, None]
    b = columns[None, :]
    at = b * 3 * D + a if TURNED else a * 3 * D + b
    return tl.load(weight + part * D + at, (a < D) & (b < D), 0.0)


@triton.jit
def _layer(
    h,
    gates,
    weight,
    bias,
    visits,
    senders,
    receivers,
    out_start,
    in_start,
    in_order,
    y,
    M,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BIAS: tl.constexpr,
):
    v = tl.load(visits + tl.program_id(0))
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDE)
    inside = (rows < M)[:, None] & (columns < D)[None, :]
    kind: tl.constexpr = y.dtype.element_ty
    first_out = tl.load(out_start + v)
    first_in = tl.load(in_start + v)
    outs = tl.load(out_start + v + 1) - first_out
    ins = tl.load(in_start + v + 1) - first_in
    total = tl.dot(_tile(h, v, rows, columns, M, M, D), _part(weight, 0, columns, D, True))
    out = tl.zeros([ROWS, WIDE], tl.float32)
    in_ = tl.zeros([ROWS, WIDE], tl.float32)
    for k in range(tl.maximum(outs, ins)):
        goes = k < outs
        comes = k < ins
        road = tl.load(in_order + first_in + k, comes, 0)
        there = tl.load(receivers + first_out + k, goes, 0)
        here = tl.load(senders + road, comes, 0)
        of_there = _tile(h, there, rows, columns, M, tl.where(goes, M, 0), D).to(tl.float32)
        of_here = _tile(h, here, rows, columns, M, tl.where(comes, M, 0), D).to(tl.float32)
        out += tl.load(gates + first_out + k, goes, 0.0) * of_there
        in_ += tl.load(gates + road, comes, 0.0) * of_here
    total = tl.dot(out.to(kind), _part(weight, 1, columns, D, True), total)
    total = tl.dot(in_.to(kind), _part(weight, 2, columns, D, True), total)
    if BIAS:
        total += tl.load(bias + columns, columns < D, 0.0)[None, :]
    at = v.to(tl.int64) * M * D + rows[:, None] * D + columns[None, :]
    tl.store(y + at, tl.maximum(total, 0.0).to(kind), inside)


@triton.jit
def _back(
    grad,
    h,
    gates,
    weight,
    visits,
    senders,
    receivers,
    out_start,
    in_start,
    in_order,
    grad_h,
    out_sums,
    in_sums,
    dots,
    M,
    E,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    MASK: tl.constexpr,
):
    """grad h, s_out and s_in; and for each road and snapshot, both terms of the gate's gradient.

    MASK: h is the output of a relu, and grad_h is the gradient before that relu.
    """
    v = tl.load(visits + tl.program_id(0))
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDE)
    inside = (rows < M)[:, None] & (columns < D)[None, :]
    kind: tl.constexpr = h.dtype.element_ty
    first_out = tl.load(out_start + v)
    first_in = tl.load(in_start + v)
    outs = tl.load(out_start + v + 1) - first_out
    ins = tl.load(in_start + v + 1) - first_in
    x = _tile(h, v, rows, columns, M, M, D)
    to_out = tl.dot(x, _part(weight, 1, columns, D, True)).to(kind)
    to_in = tl.dot(x, _part(weight, 2, columns, D, True)).to(kind)
    s_out = tl.zeros([ROWS, WIDE], tl.float32)
    s_in = tl.zeros([ROWS, WIDE], tl.float32)
    for k in range(tl.maximum(outs, ins)):
        goes = k < outs
        comes = k < ins
        road = tl.load(in_order + first_in + k, comes, 0)
        there = tl.load(receivers + first_out + k, goes, 0)
        here = tl.load(senders + road, comes, 0)
        of_there = _tile(grad, there, rows, columns, M, tl.where(goes, M, 0), D).to(tl.float32)
        of_here = _tile(grad, here, rows, columns, M, tl.where(comes, M, 0), D).to(tl.float32)
        s_in += tl.load(gates + first_out + k, goes, 0.0) * of_there
        s_out += tl.load(gates + road, comes, 0.0) * of_here
        tl.store(dots + (first_out + k) * M + rows, tl.sum(of_there * to_in, axis=1), rows < tl.where(goes, M, 0))
        tl.store(dots + (E + road) * M + rows, tl.sum(of_here * to_out, axis=1), rows < tl.where(comes, M, 0))
    at = v.to(tl.int64) * M * D + rows[:, None] * D + columns[None, :]
    tl.store(out_sums + at, s_out.to(kind), inside)
    tl.store(in_sums + at, s_in.to(kind), inside)
    total = tl.dot(_tile(grad, v, rows, columns, M, M, D), _part(weight, 0, columns, D, False))
    total = tl.dot(s_out.to(kind), _part(weight, 1, columns, D, False), total)
    total = tl.dot(s_in.to(kind), _part(weight, 2, columns, D, False), total)
    if MASK:
        total = tl.where(x > 0, total, 0.0)
    tl.store(grad_h + at, total.to(kind), inside)


@triton.jit
def _products(
    grad,
    out_sums,
    in_sums,
    h,
    products,
    bias_sums,
    count,
    loops,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """[g^T h, s_out^T h, s_in^T h] and the sum of g over this program's share of the `count` rows."""
    columns = tl.arange(0, WIDE)
    own = tl.zeros([WIDE, WIDE], tl.float32)
    out = tl.zeros([WIDE, WIDE], tl.float32)
    in_ = tl.zeros([WIDE, WIDE], tl.float32)
    bias_sum = tl.zeros([WIDE], tl.float32)
    for loop in range(loops):
        rows = (loop * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        at = rows[:, None] * D + columns[None, :]
        inside = (rows < count)[:, None] & (columns < D)[None, :]
        x = tl.load(h + at, inside, 0.0)
        g = tl.load(grad + at, inside, 0.0)
        own = tl.dot(tl.trans(g), x, own)
        out = tl.dot(tl.trans(tl.load(out_sums + at, inside, 0.0)), x, out)
        in_ = tl.dot(tl.trans(tl.load(in_sums + at, inside, 0.0)), x, in_)
        bias_sum += tl.sum(g.to(tl.float32), axis=0)
    mine = products + tl.program_id(0) * 3 * WIDE * WIDE + columns[:, None] * 3 * WIDE + columns[None, :]
    tl.store(mine, own)
    tl.store(mine + WIDE, out)
    tl.store(mine + 2 * WIDE, in_)
    tl.store(bias_sums + tl.program_id(0) * WIDE + columns, bias_sum)


def layer(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    """[N,M,D] from h [N,M,D], contiguous, in 16 bits; gates [E] and b [D] in fp32; W_1 [D,3D] in the type of h."""
    N, M, D = h.shape
    y = torch.empty_like(h)
    if y.numel():
        rows, warps = _cut(M)
        _layer[(N, triton.cdiv(M, rows))](
            h,
            gates,
            weight,
            bias,
            *_roads(topology),
            y,
            M,
            D=D,
            WIDE=triton.next_power_of_2(D),
            ROWS=rows,
            BIAS=bias is not None,
            num_warps=warps,
        )
    return y


def grad_layer(
    grad: Tensor, h: Tensor, gates: Tensor, weight: Tensor, topology: Topology, *, mask: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From the gradient before the relu [N,M,D]: the gradients of h and, in fp32, of gates [E], W_1 [D,3D] and b [D].

    With `mask`, h is the output of a relu, and the gradient before that relu is returned.
    """
    N, M, D = h.shape
    E = topology.num_edges
    wide = triton.next_power_of_2(D)
    (rows, warps) = _cut(M)
    grad_h, out_sums, in_sums = (torch.empty_like(h) for _ in range(3))
    dots = torch.empty(2, E, M, dtype=torch.float32, device=h.device)
    programs = max(1, min(TUNING.programs, triton.cdiv(N * M, TUNING.product_rows)))
    products = torch.zeros(programs, wide, 3, wide, dtype=torch.float32, device=h.device)
    bias_sums = torch.zeros(programs, wide, dtype=torch.float32, device=h.device)
    if h.numel():
        _back[(N, triton.cdiv(M, rows))](
            grad,
            h,
            gates,
            weight,
            *_roads(topology),
            grad_h,
            out_sums,
            in_sums,
            dots,
            M,
            E,
            D=D,
            WIDE=wide,
            ROWS=rows,
            MASK=mask,
            num_warps=warps,
        )
        loops = triton.cdiv(N * M, programs * TUNING.product_rows)
        _products[(programs,)](
            grad,
            out_sums,
            in_sums,
            h,
            products,
            bias_sums,
            N * M,
            loops,
            D=D,
            WIDE=wide,
            ROWS=TUNING.product_rows,
            num_warps=TUNING.product_warps,
            num_stages=TUNING.product_stages,
        )
    return grad_h, dots.sum((0, 2)), products.sum(0)[:D, :, :D].reshape(D, 3 * D), bias_sums.sum(0)[:D]


def _cut(M: int) -> tuple[int, int]:
    """Rows and warps per tile, for M snapshots."""
    return (TUNING.rows, TUNING.warps) if TUNING.rows <= M else (16, 1)


def _roads(topology: Topology) -> tuple[Tensor, ...]:
    csr = topology.out_start, topology.in_start, topology.in_order
    return topology.visit_order, topology.senders, topology.receivers, *csr
