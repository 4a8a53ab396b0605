"""Gated layers on a GPU, in 16 bits: autograd for `layer_kernels`.

Saved for backward: the input, each layer's output and the gates; no activations per road.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from frigate.nn.ops.cuda.layer_kernels import grad_layer, layer
from frigate.nn.topology import Topology


def gated_layers(
    h: Tensor, gates: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor], topology: Topology
) -> Tensor:
    """As in the reference; h [N,M,D], D a multiple of 16 up to 128. `biases` has one entry per layer, or none."""
    gates = [gate.float() for gate in gates]
    biases = [bias.float() for bias in biases]
    if torch.is_grad_enabled():
        y: Tensor = _CudaLayers.apply(h.contiguous(), topology, len(gates), *gates, *weights, *biases)
        return y
    h = h.contiguous()
    for number, (gate, weight) in enumerate(zip(gates, weights, strict=True)):
        h = layer(h, gate, weight.to(h.dtype).contiguous(), biases[number] if biases else None, topology)
    return h


class _CudaLayers(torch.autograd.Function):
    """L layers; the tensors are L gates [E], L weights W_1 [D,3D], and L or no biases b [D]."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, topology: Topology, count: int, *tensors: Tensor) -> Tensor:
        gates = tensors[:count]
        biases = tensors[2 * count :] or (None,) * count
        weights = [weight.to(h.dtype).contiguous() for weight in tensors[count : 2 * count]]
        results = [h]
        for gate, weight, bias in zip(gates, weights, biases, strict=True):
            results.append(layer(results[-1], gate, weight, bias, topology))
        ctx.save_for_backward(*gates, *weights, *results)
        ctx.topology = topology
        ctx.count = count
        ctx.biased = len(tensors) > 2 * count
        return results[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count = ctx.count
        saved = ctx.saved_tensors
        gates = saved[:count]
        weights = saved[count : 2 * count]
        results = saved[2 * count :]
        # Backward through the last relu; the kernels apply the masks of the others.
        grad = torch.ops.aten.threshold_backward(grads[0].contiguous(), results[-1], 0)
        grad_gates = []
        grad_weights = []
        grad_biases = []
        for number in reversed(range(count)):
            grad, grad_gate, grad_weight, grad_bias = grad_layer(
                grad, results[number], gates[number], weights[number], ctx.topology, mask=number > 0
            )
            grad_gates.append(grad_gate)
            grad_weights.append(grad_weight)
            grad_biases.append(grad_bias)
        grads_of = [*reversed(grad_gates), *reversed(grad_weights), *(reversed(grad_biases) if ctx.biased else ())]
        return grad, None, None, *grads_of
