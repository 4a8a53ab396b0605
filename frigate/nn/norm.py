"""Layer norm over a short last dimension, in the type of its input: on a GPU by our own kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.nn.choice import on_gpu


class ShortNorm(nn.LayerNorm):
    """nn.LayerNorm that reads and writes its input's type under autocast; sums are in fp32 either way."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            if on_gpu(x.device):
                return _on_gpu(x, self.weight, self.bias, self.eps)
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            if x.dim() == 3 and not x.is_contiguous():  # torch copies what is not: encodings lie snapshot by snapshot
                x = x.transpose(0, 1)
                return functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps).transpose(0, 1)
            return functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


def _on_gpu(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    normal: Tensor = _Norm.apply(x.contiguous(), weight, bias, eps)  # type: ignore[no-untyped-call]
    return normal


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        from frigate.nn import kernels

        y, means, scales = kernels.norm(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, means, scales)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from frigate.nn import kernels

        x, weight, means, scales = ctx.saved_tensors
        return (*kernels.grad_norm(grads[0].contiguous(), x, weight, means, scales), None)
