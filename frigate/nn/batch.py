"""Batch, a model's only input.

The moments and the kernel mean of the visible sensors are *not* here: the model computes them from `values` and
`observed`, after sensors are hidden. Computed earlier, they would leak hidden readings to the neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from frigate.calendar import WALL_CLOCK
from frigate.errors import CityError
from frigate.nn.topology import Topology

BATCH_TENSORS = (
    "values",
    "observed",
    "time_past",
    "time_future",
    "target",
    "target_observed",
    "usual_past",
    "demand",
    "demand_node",
    "holds",
)


@dataclass(frozen=True)
class Batch:
    """B windows of T past snapshots and H future steps, in the user's unit.

    The roads of a window do not change ahead. Where they do, the window is there once for each network ahead, and
    `holds` says for which steps; `join` puts their forecasts together.
    """

    values: Tensor  # [B,T,N] 0 where not observed
    observed: Tensor  # [B,T,N] bool
    time_past: Tensor  # [B,T,3] local time at the start of each snapshot, as `frigate.calendar.WALL_CLOCK`
    time_future: Tensor  # [B,H,3]
    topologies: tuple[Topology, ...]  # the distinct ones
    topology_of: Tensor  # [B,T] index into topologies, always on the CPU
    target: Tensor | None = None  # [B,H,N] training and scoring only
    target_observed: Tensor | None = None  # [B,H,N] bool; nothing where `holds` is False
    usual_past: Tensor | None = None  # [B,T,N] usual flow according to demand; None without demand
    demand: Tensor | None = None  # [B,H,N] flow forecast by demand
    demand_node: Tensor | None = None  # [B,N,4] the columns of `frigate.demand.tables.DEMAND_NODE`
    window_of: Tensor | None = None  # [B] which of the windows asked for; None: each is there once
    holds: Tensor | None = None  # [B,H] bool

    def __post_init__(self) -> None:
        B, T, N = self.values.shape
        if self.observed.shape != (B, T, N) or self.observed.dtype != torch.bool:
            raise CityError(f"observed must be bool {(B, T, N)}, is {self.observed.dtype} {tuple(self.observed.shape)}")
        W = len(WALL_CLOCK)
        if self.time_past.shape != (B, T, W) or self.time_future.shape != (B, self.horizon, W):
            raise CityError(f"time_past and time_future must be of {B} windows of {T} snapshots")
        if self.topology_of.shape != (B, T):
            raise CityError(f"topology_of must be {(B, T)}, is {tuple(self.topology_of.shape)}")
        if any(topology.num_nodes != N for topology in self.topologies):
            raise CityError(f"every topology of a batch must have its {N} nodes")

    @classmethod
    def of_window(
        cls,
        values: Tensor,
        observed: Tensor,
        time_past: Tensor,
        time_future: Tensor,
        topologies: tuple[Topology, ...],
        topology_of: Tensor,
    ) -> Batch:
        """A batch of one window, from unbatched tensors: [T,N], [T,N], [T,3], [H,3] and [T]."""
        window = (values[None], observed[None], time_past[None], time_future[None])
        return cls(*window, topologies, topology_of[None])

    @property
    def num_windows(self) -> int:
        return self.values.shape[0]

    @property
    def past(self) -> int:
        return self.values.shape[1]

    @property
    def num_nodes(self) -> int:
        return self.values.shape[2]

    @property
    def horizon(self) -> int:
        return self.time_future.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        """The batch's own tensors on the device: all but topologies and indices."""
        return list(self._named_tensors().values())

    def with_tensors(self, tensors: Sequence[Tensor]) -> Batch:
        """The batch with its tensors replaced, given in the order of `tensors`."""
        named: dict[str, Any] = dict(zip(self._named_tensors(), tensors, strict=True))
        return replace(self, **named)

    def columns_of(self, topology: int) -> Tensor | None:
        """Which of the B*T snapshots have this topology; None if all do."""
        if len(self.topologies) == 1:
            return None
        return torch.nonzero(self.topology_of.reshape(-1) == topology).squeeze(1).to(self.values.device)

    def last(self, snapshots: int) -> Batch:
        """The batch with only the last past snapshots."""
        return replace(
            self,
            values=self.values[:, -snapshots:],
            observed=self.observed[:, -snapshots:],
            time_past=self.time_past[:, -snapshots:],
            topology_of=self.topology_of[:, -snapshots:],
            usual_past=None if self.usual_past is None else self.usual_past[:, -snapshots:],
        )

    def split(self, size: int) -> Iterator[Batch]:
        """Split into batches of at most `size` windows."""
        for first in range(0, self.num_windows, size):
            part = slice(first, first + size)
            tensors: dict[str, Any] = {name: tensor[part] for name, tensor in self._named_tensors().items()}
            window_of = None if self.window_of is None else self.window_of[part]
            yield replace(self, topology_of=self.topology_of[part], window_of=window_of, **tensors)

    def join(self, forecast: Tensor) -> Tensor:
        """[B',H,N] of the windows asked for, from a forecast [B,H,N] of this batch: each step on the roads it has."""
        if self.window_of is None or self.holds is None:
            return forecast
        joined = forecast.new_zeros(int(self.window_of.max()) + 1, *forecast.shape[1:])
        return joined.index_add_(0, self.window_of.to(forecast.device), forecast.where(self.holds[:, :, None], 0))

    def _named_tensors(self) -> dict[str, Tensor]:
        found = {name: getattr(self, name) for name in BATCH_TENSORS}
        return {name: tensor for name, tensor in found.items() if tensor is not None}
