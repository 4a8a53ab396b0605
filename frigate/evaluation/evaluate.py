"""Scores a forecaster and the naive baselines on the test period, at nodes without sensors and at sensors.

Windows are streamed: each batch is cut once, given to every forecaster, scored and discarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.baselines.boosted_trees import ROWS as TREE_ROWS
from frigate.baselines.boosted_trees import fit_trees
from frigate.baselines.naive import (
    Baseline,
    TimedBaseline,
    fit_own_median,
    naive_baselines,
    own_past_baselines,
    seen_median,
)
from frigate.calendar import KIND, KINDS_OF_DAY
from frigate.city.city import City
from frigate.city.faults import broken_cells
from frigate.city.periods import parse_moment, parse_period, snapshots_in
from frigate.city.split import Period, Split, windows_in
from frigate.city.stream import RoadNetworkStream
from frigate.config import Task, preset
from frigate.errors import SettingsError
from frigate.evaluation.coverage import score_intervals
from frigate.evaluation.metrics import Measure, Scores, interval
from frigate.evaluation.places import node_geh, node_means, skill_of_places, volume_classes
from frigate.evaluation.results import BrokenShare, Comparison, Evaluation, ScoreRow
from frigate.forecasting.forecaster import Forecaster
from frigate.nn.batch import Batch
from frigate.nn.device import best_device
from frigate.nn.network_views import NetworkViews
from frigate.nn.predictor import Predictor
from frigate.nn.scaling import NEAR_SENSORS, Scaling, fit_scaling
from frigate.nn.windows import Windows
from frigate.progress import Progress, plain_progress, print_line
from frigate.roads.feature_cache import features_of
from frigate.roads.nearest_sensors import hops_to
from frigate.training.intervals import DEFAULT_LEVEL
from frigate.training.run import Run, RunOnCity

ZERO = "zero"
NONE = "constant median"  # E_none: nothing is known about the node
OWN = "own median (a sensor there)"  # E_own: what a sensor at the node would give
DEMAND = "demand alone"
LIGHTGBM = "LightGBM"
TERCILES = ("low", "medium", "high", "no training reading")
HOPS = ("1", "2", "3", "4-5", "6-10", ">10", "no road to a sensor")
HOPS_UP_TO = (1, 2, 3, 5, 10)
MAX_WINDOWS = 16  # scored at once; more are not faster
BROKEN = "in broken periods"  # scores beside those of the forecasters
SCORE_TENSORS = 10  # doubles per node and step ahead
FITTED_ROWS_S = 10_000  # rows per second of LightGBM on one core, measured on the demo town
FORECAST_ROWS_S = 40_000  # the same


def evaluate(
    run: Run,
    city: City | str | Path | None = None,
    *,
    stride: int = 1,
    test: str | None = None,
    since: str | None = None,
    lightgbm: bool = False,
    device: str | torch.device | None = None,
    progress: Progress | bool | None = None,
) -> Evaluation:
    """Score a run and every naive baseline over the test period, in the user's unit.

    Parameters
    ----------
    run : Run
        The trained model.
    city : City or path, optional
        A city with the nodes and the test period of the run. Default: the city that the run was trained on, from its
        folder.
    stride : int
        Score every nth window.
    test : str, optional
        The period to score, such as "2024-03-11/2024-03-15". Default: the run's own, the last tenth of its data.
    since : str, optional
        Score what came since a day or a time, such as "2024-03-11", up to the end of the record, instead of `test`.
    lightgbm : bool
        Also fit LightGBM on the run's sensors and training period. Takes minutes on a large city.
    device : str or torch.device, optional
        "cpu" or "cuda". Default: cuda if available.
    progress : callable or bool, optional
        Called with the windows done and the total. True: print a line now and then.

    Returns
    -------
    Evaluation
        A row for the model, for each baseline, and for the yardstick: a sensor at every node.
    """
    device = best_device(device)
    run_on_city = with_test_period(run.on(city), test, since=since)
    first, stop = run_on_city.split.test
    if first < 0 or stop > run_on_city.city.stream.num_snapshots:
        raise SettingsError("the city lacks some or all of the run's test period. Give a city that has those readings")
    shorter = _about_training_period(run_on_city)
    forecaster = forecaster_of(run_on_city, device)
    if isinstance(progress, bool):
        progress = plain_progress("Evaluating", print_line) if progress else None
    evaluation = evaluate_forecaster(
        forecaster.predictor,
        run_on_city.city,
        run_on_city.split,
        forecaster.windows(),
        run.settings.task,
        name=run.settings.model.label,
        stride=stride,
        seed=run.settings.train.seed,
        batch_size=windows_at_once(run_on_city.city.stream, run.settings.task, forecaster.predictor),
        progress=progress,
        beside={LIGHTGBM: fit_lightgbm(run_on_city, device)} if lightgbm else {},
        learned=run.progress.best_epoch > 0,
    )
    notes = [evaluation.note, shorter, _about_test_period(run_on_city), *forecaster.roads_notices]
    if run.progress.best_epoch == 0 and forecaster.demand is not None:
        notes.append("The model is demand alone: nothing was learned.")
    if run.settings.train.validation == "unseen":
        chosen = "The unseen nodes chose the checkpoint (validation = unseen), as in the paper"
        notes.append(f"{chosen}, so the scores are too good.")
    intervals = None
    if run.intervals is not None and run.intervals.allows(DEFAULT_LEVEL):
        seed = run.settings.train.seed
        intervals = score_intervals(forecaster, run_on_city, level=DEFAULT_LEVEL, seed=seed)
    return replace(evaluation, note=" ".join(filter(None, notes)), intervals=intervals)


def forecaster_of(run_on_city: RunOnCity, device: str | torch.device | None) -> Forecaster:
    """The run on this city, reading the seen nodes of its split."""
    memory_gb = run_on_city.settings.train.memory_gb
    return Forecaster(
        run_on_city.run,
        run_on_city.city,
        sensors=run_on_city.split.seen,
        device=device,
        memory_gb=memory_gb,
    )


def with_test_period(run_on_city: RunOnCity, test: str | None, *, since: str | None = None) -> RunOnCity:
    """With another test period, such as "2024-03-11/2024-03-15", or all since a time; None: the run's own."""
    stream = run_on_city.city.stream
    if since is not None:
        if test is not None:
            raise SettingsError("give a test period or the time since when to score, not both")
        start_s = parse_moment(since, stream.timezone, where="since")
        if start_s >= stream.end_s:
            raise SettingsError(
                f'since "{since}": no data since then. The record ends at {stream.local_time(stream.end_s)}'
            )
        period = max(start_s, stream.start_s), stream.end_s
        return replace(run_on_city, split=replace(run_on_city.split, test=snapshots_in(stream, period)))
    if test is None:
        return run_on_city
    first, stop = snapshots_in(stream, parse_period(test, stream.timezone, where="test"))
    if first == stop:
        record = f"{stream.local_time(stream.start_s)} to {stream.local_time(stream.end_s)}"
        raise SettingsError(f'test "{test}": no data in this period. Give a period in {record}')
    return replace(run_on_city, split=replace(run_on_city.split, test=(first, stop)))


