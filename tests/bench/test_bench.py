"""`frigate bench`: the two ways agree, what is counted adds up, and the JSON says what was measured and where."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frigate.bench import bench, measure, pyg_baseline, synthetic_network
from frigate.bench.clock import Repeats, ceilings, median_ms, peak_bytes
from frigate.bench.measure import _require_same
from frigate.bench.output import notes_of, rows_of
from frigate.bench.pyg_baseline import INDEX_ADD, plain_bytes, plain_copy
from frigate.bench.roofline import Ceilings, Sizes, WorkItem, floor_ms, forecast_work, step_work, work_json
from frigate.bench.synthetic import SIZES, Size, parse_size, synthetic_run, windows_for
from frigate.config import PRESETS, ModelSettings, Task, change, preset
from frigate.errors import FrigateError, SettingsError
from frigate.nn.batch import Batch
from frigate.nn.model import Frigate
from frigate.nn.ops import use_kernels
from frigate.roads.positions import choose_anchors, distances_m
from frigate.training.run import RunOnCity
from tests.support.command_line import assert_refused, frigate
from tests.support.errors import raises

ONCE = Repeats(warm=0, step=1, forecast=1, live_update=1)
CPU = torch.device("cpu")
CUDA = torch.device("cuda")
SMALL = Size("40", 40, 91)
ROOT = Path(__file__).resolve().parents[2]
CEILINGS = Ceilings(copy_bytes_per_s=4.3e12, matmul_flop_per_s=7.8e14)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return bench(size="40", device="cpu", windows=2, repeats=ONCE)


# What is compared


def small(name: str) -> tuple[RunOnCity, Frigate, Batch]:
    run = synthetic_run(change(preset(name), {"train": {"batch_size": 2}}), SMALL)
    inputs = torch.from_numpy(run.split.seen)
    batch = run.windows().batch(np.array([60, 90]), past=12, horizon=12, inputs=inputs)
    assert isinstance(run.model, Frigate)
    return run, run.model, batch


def gradients(model: nn.Module, made: Tensor) -> list[Tensor]:
    """In the order of the parameters' names without the wrapping of a layer."""
    model.zero_grad()
    made.square().mean().backward()
    named = {name.replace(".layer.", "."): p.grad for name, p in model.named_parameters()}
    return [grad for _, grad in sorted(named.items()) if grad is not None]


def agree(name: str) -> str:
    run, ours, batch = small(name)
    theirs, way = plain_copy(ours)
    made = ours(batch)
    with use_kernels("reference"):
        other = theirs(batch)
    assert _require_same("both", other.detach(), made.detach(), run) < 1e-5
    pairs = list(zip(gradients(ours, made), gradients(theirs, other), strict=True))
    assert len(pairs) > 20
    for mine, baseline in pairs:
        torch.testing.assert_close(baseline, mine, rtol=1e-3, atol=1e-3 * float(mine.abs().max()) + 1e-9)
    return way


@pytest.mark.parametrize("name", PRESETS)
def test_both_ways_compute_the_same_forecasts_and_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyg_baseline, "_geometric", lambda: None)
    assert agree(name) == INDEX_ADD


@pytest.mark.parametrize("name", PRESETS)
def test_message_passing_computes_the_same(name: str) -> None:
    if pyg_baseline._geometric() is None:
        pytest.skip("PyTorch Geometric is not installed: pip install 'frigate-forecast[bench]'")
    assert agree(name).startswith("PyTorch Geometric")


def test_ways_that_differ_are_not_timed() -> None:
    run, ours, batch = small("paper")
    theirs, _ = plain_copy(ours)
    with torch.no_grad(), use_kernels("reference"):
        made = ours(batch)
        layer = theirs.get_submodule("convolutions.3").named_parameters()
        next(weight for name, weight in layer if name.endswith("linear.weight")).mul_(1.1)  # one of ten, a tenth off
        with raises(FrigateError, "differ"):
            _require_same("the two", theirs(batch), made, run)
        with raises(FrigateError, "differ", "nan"):
            _require_same("the two", made * torch.nan, made, run)


# What is invented


