"""What the models cost, compared with the paper's numbers: parameters, on two networks of different size (tab:params),
and seconds to forecast all nodes of the city once (tab:inference).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from frigate.city.network import RoadNetwork
from frigate.city.split import Split, windows_in
from frigate.city.stream import RoadNetworkStream
from frigate.config import BASELINES, PRESETS, Settings, change, preset
from frigate.demand.settings import DemandSettings
from frigate.evaluation.evaluate import forecaster_of
from frigate.experiments import plots
from frigate.experiments.plan import LABELS, Plan
from frigate.experiments.table import Cell, ResultTable, Row
from frigate.nn.batch import Batch
from frigate.nn.device import best_device
from frigate.nn.scaling import fit_scaling
from frigate.roads.feature_cache import ensure_road_features
from frigate.training.environment import environment
from frigate.training.run import RunOnCity, build_model, has_demand
from frigate.training.train import new_run

PAPER_PARAMETERS = {  # tab:params
    "paper": 198985,
    "dcrnn": 372353,
    "stnn": 313906,
    "graph-wavenet": 247660,
    "stgode": 558582,
    "localegn": 333636,
}
IN_PAPER, PAPER_COLOUR = "in the paper", "#c9ced6"  # the paper's bars


def measure_parameters(plan: Plan) -> ResultTable:
    """Count the parameters of every model, built for the city and for half of it."""
    whole = plan.city.stream.slice(0, 1)  # readings do not matter
    half = western_half(whole)
    rows: list[Row] = []
    for model in plan.wanted(*PRESETS, *BASELINES):
        ours, of_half = (count_parameters(preset(model), stream) for stream in (whole, half))
        paper = PAPER_PARAMETERS.get(model)
        row: Row = {"model": LABELS[model], "parameters": ours, "parameters_half": of_half, "paper": paper}
        rows.append(row | {"of_paper_percent": None if paper is None else 100 * ours / paper})
    return ResultTable.make("parameters", rows, whole=whole.num_nodes, half=half.num_nodes)


def count_parameters(settings: Settings, stream: RoadNetworkStream) -> int:
    """The parameters of a model as training would build it for this stream."""
    none = np.zeros(stream.num_nodes, bool)
    split = Split(stream.sensors, none, none, (0, stream.num_snapshots), (0, 0), (0, 0))
    scaling = fit_scaling(stream, split, settings.model, features=None, seed=settings.train.seed)
    if has_demand(settings, stream):
        scaling = replace(scaling, demand=DemandSettings())
    return sum(parameter.numel() for parameter in build_model(settings, scaling).parameters())


def western_half(stream: RoadNetworkStream) -> RoadNetworkStream:
    """The stream of the western half of the nodes, with the roads between them, on the latest network."""
    network = stream.network
    rows = np.sort(np.argsort(network.lon, kind="stable")[: (network.num_nodes + 1) // 2])
    edges = network.edges.take(np.isin(network.senders, rows) & np.isin(network.receivers, rows))
    senders, receivers = (np.searchsorted(rows, ends) for ends in (edges.senders, edges.receivers))
    edges = replace(edges, senders=senders, receivers=receivers)
    part = RoadNetwork(network.node_ids[rows], network.lon[rows], network.lat[rows], edges, network.present[rows])
    return stream.on(part)


def draw_parameters(table: ResultTable) -> plots.Figure:
    """A bar for each model, and a grey one below it if the paper has a number."""
    figure, ax = bars_beside_paper(table, ("parameters",), "paper")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set(xlabel="parameters")
    return figure


def bars_beside_paper(
    table: ResultTable, ours: tuple[str, ...], paper: str, *, scale: float = 1.0
) -> tuple[plots.Figure, plots.Axes]:
    """A bar for each model, and the paper's below it in grey; `ours` names the value column, and maybe low and high."""
    bars: list[tuple[str, list[Cell]]] = []
    for row in table.rows:
        bars.append((str(row["model"]), [row[column] for column in ours]))
        if row[paper] is not None:
            bars.append((IN_PAPER, [row[paper], None, None][: len(ours)]))
    names = [name for name, _ in bars]
    figure, (ax,) = plots.figure(7.0, 0.6 + 0.36 * len(names))
    colours = [PAPER_COLOUR if name == IN_PAPER else plots.look(name)[0] for name in names]
    values, *ends = scale * np.array([cells for _, cells in bars], float).T  # None becomes NaN
    low, high = ends or (None, None)
    plots.bars(ax, names, values, low=low, high=high, colours=colours)
    return figure, ax