def _about_test_period(run_on_city: RunOnCity) -> str:
    """A note on a test period that misses a kind of day, or that the model was trained on."""
    split = run_on_city.split
    task = run_on_city.settings.task
    stream = run_on_city.city.stream
    scored = stream.wall_clock[split.test[0] + task.past : split.test[1], KIND] == KINDS_OF_DAY.index("weekend")
    said = []
    for kind, missing in (("weekday", scored.all()), ("weekend", not scored.any())):
        if missing:
            said.append(f"The test period has no {kind}, so forecasts for such days are not tested. See --test.")
    if split.test[0] < split.train[1]:
        said.append(
            "The model was trained on some of the test period, so the scores at sensors and of the yardstick are too "
            "good."
        )
    return " ".join(said)


def fit_lightgbm(run_on_city: RunOnCity, device: torch.device) -> tuple[Baseline, Windows]:
    """LightGBM for a run's sensors, periods and seed, with road features but without demand; and its windows."""
    stream = run_on_city.city.stream
    split = run_on_city.split
    seed = run_on_city.settings.train.seed
    features = features_of([run_on_city.usual_roads.map], run_on_city.city)[0]
    scaling = fit_scaling(stream, split, preset("default").model, features=features, seed=seed)
    windows = windows_without_demand(run_on_city.city, split, scaling, device)
    return fit_trees(windows, split, run_on_city.settings.task, seed=seed), windows


def windows_without_demand(city: City, split: Split, scaling: Scaling, device: torch.device) -> Windows:
    """A city as the input of a model without demand."""
    usual = city.stream.usual_network(split.train)
    views = NetworkViews.of_scaling(scaling, usual, device, sensors=split.seen, city=city)
    return Windows(city.stream, views)


