"""Batch, a model's only input.

The moments and the kernel mean of the visible sensors are *not* here: the model computes them from `values` and
`observed`, after sensors are hidden. Computed earlier, they would leak hidden readings to the neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from frigate.calendar import WALL_CLOCK
from frigate.demand.tables import DEMAND_NODE
from frigate.errors import CityError
from frigate.nn.shapes import Shape, shapes_in
from frigate.nn.topology import Topology


@dataclass(frozen=True)
class Batch:
    """B windows of T past snapshots and H future steps, in the user's unit.

    The roads of a window do not change ahead. Where they do, the window is there once for each network ahead, and
    `holds` says for which steps; `join` puts their forecasts together.
    """

    values: Annotated[Tensor, Shape("BTN")]  # 0 where not observed
    observed: Annotated[Tensor, Shape("BTN")]  # bool
    time_past: Annotated[Tensor, Shape("BTC")]  # local time at a snapshot's start, as `frigate.calendar.WALL_CLOCK`
    time_future: Annotated[Tensor, Shape("BHC")]
    topologies: tuple[Topology, ...]  # the distinct ones
    topology_of: Annotated[Tensor, Shape("BT", read=False, on_device=False)]  # index into topologies
    usual_past: Annotated[Tensor | None, Shape("BTN")] = None  # usual flow according to demand; None without demand
    demand: Annotated[Tensor | None, Shape("BHN")] = None  # flow forecast by demand
    demand_node: Annotated[Tensor | None, Shape("BND")] = None  # the columns of `frigate.demand.tables.DEMAND_NODE`
    target: Annotated[Tensor | None, Shape("BHN", read=False)] = None  # training and scoring only
    target_observed: Annotated[Tensor | None, Shape("BHN", read=False)] = None  # bool; nothing where `holds` is False
    window_of: Annotated[Tensor | None, Shape("B", read=False, on_device=False)] = None  # None: each is there once
    holds: Annotated[Tensor | None, Shape("BH", read=False)] = None  # bool

    def __post_init__(self) -> None:
        B, T, N = self.values.shape
        sizes = {"B": B, "T": T, "N": N, "H": self.horizon, "C": len(WALL_CLOCK), "D": len(DEMAND_NODE)}
        for name, shape in BATCH_SHAPES.items():
            tensor = getattr(self, name)
            if tensor is None or not (shape.read or shape.letters == "BT"):  # targets may be of fewer nodes
                continue
            wanted = tuple(sizes[letter] for letter in shape.letters)
            if tuple(tensor.shape) != wanted:
                raise CityError(f"{name} must be [{','.join(shape.letters)}] {wanted}, is {tuple(tensor.shape)}")
        if self.observed.dtype != torch.bool:
            raise CityError(f"observed must be bool, is {self.observed.dtype}")
        if any(topology.num_nodes != N for topology in self.topologies):
            raise CityError(f"every topology of a batch must have its {N} nodes")

    @classmethod
    def of_window(cls, tensors: Mapping[str, Tensor], topology: Topology) -> Batch:
        """A batch of one window on one network, from its tensors by name, without B."""
        window: dict[str, Any] = {name: tensor[None] for name, tensor in tensors.items()}
        T = len(tensors["values"])
        return cls(**window, topologies=(topology,), topology_of=torch.zeros(1, T, dtype=torch.int64))

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
        return replace(self, **self.only("T", slice(-snapshots, None)))

    def only(self, letter: str, index: slice | Tensor) -> dict[str, Any]:
        """The tensors that have this dimension, with only some of it: for `replace`."""
        found = {}
        for name, shape in BATCH_SHAPES.items():
            tensor = getattr(self, name)
            if tensor is not None and letter in shape.letters:
                found[name] = tensor[(slice(None),) * shape.letters.index(letter) + (index,)]
        return found

    def split(self, size: int) -> Iterator[Batch]:
        """Split into batches of at most `size` windows."""
        for first in range(0, self.num_windows, size):
            yield replace(self, **self.only("B", slice(first, first + size)))

    def join(self, forecast: Tensor) -> Tensor:
        """[B',H,N] of the windows asked for, from a forecast [B,H,N] of this batch: each step on the roads it has."""
        if self.window_of is None or self.holds is None:
            return forecast
        joined = forecast.new_zeros(int(self.window_of.max()) + 1, *forecast.shape[1:])
        return joined.index_add_(0, self.window_of.to(forecast.device), forecast.where(self.holds[:, :, None], 0))

    def _named_tensors(self) -> dict[str, Tensor]:
        found = {name: getattr(self, name) for name, shape in BATCH_SHAPES.items() if shape.on_device}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


BATCH_SHAPES = shapes_in(Batch)
