"""The decoder of H steps on a GPU, in 16 bits: the kernels' autograd function, and when it can stand for the loop.

The loop of `Frigate` starts some ten kernels for every step and keeps what each of them made; here the state stays on
the chip. What the prior adds to the hidden layer of the readout is the same in all steps: torch computes it once
(`base`, [R,hidden], with its gradients). Weights are given as the fp32 parameters that they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from frigate.nn.lstm import able, suits

MAX_KNOWN = 14  # with y and a column of ones: the 16 columns of one product
MAX_UNITS = 64  # of the readout's hidden layer


def fused(cell: nn.Module, readout: nn.Module, hidden: Tensor) -> bool:
    """Whether `forecasts` can stand for the loop over `cell` and `readout`, from a hidden state [R,D]."""
    return able(hidden.device) and fits(cell, readout, hidden)


def fits(cell: nn.Module, readout: nn.Module, hidden: Tensor) -> bool:
    """Whether the kernels compute what these two compute: a cell of y and what is known, an MLP to one number."""
    if type(cell) is not nn.LSTMCell or not isinstance(readout, nn.Sequential):
        return False
    if [type(layer) for layer in readout] != [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]:
        return False
    inner, outer = _linear(readout)
    few = 1 <= cell.input_size <= 1 + MAX_KNOWN and inner.out_features <= MAX_UNITS and outer.out_features == 1
    biased = cell.bias and inner.bias is not None and outer.bias is not None
    return few and biased and cell.hidden_size == hidden.shape[1] and suits(hidden)


def _linear(readout: nn.Sequential) -> tuple[nn.Linear, nn.Linear]:
    inner, outer = (layer for layer in readout if isinstance(layer, nn.Linear))
    return inner, outer


def forecasts(
    cell: nn.LSTMCell, readout: nn.Sequential, state: tuple[Tensor, Tensor], prior: Tensor, y: Tensor, known: Tensor
) -> Tensor:
    """[R,H] in fp32 from the state [R,D] each, prior [R,P], y_0 [R,1] and known [B,H,C]; row r is of window r % B."""
    inner, outer = _linear(readout)
    (dropout,) = (layer.p if layer.training else 0.0 for layer in readout if isinstance(layer, nn.Dropout))
    return decode(
        *state, y, prior, known, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh,
        inner.weight, inner.bias, outer.weight, outer.bias, dropout=dropout,
    )  # fmt: skip


def decode(
    hidden: Tensor, cell: Tensor, y0: Tensor, prior: Tensor, known: Tensor,
    w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    *, dropout: float = 0.0, seed: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[R,H] in fp32 (a view of [H,R]) from the state [R,D], y_0 [R] or [R,1], prior [R,P] and known [B,H,C].

    Weights as nn.LSTMCell(1 + C, D) and two nn.Linear (2D + P to some hidden units, these to 1) have them; products in
    the state's type. `seed`, one whole number on the device, draws the dropout; without it, torch's generator there
    draws the seed, and nothing waits for it. `known` gets no gradient.
    """
    D, kind = hidden.shape[1], hidden.dtype
    if dropout and seed is None:
        seed = torch.randint(2**31 - 1, (1,), device=hidden.device)
    with torch.autocast(hidden.device.type, enabled=False):
        # In 16 bits its rounding would turn hidden units on and off.
        base = functional.linear(prior.float(), w1[:, 2 * D :].float(), b1.float())
    state = hidden.contiguous(), cell.to(kind).contiguous(), y0.reshape(-1).contiguous(), base.contiguous()
    known = known.detach().to(kind).contiguous()
    weights = w_ih, w_hh, b_ih, b_hh, w1[:, : 2 * D], w2.reshape(-1), b2
    seed = seed if dropout else None
    if torch.is_grad_enabled() and any(each.requires_grad for each in (*state, *weights)):
        y: Tensor = _Decoder.apply(*state, known, *weights, seed, dropout)  # type: ignore[no-untyped-call]
        return y
    from frigate.nn import decoder_kernels

    prepared = _prepared(kind, *weights)
    *_, ys = decoder_kernels.decoder(*state, known, prepared, seed=seed, dropout=dropout, keep=False)
    return ys[1:].t()


def _prepared(
    kind: torch.dtype, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, w1: Tensor, w2: Tensor, b2: Tensor
) -> tuple[Tensor, ...]:
    """The weights as the kernels read them: w_hh, w_known [4D,16], w_y, bias, w1, w2, b2."""
    w_known = functional.pad(w_ih[:, 1:], (0, 17 - w_ih.shape[1])).to(kind)
    w_y, bias = w_ih[:, 0].float(), b_ih.float() + b_hh.float()
    of_cell = w_hh.to(kind).contiguous(), w_known.contiguous(), w_y.contiguous(), bias
    return *of_cell, w1.to(kind).contiguous(), w2.float().contiguous(), b2.float()


class _Decoder(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h0: Tensor, c0: Tensor, y0: Tensor, base: Tensor, known: Tensor,
        w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, w1: Tensor, w2: Tensor, b2: Tensor,
        seed: Tensor | None, dropout: float,
    ) -> Tensor:  # fmt: skip
        from frigate.nn import decoder_kernels

        weights = _prepared(h0.dtype, w_ih, w_hh, b_ih, b_hh, w1, w2, b2)
        states = decoder_kernels.decoder(h0, c0, y0, base, known, weights, seed=seed, dropout=dropout, keep=True)
        ctx.save_for_backward(base, known, seed, *states, *weights)
        ctx.kinds = [each.dtype for each in (h0, c0, y0, base, w_ih, w_hh, b_ih, b_hh, w1, w2, b2)]
        ctx.dropout = dropout
        return states[2][1:].t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from frigate.nn import decoder_kernels
        from frigate.nn.lstm_kernels import sums

        base, known, seed, hs, cs, ys, *weights = ctx.saved_tensors
        (_, R, D), (_, H, C), hidden = hs.shape, known.shape, base.shape[1]
        grad_gates, grad_z, *of_first, of_w2, of_b2 = decoder_kernels.grad_decoder(
            grads[0].t().contiguous(), base, known, tuple(weights), hs, cs, ys,
            seed=seed, dropout=ctx.dropout, kinds=tuple(ctx.kinds[:3]),
        )  # fmt: skip
        of_base = grad_z.sum(0, dtype=torch.float32).to(ctx.kinds[3])
        inputs = _inputs(ys, known, hs.dtype).view(H * R, 16)
        of_hh, _, of_inputs = sums(grad_gates.view(H * R, 4 * D), hs[:-1].view(H * R, D), extra=inputs)
        of_h, of_c, _ = sums(grad_z.view(H * R, hidden), hs[1:].view(H * R, D), cs[1:].view(H * R, D))
        of_bias = of_inputs[:, 15]
        parts = of_inputs[:, : 1 + C], of_hh, of_bias, of_bias, torch.cat([of_h, of_c], dim=1), of_w2, of_b2
        of_weights = (part.to(kind) for part, kind in zip(parts, ctx.kinds[4:], strict=True))
        return *of_first, of_base, None, *of_weights, None, None


def _inputs(ys: Tensor, known: Tensor, kind: torch.dtype) -> Tensor:
    """[H,R,16]: what the cell read beside its state: y, what is known, and in the last column 1, for the biases."""
    R, (B, H, C) = ys.shape[1], known.shape
    table = torch.zeros(H, R, 16, dtype=kind, device=ys.device)
    table[..., 0] = ys[:-1]
    if C and R:
        table[..., 1 : 1 + C] = known.transpose(0, 1).repeat(1, R // B, 1)
    table[..., 15] = 1.0
    return table
