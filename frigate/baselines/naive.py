"""Simple forecasters that a model must beat: callables from a Batch to forecasts [B,H,N] in the user's unit.

All are fitted on seen nodes and training times, except `fit_own_median`. That one is a yardstick, not a baseline: it
uses every node's own past, to show what a sensor there would give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import SuperLU, splu
from torch import Tensor

from frigate.calendar import BINS, DAY_S, HOUR_S, hourly_bins
from frigate.city.split import Split
from frigate.city.stream import RoadNetworkStream
from frigate.errors import SettingsError
from frigate.nn.batch import Batch
from frigate.nn.topology import Topology

Baseline = Callable[[Batch], Tensor]
TimedBaseline = Callable[[Batch, NDArray[np.int64]], Tensor]  # also takes the windows' last past snapshots [B]
Value = TypeVar("Value")

NEAREST = 5
MAX_REMEMBERED = 8


class Remembered(Generic[Value]):
    """Caches the last few results of a slow computation."""

    def __init__(self) -> None:
        self._known: list[tuple[tuple[object, ...], Value]] = []

    def get(self, compute: Callable[..., Value], *inputs: object) -> Value:
        """compute(*inputs), cached. Arrays are compared by value, other inputs by identity."""
        for known, value in self._known:
            if all(map(_same, known, inputs)):
                return value
        value = compute(*inputs)
        self._known = [*self._known[1 - MAX_REMEMBERED :], (inputs, value)]
        return value


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return np.array_equal(one, other) if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) else one is other


@dataclass(frozen=True)
class Constant:
    """One value everywhere and always."""

    value: float

    def __call__(self, batch: Batch) -> Tensor:
        return batch.values.new_full((batch.num_windows, batch.horizon, batch.num_nodes), self.value)


@dataclass(frozen=True)
class ClockProfile:
    """A value for each kind of day and local hour, the same for all nodes or one for each."""

    profile: Tensor  # [BINS,1 or N]

    def __call__(self, batch: Batch) -> Tensor:
        return self.profile.to(batch.values.device)[hourly_bins(batch.time_future)].expand(-1, -1, batch.num_nodes)


@dataclass(frozen=True)
class NearestSensors:
    """The mean over the past window of the nearest sensors by road, weighted by 1 / (distance + 1 m).

    Only sensors with a reading in the window count. A node's own sensor is at distance 0 and outweighs the rest.
    """

    otherwise: float  # if no sensor is near
    count: int = NEAREST

    def __call__(self, batch: Batch) -> Tensor:
        mean, known = window_means(batch)
        forecast = torch.empty_like(mean)
        for topology, rows in last_topologies(batch):
            forecast[rows] = self._on(topology, mean[rows], known[rows])
        return forecast[:, None, :].expand(-1, batch.horizon, -1)

    def _on(self, topology: Topology, mean: Tensor, known: Tensor) -> Tensor:
        itself = torch.arange(topology.num_nodes, device=mean.device)[:, None]
        distance_m = torch.cat([torch.zeros_like(itself, dtype=torch.float32), topology.near_distance_m], 1)
        order = distance_m.argsort(dim=1, stable=True)
        distance_m = distance_m.gather(1, order)  # [N,1+M]
        sensor = torch.cat([itself, topology.near_sensor], 1).gather(1, order)
        usable = known[:, sensor] & torch.isfinite(distance_m)  # [B,N,1+M]
        usable &= usable.cumsum(-1) <= self.count
        weight = torch.where(usable, 1 / (distance_m + 1), 0.0)
        total = weight.sum(-1)
        near = (weight * mean[:, sensor]).sum(-1) / torch.where(total > 0, total, 1.0)
        return torch.where(total > 0, near, self.otherwise)


@dataclass(frozen=True)
class Persistence:
    """Each node's own latest reading in the past window."""

    otherwise: float  # for a node without one

    def __call__(self, batch: Batch) -> Tensor:
        at = torch.arange(1, batch.past + 1, device=batch.values.device)[:, None]
        last = (batch.observed * at).argmax(1, keepdim=True)  # [B,1,N]
        known = batch.observed.any(1, keepdim=True)
        return torch.where(known, batch.values.gather(1, last), self.otherwise).expand(-1, batch.horizon, -1)


@dataclass(frozen=True)
class LastHour:
    """The mean of each node's own readings in the last hour of the past window."""

    otherwise: float  # for a node without one
    steps: int  # per hour

    def __call__(self, batch: Batch) -> Tensor:
        steps = min(self.steps, batch.past)
        mean, known = window_means(batch.last(steps))
        return torch.where(known, mean, self.otherwise)[:, None].expand(-1, batch.horizon, -1)


