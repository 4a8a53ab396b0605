"""One gated layer, from the encodings of a layer to those of the next:

    relu(W_1 [h, m_out, m_in] + b)      eq:hl

The messages m_out and m_in are those of `aggregate`. `reference` says it in these words, with the messages between.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from frigate.batch import Topology
from frigate.nn.aggregate import gated_messages


def gated_layer(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    """[N,M,D] from h [N,M,D], gates [E], W_1 [D,3D] and b [D]."""
    return reference(h, gates, weight, bias, topology)


def reference(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    messages = gated_messages(h, gates, topology)  # eq:aggregation_out, eq:aggregation_in
    return torch.relu(functional.linear(messages, weight, bias))
