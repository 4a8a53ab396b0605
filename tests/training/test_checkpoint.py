"""A run on disk: whole or refused with a remedy, never a pickle, and at home wherever its city is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from frigate.baselines.naive import Constant
from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.errors import CheckpointError, CityError, FrigateError, SettingsError
from frigate.evaluation.evaluate import NONE, evaluate, score
from frigate.forecasting.export import write_sample
from frigate.forecasting.forecast import forecast
from frigate.forecasting.forecaster import Forecaster
from frigate.forecasting.live import Live
from frigate.training.checkpoint import TRAINING, load_checkpoint, load_run, load_settings_of, save_checkpoint
from frigate.training.description import damage_named, digest, parse_run, sealed
from frigate.training.run import Run
from frigate.training.train import train
from tests.support.crash_points import at_file_event
from tests.support.errors import names, raises
from tests.support.training_runs import S, equal, tiny, town, weights


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a city and a run of each preset beside it."""
    folder = tmp_path_factory.mktemp("home")
    write_city(town(), folder / "city")
    for name in ("paper", "default"):
        train(read_city(folder / "city"), seen=0.6, settings=tiny(name), folder=folder / name, device="cpu")
    return folder


@pytest.fixture
def moved(home: Path, tmp_path: Path) -> Path:
    """A copy of the run `default` with its city, to be damaged."""
    shutil.copytree(home, tmp_path / "home")
    return tmp_path / "home" / "default"


def last(run: Path) -> Path:
    (at,) = run.glob("checkpoint-*")
    return at