@dataclass(frozen=True)
class LastWeek:
    """Each seen node's own reading at the same local time a week before, else the mean of its last hour.

    More than a week ahead, it is the last of these weeks that is over.
    """

    stream: RoadNetworkStream
    seen: NDArray[np.bool_]  # [N]
    week_before: NDArray[np.int64]  # [S] the snapshot a week before each; -1 if there is none
    otherwise: LastHour

    def __call__(self, batch: Batch, current: NDArray[np.int64]) -> Tensor:
        """Forecasts for the windows whose last past snapshots are `current` [B]."""
        at = self.week_before[current[:, None] + np.arange(1, batch.horizon + 1)]  # [B,H]
        while (ahead := at > current[:, None]).any():
            at = np.where(ahead, self.week_before[at], at)
        known = self.stream.observed[at] & (at >= 0)[..., None] & self.seen
        values = torch.from_numpy(np.asarray(self.stream.values[at]))
        device = batch.values.device
        return torch.where(torch.from_numpy(known).to(device), values.to(device), self.otherwise(batch))


@dataclass(frozen=True)
class LabelPropagation:
    """The harmonic function on the undirected road graph: every node without a sensor is the mean of its neighbours.

    A sensor has its mean over the past window.
    """

    otherwise: float  # for nodes without a road to a sensor
    # Cached: factorizing is slow, and the sensors rarely change between windows.
    _factors: Remembered[_Harmonic] = field(default_factory=Remembered, init=False, repr=False, compare=False)

    def __call__(self, batch: Batch) -> Tensor:
        mean, known = (x.cpu().numpy() for x in window_means(batch))  # the solver is SciPy's
        forecast = np.empty_like(mean)
        for topology, on_device in last_topologies(batch):
            rows = on_device.cpu().numpy()
            masks, which = np.unique(known[rows], axis=0, return_inverse=True)
            for i, mask in enumerate(masks):
                some = rows[which == i]
                forecast[some] = self._factors.get(_harmonic, topology, mask).solve(mean[some], self.otherwise)
        return torch.from_numpy(forecast).to(batch.values)[:, None, :].expand(-1, batch.horizon, -1)


@dataclass(frozen=True)
class _Harmonic:
    """The factorized Laplacian of the unknown nodes, and their roads to known ones."""

    known: NDArray[np.bool_]  # [N]
    unknown: NDArray[np.int64]  # [U] those with a path to a known node
    roads: csr_array  # [U,N] from unknown to known nodes
    factor: SuperLU | None  # of [U,U]; None if no node is unknown

    def solve(self, label: NDArray[np.float32], otherwise: float) -> NDArray[np.float64]:
        """[B,N] from labels [B,N]; labels of unknown nodes are ignored."""
        value = np.where(self.known, label.astype(np.float64), otherwise)
        if self.factor is not None:
            value[:, self.unknown] = self.factor.solve(self.roads @ value.T).T
        return value


def _harmonic(topology: Topology, known: NDArray[np.bool_]) -> _Harmonic:
    N = topology.num_nodes
    one = topology.neighbour_of.cpu().numpy()
    other = topology.neighbour.cpu().numpy()
    graph = csr_array((np.ones(len(one)), (one, other)), shape=(N, N))
    _, part = connected_components(graph, directed=False)
    unknown = np.flatnonzero(~known & np.isin(part, part[known]))
    roads = csr_array(graph[unknown])
    laplacian = csc_array(diags_array(np.asarray(roads.sum(axis=1))) - csr_array(roads[:, unknown]))
    to_known = csr_array(roads @ diags_array(known.astype(np.float64)))
    return _Harmonic(known, unknown, to_known, splu(laplacian) if len(unknown) else None)


def window_means(batch: Batch) -> tuple[Tensor, Tensor]:
    """[B,N] mean of each node's readings in the past window (0 if none), and whether there are any."""
    count = batch.observed.sum(1)
    # Not a product: unobserved values may be NaN or infinite.
    total = torch.where(batch.observed, batch.values, 0.0).sum(1)
    return total / count.clamp(min=1), count > 0


def last_topologies(batch: Batch) -> list[tuple[Topology, Tensor]]:
    """The topologies of the windows' last snapshots, each with the rows of its windows."""
    last = batch.topology_of[:, -1]
    return [
        (batch.topologies[i], torch.nonzero(last == i).squeeze(1).to(batch.values.device))
        for i in sorted(set(last.tolist()))
    ]


