"""Shared by the paper's six deep baselines: inputs, road matrices and the base class.

All are inductive: no parameter belongs to a node, so they forecast on networks that they were not trained on, and at
nodes without a sensor. A missing reading is 0, with a mask as a second input. Values are scaled as for Frigate.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from frigate.config import BaselineSettings, Task
from frigate.errors import SettingsError
from frigate.nn.batch import Batch
from frigate.nn.calendar import CALENDAR, calendar
from frigate.nn.forecast_model import ForecastModel
from frigate.nn.model import per_snapshot
from frigate.nn.ops.sparse import SparseMatrix
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology
from frigate.roads.features import FEATURE_WIDTH

READING = 2  # value and mask


class DeepBaseline(ForecastModel):
    """Base class. Subclasses define `forecast` and `training_activations`, and keep the constructor's arguments."""

    def __init__(self, settings: BaselineSettings, task: Task, scaling: Scaling) -> None:
        super().__init__(width=settings.width, value_offset=scaling.value_offset, value_scale=scaling.value_scale)
        self.settings = settings
        self.task = task
        self.length_scale_m = scaling.length_scale_m

    @property
    def inputs(self) -> int:
        """F, the number of inputs per node and snapshot."""
        return READING + len(CALENDAR) + (FEATURE_WIDTH if self.settings.roads else 0)

    def forward(self, batch: Batch) -> Tensor:
        """[B,H,N] in the user's unit, not clamped."""
        forecast = self.forecast(self.read(batch), batch)
        return self.unscaled(forecast.permute(1, 2, 0))

    def read(self, batch: Batch) -> Tensor:
        """x [N,B,T,F]: the reading in the model's unit, whether there is one, the calendar, and road features."""
        scaled = self.scaled(batch.values).where(batch.observed, 0.0).permute(2, 0, 1)  # [N,B,T]
        parts = [torch.stack([scaled, batch.observed.permute(2, 0, 1).to(scaled.dtype)], dim=-1)]
        parts.append(calendar(batch.time_past).expand(batch.num_nodes, -1, -1, -1))
        if self.settings.roads:
            parts.append(per_snapshot(batch, [topology.road_features for topology in batch.topologies]))
        return torch.cat(parts, dim=-1)

    def forecast(self, x: Tensor, batch: Batch) -> Tensor:
        """[N,B,H] from x [N,B,T,F], both in the model's unit."""
        raise NotImplementedError

    def require_trained(self, batch: Batch, *names: str) -> None:
        """Refuse a past or horizon other than the model was built for; `names` says which of them matter."""
        for name in names:
            given = getattr(batch, name)
            trained = getattr(self.task, name)
            if given != trained:
                raise SettingsError(
                    f"{name} = {given}: this {self.settings.label} only works with {name} = {trained}. "
                    f"Use {name} = {trained}, or retrain"
                )


def build_baseline(settings: BaselineSettings, task: Task, scaling: Scaling) -> DeepBaseline:
    from frigate.baselines.dcrnn import DCRNN
    from frigate.baselines.graph_wavenet import GraphWaveNet
    from frigate.baselines.localegn import LocaleGN
    from frigate.baselines.stgcn import STGCN
    from frigate.baselines.stgode import STGODE
    from frigate.baselines.stnn import STNN

    baselines: dict[str, Callable[[BaselineSettings, Task, Scaling], DeepBaseline]] = {
        "dcrnn": DCRNN,
        "stgcn": STGCN,
        "graph-wavenet": GraphWaveNet,
        "stgode": STGODE,
        "localegn": LocaleGN,
        "stnn": STNN,
    }
    return baselines[settings.preset](settings, task, scaling)


def closeness(topology: Topology, length_scale_m: float) -> Tensor:
    """[E] exp(-(length / sigma)^2), the weights of DCRNN and STGCN; sigma is twice the median length in training."""
    return torch.exp(-((topology.length_m / (2 * length_scale_m)) ** 2))


def random_walks(topology: Topology, length_scale_m: float) -> tuple[SparseMatrix, SparseMatrix]:
    """The random walk along the roads, D_O^-1 W, and the one against them, D_I^-1 W^T."""
    weight = closeness(topology, length_scale_m)
    N = topology.num_nodes
    leaving = weight.new_zeros(N).index_add(0, topology.senders, weight)
    arriving = weight.new_zeros(N).index_add(0, topology.receivers, weight)
    # The closeness of a very long road is 0 in fp32: do not divide by it.
    forward = weight / leaving[topology.senders].clamp(min=1e-30)
    backward = weight / arriving[topology.receivers].clamp(min=1e-30)
    return (
        SparseMatrix.of(topology.senders, topology.receivers, forward, num_nodes=N),
        SparseMatrix.of(topology.receivers, topology.senders, backward, num_nodes=N),
    )


def symmetric(topology: Topology, length_scale_m: float) -> SparseMatrix:
    """D^-1/2 W D^-1/2 of the undirected roads; of two roads between two nodes, the shorter counts."""
    weight = closeness(topology, length_scale_m)
    N = topology.num_nodes
    rows = torch.cat([topology.senders, topology.receivers])
    columns = torch.cat([topology.receivers, topology.senders])
    pairs, which = torch.unique(rows * N + columns, return_inverse=True)
    weight = weight.new_zeros(len(pairs)).scatter_reduce(0, which, weight.repeat(2), "amax")
    rows = pairs // N
    columns = pairs % N
    degree = weight.new_zeros(N).index_add(0, rows, weight)
    scale = degree.clamp(min=1e-30).rsqrt()
    return SparseMatrix.of(rows, columns, weight * scale[rows] * scale[columns], num_nodes=N)


def on_roads(batch: Batch, topology_of: Tensor, h: Tensor, layer: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Apply `layer(columns, i)` to the columns of h [N,M,...] of each topology i; topology_of [M] is on the CPU."""
    if len(batch.topologies) == 1:
        return layer(h, 0)
    parts: list[tuple[Tensor, Tensor]] = []
    for i in sorted(set(topology_of.tolist())):
        columns = torch.nonzero(topology_of == i).squeeze(1).to(h.device)
        parts.append((columns, layer(h[:, columns], i)))
    order = torch.argsort(torch.cat([columns for columns, _ in parts]))
    return torch.cat([part for _, part in parts], dim=1)[:, order]