def described(run: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((last(run) / "run.json").read_text())
    return {name: part for name, part in data.items() if name != "digest"}


def describe(run: Path, data: dict[str, Any]) -> None:
    """Write a run's description with the digest that belongs to it."""
    (last(run) / "run.json").write_text(json.dumps(sealed(data)))


def edit(run: Path, **changes: Any) -> None:
    """Change the description of a run and what its tensors' files are, as if all had been written so."""
    files = {path.name: digest(path.read_bytes()) for path in last(run).glob("*.safetensors")}
    describe(run, {**described(run), "files": files, **changes})


@pytest.mark.parametrize("name", ["paper", "default"])
def test_a_run_comes_back_as_it_was_kept(name: str, home: Path) -> None:
    city = read_city(home / "city")
    made = train(city, seen=0.6, settings=tiny(name), device="cpu")
    run = load_run(home / name)
    assert equal(weights(run), weights(made))
    assert run.settings == made.settings == load_settings_of(home / name)
    assert run.scaling.to_json() == made.scaling.to_json()
    assert replace(run.progress, seconds=0) == replace(made.progress, seconds=0)
    for mask in ("seen", "validation", "unseen"):
        np.testing.assert_array_equal(getattr(run.split, mask), getattr(made.split, mask))
    assert (run.split.train, run.split.validate, run.split.test) == (
        made.split.train,
        made.split.validate,
        made.split.test,
    )
    np.testing.assert_array_equal(forecast(run).values, forecast(made).values)
    assert not run.model.training
    assert all(p.device.type == "cpu" for p in run.model.parameters())


def test_a_run_without_the_parts_of_the_week_takes_every_day_as_its_kind(moved: Path) -> None:
    """As runs of 0.1.0 are."""
    path = last(moved) / "usual_counts.safetensors"
    tables = load_file(path)
    known = tables.pop("week")
    assert known.isfinite().any() and known.nan_to_num(nan=1).std() > 0
    save_file(tables, path)
    edit(moved)
    run = load_run(moved)
    assert run.usual_week is None
    demand = Forecaster(run, device="cpu").demand
    assert demand is not None and (demand.week == 1).all()


def test_nothing_is_pickled(home: Path) -> None:
    files = [p for p in (home / "default").rglob("*") if p.is_file() and p.name != TRAINING]
    assert sorted(p.name for p in files) == [
        "intervals.json",
        "metrics.jsonl",
        "run.json",
        "state.safetensors",
        "usual_counts.safetensors",
        "weights.safetensors",
    ]
    for path in files:
        if path.suffix == ".safetensors":
            size = int.from_bytes(path.read_bytes()[:8], "little")
            json.loads(path.read_bytes()[8 : 8 + size])  # a length, a JSON header, then numbers alone
        else:
            for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
                json.loads(line)


def test_run_json_says_what_it_is(home: Path) -> None:
    data = json.loads((last(home / "default") / "run.json").read_text())
    assert data["city"]["network"] == read_city(home / "city").network.fingerprint
    assert data["city"]["folder"] == "../city"  # as seen from the run: both can be moved
    assert {"frigate", "python", "torch", "numpy"} <= set(data["versions"])
    assert not os.path.isabs(data["city"]["folder"])


def test_run_and_city_can_be_moved_together_and_the_run_alone(moved: Path) -> None:
    before = forecast(load_run(moved)).values
    city = moved.parent / "city"
    shutil.move(city, moved.parent / "elsewhere")
    run = load_run(moved)
    for needs_it in (forecast, evaluate, Live, write_sample_of):
        with raises(CheckpointError, "no such folder", "Pass the city"):
            needs_it(run)
    with raises(CityError, "nowhere", "no such folder"):
        evaluate(run, "nowhere")
    there = read_city(moved.parent / "elsewhere")
    np.testing.assert_array_equal(forecast(run, stream=there).values, before)
    assert evaluate(run, moved.parent / "elsewhere", stride=4, device="cpu").city == there.name


def test_a_run_of_a_city_in_memory_needs_it_again(tmp_path: Path) -> None:
    run = train(town(), settings=tiny(epochs=1), folder=tmp_path, device="cpu")
    for each in (run, load_run(tmp_path)):
        for needs_it in (forecast, evaluate, Live):
            with raises(CheckpointError, "Town", "Pass the city"):
                needs_it(each)
    kept, made = (forecast(each, stream=town()) for each in (load_run(tmp_path), run))
    np.testing.assert_array_equal(kept.values, made.values)


def write_sample_of(run: Run) -> None:
    write_sample(run, "never.npz")


# Damage


@pytest.mark.parametrize("file", ["weights.safetensors", "run.json"])
def test_a_file_cut_short_anywhere_is_refused(file: str, moved: Path) -> None:
    path = last(moved) / file
    whole = path.read_bytes()
    for size in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with raises(CheckpointError, file, "Train again"):
            load_run(moved)
    path.unlink()
    with raises(CheckpointError, file, "Train again"):
        load_run(moved)
    path.write_bytes(whole)
    load_run(moved)


def test_a_state_cut_short_stops_only_going_on(moved: Path) -> None:
    path = last(moved) / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    load_run(moved)
    with raises(CheckpointError, "state.safetensors", "damaged"):
        load_checkpoint(moved)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{", "\xff", '{"format": 2}'])
def test_a_description_that_is_something_else_is_refused(content: str, moved: Path) -> None:
    (last(moved) / "run.json").write_text(content, encoding="latin-1")
    for load in (load_run, load_settings_of):
        with raises(CheckpointError, "run.json"):
            load(moved)


@pytest.mark.parametrize("key", ["settings", "scaling", "split", "progress", "city"])
@pytest.mark.parametrize("value", [None, [], {}, "x", 3])
def test_a_part_of_the_description_that_is_wrong_is_refused(key: str, value: Any, moved: Path) -> None:
    edit(moved, **{key: value})
    with raises(CheckpointError, "run.json", "damaged"):
        load_run(moved)


def test_another_version_is_refused(moved: Path) -> None:
    edit(moved, format=4)
    with raises(CheckpointError, "format 4", "6"):
        load_run(moved)
    edit(moved, format=6)
    scaling = json.loads((last(moved) / "run.json").read_text())["scaling"]
    edit(moved, scaling={**scaling, "roads": {**scaling["roads"], "features": ["something"]}})
    with raises(CheckpointError, "features", "version"):
        load_run(moved)


@pytest.mark.parametrize("file", ["weights.safetensors", "state.safetensors"])
def test_tensors_of_another_model_are_refused(file: str, moved: Path) -> None:
    path = last(moved) / file
    tensors = load_file(path)
    name = next(k for k in tensors if k.endswith("start.0.weight") and not k.startswith("exp"))
    save_file({**tensors, name: torch.zeros(2, 3)}, path)
    edit(moved)
    with raises(CheckpointError, file, "tensors"):
        load_checkpoint(moved)
    save_file({k: v for k, v in tensors.items() if k != name}, path)
    edit(moved)
    with raises(CheckpointError, file, "tensors"):
        load_checkpoint(moved)


@pytest.mark.parametrize("file", ["weights.safetensors", "usual_counts.safetensors", "state.safetensors"])
def test_a_flipped_bit_is_refused(file: str, moved: Path) -> None:
    path = last(moved) / file
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    for at in (len(whole) - 1, *rng.integers(0, len(whole), 20)):
        flipped = whole.copy()
        flipped[at] ^= 1 << rng.integers(8)
        path.write_bytes(flipped.tobytes())
        with raises(CheckpointError, file):
            load_checkpoint(moved)


ODD: tuple[Any, ...] = (None, True, -1, 0, 0.5, 1e300, 10**30, float("nan"), "x", "\0", [], {})


def tampered(data: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Change `data` for a while: drop (...), double or replace each field, and the first and last of each list.

    Yields the field's name, what it was and what it is.
    """

    def places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else []
        for key in keys if isinstance(part, dict) else sorted({*keys[:1], *keys[-1:]}):
            yield (*path, key)
            yield from places(part[key], (*path, key))

    for *path, key in places(data):
        inner = reduce(lambda part, key: part[key], path, data)
        was = inner[key]
        doubled = [2 * was] if isinstance(was, int | float | str | list) and not isinstance(was, bool) else []
        name = ".".join(map(str, (*path, key)))
        for value in (*ODD, *doubled):
            if value != was or type(value) is not type(was):
                inner[key] = value
                yield name, was, value
                inner[key] = was
        if isinstance(inner, dict):
            order = list(inner.items())
            del inner[key]
            yield name, was, ...
            inner.clear()
            inner.update(order)


@pytest.mark.parametrize("name", ["paper", "default"])
def test_a_description_changed_anywhere_is_refused(name: str, home: Path, tmp_path: Path) -> None:
    run = tmp_path / name
    shutil.copytree(home / name, run)
    data = json.loads((last(run) / "run.json").read_text())
    passed = []
    for field, _, value in tampered(data):
        (last(run) / "run.json").write_text(json.dumps(data))
        with suppress(CheckpointError):
            load_settings_of(run)
            passed.append((field, value))
    assert passed == []


@pytest.mark.parametrize("name", ["paper", "default"])
def test_a_field_of_another_kind_is_refused_whatever_the_digest(name: str, home: Path) -> None:
    def kind(value: Any) -> str:
        return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__

    may_be_null = {"steps_per_epoch", "memory_gb", "best_mae", "folder", "mean", "demand"}
    may_be_absent = {"closures", "detour_sets", "left_out"}  # from runs of 0.1.0
    unread = {"format", "versions", "files"}  # here: the format and the files' digests have been checked before
    data = described(home / name)
    passed = []
    for field, was, value in tampered(data):
        with suppress(CheckpointError), damage_named(home):
            parse_run(data, home)
            parts = set(field.split("."))
            null = None in (was, value)
            same = kind(value) == kind(was) and (isinstance(was, float) or not isinstance(value, float))
            absent = value is ... and parts & may_be_absent
            if not same and not absent and not parts & unread and not (null and parts & may_be_null):
                passed.append((field, was, value))
    assert passed == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "default"])
def test_however_a_description_is_written_the_run_forecasts_or_is_refused(name: str, moved: Path) -> None:
    run = moved.parent / name
    city = read_city(moved.parent / "city")
    data = described(run)
    for _ in tampered(data):
        describe(run, data)
        with suppress(FrigateError):
            assert forecast(load_run(run), stream=city).values.shape[1] == city.stream.num_nodes


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "no finished epoch"),
        (tmp_path / "none", "there is no such folder"),
        (Path(__file__), "not a folder"),
    ):
        with raises(CheckpointError, words, "`frigate train -o`"):
            load_run(path)


# Writing


def test_half_an_epoch_is_passed_over_and_swept_up(moved: Path) -> None:
    half = moved / ".checkpoint-0009.writing"
    shutil.copytree(last(moved), half)
    (half / "run.json").unlink()
    (moved / "checkpoint-notes").mkdir()
    run, best, state = load_checkpoint(moved)
    assert run.progress.epoch == 3
    save_checkpoint(moved, replace(run.run, progress=replace(run.progress, epoch=4)), weights=best, state=state)
    assert sorted(p.name for p in moved.iterdir()) == [
        ".frigate-training",
        "checkpoint-0004",
        "checkpoint-notes",
        "intervals.json",
        "metrics.jsonl",
    ]


def test_of_two_epochs_the_later_is_read(moved: Path) -> None:
    data = described(moved)
    shutil.copytree(last(moved), moved / "checkpoint-10000")
    data["progress"]["epoch"] = 10_000
    (moved / "checkpoint-10000" / "run.json").write_text(json.dumps(sealed(data)))
    shutil.copytree(moved / "checkpoint-0003", moved / "checkpoint-9999")
    assert load_run(moved).progress.epoch == 10_000


def test_a_run_is_read_while_training_replaces_its_epochs(moved: Path) -> None:
    def next_epoch() -> None:
        shutil.copytree(moved / "checkpoint-0003", moved / "checkpoint-0004")
        shutil.rmtree(moved / "checkpoint-0003")

    before = load_run(moved)
    for read in (load_run, load_settings_of, load_checkpoint):
        disarm = at_file_event("checkpoint-0003/run.json", 1, next_epoch)
        read(moved)
        disarm()
        assert last(moved).name == "checkpoint-0004"
        assert equal(weights(load_run(moved)), weights(before))
        (moved / "checkpoint-0004").rename(moved / "checkpoint-0003")


def test_a_disk_that_cannot_be_written_is_an_error_of_ours(moved: Path) -> None:
    run, best, state = load_checkpoint(moved)
    (moved / "checkpoint-0004").mkdir()
    (moved / "checkpoint-0004" / "something").write_text("")
    with raises(CheckpointError, "epoch", "written"):
        save_checkpoint(moved, replace(run.run, progress=replace(run.progress, epoch=4)), weights=best, state=state)
    shutil.rmtree(moved / "checkpoint-0004")
    load_run(moved)


# Another city


def test_another_step_or_quantity_is_refused(home: Path) -> None:
    run = load_run(home / "default")
    stream = town().stream
    for other, named in (
        (replace(stream, step_s=300), ("step", "300 s", "3600 s")),
        (replace(stream, quantity="speed"), ("quantity", '"speed"', '"count"')),
    ):
        for refuse in (lambda city: evaluate(run, city), lambda city: forecast(run, stream=city)):
            with raises(SettingsError, *named):
                refuse(City("Other", other))


def test_a_city_with_other_nodes_cannot_stand_in(home: Path) -> None:
    run = load_run(home / "default")
    stream = town().stream
    with raises(CheckpointError, "nodes of the split"):
        run.on(renamed())
    elsewhere = replace(stream, networks=(replace(stream.network, lon=stream.network.lon + 0.01),))
    with raises(CheckpointError, "720 m"):
        run.on(City("Elsewhere", elsewhere))


@pytest.mark.parametrize("name", ["paper", "default"])
def test_without_its_city_a_run_forecasts_on_others(name: str, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / name, tmp_path / "run")  # the run alone
    own = load_run(home / name)
    alone = load_run(tmp_path / "run")
    run_on_city = own.on()
    sensors = run_on_city.split.seen | run_on_city.split.unseen
    assert sorted(alone.nodes.node_ids) == sorted(run_on_city.city.stream.node_ids[sensors])
    assert alone.split.seen.sum() == run_on_city.split.seen.sum()
    for stream in (run_on_city.city.stream, town(attributes=False, seed=4).stream, renamed().stream):
        for who in ("seen", "all"):
            known, unknown = (forecast(run, stream=stream, sensors=who) for run in (own, alone))
            np.testing.assert_array_equal(known.values, unknown.values)
            np.testing.assert_array_equal(known.sensor, unknown.sensor)
            assert (known.notices, known.unit, known.quantity) == (unknown.notices, unknown.unit, unknown.quantity)
    assert not (forecast(alone, stream=run_on_city.city.stream).sensor & run_on_city.split.unseen).any()


def renamed() -> City:
    stream = town().stream
    network = replace(stream.network, node_ids=stream.node_ids + 1)
    return City("Renamed", replace(stream, networks=(network,)))


@pytest.mark.parametrize("name", ["lon", "lat"])
def test_places_that_do_not_fit_the_split_are_refused(name: str, moved: Path) -> None:
    told = json.loads((last(moved) / "run.json").read_text())["city"]
    for wrong in (told[name][:-1], None, ["east"] * len(told[name])):
        edit(moved, city={**told, name: wrong})
        with raises(CheckpointError, "run.json", "damaged"):
            load_run(moved)


def test_a_few_nodes_may_have_moved(home: Path) -> None:
    stream = town().stream
    few = np.arange(stream.num_nodes) < 5
    network = replace(stream.network, lon=stream.network.lon + 0.01 * few)
    assert load_run(home / "default").on(City("Mended", replace(stream, networks=(network,)))).split.seen.any()


def test_other_readings_or_changes_are_not_gone_on_with(moved: Path) -> None:
    run = load_run(moved)
    city = run.open_city()
    stream = city.stream
    network = city.network
    load_checkpoint(moved, city=city)
    load_checkpoint(moved, city=City("Same", replace(stream, values=stream.values.copy())))
    t, n = np.argwhere(stream.observed)[7]
    values = stream.values.copy()
    observed = stream.observed.copy()
    values[t, n] += 1
    observed[t, n] = False
    shut = network.close([(network.node_ids[network.senders[0]], network.node_ids[network.receivers[0]])])
    for other, words in (
        (replace(stream, values=values), "readings"),
        (replace(stream, values=stream.values * observed, observed=observed), "readings"),
        (replace(stream, networks=(shut, network), network_of=(np.arange(S) > 9).astype(np.int64)), "changes"),
        (replace(stream, timezone="Asia/Tokyo"), "timezone"),
    ):
        with raises(CheckpointError, "city has changed", f"({words})"):
            load_checkpoint(moved, city=City("Changed", other))
        with raises(CheckpointError, "city has changed"):
            train(City("Changed", other), folder=moved, resume=True, settings=run.settings, device="cpu")
        run.on(City("Changed", other))  # a forecast may well be made from them
    # The same course of networks, kept in another way.
    twice = replace(stream, networks=(shut, network, network), network_of=np.where(np.arange(S) > 9, 1, 2))
    load_checkpoint(moved, city=City("Same", twice))


def test_the_test_period_stays_where_it_was_when_the_record_changes(home: Path) -> None:
    whole = load_run(home / "paper")  # without demand, whose usual counts know the days before
    first, stop = whole.split.test
    scores = evaluate(whole, device="cpu")
    later = City("Later", town().stream.slice(20, S))
    assert whole.on(later).split.test == (first - 20, stop - 20)
    part = evaluate(whole, later, device="cpu")
    assert (part.start, part.end) == (scores.start, scores.end)
    assert part.model.unseen == scores.model.unseen
    for cut in (slice(0, S - 5), slice(S - 10, S)):
        short = City("Short", town().stream.slice(cut.start, cut.stop))
        assert np.isfinite(forecast(whole, stream=short).values).all()
        with raises(SettingsError, "test period"):
            evaluate(whole, short, device="cpu")
    with raises(CheckpointError, "changed", "(start_s, snapshots, readings)"):
        load_checkpoint(home / "default", city=City("Later", town().stream.slice(20, S)))


def test_baselines_are_fitted_on_what_is_left_of_the_training_period(home: Path) -> None:
    run = load_run(home / "default")
    later = City("Later", town().stream.slice(20, S))
    run_on_city = run.on(later)
    assert run_on_city.split.train == (0, run.split.train[1] - 20)
    part = evaluate(run, later, device="cpu")
    left = slice(*run_on_city.split.train)
    median = np.median(
        later.stream.values[left, run_on_city.split.seen][later.stream.observed[left, run_on_city.split.seen]]
    )
    judged = score({"median": Constant(float(median))}, run_on_city.windows(), run_on_city.split, run.settings.task)[
        "median"
    ]
    assert next(row for row in part.rows if row.name == NONE).unseen == judged.summary(run_on_city.split.unseen, seed=0)
    assert names(part.note, "20") and names(part.note, "training period")
    for first in (run.split.train[1], run.split.train[1] + 5):
        with raises(SettingsError, "training period"):
            evaluate(run, City("Late", town().stream.slice(first, S)), device="cpu")
