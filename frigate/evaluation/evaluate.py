"""Judge a forecaster beside the naive ones on the test period, at nodes without sensors and at sensors.

Windows are streamed: each batch is cut once, given to every forecaster, scored and forgotten.
"""

from __future__ import annotations

import copy
import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.baselines.naive import Forecaster, fit_own_median, naive_baselines, seen_median
from frigate.data.city import City
from frigate.data.split import Split, windows_in
from frigate.data.stream import RoadNetworkStream
from frigate.errors import FrigateError, SettingsError
from frigate.evaluation.metrics import Measure, Scores, interval
from frigate.evaluation.results import Evaluation, Row, as_text
from frigate.graph.positions import hops_to
from frigate.nn.batch import Batch, Windows
from frigate.nn.partition import forecast_bytes, in_blocks
from frigate.nn.scaling import NEAR_SENSORS
from frigate.training.checkpoint import Run, load_run
from frigate.training.train import best_device, run_notices, run_windows
from frigate.training.trainer import memory_limit

ZERO = "zero"
NONE = "constant median"  # E_none: no knowledge of the node
OWN = "own median (a sensor there)"  # E_own: what a sensor at the node would have given
TERCILES = ("low", "medium", "high", "no training reading")
HOPS = ("1", "2", "3", "4-5", "6-10", ">10", "no road to a sensor")
HOPS_UP_TO = (1, 2, 3, 5, 10)
MAX_WINDOWS = 16  # scored at once: more are no faster
SCORE_TENSORS = 10  # of a node and a step ahead each, in double

Progress = Callable[[int, int], None]  # windows done, windows in all


def evaluate(
    run: Run,
    *,
    stride: int = 1,
    device: str | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    kernels: str = "auto",
) -> Evaluation:
    """Score a run over its test period beside every naive baseline, in the user's unit.

    `batch_size` is how many windows are scored at once; as many as fit into memory where nothing is said.
    """
    at = best_device(device)
    first, stop = run.split.test
    if first < 0 or stop > run.city.stream.num_snapshots:
        raise SettingsError("the city lacks some or all of the run's test period. Give a city that has those readings")
    evaluation = evaluate_forecaster(
        forecaster(run, at, kernels=kernels),
        run.city,
        run.split,
        run_windows(run, at),
        name=run.settings.model.label,
        past=run.settings.task.past,
        horizon=run.settings.task.horizon,
        stride=stride,
        seed=run.settings.train.seed,
        batch_size=windows_at_once(run, at) if batch_size is None else batch_size,
        progress=progress,
    )
    return replace(evaluation, note=" ".join(filter(None, [evaluation.note, *_run_notes(run)])))


def _run_notes(run: Run) -> list[str]:
    paper = (
        "The checkpoint was chosen at the unseen nodes (validation = unseen, as in the paper): scores are flattered."
    )
    return [*run_notices(run), *([paper] if run.settings.train.validation == "unseen" else [])]


def forecaster(run: Run, device: torch.device, *, kernels: str = "auto") -> Forecaster:
    """The run's model on a device: bf16 on a GPU, counts not below 0."""
    model = copy.deepcopy(run.model).to(device).eval()  # the run's own stays where and as it is
    network, limit = run.city.network, memory_limit(run.settings.train, device)
    least = 0.0 if run.city.stream.quantity == "count" else -torch.inf

    def forecast(batch: Batch) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            result = in_blocks(model, batch, lon=network.lon, lat=network.lat, limit=limit, kernels=kernels)
        return result.clamp(min=least)

    return forecast