def test_networks_have_their_sizes() -> None:
    for size in (SIZES[0], SMALL):
        network = synthetic_network(np.random.default_rng(1), nodes=size.nodes, roads=size.roads)
        assert (network.num_nodes, network.num_edges) == (size.nodes, size.roads)
        assert np.isfinite(distances_m(network, choose_anchors(network, count=1))).all()  # there and back from anywhere
    again = synthetic_network(np.random.default_rng(1), nodes=SMALL.nodes, roads=SMALL.roads)
    assert again.fingerprint == network.fingerprint
    other = synthetic_network(np.random.default_rng(2), nodes=SMALL.nodes, roads=SMALL.roads)
    assert other.fingerprint != network.fingerprint


def test_a_step_has_about_as_much_to_do_at_every_size() -> None:
    assert [windows_for(size, CUDA) for size in SIZES] == [32, 4]
    assert [windows_for(size, CPU) for size in SIZES] == [4, 1]
    assert windows_for(parse_size("1,000,000"), CUDA) == 1 and windows_for(SMALL, CPU) == 8
    assert parse_size("3192").roads == pytest.approx(SIZES[0].roads, abs=10)


# What is counted


def sizes_of(name: str, **changed: Any) -> Sizes:
    settings = preset(name)
    assert isinstance(settings.model, ModelSettings)
    known: dict[str, Any] = {"nodes": 3192, "edges": 7269, "windows": 32, "features": 30, "parameters": 100_000}
    return Sizes(settings.model, settings.task, **known | changed)


def test_counts_are_those_of_the_sizes() -> None:
    step = {part.name: part for part in step_work(sizes_of("paper"), targets=3192)}
    wide = 3192 * 32 * 12 * 64 * 2
    assert step["layers"].bytes == 10 * 2 * wide and step["layers, back"].bytes == 10 * 6 * wide
    product = 6 * 64 * 64 * 3192 * 384
    sums = 4 * 7269 * 384 * 64
    assert step["layers"].flops == 10 * (product + sums)
    assert step["layers, back"].flops == 10 * (2 * product + 3 * sums)
    assert step["encoder"].bytes == 3 * wide + 4 * 3192 * 32 * 64 * 2
    assert step["encoder"].flops == 2 * 3192 * 32 * 12 * 128 * 256
    some = {part.name: part for part in step_work(sizes_of("paper"), targets=1596)}
    halved = {name for name in step if some[name] != step[name]}
    assert halved == {"encoder", "encoder, back", "decoder", "decoder, back"}
    assert all(2 * some[name].bytes == step[name].bytes for name in halved)
    forecast = {part.name: part for part in forecast_work(sizes_of("paper"))}
    assert forecast["encoder"].bytes == step["encoder"].bytes - 2 * wide  # nothing is kept
    assert forecast["layers"] == step["layers"]


@pytest.mark.parametrize("name", PRESETS)
def test_counts_grow_in_proportion(name: str) -> None:
    one, two = (sizes_of(name, windows=windows, parameters=0) for windows in (1, 2))
    for work in (partial(step_work, targets=100), forecast_work):
        for small_part, large in zip(work(one), work(two), strict=True):
            assert (large.bytes, large.flops) == (2 * small_part.bytes, 2 * small_part.flops)
    fp32, bf16 = (sum(p.bytes for p in step_work(replace(one, number=number), targets=3192)) for number in (4, 2))
    assert 1.9 < fp32 / bf16 <= 2


def test_the_floor_is_the_slower_of_bytes_and_operations() -> None:
    machine = Ceilings(copy_bytes_per_s=1e12, matmul_flop_per_s=1e14)
    parts = (WorkItem("bytes", 10**9, 0), WorkItem("flops", 0, 3 * 10**11))
    assert floor_ms(parts, machine) == pytest.approx(1 + 3)
    told = work_json(parts, machine)
    assert (told["floor_ms"], told["bytes"], told["flops"]) == (4, 10**9, 3 * 10**11)
    assert [(row["bytes_ms"], row["flops_ms"]) for row in told["parts"]] == [(1, 0), (0, 3)]
    assert work_json(parts, None)["floor_ms"] is None


def test_the_baselines_memory_is_what_was_measured() -> None:
    model = preset("paper").model
    assert isinstance(model, ModelSettings)
    window = plain_bytes(model, Task(), nodes=3192, edges=7269, number=2)
    assert 32 * window == pytest.approx(27e9, rel=0.05)


