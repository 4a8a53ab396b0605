"""Settings check themselves, and travel through TOML and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frigate.config import ModelSettings, Settings, Task, TrainSettings, change, load_settings, preset
from frigate.errors import SettingsError
from tests.support.errors import raises

REFUSED: list[tuple[type, dict[str, Any], tuple[str, ...]]] = [
    (Task, {"past": 0}, ("past = 0", "1")),
    (Task, {"horizon": 0}, ("horizon = 0", "1")),
    (Task, {"past": 2.5}, ("past = 2.5",)),
    (Task, {"past": "12"}, ("past = '12'",)),
    (Task, {"horizon": True}, ("horizon = True",)),
    (ModelSettings, {"preset": "papers"}, ("preset = 'papers'", "paper, default")),
    (ModelSettings, {"anchor_choice": "best"}, ("anchor_choice = 'best'", "random, farthest")),
    (ModelSettings, {"layers": 0}, ("layers = 0", "1")),
    (ModelSettings, {"length_width": 0}, ("length_width = 0",)),
    (ModelSettings, {"gate_width": -1}, ("gate_width = -1",)),
    (ModelSettings, {"hidden": 0}, ("hidden = 0",)),
    (ModelSettings, {"width": 16, "anchors": 16}, ("width = 16", "16")),
    (ModelSettings, {"anchors": -1}, ("anchors",)),
    (ModelSettings, {"dropout": 1.0}, ("dropout = 1.0",)),
    (ModelSettings, {"edge_dropout": -0.1}, ("edge_dropout = -0.1",)),
    (ModelSettings, {"dropout": float("nan")}, ("dropout = nan",)),
    (ModelSettings, {"preset": "paper", "dropout": 0, "edge_dropout": 0}, ("anchors = 0",)),
    (ModelSettings, {"preset": "paper", "anchors": 4}, ("paper", "none")),
    (TrainSettings, {"epochs": -1}, ("epochs = -1", "0")),
    (TrainSettings, {"batch_size": 0}, ("batch_size = 0",)),
    (TrainSettings, {"patience": 0}, ("patience = 0",)),
    (TrainSettings, {"validation_windows": 0}, ("validation_windows = 0",)),
    (TrainSettings, {"steps_per_epoch": 0}, ("steps_per_epoch = 0",)),
    (TrainSettings, {"learning_rate": 0}, ("learning_rate = 0",)),
    (TrainSettings, {"learning_rate": float("inf")}, ("learning_rate = inf",)),
    (TrainSettings, {"clip_norm": -1}, ("clip_norm = -1",)),
    (TrainSettings, {"weight_decay": -1}, ("weight_decay = -1",)),
    (TrainSettings, {"warmup_steps": -1}, ("warmup_steps = -1",)),
    (TrainSettings, {"hide": (0.8, 0.2)}, ("hide", "(0.8, 0.2)")),
    (TrainSettings, {"hide": (0.0, 1.0)}, ("hide",)),
    (TrainSettings, {"hide": (0.5,)}, ("hide",)),
    (TrainSettings, {"hide": 0.5}, ("hide = 0.5",)),
    (TrainSettings, {"hide": ["a", "b"]}, ("hide", "list of numbers")),
    (TrainSettings, {"visible_weight": 1.5}, ("visible_weight = 1.5",)),
    (TrainSettings, {"average": 1.0}, ("average = 1.0",)),
    (TrainSettings, {"masks": 0}, ("masks = 0",)),
    (ModelSettings, {"demand": 3}, ("demand = 3",)),
    (ModelSettings, {"preset": "paper", "anchors": 4, "dropout": 0, "edge_dropout": 0}, ("demand = True",)),
    (TrainSettings, {"visible_weight": 0.0, "hide": (0.0, 0.0)}, ("nothing is left",)),
    (TrainSettings, {"validation": "test"}, ("validation = 'test'", "none, seen, unseen")),
    (TrainSettings, {"validation": "none", "hide": (0, 0)}, ("validation = 'none'",)),
    (TrainSettings, {"validation_share": 1}, ("validation_share = 1",)),
    (TrainSettings, {"validation_share": 0}, ("validation_share = 0",)),
    (TrainSettings, {"memory_gb": 0}, ("memory_gb = 0",)),
    (TrainSettings, {"parts": 0}, ("parts = 0", "1")),
    (TrainSettings, {"seed": -1}, ("seed = -1",)),
    (TrainSettings, {"seed": 2**32}, ("seed = 4294967296",)),
    (TrainSettings, {"seed": None}, ("seed = None",)),
]


@pytest.mark.parametrize(("part", "values", "named"), REFUSED)
def test_a_value_out_of_its_range_is_refused_by_name(
    part: type, values: dict[str, Any], named: tuple[str, ...]
) -> None:
    with raises(SettingsError, *named):
        part(**values)


def test_every_setting_of_every_part_is_refused_for_something() -> None:
    refused = {(part, name) for part, values, _ in REFUSED for name in values}
    assert refused == {(part, f.name) for part in (Task, ModelSettings, TrainSettings) for f in fields(part)}


def toml(settings: Settings) -> str:
    """As a person would write it; None is left out."""
    lines = []
    for part, values in settings.to_json().items():
        lines.append(f"[{part}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None]
    return "\n".join(lines)


@st.composite
def some_settings(draw: st.DrawFn) -> Settings:
    base = preset(draw(st.sampled_from(["paper", "default"])))
    shares = sorted(draw(st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99))))
    task = {"past": draw(st.integers(1, 500)), "horizon": draw(st.integers(1, 500))}
    model = {"width": draw(st.integers(17, 300)), "layers": draw(st.integers(1, 30))}
    training = {"hide": shares, "seed": draw(st.integers(0, 2**32 - 1)), "memory_gb": draw(st.floats(1e-3, 100))}
    return change(base, {"task": task, "model": model, "train": training})


@given(some_settings())
def test_json_and_toml_give_the_same_settings_back(settings: Settings) -> None:
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    import tomllib

    assert change(preset(settings.model.preset), tomllib.loads(toml(settings))) == settings


def test_a_file_is_laid_over_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('[task]\nhorizon = 3\n[train]\nhide = [0.1, 0.5]\nvalidation = "unseen"\n')
    got = load_settings(path, preset("paper"))
    base = preset("paper")
    assert got.task == Task(horizon=3)
    assert got.model == base.model
    assert asdict(got.train) == asdict(base.train) | {"hide": (0.1, 0.5), "validation": "unseen"}
    path.write_text("")
    assert load_settings(path, base) == base


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[train]\nepoch = 3", ("[train]", "'epoch'", "epochs")),
        ("[train]\nxyzzy = 3", ("[train]", "'xyzzy'", "epochs, steps_per_epoch")),
        ("[trian]\nepochs = 3", ("[trian]", "[task]", "[model]", "[train]")),
        ("epochs = 3", ("[epochs]",)),
        ("[train]\nepochs = 'three'", ("[train] epochs = 'three'",)),
        ("[train]\nepochs = -1", ("[train] epochs = -1", "0")),
        ("[model]\nwidth = 64.0", ("[model] width = 64.0",)),
        ("[train\nepochs", ("TOML",)),
        (b"\xff\xfe\x00", ("TOML",)),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(
    text: str | bytes, named: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with raises(SettingsError, *named) as told:
        load_settings(path, preset("default"))
    assert str(told.value).startswith(str(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.toml", "No such file"), (tmp_path, "not a file")):
        with raises(SettingsError, str(path), words):
            load_settings(path, preset("default"))


def test_presets() -> None:
    assert preset("paper").model.preset == "paper"
    assert preset("default").model.preset == "default"
    assert preset("paper").task == preset("default").task == Task(12, 12)
    with raises(SettingsError, 'preset "papre"', "paper, default"):
        preset("papre")
