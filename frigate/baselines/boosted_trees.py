"""LightGBM on the surroundings of a node: near sensors and their daily profiles, the calendar, the roads.

Trained on rows (window, step ahead, node) of seen nodes at training times. In each training window a random 20 to 80 %
of the sensors are hidden, as for `default`, and the rows are those of the hidden sensors. No feature is a reading of
the node itself, so a sensor is forecast nearly as if it had none. A sensor's profile is used only in windows that show
it. Without readings, the features are the calendar and the roads alone.
S steps, n nodes, M near sensors, k of them with columns of their own, G kernels, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.baselines.naive import fit_own_median, last_topologies, require_same_nodes, window_means
from frigate.calendar import HOURS, hourly_bins
from frigate.city.split import Period, Split, windows_in
from frigate.config import Task
from frigate.draws import Draw, generator
from frigate.errors import MissingExtraError, SettingsError
from frigate.nn.batch import Batch
from frigate.nn.calendar import calendar
from frigate.nn.moments import moments
from frigate.nn.windows import Windows

NEAREST = 5  # k
HIDDEN = (0.2, 0.8)  # range of the share of sensors hidden in a training window
ROWS = 400_000  # for training; a fifth as many for early stopping
STEPS = 3  # rows per node and window: its other steps are nearly the same
STOPPING_SHARE = 0.2  # of the seen nodes, if the split has no validation nodes
L1, POISSON = "regression_l1", "poisson"
BANDWIDTHS = (1.0, 3.0, 9.0, 27.0)  # in median road lengths
LIKENESS = (1.0, 4.0)  # kernels that also decay with the mean squared difference of the road features
PATIENCE = 40  # trees without an improvement before stopping

Rows = tuple[NDArray[np.float32], NDArray[np.float32]]  # features [R,F] and readings [R]


@dataclass(frozen=True)
class Trees:
    """A Baseline for the nodes it was fitted on; roads may change."""

    booster: Any  # lightgbm.Booster
    objective: str
    validation_mae: float  # at the best tree, in the user's unit
    profile: Tensor  # [BINS,N] of each seen sensor; NaN at other nodes
    length_scale_m: float
    min_value: float  # 0 for counts
    readings: bool  # whether features include readings

    def __call__(self, batch: Batch) -> Tensor:
        """[B,H,N] in the user's unit."""
        require_same_nodes("LightGBM", self.profile, batch)
        device = batch.values.device
        N = batch.num_nodes
        nodes = torch.arange(N, device=device)
        steps = torch.arange(batch.horizon, device=device)
        profile = self.profile.to(device)
        parts = []
        for window in batch.split(1):  # one at a time: the rows of a window take about ten megabytes
            x = features(
                window, profile, length_scale_m=self.length_scale_m, steps=steps, nodes=nodes, readings=self.readings
            )
            forecast = self.booster.predict(x.flatten(0, 1).cpu().numpy(), num_threads=torch.get_num_threads())
            parts.append(torch.from_numpy(forecast).view(1, len(steps), N))
        return torch.cat(parts).to(batch.values).clamp(min=self.min_value)


