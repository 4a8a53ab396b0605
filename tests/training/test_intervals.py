"""Intervals of a run: what they are measured on, how they are kept, and what is said where there are none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.errors import CheckpointError, SettingsError
from frigate.roads.feature_cache import ensure_road_features
from frigate.training.checkpoint import load_run
from frigate.training.intervals import CLOSURE, Intervals, fit_intervals, parse_level
from frigate.training.out_of_fold import measured_intervals
from frigate.training.predictive import Cells, CountLaw
from frigate.training.run import Run
from frigate.training.train import train
from tests.support.errors import raises
from tests.support.towns import reordered
from tests.support.training_runs import N, S, garbage, tiny, town, with_readings

ALONE = tiny(epochs=0, validation="none")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(town(), seen=0.8, settings=ALONE, folder=tmp_path_factory.mktemp("runs") / "run", device="cpu")


def as_text(intervals: Intervals | None) -> str:
    assert intervals is not None
    return json.dumps(intervals.to_json())


def test_a_run_keeps_its_intervals(run: Run) -> None:
    assert run.folder is not None
    opened = load_run(run.folder)
    assert as_text(opened.intervals) == as_text(run.intervals)
    assert (run.folder / "intervals.json").stat().st_size < 40_000
    assert run.intervals is not None
    assert run.intervals.places.scores.all_sensors == int(run.split.seen.sum())


def test_nothing_that_is_not_known_reaches_the_intervals(run: Run) -> None:
    """Neither the readings of unseen nodes nor those of the test period."""
    city = town()
    clean = run.on(city)
    first, _ = clean.split.test
    for values in (
        garbage(city.stream, clean.split.unseen),
        garbage(city.stream, np.ones(N, bool), slice(first, S)),
    ):
        dirty = replace(clean, city=with_readings(city, np.maximum(values, 0)))
        assert as_text(measured_intervals(dirty)) == as_text(run.intervals)


def test_the_order_of_nodes_does_not_matter(run: Run) -> None:
    city = town()
    order = np.random.default_rng(5).permutation(N)
    other = ensure_road_features(City(city.name, reordered(city.stream, order)))
    ids = run.nodes.node_ids[run.split.seen].tolist()
    again = train(other, seen=ids, settings=ALONE, device="cpu").intervals
    assert again is not None
    assert run.intervals is not None
    for level in (50, 80, 90):
        one, other_one = (each.places.scores.quantile(level) for each in (again, run.intervals))
        np.testing.assert_allclose(one, other_one, rtol=1e-4)
    for name in ("mean", "dispersion"):
        weights, others = (getattr(each.places.law, name) for each in (again, run.intervals))
        np.testing.assert_allclose(weights, others, rtol=1e-3, atol=1e-4)


def test_further_training_needs_new_intervals(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = train(town(), seen=0.8, settings=tiny(epochs=1), folder=folder, device="cpu")
    file = folder / "intervals.json"
    was = file.read_bytes()
    longer = train(town(), seen=0.8, settings=tiny(epochs=2), folder=folder, resume=True, device="cpu")
    assert file.read_bytes() != was
    assert as_text(longer.intervals) != as_text(first.intervals)
    now = file.read_bytes()
    file.write_bytes(was)  # those of other weights
    opened = load_run(folder)
    assert opened.intervals is None
    with raises(SettingsError, "level", "--resume"):
        opened.require_intervals(90)
    train(town(), settings=tiny(epochs=2), folder=folder, resume=True, device="cpu")  # measures them
    assert file.read_bytes() == now
    assert load_run(folder).intervals is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-40],
        lambda text: text.replace('"typical": ', '"typical": 1'),
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "format": 7}),
    ],
)
def test_damaged_intervals_are_refused(run: Run, damage: object, tmp_path: Path) -> None:
    assert run.folder is not None
    file = run.folder / "intervals.json"
    kept = file.read_text()
    try:
        file.write_text(damage(kept))  # type: ignore[operator]
        with raises(CheckpointError, "intervals.json", "--resume"):
            load_run(run.folder)
    finally:
        file.write_text(kept)


def test_every_number_of_stored_intervals_is_checked(run: Run) -> None:
    assert run.intervals is not None
    good = run.intervals.to_json()
    seen = int(run.split.seen.sum())
    for part, name, value in (
        ("places", "edges", [2.0, 1.0]),
        ("places", "share_of_all", [0.5]),
        ("places", "sensors", [-1] * len(good["places"]["sensors"])),
        ("places", "all_sensors", 0),
        ("places", "law", {}),
        ("sensors", "score", [0.0, "1"]),
    ):
        bad = {**good, part: {**good[part], name: value}}
        with pytest.raises(SettingsError):
            Intervals.from_json(bad, nodes=seen, quantity="count")
    with pytest.raises(SettingsError):
        Intervals.from_json(good, nodes=seen + 1, quantity="count")


def test_levels_are_percentages() -> None:
    assert parse_level(90) == 90.0
    for wrong in (0, 100, -5, 101, float("nan"), float("inf"), True, "90"):
        with raises(SettingsError, "level"):
            parse_level(wrong)  # type: ignore[arg-type]
    with raises(SettingsError, "level", "0.9", "90"):
        parse_level(0.9)


def test_too_few_sensors_for_a_level_is_said(run: Run) -> None:
    count = int(run.split.seen.sum())
    with raises(SettingsError, "level", "99", str(count), "99 sensors"):
        run.require_intervals(99)
    assert run.require_intervals(90) is run.intervals


def test_gauges_have_intervals_too() -> None:
    made = train(town(quantity="speed"), seen=0.8, settings=tiny(epochs=1), device="cpu").intervals
    assert made is not None
    assert as_text(Intervals.from_json(made.to_json(), nodes=len(made.own), quantity="speed")) == as_text(made)


def changed_cells(sensors: int, *, short_of: float) -> tuple[Cells, NDArray[np.float64], NDArray[np.int64]]:
    """Counts at sensors: usual ones, and some on changed roads, which fall short of the change by up to that share."""
    rng = np.random.default_rng(0)
    sensor = np.repeat(np.arange(sensors), 60)
    usual = np.repeat(rng.uniform(20, 200, sensors), 60)
    rerouted = np.where(np.arange(len(usual)) % 4 == 0, np.repeat(rng.choice([0.2, 0.5, 2.0, 4.0], sensors), 60), 1.0)
    share = np.repeat(rng.uniform(0, short_of, sensors), 60)
    count = rng.poisson(usual * rerouted ** (1 - share)).astype(np.float64)
    like = np.ones(len(usual))
    forecast = usual * rerouted
    return Cells(forecast, forecast, 0.1 * like, like, like, rerouted, 0 * like), count, sensor


@pytest.mark.parametrize("short_of", [0.0, 0.5, 1.0])
def test_closures_on_record_say_how_much_of_a_change_is_in_doubt(short_of: float) -> None:
    left_out = changed_cells(60, short_of=short_of)
    made = fit_intervals(left_out, left_out, nodes=60, quantity="count")
    assert made is not None and isinstance(made.places.law, CountLaw)
    assert short_of * 0.5 <= made.places.law.closure <= short_of * 1.1 + 0.1
    cells, count, _ = left_out
    lower, upper, _ = made.band(cells, np.zeros(len(count), bool), 90)
    changed = cells.rerouted != 1
    for some in (changed, ~changed):
        assert 0.87 <= ((lower <= count) & (count <= upper))[some].mean() <= 1


def test_without_closures_on_record_half_of_a_change_is_in_doubt() -> None:
    few = changed_cells(8, short_of=0.5)
    made = fit_intervals(few, few, nodes=8, quantity="count")
    assert made is not None and isinstance(made.places.law, CountLaw) and made.places.law.closure == CLOSURE == 0.5
