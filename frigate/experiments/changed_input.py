"""Changes to a trial's input at inference, without retraining: other roads, and a third of the past missing.

A snapshot is missing in one of two ways: it is not in the window at all, as in the paper; or it is there without
readings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from frigate.city.network import RoadNetwork
from frigate.coordinates import EARTH_RADIUS_M
from frigate.draws import Draw, generator, seed_of
from frigate.experiments.plan import Plan, Recipe
from frigate.experiments.trials import Fitted, InputChange

THRESHOLD = 3.0  # median road lengths: the largest straight-line distance of a new road
DROPPED = 1 / 3  # of the past snapshots: 8 of 12 remain


@dataclass(frozen=True)
class OtherRoads(InputChange):
    """A percentage of the roads changed, in every snapshot."""

    percent: float

    @property
    def name(self) -> str:
        return f"roads-{self.percent:g}"

    def apply(self, fitted: Fitted, plan: Plan, recipe: Recipe) -> Fitted:
        """The roads ahead are others than those that the readings were measured on: trips are rerouted."""
        assert fitted.run is not None
        usual = fitted.run.usual_roads(plan.city.stream)
        return replace(fitted, windows=fitted.windows.edited(perturbed(usual, percent=self.percent, seed=recipe.seed)))


def perturbed(network: RoadNetwork, *, percent: float, seed: int) -> RoadNetwork:
    """Drop `percent` / 2 of the roads and add as many between unconnected nearby nodes, with lengths of other roads."""
    rng = generator(seed, Draw.CHANGED_ROADS, round(100 * percent))
    count = round(percent / 200 * network.num_edges)
    ids = network.node_ids.tolist()
    gone = rng.permutation(network.num_edges)[:count]
    pairs = rng.permuted(rng.permutation(_near_pairs(network))[:count], axis=1)  # one road per pair, either way
    length_m = rng.choice(network.length_m, size=len(pairs))
    return network.close([(ids[network.senders[e]], ids[network.receivers[e]]) for e in gone]).add(
        roads=[(ids[u], ids[v]) for u, v in pairs], length_m=length_m.tolist()
    )


def _near_pairs(network: RoadNetwork) -> NDArray[np.int64]:
    """[P,2] pairs of nodes within the threshold and without a road either way, each pair once."""
    at = np.flatnonzero(network.present)
    lon = np.radians(network.lon[at])
    lat = np.radians(network.lat[at])
    x_m = EARTH_RADIUS_M * np.stack([lon * np.cos(lat.mean()), lat], axis=1)  # flat Earth is accurate enough for a town
    near = at[cKDTree(x_m).query_pairs(THRESHOLD * float(np.median(network.length_m)), output_type="ndarray")]
    N = network.num_nodes
    # Both ways: the ends of a one-way street are connected, so it must not get its other direction.
    joined = np.concatenate([network.senders * N + network.receivers, network.receivers * N + network.senders])
    return np.asarray(near[~np.isin(near[:, 0] * N + near[:, 1], joined)], np.int64)


@dataclass(frozen=True)
class Thinned(InputChange):
    """A third of the past snapshots, drawn for each window, is dropped or masked."""

    masked: bool = False

    @property
    def name(self) -> str:
        return "masked" if self.masked else "dropped"

    def apply(self, fitted: Fitted, plan: Plan, recipe: Recipe) -> Fitted:
        draws = torch.Generator().manual_seed(seed_of(recipe.seed, Draw.KEPT_SNAPSHOTS))

        def thinning(windows: int, past: int) -> Tensor:
            return kept_snapshots(windows, past, draws)

        return replace(fitted, windows=fitted.windows.thinned(thinning, masked=self.masked))


def kept_snapshots(windows: int, past: int, draws: torch.Generator) -> Tensor:
    """[B,T'] the snapshots of each window that remain, in order."""
    remaining = past - round(DROPPED * past)
    return torch.rand(windows, past, generator=draws).argsort(dim=1)[:, :remaining].sort(dim=1).values
