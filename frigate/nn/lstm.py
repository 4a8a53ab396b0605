"""The LSTM over T steps on a GPU, in 16 bits: the kernels' autograd function, and when it can stand for `nn.LSTM`.

torch's own (cuDNN) starts a kernel for every step and writes all gates; here the state stays on the chip. The weights
are given as the fp32 parameters that they are, and so are their gradients; products are in the type of x.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from frigate.nn.choice import on_gpu

TYPES = (torch.bfloat16, torch.float16)
MAX_WIDTH = 128
# The tiles need up to 146 KiB for one program: there is room on an H100, an H200 and what came after them for data
# centres. It also leaves out what does not speak NVIDIA's assembler.
SHARED_BYTES = 200 * 1024


def fused(net: nn.Module, x: Tensor) -> bool:
    """Whether `last_state` can stand for `net` on x [R,T,D]."""
    return able(x.device) and fits(net, x)


def able(device: torch.device) -> bool:
    """Whether the device runs the kernels."""
    if not on_gpu(device):
        return False
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor >= SHARED_BYTES


def fits(net: nn.Module, x: Tensor) -> bool:
    """Whether the kernels compute what `net` computes: one layer, one direction, with biases, as wide as x."""
    if not isinstance(net, nn.LSTM) or not plain_lstm(net):
        return False
    return net.batch_first and net.hidden_size == net.input_size == x.shape[-1] and suits(x)


def plain_lstm(net: nn.Module) -> bool:
    """Whether `net` is one layer in one direction with biases, and nothing more."""
    if type(net) is nn.LSTMCell:
        return net.bias
    if type(net) is not nn.LSTM:
        return False
    return net.num_layers == 1 and not net.bidirectional and net.bias and not net.proj_size


def suits(x: Tensor) -> bool:
    """Whether x, of any shape [...,D], has a type and a width that matrix units take."""
    D = x.shape[-1]
    return x.dtype in TYPES and D % 16 == 0 and 0 < D <= MAX_WIDTH


def last_state(net: nn.LSTM, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """(h_T, c_T), each [R,D], of x [R,T,D] and the first state [R,D]."""
    weights = [net.get_parameter(f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    return lstm(x, hidden, cell, *weights)


def lstm(
    x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """(h_T, c_T), each [R,D] in x's type, from x [R,T,D] and the first state [R,D]; weights as nn.LSTM has them."""
    inputs = (x, h0, c0, w_ih, w_hh, b_ih, b_hh)
    if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
        h, c = _Lstm.apply(*inputs)  # type: ignore[no-untyped-call]
        return h, c
    from frigate.nn import lstm_kernels

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
        from frigate.nn import lstm_kernels

        x, weights = x.contiguous(), _prepared(x.dtype, w_ih, w_hh, b_ih, b_hh)
        h, c, hs, cs = lstm_kernels.lstm(x, h0.contiguous(), c0.contiguous(), *weights, keep=True)
        ctx.save_for_backward(x, hs, cs, c, *weights)
        ctx.kinds = [each.dtype for each in (h0, c0, w_ih, w_hh, b_ih, b_hh)]
        return h, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from frigate.nn import lstm_kernels

        x, hs, *rest = ctx.saved_tensors
        R, T, D = x.shape
        up = grads[0].contiguous(), grads[1].contiguous()
        grad_gates, *of_inputs = lstm_kernels.grad_lstm(*up, x, hs, *rest, kinds=ctx.kinds[:2])
        if not any(ctx.needs_input_grad[3:]):
            return *of_inputs, None, None, None, None
        gates, before = grad_gates.view(R * T, 4 * D), hs.view(R * T, D)
        of_ih, of_hh, ones = lstm_kernels.sums(gates, x.view(R * T, D), before, ones=True)
        parts = of_ih, of_hh, ones[:, 0], ones[:, 0]
        return *of_inputs, *(part.to(kind) for part, kind in zip(parts, ctx.kinds[2:], strict=True))