def lightgbm_seconds(run_on_city: RunOnCity, *, stride: int = 1) -> float:
    """Estimated time to fit and score LightGBM on this machine."""
    stream = run_on_city.city.stream
    split = run_on_city.split
    task = run_on_city.settings.task

    def windows(period: Period) -> int:
        return len(windows_in(period, past=task.past, horizon=task.horizon))

    rows = min(TREE_ROWS, windows(split.train) * int(split.seen.sum())) * (2 if stream.quantity == "count" else 1)
    scored = windows(split.test) / max(1, stride) * task.horizon * stream.num_nodes
    return (rows / FITTED_ROWS_S + scored / FORECAST_ROWS_S) / torch.get_num_threads()


def _about_training_period(run_on_city: RunOnCity) -> str:
    """A note on a city that lacks some of the run's training period, which the baselines are fitted on."""
    first, stop = run_on_city.split.train
    whole = run_on_city.run.split.train
    left = stop - first
    length = whole[1] - whole[0]
    if not run_on_city.city.stream.observed[first:stop, run_on_city.split.seen].any():
        raise SettingsError(
            "the city has no readings from the run's training period, which the baselines are fitted on. "
            "Give a city that has those readings"
        )
    lost = f"The city lacks the first {length - left} of the {length} snapshots of the training period"
    return f"{lost}: baselines are fitted on the rest." if left < length else ""


def windows_at_once(stream: RoadNetworkStream, task: Task, predictor: Predictor) -> int:
    """How many windows fit into memory at once, together with the baselines and scores."""
    edges = max(network.num_edges for network in stream.networks)
    beside = 8 * stream.num_nodes * (task.horizon * SCORE_TENSORS + 4 * NEAR_SENSORS)
    fit = predictor.windows_at_once(edges=edges, past=task.past, horizon=task.horizon, beside=beside)
    return min(MAX_WINDOWS, fit)


def score(
    forecasters: Mapping[str, Baseline],
    windows: Windows,
    split: Split,
    task: Task,
    *,
    stride: int = 1,
    batch_size: int = 16,
    progress: Progress | None = None,
    timed: Mapping[str, TimedBaseline] | None = None,
    broken: NDArray[np.bool_] | None = None,
) -> dict[str, Scores]:
    """Scores over the windows of the test period. The inputs are all seen nodes, and no others.

    With `broken` [S,N], readings in periods in which a sensor looks broken, `BROKEN` has those of the first forecaster
    at these readings alone.
    """
    timed = timed or {}
    if stride < 1:
        raise SettingsError(f"stride = {stride}: must be at least 1")
    past = task.past
    horizon = task.horizon
    current = windows_in(split.test, past=past, horizon=horizon, stride=stride)
    if len(current) == 0:
        raise SettingsError(
            f"the test period has {split.test[1] - split.test[0]} snapshots, but a window needs "
            f"{past} past + {horizon} ahead. Use a smaller --past or --horizon, or more data"
        )
    stream = windows.stream
    inputs = torch.from_numpy(split.seen).to(windows.device)
    sizes = {"horizon": horizon, "num_nodes": stream.num_nodes, "step_s": stream.step_s}
    scores = {name: Scores(**sizes, quantity=stream.quantity) for name in (*forecasters, *timed)}
    of_first = next(iter(forecasters))
    if broken is not None:
        scores[BROKEN] = Scores(**sizes, quantity=stream.quantity)
    with torch.inference_mode():
        for first in range(0, len(current), batch_size):
            some = current[first : first + batch_size]
            # Where the roads change ahead, a batch has more rows than windows; each step is scored in one of them.
            for batch in windows.batch(some, past=past, horizon=horizon, inputs=inputs).split(batch_size):
                assert batch.target is not None and batch.target_observed is not None
                at = some if batch.window_of is None else some[batch.window_of.numpy()]
                for name, forecaster in forecasters.items():
                    made = forecaster(batch)
                    scores[name].add(made, batch.target, batch.target_observed)
                    if broken is not None and name == of_first:
                        ahead = torch.from_numpy(broken[at[:, None] + np.arange(1, horizon + 1)])
                        scores[BROKEN].add(made, batch.target, batch.target_observed & ahead.to(windows.device))
                for name, with_time in timed.items():
                    scores[name].add(with_time(batch, at), batch.target, batch.target_observed)
            if progress is not None:
                progress(first + len(some), len(current), "")
    return scores


