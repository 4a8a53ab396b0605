"""Every experiment on a town of 30 nodes for one epoch: all its files, nothing done twice, nothing lost by stopping."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.city.network import RoadNetwork
from frigate.config import BASELINES, PRESETS, ModelSettings, Settings, change, preset
from frigate.coordinates import haversine_m
from frigate.errors import CityError, SettingsError
from frigate.evaluation.evaluate import OWN
from frigate.experiments import EXPERIMENTS, Effort, Plan, named
from frigate.experiments.ablated_model import PARTS, without
from frigate.experiments.accuracy import best_baselines
from frigate.experiments.changed_input import THRESHOLD, kept_snapshots, perturbed
from frigate.experiments.plan import FITTED, LABELS, NAIVE, make_plan
from frigate.experiments.runner import Reproduced, reproduce
from frigate.experiments.trials import InputChange, Scored, split_of
from frigate.experiments.variations import topology_trials
from frigate.nn.batch import Batch
from frigate.nn.topology import Topology, make_topology
from frigate.training.checkpoint import load_checkpoint
from frigate.training.run import build_model
from frigate.training.train import new_run
from tests.support.command_line import assert_refused, frigate
from tests.support.errors import raises
from tests.support.forecast_runs import small_city, small_run
from tests.support.html_page import Page
from tests.support.towns import Town, edited, random_network, random_stream, random_town

NAMES = [experiment.name for experiment in EXPERIMENTS]
EACH = pytest.mark.parametrize("name", NAMES)
H = 3
TINY = Effort(
    changes={
        "task": {"past": 9, "horizon": H},
        "model": {"width": 8},
        # Fast enough that the forecasts are not all below 0, which would be clamped and look alike.
        "train": {
            "epochs": 1,
            "steps_per_epoch": 3,
            "batch_size": 2,
            "warmup_steps": 1,
            "validation_windows": 2,
            "learning_rate": 0.05,
            "masks": 2,
        },
    },
    stride=8,
    seeds=(0,),
    shares=(0.3, 0.5),
    layers=(1, 2),
    changed_roads=(0, 20),
    anchors=(1, 2),
    timings=2,
    trees=3,
)


@dataclass(frozen=True)
class Done:
    """All experiments, as they were done once."""

    plan: Plan
    result: Reproduced
    said: list[str]

    @property
    def results(self) -> Path:
        return self.plan.results

    def copy(self, folder: Path) -> Plan:
        """The plan with its results in another folder, to be spoiled."""
        shutil.copytree(self.results, folder)
        return replace(self.plan, results=folder)


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> City:
    network = random_network(30, seed=0)
    stream = random_stream([network, edited(network, seed=1)], seed=0, snapshots=150, silent=0.0)
    folder = tmp_path_factory.mktemp("city") / "tiny"
    write_city(City("tiny", stream), folder)
    return read_city(folder)


@pytest.fixture(scope="module")
def done(city: City, tmp_path_factory: pytest.TempPathFactory) -> Done:
    plan = Plan(city, tmp_path_factory.mktemp("all") / "results", seen=0.5, effort=TINY, device="cpu")
    said: list[str] = []
    return Done(plan, reproduce(EXPERIMENTS, plan, say=said.append), said)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def read(results: Path, name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((results / f"{name}.json").read_text("utf-8"), parse_constant=refuse)
    return data


def written(results: Path) -> dict[str, int]:
    """When each file of the trials was written."""
    paths = [path for path in (results / "runs").rglob("*") if path.is_file()]
    return {str(path.relative_to(results)): path.stat().st_mtime_ns for path in paths}


def sums(results: Path) -> dict[str, bytes]:
    """The errors of every trial, to the bit."""
    found = {}
    for path in sorted((results / "runs").glob("*/*.npz")):
        with np.load(path) as data:
            found[str(path.relative_to(results))] = data["cells"].tobytes() + data["hours"].tobytes()
    return found


# What each experiment leaves


@EACH
def test_the_json_says_all_that_is_needed_to_do_it_again(name: str, done: Done) -> None:
    data = read(done.results, name)
    assert data["experiment"] == name and data["title"] and data["rows"]
    assert (data["city"], data["seen"], data["seeds"]) == ("tiny", 0.5, [0])
    assert data["effort"]["changes"] == TINY.changes
    assert data["hardware"] and {"python", "torch", "numpy"} <= set(data["versions"])
    assert all(set(row) == set(data["columns"]) for row in data["rows"])
    assert all(data["columns"].values())


@EACH
def test_the_csv_has_the_same_rows(name: str, done: Done) -> None:
    data = read(done.results, name)
    with (done.results / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))

    def plain(cell: Any) -> str:
        return "" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell)

    assert rows == [{column: plain(row[column]) for column in data["columns"]} for row in data["rows"]]


@EACH
def test_the_plot_is_there_twice(name: str, done: Done) -> None:
    assert (done.results / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert "<svg" in (done.results / f"{name}.svg").read_text("utf-8")[:2000]


def test_the_page_shows_every_experiment_and_requests_nothing(done: Done) -> None:
    assert done.result == Reproduced(done.results / "report.html", {})
    assert done.result.page is not None
    page = Page(done.result.page)
    for name in NAMES:
        assert f'id="{name}"' in page.raw
        assert read(done.results, name)["title"] in page.text
    assert len(page.having("src")) == len(NAMES)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.having("src"))
    assert not re.search(r"https?://|//\w+\.|url\(|@import", page.raw)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "base"}
    beside = [link for link in page.having("href") if not link.startswith("#")]
    assert beside and all((done.results / link).is_file() for link in beside)
    assert "cannot be read" not in page.text  # plan.json is beside the experiments, but none of them


def test_every_experiment_has_its_rows(done: Done) -> None:
    def models(name: str) -> Counter[str]:
        return Counter(row["model"] for row in read(done.results, name)["rows"])

    best = best_baselines(done.plan, Scored(done.plan))
    simple = [name[:1].upper() + name[1:] for name in (*NAIVE, "kriging")]
    trained = [LABELS[name] for name in (*BASELINES, *PRESETS)]
    extended = [f"{LABELS[name]} + roads, hiding" for name in best]
    learnt = [LABELS[name] for name in FITTED[1:]]
    assert models("accuracy") == Counter([*simple, *learnt, *trained, *extended, OWN])
    assert {row["seeds"] for row in read(done.results, "accuracy")["rows"]} == {1}
    assert models("horizon") == dict.fromkeys(["Nearest sensors", "Kriging", *learnt, *trained, OWN], H)
    assert set(models("traffic-buckets").values()) == {3}
    swept = [LABELS[name] for name in ("dcrnn", "stnn", "stgode", "localegn", *PRESETS)]
    assert models("seen-sweep") == dict.fromkeys(swept, 2 * (1 + H))
    assert models("topology") == dict.fromkeys((LABELS[name] for name in PRESETS), 2)
    assert models("irregular") == dict.fromkeys((LABELS[name] for name in PRESETS), 3)
    assert [row["layers"] for row in read(done.results, "layers")["rows"]] == [1, 2]
    assert len(read(done.results, "ablation")["rows"]) == 1 + len(PARTS)


def test_an_unchanged_trial_is_scored_once(done: Done) -> None:
    """The true roads, all snapshots and the whole model are one trial, wherever they stand."""
    plain = {row["model"]: row["mae"] for row in read(done.results, "accuracy")["rows"]}
    for name, column, value in (("topology", "changed", 0), ("irregular", "past", "regular")):
        for row in read(done.results, name)["rows"]:
            assert (row["mae"] == plain[row["model"]]) == (row[column] == value)
    whole, *others = read(done.results, "ablation")["rows"]
    assert whole["mae"] == plain["Frigate (paper)"]
    assert all(row["mae"] != whole["mae"] for row in others)


def test_all_models_of_a_share_and_seed_have_the_same_sensors(done: Done) -> None:
    expected = split_of(done.plan, done.plan.recipe("zero"))
    recipes = [done.plan.recipe(model) for model in ("dcrnn", "paper", "default")]
    for recipe in (*recipes, done.plan.recipe("paper", without="moments")):
        built = without(recipe.without) if recipe.without else build_model
        run = load_checkpoint(done.plan.folder(recipe), city=done.plan.city, build=built)[0]
        for part in ("seen", "unseen"):
            np.testing.assert_array_equal(getattr(run.split, part), getattr(expected, part))
        held_out = expected.validation & (run.settings.train.validation == "seen")  # `default` holds none out
        np.testing.assert_array_equal(run.split.validation, held_out)


# Again, stopped, several at once


def test_a_second_call_repeats_no_trial_and_without_matplotlib_all_but_the_plots_is_written(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = done.copy(tmp_path / "results")
    for path in [*plan.results.glob("*.png"), *plan.results.glob("*.svg"), *plan.results.glob("*.csv")]:
        path.unlink()
    (plan.results / "accuracy.json").unlink()
    (plan.results / "datasets.json").write_text("half a fi")
    before = written(plan.results)
    said = list[str]()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = reproduce(EXPERIMENTS, plan, say=said.append)
    assert written(plan.results) == before
    assert not any("done" in line for line in said)
    assert sum("no plot: matplotlib is not installed" in line for line in said) == len(NAMES)
    assert not list(plan.results.glob("*.png"))
    for name in NAMES:
        assert read(plan.results, name)["rows"] == read(done.results, name)["rows"]
    # What takes a moment is made anew with its table; what was measured stays.
    assert (plan.results / "datasets.csv").read_bytes() == (done.results / "datasets.csv").read_bytes()
    assert result.page is not None
    page = Page(result.page)
    assert page.text.count("No plot: matplotlib was not installed") == len(NAMES)
    assert page.having("src") == []


def test_untrained_measurements_are_not_repeated(done: Done, tmp_path: Path) -> None:
    plan = done.copy(tmp_path / "results")
    (plan.results / "inference-time.png").unlink()
    before = {name: (plan.results / f"{name}.json").stat().st_mtime_ns for name in NAMES}
    reproduce(named("inference-time"), plan)
    assert {name: (plan.results / f"{name}.json").stat().st_mtime_ns for name in NAMES} == before
    assert (plan.results / "inference-time.png").exists()
    more = replace(plan, effort=replace(TINY, timings=3), models=("stgcn",))
    reproduce(named("inference-time"), more)
    assert [(row["model"], row["timings"]) for row in read(plan.results, "inference-time")["rows"]] == [("STGCN", 3)]


def test_stopped_half_way_it_goes_on_and_equals_a_straight_run(city: City, tmp_path: Path) -> None:
    train = {**TINY.changes["train"], "epochs": 2}
    effort = replace(TINY, changes={**TINY.changes, "train": train}, changed_roads=(0, 20))
    models = ("dcrnn", "stgcn", "paper", "nearest sensors")
    straight = Plan(city, tmp_path / "straight", 0.5, effort, device="cpu", models=models)
    halves = replace(straight, results=tmp_path / "halves")
    experiments = [*named("accuracy"), *named("topology")]
    reproduce(experiments, straight)

    def stop(done: int, total: int, words: str) -> None:
        if words == "stgcn-50-0, epoch 2/2":  # in the middle of a training
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(experiments, halves, progress=stop)
    before = written(halves.results)
    assert any(path.startswith("runs/stgcn-50-0/checkpoint-0001/") for path in before)
    finished = [path for path in before if path.endswith(".npz")]
    assert finished and "runs/stgcn-50-0/test.npz" not in before
    said: list[str] = []
    assert reproduce(experiments, halves, say=said.append).left_out == {}
    after = written(halves.results)
    for path, when in before.items():
        if not path.startswith("runs/stgcn-50-0/"):
            assert after[path] == when
    again = {line.split(":")[0] for line in said if ": done" in line}
    assert again.isdisjoint(Path(path).parent.name for path in finished)
    assert sums(halves.results) == sums(straight.results)
    for name in ("accuracy", "topology"):
        assert read(halves.results, name)["rows"] == read(straight.results, name)["rows"]


def test_several_at_once_give_the_same_numbers(done: Done, tmp_path: Path) -> None:
    models = ("dcrnn", "paper", "clock profile")
    plan = replace(done.plan, results=tmp_path / "results", models=models)
    assert reproduce([*named("horizon"), *named("irregular")], plan, jobs=2).left_out == {}
    mine = sums(plan.results)
    theirs = sums(done.results)
    assert {"runs/dcrnn-50-0/test.npz", "runs/paper-50-0/masked.npz"} <= set(mine)
    assert mine == {path: theirs[path] for path in mine}
    with raises(SettingsError, "city on disk"):
        reproduce(named("horizon"), replace(plan, city=replace(plan.city, folder=None), seen=0.4), jobs=2)
    with raises(SettingsError, "jobs = 0", "at least 1"):
        reproduce(named("horizon"), plan, jobs=0)


# What is refused, and what can be missing


def test_results_of_another_city_or_effort_are_not_mixed(done: Done) -> None:
    plan, stream = done.plan, done.plan.city.stream
    before = written(plan.results)
    values = stream.values.copy()
    values[3, 3] += 1
    for other, words in (
        (replace(plan, effort=replace(TINY, stride=4)), "different stride"),
        (replace(plan, effort=replace(TINY, trees=4, changes={})), "different settings and trees"),
        (replace(plan, city=replace(plan.city, name="other")), "different city"),
        (replace(plan, city=replace(plan.city, stream=replace(stream, values=values))), "different readings"),
        (replace(plan, splits=plan.results), "different splits"),
    ):
        with raises(SettingsError, words, "another folder"):
            reproduce(named("datasets"), other)
    # Other seeds, shares or models belong to the same results.
    reproduce(named("parameters"), replace(plan, effort=replace(TINY, seeds=(0, 1)), models=("paper", "dcrnn")))
    assert written(plan.results) == before


def test_a_folder_that_cannot_hold_results_is_refused(done: Done, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(SettingsError, "file", "-o"):
        reproduce(named("datasets"), replace(done.plan, results=tmp_path / "file"))
    (tmp_path / "plan.json").write_text("{")
    with raises(SettingsError, "plan.json", "damaged"):
        reproduce(named("datasets"), replace(done.plan, results=tmp_path))


def test_an_unknown_experiment_is_refused_with_a_hint() -> None:
    with raises(SettingsError, '"acuracy"', '"accuracy"', "all, datasets"):
        named("acuracy")
    assert [experiment.name for experiment in named("all")] == NAMES


def test_a_model_that_cannot_be_had_is_named_and_the_rest_goes_on(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = done.copy(tmp_path / "results")
    shutil.rmtree(plan.results / "runs" / "lightgbm-50-0")
    before = written(plan.results)
    experiments = [*named("accuracy"), *named("horizon")]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "lightgbm", None)
        result = reproduce(experiments, plan)
    assert list(result.left_out) == ["lightgbm-50-0"]
    assert "pip install" in result.left_out["lightgbm-50-0"]
    for experiment in experiments:
        data = read(plan.results, experiment.name)
        whole = read(done.results, experiment.name)
        assert any(note.startswith("Left out: LightGBM (lightgbm is not installed") for note in data["notes"])
        assert data["rows"] == [row for row in whole["rows"] if row["model"] != "LightGBM"]
    assert written(plan.results) == before
    assert reproduce(experiments, plan).left_out == {}
    for experiment in experiments:
        data = read(plan.results, experiment.name)
        whole = read(done.results, experiment.name)
        assert data["rows"] == whole["rows"] and data["notes"] == whole["notes"]


def test_a_file_of_sensors_is_used_where_there_is_one(city: City, tmp_path: Path) -> None:
    seen = np.sort(np.random.default_rng(5).permutation(30)[:13])
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "tiny-50-0.txt").write_text("\n".join(map(str, city.stream.node_ids[seen].tolist())))
    models = ("dcrnn", "nearest sensors")
    plan = Plan(city, tmp_path / "results", 0.5, TINY, splits=tmp_path / "splits", device="cpu", models=models)
    reproduce(named("horizon"), plan)
    run = load_checkpoint(plan.folder(plan.recipe("dcrnn")), city=city)[0]
    for split in (run.split, Scored(plan).split(plan.recipe("nearest sensors"))):
        assert np.flatnonzero(split.seen).tolist() == seen.tolist()
    assert read(plan.results, "horizon")["splits"] == "splits"
    # Where there is none, the seed draws.
    assert plan.sensors(plan.recipe("dcrnn", seen=0.3)) == 0.3
    assert plan.sensors(plan.recipe("dcrnn", seed=1)) == 0.5
    (tmp_path / "splits" / "tiny-30-0.txt").write_text("nowhere")
    with raises(CityError, "tiny-30-0.txt line 1"):
        plan.sensors(plan.recipe("dcrnn", seen=0.3))


@pytest.mark.parametrize("quick", [False, True])
def test_another_size_of_batches_is_used_and_told(quick: bool, city: City, tmp_path: Path) -> None:
    plan = make_plan(city, tmp_path / "results", quick=quick, batch_size=5, models="zero")
    assert {plan.settings(plan.recipe(name)).train.batch_size for name in (*PRESETS, *BASELINES)} == {5}
    reproduce(named("datasets,parameters"), plan)
    for name in ("datasets", "parameters"):
        command = read(plan.results, name)["command"]
        assert "--batch-size 5" in command and ("--quick" in command) == quick
    with raises(SettingsError, "batch_size"):
        make_plan(city, tmp_path / "results", batch_size=0)


def test_the_command(done: Done, tmp_path: Path) -> None:
    where = str(done.plan.city.folder)
    out = str(tmp_path / "results")
    said = frigate("reproduce", "datasets,parameters", where, "-o", out, "--models", "stgcn,paper", "--device", "cpu")
    assert said.out == f"Report (open it in a browser): {out}/report.html\n"
    assert len(read(tmp_path / "results", "parameters")["rows"]) == 2
    for more, words in (
        (["--seeds", "0,x"], ('--seeds "0,x"',)),
        (["--seeds", "-1"], ("-1",)),
        (["--seen", "100%"], ("100 %",)),
        (["--splits", f"{out}/nowhere"], ("nowhere", "no such folder")),
        (["--models", "stgcn,dcrn"], ("--models", '"dcrn"')),
        (["--quick"], ("settings and stride and trees",)),
    ):
        assert_refused(frigate("reproduce", "datasets", where, "-o", out, *more), *words)
    assert_refused(frigate("reproduce", "dataset", where, "-o", out), '"datasets"')


# The two best baselines, and how baselines are trained


def test_the_best_baselines_are_those_with_the_least_error(done: Done, tmp_path: Path) -> None:
    plan = done.copy(tmp_path / "results")
    maes = {row["model"]: row["mae"] for row in read(done.results, "accuracy")["rows"]}
    *best, _, _, worse, worst = sorted(BASELINES, key=lambda name: maes[LABELS[name]])
    assert best_baselines(plan, Scored(plan)) == best
    # The two worst, as good as a sensor.
    assert maes[OWN] < maes[LABELS[best[0]]]
    for model in (worse, worst):
        shutil.copy(*(plan.folder(plan.recipe(name)) / "test.npz" for name in (OWN, model)))
    assert set(best_baselines(plan, Scored(plan))) == {worse, worst}
    assert best_baselines(replace(plan, models=("stgcn", "paper")), Scored(plan)) == ["stgcn"]


def test_a_baseline_is_trained_by_the_papers_protocol_and_with_roads_also_with_hiding(
    city: City, tmp_path: Path
) -> None:
    plan = Plan(city, tmp_path)
    ours = preset("default").train
    protocol = preset("paper").train
    for name in BASELINES:
        plain, roads = (plan.settings(plan.recipe(name, seed=4, roads=roads)) for roads in (False, True))
        assert plain == replace(preset(name), train=replace(protocol, seed=4))
        told = {"hide": ours.hide, "visible_weight": ours.visible_weight}
        assert roads == change(plain, {"model": {"roads": True}, "train": told})
        assert roads.train.epochs * (roads.train.steps_per_epoch or 0) == 600
    assert ours.hide != protocol.hide and ours.visible_weight != protocol.visible_weight
    assert plan.settings(plan.recipe("paper", layers=4)).model.layers == 4
    small = replace(plan, effort=TINY).settings(plan.recipe("paper"))
    assert isinstance(small.model, ModelSettings)
    assert (small.model.width, small.model.anchors, small.task.past) == (8, 4, 9)


def test_no_two_recipes_share_a_folder(city: City, tmp_path: Path) -> None:
    plan = Plan(city, tmp_path)
    recipes = [
        plan.recipe(model, seed=seed, seen=seen)
        for model in (*NAIVE, *FITTED, *BASELINES, *PRESETS, OWN)
        for seed in (0, 1)
        for seen in (0.1, 0.3)
    ]
    recipes += [plan.recipe("paper", layers=layers) for layers in (1, 16)]
    recipes += [plan.recipe("paper", without=part) for part in PARTS]
    recipes += [plan.recipe(model, roads=True) for model in BASELINES]
    assert len({recipe.name for recipe in recipes}) == len(recipes)
    assert all(re.fullmatch(r"[a-z0-9.-]+", recipe.name) for recipe in recipes)


# A third of the past missing


def test_two_thirds_of_the_snapshots_are_left_in_their_order() -> None:
    keep = kept_snapshots(3000, 12, torch.Generator().manual_seed(0))
    assert keep.shape == (3000, 8)
    assert (keep.diff(dim=1) > 0).all() and keep.min() == 0 and keep.max() == 11
    share = torch.bincount(keep.flatten(), minlength=12) / 3000
    assert torch.allclose(share, torch.tensor(2 / 3), atol=0.05)
    assert len({tuple(row) for row in keep.tolist()}) > 400  # of 495: each window has its own
    assert torch.equal(kept_snapshots(3000, 12, torch.Generator().manual_seed(0)), keep)


KEPT = torch.tensor([[0, 3], [1, 2]])  # of four


def thinned(*, masked: bool) -> tuple[Batch, Batch]:
    """Two windows of a run with demand: whole, and with half of their past."""
    run = new_run(small_city(), settings=small_run().settings, seen=0.8)
    whole = run.windows()
    inputs = torch.from_numpy(run.split.seen)
    asked: dict[str, Any] = {"past": 4, "horizon": 3, "inputs": inputs}
    some = whole.thinned(lambda windows, past: KEPT, masked=masked)
    return whole.batch(np.array([30, 47]), **asked), some.batch(np.array([30, 47]), **asked)


def test_dropped_snapshots_are_gone() -> None:
    whole, found = thinned(masked=False)
    assert (found.past, found.horizon, found.topologies) == (2, whole.horizon, whole.topologies)
    for b, snapshots in enumerate(KEPT.tolist()):
        for part in ("values", "observed", "time_past", "topology_of", "usual_past"):
            assert torch.equal(getattr(found, part)[b], getattr(whole, part)[b, snapshots])
    for part in ("time_future", "target", "target_observed"):
        assert torch.equal(getattr(found, part), getattr(whole, part))


def test_masked_snapshots_are_there_without_readings() -> None:
    whole, found = thinned(masked=True)
    assert found.past == 4
    assert torch.equal(found.time_past, whole.time_past) and torch.equal(found.topology_of, whole.topology_of)
    for b, snapshots in enumerate(KEPT.tolist()):
        for t in range(4):
            there = whole.observed[b, t] if t in snapshots else torch.zeros(25, dtype=torch.bool)
            assert torch.equal(found.observed[b, t], there)
            assert torch.equal(found.values[b, t], whole.values[b, t] * there)
    assert found.observed.sum() < whole.observed.sum()


def test_demand_does_not_know_snapshots_that_are_missing() -> None:
    (whole, dropped), (_, masked) = (thinned(masked=each) for each in (False, True))
    assert whole.demand is not None and dropped.demand is not None and masked.demand is not None
    torch.testing.assert_close(dropped.demand, masked.demand)
    assert (dropped.demand - whole.demand).abs().max() > 0.1


# Other roads


def roads_of(network: RoadNetwork) -> dict[tuple[int, int], float]:
    ends = zip(network.senders.tolist(), network.receivers.tolist(), strict=True)
    return dict(zip(ends, network.length_m.tolist(), strict=True))


@pytest.mark.parametrize("percent", [2, 5, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_half_of_the_changed_roads_are_dropped_and_as_many_built(percent: float, seed: int) -> None:
    network = random_network(80, seed=seed).remove_nodes(random_network(80, seed=seed).node_ids[:2].tolist())
    other = perturbed(network, percent=percent, seed=seed)
    before = roads_of(network)
    after = roads_of(other)
    count = round(percent / 200 * network.num_edges)
    new = sorted(set(after) - set(before))
    assert len(set(before) - set(after)) == len(new) == count > 0
    assert all(after[road] == before[road] for road in set(after) & set(before))
    most_m = THRESHOLD * float(np.median(network.length_m))
    for u, v in new:
        assert u != v and (u, v) not in before and (v, u) not in before
        assert network.present[u] and network.present[v]
        assert haversine_m(*(x[[i]] for i in (u, v) for x in (network.lon, network.lat)))[0] <= 1.001 * most_m
        assert after[u, v] in before.values()
    assert other.num_nodes == network.num_nodes
    assert perturbed(network, percent=percent, seed=seed).fingerprint == other.fingerprint
    assert perturbed(network, percent=percent, seed=seed + 1).fingerprint != other.fingerprint


def test_no_road_changed_is_the_network_as_it_is(done: Done) -> None:
    network = random_network(30, seed=0)
    assert perturbed(network, percent=0, seed=0).fingerprint == network.fingerprint
    assert [trial.change.name for trial in topology_trials(done.plan, Scored(done.plan))] == 2 * ["test", "roads-20"]
    fitted: Any = object()
    assert InputChange().apply(fitted, done.plan, done.plan.recipe("paper")) is fitted


def test_no_road_is_built_where_no_two_nodes_are_free() -> None:
    network = random_network(12, seed=0, roads_per_node=60)
    assert network.num_edges > 0.99 * 12 * 11 - 2
    other = perturbed(network, percent=20, seed=0)
    assert network.num_edges - other.num_edges == round(0.1 * network.num_edges)


# Ablations


def noisy(town: Town, part: str = "") -> torch.nn.Module:
    """The paper's model, whole or without a part, in use."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = (without(part) if part else build_model)(Settings(model=town.settings), town.scaling)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def with_roads(batch: Batch, topologies: Sequence[Topology]) -> Batch:
    return replace(batch, topologies=tuple(topologies))


