"""Settings: what to forecast (Task), the model (ModelSettings or BaselineSettings), and training (TrainSettings).

Frozen dataclasses that validate themselves. `load_settings` lays a TOML file over a preset; `to_json` is what a run
records.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from frigate.errors import SettingsError, did_you_mean

PRESETS = ("paper", "default")
BASELINES = {  # the neural baselines in the paper, with their authors' spelling
    "dcrnn": "DCRNN",
    "stgcn": "STGCN",
    "graph-wavenet": "GraphWaveNet",
    "stgode": "STGODE",
    "localegn": "LocaleGN",
    "stnn": "STNN",
}
ANCHOR_CHOICES = ("random", "farthest", "bourgain")  # not `full`: its number of anchors depends on the network
MAX_SEED = 2**32 - 1
MAX_INT = 2**63 - 1  # int64
T = TypeVar("T")


def require(ok: bool, name: str, value: object, rule: str) -> None:
    if not ok:
        raise SettingsError(f"{name} = {value!r}: {rule}")


def require_one_of(name: str, value: str, known: Iterable[str]) -> None:
    require(value in known, name, value, f"choose one of {', '.join(known)}")


def require_at_least_1(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        require(value is None or value >= 1, name, value, "must be at least 1")


def require_kinds(settings: object) -> None:
    """Raise an error if a dataclass field has a value of the wrong type: TOML and JSON may contain anything."""
    rules = {
        "int": "give a whole number",
        "float": "give a number",
        "str": "give a text in quotes",
        "bool": "give true or false",
    }
    for each in fields(settings):  # type: ignore[arg-type]  # any dataclass
        value = getattr(settings, each.name)
        kind = str(each.type)
        if kind.startswith("tuple[float"):
            ok = isinstance(value, list | tuple) and all(is_a(v, "float") for v in value)
            require(ok, each.name, value, "give a list of numbers, as [0.2, 0.8]")
        elif not (value is None and kind.endswith("| None")) and (rule := rules.get(kind.removesuffix(" | None"))):
            require(is_a(value, kind.removesuffix(" | None")), each.name, value, rule)


def made_of(cls: type[T], data: dict[str, Any]) -> T:
    """A dataclass from JSON, which must have exactly its fields."""
    known = [each.name for each in fields(cls)]  # type: ignore[arg-type]  # any dataclass
    wrong = sorted(set(known) ^ set(data))
    require(not wrong, cls.__name__, ", ".join(wrong), f"give exactly {', '.join(known)}")
    return cls(**data)


def is_a(value: object, kind: str) -> bool:
    """Whether a value is an "int", "float" (ints count), "str" or "bool"; numbers must be finite."""
    if kind in ("str", "bool"):
        return isinstance(value, str if kind == "str" else bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind == "int":
        return isinstance(value, int) and abs(value) <= MAX_INT
    return abs(value) <= sys.float_info.max


def require_between(settings: object, least: float, most: float, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        require(least <= value <= most, name, value, f"must be between {least:g} and {most:g}")


@dataclass(frozen=True)
class Task:
    """What to forecast: `horizon` snapshots from `past` snapshots."""

    past: int = 12  # T
    horizon: int = 12  # H

    def __post_init__(self) -> None:
        require_kinds(self)
        require_at_least_1(self, "past", "horizon")


@dataclass(frozen=True)
class ModelSettings:
    """The sizes of a Frigate model. The number of parameters does not depend on the network."""

    preset: str = "default"
    width: int = 64  # D
    layers: int = 6  # L
    anchors: int = 0  # K; 0: no positions
    anchor_choice: str = "random"
    length_width: int = 16  # d_delta
    gate_width: int = 16  # d_Le
    hidden: int = 32  # of every MLP
    dropout: float = 0.2
    edge_dropout: float = 0.3
    demand: bool = True  # forecast the residual of a demand model (origin-destination trips); counts only

    def __post_init__(self) -> None:
        require_kinds(self)
        require_one_of("preset", self.preset, PRESETS)
        require_one_of("anchor_choice", self.anchor_choice, ANCHOR_CHOICES)
        require_at_least_1(self, "layers", "length_width", "gate_width", "hidden")
        require(
            self.width > self.anchors >= 0, "width", self.width, f"must be above the number of anchors ({self.anchors})"
        )
        for name in ("dropout", "edge_dropout"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "must be in [0, 1)")
        if self.preset == "paper":
            require(self.anchors > 0, "anchors", self.anchors, "the paper's model needs positions")
            require(self.dropout == self.edge_dropout == 0, "dropout", self.dropout, "the paper's model has none")
            require(not self.demand, "demand", self.demand, "the paper's model has none")

    @property
    def roads(self) -> bool:
        """Whether the model reads road features."""
        return self.preset == "default"

    @property
    def label(self) -> str:
        """The model's name in a table."""
        return f"frigate ({self.preset})"


