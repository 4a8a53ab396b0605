"""Statistics of the visible readings around each node, computed inside the model, after sensors are hidden."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.nn.batch import Batch
from frigate.nn.topology import Topology

MOMENTS = ("log_count", "mean", "std", "skewness", "kurtosis", "empty")


def moments(batch: Batch, scaled: Tensor) -> Tensor:
    """[N,B,6] of the window's readings at each node's in- and out-neighbours, never its own.

    Neighbours are defined by the roads of each snapshot; each counts once, however many roads connect them. `scaled`
    [B,T,N] are the values in the model's unit. Two passes in fp32 (mean, then central moments), so that large values
    with a small spread lose no precision.
    """
    with torch.autocast(scaled.device.type, enabled=False):
        B, T, N = scaled.shape
        x = scaled.permute(2, 0, 1).reshape(N, B * T)
        observed = batch.observed.permute(2, 0, 1).reshape(N, B * T).to(x.dtype)
        parts = [_part(batch, i, x, observed) for i in range(len(batch.topologies))]

        def over_neighbours(terms: Iterable[Tensor], kinds: int) -> Tensor:
            """[kinds,N,B]: sums over each node's neighbours, from terms [P,kinds*B] per pair, one for each topology."""
            total = x.new_zeros(N, kinds * B)
            for topology, term in zip(batch.topologies, terms, strict=True):
                total = total.index_add(0, topology.neighbour_of, term)
            return total.view(N, kinds, B).transpose(0, 1)

        count, total = over_neighbours((part.sums()[part.neighbour] for part in parts), 2)  # {tau_u}: Alg. line 7
        n = count.clamp(min=1)
        mean = total / n
        variance, third, fourth = over_neighbours((part.powers(mean) for part in parts), 3) / n
        std = variance.sqrt()
        flat = std <= 1e-6 * (1 + mean.abs())  # only rounding error: skewness and kurtosis are undefined
        safe = torch.where(flat, 1.0, std)
        skewness = torch.where(flat, 0.0, third / safe**3).clamp(-10, 10)
        kurtosis = torch.where(flat, 0.0, fourth / safe**4 - 3).clamp(-30, 30)
        std = torch.where(flat, 0.0, std)
        return torch.stack([torch.log1p(count), mean, std, skewness, kurtosis, (count == 0).to(x.dtype)], dim=-1)


@dataclass(frozen=True)
class _SharedTopology:
    """The snapshots that share a topology: their readings, their windows, and the neighbour pairs."""

    x: Tensor  # [N,C]
    observed: Tensor  # [N,C] 1 or 0
    window: Tensor | None  # [C]; None: all snapshots of all windows
    windows: int
    neighbour_of: Tensor  # [P]
    neighbour: Tensor  # [P]

    def in_windows(self, term: Tensor) -> Tensor:
        """[R,B]: [R,C] summed over the snapshots of each window."""
        if self.window is None:
            return term.reshape(term.shape[0], self.windows, term.shape[1] // self.windows).sum(2)
        return term.new_zeros(len(term), self.windows).index_add(1, self.window, term)

    def sums(self) -> Tensor:
        """[N,2*B] number of readings at each node, and their sum."""
        return torch.cat([self.in_windows(self.observed), self.in_windows(self.x * self.observed)], dim=1)

    def powers(self, mean: Tensor) -> Tensor:
        """[P,3*B] for each pair (v, u), the sums of (x_u - mean_v) to the powers 2, 3 and 4 over u's readings."""
        mean = mean[self.neighbour_of]
        if self.window is None:
            mean = mean.repeat_interleave(self.x.shape[1] // self.windows, dim=1)
        else:
            mean = mean[:, self.window]
        centred = (self.x[self.neighbour] - mean) * self.observed[self.neighbour]
        return torch.cat([self.in_windows(centred**power) for power in (2, 3, 4)], dim=1)


def _part(batch: Batch, i: int, x: Tensor, observed: Tensor) -> _SharedTopology:
    columns = batch.columns_of(i)
    of = batch.topologies[i].neighbour_of
    at = batch.topologies[i].neighbour
    if columns is None:
        return _SharedTopology(x, observed, None, batch.num_windows, of, at)
    return _SharedTopology(x[:, columns], observed[:, columns], columns // batch.past, batch.num_windows, of, at)


class KernelMean(nn.Module):
    """The mean of the nearest visible sensors, weighted by road distance and by similarity of the roads.

    Weight of sensor u at node v: exp(-distance / bandwidth + q(v) . k(u)), q and k linear in the road features. The
    weights do not depend on time; which sensors are visible does. A node has at most M sensors. If less than a
    ten-thousandth of the weight is visible, the mean fades to 0: that is too little evidence.
    """

    def __init__(self, *, road_features: int, length_scale_m: float, heads: int = 4, width: int = 8) -> None:
        super().__init__()
        self.heads = heads
        bandwidth_m = length_scale_m * 3.0 ** torch.arange(heads)  # 1 to 27 median roads with 4 heads
        self.log_bandwidth_m = nn.Parameter(bandwidth_m.log())
        self.query = nn.Linear(road_features, heads * width, bias=False)
        self.key = nn.Linear(road_features, heads * width, bias=False)
        nn.init.normal_(self.query.weight, std=0.02)
        nn.init.normal_(self.key.weight, std=0.02)
        self.width = 2 * heads

    def forward(self, batch: Batch, scaled: Tensor, sensor_weights: Sequence[Tensor] | None = None) -> Tensor:
        """[N,B,T,2G]: for each of the G heads, the mean and the visible share of the weight (0: nothing visible).

        `sensor_weights` are the `weights` of the batch's topologies, if already computed.
        """
        B, T, N = scaled.shape
        x = scaled.permute(2, 0, 1).reshape(N, B * T)
        observed = batch.observed.permute(2, 0, 1).reshape(N, B * T).to(x.dtype)
        result = x.new_zeros(N, B * T, self.width)
        for i, topology in enumerate(batch.topologies):
            columns = batch.columns_of(i)
            weights = self.weights(topology) if sensor_weights is None else sensor_weights[i]
            weights = weights.to(x.dtype)
            near = topology.near_sensor
            xs, there = (x, observed) if columns is None else (x[:, columns], observed[:, columns])
            total = torch.einsum("nmg,nmc->ncg", weights, (xs * there)[near])
            weight = torch.einsum("nmg,nmc->ncg", weights, there[near])
            found = torch.cat([total / weight.clamp(min=1e-4), weight], dim=-1)
            result = found if columns is None else result.index_copy(1, columns, found.to(result.dtype))
        return result.view(N, B, T, self.width)

    def weights(self, topology: Topology) -> Tensor:
        """[N,M,G] the weights of each node's nearest sensors, summing to 1; 0 for missing sensors."""
        near = topology.near_sensor
        distance_m = topology.near_distance_m
        q = self.query(topology.road_features).unflatten(-1, (self.heads, -1))[:, None]
        # Not k[near]: its backward adds gradients from several threads in arbitrary order.
        k = functional.embedding(near, self.key(topology.road_features)).view(*near.shape, self.heads, -1)
        there = torch.isfinite(distance_m)[..., None]
        distance_m = distance_m.where(there[..., 0], 0.0)
        logits = (q * k).sum(-1).float() - distance_m[..., None] / self.log_bandwidth_m.exp()
        return torch.softmax(logits.masked_fill(~there, -1e9), dim=1) * there
