"""Changes of a trial's input at inference, without training again: other roads, and a third of the past missing.

There are two ways for a snapshot to be missing: it is not in the window at all, as in the paper; or it is there, but
without readings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from frigate.data.coordinates import EARTH_RADIUS_M
from frigate.data.network import RoadNetwork
from frigate.draws import Draw, generator, seed_of
from frigate.experiments.plan import Plan, Recipe
from frigate.experiments.trials import Change, Fitted
from frigate.nn.batch import Batch, Windows
from frigate.nn.demand_tables import DemandTables
from frigate.nn.scaling import build_topologies
from frigate.training.run import RunTrips

THRESHOLD = 3.0  # median roads: new roads join nodes at most so far apart as the crow flies
DROPPED = 1 / 3  # of the past snapshots: 8 of 12 are left


@dataclass(frozen=True)
class OtherRoads(Change):
    """X % of the roads changed, in every snapshot."""

    percent: float

    @property
    def name(self) -> str:
        return f"roads-{self.percent:g}"

    def apply(self, fitted: Fitted, plan: Plan, recipe: Recipe) -> Fitted:
        assert fitted.run is not None
        stream = plan.city.stream
        other = stream.on(perturbed(stream.network, percent=self.percent, seed=recipe.seed))
        topologies, _ = build_topologies(other.topologies, fitted.run.scaling, sensors=fitted.split.seen)
        device, demand = fitted.windows.device, None
        if fitted.run.scaling.demand is not None:
            trips = RunTrips.of(fitted.run, other.network)
            demand = DemandTables.of([trips.demand(fitted.split.seen)], device, step_s=stream.step_s)
        return replace(fitted, windows=Windows(other, topologies, device, demand=demand))


def perturbed(network: RoadNetwork, *, percent: float, seed: int) -> RoadNetwork:
    """Half of `percent` of the roads dropped, as many built between near nodes without one, with lengths of others."""
    rng = generator(seed, Draw.CHANGED_ROADS, round(100 * percent))
    count = round(percent / 200 * network.num_edges)
    ids = network.node_ids.tolist()
    gone = rng.permutation(network.num_edges)[:count]
    pairs = rng.permuted(rng.permutation(_near_pairs(network))[:count], axis=1)  # a road each, one way or the other
    length_m = rng.choice(network.length_m, size=len(pairs))
    return network.close([(ids[network.senders[e]], ids[network.receivers[e]]) for e in gone]).add(
        roads=[(ids[u], ids[v]) for u, v in pairs], length_m=length_m.tolist()
    )


def _near_pairs(network: RoadNetwork) -> NDArray[np.int64]:
    """[P,2] the nodes within the threshold of each other and without a road either way, each pair once."""
    at = np.flatnonzero(network.present)
    lon, lat = np.radians(network.lon[at]), np.radians(network.lat[at])
    x_m = EARTH_RADIUS_M * np.stack([lon * np.cos(lat.mean()), lat], axis=1)  # a town is flat enough
    near = at[cKDTree(x_m).query_pairs(THRESHOLD * float(np.median(network.length_m)), output_type="ndarray")]
    N = network.num_nodes
    # Both ways: a one-way street may not get its other direction, as its nodes are connected.
    joined = np.concatenate([network.senders * N + network.receivers, network.receivers * N + network.senders])
    return np.asarray(near[~np.isin(near[:, 0] * N + near[:, 1], joined)], np.int64)


@dataclass(frozen=True)
class Thinned(Change):
    """A third of each window's past snapshots, drawn for each window, is taken away or masked."""

    masked: bool = False

    @property
    def name(self) -> str:
        return "masked" if self.masked else "dropped"

    def apply(self, fitted: Fitted, plan: Plan, recipe: Recipe) -> Fitted:
        draws = torch.Generator().manual_seed(seed_of(recipe.seed, Draw.KEPT_SNAPSHOTS))

        def forecast(batch: Batch) -> Tensor:
            keep = kept_snapshots(batch.num_windows, batch.past, draws)
            return fitted.forecast(mask(batch, keep) if self.masked else batch.keep_past(keep))

        return replace(fitted, forecast=forecast)


def kept_snapshots(windows: int, past: int, draws: torch.Generator) -> Tensor:
    """[B,T'] which snapshots of each window are left, in their order."""
    left = past - round(DROPPED * past)
    return torch.rand(windows, past, generator=draws).argsort(dim=1)[:, :left].sort(dim=1).values


def mask(batch: Batch, keep: Tensor) -> Batch:
    """The batch with every snapshot, and readings only in those of `keep` [B,T']."""
    there = torch.zeros(batch.num_windows, batch.past, dtype=torch.bool).scatter(1, keep, True)
    observed = batch.observed & there.to(batch.values.device)[:, :, None]
    return replace(batch, values=batch.values.where(observed, 0.0), observed=observed)