@dataclass(frozen=True)
class BaselineSettings:
    """The sizes of one of the paper's baselines, named by `preset`."""

    preset: str
    width: int
    layers: int  # see the baseline's module for what counts as a layer
    roads: bool = False  # add the road features of `default` to the inputs; no baseline uses them originally

    def __post_init__(self) -> None:
        require_kinds(self)
        require_one_of("preset", self.preset, BASELINES)
        require_at_least_1(self, "width", "layers")

    @property
    def label(self) -> str:
        return BASELINES[self.preset] + (" + roads" if self.roads else "")


@dataclass(frozen=True)
class TrainSettings:
    """How to train a model. The batch size affects the result; memory only determines the micro-batch."""

    epochs: int = 8
    steps_per_epoch: int | None = 100  # None: every training window once
    batch_size: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    warmup_steps: int = 100
    clip_norm: float = 1.0
    average: float = 0.998  # decay of the weight average, which spans about 1 / (1 - average) steps; 0: no averaging
    patience: int = 15
    hide: tuple[float, float] = (0.2, 0.8)  # range of the share of sensors hidden in each training window
    visible_weight: float = 0.1  # loss weight of sensors that are not hidden
    masks: int = 24  # sets of hidden sensors for training with demand: each needs its own calibrated demand
    validation: str = "none"  # nodes for selecting the epoch: none (keep the last), some seen, or the unseen (paper)
    validation_share: float = 0.2  # of the seen nodes, with validation = "seen"
    validation_windows: int = 64  # spread evenly over the validation period
    memory_gb: float | None = None  # None: 4 on a CPU, most of the free memory on a GPU
    parts: int = 1  # of the network, one per step; 1: the whole network in every step
    seed: int = 0

    def __post_init__(self) -> None:
        require_kinds(self)
        object.__setattr__(self, "hide", tuple(self.hide))
        require_at_least_1(self, "batch_size", "patience", "validation_windows", "parts", "steps_per_epoch", "masks")
        require(self.epochs >= 0, "epochs", self.epochs, "must not be negative; 0 forecasts demand, nothing learned")
        for name in ("learning_rate", "clip_norm"):
            require(getattr(self, name) > 0, name, getattr(self, name), "must be above 0")
        for name in ("weight_decay", "warmup_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        require(
            len(self.hide) == 2 and 0 <= self.hide[0] <= self.hide[1] < 1,
            "hide",
            self.hide,
            "give two shares in [0, 1), the lower first",
        )
        require(0 <= self.average < 1, "average", self.average, "must be in [0, 1)")
        require(0 <= self.visible_weight <= 1, "visible_weight", self.visible_weight, "must be in [0, 1]")
        require(
            self.visible_weight > 0 or self.hide[1] > 0,
            "visible_weight",
            self.visible_weight,
            "with no sensor hidden nothing is left to learn from. Raise it, or hide sensors",
        )
        require_one_of("validation", self.validation, ("none", "seen", "unseen"))
        require(
            self.validation != "none" or self.hide[1] > 0,
            "validation",
            self.validation,
            "with no sensor hidden, a model learns to copy its own readings. Hide sensors, or hold nodes out",
        )
        require(0 < self.validation_share < 1, "validation_share", self.validation_share, "must be between 0 and 1")
        require(self.memory_gb is None or self.memory_gb > 0, "memory_gb", self.memory_gb, "must be above 0")
        require(0 <= self.seed <= MAX_SEED, "seed", self.seed, f"give a whole number from 0 to {MAX_SEED}")