PAPER_S = {"dcrnn": 0.0081, "stgode": 0.0164, "paper": 0.0207, "stnn": 0.0375, "localegn": 0.0492}  # tab:inference


def measure_time(plan: Plan) -> ResultTable:
    """Time each model on the last window of the test period."""
    device = best_device(plan.device)
    city = plan.city
    models = plan.wanted(*PRESETS, *BASELINES)
    if any(preset(model).model.roads for model in models):
        plan = replace(plan, city=ensure_road_features(city))
    rows: list[Row] = []
    for model in models:
        run = untrained(plan, model)
        predictor = forecaster_of(run, device).predictor
        seconds = timed(predictor, last_batch(run, device), times=plan.effort.timings)
        low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
        row: Row = {"model": LABELS[model], "median_s": median, "low_s": low, "high_s": high}
        rows.append(row | {"timings": plan.effort.timings, "paper_s": PAPER_S.get(model)})
    task = preset(PRESETS[0]).task
    machine = environment(device)
    network = city.network
    more = {"environment": machine, "nodes": network.num_nodes, "roads": network.num_edges}
    known = {"hardware": machine["hardware"], "bf16": ", bf16 where autocast allows" if device.type == "cuda" else ""}
    known |= {"city": city.name, "past": task.past, "horizon": task.horizon, "device": machine["device"]}
    return ResultTable.make("inference-time", rows, more, nodes=network.num_nodes, roads=network.num_edges, **known)


def untrained(plan: Plan, model: str) -> RunOnCity:
    """The model as it is before training on the plan's sensors."""
    recipe = plan.recipe(model)
    settings = replace(preset(model), task=plan.settings(recipe).task)
    settings = change(settings, {"train": {"seed": recipe.seed}})
    return new_run(plan.city, seen=plan.sensors(recipe), settings=settings)


def last_batch(run: RunOnCity, device: torch.device) -> Batch:
    """The last window of the test period, on the device; no other snapshots are copied there."""
    task = run.settings.task
    stream = run.city.stream
    last = int(windows_in(run.split.test, past=task.past, horizon=task.horizon)[-1])
    part = stream.slice(last + 1 - task.past, last + 1 + task.horizon)
    windows = replace(run, city=replace(run.city, stream=part)).windows(device)
    inputs = torch.from_numpy(run.split.seen).to(device)
    return windows.batch(np.array([task.past - 1]), past=task.past, horizon=task.horizon, inputs=inputs)


def timed(forecast: Callable[[Batch], torch.Tensor], batch: Batch, *, times: int) -> list[float]:
    """Seconds of each of `times` forecasts, including the wait for the device."""
    device = batch.values.device

    def once() -> float:
        began = time.perf_counter()
        forecast(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    with torch.inference_mode():
        for _ in range(math.ceil(times / 5)):  # warm-up: compiles kernels and allocates memory
            once()
        return [once() for _ in range(times)]


def draw_time(table: ResultTable) -> plots.Figure:
    """A bar for each model with quartiles as whiskers, and a grey one below it if the paper has a time."""
    figure, ax = bars_beside_paper(table, ("median_s", "low_s", "high_s"), "paper_s", scale=1000)
    ax.set(xlabel="ms for one forecast of all nodes (the paper: its own data and hardware)")
    return figure
