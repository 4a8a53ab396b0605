"""Seconds to forecast all nodes of the city once, for each model, beside the paper's times (tab:inference)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from frigate.config import BASELINES, PRESETS, change, preset
from frigate.data.split import windows_in
from frigate.experiments import plots
from frigate.experiments.parameters import bars_beside_paper
from frigate.experiments.plan import LABELS, Plan
from frigate.experiments.table import Row, Table
from frigate.graph.feature_cache import ensure_road_features
from frigate.nn.batch import Batch
from frigate.nn.device import best_device
from frigate.training.environment import environment
from frigate.training.run import RunOnCity
from frigate.training.train import new_run

PAPER_S = {"dcrnn": 0.0081, "stgode": 0.0164, "paper": 0.0207, "stnn": 0.0375, "localegn": 0.0492}  # tab:inference


def measure(plan: Plan) -> Table:
    """Time each model on the last window of the test period."""
    device, city = best_device(plan.device), plan.city
    models = plan.wanted(*PRESETS, *BASELINES)
    if any(preset(model).model.roads for model in models):
        plan = replace(plan, city=ensure_road_features(city))
    rows: list[Row] = []
    for model in models:
        run = untrained(plan, model)
        seconds = timed(run.predictor(device), last_batch(run, device), times=plan.effort.timings)
        low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
        row: Row = {"model": LABELS[model], "median_s": median, "low_s": low, "high_s": high}
        rows.append(row | {"timings": plan.effort.timings, "paper_s": PAPER_S.get(model)})
    task, where, network = preset(PRESETS[0]).task, environment(device), city.network
    more = {"environment": where, "nodes": network.num_nodes, "roads": network.num_edges}
    known = {"hardware": where["hardware"], "bf16": ", bf16 where autocast allows" if device.type == "cuda" else ""}
    known |= {"city": city.name, "past": task.past, "horizon": task.horizon, "device": where["device"]}
    return Table.make("inference-time", rows, more, nodes=network.num_nodes, roads=network.num_edges, **known)


def untrained(plan: Plan, model: str) -> RunOnCity:
    """The model as training would begin with it on the plan's sensors."""
    recipe = plan.recipe(model)
    settings = replace(preset(model), task=plan.settings(recipe).task)
    settings = change(settings, {"train": {"seed": recipe.seed}})
    return new_run(plan.city, seen=plan.sensors(recipe), settings=settings)


def last_batch(run: RunOnCity, device: torch.device) -> Batch:
    """The last window of the test period, on the device; no other snapshots go there."""
    task, stream = run.settings.task, run.city.stream
    last = int(windows_in(run.split.test, past=task.past, horizon=task.horizon)[-1])
    part = stream.slice(last + 1 - task.past, last + 1 + task.horizon)
    windows = replace(run, city=replace(run.city, stream=part)).windows(device)
    inputs = torch.from_numpy(run.split.seen).to(device)
    return windows.batch(np.array([task.past - 1]), past=task.past, horizon=task.horizon, inputs=inputs)


def timed(forecast: Callable[[Batch], torch.Tensor], batch: Batch, *, times: int) -> list[float]:
    """Seconds of each of so many forecasts, until the device has finished it."""
    device = batch.values.device

    def once() -> float:
        began = time.perf_counter()
        forecast(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    with torch.inference_mode():
        for _ in range(math.ceil(times / 5)):  # kernels are compiled and memory is found in the first
            once()
        return [once() for _ in range(times)]


def draw(table: Table) -> plots.Figure:
    """A bar for each model with the quartiles as whiskers, and below it a grey one where the paper has a time."""
    figure, ax = bars_beside_paper(table, ("median_s", "low_s", "high_s"), "paper_s", scale=1000)
    ax.set(xlabel="ms for one forecast of all nodes (the paper: its own data and hardware)", title=table.title)
    return figure
