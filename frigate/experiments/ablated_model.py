"""The paper's ablations (section "Ablation Study"): its model with one part replaced.

The model has no flags for this: it is built with another module in place of the part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from frigate.config import ModelSettings, Settings
from frigate.errors import SettingsError
from frigate.nn import ops
from frigate.nn.batch import Batch
from frigate.nn.layers import Gate, GatedConv, GatedLayers, Layers
from frigate.nn.model import PAPER_CALENDAR, Embedding, Frigate, MomentPrior, PaperEmbedding, Prior, ReadingEncoder
from frigate.nn.ops.sparse import SparseMatrix
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology
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

    def forward(self, h: Tensor, topology: Topology) -> Tensor:
        rows = topology.neighbour_of
        N = topology.num_nodes
        # Not bincount: it synchronizes with the GPU, which a recorded step must not.
        neighbours = torch.zeros(N, device=rows.device).index_add(0, rows, torch.ones(len(rows), device=rows.device))
        weight = 1 / neighbours[rows]
        mean = ops.sparse_sum(SparseMatrix.of(rows, topology.neighbour, weight, num_nodes=N), h)
        return torch.relu(self.linear(torch.cat([h, mean], dim=-1)))


class SageLayers(Layers):
    """SageConv layers, which have no gates."""

    def gates(self, length: Tensor, topology: Topology) -> tuple[Tensor, ...]:
        return ()

    def forward(self, h: Tensor, gates: Sequence[Tensor], topology: Topology) -> Tensor:
        for layer in self:
            h = layer(h, topology)
        return h


class ReadingEmbedding(Embedding):
    """h0 from the reading alone, at full width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reading = ReadingEncoder(width)

    def forward(self, batch: Batch, tau: Tensor, sensor_weights: Sequence[Tensor] | None) -> Tensor:
        h0: Tensor = self.reading(batch, tau)
        return h0


class UndirectedConv(nn.Module):
    """One gated sum over all neighbours, ignoring the direction of roads."""

    def __init__(self, width: int, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.linear = nn.Linear(2 * width, width, bias=False)
        with torch.no_grad():  # initialized like W_1: a third for each direction, here in one block
            nn.init.normal_(self.linear.weight, std=0.1 / width**0.5)
            self.linear.weight += torch.eye(width).repeat(1, 2) / 3

    def forward(self, h: Tensor, gate: Tensor, topology: Topology) -> Tensor:
        # W [h, out + in] = W_1 [h, out, in] if W_1 repeats the neighbours' block of W.
        own, neighbours = self.linear.weight.chunk(2, dim=1)
        return ops.gated_layers(h, [gate], [torch.cat([own, neighbours, neighbours], dim=1)], topology)


class NoPrior(Prior):
    """No prior: the decoder gets the encoding alone."""

    width = 0

    def forward(self, batch: Batch, tau: Tensor) -> Tensor:
        return tau.new_zeros(batch.num_nodes, batch.num_windows, 0)


def without(part: str) -> Build:
    """How to build the paper's model with one of PARTS replaced."""
    if part not in PARTS:
        raise SettingsError(f'unknown part "{part}". Known: {", ".join(PARTS)}')

    def build(settings: Settings, scaling: Scaling) -> Frigate:
        model = settings.model
        assert isinstance(model, ModelSettings) and model.preset == "paper"
        return Frigate(
            model,
            scaling,
            embedding=(
                ReadingEmbedding(model.width) if part == "positions" else PaperEmbedding(model.width, model.anchors)
            ),
            convolutions=_layers(model, part),
            prior=NoPrior() if part == "moments" else MomentPrior(model.hidden, model.hidden),
            calendar_start=PAPER_CALENDAR,
            calendar_future=0,
        )

    return build


def _layers(model: ModelSettings, part: str) -> Layers:
    if part == "gate":
        return SageLayers(SageConv(model.width) for _ in range(model.layers))
    kind, layers = (UndirectedConv, Layers) if part == "directions" else (GatedConv, GatedLayers)
    anchors = 0 if part == "positions" else model.anchors
    sizes = {"positions": anchors, "length_width": model.length_width, "width": model.gate_width}
    return layers(kind(model.width, Gate(**sizes)) for _ in range(model.layers))