# Clocks and memory


def test_the_clock_counts_calls_and_takes_the_ways_in_turn() -> None:
    seen: list[str] = []
    calls = {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}
    times = median_ms(calls, CPU, warm=1, repeats=2)
    assert seen == ["a", "b"] * 3 and all(ms >= 0 for ms in times.values())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_peak_is_of_one_call() -> None:
    def take() -> None:
        torch.ones(2**24)  # 64 MiB

    assert 2**26 * 0.9 < (peak_bytes(take, CPU) or 0) < 2**26 * 1.3
    assert (peak_bytes(lambda: None, CPU) or 0) < 2**24


def test_ceilings_are_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every call takes half a second."""
    half_seconds = count()
    monkeypatch.setattr("frigate.bench.clock.time.perf_counter", lambda: next(half_seconds) / 2)
    found = ceilings(CPU, copied_bytes=2**20, side=32, repeats=3, warm=1)
    assert found == Ceilings(2 * 2 * 2**20, 2 * 2 * 32**3)  # a copy reads and writes; a product multiplies and adds


# What is told


def test_the_result_says_what_was_measured(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["command"] == "frigate bench --size 40 --device cpu --preset both --windows 2 --seed 0"
    assert (result["nodes"], result["roads"], result["dtype"], result["device"]) == (40, 91, "fp32", "cpu")
    assert result["hardware"] and result["versions"]["torch"] == torch.__version__
    assert result["positions_ms"] > 0 and result["features_ms"] > 0 and result["ceilings"] is None
    assert set(result["presets"]) == set(PRESETS)
    for told in result["presets"].values():
        ours = told["ours"]
        baseline = told["baseline"]
        assert told["windows"] == told["windows_at_once"] == 2 and told["difference"] < 1e-4
        assert told["baseline_is"] == INDEX_ADD or told["baseline_is"].startswith("PyTorch Geometric")
        for key in ("step", "forecast"):
            assert ours[f"{key}_ms"] > 0 and baseline[f"{key}_ms"] > 0
            assert ours[f"{key}_peak_bytes"] is None or ours[f"{key}_peak_bytes"] >= 0
            assert told["times_faster"][key] == pytest.approx(baseline[f"{key}_ms"] / ours[f"{key}_ms"], abs=0.01)
            assert told["work"][key]["bytes"] == sum(part["bytes"] for part in told["work"][key]["parts"])
        every = baseline["step_ms"] / ours["step_all_nodes_ms"]
        assert told["times_faster"]["step_all_nodes"] == pytest.approx(every, abs=0.01) and 0 < told["targets"] < 40
        assert told["times_faster"]["live_update"] == pytest.approx(
            baseline["forecast_ms"] / ours["live_update_ms"], abs=0.01
        )
        assert (ours["demand_update_ms"] is None) == (told is result["presets"]["paper"])
        assert ours["demand_update_graph_ms"] is None  # on a CPU
        assert told["over_floor"] == {"step": None, "forecast": None} and ours["forecast_graph_ms"] is None


def test_each_number_is_printed_once(result: dict[str, Any]) -> None:
    rows = rows_of(result)
    told = ("training step, 2 windows", "training step, all nodes decoded", "forecast", "live update")
    expected = [f"{name}: {words}" for name in PRESETS for words in told]
    assert [row[""] for row in rows] == [*expected, "default: demand update"]
    assert all(row["Frigate"].endswith(("ms", "s")) for row in rows)
    assert "40 nodes, 91 roads" in notes_of(result)[0]
    without = notes_of({**result, "features_ms": None, "features_reason": "numba is not installed here"})
    assert "Road features: numba is not installed here." in without[1]


def test_where_numba_is_absent_features_are_null_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "numba"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    told = measure._static(synthetic_network(np.random.default_rng(0), nodes=40, roads=91), seed=0)
    assert told["features_ms"] is None and told["positions_ms"] > 0
    assert told["features_reason"] == "numba is not installed here, and road features need it"


def test_the_page_has_what_was_measured_and_says_what_was_not(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("bench_tables", ROOT / "benchmarks" / "bench_tables.py")
    assert spec is not None and spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_tables", tables)  # dataclasses look their module up
    spec.loader.exec_module(tables)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    names = [name for name in tables.TABLES if name.startswith("bench-")]
    for name in names:
        assert tables.TABLES[name]([]).count("Not measured yet") >= 2
    (tmp_path / "bench-cpu-chengdu.json").write_text(json.dumps(result), encoding="utf-8")
    gpu = json.loads(json.dumps(result)) | {"device": "cuda", "ceilings": CEILINGS.to_json(), "features_ms": None}
    for name, told in gpu["presets"].items():
        told["work"] = {"step": work_json(step_work(sizes_of(name), targets=1400), CEILINGS)}
        told["work"]["forecast"] = work_json(forecast_work(sizes_of(name)), CEILINGS)
        told["over_floor"] = {"step": 1.5, "forecast": 2.5}
        told["ours"]["forecast_graph_ms"], told["times_faster"]["forecast_graph"] = 0.001, None
    (tmp_path / "bench-h200-beijing.json").write_text(json.dumps(gpu), encoding="utf-8")
    facts, times, static, roofline, parts = (tables.TABLES[name]([]) for name in names)
    assert "40 nodes, 91 roads" in facts and "bench-h200-chengdu.json` is not there" in " ".join(facts.split())
    ratio = result["presets"]["paper"]["times_faster"]["step"]
    took = tables.milliseconds(result["presets"]["paper"]["ours"]["step_ms"])
    assert f"| CPU, 40, `paper`: training step, windows: 2 | {took} |" in times and f" | {ratio:.1f} | " in times
    assert "| GPU, 40, `paper`: forecast, CUDA graph | 0.00 ms | - | - |" in times
    assert static.splitlines()[2].endswith("| - |") and static.count("\n") == 3
    assert "4.30 TB/s" in " ".join(roofline.split()) and "| GPU, 40, `default`: forecast |" in roofline
    assert "CPU" not in roofline and "| encoder, back |" in parts


# Commands


def test_the_command_prints_json_or_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ON_CPU", ONCE)
    words = ["bench", "--size", "24", "--device", "cpu", "--preset", "paper", "--windows", "1", "--json"]
    printed = json.loads(frigate(*words).out)
    assert printed["nodes"] == 24 and list(printed["presets"]) == ["paper"]
    file = tmp_path / "out.json"
    said = frigate(*words, file)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert {key for key in printed if printed[key] != written[key]} == {"positions_ms", "features_ms", "presets"}
    assert "paper: training step, 1 windows" in said.out and "paper: live update" in said.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--size", "foo"], ('--size "foo"', "chengdu, beijing")),
        (["--size", "-5"], ("--size -5", "20")),
        (["--size", "3"], ("--size 3",)),
        (["--size", "999999999999"], ("--size 999999999999",)),
        (["--size", "90000000", "--device", "cpu"], ("GiB", "--size")),
        (["--windows", "0"], ("--windows 0",)),
        (["--windows", "1000000"], ("--windows 1000000",)),
        (["--preset", "dcrnn"], ("--preset", '"dcrnn"', "paper, default, both")),
        (["--seed", "-1"], ("seed = -1",)),
        (["--device", "tpu"], ('device "tpu"',)),
        (["beijing"], ("--json beijing", "--size")),
        (["--json", "nowhere/out.json"], ("nowhere/out.json", "folder")),
    ],
)
def test_mistakes_are_refused_at_once(
    words: list[str], named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(frigate("bench", *words), *named)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with raises(SettingsError, "cpu", "cuda"):
        bench(size="40", device="cuda")


def test_a_profile_says_which_operations_take_the_time() -> None:
    spec = importlib.util.spec_from_file_location("profile_step", ROOT / "benchmarks" / "profile_step.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    told = json.loads(json.dumps(script.measure("30", "paper", CPU), allow_nan=False))
    times = [row["ms"] for row in told["rows"]]
    assert "aten::mm" in {row["kernel"] for row in told["rows"]} and times == sorted(times, reverse=True)
    assert 0 < times[0] < told["kernels_ms"] and told["command"].endswith("--size 30 --preset paper --device cpu")