def fit_trees(
    windows: Windows,
    split: Split,
    task: Task,
    *,
    seed: int,
    objective: str | None = None,
    rows: int = ROWS,
    trees: int = 400,
    leaves: int = 63,
    masks: NDArray[np.bool_] | None = None,
    readings: bool = True,
) -> Trees:
    """Fit at training nodes and times; early stopping and the objective go by MAE at validation nodes and times.

    Without an `objective`, counts are fitted with both and the better one is kept; other quantities with L1. Two cores
    forecast about 180,000 rows per second with 70 trees of 63 leaves, and 70,000 with 260. If the windows have demand
    tables, `masks` [C,N] are the sensors that each table does not know; these sets are then hidden. Without `readings`,
    the features are those of the map and the clock.
    """
    stream = windows.stream
    if objective not in (None, L1, POISSON):
        raise SettingsError(f'objective = "{objective}": choose one of {L1}, {POISSON}')
    if objective == POISSON and stream.quantity != "count":
        raise SettingsError(f'objective = "{POISSON}" is for counts, this is "{stream.quantity}". Use {L1}')
    try:
        import lightgbm
    except ImportError:
        raise MissingExtraError("lightgbm", "trees") from None
    rng = generator(seed, Draw.TREES)
    stopping = split.validation if split.validation.any() else _some_of(split.seen, rng)
    seen = replace(stream, observed=stream.observed & split.seen)
    draw = _RowSampler(
        windows,
        profile=fit_own_median(seen, split, otherwise=np.nan).profile.to(windows.device),
        length_scale_m=float(torch.cat([topology.length_m for topology in windows.topologies]).median()),
        inputs=split.seen & ~stopping,
        task=task,
        masks=masks,
        readings=readings,
    )
    train = draw.rows(rng, split.train, draw.inputs, hide=HIDDEN, max_rows=rows)
    check = draw.rows(rng, split.validate, stopping, hide=None, max_rows=rows // 5)
    chosen = (objective,) if objective else (L1, POISSON) if stream.quantity == "count" else (L1,)
    fitted = [(name, *_boost(lightgbm, train, check, name, seed=seed, trees=trees, leaves=leaves)) for name in chosen]
    name, booster, mae = min(fitted, key=lambda each: each[2])
    min_value = 0.0 if stream.quantity == "count" else -np.inf
    return Trees(booster, name, mae, draw.profile, draw.length_scale_m, min_value, readings)


def _some_of(seen: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """A fifth of the seen nodes for early stopping; at least one, and never all."""
    nodes = rng.permutation(np.flatnonzero(seen))
    some = np.zeros(len(seen), bool)
    some[nodes[: max(1, round(STOPPING_SHARE * len(nodes)))]] = len(nodes) > 1
    return some


@dataclass(frozen=True)
class _RowSampler:
    """Draws rows to train on."""

    windows: Windows
    profile: Tensor
    length_scale_m: float
    inputs: NDArray[np.bool_]  # [N] sensors that may be visible
    task: Task
    masks: NDArray[np.bool_] | None
    readings: bool

    def rows(
        self,
        rng: np.random.Generator,
        period: Period,
        targets: NDArray[np.bool_],
        *,
        hide: tuple[float, float] | None,
        max_rows: int,
    ) -> Rows:
        """Rows of the targets in random windows of the period; with `hide`, a random share of them, which is hidden."""
        device = self.windows.device
        share = 1.0 if hide is None else sum(hide) / 2
        past = self.task.past
        horizon = self.task.horizon
        inputs = torch.from_numpy(self.inputs).to(device)
        current = rng.permutation(windows_in(period, past=past, horizon=horizon))
        enough = int(max_rows / max(1.0, share * STEPS * int(targets.sum())))
        xs = []
        ys = []
        for at in current[: max(1, enough)]:
            asked = targets
            hidden = None
            which = None
            if hide is not None and self.masks is None:
                asked = targets & (rng.random(len(targets)) < rng.uniform(*hide))
                hidden = torch.from_numpy(asked)[None].to(device)
            elif hide is not None and self.masks is not None:
                mask = int(rng.integers(0, len(self.masks)))
                asked = targets & self.masks[mask]
                which = torch.tensor([mask], device=device)
                hidden = torch.from_numpy(self.masks[mask])[None].to(device)
            batch = self.windows.batch(at[None], past=past, horizon=horizon, inputs=inputs, hidden=hidden, demand=which)
            nodes = torch.from_numpy(np.flatnonzero(asked)).to(device)
            steps = torch.from_numpy(np.sort(rng.permutation(horizon)[:STEPS])).to(device)
            for row in batch.split(1):
                assert row.target is not None and row.target_observed is not None
                made = features(
                    row,
                    self.profile,
                    length_scale_m=self.length_scale_m,
                    steps=steps,
                    nodes=nodes,
                    readings=self.readings,
                )
                there = row.target_observed[0, steps][:, nodes]
                xs.append(made[there].cpu().numpy())
                ys.append(row.target[0, steps][:, nodes][there].cpu().numpy())
        x, y = (np.concatenate(parts) if parts else np.empty(0, np.float32) for parts in (xs, ys))
        if len(y) == 0:
            raise SettingsError(
                f"none of {int(targets.sum())} nodes has a reading in the windows drawn from snapshots {period[0]} to "
                f"{period[1] - 1}. Use another seed, or more data"
            )
        return x, y


def _boost(
    lightgbm: Any, train: Rows, check: Rows, objective: str, *, seed: int, trees: int, leaves: int
) -> tuple[Any, float]:
    """The booster up to its best tree, and its MAE there."""
    settings = {
        "objective": objective,
        "metric": "l1",
        "num_leaves": leaves,
        "learning_rate": 0.05,
        "max_bin": 63,
        "min_data_in_leaf": min(200, max(1, len(train[1]) // 100)),
        "feature_fraction": 0.5,
        "bagging_fraction": 0.5,
        "bagging_freq": 1,
        "seed": seed,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
        "num_threads": torch.get_num_threads(),  # never more: LightGBM's idle threads spin
    }
    data = lightgbm.Dataset(*train, params=settings)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    validation = lightgbm.Dataset(*check, reference=data)
    booster = lightgbm.train(settings, data, trees, valid_sets=[validation], callbacks=[stop])
    return booster, float(booster.best_score["valid_0"]["l1"])


def features(
    window: Batch,
    profile: Tensor,
    *,
    length_scale_m: float,
    steps: Tensor,
    nodes: Tensor,
    readings: bool = True,
) -> Tensor:
    """[S,n,F] features of one window; NaN where unknown."""
    [(topology, _)] = last_topologies(window)
    hours = hourly_bins(window.time_future[0, steps])  # [S]
    of_step = torch.cat([steps[:, None] + 1, calendar(window.time_future[0, steps]), hours[:, None] % HOURS], 1)
    roads = topology.road_features
    if not readings:
        times = of_step[:, None].expand(-1, len(nodes), -1)
        return torch.cat([times, roads[nodes].expand(len(steps), -1, -1)], dim=-1)
    values = window.values.where(window.observed, 0.0)
    mean, known = (x[0] for x in window_means(window))  # [N]
    at = torch.arange(1, window.past + 1, device=mean.device)[:, None]
    latest = values[0].gather(0, (window.observed[0] * at).argmax(0, keepdim=True))[0]  # [N]
    usual = profile[hours]  # [S,N]

    sensor = topology.near_sensor[nodes]
    distance_m = topology.near_distance_m[nodes]  # [n,M]
    visible = known[sensor] & torch.isfinite(distance_m)
    unlike = (roads[nodes][:, None] - roads[sensor]).square().sum(-1) / max(1, roads.shape[1])  # [n,M]
    kernels, density = kernel_weights(distance_m, unlike, visible, length_scale_m=length_scale_m)
    of_near = torch.stack([mean[sensor], latest[sensor]])  # [2,n,M]
    usual_near = usual[:, sensor]  # [S,n,M]
    first = torch.argsort(~visible, dim=1, stable=True)[:, :NEAREST]  # [n,k] the nearest visible ones

    def nearest(x: Tensor) -> Tensor:  # [...,n,M] -> [...,n,k]
        return x.where(visible, torch.nan).gather(-1, first.expand(*x.shape[:-1], -1))

    whole_city = torch.stack([usual.where(known, torch.nan).nanmean(1), mean[known].mean().expand(len(steps))], 1)
    of_node = [
        density,
        *weighted(kernels, of_near),
        nearest(distance_m),
        *nearest(of_near),
        moments(window, values)[nodes, 0],
        roads[nodes],
    ]
    of_both = [weighted(kernels, usual_near), nearest(usual_near)]
    if window.demand is not None and window.demand_node is not None:
        of_node.append(window.demand_node[0, nodes])
        of_both.append(window.demand[0, steps][:, nodes, None])
    return torch.cat(
        [
            torch.cat([of_step, whole_city], 1)[:, None].expand(-1, len(nodes), -1),
            torch.cat(of_node, 1).expand(len(steps), -1, -1),
            *of_both,
        ],
        dim=-1,
    )


def kernel_weights(
    distance_m: Tensor, unlike: Tensor, visible: Tensor, *, length_scale_m: float
) -> tuple[Tensor, Tensor]:
    """[n,M,G] weights scaled to a maximum of 1, 0 where not visible; and [n,G] the sum of the unscaled weights."""
    bandwidth_m = length_scale_m * torch.tensor(BANDWIDTHS, device=distance_m.device)
    by_distance = -distance_m[..., None] / bandwidth_m
    by_roads = by_distance[..., -1:] - unlike[..., None] * torch.tensor(LIKENESS, device=distance_m.device)
    logits = torch.cat([by_distance, by_roads], -1).masked_fill(~visible[..., None], -torch.inf)
    largest = logits.amax(1, keepdim=True)  # subtracted: a kernel far narrower than the distances would underflow
    return torch.exp(logits - largest.where(torch.isfinite(largest), 0.0)), torch.exp(logits).sum(1)


def weighted(weights: Tensor, x: Tensor) -> Tensor:
    """[...,n,G] weighted means of the known values of x [...,n,M]."""
    there = torch.isfinite(x)
    total = torch.einsum("nmg,...nm->...ng", weights, x.where(there, 0.0))
    weight = torch.einsum("nmg,...nm->...ng", weights, there.to(x.dtype))
    return total / weight.where(weight > 0, torch.nan)
