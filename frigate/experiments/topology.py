"""Roads changed at inference (fig:gchanges): some closed, as many built, and no training again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from frigate.config import PRESETS
from frigate.data.coordinates import EARTH_RADIUS_M
from frigate.data.network import RoadNetwork
from frigate.experiments import plots
from frigate.experiments.plan import Plan, Recipe
from frigate.experiments.table import Row, Table, mae_cells
from frigate.experiments.trials import Change, Fitted, Scored, Trial
from frigate.nn.batch import Windows
from frigate.nn.scaling import build_topologies

THRESHOLD = 3.0  # median roads: new roads join nodes at most so far apart as the crow flies


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
        return replace(fitted, windows=Windows(other, topologies, fitted.windows.device))


def perturbed(network: RoadNetwork, *, percent: float, seed: int) -> RoadNetwork:
    """Half of `percent` of the roads dropped, as many built between near nodes without one, with lengths of others."""
    rng = np.random.default_rng([seed, round(100 * percent)])
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


def trials(plan: Plan, scored: Scored) -> list[Trial]:
    return [
        Trial(plan.recipe(model), OtherRoads(percent=percent) if percent else Change())
        for model in plan.wanted(*PRESETS)
        for percent in plan.effort.changed_roads
    ]


def measure(plan: Plan, scored: Scored) -> Table:
    rows: list[Row] = [
        {
            "model": trial.recipe.label,
            "changed": trial.change.percent if isinstance(trial.change, OtherRoads) else 0.0,
            **mae_cells(summary),
            "more_percent": scored.more_percent(trial),
        }
        for trial, summary in scored.found(trials(plan, scored))
    ]
    return Table.make("topology", rows)


def draw(table: Table) -> plots.Figure:
    figure, (ax,) = plots.figure()
    plots.mae_lines(ax, table.by_model(), "changed")
    ax.set(xlabel="roads changed (%)", ylabel=f"MAE at nodes without a sensor ({table.unit})")
    ax.set_ylim(bottom=0)
    ax.set_xticks(sorted({float(row["changed"]) for row in table.rows if isinstance(row["changed"], int | float)}))
    ax.legend()
    return figure
