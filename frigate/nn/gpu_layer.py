"""The gated layer on a GPU, in 16 bits. Backward keeps the input, the output and the gates: nothing for a road."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from frigate.nn.batch import Topology


def gpu_layer(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    """As `layer.reference`; h [N,M,D] in 16 bits, D a multiple of 16 up to 128."""
    y: Tensor = _Layer.apply(h.contiguous(), gates.float(), weight, bias, topology)  # type: ignore[no-untyped-call]
    return y


def gpu_layers(h: Tensor, gates: Sequence[Tensor], weights: Sequence[Tensor], topology: Topology) -> Tensor:
    """One layer after the other, without biases. Backward then need not apply a relu's mask on its own."""
    told = [gate.float() for gate in gates]
    if not torch.is_grad_enabled():  # one at a time: none but the last two are in memory
        for gate, weight in zip(told, weights, strict=True):
            h = gpu_layer(h, gate, weight, None, topology)
        return h
    z: Tensor = _Layers.apply(h.contiguous(), topology, *told, *weights)  # type: ignore[no-untyped-call]
    return z


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
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from frigate.nn import layer_kernels

        h, gates, weight, y = ctx.saved_tensors
        before = _before_relu(gradients[0], y)
        of_h, of_gates, of_weight, of_bias = layer_kernels.grad_layer(
            before, h, gates, weight, ctx.topology, mask=False
        )
        return of_h, of_gates, of_weight, of_bias if ctx.biased else None, None


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, topology: Topology, *gates_and_weights: Tensor) -> Tensor:
        from frigate.nn import layer_kernels

        count = len(gates_and_weights) // 2
        gates, short = gates_and_weights[:count], [w.to(h.dtype).contiguous() for w in gates_and_weights[count:]]
        kept = [h]
        for gate, weight in zip(gates, short, strict=True):
            kept.append(layer_kernels.layer(kept[-1], gate, weight, None, topology))
        ctx.save_for_backward(*gates, *short, *kept)
        ctx.topology, ctx.count = topology, count
        return kept[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from frigate.nn import layer_kernels

        count, saved = ctx.count, ctx.saved_tensors
        gates, weights, kept = saved[:count], saved[count : 2 * count], saved[2 * count :]
        of_gates, of_weights, grad = [], [], _before_relu(gradients[0], kept[-1])
        for layer in reversed(range(count)):
            grad, of_gate, of_weight, _ = layer_kernels.grad_layer(
                grad, kept[layer], gates[layer], weights[layer], ctx.topology, mask=layer > 0
            )
            of_gates.append(of_gate)
            of_weights.append(of_weight)
        return grad, None, *reversed(of_gates), *reversed(of_weights)


def _before_relu(grad: Tensor, y: Tensor) -> Tensor:
    """The gradient before a relu that gave y."""
    before: Tensor = torch.ops.aten.threshold_backward(grad.contiguous(), y, 0)
    return before