def others(batch: Batch, town: Town, part: str) -> tuple[Batch, Batch]:
    """Two batches that differ in nothing but what the part reads."""
    draws = torch.Generator().manual_seed(0)
    (topology,) = batch.topologies
    if part == "positions":
        other = replace(topology, positions=torch.rand(topology.positions.shape, generator=draws))
    elif part == "gate":
        other = replace(topology, length_m=topology.length_m[torch.randperm(topology.num_edges, generator=draws)])
    elif part == "moments":  # which alone go by the neighbours
        shuffled = torch.randperm(len(topology.neighbour), generator=draws)
        other = replace(topology, neighbour=topology.neighbour[shuffled])
    else:  # All roads reversed. The gate knows the ends of a road by their positions, so these are taken away.
        topology = replace(topology, positions=torch.zeros_like(topology.positions))
        network = town.stream.network
        turned = replace(network.edges, senders=network.receivers, receivers=network.senders)
        other = make_topology(
            network.with_roads(turned),
            positions=topology.positions.numpy(),
            road_features=topology.road_features.numpy(),
            near_sensor=topology.near_sensor.numpy(),
            near_distance_m=topology.near_distance_m.numpy(),
        )
    return with_roads(batch, [topology]), with_roads(batch, [other])


@pytest.mark.parametrize("part", PARTS)
def test_the_part_is_really_gone_and_nothing_else(part: str) -> None:
    town = random_town("paper")
    batch = town.batch([9, 12, 20])
    with torch.inference_mode():
        for scaling in ("", *PARTS):
            model = noisy(town, scaling)
            left, right = (model(each).double() for each in others(batch, town, part))
            gone = part == scaling or (part, scaling) == ("directions", "gate")  # GraphSAGE knows no directions either
            assert left.isfinite().all()
            assert torch.allclose(left, right, rtol=1e-4, atol=1e-4) == gone, scaling


