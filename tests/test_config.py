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

REFUSED: list[tuple[type, dict[str, Any], str]] = [
    (Task, {"past": 0}, "past = 0: must be at least 1"),
    (Task, {"horizon": 0}, "horizon = 0: must be at least 1"),
    (Task, {"past": 2.5}, "past = 2.5: give a whole number"),
    (Task, {"past": "12"}, "past = '12': give a whole number"),
    (Task, {"horizon": True}, "horizon = True: give a whole number"),
    (ModelSettings, {"preset": "papers"}, "preset = 'papers': choose one of paper, default"),
    (ModelSettings, {"anchor_choice": "best"}, "anchor_choice = 'best': choose one of random, farthest"),
    (ModelSettings, {"layers": 0}, "layers = 0: must be at least 1"),
    (ModelSettings, {"length_width": 0}, "length_width = 0: must be"),
    (ModelSettings, {"gate_width": -1}, "gate_width = -1: must be"),
    (ModelSettings, {"hidden": 0}, "hidden = 0: must be"),
    (ModelSettings, {"width": 16, "anchors": 16}, r"width = 16: must be above the number of anchors \(16\)"),
    (ModelSettings, {"anchors": -1}, "must be above the number of anchors"),
    (ModelSettings, {"dropout": 1.0}, r"dropout = 1.0: must be in \[0, 1\)"),
    (ModelSettings, {"edge_dropout": -0.1}, "edge_dropout = -0.1: must be in"),
    (ModelSettings, {"dropout": float("nan")}, "dropout = nan: give a number"),
    (ModelSettings, {"preset": "paper", "dropout": 0, "edge_dropout": 0}, "anchors = 0: the paper's model needs"),
    (ModelSettings, {"preset": "paper", "anchors": 4}, "the paper's model has none"),
    (TrainSettings, {"epochs": 0}, "epochs = 0: must be at least 1"),
    (TrainSettings, {"batch_size": 0}, "batch_size = 0: must be"),
    (TrainSettings, {"patience": 0}, "patience = 0: must be"),
    (TrainSettings, {"validation_windows": 0}, "validation_windows = 0: must be"),
    (TrainSettings, {"steps_per_epoch": 0}, "steps_per_epoch = 0: must be"),
    (TrainSettings, {"learning_rate": 0}, "learning_rate = 0: must be above 0"),
    (TrainSettings, {"learning_rate": float("inf")}, "learning_rate = inf: give a number"),
    (TrainSettings, {"clip_norm": -1}, "clip_norm = -1: must be above 0"),
    (TrainSettings, {"weight_decay": -1}, "weight_decay = -1: must not be negative"),
    (TrainSettings, {"warmup_steps": -1}, "warmup_steps = -1: must not be negative"),
    (TrainSettings, {"hide": (0.8, 0.2)}, "two shares in .*, the lower first"),
    (TrainSettings, {"hide": (0.0, 1.0)}, "two shares"),
    (TrainSettings, {"hide": (0.5,)}, "two shares"),
    (TrainSettings, {"hide": 0.5}, "hide = 0.5: give a list of numbers"),
    (TrainSettings, {"hide": ["a", "b"]}, "give a list of numbers"),
    (TrainSettings, {"visible_weight": 1.5}, r"visible_weight = 1.5: must be in \[0, 1\]"),
    (TrainSettings, {"visible_weight": 0.0, "hide": (0.0, 0.0)}, "nothing is left to learn from"),
    (TrainSettings, {"validation": "test"}, "validation = .test.: choose one of seen, unseen"),
    (TrainSettings, {"validation_share": 1}, "validation_share = 1: must be between"),
    (TrainSettings, {"validation_share": 0}, "validation_share = 0: must be between"),
    (TrainSettings, {"memory_gb": 0}, "memory_gb = 0: must be above 0"),
    (TrainSettings, {"parts": 0}, "parts = 0: must be at least 1"),
    (TrainSettings, {"seed": -1}, "seed = -1: give a whole number from 0"),
    (TrainSettings, {"seed": 2**32}, "seed = 4294967296: give"),
    (TrainSettings, {"seed": None}, "seed = None: give a whole number"),
]


@pytest.mark.parametrize(("part", "values", "words"), REFUSED)
def test_a_value_out_of_its_range_is_refused_by_name(part: type, values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
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
    got, base = load_settings(path, preset("paper")), preset("paper")
    assert got.task == Task(horizon=3)
    assert got.model == base.model
    assert asdict(got.train) == asdict(base.train) | {"hide": (0.1, 0.5), "validation": "unseen"}
    path.write_text("")
    assert load_settings(path, base) == base


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[train]\nepoch = 3", r"\[train\] has no setting 'epoch' \(did you mean .epochs.\?\)"),
        ("[train]\nxyzzy = 3", "has no setting 'xyzzy'; known: epochs, steps_per_epoch"),
        ("[trian]\nepochs = 3", r"\[trian\] is not a section. Use \[task\], \[model\] or \[train\]"),
        ("epochs = 3", r"\[epochs\] is not a section"),
        ("[train]\nepochs = 'three'", r"\[train\] epochs = 'three': give a whole number"),
        ("[train]\nepochs = 0", r"\[train\] epochs = 0: must be at least 1"),
        ("[model]\nwidth = 64.0", r"\[model\] width = 64.0: give a whole number"),
        ("[train\nepochs", "not a TOML file"),
        (b"\xff\xfe\x00", "not a TOML file"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(text: str | bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError, match=words) as told:
        load_settings(path, preset("default"))
    assert str(told.value).startswith(str(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SettingsError, match=f"{path}: {words}"):
            load_settings(path, preset("default"))


def test_presets() -> None:
    assert preset("paper").model.preset == "paper"
    assert preset("default").model.preset == "default"
    assert preset("paper").task == preset("default").task == Task(12, 12)
    with pytest.raises(SettingsError, match='preset "papre": choose one of paper, default'):
        preset("papre")
