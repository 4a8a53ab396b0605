"""Measures speed and memory on this machine, ours and a plain PyTorch Geometric baseline's in the same run.

A training step is the trainer's own: forward, loss, backward, clipping and optimiser, with windows cut from data on the
device. A forecast is of one window with its inputs on the device; it computes the moments, while gates and positions
are precomputed. A live update takes one snapshot as an array on the host and returns the forecast as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frigate.bench.clock import (
    CUDA_PEAK,
    ON_CPU,
    ON_GPU,
    RSS_PEAK,
    Repeats,
    ceilings,
    free_bytes,
    host_ms,
    median_ms,
    peak_bytes,
)
from frigate.bench.pyg_baseline import plain_bytes, plain_copy
from frigate.bench.roofline import Ceilings, Sizes, forecast_work, step_work, work_json
from frigate.bench.synthetic import Size, parse_size, synthetic_demand, synthetic_network, synthetic_run, windows_for
from frigate.city.network import RoadNetwork
from frigate.config import PRESETS, ModelSettings, Settings, change, preset
from frigate.errors import FrigateError, SettingsError
from frigate.forecasting.live import Live
from frigate.nn.batch import Batch
from frigate.nn.device import autocast, best_device
from frigate.nn.forecast_model import ForecastModel, RoadWeights
from frigate.nn.ops import describe_kernels, follow_readings, use_kernels
from frigate.nn.ops.cuda.recording import RecordedFunction
from frigate.nn.windows import Windows
from frigate.roads.features import road_features
from frigate.roads.positions import choose_anchors, distances_m, position_scale_m, positions
from frigate.training.environment import environment
from frigate.training.run import RunOnCity
from frigate.training.trainer import Trainer

AGREE = {"cuda": 0.1, "cpu": 1e-3}  # tolerance of ||ours - baseline|| / ||baseline||: rounding to bf16 and to fp32
NUMBER_BYTES = {"cuda": 2, "cpu": 4}  # bytes of an activation: bf16 and fp32
ANCHORS = 16
CLOCK = {"cuda": "CUDA events; live updates: the host's clock", "cpu": "the host's clock, alternating"}
MAX_WINDOWS = 1024
FIRST = 200  # the snapshot to forecast from; live updates continue from there


def bench(
    *,
    size: str = "chengdu",
    device: str | torch.device | None = None,
    presets: str = "both",
    windows: int | None = None,
    seed: int = 0,
    repeats: Repeats | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure everything. The result can be written as JSON.

    Parameters
    ----------
    size : str
        Size of the synthetic network: "chengdu", "beijing" or a number of nodes.
    device : str or torch.device, optional
        "cpu" or "cuda". Default: cuda if available.
    presets : "paper", "default" or "both"
        Which models.
    windows : int, optional
        Windows per training step. Default: depends on size and device.
    seed : int
        Seed for the network, readings and weights.
    repeats : Repeats, optional
        How often each thing is measured. Default: depends on the device.
    say : callable
        Called with the name of what is measured next.
    """
    sized = parse_size(size)
    command = _command(size, device, presets, windows, seed)
    device = best_device(device)
    if presets not in (*PRESETS, "both"):
        raise SettingsError(f'--preset "{presets}": choose one of {", ".join(PRESETS)}, both')
    if windows is not None and not 1 <= windows <= MAX_WINDOWS:
        raise SettingsError(f"--windows {windows}: use 1 to {MAX_WINDOWS}")
    taken = windows or windows_for(sized, device)
    repeats = repeats or (ON_GPU if device.type == "cuda" else ON_CPU)
    names = PRESETS if presets == "both" else (presets,)
    settings = [change(preset(name), {"train": {"batch_size": taken, "seed": seed}}) for name in names]
    for each in settings:
        _require_memory(each, sized, device, windows=1)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # dropout uses torch's global random state
        torch.manual_seed(seed)
        try:
            reached = ceilings(device) if device.type == "cuda" else None
            measured = {each.model.preset: _measure(each, sized, device, repeats, reached, say) for each in settings}
        except (torch.OutOfMemoryError, MemoryError):
            raise SettingsError(
                f"--size {sized.name}: not enough memory for {taken} windows. Use a smaller --size, or fewer --windows"
            ) from None
    say("positions and road features")
    network = synthetic_network(np.random.default_rng(seed), nodes=sized.nodes, roads=sized.roads)
    return {
        "command": command,
        **environment(device),
        "seed": seed,
        "size": sized.name,
        "nodes": sized.nodes,
        "roads": network.num_edges,
        "past": preset("paper").task.past,
        "horizon": preset("paper").task.horizon,
        "dtype": "bf16 autocast" if device.type == "cuda" else "fp32",
        "kernels": describe_kernels(device),
        "clock": CLOCK[device.type],
        "repeats": asdict(repeats),
        "peak_is": CUDA_PEAK if device.type == "cuda" else RSS_PEAK,
        "ceilings": reached and reached.to_json(),
        **_static(network, seed=seed),
        "presets": measured,
    }