def evaluate_forecaster(
    model: Baseline,
    city: City,
    split: Split,
    windows: Windows,
    task: Task,
    *,
    name: str,
    stride: int = 1,
    seed: int = 0,
    batch_size: int = 16,
    progress: Progress | None = None,
    beside: Mapping[str, tuple[Baseline, Windows]] | None = None,
    learned: bool = True,
) -> Evaluation:
    """Score `model` and every naive baseline over the test period. All seen nodes are inputs.

    `beside` are further forecasters with windows of their own. A model that has not `learned` anything forecasts what
    demand does, which then is no baseline.
    """
    stream = city.stream
    baselines = naive_baselines(city.stream, split)
    own_past, timed = own_past_baselines(stream, split)
    if name in (*baselines, *own_past, *timed, OWN):
        raise SettingsError(f'a model cannot be named "{name}": a baseline has that name. Choose another')
    own = fit_own_median(stream, split, otherwise=seen_median(stream, split))
    demand = {DEMAND: demand_alone} if windows.views.demands and learned else {}
    forecasters: dict[str, Baseline] = {name: model, **demand, **baselines, **own_past, OWN: own}
    score_all = partial(score, split=split, task=task, stride=stride, batch_size=batch_size)
    broken = broken_cells(stream, np.flatnonzero(split.seen | split.unseen))
    broken[: split.test[0]] = False
    broken[split.test[1] :] = False
    scores = score_all(forecasters, windows, progress=progress, timed=timed, broken=broken if broken.any() else None)
    at_broken = scores.pop(BROKEN, None)
    for other, (forecaster, own_windows) in (beside or {}).items():
        scores |= score_all({other: forecaster}, own_windows)
    order = [name, *(beside or {}), *demand, *baselines, *own_past, *timed, OWN]
    rows = _rows({each: scores[each] for each in order}, stream, split, model=name, seed=seed)
    at_sensors = {*own_past, *timed} if rows[0].unseen is not None else set()
    kept = tuple(row for row in rows if row.name not in at_sensors)
    best = _minus_best(scores, kept, split, seed=seed)
    possible = {"without a sensor": [*baselines], "at sensors": [*baselines, *own_past, *timed]}
    skill, beside_there = skill_of_places(scores, split, model=name, possible=possible)
    return Evaluation(
        city=city.name,
        rows=kept,
        own_past=tuple(_at_sensors_alone(row) for row in rows if row.name in at_sensors),
        minus_best=best,
        note=_note(scores[name], split),
        seen=tuple(stream.node_ids[split.seen].tolist()),
        unseen=tuple(stream.node_ids[split.unseen].tolist()),
        start=stream.local_time(int(stream.times_s[split.test[0]])),
        end=stream.local_time(int(stream.times_s[split.test[1] - 1]) + stream.step_s),
        windows=len(windows_in(split.test, past=task.past, horizon=task.horizon, stride=stride)),
        stride=stride,
        past=task.past,
        horizon=task.horizon,
        step_s=stream.step_s,
        quantity=stream.quantity,
        unit=stream.unit,
        seed=seed,
        broken=None if at_broken is None else _broken_share(scores[name], at_broken, split),
        node_mae=node_means(scores[name], 1),
        node_mean=node_means(scores[name], 4),
        best_node_mae=beside_there if skill else None,
        node_geh=node_geh(scores[name]),
        skill=skill,
        geh_by_volume={
            "unseen": volume_classes(scores[name], split.unseen),
            "at_sensors": volume_classes(scores[name], split.seen),
        },
    )


def _at_sensors_alone(row: ScoreRow) -> ScoreRow:
    """The row of a baseline that repeats a node's own readings: it only has scores at sensors."""
    nothing = tuple(None for _ in row.by_step)
    return replace(
        row, unseen=None, by_step=nothing, by_tercile={}, by_hops={}, share_of_sensor=None, relative_to_zero=None
    )


def _minus_best(
    scores: Mapping[str, Scores], rows: Sequence[ScoreRow], split: Split, *, seed: int
) -> Comparison | None:
    """The model compared with the baseline with the lowest MAE, over the same draws of nodes."""
    model = rows[0]
    nodes = split.unseen if rows[0].unseen is not None else split.seen
    drawn = {row.name: scores[row.name].mae_draws(nodes, seed=seed) for row in rows if row.kind != "yardstick"}
    mae, draws = drawn.pop(model.name)
    if not drawn or not np.isfinite(mae):
        return None
    best = min(drawn, key=lambda name: drawn[name][0])
    return Comparison(best, interval(mae - drawn[best][0], draws - drawn[best][1]))


