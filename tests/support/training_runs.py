"""A town to train on, settings for a training of a second, and what a run's folder holds."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from frigate.city.city import City
from frigate.city.network import Edges
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.config import Settings, change, preset
from frigate.roads.feature_cache import ensure_road_features
from frigate.training.hidden_sensors import training_windows
from frigate.training.run import Run
from frigate.training.train import new_run
from frigate.training.trainer import Trainer
from tests.support.towns import START_S, random_network

N, S = 30, 120


@cache
def town(*, quantity: str = "count", attributes: bool = True, seed: int = 0) -> City:
    """A busy and a quiet half of a town, by the hour; readings at three of four nodes."""
    network = random_network(N, seed=seed)
    if not attributes:
        e = network.edges
        network = network.with_roads(Edges.of(e.senders, e.receivers, e.length_m))
    rng = np.random.default_rng([seed, 3])
    level = np.where(network.lon > np.median(network.lon), 12.0, 4.0)
    values = rng.poisson(level * (1.3 + np.sin(2 * np.pi * np.arange(S) / 24))[:, None]).astype(np.float64)
    if quantity != "count":
        values = 60 - values
    values[rng.random((S, N)) < 0.1] = np.nan
    values[:, rng.permutation(N)[: N // 4]] = np.nan
    stream = make_stream(values, network, start_s=START_S, step_s=3600, quantity=quantity)
    return ensure_road_features(City("Town", stream))


def tiny(name: str = "default", *, model: dict[str, Any] | None = None, **training: Any) -> Settings:
    sizes = {"width": 8, "layers": 2, "hidden": 8, **({"anchors": 4} if name == "paper" else {}), **(model or {})}
    steps = {
        "epochs": 3,
        "steps_per_epoch": 2,
        "masks": 3,
        "batch_size": 4,
        "warmup_steps": 2,
        "learning_rate": 5e-3,
        "validation": "seen",
        "validation_windows": 6,
        **training,
    }
    return change(preset(name), {"task": {"past": 4, "horizon": 4}, "model": sizes, "train": steps})


def new_trainer(settings: Settings, quantity: str = "count", *, folder: Path | None = None) -> Trainer:
    """As it stands before its first epoch."""
    run = new_run(town(quantity=quantity), settings=settings, folder=folder)
    return Trainer(run, training_windows(run, "cpu"))


def with_readings(city: City, values: NDArray[Any], observed: NDArray[np.bool_] | None = None) -> City:
    seen = city.stream.observed if observed is None else observed
    return replace(
        city, stream=replace(city.stream, values=np.where(seen, values, 0).astype(np.float32), observed=seen)
    )


def weights(run: Run) -> dict[str, torch.Tensor]:
    return run.model.state_dict()


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def log(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the seconds."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Best weights and all of the state in the last checkpoint of a run."""
    at = max(folder.glob("checkpoint-*"))
    best = load_file(at / "weights.safetensors")
    return {**load_file(at / "state.safetensors"), **{f"best.{k}": v for k, v in best.items()}}


def first_road(city: City) -> tuple[Any, Any]:
    ids = city.stream.node_ids.tolist()
    network = city.network
    return ids[int(network.senders[0])], ids[int(network.receivers[0])]


def garbage(stream: RoadNetworkStream, nodes: NDArray[np.bool_], period: slice = slice(None)) -> NDArray[np.float32]:
    """The values with the readings of these nodes replaced by huge ones."""
    values = stream.values.copy()
    huge = np.random.default_rng(9).uniform(-1e6, 1e6, values.shape)
    values[period, nodes] = np.where(stream.observed, huge, 0)[period, nodes]
    return values