@dataclass(frozen=True)
class Settings:
    """All settings of a run; `change` and `load_settings` return modified copies.

    Parameters
    ----------
    task : Task
        What to forecast: past snapshots and steps ahead.
    model : ModelSettings or BaselineSettings
        The model and its sizes. Default: Frigate's `default` preset.
    train : TrainSettings
        How to train it.
    """

    task: Task = field(default_factory=Task)
    model: ModelSettings | BaselineSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Settings:
        kind = BaselineSettings if data["model"]["preset"] in BASELINES else ModelSettings
        return cls(Task(**data["task"]), kind(**data["model"]), TrainSettings(**data["train"]))


def preset(name: str) -> Settings:
    """The settings of a preset.

    Parameters
    ----------
    name : str
        "paper": exactly the paper's equations and sizes. "default": the most accurate. Or a baseline: "dcrnn",
        "stgcn", "graph-wavenet", "stgode", "localegn", "stnn".
    """
    # With no sensors hidden, a model first learns to use its neighbours, then to copy its own reading. Forecasts at
    # nodes without a sensor are best in between, after about 70 steps; short epochs let early stopping find that point.
    protocol = TrainSettings(
        hide=(0.0, 0.0),
        visible_weight=1.0,
        epochs=60,
        batch_size=16,
        steps_per_epoch=10,
        warmup_steps=50,
        average=0.0,
        validation="seen",
    )
    if name == "paper":
        model = ModelSettings(preset="paper", layers=10, anchors=16, dropout=0.0, edge_dropout=0.0, demand=False)
        return Settings(model=model, train=protocol)
    if name == "default":
        return Settings()
    if name in BASELINES:
        return Settings(model=BASELINE_SIZES[name], train=protocol)
    known = (*PRESETS, *BASELINES)
    raise SettingsError(f'preset "{name}": choose one of {", ".join(known)}{did_you_mean(name.lower(), known)}')


# From each baseline's own paper or code.
BASELINE_SIZES = {
    "dcrnn": BaselineSettings("dcrnn", width=64, layers=2),
    "stgcn": BaselineSettings("stgcn", width=64, layers=2),
    "graph-wavenet": BaselineSettings("graph-wavenet", width=32, layers=8),
    "stgode": BaselineSettings("stgode", width=64, layers=2),
    "localegn": BaselineSettings("localegn", width=64, layers=1),
    "stnn": BaselineSettings("stnn", width=64, layers=2),
}


def change(settings: Settings, changes: dict[str, Any], *, place: str = "settings") -> Settings:
    """Settings with some values replaced, given as {"train": {"epochs": 5}, ...}; unknown names are an error."""
    parts: dict[str, Any] = {"task": settings.task, "model": settings.model, "train": settings.train}
    for part, values in changes.items():
        if part not in parts or not isinstance(values, dict):
            raise SettingsError(f"{place}: [{part}] is not a section. Use [task], [model] or [train]")
        known = [f.name for f in fields(parts[part])]
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
                raise SettingsError(f"{place}: [{part}] has no setting {name!r}{hint}")
        try:
            parts[part] = replace(parts[part], **values)
        except SettingsError as error:
            raise SettingsError(f"{place}: [{part}] {error}") from None
    return Settings(**parts)


def load_settings(path: str | Path, base: Settings) -> Settings:
    """A TOML file with [task], [model] and [train] laid over `base`."""
    if Path(path).exists() and not Path(path).is_file():
        raise SettingsError(f"{path}: not a file. Give a TOML file")
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also for invalid UTF-8, overlong numbers, deep nesting
        raise SettingsError(f"{path}: not a TOML file: {str(error).split(';')[0]}") from None
    return change(base, data, place=str(path))
