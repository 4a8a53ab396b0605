"""A run on a small grid of streets, trained just long enough to forecast."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import frigate as fg
from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.config import change, preset
from frigate.forecasting.result import Forecast
from frigate.training.run import Run
from frigate.training.train import train

START_S = 1_709_510_400  # Monday 2024-03-04 00:00 UTC, 01:00 in Luxembourg
STEP_S = 3600
S = 130
SIDE = 5


def grid(*, first_id: int = 0, text: bool = False, lon: float = 6.0, road_class: str = "primary") -> RoadNetwork:
    """SIDE x SIDE nodes, both directions of every street."""
    ids = np.arange(first_id, first_id + SIDE**2)
    row = np.arange(SIDE**2)
    east = row[row % SIDE < SIDE - 1]
    north = row[row < SIDE * (SIDE - 1)]
    one = np.concatenate([east, north])
    other = np.concatenate([east + 1, north + SIDE])
    senders = np.concatenate([one, other])
    receivers = np.concatenate([other, one])
    length_m = 100.0 + 10 * (senders + receivers)
    edges = Edges.of(senders, receivers, length_m, road_class=np.full(len(senders), road_class))
    return RoadNetwork(
        np.array([f"n{i}" for i in ids]) if text else ids,
        np.asarray(lon + 0.002 * (row % SIDE), np.float64),
        np.asarray(49.0 + 0.002 * (row // SIDE), np.float64),
        edges,
    )


def readings(network: RoadNetwork, *, seed: int = 0, quantity: str = "count") -> RoadNetworkStream:
    rng = np.random.default_rng(seed)
    hour = np.arange(S)[:, None] % 24
    level = rng.uniform(1, 20, network.num_nodes)
    values = rng.poisson(level * (1.2 + np.sin(hour * 2 * np.pi / 24))).astype(np.float64)
    values[rng.random(values.shape) < 0.1] = np.nan
    values[:, -4:] = np.nan  # four nodes never have a reading
    return make_stream(
        values,
        network,
        start_s=START_S,
        step_s=STEP_S,
        timezone="Europe/Luxembourg",
        quantity=quantity,
        unit="vehicles",
    )


@cache
def small_city(text: bool = False, quantity: str = "count") -> City:
    return City("Grid", readings(grid(text=text), quantity=quantity))


@cache
def small_run(name: str = "default", text: bool = False, quantity: str = "count") -> Run:
    model = {"width": 8, "layers": 2, "hidden": 8, **({"anchors": 4} if name == "paper" else {})}
    task = {"past": 4, "horizon": 3}
    training = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 4, "masks": 3}
    settings = change(preset(name), {"model": model, "task": task, "train": training})
    run = train(small_city(text, quantity), seen=0.5, settings=settings, device="cpu")
    run.model.trust_correction(1.0)  # so little training earns no trust, and without any the network has no effect
    return run


def forecast(run: Run, *arguments: Any, **options: Any) -> Forecast:
    """On the city of `small_run`, unless another is given: it is in memory, so that the run cannot open it."""
    if len(arguments) < 2 and "stream" not in options:
        options["stream"] = small_city(run.nodes.node_ids.dtype.kind == "U", run.trained_on.quantity)
    return fg.forecast(run, *arguments, **options)
