"""Statistics of the visible readings around each node, computed inside the model, after any hiding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from frigate.batch import Batch, Topology

MOMENTS = ("log_count", "mean", "std", "skewness", "kurtosis", "empty")


def moments(batch: Batch, scaled: Tensor) -> Tensor:
    """[N,B,6] of the window's readings at the in- and out-neighbours of each node, never its own (paper, Alg. line 7).

    A neighbour counts by the roads of each snapshot itself, once however many roads there are. `scaled` [B,T,N] are the
    values in the model's unit. Two passes and fp32: centred, so that large values with a small spread lose nothing.
    """
    with torch.autocast(scaled.device.type, enabled=False):
        B, T, N = scaled.shape
        x = scaled.permute(2, 0, 1).reshape(N, B * T)
        observed = batch.observed.permute(2, 0, 1).reshape(N, B * T).to(x.dtype)

        def over_neighbours(power: int, mean: Tensor | None) -> Tensor:
            """[N,B] the sum over neighbours and snapshots of (x_u - mean_v) ** power."""
            total = x.new_zeros(N, B)
            for i, topology in enumerate(batch.topologies):
                columns = batch.columns_of(i)
                window = torch.arange(B * T, device=x.device) // T if columns is None else columns // T
                xs, there = (x, observed) if columns is None else (x[:, columns], observed[:, columns])
                of, at = topology.neighbour_of, topology.neighbour
                if mean is None:
                    term = there[at] * xs[at] ** power if power else there[at]
                else:
                    term = there[at] * (xs[at] - mean[of][:, window]) ** power
                by_window = term.new_zeros(len(of), B).index_add(1, window, term)
                total = total.index_add(0, of, by_window)
            return total

        count = over_neighbours(0, None)
        n = count.clamp(min=1)
        mean = over_neighbours(1, None) / n
        variance = over_neighbours(2, mean) / n
        std = variance.sqrt()
        flat = std <= 1e-6 * (1 + mean.abs())  # rounding alone; skewness and kurtosis are then undefined
        safe = torch.where(flat, 1.0, std)
        skewness = torch.where(flat, 0.0, over_neighbours(3, mean) / n / safe**3).clamp(-10, 10)
        kurtosis = torch.where(flat, 0.0, over_neighbours(4, mean) / n / safe**4 - 3).clamp(-30, 30)
        std = torch.where(flat, 0.0, std)
        return torch.stack([torch.log1p(count), mean, std, skewness, kurtosis, (count == 0).to(x.dtype)], dim=-1)


class KernelMean(nn.Module):
    """The mean of the nearest visible sensors, weighted by road distance and by likeness of the roads.

    Weight of sensor u at node v: exp(-distance / bandwidth + q(v) . k(u)), q and k linear in the road features. The
    weights do not depend on time; which sensors are visible does. Sparse: at most M sensors a node. Where less than
    a ten-thousandth of the weight is visible the mean fades to 0: so little says nothing.
    """

    def __init__(self, *, road_features: int, length_scale_m: float, heads: int = 4, width: int = 8) -> None:
        super().__init__()
        self.heads = heads
        bandwidth_m = length_scale_m * 3.0 ** torch.arange(heads)  # from the next corner to across the quarter
        self.log_bandwidth_m = nn.Parameter(bandwidth_m.log())
        self.query = nn.Linear(road_features, heads * width, bias=False)
        self.key = nn.Linear(road_features, heads * width, bias=False)
        nn.init.normal_(self.query.weight, std=0.02)
        nn.init.normal_(self.key.weight, std=0.02)
        self.width = 2 * heads

    def forward(self, batch: Batch, scaled: Tensor, weights_of: Sequence[Tensor] | None = None) -> Tensor:
        """[N,B,T,2G]: for each of the G heads the mean, and the share of the weight that is visible (0: nothing is).

        `weights_of` are the `weights` of the batch's topologies where they are there already.
        """
        B, T, N = scaled.shape
        x = scaled.permute(2, 0, 1).reshape(N, B * T)
        observed = batch.observed.permute(2, 0, 1).reshape(N, B * T).to(x.dtype)
        result = x.new_zeros(N, B * T, self.width)
        for i, topology in enumerate(batch.topologies):
            columns = batch.columns_of(i)
            weights = self.weights(topology) if weights_of is None else weights_of[i]
            weights, near = weights.to(x.dtype), topology.near_sensor
            xs, there = (x, observed) if columns is None else (x[:, columns], observed[:, columns])
            total = torch.einsum("nmg,nmc->ncg", weights, (xs * there)[near])
            weight = torch.einsum("nmg,nmc->ncg", weights, there[near])
            found = torch.cat([total / weight.clamp(min=1e-4), weight], dim=-1)
            result = found if columns is None else result.index_copy(1, columns, found.to(result.dtype))
        return result.view(N, B, T, self.width)

    def weights(self, topology: Topology) -> Tensor:
        """[N,M,G] the weight of each node's nearest sensors, summing to 1; 0 where there is no sensor."""
        near, distance_m = topology.near_sensor, topology.near_distance_m
        q = self.query(topology.road_features).unflatten(-1, (self.heads, -1))[:, None]
        # Not k[near], whose gradient several threads add up in any order.
        k = functional.embedding(near, self.key(topology.road_features)).view(*near.shape, self.heads, -1)
        there = torch.isfinite(distance_m)[..., None]
        distance_m = distance_m.where(there[..., 0], 0.0)
        logits = (q * k).sum(-1).float() - distance_m[..., None] / self.log_bandwidth_m.exp()
        return torch.softmax(logits.masked_fill(~there, -1e9), dim=1) * there
