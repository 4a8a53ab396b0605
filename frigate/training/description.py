"""run.json: everything about a run except its tensors, with digests of itself and of the tensor files.

A description that differs from what was written is rejected. The digest detects damage; every field is validated as
well, because a digest does not protect against deliberate edits.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import local_iso
from frigate.city.city_toml import whole_step
from frigate.city.network import Edges, RoadNetwork
from frigate.city.split import NODES, PERIODS, Split
from frigate.city.stream import parse_quantity
from frigate.config import BaselineSettings, Settings, is_a, made_of, require, require_kinds
from frigate.coordinates import on_earth
from frigate.errors import CheckpointError, FrigateError
from frigate.nn.scaling import Scaling
from frigate.training.environment import versions
from frigate.training.run import Run, TrainedOn, TrainingState

FORMAT = 6
DESCRIPTION = "run.json"


def write_description(run: Run, at: Path, folder: Path) -> None:
    """Write run.json next to the tensors in the checkpoint folder `at`, which will end up in the run's `folder`."""
    city = run.trained_on.folder
    # Relative to the run, so that both can be moved together.
    where = None if city is None else os.path.relpath(city.resolve(), folder.resolve())
    best_mae = run.progress.best_mae if math.isfinite(run.progress.best_mae) else None  # JSON has no infinity
    data = {
        "format": FORMAT,
        "settings": run.settings.to_json(),
        "scaling": run.scaling.to_json(),
        "split": run.split.to_json(run.nodes.node_ids),
        "progress": vars(run.progress) | {"best_mae": best_mae},
        "city": vars(run.trained_on) | {"folder": where, "lon": run.nodes.lon.tolist(), "lat": run.nodes.lat.tolist()},
        "versions": versions(),
        "files": {path.name: digest(path.read_bytes()) for path in sorted(at.iterdir())},
    }
    (at / DESCRIPTION).write_text(json.dumps(sealed(data), indent=1, allow_nan=False), encoding="utf-8")


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """The description with its digest added."""
    return data | {"digest": digest(json.dumps(data, sort_keys=True, separators=(",", ":")).encode())}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_description(at: Path) -> dict[str, Any]:
    """The description in a checkpoint folder, digest verified."""
    path = at / DESCRIPTION
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}. Train again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: not a run's description. Train again")
    if data.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format {data.get('format')!r}, this version reads {FORMAT}. Train again")
    kept = data.pop("digest", None)
    if sealed(data)["digest"] != kept:
        raise CheckpointError(f"{path}: damaged, or changed since it was written. Copy the run again, or train again")
    return data


def parse_settings(data: dict[str, Any]) -> Settings:
    stored = data["settings"]
    settings = Settings.from_json(stored)
    for part, values in settings.to_json().items():
        require(set(stored[part]) == set(values), part, [*stored[part]], f"give exactly {', '.join(values)}")
    return settings