def _measure(
    settings: Settings,
    size: Size,
    device: torch.device,
    repeats: Repeats,
    reached: Ceilings | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    run = synthetic_run(settings, size)
    name = settings.model.preset
    windows = settings.train.batch_size
    ours = run.model.to(device)
    data = run.windows(device)
    baseline, baseline_is = plain_copy(ours)
    say(f"{name}: forecast")
    found = _forecasts(run, ours, baseline, data, repeats)
    say(f"{name}: live update")
    found["ours"]["live_update_ms"] = _live_updates(run, data, repeats)
    found["ours"] |= _demand_update(run, data, repeats)
    say(f"{name}: training step")
    at_once, steps = _steps(run, baseline, data, repeats, size)
    mine, other = (found[way] | steps[way] for way in ("ours", "baseline"))
    faster = {key: _ratio(other[f"{key}_ms"], mine[f"{key}_ms"]) for key in ("step", "forecast", "forecast_graph")}
    faster["step_all_nodes"] = _ratio(other["step_ms"], mine["step_all_nodes_ms"])
    faster["live_update"] = _ratio(other["forecast_ms"], mine["live_update_ms"])
    faster |= dict.fromkeys(("demand_update", "demand_update_graph"))  # the baseline has no equivalent
    assert isinstance(settings.model, ModelSettings)
    sizes = Sizes(
        settings.model,
        settings.task,
        nodes=size.nodes,
        edges=run.city.network.num_edges,
        windows=windows,
        features=data.topologies[0].road_features.shape[1],
        parameters=sum(p.numel() for p in ours.parameters()),
        number=NUMBER_BYTES[device.type],
    )
    targets = int(run.split.training.sum())
    work = {
        "step": work_json(step_work(sizes, targets=targets), reached),
        "forecast": work_json(forecast_work(replace(sizes, windows=1)), reached),
    }
    best = min(filter(None, (mine["forecast_ms"], mine["forecast_graph_ms"])))
    return {
        "windows": windows,
        "windows_at_once": at_once,
        "targets": targets,
        "baseline_is": baseline_is,
        **found,
        "ours": mine,
        "baseline": other,
        "times_faster": faster,
        "work": work,
        "over_floor": {
            "step": _ratio(mine["step_ms"], work["step"]["floor_ms"]),
            "forecast": _ratio(best, work["forecast"]["floor_ms"]),
        },
    }


def _forecasts(
    run: RunOnCity, ours: ForecastModel, baseline: ForecastModel, data: Windows, repeats: Repeats
) -> dict[str, Any]:
    """Forecasts of one window of all nodes, ours and the baseline's; on a GPU also replayed from a CUDA graph."""
    device = data.device
    batch = _window(run, data, FIRST)
    weights = _weights(ours.eval(), data)

    def mine() -> Tensor:
        with torch.inference_mode(), autocast(device):
            made: Tensor = ours(batch, weights=weights)
            return made

    def other() -> Tensor:
        with torch.inference_mode(), autocast(device), use_kernels("reference"):
            made: Tensor = baseline(batch)
            return made

    baseline.eval()
    found: dict[str, Any] = {"difference": _require_same("the baseline and ours", mine(), other(), run)}
    calls = {"ours": mine, "baseline": other}
    times = median_ms(calls, device, warm=repeats.warm, repeats=repeats.forecast)
    for way, call in calls.items():
        found[way] = {"forecast_ms": times[way], "forecast_peak_bytes": peak_bytes(call, device)}
        found[way] |= _replayed(call, run, device, repeats)
    return found


def _replayed(call: Callable[[], Tensor], run: RunOnCity, device: torch.device, repeats: Repeats) -> dict[str, Any]:
    """Time of a forecast replayed from a CUDA graph; None, with the reason, if it cannot be recorded."""
    if device.type != "cuda":
        return {"forecast_graph_ms": None}
    wanted = call()
    try:
        replay = RecordedFunction(call, (), device)
    except RuntimeError as error:
        return {"forecast_graph_ms": None, "forecast_graph_reason": str(error).splitlines()[0]}
    _require_same("a replayed graph and its forecast", replay(), wanted, run)
    times = median_ms({"": replay}, device, warm=repeats.warm, repeats=repeats.forecast)
    return {"forecast_graph_ms": times[""]}


def _live_updates(run: RunOnCity, data: Windows, repeats: Repeats) -> float:
    """Milliseconds to push one snapshot and forecast, with arrays on the host as input and output."""
    stream = run.city.stream
    task = run.settings.task
    device = data.device
    live = Live(run.run, run.city, device=str(device))
    at = count(FIRST)
    before = slice(FIRST - task.past, FIRST)
    live.push(int(stream.times_s[before.start]), stream.values[before], stream.observed[before])

    def update() -> None:
        now = next(at)
        live.push(int(stream.times_s[now]), stream.values[now], stream.observed[now])
        live.forecast()

    time_ms = host_ms(update, warm=repeats.warm, repeats=repeats.live_update)
    batch = _window(run, data, next(at) - 1)
    weights = _weights(run.model, data)
    with torch.inference_mode(), autocast(device):
        full = run.model(batch, weights=weights)[0]
    _require_same("a live update and the full forecast", torch.from_numpy(live.forecast().values), full, run)
    return time_ms


def _demand_update(run: RunOnCity, data: Windows, repeats: Repeats) -> dict[str, float | None]:
    """Milliseconds to update demand to the readings of a window, as before each forecast of `default`.

    On a GPU also replayed from a CUDA graph, as in a live forecast. None for a model without demand.
    """
    found: dict[str, float | None] = {"demand_update_ms": None, "demand_update_graph_ms": None}
    if not (isinstance(run.settings.model, ModelSettings) and run.settings.model.demand):
        return found
    tables = synthetic_demand(data.stream.num_nodes, seed=run.settings.train.seed, device=data.device)
    batch = _window(run, data, FIRST)
    which = torch.zeros(1, dtype=torch.int64, device=data.device)

    clock = torch.cat([batch.time_past, batch.time_future], dim=1)

    def follow() -> Tensor:
        return follow_readings(tables, batch.values, batch.observed, clock, which, None, None)[1]

    with torch.inference_mode():
        calls: dict[str, Callable[[], Tensor]] = {"demand_update_ms": follow}
        if data.device.type == "cuda":
            calls["demand_update_graph_ms"] = RecordedFunction(follow, (), data.device)
        return found | median_ms(calls, data.device, warm=repeats.warm, repeats=repeats.forecast)


def _steps(
    run: RunOnCity, baseline: ForecastModel, data: Windows, repeats: Repeats, size: Size
) -> tuple[int, dict[str, dict[str, Any]]]:
    """How many windows a training step computes at once; and its time and memory, ours and the baseline's.

    Ours decodes only nodes with targets, the baseline all nodes; ours is also measured with all nodes.
    """
    trainers = {
        "ours": Trainer(run, data),
        "all nodes": Trainer(run, data),
        "baseline": Trainer(replace(run, run=replace(run.run, model=baseline)), data),
    }
    trainers["all nodes"].targets_at = torch.arange(size.nodes, device=data.device)
    trainers["baseline"].targets_at = slice(None)
    at_once = trainers["ours"].micro_batch
    _require_memory(run.settings, size, data.device, windows=at_once)
    calls = {way: _stepping(trainer, "reference" if way == "baseline" else "auto") for way, trainer in trainers.items()}
    # Measure the peak in the first step, which records ours on a GPU: replays allocate no memory.
    peaks = {way: peak_bytes(call, data.device) for way, call in calls.items()}
    times = median_ms(calls, data.device, warm=repeats.warm, repeats=repeats.step)
    found = {way: {"step_ms": times[way], "step_peak_bytes": peaks[way]} for way in ("ours", "baseline")}
    found["ours"] |= {"step_all_nodes_ms": times["all nodes"], "step_all_nodes_peak_bytes": peaks["all nodes"]}
    return at_once, found


def _window(run: RunOnCity, data: Windows, current: int) -> Batch:
    """The window that ends at this snapshot, with the sensors as inputs."""
    task = run.settings.task
    inputs = torch.from_numpy(run.split.seen).to(data.device)
    return data.batch(np.array([current]), past=task.past, horizon=task.horizon, inputs=inputs)


def _stepping(trainer: Trainer, kernels: str) -> Callable[[], object]:
    """The trainer's own step, on different windows each time."""
    rng = np.random.default_rng(trainer.settings.seed)
    steps = count()

    def step() -> None:
        current = rng.permutation(trainer.train_at)[: trainer.settings.batch_size]
        with use_kernels(kernels):
            trainer._step(current, rng, next(steps))

    return step


@torch.inference_mode()
def _weights(model: ForecastModel, data: Windows) -> list[RoadWeights]:
    with autocast(data.device):
        return [model.road_weights(topology) for topology in data.topologies]


def _static(network: RoadNetwork, *, seed: int) -> dict[str, Any]:
    """Time positions and road features on the host, after a small network, so that compiling is not timed."""

    def place() -> None:
        metres = distances_m(network, choose_anchors(network, count=ANCHORS, seed=seed))
        positions(metres, position_scale_m(metres))

    found: dict[str, Any] = {"anchors": ANCHORS, "positions_ms": host_ms(place, warm=0, repeats=3)}
    try:
        road_features(synthetic_network(np.random.default_rng(seed), nodes=50, roads=100))
        return found | {"features_ms": host_ms(lambda: road_features(network), warm=0, repeats=1)}
    except FrigateError as error:  # numba is not installed
        return found | {"features_ms": None, "features_reason": str(error).partition(". ")[0]}


def _require_same(what: str, one: Tensor, other: Tensor, run: RunOnCity) -> float:
    """||one - other|| / ||other|| in the model's unit; FrigateError if it is more than rounding."""
    device = other.device
    a = one.to(device).double()
    b = other.double()
    off = float((a - b).norm() / (b - run.scaling.value_offset).norm())
    if not off <= AGREE[device.type]:
        raise FrigateError(f"{what} differ by {off:.2g} of their size, which is more than rounding. Please report this")
    return float(f"{off:.2g}")


def _require_memory(settings: Settings, size: Size, device: torch.device, *, windows: int) -> None:
    free = free_bytes(device)
    assert isinstance(settings.model, ModelSettings)
    number = NUMBER_BYTES[device.type]
    needed = windows * plain_bytes(settings.model, settings.task, nodes=size.nodes, edges=size.roads, number=number)
    if free is not None and needed > free:
        raise SettingsError(
            f"--size {size.name}: a training step of the baseline with {windows} windows at once needs about "
            f"{needed / 2**30:,.0f} GiB, but {free / 2**30:,.0f} GiB are free. Use a smaller --size"
        )


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else round(one / other, 2)


def _command(size: str, device: str | torch.device | None, presets: str, windows: int | None, seed: int) -> str:
    options = {"size": size, "device": device, "preset": presets, "windows": windows, "seed": seed}
    return "frigate bench " + " ".join(f"--{key} {value}" for key, value in options.items() if value is not None)
