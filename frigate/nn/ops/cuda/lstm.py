"""The LSTM over T steps on a GPU, in 16 bits: autograd for `lstm_kernels`.

torch's LSTM (cuDNN) launches a kernel per step and writes all gates to memory; here the state stays on the chip.
Weights and their gradients are in fp32; products are in the type of x.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from frigate.nn.ops.cuda import lstm_kernels


def run_lstm(
    x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """(h_T, c_T), each [R,D] in the type of x, from x [R,T,D] and the initial state [R,D]; weights as in nn.LSTM."""
    inputs = (x, h0, c0, w_ih, w_hh, b_ih, b_hh)
    if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
        h, c = _Lstm.apply(*inputs)
        return h, c
    weights = _prepared(x.dtype, w_ih, w_hh, b_ih, b_hh)
    h, c, *_ = lstm_kernels.lstm(x.contiguous(), h0.contiguous(), c0.contiguous(), *weights, keep=False)
    return h, c


def _prepared(kind: torch.dtype, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor, ...]:
    return w_ih.to(kind).contiguous(), w_hh.to(kind).contiguous(), b_ih.float() + b_hh.float()


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
    ) -> tuple[Tensor, Tensor]:
        x, weights = x.contiguous(), _prepared(x.dtype, w_ih, w_hh, b_ih, b_hh)
        h, c, hs, cs = lstm_kernels.lstm(x, h0.contiguous(), c0.contiguous(), *weights, keep=True)
        ctx.save_for_backward(x, hs, cs, c, *weights)
        ctx.kinds = [each.dtype for each in (h0, c0, w_ih, w_hh, b_ih, b_hh)]
        return h, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, hs, *rest = ctx.saved_tensors
        R, T, D = x.shape
        above = grads[0].contiguous(), grads[1].contiguous()
        grad_gates, *of_inputs = lstm_kernels.grad_lstm(*above, x, hs, *rest, kinds=ctx.kinds[:2])
        if not any(ctx.needs_input_grad[3:]):
            return *of_inputs, None, None, None, None
        gates = grad_gates.view(R * T, 4 * D)
        before = hs.view(R * T, D)
        of_ih, of_hh, ones = lstm_kernels.sums(gates, x.view(R * T, D), before, ones=True)
        parts = of_ih, of_hh, ones[:, 0], ones[:, 0]
        return *of_inputs, *(part.to(kind) for part, kind in zip(parts, ctx.kinds[2:], strict=True))
