"""Layer norm over a short last dimension on a GPU, in the type of its input: autograd for `norm_kernels`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from frigate.nn.ops.cuda import norm_kernels


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Same as functional.layer_norm over the last dimension; accumulates in fp32."""
    y: Tensor = _Norm.apply(x.contiguous(), weight, bias, eps)
    return y


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        y, means, scales = norm_kernels.norm(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, means, scales)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, means, scales = ctx.saved_tensors
        return (*norm_kernels.grad_norm(grads[0].contiguous(), x, weight, means, scales), None)
