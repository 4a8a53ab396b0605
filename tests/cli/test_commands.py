"""The command line as a person types it, with typos; the demo; and the commands on a bare machine."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import frigate as fg
from frigate.baselines.naive import Constant
from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.cli.console import progress
from frigate.cli.demo import Demo, demo_settings, is_finished, run_demo
from frigate.cli.imports import BENCHMARKS, parse_map
from frigate.cli.main import COMMANDS, build_parser
from frigate.cli.parser import CommandGroup
from frigate.cli.reproduce import EXPERIMENTS as EXPERIMENT_NAMES
from frigate.config import change
from frigate.errors import SettingsError
from frigate.evaluation import evaluate
from frigate.evaluation.evaluate import forecaster_of
from frigate.experiments import EXPERIMENTS
from frigate.nn.windows import Windows
from frigate.pages.trust import verdict
from frigate.serve.store import DEFAULT_FILE, open_store
from frigate.simulate.demo_city import usual_weekday
from frigate.simulate.streets import BRIDGE_NAMES
from frigate.sources.benchmarks.importer import KINDS
from frigate.training.checkpoint import load_run
from frigate.training.run import RunOnCity
from tests.support.command_line import Output, assert_refused, frigate
from tests.support.crash_points import frigate_signalled
from tests.support.errors import raises
from tests.support.map_page import MapFile
from tests.support.training_runs import S, first_road, town

SETTINGS = """
[task]
past = 4
horizon = 4
[model]
width = 8
layers = 2
hidden = 8
[train]
epochs = 2
steps_per_epoch = 2
masks = 3
batch_size = 4
validation_windows = 4
"""


def write_sources(folder: Path) -> None:
    """What a user has: a matrix, a table of nodes and a table of roads, with names of their own."""
    stream = town().stream
    network = stream.network
    ids = stream.node_ids.tolist()
    np.savez(folder / "counts.npz", counts=np.where(stream.observed, stream.values, np.nan))
    nodes = [f"{i},{x},{y}" for i, x, y in zip(ids, network.lon, network.lat, strict=True)]
    (folder / "nodes.csv").write_text("\n".join(["id,lon,lat", *nodes]))
    roads = zip(network.senders.tolist(), network.receivers.tolist(), network.length_m.tolist(), strict=True)
    (folder / "edges.csv").write_text("\n".join(["src,dst,metres", *(f"{ids[a]},{ids[b]},{m}" for a, b, m in roads)]))
    (folder / "settings.toml").write_text(SETTINGS)


IMPORT = (
    "--values counts --timezone UTC --start 2024-01-01T08:00 --step 1h --nodes nodes.csv --edges edges.csv "
    "--map id=node_id,src=source,dst=target,metres=length_m"
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sources, the city imported from them, and a run."""
    folder = tmp_path_factory.mktemp("cli")
    write_sources(folder)
    for words in (
        f"import matrix counts.npz {IMPORT} -o city",
        "train city -o run --settings settings.toml --seen 60% --device cpu",
    ):
        with contextlib.chdir(folder):
            said = frigate(*words.split())
        assert said.status == 0, said.err
    return folder


