"""The paper's ablations (section "Ablation Study"): its model with one part replaced, everything else as it is.

The model has no flags for this: a part is another module, put in when the model is built.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from frigate.config import ModelSettings, Settings
from frigate.errors import SettingsError
from frigate.nn.aggregate import gated_messages
from frigate.nn.batch import Batch, Topology
from frigate.nn.layers import Gate, GatedConv
from frigate.nn.model import (
    PAPER_CALENDAR,
    Frigate,
    MomentPrior,
    PaperEmbedding,
    Prior,
    Reading,
)
from frigate.nn.scaling import Scaling
from frigate.nn.sparse import Sparse
from frigate.training.run import Build

PARTS = {
    "gate": "a GraphSAGE layer for the gated convolution",
    "positions": "no positions, neither at the nodes nor in the gate",
    "directions": "one undirected aggregation",
    "moments": "no moments",
}


class SageConv(nn.Module):
    """GraphSAGE with the mean of the neighbours (Hamilton et al., NeurIPS 2017): ReLU(W [h_v, mean of h_u])."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * width, width)

    def forward(self, h: Tensor, length: Tensor, topology: Topology) -> Tensor:
        rows, N = topology.neighbour_of, topology.num_nodes
        weight = 1 / torch.bincount(rows, minlength=N).to(torch.float32)[rows]
        mean = Sparse.of(rows, topology.neighbour, weight, num_nodes=N) @ h
        return torch.relu(self.linear(torch.cat([h, mean], dim=-1)))


class LengthGate(Gate):
    """The gate from the road's length alone."""

    def __init__(self, *, length_width: int, width: int) -> None:
        super().__init__(positions=0, length_width=length_width, width=width)

    def forward(self, length: Tensor, topology: Topology) -> Tensor:
        return torch.sigmoid(self.weight(torch.relu(self.edge(length))).squeeze(-1))


class ReadingEmbedding(nn.Module):
    """h0 from the reading alone, at the full width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reading = Reading(width)

    def forward(self, batch: Batch, scaled: Tensor) -> Tensor:
        h: Tensor = self.reading(batch, scaled)
        return h


class UndirectedConv(nn.Module):
    """One gated sum over all neighbours, whichever way the road goes."""

    def __init__(self, width: int, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.linear = nn.Linear(2 * width, width, bias=False)
        with torch.no_grad():  # as W_1 starts: both directions a third each, here in one block
            nn.init.normal_(self.linear.weight, std=0.1 / width**0.5)
            self.linear.weight += torch.eye(width).repeat(1, 2) / 3

    def forward(self, h: Tensor, length: Tensor, topology: Topology) -> Tensor:
        own, out, in_ = gated_messages(h, self.gate(length, topology), topology).chunk(3, dim=-1)
        return torch.relu(self.linear(torch.cat([own, out + in_], dim=-1)))


class NoPrior(Prior):
    """Nothing is known beside the encoding."""

    width = 0

    def forward(self, batch: Batch, scaled: Tensor) -> Tensor:
        return scaled.new_zeros(batch.num_nodes, batch.num_windows, 0)


def without(part: str) -> Build:
    """How to build the paper's model with one of PARTS replaced."""
    if part not in PARTS:
        raise SettingsError(f'no part "{part}"; there are {", ".join(PARTS)}')

    def build(settings: Settings, scaling: Scaling) -> Frigate:
        model = settings.model
        assert isinstance(model, ModelSettings) and model.preset == "paper"
        return Frigate(
            model,
            embedding=(
                ReadingEmbedding(model.width) if part == "positions" else PaperEmbedding(model.width, model.anchors)
            ),
            convolutions=[_convolution(model, part) for _ in range(model.layers)],
            prior=NoPrior() if part == "moments" else MomentPrior(model.hidden, model.hidden),
            calendar_start=PAPER_CALENDAR,
            calendar_future=0,
            value_offset=scaling.value_offset,
            value_scale=scaling.value_scale,
            length_scale_m=scaling.length_scale_m,
        )

    return build


def _convolution(model: ModelSettings, part: str) -> nn.Module:
    if part == "gate":
        return SageConv(model.width)
    sizes = {"length_width": model.length_width, "width": model.gate_width}
    gate = LengthGate(**sizes) if part == "positions" else Gate(positions=model.anchors, **sizes)
    return UndirectedConv(model.width, gate) if part == "directions" else GatedConv(model.width, gate)