def windows_at_once(run: Run, device: torch.device) -> int:
    """How many windows fit into memory, with what the baselines and the scores need of it."""
    stream, task = run.city.stream, run.settings.task
    N, E = stream.num_nodes, max(network.num_edges for network in stream.topologies)
    model = forecast_bytes(run.model, nodes=N, edges=E, past=task.past, horizon=task.horizon)
    window = model + 8 * N * (task.horizon * SCORE_TENSORS + 4 * NEAR_SENSORS)
    return max(1, min(MAX_WINDOWS, memory_limit(run.settings.train, device) // window))


def score(
    forecasters: Mapping[str, Forecaster],
    windows: Windows,
    current: NDArray[np.int64],
    *,
    past: int,
    horizon: int,
    inputs: NDArray[np.bool_],
    step_s: int,
    quantity: str,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> dict[str, Scores]:
    """Scores over the windows whose last past snapshots are `current`; only nodes where `inputs` are read."""
    read = torch.from_numpy(np.asarray(inputs, bool)).to(windows.device)
    scores = {
        name: Scores(horizon=horizon, num_nodes=len(inputs), step_s=step_s, quantity=quantity) for name in forecasters
    }
    with torch.inference_mode():
        for first in range(0, len(current), batch_size):
            some = current[first : first + batch_size]
            batch = windows.batch(some, past=past, horizon=horizon, inputs=read)
            target, target_observed = batch.target, batch.target_observed
            if target is None or target_observed is None:
                raise SettingsError("the windows carry no truth to score against")
            for name, forecaster in forecasters.items():
                scores[name].add(forecaster(batch), target, target_observed)
            if progress is not None:
                progress(first + len(some), len(current))
    return scores


def evaluate_forecaster(
    model: Forecaster,
    city: City,
    split: Split,
    windows: Windows,
    *,
    name: str,
    past: int,
    horizon: int,
    stride: int = 1,
    seed: int = 0,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> Evaluation:
    """Score `model` over the test period beside every naive baseline. All seen nodes are input."""
    if stride < 1:
        raise SettingsError(f"stride = {stride}: must be at least 1")
    stream = city.stream
    current = windows_in(split.test, past=past, horizon=horizon, stride=stride)
    if len(current) == 0:
        raise SettingsError(
            f"the test period has {split.test[1] - split.test[0]} snapshots, but a window takes "
            f"{past} past + {horizon} ahead. Use fewer --past or --horizon, or a longer record"
        )
    baselines = naive_baselines(stream, split)
    own = fit_own_median(stream, split, otherwise=seen_median(stream, split))
    if name in baselines or name == OWN:
        raise SettingsError(f'a model cannot be called "{name}": that is a row of every table')
    scores = score(
        {name: model, **baselines, OWN: own},
        windows,
        current,
        past=past,
        horizon=horizon,
        inputs=split.seen,
        step_s=stream.step_s,
        quantity=stream.quantity,
        batch_size=batch_size,
        progress=progress,
    )
    return Evaluation(
        city=city.name,
        rows=_rows(scores, stream, split, model=name, seed=seed),
        note=_note(scores[name], split),
        seen=tuple(stream.node_ids[split.seen].tolist()),
        unseen=tuple(stream.node_ids[split.unseen].tolist()),
        start=stream.local_time(stream.start_s + split.test[0] * stream.step_s),
        end=stream.local_time(stream.start_s + split.test[1] * stream.step_s),
        windows=len(current),
        stride=stride,
        past=past,
        horizon=horizon,
        step_s=stream.step_s,
        quantity=stream.quantity,
        unit=stream.unit,
        seed=seed,
        node_mae=_node_mae(scores[name]),
    )


def terciles(stream: RoadNetworkStream, split: Split, nodes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N] index into TERCILES of these nodes by their mean training reading; -1 for others.

    Equal means stay together, so a third may be larger than another.
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
    """[N] index into HOPS of these nodes, on the roads of the last test snapshot; -1 for others."""
    network = stream.topologies[int(stream.topology_of[split.test[1] - 1])]
    hops = hops_to(network, split.seen)
    group = np.searchsorted(HOPS_UP_TO, hops, side="left")
    group[hops < 0] = HOPS.index("no road to a sensor")
    return np.where(nodes & (hops != 0), group, -1)


def share_of_sensor(model: Scores, none: Scores, own: Scores, nodes: NDArray[np.bool_], *, seed: int) -> Measure | None:
    """(E_none - E_model) / (E_none - E_own) in MAE; None, undefined, where a sensor would not have helped."""
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
) -> tuple[Row, ...]:
    nodes = split.unseen if scores[model].summary(split.unseen) is not None else split.seen
    tercile, hops = terciles(stream, split, nodes), hop_groups(stream, split, nodes)
    zero_mae, _ = scores[ZERO].mae_draws(nodes, seed=seed)
    rows = []
    for name, these in scores.items():
        mae, _ = these.mae_draws(nodes, seed=seed)
        rows.append(
            Row(
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


def _node_mae(scores: Scores) -> NDArray[np.float64]:
    count, error = scores.cell_sums[:2].sum(1)
    return np.where(count > 0, error / np.maximum(count, 1), np.nan)


def _note(scores: Scores, split: Split) -> str:
    at_sensors = "These scores are at sensors, whose own past is input, and say nothing about nodes without a sensor."
    if not split.unseen.any():
        return f"All nodes with readings are seen: none is left to score without a sensor. {at_sensors}"
    if scores.summary(split.unseen) is None:
        return f"None of the {int(split.unseen.sum())} unseen nodes has a reading to score. {at_sensors}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m frigate.evaluation.evaluate`: what `frigate evaluate` does, on a bare machine."""
    parser = ArgumentParser(prog="python -m frigate.evaluation.evaluate", description="Score a run on the test period.")
    parser.add_argument("run", metavar="RUN", help="a folder that training wrote")
    parser.add_argument("--city", help="use this city, or cache, instead of the run's own")
    parser.add_argument("--stride", type=int, default=1, help="score every so many windows; 1 is all")
    parser.add_argument("--device", help="cpu or cuda; what there is if not said")
    parser.add_argument("--details", action="store_true", help="also by step, by how busy a node is and by roads")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    said = parser.parse_args(arguments)
    try:
        result = evaluate(load_run(said.run, city=said.city), stride=said.stride, device=said.device)
    except FrigateError as error:
        print(f"frigate: {error}", file=sys.stderr)
        return 2
    print(
        json.dumps(result.to_json(), indent=1, allow_nan=False) if said.json else as_text(result, details=said.details)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
