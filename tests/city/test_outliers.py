"""Readings that no traffic makes are named, are not observed, and do not decide the scale of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.city.outliers import implausible
from frigate.city.split import make_split
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.config import preset
from frigate.nn.scaling import Scaling, fit_scaling
from tests.support.command_line import frigate
from tests.support.errors import names
from tests.support.grids import grid_network, grid_stream
from tests.support.shared_data import shared_data

CODES = [2147483647, 65535, -9999, 4294967295]


def town(quantity: str = "count") -> RoadNetworkStream:
    rng = np.random.default_rng(0)
    values = rng.poisson(20, (300, 49)).astype(np.float64)
    if quantity != "count":
        values = 60 + values / 2
    return make_stream(values, grid_network(7), start_s=1_704_067_200, step_s=300, quantity=quantity)


def spoilt(stream: RoadNetworkStream, value: float, *, snapshot: int = 30, node: int = 12) -> RoadNetworkStream:
    values = stream.values.copy()
    values[snapshot, node] = value
    return replace(stream, values=values)


def scale(stream: RoadNetworkStream, name: str = "paper") -> Scaling:
    split = make_split(stream, seen="all", past=4, horizon=4)
    features = None if name == "paper" else np.zeros((stream.num_nodes, 20), np.float32)
    return fit_scaling(stream, split, preset(name).model, features=features, seed=0)


@pytest.mark.parametrize(("value", "quantity"), [*((c, "speed") for c in CODES), (2147483647, "count"), (5e6, "count")])
def test_one_reading_does_not_decide_the_scale(value: float, quantity: str) -> None:
    clean = town(quantity)
    without = replace(clean, observed=clean.observed & (np.arange(300)[:, None] != 30) | (np.arange(49) != 12))
    assert scale(spoilt(clean, value)) == scale(without)


def test_the_scale_of_readings_without_outliers_is_their_standard_deviation() -> None:
    """That is the definition of the preset `paper`: the rule for outliers does not touch it."""
    stream = grid_stream(7, snapshots=300)
    first, stop = make_split(stream, seen="all", past=4, horizon=4).train
    assert scale(stream).value_scale == stream.values[first:stop][stream.observed[first:stop]].astype(np.float64).std()


@given(st.integers(0, 40), st.floats(0.0, 1.0), st.sampled_from([1.0, 1e-3, 1e4]))
def test_no_reading_of_an_ordinary_record_is_an_outlier(seed: int, zeros: float, unit: float) -> None:
    """Quiet and busy roads, most of them often empty, one far busier than all others."""
    rng = np.random.default_rng(seed)
    level = 10 ** rng.uniform(-2, 2, 20)
    level[0] *= 50
    values = rng.poisson(level * (rng.random((400, 20)) >= zeros)) * unit
    assert not implausible(values.astype(np.float32), rng.random((400, 20)) < 0.9).any()


@pytest.mark.parametrize("value", [2147483647, 65535, 123456.0])
def test_check_names_an_outlier_and_it_is_not_observed(tmp_path: Path, value: float) -> None:
    write_city(City("Town", spoilt(town(), value)), tmp_path / "city")
    stream = read_city(tmp_path / "city").stream
    assert np.argwhere(~stream.observed).tolist() == [[30, 12]] and stream.values.max() < 100
    said = frigate("check", tmp_path / "city").out
    assert names(said, 'node "112"') and names(said, "2024-01-01T02:30:00Z") and names(said, f"{value:.0f}")


def test_train_names_outliers_and_broken_sensors(tmp_path: Path) -> None:
    stream = spoilt(town(), 65535)
    stream.values[:, 5], stream.values[50:250, 6] = 0, 17
    write_city(City("Town", stream), tmp_path / "city")
    sizes = "width = 8\nlayers = 1\nhidden = 8\nanchors = 2"
    training = "epochs = 1\nsteps_per_epoch = 1\nvalidation_windows = 2\nbatch_size = 2"
    (tmp_path / "tiny.toml").write_text(f"[model]\n{sizes}\n[train]\n{training}\n")
    said = frigate(
        "train", tmp_path / "city", "-o", tmp_path / "run", "--preset", "paper", "--settings", tmp_path / "tiny.toml"
    )
    assert said.status == 0 and names(said.err, 'node "112"') and names(said.err, "65535")
    assert names(said.err, "Sensors that read only 0: 1 (105)")
    assert names(said.err, "Sensors that read one value for hours: 1 (106)")


@pytest.mark.shared
@pytest.mark.parametrize("name", ["sf-taxi-core", "lux-sim", "metr-la-week"])
def test_real_readings_are_all_plausible(name: str) -> None:
    file, array = ("speed.npz", "speed_mph") if name == "metr-la-week" else ("counts.npz", "counts")
    values = np.load(shared_data(name) / file)[array].astype(np.float32)
    assert not implausible(values, np.isfinite(values)).any()