@pytest.fixture
def here(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(kept)
    monkeypatch.setenv("COLUMNS", "10000")  # as piped: whatever terminal the tests were started from
    return kept


@pytest.fixture
def copy(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder to be spoiled."""
    shutil.copytree(kept, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


# What works


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [(["--version"], 0, "frigate "), (["tarin"], 2, "tarin"), (["check", "nowhere"], 2, "nowhere")],
)
def test_a_process_of_torchrun_keeps_its_status_and_output_and_skips_the_teardown(
    words: list[str], status: int, said: str
) -> None:
    code = "import atexit, runpy; atexit.register(print, 'teardown'); runpy.run_module('frigate', None, '__main__')"
    here = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for variable, ends in (("TORCHELASTIC_RUN_ID", False), ("OTHER", True)):
        ended = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=here | {variable: "1"},
            text=True,
            capture_output=True,
            check=False,
        )
        assert ended.returncode == status
        assert said in ended.stdout + ended.stderr and "Traceback" not in ended.stderr
        assert ("teardown" in ended.stdout) == ends


def test_help_names_the_commands_in_the_order_of_use() -> None:
    said = frigate("--help")
    assert (said.status, said.err) == (0, "")
    listed = re.findall(r"^  ([a-z]+)  +[A-Z]", said.out, re.MULTILINE)
    wanted = (
        "demo import check demand place train evaluate forecast scenario report serve token audit replay reproduce "
        "bench export completion"
    )
    assert " ".join(listed) == wanted
    for command in COMMANDS:
        own = frigate(command.name, "--help")
        assert own.status == 0 and command.summary in " ".join(own.out.split())
        for inner in command.commands if isinstance(command, CommandGroup) else ():
            assert frigate(command.name, inner.name, "--help").out.startswith(f"usage: frigate {command.name} ")
    assert all(len(line) <= 80 for line in said.out.splitlines())


def test_without_a_command_there_is_help() -> None:
    assert frigate().out == frigate("--help").out
    assert frigate("import").out == frigate("import", "--help").out
    assert (frigate().status, frigate("import").status) == (2, 2)


def test_help_names_every_experiment_and_every_data_set() -> None:
    assert EXPERIMENT_NAMES.split(", ") == [experiment.name for experiment in EXPERIMENTS]
    assert BENCHMARKS.split(", ") == list(KINDS)


def test_the_version_is_the_packages() -> None:
    assert frigate("--version").out == f"frigate {fg.__version__}\n"


def test_help_and_mistakes_need_not_wait_for_torch() -> None:
    code = "import sys; from frigate.cli.main import main\ntry: main({words})\nexcept SystemExit: pass\n"
    for words in (["--help"], ["train", "--help"], ["reproduce"], ["import", "osn"]):
        heavy = "assert not {'torch', 'numpy', 'polars', 'rich'} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", code.format(words=words) + heavy], check=True, capture_output=True)


def test_options_and_arguments_in_any_order() -> None:
    parse = build_parser().parse_args
    typed = parse(["reproduce", "accuracy", "--seen", "10%", "-o", "out", "city", "--quick"])
    assert (typed.name, typed.city, typed.seen, typed.quick) == ("accuracy", Path("city"), "10%", True)
    assert typed == parse(["reproduce", "--quick", "--seen=10%", "accuracy", "city", "-oout"])
    typed = parse(["import", "traces", "a.csv", "--network", "town", "b.csv", "-o", "out"])
    assert typed.traces == [Path("a.csv"), Path("b.csv")]
    typed = parse(
        ["forecast", "run", "--close", "-5,7", "--close", "1,2", "--add", "-1,-2,30"]
    )  # ids of an edited OSM file
    assert (typed.close, typed.add) == (["-5,7", "1,2"], ["-1,-2,30"])
    assert parse(["check", "--", "-o"]).city == Path("-o")


def test_import_then_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    said = frigate("import", "matrix", "counts.npz", *IMPORT.split(), "-o", "city", "--csv", "--unit", "cars")
    assert said.status == 0, said.err
    network = town().network
    sensors = int(read_city("city").stream.sensors.sum())
    assert said.out == f"30 nodes, {network.num_edges} roads, {S} snapshots, sensors at {sensors}: city\n"
    assert (tmp_path / "city" / "readings.csv").exists()
    city = read_city(tmp_path / "city")
    np.testing.assert_array_equal(city.stream.values, town().stream.values)
    np.testing.assert_array_equal(city.stream.observed, town().stream.observed)
    said = frigate("check", "city", "--positions")
    assert said.status == 0
    assert "30 nodes" in said.out
    assert "16 random anchors: distortion" in said.out
    told = json.loads(frigate("check", "city", "--positions", "--json").out)
    assert (told["nodes"], told["snapshots"], told["unit"]) == (30, S, "cars")
    assert told["distortions"]["bourgain"]["expansion"] <= 1
    assert json.loads(frigate("check", "city", "--json").out)["distortions"] is None


def test_train_says_every_epoch_and_one_line_at_the_end(here: Path, tmp_path: Path) -> None:
    words = ("train", "city", "-o", tmp_path / "run", "--settings", "settings.toml", "--seed", "3", "--device", "cpu")
    said = frigate(*words, "--epochs", "3", "--preset", "default")
    assert said.status == 0, said.err
    parts = [line.split(":")[0] for line in said.err.splitlines()]
    assert parts == ["epoch 1", "epoch 2", "epoch 3", "trained on cpu"]
    trust = r"with \d+% of the learned correction"
    assert re.fullmatch(
        rf"Validation MAE at hidden sensors [\d.]+ after epoch 3 of 3, {trust}: {tmp_path / 'run'}\n", said.out
    )
    told = json.loads(frigate(*words, "--epochs", "3", "--resume", "--json").out)
    assert (told["epoch"], told["finished"]) == (3, True)
    assert told["parameters"] > 100
    data = json.loads(next((tmp_path / "run").glob("checkpoint-*/run.json")).read_text())
    assert data["settings"]["train"]["seed"] == 3
    assert data["settings"]["model"]["width"] == 8


def test_the_reference_trains_to_the_same_and_says_so(here: Path, tmp_path: Path) -> None:
    words = ("train", "city", "--settings", "settings.toml", "--device", "cpu", "--epochs", "1", "--json")
    told = {
        name: json.loads(frigate(*words, "-o", tmp_path / name, "--kernels", name).out)
        for name in ("auto", "reference")
    }
    assert [each["kernels"] for each in told.values()] == ["CPU kernels", "plain torch operations"]
    assert told["auto"]["best_mae"] == pytest.approx(told["reference"]["best_mae"], rel=0.2)  # dropout draws otherwise
    forecasts = []
    for name in told:
        made = json.loads(frigate("forecast", tmp_path / "auto", "--kernels", name, "--json").out)
        forecasts.append(np.array([node["values"] for node in made["nodes"]], float))
    assert np.allclose(forecasts[0], forecasts[1], rtol=1e-4, atol=1e-4, equal_nan=True)
    refused = frigate("forecast", tmp_path / "auto", "--kernels", "fast")
    assert_refused(refused, '"fast"', "auto, reference")


def evaluated(*words: object) -> Output:
    """Without LightGBM, whose fit takes seconds."""
    return frigate("evaluate", *words, "--lightgbm", "no", "--device", "cpu")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--preset", "paper", "--settings", "paper.toml"], ""),
        (["--split", "region", "--seen", "0.6"], ""),
        (["--seen", "all"], ""),
        (["--seen", "seen.txt"], ""),
        (["--validation", "unseen"], "note: validation = unseen: the test nodes choose the checkpoint"),
    ],
)
def test_train_as_told(more: list[str], words: str, here: Path, tmp_path: Path) -> None:
    (here / "paper.toml").write_text(SETTINGS.replace("width = 8", "width = 8\nanchors = 4"))
    sensors = town().stream.node_ids[town().stream.sensors].tolist()
    (here / "seen.txt").write_text("\n".join(map(str, sensors[:12])))
    if "--settings" not in more:
        more = [*more, "--settings", "settings.toml"]
    said = frigate("train", "city", "-o", tmp_path / "run", *more, "--epochs", "1", "--device", "cpu")
    assert said.status == 0, said.err
    assert words in said.err
    result = evaluated(tmp_path / "run", "--json")
    told = json.loads(result.out)
    if "all" in more:
        assert told["nodes"]["unseen"] == []
        assert "All nodes with readings are seen" in told["note"]
        table = evaluated(tmp_path / "run")
        assert "say nothing about nodes without a sensor" in table.err
        assert f"{len(sensors)} sensors" in table.out
    if "seen.txt" in more:
        assert sorted(told["nodes"]["seen"]) == sorted(sensors[:12])
    assert ("scores are too good" in told["note"]) == ("unseen" in more)


def test_evaluate_prints_a_table_or_json(here: Path) -> None:
    said = evaluated("run")
    assert said.status == 0, said.err
    for name in ("frigate (default)", "zero", "constant median", "clock profile", "nearest sensors", "own median"):
        assert name in said.out
    told = json.loads(evaluated("run", "--stride", "2", "--json").out)
    assert told["test"]["stride"] == 2
    assert told["rows"][0]["kind"] == "model"
    assert told["rows"][0]["unseen"]["mae"]["value"] > 0


@pytest.mark.parametrize("seconds", [1.0, 200.0])
def test_lightgbm_is_left_out_where_it_takes_long_and_that_is_said(
    seconds: float, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(evaluate, "lightgbm_seconds", lambda *_, **__: seconds)
    fitted: list[object] = []

    def fit(run: RunOnCity, device: object) -> tuple[Constant, Windows]:
        fitted.append(device)
        return Constant(1.0), run.windows()

    monkeypatch.setattr(evaluate, "fit_lightgbm", fit)
    said = frigate("evaluate", "run", "--stride", "5", "--device", "cpu")
    quick = seconds < 60
    assert said.status == 0, said.err
    assert (len(fitted), "\nLightGBM " in said.out) == (quick, quick)
    assert ("4 min" in said.err and "--lightgbm yes" in said.err) == (not quick)


def test_evaluate_takes_a_period_and_compares_with_the_best_baseline(here: Path) -> None:
    said = evaluated("run", "--test", "2024-01-02/2024-01-03")
    assert said.status == 0, said.err
    assert "from 2024-01-02T00:00:00+00:00 to 2024-01-04T00:00:00+00:00" in said.out
    assert "no weekend" in said.err and "trained on" in said.err
    told = json.loads(evaluated("run", "--json").out)["minus_best"]
    assert f"best baseline, {told['baseline']}: {told['mae']['value']:+.3f} [" in evaluated("run").out
    assert "\npersistence " in said.out.partition("At the ")[2]
    assert_refused(evaluated("run", "--test", "Friday"), "Friday")


def test_evaluate_shows_details_when_asked(here: Path) -> None:
    plain, said = (evaluated("run", *more) for more in ((), ("--details",)))
    assert said.status == 0, said.err
    assert said.out.startswith(plain.out)
    told = json.loads(evaluated("run", "--json").out)["rows"]
    titles = ["MAE by step ahead", "MAE by mean training reading", "MAE by roads to the nearest sensor"]
    more, _, by_volume = said.out[len(plain.out) :].partition("GEH by hourly volume")
    assert "vehicles" in by_volume
    parts = re.split("|".join(titles), more)
    assert len(parts) == 4
    groups = [
        [(f"{i} ({i * 60} min)", [row["by_step"][i - 1] for row in told]) for i in range(1, 5)],
        *([(name, [row[by].get(name) for row in told]) for name in told[0][by]] for by in ("by_tercile", "by_hops")),
    ]
    for part, rows in zip(parts[1:], groups, strict=True):
        lines = [line.strip() for line in part.splitlines() if line.strip()][-len(rows) :]
        for line, (name, summaries) in zip(lines, rows, strict=True):
            assert line.startswith(f"{name} ")
            assert line.endswith(f" {summaries[0]['nodes']}")
            for summary in summaries:
                mae = summary["mae"]["value"]
                assert f" {mae:.{3 if mae < 10 else 1}f} " in line
            low = summaries[0]["mae"]["low"]
            assert f"[{low:.{3 if summaries[0]['mae']['value'] < 10 else 1}f}, " in line


def test_forecast_writes_what_is_asked_for(here: Path, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"f.{kind}" for kind in ("csv", "parquet", "geojson")}
    asked = [word for kind, path in files.items() for word in (f"--{kind}", path)]
    said = frigate("forecast", "run", *asked, "--device", "cpu")
    assert said.status == 0, said.err
    assert said.out.endswith(f": {', '.join(map(str, files.values()))}\n")
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert len(rows) == 30 * 4
    assert {int(row["node_id"]) for row in rows} == set(town().stream.node_ids.tolist())
    table = pl.read_parquet(files["parquet"])
    np.testing.assert_allclose(table["value"], [float(row["value"]) for row in rows], rtol=1e-6)
    points = json.loads(files["geojson"].read_text())["features"]
    assert len(points) == 30 * 4
    told = json.loads(frigate("forecast", "run", "--json", "--device", "cpu").out)
    assert [n["values"][0] for n in told["nodes"]] == [p["properties"]["value"] for p in points[::4]]
    assert not (here / "run" / "forecast.parquet").exists()
    assert frigate("forecast", "run", "--device", "cpu").out.endswith(": run/forecast.parquet\n")
    assert len(pl.read_parquet(here / "run" / "forecast.parquet")) == 30 * 4
    (here / "run" / "forecast.parquet").unlink()


def test_forecast_ends_with_the_total_the_busiest_and_what_a_closure_changes(here: Path, tmp_path: Path) -> None:
    def values(*words: str) -> np.ndarray:
        told = json.loads(frigate("forecast", "run", *words, "--json", "--device", "cpu").out)
        return np.array([node["values"] for node in told["nodes"]]).sum(1)

    before = values()
    ids = town().stream.node_ids
    a, b = first_road(town())
    closed = ("--close", f"{a},{b}")
    after = values(*closed)
    file = tmp_path / "f.csv"
    said = frigate("forecast", "run", "--csv", file, "--device", "cpu").out
    total = said.splitlines()[-2]
    busiest = said.partition("Busiest nodes\n")[2].splitlines()[2:7]
    assert f" {before.sum():,.0f} vehicles" in total and "Largest" not in said
    assert [line.split()[0] for line in busiest] == [str(node) for node in ids[np.argsort(-before)[:5]]]
    assert busiest[0].split()[-1] == f"{before.max():,.1f}"
    said = frigate("forecast", "run", *closed, "--csv", file, "--device", "cpu").out
    assert f" {after.sum():,.0f} vehicles" in said and f" {before.sum():,.0f})" in said
    changes = said.partition("Largest changes\n")[2].splitlines()[2:7]
    change = after - before
    order = np.argsort(-np.abs(change))[:5]
    assert [line.split()[0] for line in changes] == [str(node) for node in ids[order]]
    assert changes[0].split()[1:] == [
        f"{before[order[0]]:,.1f}",
        f"{after[order[0]]:,.1f}",
        f"{change[order[0]]:+,.1f}",
    ]


def values_of(said: Output) -> list[list[float]]:
    assert said.status == 0, said.err
    return [node["values"] for node in json.loads(said.out)["nodes"]]


def test_demand_writes_flows_and_lists_the_trips_through_a_road(here: Path, tmp_path: Path) -> None:
    city = read_city("city")
    roads = city.network.num_edges
    for form in ("html", "geojson", "parquet"):
        said = frigate("demand", "city", "-o", tmp_path / f"flows.{form}")
        assert said.status == 0, said.err
        assert f"{roads} roads" in said.out and f"flows.{form}" in said.out
    a, b = first_road(city)
    said = frigate("demand", "city", "--through", f"{a},{b}", "-o", tmp_path / "through.html")
    assert said.out.startswith(f"{a} -> {b}: about ")
    assert f"{a} → {b}" in MapFile(tmp_path / "through.html").layers["through"]["title"]
    told = json.loads(frigate("demand", "city", "--through", f"{a},{b}", "--json").out)
    assert told["roads"] == roads
    assert sum(move["vehicles_per_day"] for move in told["through"]) > 0
    sensor = city.stream.node_ids[city.stream.sensors][0]
    without = json.loads(frigate("demand", "city", "--through", f"{a},{b}", "--json", "--exclude", sensor).out)
    assert without["sensors"] == told["sensors"] - 1


def test_demand_of_a_city_without_readings_is_refused(tmp_path: Path) -> None:
    stream = town().stream
    write_city(City("Town", replace(stream, observed=np.zeros_like(stream.observed))), tmp_path / "city")
    assert_refused(frigate("demand", tmp_path / "city", "-o", tmp_path / "flows.html"), "city", "reading")
    assert not (tmp_path / "flows.html").exists()


def test_forecast_what_if_and_when(here: Path) -> None:
    def told(*words: object) -> list[list[float]]:
        return values_of(frigate("forecast", "run", *words, "--json", "--device", "cpu"))

    a, b = first_road(town())
    plain = told()
    assert told() == plain
    closed = told("--close", f"{a},{b}")
    assert closed != plain
    at_rest = json.loads(frigate("forecast", "run", "--json", "--device", "cpu").out)
    times = [datetime.fromisoformat(time) for time in at_rest["times"]]
    dated = told("--close", f"{a},{b}", "--from", f"{times[1]:%H:%M}", "--until", times[2].isoformat())
    for before, shut, then in zip(plain, closed, dated, strict=True):  # of each node
        assert then == pytest.approx([before[0], shut[1], *before[2:]], rel=1e-5, abs=1e-5)
    ids = town().stream.node_ids.tolist()
    roads = set(zip(town().network.senders.tolist(), town().network.receivers.tolist(), strict=True))
    u, v = next((u, v) for u in range(30) for v in range(30) if u != v and (u, v) not in roads)
    assert told("--add", f"{ids[u]},{ids[v]}") != told("--add", f"{ids[u]},{ids[v]},9000")
    assert told("--at", "2024-01-03T08:00") != plain
    assert len(told("--horizon", "7", "--past", "2")[0]) == 7
    assert told("--all-sensors") != plain
    assert told("--city", "city") == plain
    said = frigate("forecast", "run", "--at", "2024-01-03T08:10", "--json", "--device", "cpu")
    assert said.err.startswith("note: 2024-01-03T08:10:00+00:00 is inside a step")


def test_forecast_on_another_city(copy: Path) -> None:
    write_city(replace(town(attributes=False, seed=4), name="Other"), copy / "other")
    said = frigate("forecast", "run", "--city", "other", "--json", "--device", "cpu")
    assert len(values_of(said)) == 30
    (copy / "city").rename(copy / "gone")
    assert_refused(frigate("forecast", "run"), "--city CITY")
    assert len(values_of(frigate("forecast", "run", "--city", "gone", "--json", "--device", "cpu"))) == 30
    without = frigate("forecast", "run", "--city", "other", "--json", "--device", "cpu")
    assert (without.out, without.err) == (said.out, said.err)
    assert_refused(evaluated("run", "--city", "other"), "nodes of the")


def test_a_what_if_starts_from_the_roads_of_its_time(copy: Path) -> None:
    def told(*words: object) -> list[list[float]]:
        return values_of(frigate("forecast", "run", *words, "--json", "--device", "cpu"))

    (a, b) = first_road(town())
    stream = read_city(copy / "city").stream
    shut = stream.network.close([(a, b)])
    u, v = next(
        (u, v) for u, v in zip(shut.senders.tolist(), shut.receivers.tolist(), strict=True) if shut.node_ids[u] != a
    )
    also = f"{shut.node_ids[u]},{shut.node_ids[v]}"
    late = (np.arange(S) >= S - 20).astype(np.int64)
    write_city(City("Town", replace(stream, networks=(stream.network, shut), network_of=late)), copy / "recorded")
    before = ("--at", "2024-01-03T08:00")
    assert told("--city", "recorded", *before, "--close", also) == told(*before, "--close", also)
    both = told("--city", "recorded", "--close", also)
    assert both != told("--close", also)  # the recorded closure holds
    assert both != told("--close", f"{a},{b}", "--close", also)  # and the last readings were made with it
    assert frigate("forecast", "run", "--city", "recorded", *before, "--close", f"{a},{b}", "--json").status == 0
    refused = frigate("forecast", "run", "--city", "recorded", "--close", f"{a},{b}")
    assert_refused(refused, f"{a},{b}")


def test_resume_over_other_readings_is_refused(copy: Path) -> None:
    stream = read_city(copy / "city").stream
    write_city(City("city", replace(stream, values=stream.values + stream.observed)), copy / "city")
    said = frigate("train", "city", "-o", "run", "--resume", "--device", "cpu")
    assert_refused(said, "city has changed", "(readings)")


# What does not


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("check nowhere", ("nowhere", "no such folder")),
        ("check counts.npz", ("counts.npz", "folder")),
        ("check run", ("run", "city.toml")),
        ("train nowhere -o new", ("nowhere", "no such folder")),
        ("train city -o run", ("run", "--resume")),
        ("train city -o city", ("city",)),
        ("train city -o counts.npz", ("counts.npz", "file")),
        ("train city -o new --seen 30", ('--seen "30"', "Did you mean 30%?")),
        ("train city -o new --seen sensors.txt", ('--seen "sensors.txt"',)),
        ("train city -o new --seen nodes.csv", ("nodes.csv line 1", '"id,lon,lat"')),
        (
            "train city -o new --seen 1% --settings settings.toml",
            ("0 seen", "at least 3"),
        ),
        ("train city -o new --device gpu", ('device "gpu"', "cpu")),
        ("train city -o new --epochs -1", ("epochs = -1", "0")),
        ("train city -o new --seed -1", ("seed = -1", "0")),
        ("train city -o new --settings nowhere.toml", ("nowhere.toml", "No such file")),
        ("train city -o new --settings nodes.csv", ("nodes.csv", "TOML")),
        ("train city -o new --past 200", ("training period", "84", "--past")),
        ("train city -o new --resume", ("new", "no such folder")),
        ("train city -o run --resume --epochs 1", ("epochs = 1", "run", "2")),
        ("train city -o run --resume --preset paper", ('preset "paper"', '"default"')),
        ("evaluate nowhere", ("nowhere", "no such folder")),
        ("evaluate counts.npz", ("counts.npz", "not a folder")),
        ("evaluate city", ("city", "epoch")),
        ("evaluate run --stride 0", ("stride = 0",)),
        ("evaluate run --city nowhere", ("nowhere", "no such folder")),
        ("evaluate run --device cuda:99", ('device "cuda:99"',)),
        ("demand city", ("-o", "--through")),
        ("demand city -o flows.htm", ("flows.htm", ".html, .geojson or .parquet")),
        ("demand city -o flows", ("flows", ".html, .geojson or .parquet")),
        ("demand city -o city", ("city", ".html")),
        ("demand city -o /proc/flows.html", ("/proc/flows.html", "written")),
        ("demand city -o flows.html --through 41", ('--through "41"', "41,42")),
        ("demand city -o flows.html --through 1,2", ("from 1 to 2",)),
        ("demand nowhere -o flows.html", ("nowhere", "no such folder")),
        ("forecast run --at tomorrow", ('at "tomorrow"',)),
        ("forecast run --at 2030-01-01", ("2030-01-01T00:00:00+00:00",)),
        ("forecast run --from 08:00", ("begin", "closes and adds no road")),
        ("forecast run --close 1 --from 8", ('begin "8"', "not a time")),
        ("forecast run --close 1", ('--close "1"',)),
        ("forecast run --close 1,2", ('"1"', "30 nodes")),
        ("forecast run --add 1000,1007,far", ('"far"', "length")),
        ("forecast run --horizon 0", ("horizon = 0", "1")),
        ("forecast run --past -2", ("past = -2", "1")),
        ("forecast run --device gpu", ('device "gpu"',)),
        ("forecast run --city nowhere", ("nowhere", "no such folder")),
        ("forecast run --csv city", ("city", "written")),
        ("forecast run --csv /proc/x.csv", ("/proc/x.csv", "written")),
        ("forecast run --geojson nodes.csv/f.geojson", ("nodes.csv/f.geojson", "written")),
        (f"import matrix none.npz {IMPORT} -o new", ("none.npz", "no such file")),
        (f"import matrix counts.npz {IMPORT} --map id -o new", ('--map "id"', "theirs=ours")),
        (f"import matrix counts.npz {IMPORT} --map x=node_id -o new", ('column "x"',)),
        (f"import matrix counts.npz {IMPORT} --map metres=lenght_m -o new", ("lenght_m", '"length_m"')),
        (f"import matrix counts.npz {IMPORT} --values count -o new", ('"count"',)),
        (f"import matrix counts.npz {IMPORT} --step 7min -o new", ("7min",)),
        (f"import matrix counts.npz {IMPORT} --start noon -o new", ('start "noon"',)),
        (f"import matrix counts.npz {IMPORT} --timezone Mars -o new", ('time zone "Mars"',)),
        (f"import matrix counts.npz {IMPORT} -o run", ("run", "city")),
        ("demo -o city", ("city", "files")),
        ("demo -o counts.npz", ("counts.npz", "file")),
        ("demo --seed -1 -o new", ("seed = -1",)),
    ],
)
def test_a_mistake_ends_with_one_line_and_status_2(command: str, named: tuple[str, ...], here: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in here.rglob("*") if p.is_file()}
    assert_refused(frigate(*command.split()), *named)
    assert {p: p.stat().st_mtime_ns for p in here.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("trian city -o new", ('"trian"', '"train"')),
        ("import sumoo net.xml", ('"sumoo"', '"sumo"')),
        ("--versoin", ("--versoin", '"--version"')),
        ("train", ("CITY, -o/--output", "frigate train CITY -o RUN [OPTIONS]")),
        ("train city", ("-o/--output",)),
        ("train city --outptu new", ("--outptu", '"--output"')),
        ("train city -o new --epoch 3", ("--epoch", '"--epochs"')),
        ("train city -o new --epoch=3", ("--epoch", '"--epochs"')),
        ("train city -o new -x", ("option -x",)),
        ("train city other -o new", ('"other"',)),
        ("train city -o", ("-o", "value")),
        ("train city -o --resume", ("-o", "value")),
        ("train city -o new --epochs three", ("--epochs", "'three'")),
        ("train city -o new --preset papr", ('"papr"', '"paper"', "paper, default, dcrnn")),
        ("train city -o new --split regoin", ('"regoin"', '"region"', "random, region")),
        ("evaluate", ("RUN",)),
        ("demand", ("CITY",)),
        ("demand city --trough 1,2", ("--trough", '"--through"')),
        ("import benchmark metr-la -o new", ("FOLDER",)),
    ],
)
def test_a_mistyped_command_is_answered_with_the_remedy(command: str, named: tuple[str, ...]) -> None:
    said = frigate(*command.split())
    assert_refused(said, *named)
    assert re.search(r"Usage: frigate.* \(or --help\)\n$", said.err)


@pytest.mark.parametrize(
    ("sensors", "snapshots", "named"), [(0, S, "no node"), (1, S, "1 sensors"), (9, 50, "at least 80 snapshots")]
)
def test_a_city_that_cannot_be_trained_on_is_refused(sensors: int, snapshots: int, named: str, tmp_path: Path) -> None:
    stream = town().stream.slice(0, snapshots)
    observed = stream.observed.copy()
    observed[:, np.flatnonzero(stream.sensors)[sensors:]] = False
    write_city(City("Town", replace(stream, observed=observed)), tmp_path / "city")
    (tmp_path / "settings.toml").write_text(SETTINGS)
    said = frigate("train", tmp_path / "city", "-o", tmp_path / "run", "--settings", tmp_path / "settings.toml")
    assert_refused(said, named)
    assert not (tmp_path / "run").exists()


def test_each_broken_file_has_its_own_message(copy: Path) -> None:
    path = next((copy / "run").glob("checkpoint-*/weights.safetensors"))
    path.write_bytes(path.read_bytes()[:-9])
    for command in ("evaluate", "forecast"):
        assert_refused(frigate(command, "run"), "weights.safetensors", "damaged")
    (copy / "city" / "nodes.parquet").write_bytes(b"PAR1")
    assert_refused(frigate("check", "city"), "nodes.parquet")


def test_the_map_of_columns() -> None:
    assert parse_map("src=source, dst = target,") == {"src": "source", "dst": "target"}
    assert parse_map("") == {}
    for text in ("src", "=source", "src=", "src=sauce"):
        with raises(SettingsError, "--map"):
            parse_map(text, known=("source", "target"))


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on(copy: Path) -> None:
    words = ["train", "city", "-o", "long", "--settings", "settings.toml", "--epochs", "500", "--device", "cpu"]
    process = frigate_signalled(signal.SIGINT, "checkpoint-0003", 1, *words)
    out = process.stdout
    err = process.stderr
    assert process.returncode == 130, err
    assert "stopped; resume with --resume" in out
    assert "Traceback" not in err
    done = len((copy / "long" / "metrics.jsonl").read_text().splitlines())
    assert done == 3
    assert values_of(frigate("forecast", "long", "--json", "--device", "cpu"))
    # With so many epochs left only that it goes on is looked at; that it ends the same is in test_train.
    said = frigate("train", "city", "-o", "long", "--resume", "--epochs", "499")
    assert_refused(said, "epochs = 499", "500")


def test_ctrl_c_says_what_is_kept() -> None:
    ctrl_c = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    words = ["bench", "--size", "2000", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-c", f"{ctrl_c}; from frigate.cli.main import main; sys.exit(main())", *words],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None and process.stderr.readline().startswith("Measuring")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err.splitlines()[-1]) == (130, "frigate: stopped; nothing was written")
    assert "Traceback" not in err


# How it looks


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table_is_never_wider_than_the_terminal_and_no_number_is_cut(
    columns: int, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluated("run").out.splitlines()  # piped: all columns
    monkeypatch.setenv("COLUMNS", str(columns))
    said = evaluated("run", "--details").out.splitlines()
    tables = [line for line in said if re.search(r"  [\d.]+( |$)|^-+  ", line)]
    assert len(tables) > 10 and max(map(len, tables)) <= columns
    numbers = set(re.findall(r"\S*\d\.\d+\S*", "\n".join(whole)))
    model = next(line for line in said if line.startswith("frigate (default)"))
    assert set(re.findall(r"\S*\d\.\d+\S*", model)) <= numbers and "[" in model
    narrow = any(line.startswith("Not shown, because the terminal is too narrow: ") for line in said)
    assert narrow == (columns < 120)


@pytest.mark.parametrize("preparing_s", [0.0, 600.0])
def test_progress_in_plain_text_comes_now_and_then(preparing_s: float, capsys: pytest.CaptureFixture[str]) -> None:
    """What was done before the first step, or before another total, says nothing of how long the others take."""
    steps = [(1.0, 1, 100), (20.0, 20, 100), (21.0, 21, 100), (40.0, 40, 100), (400.0, 1, 50), (420.0, 2, 50)]
    ticks = iter((0.0, *(preparing_s + second for second, _, _ in steps)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("frigate.progress.time.monotonic", lambda: next(ticks))
        with progress("Training") as update:
            for _, done, total in steps:
                update(done, total, f"epoch {done}")
    assert capsys.readouterr().err.splitlines() == [
        "Training epoch 20: 20%, 80 s left",
        "Training epoch 40: 40%, 60 s left",
        "Training epoch 2: 4%, 16 min left",
    ]


# The demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, Path, list[str], list[tuple[int, int, str]]]:
    folder = tmp_path_factory.mktemp("demo") / "out"
    said: list[str] = []
    ticks: list[tuple[int, int, str]] = []
    result = run_demo(
        folder,
        seed=1,
        say=said.append,
        progress=lambda *tick: ticks.append(tick),
        settings=small_demo(),
        intersections=100,
        days=2,
    )
    return result, folder, said, ticks


def small_demo() -> Any:
    training = {"epochs": 1, "steps_per_epoch": 2, "masks": 3, "batch_size": 4, "validation_windows": 4}
    return change(demo_settings(1), {"model": {"width": 8, "layers": 1}, "train": training})


def test_the_demo_ends_with_a_city_a_run_and_a_report(
    demo: tuple[Demo, Path, list[str], list[tuple[int, int, str]]],
) -> None:
    result, folder, said, ticks = demo
    assert sorted(p.name for p in folder.iterdir()) == ["city", "report.html", "run"]
    assert result.report == folder / "report.html"
    assert "A small model for a quick demo" in MapFile(result.report).said("trust")
    assert any("small model" in line for line in said)
    assert all(0 < done <= total for done, total, _ in ticks)
    assert {words.split(",")[0] for _, _, words in ticks} == {"training", "evaluating"}
    seen = len(result.evaluation.seen)
    unseen = len(result.evaluation.unseen)
    assert seen == round(0.3 * (seen + unseen))
    assert frigate("check", folder / "city").status == 0
    assert frigate("forecast", folder / "run", "--device", "cpu").status == 0


def test_the_demo_closes_a_bridge_and_says_how_much_of_the_change_is_left(
    demo: tuple[Demo, Path, list[str], list[tuple[int, int, str]]],
) -> None:
    result, folder, said, _ = demo
    study = result.closure
    assert study.summary() in said and study.summary() in study.view.words
    assert study.summary() in MapFile(result.report).said("closure")
    run = load_run(folder / "run").on(read_city(folder / "city"))
    forecaster = forecaster_of(run, "cpu")
    unseen = run.split.unseen
    network = forecaster.usual_roads
    estimated = forecaster.demand
    assert estimated is not None
    bridge = np.flatnonzero(network.edges.name == study.name)
    ends = network.node_ids[[network.senders[bridge], network.receivers[bridge]]].T.tolist()
    closed = network.close([(a, b) for a, b in ends])
    values = study.view.values
    assert values.road_simulated is not None and values.road_simulated_change is not None
    before, after = values.road_before[0], values.road_after[0]
    simulated, simulated_change = values.road_simulated[0], values.road_simulated_change[0]
    # The busiest bridge, by what the sensors tell.
    flow = {name: estimated.road_flow[:, network.edges.name == name].sum() for name in BRIDGE_NAMES}
    assert max(flow, key=lambda name: flow[name]) == study.name
    np.testing.assert_allclose(before, 12 * estimated.road_flow[9:18].mean(0), rtol=1e-5)
    assert study.view.roads.tolist() == bridge.tolist()
    assert (after[bridge] == 0).all() and (simulated[bridge] == 0).all() and (before[bridge] > 0).all()
    # The measure of benchmarks/closures.py.
    truth = usual_weekday([network, closed], seed=1, intersections=100, hours=range(9, 18))
    np.testing.assert_allclose(simulated_change, truth[1].road - truth[0].road, rtol=1e-5, atol=1e-3)
    change = truth[1].node - truth[0].node
    rerouted = forecaster.rerouted(closed)
    assert rerouted is not None
    np.testing.assert_allclose(after, before * rerouted.road_change, rtol=1e-5)
    nodes = values.before[0], values.after[0]
    np.testing.assert_allclose(nodes[0], 12 * estimated.node_flow[9:18].mean(0), rtol=1e-5)
    np.testing.assert_allclose(nodes[1], nodes[0] * rerouted.node_change, rtol=1e-5)
    left = np.abs(change - truth[0].node * (rerouted.node_change - 1))
    assert study.left.everywhere == pytest.approx(left[unseen].sum() / np.abs(change[unseen]).sum(), rel=1e-4)


def test_a_run_is_reported_on_a_map(
    demo: tuple[Demo, Path, list[str], list[tuple[int, int, str]]], tmp_path: Path
) -> None:
    run = demo[1] / "run"
    network = read_city(demo[1] / "city").stream.usual_network()
    a, b = network.node_ids[[network.senders[0], network.receivers[0]]].tolist()
    quick = ("--device", "cpu", "--stride", 12)
    made = frigate("report", run, "--close", f"{a},{b}", "-o", tmp_path / "new" / "r.html", *quick)
    assert made.status == 0 and str(tmp_path / "new" / "r.html") in made.out and "MB" in made.out
    page = MapFile(tmp_path / "new" / "r.html")
    assert [panel["key"] for panel in page.meta["panels"]] == ["closure", "trust"]
    row = int(np.flatnonzero(np.isfinite(page.values("truth")).any(0))[0])
    sensor = read_city(demo[1] / "city").stream.node_ids[row]
    made = frigate("report", run, "--exclude", sensor, "-o", tmp_path / "without.html", *quick)
    assert made.status == 0, made.err
    assert np.isnan(MapFile(tmp_path / "without.html").values("truth")[:, row]).all()
    for words, mistakes in (
        (("--close", "1;2"), ('--close "1;2"',)),
        (("--close", f"{a},{a}"), (f"road {a},{a}",)),
        (("-o", "r.pdf"), ("r.pdf", ".html")),
        (("--test", "2031-01-01/2031-01-02"), ("2031-01-01",)),
    ):
        wrong = frigate("report", run, *words, *quick)
        assert wrong.status == 2 and all(mistake in wrong.err for mistake in mistakes), wrong.err


def test_the_demo_tells_the_truth_whoever_wins(
    demo: tuple[Demo, Path, list[str], list[tuple[int, int, str]]],
) -> None:
    result = demo[0]
    assert result.verdict == verdict(result.evaluation)
    baselines = [row.unseen.mae for row in result.evaluation.rows if row.kind == "baseline" and row.unseen is not None]
    best = min(baselines, key=lambda mae: mae.value)

    difference = result.evaluation.minus_best
    model = result.evaluation.model.unseen
    assert difference is not None and model is not None
    assert difference.mae.value == pytest.approx(model.mae.value - best.value)
    assert ("beats" in result.verdict) == (difference.mae.high < 0)


def test_the_demo_replaces_an_earlier_demo_and_nothing_else(
    demo: tuple[Demo, Path, list[str], list[tuple[int, int, str]]], tmp_path: Path
) -> None:
    def again(folder: Path) -> None:
        """Up to the first step of the training."""

        def stop(*tick: object) -> None:
            raise KeyboardInterrupt

        run_demo(folder, seed=1, say=lambda line: None, progress=stop, settings=small_demo(), intersections=100, days=2)

    earlier = tmp_path / "again"
    shutil.copytree(demo[1], earlier)
    write_city(town(), tmp_path / "mine" / "city")
    (tmp_path / "mine" / "run").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("")
    (earlier / "run" / "thesis.tex").write_text("")
    for folder in (tmp_path / "mine", tmp_path / "notes", earlier):
        before = sorted(folder.rglob("*"))
        with raises(SettingsError, "files"):
            again(folder)
        assert [p for p in sorted(folder.rglob("*")) if "cache" not in p.parts] == [
            p for p in before if "cache" not in p.parts
        ]
    (earlier / "run" / "thesis.tex").unlink()
    with contextlib.closing(open_store(str(earlier / "run" / DEFAULT_FILE))):  # frigate serve demo/run
        assert is_finished(earlier)  # so frigate demo --serve opens the map
        with raises(SettingsError, "run/service.db", "frigate serve", "-o"):
            again(earlier)
    for left in earlier.glob("run/service.db*"):
        left.unlink()
    assert list(earlier.glob("run/checkpoint-*"))
    with pytest.raises(KeyboardInterrupt):
        again(earlier)
    assert not list(earlier.glob("run/checkpoint-*"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 9.1 TiB for an array"), "9.1 TiB"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.\nSee documentation"), "20.00 GiB"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 4 bytes"), "4 bytes"),
    ],
)
def test_too_little_memory_is_said_in_a_line(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("frigate.city.folder.read_city", fail)
    monkeypatch.setattr("frigate.city.folder.open_city", fail)
    assert_refused(frigate("check", "."), "memory", said, "--batch-size")


def test_another_fault_of_torch_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr("frigate.city.folder.read_city", fail)
    monkeypatch.setattr("frigate.city.folder.open_city", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        frigate("check", ".")