def parse_run(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The fields of the `Run` in a folder, except the model and the tensors."""
    settings = parse_settings(data)
    scaling = Scaling.from_json(data["scaling"])
    _check_scaling(scaling, settings)
    facts = dict(data["city"])
    lon, lat = (_numbers(facts.pop(name), name) for name in ("lon", "lat"))
    trained_on = _trained_on(facts, folder, scaling)
    split = {"left_out": []} | data["split"]  # runs of 0.1.0 read every sensor
    node_ids = _node_ids([*split["seen"], *split["unseen"], *split["left_out"]])
    require(
        len(node_ids) == len(lon) == len(lat), "lon, lat", (len(lon), len(lat)), f"give {len(node_ids)}, one a node"
    )
    require(bool(on_earth(lon, lat).all()), "lon, lat", "city", "not places on earth")
    nodes = RoadNetwork(node_ids, lon, lat, Edges.none())
    return {
        "settings": settings,
        "scaling": scaling,
        "nodes": nodes,
        "split": _split(split, node_ids, trained_on.snapshots),
        "trained_on": trained_on,
        "folder": folder,
        "progress": parse_progress(data),
    }


def parse_progress(data: dict[str, Any]) -> TrainingState:
    stored = data["progress"]
    best = stored["best_mae"]
    progress = made_of(TrainingState, stored | {"best_mae": 0.0 if best is None else best})
    require_kinds(progress)
    ok = 0 <= progress.best_epoch <= progress.epoch and progress.best_mae >= 0 and progress.seconds >= 0
    require(ok, "progress", stored, "epochs, errors and seconds are not negative, and the best epoch is one of them")
    return progress if best is not None else replace(progress, best_mae=math.inf)


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn any error about a malformed description into a CheckpointError that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, FrigateError) as error:
        what = str(error) if isinstance(error, FrigateError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path}: {what[:300]}. It is damaged; train again") from None


def _check_scaling(scaling: Scaling, settings: Settings) -> None:
    """Check that anchors, road features and demand match the model's settings."""
    model = settings.model
    anchors = 0 if isinstance(model, BaselineSettings) else model.anchors
    demand = not isinstance(model, BaselineSettings) and model.demand
    found = 0 if scaling.anchors is None else len(scaling.anchors)
    require(found == anchors, "anchors", found, f"the model has {anchors}")
    require((scaling.roads is not None) == model.roads, "roads", scaling.roads, "not as the model's settings say")
    require(scaling.demand is None or demand, "demand", scaling.demand, "the model has none")


def _trained_on(facts: dict[str, Any], folder: Path, scaling: Scaling) -> TrainedOn:
    where = facts["folder"]
    ok = where is None or (is_a(where, "str") and "\0" not in where)
    require(ok, "folder", where, "give the path of a folder, or null")
    excluded = facts["excluded"]
    ok = isinstance(excluded, list) and all(is_a(each, "str") for each in excluded)
    require(ok, "excluded", excluded, "give a list of texts")
    known = made_of(
        TrainedOn, facts | {"folder": None if where is None else folder / where, "excluded": tuple(excluded)}
    )
    for each in fields(known):
        if str(each.type) in ("int", "str"):
            value = getattr(known, each.name)
            require(is_a(value, str(each.type)), each.name, value, "text or a whole number, as the others")
    whole_step(known.step_s, where="step_s")
    require(known.snapshots >= 1, "snapshots", known.snapshots, "must be at least 1")
    require(parse_quantity(known.quantity, where="quantity") == known.quantity, "quantity", known.quantity, "misspelt")
    require(scaling.demand is None or known.quantity == "count", "quantity", known.quantity, "only counts have demand")
    try:
        for time_s in (known.start_s, known.start_s + known.snapshots * known.step_s):
            local_iso(time_s, known.timezone)
    except (OverflowError, OSError):
        require(False, "start_s", known.start_s, "not a time")
    return known


def _split(stored: dict[str, Any], node_ids: NDArray[np.generic], snapshots: int) -> Split:
    for name in (*NODES, *PERIODS):
        require(isinstance(stored[name], list), name, stored[name], "give a list")
    split = Split.from_json(stored, node_ids)
    require(not (split.validation & ~split.seen).any(), "validation", stored["validation"], "some nodes are not seen")
    ends = [end for name in PERIODS for end in stored[name]]
    ok = all(is_a(end, "int") for end in ends) and ends == sorted(ends) and ends[0] >= 0 and ends[-1] <= snapshots
    require(ok, "train, validate, test", ends, f"give snapshots from 0 to {snapshots}, in their order")
    return split


def _node_ids(values: list[Any]) -> NDArray[np.generic]:
    kind = "str" if values and isinstance(values[0], str) else "int"
    for value in values:
        require(is_a(value, kind), "node id", value, "give whole numbers, or texts")
    return np.array(values)


def _numbers(values: list[Any], name: str) -> NDArray[np.float64]:
    for value in values:
        require(is_a(value, "float"), name, value, "give a number")
    return np.array(values, np.float64)
