"""The gated layer on a GPU, in 16 bits. Backward keeps the input, the output and the gates: nothing for a road."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from frigate.batch import Topology


def gpu_layer(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    """As `layer.reference`; h [N,M,D] in 16 bits, D a multiple of 16 up to 128."""
    y: Tensor = _Layer.apply(h.contiguous(), gates.float(), weight, bias, topology)  # type: ignore[no-untyped-call]
    return y


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
        from frigate.nn import layer_kernels

        short = weight.to(h.dtype).contiguous()
        y = layer_kernels.layer(h, gates, short, None if bias is None else bias.float(), topology)
        ctx.save_for_backward(h, gates, short, y)
        ctx.topology, ctx.biased = topology, bias is not None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from frigate.nn import layer_kernels

        h, gates, weight, y = ctx.saved_tensors
        before = torch.ops.aten.threshold_backward(gradients[0].contiguous(), y, 0)
        of_h, of_gates, of_weight, of_bias = layer_kernels.grad_layer(before, h, gates, weight, ctx.topology)
        return of_h, of_gates, of_weight, of_bias if ctx.biased else None, None
