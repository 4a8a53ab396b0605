"""The plan of a reproduction: which models, how much effort, which city and which sensors.

A *recipe* is one model fitted on one city with one split and seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frigate.city.city import City
from frigate.city.split import Seen, parse_seen, read_seen_file
from frigate.config import BASELINES, PRESETS, Settings, change, preset
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import NONE, OWN, ZERO

NAIVE = (ZERO, NONE, "clock profile", "nearest sensors", "label propagation")
NEED_DEMAND = ("demand", "lightgbm-demand")
FITTED = ("kriging", "lightgbm-map", "lightgbm", *NEED_DEMAND)  # learned, but not by gradient descent
ALL = (*NAIVE, *FITTED, *BASELINES, *PRESETS, OWN)
LABELS = {
    **BASELINES,
    "paper": "Frigate (paper)",
    "default": "Frigate (default)",
    "lightgbm": "LightGBM",
    "lightgbm-map": "LightGBM, map and clock alone",
    "demand": "Demand alone",
    "lightgbm-demand": "LightGBM with demand",
    OWN: OWN,
}


@dataclass(frozen=True)
class Recipe:
    """A model to fit."""

    model: str  # one of ALL
    seen: float  # share of nodes with a sensor
    seed: int
    layers: int | None = None  # None: the preset's
    without: str = ""  # the part that an ablation replaces
    roads: bool = False  # a baseline with the road features and hiding of `default`

    @property
    def name(self) -> str:
        """The name of its results folder."""
        words = [self.model.partition(" (")[0].replace(" ", "-"), f"{100 * self.seen:g}", str(self.seed)]
        words += ["roads"] if self.roads else []
        words += [f"layers-{self.layers}"] if self.layers is not None else []
        words += [f"without-{self.without}"] if self.without else []
        return "-".join(words)

    @property
    def label(self) -> str:
        """The model's name in tables and plots."""
        known = LABELS.get(self.model, self.model[:1].upper() + self.model[1:])
        return f"{known} + roads, hiding" if self.roads else known

    @property
    def trained(self) -> bool:
        return self.model in PRESETS or self.model in BASELINES


@dataclass(frozen=True)
class Effort:
    """How much work to do. By default, the presets' settings and every test window."""

    changes: dict[str, dict[str, Any]] = field(default_factory=dict)  # to the settings of every trained model
    stride: int = 1  # score every nth test window
    seeds: tuple[int, ...] = (0, 1, 2)
    shares: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    layers: tuple[int, ...] = (1, 2, 4, 6, 8, 10, 12, 16)
    changed_roads: tuple[float, ...] = (0, 2, 5, 10, 20)  # per cent
    anchors: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    timings: int = 20  # per forecast, after a fifth as many to warm up
    trees: int = 400  # maximum, for LightGBM


# Small enough for all experiments on the demo town to take minutes on two cores. The scores show that the code works,
# not which model is better.
QUICK = Effort(
    changes={
        "model": {"width": 16},
        "train": {
            "epochs": 2,
            "steps_per_epoch": 4,
            "batch_size": 3,
            "warmup_steps": 3,
            "learning_rate": 4e-3,
            "validation_windows": 4,
            "masks": 4,
        },
    },
    stride=48,
    seeds=(0,),
    shares=(0.1, 0.5, 0.9),
    layers=(1, 4, 10),
    anchors=(1, 4, 16),
    timings=5,
    trees=40,
)


@dataclass(frozen=True)
class Plan:
    """The city, sensors, effort and results folder of a reproduction."""

    city: City
    results: Path
    seen: float = 0.3
    effort: Effort = field(default_factory=Effort)
    splits: Path | None = None  # a folder of files CITY-SHARE-SEED.txt, used where present
    device: str | None = None
    models: tuple[str, ...] = ()  # fit only these; empty: all

    def recipe(self, model: str, *, seed: int | None = None, **more: Any) -> Recipe:
        return Recipe(model, more.pop("seen", self.seen), self.effort.seeds[0] if seed is None else seed, **more)

    def wanted(self, *models: str) -> list[str]:
        """Those of these models that were asked for and that the city supports: demand needs counts."""
        unsupported = () if self.city.stream.quantity == "count" else NEED_DEMAND
        return [model for model in models if model not in unsupported and (not self.models or model in self.models)]

    def folder(self, recipe: Recipe) -> Path:
        return self.results / "runs" / recipe.name

    def sensors(self, recipe: Recipe) -> Seen:
        """The seen nodes from the split's file, or the share for `train` to draw with the seed."""
        if self.splits is not None:
            path = self.splits / f"{self.city.name}-{100 * recipe.seen:g}-{recipe.seed}.txt"
            if path.is_file():
                return read_seen_file(path, self.city.network)
        return recipe.seen

    def settings(self, recipe: Recipe) -> Settings:
        """The settings to train a recipe with. If it is not trained, only the task matters."""
        model: dict[str, Any] = {**self.effort.changes.get("model", {})}
        train: dict[str, Any] = {**self.effort.changes.get("train", {}), "seed": recipe.seed}
        if recipe.roads:
            hiding = preset("default").train
            model["roads"] = True
            train |= {"hide": hiding.hide, "visible_weight": hiding.visible_weight}
        if "width" in model and recipe.model not in (*BASELINES, "default"):
            model["anchors"] = model["width"] // 2  # positions take a part of the width
        if recipe.layers is not None:
            model["layers"] = recipe.layers
        chosen = preset(recipe.model if recipe.trained else PRESETS[0])
        return change(chosen, {**self.effort.changes, "model": model, "train": train})


def make_plan(
    city: City,
    results: str | Path,
    *,
    seen: str = "30%",
    seeds: str | None = None,
    quick: bool = False,
    splits: str | Path | None = None,
    models: str | None = None,
    batch_size: int | None = None,
    device: str | None = None,
) -> Plan:
    """Make a plan from command-line options, and check them."""
    share = parse_seen(seen)
    if not isinstance(share, float) or share == 1:
        raise SettingsError(f'--seen "{seen}": give a share below 100 %, such as 30%')
    if splits is not None and not Path(splits).is_dir():
        raise SettingsError(f"--splits {splits}: no such folder. Give a folder with files CITY-SHARE-SEED.txt")
    effort = QUICK if quick else Effort()
    if seeds is not None:
        effort = replace(effort, seeds=_parse_seeds(seeds))
    if batch_size is not None:
        size = {"batch_size": batch_size}
        change(preset(PRESETS[0]), {"train": size})  # refuses an invalid size
        effort = replace(effort, changes={**effort.changes, "train": effort.changes.get("train", {}) | size})
    names = tuple(models.split(",")) if models else ()
    for name in names:
        if name not in ALL[:-1]:
            raise SettingsError(f'--models: unknown model "{name}". Known: {", ".join(ALL[:-1])}')
    folder = None if splits is None else Path(splits)
    return Plan(city, Path(results), share, effort, splits=folder, device=device, models=names)


def _parse_seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise SettingsError(f'--seeds "{text}": give integers separated by commas, such as 0,1,2') from None
    if min(seeds) < 0:
        raise SettingsError(f'--seeds "{text}": seeds must not be negative')
    return seeds