def test_an_ablation_differs_from_the_whole_in_its_part_alone() -> None:
    town = random_town("paper")
    whole = dict(noisy(town).named_parameters())
    for part in PARTS:
        mine = dict(noisy(town, part).named_parameters())
        assert any(name not in whole or whole[name].shape != mine[name].shape for name in mine)
        for name in ("encoder.weight_hh_l0", "decoder.weight_hh", "length"):
            assert mine[name].shape == whole[name].shape
        assert all(bool(parameter.isfinite().all()) for parameter in mine.values())


def test_an_unknown_part_is_refused() -> None:
    with raises(SettingsError, '"gates"', "gate, positions, directions, moments"):
        without("gates")


@pytest.mark.slow
def test_all_of_it_quickly_on_the_demo_town(tmp_path: Path) -> None:
    """What `frigate reproduce all --quick` says it does, from nothing to a page that opens offline."""
    command = [sys.executable, "-m", "frigate", "reproduce", "all", "--quick", "-o", "results"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=3600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    page = (tmp_path / "results" / "report.html").read_text(encoding="utf-8")
    for experiment in EXPERIMENTS:
        assert f'id="{experiment.name}"' in page
        for suffix in (".json", ".csv", ".png", ".svg"):
            assert (tmp_path / "results" / experiment.name).with_suffix(suffix).stat().st_size > 0
    assert not re.search(r'(src|href)="https?://', page)
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert again.returncode == 0
    assert "done (" not in again.stderr  # no trial is done twice
