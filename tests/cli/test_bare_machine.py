"""The same commands on a machine that has Python, torch, numpy, scipy and safetensors, and nothing else."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from frigate.city.folder import read_city, write_city
from frigate.roads.feature_cache import ensure_road_features
from tests.support.command_line import Output
from tests.support.training_runs import town

SETTINGS = """
[task]
past = 4
horizon = 4
[model]
width = 8
layers = 2
hidden = 8
anchors = 4
[train]
epochs = 2
steps_per_epoch = 2
masks = 3
batch_size = 4
validation_windows = 4
"""

TYPED = """
import json, sys

ABSENT = ("typer", "click", "rich", "polars", "numba", "pandas", "lightgbm", "osmium", "h5py", "pyproj", "matplotlib",
          "jinja2", "shapely", "igraph", "tensorboard", "tzdata")

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)

from tests.support.command_line import frigate

said = [vars(frigate(*line.split())) for line in json.load(sys.stdin)]
assert not set(ABSENT) & set(sys.modules)
print(json.dumps(said))
"""

LINES = {
    "trained": "train cache -o run --settings s.toml --seen 60% --seed 2",
    "resumed": "train cache -o run --resume",
    "paper": "train cache -o paper --settings s.toml --preset paper --seen 60% --split region --epochs 1 --json",
    "refused": "train cache -o run --seen 60",
    "scored": "evaluate run --json --stride 2",
    "table": "evaluate paper --city cache --details",
    "nowhere": "evaluate nowhere",
    "forecast": "forecast run --city cache",
    "reproduced": "reproduce datasets,parameters cache -o results --quick",
    "timed": "bench --size 24 --preset paper --windows 1 --device cpu --json bench.json",
    "checked": "check cache",
    "imported": "import osm town.osm -o town",
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare")
    write_city(town(), folder / "city")
    ensure_road_features(read_city(folder / "city"))
    (folder / "city" / "cache").rename(folder / "cache")  # all that is carried there
    shutil.rmtree(folder / "city")
    (folder / "s.toml").write_text(SETTINGS)
    return folder


@pytest.fixture(scope="module")
def said(bare: Path) -> dict[str, Output]:
    process = subprocess.run(
        [sys.executable, "-c", TYPED],
        check=False,
        cwd=bare,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        input=json.dumps(list(LINES.values())),
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return {name: Output(**each) for name, each in zip(LINES, json.loads(process.stdout), strict=True)}


def test_training(said: dict[str, Output]) -> None:
    trained, resumed, paper = (said[name] for name in ("trained", "resumed", "paper"))
    assert trained.status == 0, trained.err
    trust = r"with \d+% of the learned correction"
    assert re.fullmatch(rf"Validation MAE at hidden sensors [\d.]+ after epoch \d of 2, {trust}: run\n", trained.out)
    assert re.findall(r"^epoch \d", trained.err, re.MULTILINE) == ["epoch 1", "epoch 2"]
    assert (resumed.status, resumed.out) == (0, trained.out)
    assert json.loads(paper.out)["finished"]
    assert said["refused"].status == 2 and said["refused"].err.startswith('frigate: --seen "60"')


def test_evaluation_and_forecast(said: dict[str, Output], bare: Path) -> None:
    assert json.loads(said["scored"].out)["rows"][0]["name"] == "frigate (default)"
    table = said["table"].out
    assert re.search(r"^forecaster +MAE ", table, re.MULTILINE) and "\nfrigate (paper) " in table
    assert "\nMAE by step ahead\n" in table
    assert said["nowhere"].err.startswith("frigate: nowhere: there is no such folder")
    assert said["forecast"].status == 0, said["forecast"].err
    assert said["forecast"].out.endswith(": run/forecast.csv\n")
    with (bare / "run" / "forecast.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 30 * 4


def test_experiments_and_bench(said: dict[str, Output], bare: Path) -> None:
    assert said["reproduced"].status == 0, said["reproduced"].err
    assert said["reproduced"].out == "Results: results\n"
    assert "no page: jinja2 is not installed" in said["reproduced"].err
    assert json.loads((bare / "results" / "parameters.json").read_text())["rows"]
    assert said["timed"].status == 0, said["timed"].err
    assert json.loads((bare / "bench.json").read_text())["features_ms"] is None
    assert "paper: training step" in said["timed"].out


def test_missing_extras_are_named(said: dict[str, Output]) -> None:
    for name in ("checked", "imported"):
        assert said[name].status == 2 and "Traceback" not in said[name].err
    assert "pip install" in said["imported"].err
