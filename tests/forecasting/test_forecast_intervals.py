"""Forecasts with intervals: their files, levels, and what is said where there are none."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import frigate as fg
from frigate.cli.main import main
from frigate.errors import SettingsError
from tests.support.errors import raises
from tests.support.service import Town, train_town


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return train_town(tmp_path_factory.mktemp("town"))


@pytest.fixture(scope="module")
def made(town: Town) -> fg.Forecast:
    return fg.forecast(town.run, level=90, device="cpu")


def test_intervals_grow_with_the_level(town: Town, made: fg.Forecast) -> None:
    wide = fg.forecast(town.run, level=95, device="cpu")
    narrow = fg.forecast(town.run, level=50, device="cpu")
    bare = fg.forecast(town.run, device="cpu")
    for one, other in ((narrow, made), (made, wide)):
        assert one.lower is not None and one.upper is not None and other.lower is not None and other.upper is not None
        assert (other.lower <= one.lower).all() and (one.upper <= other.upper).all()
        assert (other.upper - other.lower).sum() > (one.upper - one.lower).sum()
    assert bare.lower is None and bare.level is None
    np.testing.assert_array_equal(bare.values, made.values)


def test_an_absent_node_has_no_interval(town: Town) -> None:
    network = town.city.network
    gone = fg.forecast(town.run, network.remove_nodes([network.node_ids[3]]), level=90, device="cpu")
    assert gone.lower is not None and gone.upper is not None
    assert np.isnan(gone.values[:, 3]).all() and np.isnan(gone.lower[:, 3]).all() and np.isnan(gone.upper[:, 3]).all()
    assert np.isfinite(np.delete(gone.upper, 3, axis=1)).all()


def test_files_have_the_intervals(made: fg.Forecast, tmp_path: Path) -> None:
    assert made.lower is not None and made.upper is not None
    made = made.at(np.array([5, 2]))
    assert made.lower is not None and made.upper is not None
    expected = [made.lower.T.ravel().tolist(), made.upper.T.ravel().tolist()]
    with made.write(tmp_path / "f.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [[float(row[name]) for row in rows] for name in ("lower", "upper")] == expected
    frame = pl.read_parquet(made.write(tmp_path / "f.parquet"))
    assert [frame[name].to_list() for name in ("lower", "upper")] == expected
    data = json.loads(made.write(tmp_path / "f.json").read_text())
    assert data["level"] == 90
    assert [[x for node in data["nodes"] for x in node[name]] for name in ("lower", "upper")] == expected
    points = json.loads(made.write(tmp_path / "f.geojson").read_text())["features"]
    assert [[point["properties"][name] for point in points] for name in ("lower", "upper")] == expected


def test_the_command_writes_them(town: Town, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.csv"
    assert main(["forecast", str(town.folder / "run"), "--level", "80", "--csv", str(file), "--device", "cpu"]) == 0
    assert "80 % intervals" in capsys.readouterr().out
    assert file.read_text().splitlines()[0].endswith(",value,lower,upper")
    for wrong in ("0", "100", "-3", "0.9", "99.9"):
        assert main(["forecast", str(town.folder / "run"), f"--level={wrong}", "--csv", str(file)]) == 2
        assert "level" in capsys.readouterr().err


def test_a_run_without_intervals_says_what_to_do(town: Town) -> None:
    bare = replace(town.run, intervals=None)
    with raises(SettingsError, "level", "--resume"):
        fg.forecast(bare, stream=town.city, level=90, device="cpu")
    assert fg.forecast(bare, stream=town.city, device="cpu").lower is None
