"""One gated layer, from the encodings of a layer to those of the next:

    relu(W_1 [h, m_out, m_in] + b)

The messages m_out and m_in are those of `aggregate`. `reference` says it in these words, with the messages between; the
others never write them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from frigate.nn.aggregate import gated_messages, on_cpu
from frigate.nn.batch import Topology
from frigate.nn.choice import on_gpu
from frigate.nn.cpu_layer import cpu_layer, cpu_layers
from frigate.nn.gpu_layer import gpu_layer, gpu_layers
from frigate.nn.lstm import suits


def gated_layer(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    """[N,M,D] from h [N,M,D], gates [E], W_1 [D,3D] and b [D]."""
    if on_gpu(h.device) and suits(h):
        return gpu_layer(h, gates, weight, bias, topology)
    if on_cpu(h):
        return cpu_layer(h, gates, weight, bias, topology)
    return reference(h, gates, weight, bias, topology)


def gated_layers(h: Tensor, gates: Sequence[Tensor], weights: Sequence[Tensor], topology: Topology) -> Tensor:
    """One layer after the other, as the paper has them: without biases, and with nothing between."""
    if on_gpu(h.device) and suits(h) and weights:
        return gpu_layers(h, gates, weights, topology)
    if on_cpu(h) and weights:
        return cpu_layers(h, gates, weights, topology)
    for gate, weight in zip(gates, weights, strict=True):
        h = gated_layer(h, gate, weight, None, topology)
    return h


def reference(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    messages = gated_messages(h, gates, topology)  # eq:aggregation_out, eq:aggregation_in
    return torch.relu(functional.linear(messages, weight, bias))  # eq:hl
