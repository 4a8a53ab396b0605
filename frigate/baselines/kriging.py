"""Ordinary kriging by road distance: a node's daily profile and its anomaly are kriged separately and added.

The profile of a seen sensor is its median by kind of day and hour over the training times. Its anomaly is the mean
deviation from the profile in the past window, which decays with the step ahead like an AR(1) process. Weights sum to 1,
because the mean is unknown. The covariance is an exponential of road distance with a nugget, fitted to a variogram of
the seen nodes. The nugget of the profile is a difference between nodes, so a sensor keeps its own profile; that of the
anomaly is noise, so anomalies are smoothed at sensors too. Counts are kriged as log(1 + x), because they are skewed.

Distance is the shortest path with all roads taken both ways. An exponential of such a distance need not be positive
definite, so the smallest eigenvalue of a node's matrix is raised if it is too small. Kriging is local: it uses a node's
own sensor and the M nearest, P = 1 + M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from frigate.baselines.naive import (
    ClockProfile,
    Remembered,
    fit_clock_profile,
    fit_own_median,
    last_topologies,
    require_same_nodes,
    seen_median,
)
from frigate.calendar import hourly_bins
from frigate.city.split import Split, windows_in
from frigate.config import Task
from frigate.nn.batch import Batch
from frigate.nn.topology import Topology
from frigate.nn.windows import Windows

MAX_DISTANCES = 4_000_000  # in memory at once during the search: 32 MB
MAX_SYSTEMS = 2048  # systems solved at once: 20 MB per array
MIN_EIGENVALUE = 1e-6  # for a covariance with a sill of 1
VARIOGRAM_BINS = 20
BATCH_SIZE = 16
MAX_WINDOWS = 256  # training windows for the anomaly's variogram and decay


@dataclass(frozen=True)
class Covariance:
    """exp(-distance / range) plus a nugget, relative to a sill of 1: the weights do not depend on the sill."""

    range_m: float
    nugget: float


@dataclass(frozen=True)
class Decay:
    """The share of an anomaly that remains h steps ahead: first * ratio ** (h - 1)."""

    first: float
    ratio: float

    def of(self, horizon: int) -> Tensor:
        """[H]"""
        return self.first * self.ratio ** torch.arange(horizon)


@dataclass(frozen=True)
class SensorsAround:
    """Each node's own sensor and the nearest ones on a topology, with the distances between them."""

    sensor: Tensor  # [N,P] the node itself first
    reachable: Tensor  # [N,P] bool
    between_m: Tensor  # [N,P,P] infinite where not reachable


@dataclass(frozen=True)
class Kriging:
    """A Baseline for the nodes it was fitted on; roads may change."""

    profile: Tensor  # [BINS,N] of each seen sensor, in the kriged unit; NaN at other nodes
    of_profile: Covariance
    of_anomaly: Covariance
    decay: Decay
    otherwise: ClockProfile  # used where no visible sensor is near; in the user's unit
    counts: bool  # if so, log(1 + x) is kriged
    # Cached: distances and weights are slow to compute, and the visible sensors rarely change between windows.
    _surroundings: Remembered[SensorsAround] = field(default_factory=Remembered, init=False, repr=False, compare=False)
    _weights: Remembered[tuple[Tensor, Tensor]] = field(
        default_factory=Remembered, init=False, repr=False, compare=False
    )

    def __call__(self, batch: Batch) -> Tensor:
        """[B,H,N] in the user's unit."""
        require_same_nodes("kriging", self.profile, batch)
        profile = self.profile.to(batch.values.device)
        anomaly, known = window_anomalies(in_logarithms(batch) if self.counts else batch, profile)
        hours = hourly_bins(batch.time_future)  # [B,H]
        left = self.decay.of(batch.horizon).to(anomaly)[:, None]  # [H,1]
        forecast = self.otherwise(batch).clone()
        for topology, rows in last_topologies(batch):
            sensor = self.surroundings(topology).sensor
            for b in rows.tolist():
                by_profile, by_anomaly = self.weights(topology, known[b])  # [N,P]
                usual = (by_profile * profile[hours[b]].nan_to_num()[:, sensor]).sum(-1)  # [H,N]
                kriged = usual + left * (by_anomaly * anomaly[b, sensor]).sum(-1)
                there = (by_profile != 0).any(1)
                forecast[b] = torch.where(there, kriged.expm1().clamp(min=0) if self.counts else kriged, forecast[b])
        return forecast

    def surroundings(self, topology: Topology) -> SensorsAround:
        return self._surroundings.get(find_surroundings, topology)

    def weights(self, topology: Topology, known: Tensor, *, own: bool = True) -> tuple[Tensor, Tensor]:
        """[N,P] weights for profile and anomaly from the sensors `known` [N]; includes the node's own if `own`."""
        return self._weights.get(self._compute_weights, topology, known, own)

    def _compute_weights(self, topology: Topology, known: Tensor, own: bool) -> tuple[Tensor, Tensor]:
        around = self.surroundings(topology)
        visible = known[around.sensor]
        visible[:, 0] &= own
        return (
            kriging_weights(around, visible, self.of_profile, smooth=False).to(self.profile.dtype),
            kriging_weights(around, visible, self.of_anomaly, smooth=True).to(self.profile.dtype),
        )