def require_same_nodes(what: str, profile: Tensor, batch: Batch) -> None:
    """Refuse a city other than the one that the profile [BINS,N] was fitted on."""
    if profile.shape[1] != batch.num_nodes:
        raise SettingsError(
            f"{what}: fitted on a city of {profile.shape[1]} nodes, but this one has {batch.num_nodes}. Fit it again"
        )


def naive_baselines(stream: RoadNetworkStream, split: Split) -> dict[str, Baseline]:
    """The baselines of every table, by name, fitted on seen nodes and training times only."""
    middle = seen_median(stream, split)
    return {
        "zero": Constant(0.0),
        "constant median": Constant(middle),
        "clock profile": fit_clock_profile(stream, split, otherwise=middle),
        "nearest sensors": NearestSensors(middle),
        "label propagation": LabelPropagation(middle),
    }


def own_past_baselines(stream: RoadNetworkStream, split: Split) -> tuple[dict[str, Baseline], dict[str, TimedBaseline]]:
    """The baselines that repeat a sensor's own readings, so they only work at sensors.

    Those in the second dict also need the times of the windows. "last week" is included if there is enough data.
    """
    middle = seen_median(stream, split)
    hour = LastHour(middle, max(1, HOUR_S // stream.step_s))
    week_before = _week_before(stream)
    timed: dict[str, TimedBaseline] = {}
    if (week_before[slice(*split.test)] >= 0).any():
        timed["last week"] = LastWeek(stream, split.seen, week_before, hour)
    return {"persistence": Persistence(middle), "last hour": hour}, timed


def _week_before(stream: RoadNetworkStream) -> NDArray[np.int64]:
    """[S] the snapshot at the same local time a week before each; -1 if there is none."""
    local_s = (stream.times_s + stream.utc_offset_s).tolist()
    snapshot_at = {time_s: snapshot for snapshot, time_s in enumerate(local_s)}
    return np.array([snapshot_at.get(time_s - 7 * DAY_S, -1) for time_s in local_s], np.int64)


def seen_median(stream: RoadNetworkStream, split: Split) -> float:
    """The median of the seen nodes' training readings; 0 if there are none."""
    values, observed = _training(stream, split, split.seen)
    readings = values[observed]
    return float(np.median(readings)) if len(readings) else 0.0


def fit_clock_profile(stream: RoadNetworkStream, split: Split, *, otherwise: float) -> ClockProfile:
    """Medians over all seen nodes; an hour without a training reading gets `otherwise`."""
    values, observed = _training(stream, split, split.seen)
    bins = _training_bins(stream, split)
    profile = np.full(BINS, otherwise, np.float32)
    for b in np.unique(bins):
        readings = values[bins == b][observed[bins == b]]
        if len(readings):
            profile[b] = np.median(readings)
    return ClockProfile(torch.from_numpy(profile)[:, None])


def fit_own_median(stream: RoadNetworkStream, split: Split, *, otherwise: float) -> ClockProfile:
    """Medians of every node's own training readings by hour; else its median of all hours; else `otherwise`."""
    values, observed = _training(stream, split, np.ones(stream.num_nodes, bool))
    bins = _training_bins(stream, split)
    whole = column_medians(values, observed)
    whole = np.where(np.isnan(whole), otherwise, whole)
    profile = np.tile(whole, (BINS, 1))
    for b in np.unique(bins):
        own = column_medians(values[bins == b], observed[bins == b])
        profile[b] = np.where(np.isnan(own), whole, own)
    return ClockProfile(torch.from_numpy(profile.astype(np.float32)))


def column_medians(values: NDArray[np.float32], observed: NDArray[np.bool_]) -> NDArray[np.float32]:
    """[N] median of the observed values in each column of [S,N]; NaN if there are none."""
    if len(values) == 0:
        return np.full(values.shape[1], np.nan, np.float32)
    ordered = np.sort(np.where(observed, values, np.inf), axis=0)
    count = observed.sum(0)
    middle = [np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(values) - 1)]
    medians = np.take_along_axis(ordered, np.array(middle), axis=0).mean(axis=0)
    return np.where(count > 0, medians, np.nan).astype(np.float32)


def _training(
    stream: RoadNetworkStream, split: Split, nodes: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values and mask of some nodes in the training period."""
    period = slice(*split.train)
    return stream.values[period][:, nodes], stream.observed[period][:, nodes]


def _training_bins(stream: RoadNetworkStream, split: Split) -> NDArray[np.int64]:
    return np.asarray(hourly_bins(stream.wall_clock[slice(*split.train)]))
