"""The decoder's H steps on a GPU, in 16 bits: autograd for `decoder_kernels`.

The plain loop launches about ten kernels per step and saves every intermediate; here the state stays on the chip. The
prior's term in the readout's hidden layer is the same in all steps, so torch computes it once (`base`, [R,hidden]),
including its gradients. Weights are in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from frigate.nn.ops.cuda import decoder_kernels
from frigate.nn.ops.cuda.lstm_kernels import sums


def run_decoder(
    hidden: Tensor,
    cell: Tensor,
    y0: Tensor,
    prior: Tensor,
    known: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """[R,H] in fp32 (a view of [H,R]) from the state [R,D], y_0 [R] or [R,1], prior [R,P] and known [B,H,C].

    Row r belongs to window r % B. Weights are those of nn.LSTMCell(1 + C, D) and of two nn.Linear (2D + P to the
    hidden units, and those to 1); products are in the state's type. `seed`, one integer on the device, seeds dropout;
    by default torch's device generator draws it, without synchronising. `known` gets no gradient.
    """
    D = hidden.shape[1]
    kind = hidden.dtype
    if dropout and seed is None:
        seed = torch.randint(2**31 - 1, (1,), device=hidden.device)
    with torch.autocast(hidden.device.type, enabled=False):
        # In fp32: rounding to 16 bits would switch hidden units on and off.
        base = functional.linear(prior.float(), w1[:, 2 * D :].float(), b1.float())
    state = hidden.contiguous(), cell.to(kind).contiguous(), y0.reshape(-1).contiguous(), base.contiguous()
    known = known.detach().to(kind).contiguous()
    weights = w_ih, w_hh, b_ih, b_hh, w1[:, : 2 * D], w2.reshape(-1), b2
    seed = seed if dropout else None
    if torch.is_grad_enabled() and any(each.requires_grad for each in (*state, *weights)):
        y: Tensor = _Decoder.apply(*state, known, *weights, seed, dropout)
        return y
    prepared = _prepared(kind, *weights)
    *_, ys = decoder_kernels.decoder(*state, known, prepared, seed=seed, dropout=dropout, keep=False)
    return ys[1:].t()


def _prepared(
    kind: torch.dtype, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, w1: Tensor, w2: Tensor, b2: Tensor
) -> tuple[Tensor, ...]:
    """The weights in the kernels' layout: w_hh, w_known [4D,16], w_y, bias, w1, w2, b2."""
    w_known = functional.pad(w_ih[:, 1:], (0, 17 - w_ih.shape[1])).to(kind)
    w_y = w_ih[:, 0].float()
    bias = b_ih.float() + b_hh.float()
    of_cell = w_hh.to(kind).contiguous(), w_known.contiguous(), w_y.contiguous(), bias
    return *of_cell, w1.to(kind).contiguous(), w2.float().contiguous(), b2.float()


class _Decoder(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h0: Tensor,
        c0: Tensor,
        y0: Tensor,
        base: Tensor,
        known: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        w1: Tensor,
        w2: Tensor,
        b2: Tensor,
        seed: Tensor | None,
        dropout: float,
    ) -> Tensor:
        weights = _prepared(h0.dtype, w_ih, w_hh, b_ih, b_hh, w1, w2, b2)
        states = decoder_kernels.decoder(h0, c0, y0, base, known, weights, seed=seed, dropout=dropout, keep=True)
        ctx.save_for_backward(base, known, seed, *states, *weights)
        ctx.kinds = [each.dtype for each in (h0, c0, y0, base, w_ih, w_hh, b_ih, b_hh, w1, w2, b2)]
        ctx.dropout = dropout
        return states[2][1:].t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        base, known, seed, hs, cs, ys, *weights = ctx.saved_tensors
        _, R, D = hs.shape
        _, H, C = known.shape
        hidden = base.shape[1]
        grad_gates, grad_z, *of_first, of_w2, of_b2 = decoder_kernels.grad_decoder(
            grads[0].t().contiguous(),
            base,
            known,
            tuple(weights),
            hs,
            cs,
            ys,
            seed=seed,
            dropout=ctx.dropout,
            kinds=tuple(ctx.kinds[:3]),
        )
        of_base = grad_z.sum(0, dtype=torch.float32).to(ctx.kinds[3])
        inputs = _inputs(ys, known, hs.dtype).view(H * R, 16)
        of_hh, _, of_inputs = sums(grad_gates.view(H * R, 4 * D), hs[:-1].view(H * R, D), extra=inputs)
        of_h, of_c, _ = sums(grad_z.view(H * R, hidden), hs[1:].view(H * R, D), cs[1:].view(H * R, D))
        of_bias = of_inputs[:, 15]
        parts = of_inputs[:, : 1 + C], of_hh, of_bias, of_bias, torch.cat([of_h, of_c], dim=1), of_w2, of_b2
        of_weights = (part.to(kind) for part, kind in zip(parts, ctx.kinds[4:], strict=True))
        return *of_first, of_base, None, *of_weights, None, None


def _inputs(ys: Tensor, known: Tensor, kind: torch.dtype) -> Tensor:
    """[H,R,16]: the cell's inputs: y, the known inputs, and a last column of ones for the biases."""
    R = ys.shape[1]
    B, H, C = known.shape
    table = torch.zeros(H, R, 16, dtype=kind, device=ys.device)
    table[..., 0] = ys[:-1]
    if C and R:
        table[..., 1 : 1 + C] = known.transpose(0, 1).repeat(1, R // B, 1)
    table[..., 15] = 1.0
    return table