def fit_kriging(windows: Windows, split: Split, task: Task) -> Kriging:
    """Fit the variograms and decay at training nodes and times, and the profiles of all seen nodes."""
    stream = windows.stream
    device = windows.device
    past = task.past
    horizon = task.horizon
    seen = replace(stream, observed=stream.observed & split.seen)
    profile = fit_own_median(seen, split, otherwise=np.nan).profile.to(device)
    counts = stream.quantity == "count"
    if counts:
        profile = profile.log1p()
    current = windows_in(split.train, past=past, horizon=horizon)
    current = current[np.linspace(0, len(current) - 1, min(MAX_WINDOWS, len(current))).round().astype(np.int64)]
    inputs = torch.from_numpy(split.training).to(device)
    batches = [
        windows.batch(current[i : i + BATCH_SIZE], past=past, horizon=horizon, inputs=inputs)
        for i in range(0, len(current), BATCH_SIZE)
    ]
    if counts:
        batches = [in_logarithms(batch) for batch in batches]
    anomalies = [window_anomalies(batch, profile) for batch in batches]
    topology = batches[-1].topologies[int(batches[-1].topology_of[-1, -1])]
    around = find_surroundings(topology)
    anomaly = torch.cat([value.where(known, torch.nan) for value, known in anomalies])
    fitted = Kriging(
        profile=profile,
        of_profile=fit_covariance(around, profile.where(inputs, torch.nan)),
        of_anomaly=fit_covariance(around, anomaly),
        decay=Decay(0.0, 0.0),
        otherwise=fit_clock_profile(stream, split, otherwise=seen_median(stream, split)),
        counts=counts,
    )
    fitted._surroundings.get(lambda _: around, topology)
    return replace(fitted, decay=_fit_decay(fitted, batches, anomalies, inputs))


