"""Batch, a model's only input, and Windows, which cuts batches out of a stream.

The moments and the kernel mean of the visible sensors are *not* here: the model computes them from `values` and
`observed`, after sensors are hidden. Computed earlier, they would leak hidden readings to the neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.data.stream import RoadNetworkStream, calendar, utc_offsets_s
from frigate.errors import CityError
from frigate.nn.topology import Topology

if TYPE_CHECKING:
    from frigate.nn.demand_tables import DemandTables

BATCH_TENSORS = (
    "values", "observed", "calendar_past", "calendar_future", "target", "target_observed",
    "usual_past", "demand", "demand_node",
)  # fmt: skip
DEMAND_NODE = ("log_change", "spread", "is_sensor", "rerouted")  # rerouted: flow on the roads ahead / usual flow


@dataclass(frozen=True)
class Batch:
    """B windows of T past snapshots and H future steps, in the user's unit."""

    values: Tensor  # [B,T,N] 0 where not observed
    observed: Tensor  # [B,T,N] bool
    calendar_past: Tensor  # [B,T,C]
    calendar_future: Tensor  # [B,H,C]
    topologies: tuple[Topology, ...]  # the distinct ones
    topology_of: Tensor  # [B,T] index into topologies, always on the CPU
    target: Tensor | None = None  # [B,H,N] training and scoring only
    target_observed: Tensor | None = None  # [B,H,N] bool
    usual_past: Tensor | None = None  # [B,T,N] usual flow according to demand; None without demand
    demand: Tensor | None = None  # [B,H,N] flow forecast by demand
    demand_node: Tensor | None = None  # [B,N,4] the columns of DEMAND_NODE

    def __post_init__(self) -> None:
        B, T, N = self.values.shape
        if self.observed.shape != (B, T, N) or self.observed.dtype != torch.bool:
            raise CityError(f"observed must be bool {(B, T, N)}, is {self.observed.dtype} {tuple(self.observed.shape)}")
        if self.calendar_past.shape[:2] != (B, T) or self.topology_of.shape != (B, T) or len(self.calendar_future) != B:
            raise CityError(f"calendar and topology_of must be of {B} windows of {T} snapshots")
        if any(topology.num_nodes != N for topology in self.topologies):
            raise CityError(f"every topology of a batch must have its {N} nodes")

    @classmethod
    def of_window(
        cls,
        values: Tensor,
        observed: Tensor,
        calendar_past: Tensor,
        calendar_future: Tensor,
        topologies: tuple[Topology, ...],
        topology_of: Tensor,
    ) -> Batch:
        """A batch of one window, from unbatched tensors: [T,N], [T,N], [T,C], [H,C] and [T]."""
        window = (values[None], observed[None], calendar_past[None], calendar_future[None])
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
        return self.calendar_future.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        """The batch's own tensors on the device: all but topologies and `topology_of`."""
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

    def keep_past(self, snapshots: Sequence[int] | Tensor) -> Batch:
        """The batch with only these past snapshots, in order: [T'], or [B,T'] for a choice per window."""
        keep = torch.as_tensor(snapshots).expand(self.num_windows, -1)
        device = self.values.device
        at = torch.arange(self.num_windows, device=device)[:, None], keep.to(device)
        return replace(
            self,
            values=self.values[at],
            observed=self.observed[at],
            calendar_past=self.calendar_past[at],
            topology_of=self.topology_of.gather(1, keep),
            usual_past=None if self.usual_past is None else self.usual_past[at],
        )

    def split(self, size: int) -> Iterator[Batch]:
        """Split into batches of at most `size` windows."""
        for first in range(0, self.num_windows, size):
            part = slice(first, first + size)
            tensors: dict[str, Any] = {name: tensor[part] for name, tensor in self._named_tensors().items()}
            yield replace(self, topology_of=self.topology_of[part], **tensors)

    def _named_tensors(self) -> dict[str, Tensor]:
        found = {name: getattr(self, name) for name in BATCH_TENSORS}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


class Windows:
    """A stream's arrays on one device, to cut batches from; the calendar extends `ahead` steps past its end."""

    def __init__(
        self,
        stream: RoadNetworkStream,
        topologies: Sequence[Topology],
        device: torch.device | str = "cpu",
        *,
        ahead: int = 0,
        demand: DemandTables | None = None,
    ) -> None:
        self.stream, self.device, self.demand = stream, torch.device(device), demand
        self.topologies = tuple(topology.to(self.device) for topology in topologies)
        self.values = _on(stream.values, self.device)
        self.observed = _on(stream.observed, self.device)
        clock = stream.calendar
        if ahead:
            S = stream.num_snapshots
            times_s = stream.steps.times_s(S, S + ahead)
            clock = np.concatenate([clock, calendar(times_s + utc_offsets_s(times_s, stream.timezone))])
        self.calendar = _on(clock, self.device)
        self.topology_of = torch.from_numpy(stream.topology_of.copy())

    def batch(
        self,
        current: NDArray[np.int64],
        *,
        past: int,
        horizon: int,
        inputs: Tensor,
        hidden: Tensor | None = None,
        demand: Tensor | None = None,
    ) -> Batch:
        """The windows whose last past snapshot is `current`. No targets if any horizon runs past the stream's end.

        Parameters
        ----------
        current
            [B] index of each window's last past snapshot.
        past, horizon
            Number of snapshots to read and to forecast.
        inputs
            [N] bool, the nodes whose readings are used.
        hidden
            [B,N] bool, input nodes to hide in each window (default: none).
        demand
            [B] index of each window's demand (default: the last one). It must not be calibrated with hidden sensors.
        """
        last = torch.from_numpy(np.asarray(current, np.int64))
        known = len(last) == 0 or int(last.max()) + horizon < len(self.values)
        before = last[:, None] + torch.arange(1 - past, 1)
        after = last[:, None] + torch.arange(1, horizon + 1)
        used, topology_of = torch.unique(self.topology_of[before], return_inverse=True)
        before, after = before.to(self.device), after.to(self.device)
        observed = self.observed[before] & (inputs if hidden is None else inputs & ~hidden[:, None])
        batch = Batch(
            values=self.values[before].where(observed, 0.0),
            observed=observed,
            calendar_past=self.calendar[before],
            calendar_future=self.calendar[after],
            topologies=tuple(self.topologies[int(i)] for i in used),
            topology_of=topology_of,
            target=self.values[after] if known else None,
            target_observed=self.observed[after] if known else None,
        )
        if self.demand is None:
            return batch
        if demand is None:
            demand = torch.full((len(last),), len(self.demand.usual) - 1, device=self.device)
        on = self.topology_of[last[:, None] + torch.arange(1 - past, 1)].to(self.device)
        return self.demand.apply(batch, demand, on, on[:, -1])


def _on(array: NDArray[np.generic], device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.tensor(array, device=device)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