def demand_alone(batch: Batch) -> Tensor:
    """The forecast of demand, without any learning."""
    assert batch.demand is not None
    return batch.demand


def terciles(stream: RoadNetworkStream, split: Split, nodes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N] index into TERCILES of these nodes by their mean training reading; -1 for others.

    Nodes with equal means stay together, so the thirds may differ in size.
    """
    part = slice(*split.train)
    count = stream.observed[part].sum(0)
    total = np.where(stream.observed[part], stream.values[part], 0).sum(0, dtype=np.float64)
    mean = total / np.maximum(count, 1)
    ranked = nodes & (count > 0)
    group = np.where(nodes, TERCILES.index("no training reading"), -1)
    if ranked.any():
        edges = np.quantile(mean[ranked], [1 / 3, 2 / 3])
        group[ranked] = np.searchsorted(edges, mean[ranked], side="left")
    return group


def hop_groups(stream: RoadNetworkStream, split: Split, nodes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N] index into HOPS of these nodes, on the usual roads; -1 for others."""
    hops = hops_to(stream.usual_network(split.train), split.seen)
    group = np.searchsorted(HOPS_UP_TO, hops, side="left")
    group[hops < 0] = HOPS.index("no road to a sensor")
    return np.where(nodes & (hops != 0), group, -1)


def share_of_sensor(model: Scores, none: Scores, own: Scores, nodes: NDArray[np.bool_], *, seed: int) -> Measure | None:
    """(E_none - E_model) / (E_none - E_own) in MAE; None (undefined) if a sensor would not help."""
    (e_model, draws_model), (e_none, draws_none), (e_own, draws_own) = (
        scores.mae_draws(nodes, seed=seed) for scores in (model, none, own)
    )
    if not e_own < e_none:
        return None
    gap = draws_none - draws_own
    draws = np.where(gap > 0, (draws_none - draws_model) / np.where(gap > 0, gap, 1), np.nan)
    return interval((e_none - e_model) / (e_none - e_own), draws)


def _rows(
    scores: Mapping[str, Scores], stream: RoadNetworkStream, split: Split, *, model: str, seed: int
) -> tuple[ScoreRow, ...]:
    nodes = split.unseen if scores[model].summary(split.unseen) is not None else split.seen
    tercile = terciles(stream, split, nodes)
    hops = hop_groups(stream, split, nodes)
    zero_mae, _ = scores[ZERO].mae_draws(nodes, seed=seed)
    rows = []
    for name, these in scores.items():
        mae, _ = these.mae_draws(nodes, seed=seed)
        rows.append(
            ScoreRow(
                name=name,
                kind="model" if name == model else "yardstick" if name == OWN else "baseline",
                unseen=these.summary(split.unseen, seed=seed),
                at_sensors=these.summary(split.seen, seed=seed),
                by_step=these.by_step(nodes, seed=seed),
                by_tercile=these.by_group(tercile, TERCILES, seed=seed),
                by_hops=these.by_group(hops, HOPS, seed=seed),
                share_of_sensor=share_of_sensor(these, scores[NONE], scores[OWN], split.unseen, seed=seed),
                relative_to_zero=mae / zero_mae if zero_mae > 0 and np.isfinite(mae) else None,
            )
        )
    return tuple(rows)


def _broken_share(scores: Scores, broken: Scores, split: Split) -> BrokenShare | None:
    """How much of the error comes from readings of sensors that look broken then; at the nodes that are scored."""
    nodes = split.unseen if scores.summary(split.unseen) is not None else split.seen
    whole, part = (each.cell_sums.sum(1)[:, nodes] for each in (scores, broken))
    if not part[0].any() or not whole[1].any():
        return None
    cells, error = (float(part[k].sum() / whole[k].sum()) for k in (0, 1))
    rest = float((whole[1] - part[1]).sum() / max(float((whole[0] - part[0]).sum()), 1.0))
    return BrokenShare(int((part[0] > 0).sum()), cells, error, rest)


def _note(scores: Scores, split: Split) -> str:
    at_sensors = "These scores are at sensors, whose past is an input, and say nothing about nodes without a sensor."
    if not split.unseen.any():
        return f"All nodes with readings are seen, so none without a sensor can be scored. {at_sensors}"
    if scores.summary(split.unseen) is None:
        return f"None of the {int(split.unseen.sum())} unseen nodes has a reading to score. {at_sensors}"
    return ""