def find_surroundings(topology: Topology) -> SensorsAround:
    """Search from every sensor. Needs memory for N x P x P distances plus MAX_DISTANCES."""
    N, M = topology.near_sensor.shape
    itself = np.arange(N)[:, None]
    finite = torch.isfinite(topology.near_distance_m).cpu().numpy()
    sensor = np.concatenate([itself, topology.near_sensor.cpu().numpy()], 1)  # [N,P]
    reachable = np.concatenate([np.ones((N, 1), bool), finite], 1)
    # Two sensors near the same node are at most as far apart as the way through that node.
    limit_m = 2 * float(topology.near_distance_m.cpu().numpy()[finite].max(initial=0.0)) + 1
    graph = _both_ways(topology)
    between_m = np.full((N, M + 1, M + 1), np.inf, np.float32)
    node, m = np.nonzero(reachable & (sensor != itself))
    order = np.argsort(sensor[node, m], kind="stable")
    node = node[order]
    m = m[order]
    wanted, first = np.unique(sensor[node, m], return_index=True)
    first = np.append(first, len(node))
    chunk = max(1, MAX_DISTANCES // max(N, 1))
    for i in range(0, len(wanted), chunk):
        some = wanted[i : i + chunk]
        metres = dijkstra(graph, directed=False, indices=some, limit=limit_m)  # [chunk,N]
        part = slice(first[i], first[min(i + chunk, len(wanted))])
        local = np.searchsorted(some, sensor[node[part], m[part]])
        between_m[node[part], m[part]] = metres[local[:, None], sensor[node[part]]]
    between_m[:, 0, :] = between_m[:, :, 0]
    between_m[~(reachable[:, :, None] & reachable[:, None, :])] = np.inf
    between_m[:, np.arange(M + 1), np.arange(M + 1)] = 0
    device = topology.near_sensor.device
    return SensorsAround(*(torch.from_numpy(x).to(device) for x in (sensor, reachable, between_m)))


def _both_ways(topology: Topology) -> csr_array[np.float64]:
    """Undirected road lengths; of parallel roads, the shortest. Built by hand, because scipy would sum them."""
    one = topology.neighbour_of.cpu().numpy()  # sorted, each pair once
    other = topology.neighbour.cpu().numpy()
    N = topology.num_nodes
    tail = topology.senders.cpu().numpy()
    head = topology.receivers.cpu().numpy()
    length_m = np.full(len(one), np.inf)
    for pair in (tail * N + head, head * N + tail):
        np.minimum.at(length_m, np.searchsorted(one * N + other, pair), topology.length_m.cpu().numpy())
    return csr_array((length_m, other, np.searchsorted(one, np.arange(N + 1))), shape=(N, N))


def kriging_weights(around: SensorsAround, visible: Tensor, covariance: Covariance, *, smooth: bool) -> Tensor:
    """[N,P] ordinary kriging weights in double, 0 for sensors that are not `visible` [N,P].

    With `smooth`, the nugget is noise in the readings; without, a node's own reading is exact.
    """
    N, P = around.sensor.shape
    visible = visible & around.reachable
    weights = torch.zeros(N, P, dtype=torch.float64, device=visible.device)
    for i in range(0, N, MAX_SYSTEMS):
        part = slice(i, i + MAX_SYSTEMS)
        there = visible[part]
        matrix = torch.exp(-around.between_m[part].double() / covariance.range_m)  # [c,P,P]
        lift = (MIN_EIGENVALUE - torch.linalg.eigvalsh(matrix)[:, 0] - covariance.nugget).clamp(min=0)
        target = matrix[:, 0].clone()
        target[:, 0] += lift if smooth else lift + covariance.nugget
        matrix.diagonal(dim1=1, dim2=2).add_((lift + covariance.nugget)[:, None])
        both = there[:, :, None] & there[:, None, :]
        system = torch.eye(P + 1, dtype=matrix.dtype, device=matrix.device).repeat(len(there), 1, 1)
        system[:, :P, :P] = torch.where(both, matrix, system[:, :P, :P])
        system[:, P, :P] = system[:, :P, P] = there.to(matrix.dtype)
        system[:, P, P] = (~there.any(1)).to(matrix.dtype)  # keeps the system regular if nothing is visible
        right = torch.cat([target.where(there, 0.0), torch.ones_like(target[:, :1])], 1)
        solved = torch.linalg.solve(system, right[..., None])[:, :P, 0]
        weights[part] = solved.where(there, 0.0)
    return weights


def in_logarithms(batch: Batch) -> Batch:
    """log(1 + x) of all readings."""
    target = None if batch.target is None else batch.target.log1p()
    return replace(batch, values=batch.values.log1p(), target=target)


def window_anomalies(batch: Batch, profile: Tensor) -> tuple[Tensor, Tensor]:
    """[B,N] mean deviation of each sensor from its profile in the past window, and whether it is known."""
    usual = profile[hourly_bins(batch.time_past)]  # [B,T,N]
    there = batch.observed & torch.isfinite(usual)
    count = there.sum(1)
    return (batch.values - usual).where(there, 0.0).sum(1) / count.clamp(min=1), count > 0


def fit_covariance(around: SensorsAround, fields: Tensor) -> Covariance:
    """Fit by weighted least squares to the variogram of pairs of near sensors; `fields` [K,N] are NaN where unknown."""
    near = around.reachable[:, 1:]
    one = around.sensor[:, :1].expand_as(near)[near]
    other = around.sensor[:, 1:][near]
    half_square = torch.zeros(len(one), dtype=torch.float64, device=fields.device)
    count = torch.zeros_like(half_square)
    for row in fields.double():
        gap = row[one] - row[other]
        half_square += 0.5 * gap.square().nan_to_num()
        count += torch.isfinite(gap)
    known = (count > 0).cpu().numpy()
    metres = around.between_m[:, 0, 1:][near].double().cpu().numpy()[known]
    gamma = (half_square / count.clamp(min=1)).cpu().numpy()[known]
    if len(gamma) == 0 or gamma.sum() == 0:
        return Covariance(range_m=1.0 + float(metres.mean()) if len(metres) else 1.0, nugget=0.1)
    edges = np.quantile(metres, np.linspace(0, 1, VARIOGRAM_BINS + 1)[1:-1])
    which = np.searchsorted(edges, metres)
    pairs = np.bincount(which)
    some = pairs > 0
    at_m = np.bincount(which, weights=metres)[some] / pairs[some]
    height = np.bincount(which, weights=gamma)[some] / pairs[some] / gamma.mean()
    weight = np.sqrt(pairs[some] / pairs.sum())

    def misfit(x: NDArray[np.float64]) -> NDArray[np.float64]:
        log_range, nugget, sill = x
        gap: NDArray[np.float64] = weight * (nugget + sill * (1 - np.exp(-at_m / np.exp(log_range))) - height)
        return gap

    shortest = np.log(at_m[0])
    longest = np.log(3 * at_m[-1])
    found = least_squares(
        misfit, [(shortest + longest) / 2, 0.5, 0.5], bounds=([shortest - 1e-6, 0, 1e-2], [longest, 10, 10])
    )
    log_range, nugget, sill = found.x.tolist()
    return Covariance(range_m=float(np.exp(log_range)), nugget=nugget / sill)


def _fit_decay(
    kriging: Kriging, batches: Sequence[Batch], anomalies: Sequence[tuple[Tensor, Tensor]], targets: Tensor
) -> Decay:
    """Fit how much of an anomaly kriged from other sensors remains h steps later: each h, then a geometric series.

    Minimizes absolute errors, as forecasts are scored by MAE; least squares would fit the mean of a skewed count.
    """
    kriged = []
    later = []
    price = []
    for batch, (anomaly, known) in zip(batches, anomalies, strict=True):
        assert batch.target is not None and batch.target_observed is not None
        usual = kriging.profile[hourly_bins(batch.time_future)][:, :, targets]  # [B,H,targets]
        gap = batch.target[:, :, targets] - usual
        later.append(gap.where(batch.target_observed[:, :, targets], torch.nan).cpu().numpy())
        # Converts an error in the logarithm to the user's unit.
        price.append((usual.exp() if kriging.counts else torch.ones_like(usual)).cpu().numpy())
        found = torch.zeros_like(anomaly)
        for topology, rows in last_topologies(batch):
            sensor = kriging.surroundings(topology).sensor
            for b in rows.tolist():
                _, weights = kriging.weights(topology, known[b], own=False)  # as at a node without a sensor
                found[b] = (weights * anomaly[b, sensor]).sum(-1)
        kriged.append(found[:, targets].cpu().numpy())
    before, after, prices = (np.concatenate(parts) for parts in (kriged, later, price))
    each = [_least_absolute(before, after[:, h], prices[:, h]) for h in range(after.shape[1])]
    left = np.array(each).clip(1e-3, 1.0)
    if len(left) == 1:
        return Decay(float(left[0]), float(left[0]))
    # Weighted by the share that remains: the logarithm of a small share is mostly noise.
    slope, height = np.polyfit(np.arange(len(left)), np.log(left), 1, w=left)
    return Decay(first=min(1.0, float(np.exp(height))), ratio=min(1.0, float(np.exp(slope))))


def _least_absolute(x: NDArray[np.float32], y: NDArray[np.float32], price: NDArray[np.float32]) -> float:
    """The f that minimizes the sum of price * |y - f x| over known y: a weighted median of y / x; 0 if none."""
    some = np.isfinite(y) & (np.abs(x) > 1e-6)
    weight = (price[some] * np.abs(x[some])).astype(np.float64)
    ratio = y[some] / x[some]
    if len(ratio) == 0:
        return 0.0
    order = np.argsort(ratio)
    total = np.cumsum(weight[order])
    return float(ratio[order][np.searchsorted(total, total[-1] / 2)])
