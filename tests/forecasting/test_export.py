"""An exported program is the model's forecast, on networks of other sizes, without this package."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from frigate.city.city import City
from frigate.city.folder import write_city
from frigate.city.stream import RoadNetworkStream
from frigate.config import change, preset
from frigate.errors import CityError, FrigateError, MissingExtraError, SettingsError
from frigate.forecasting.export import (
    DEMAND,
    NEEDED,
    OUTPUT,
    SHAPES,
    Inputs,
    check_parity,
    export_onnx,
    export_program,
    inputs,
)
from frigate.forecasting.forecast import forecast
from frigate.forecasting.result import Forecast
from frigate.training.run import Run, build_model
from frigate.training.train import train
from tests.support.command_line import frigate
from tests.support.errors import raises
from tests.support.forecast_runs import START_S, STEP_S, S, small_city
from tests.support.towns import random_network, random_stream

BOTH = pytest.mark.parametrize("name", ["paper", "default"])
# To export one takes ten seconds. `default` on a gauge has no demand, and neither has `paper`.
ALSO_GAUGE = pytest.mark.parametrize(
    "name", ["default", *(pytest.param(name, marks=pytest.mark.slow) for name in ("paper", "gauge"))]
)
HAVE_ONNX = all(importlib.util.find_spec(package) for package in NEEDED)
needs_onnx = pytest.mark.skipif(not HAVE_ONNX, reason="the extra `export` is absent")
TOWN = ("senders", "neighbour")


def quantity_of(name: str) -> str:
    return "count" if name == "default" else "speed"


def city_of(name: str) -> City:
    return small_city(quantity=quantity_of(name))


@cache
def small_run(name: str, folder: Path | None = None) -> Run:
    """`paper` has positions. `default` has none, and corrects demand; "gauge" is `default` where there is none."""
    model = {"width": 6, "layers": 1, "hidden": 5, "length_width": 3, "gate_width": 4}
    task = {"past": 2, "horizon": 2}
    training = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 4, "masks": 2}
    model |= {"anchors": 3} if name == "paper" else {}
    settings = change(
        preset("paper" if name == "paper" else "default"), {"model": model, "task": task, "train": training}
    )
    return train(city_of(name), seen=0.5, settings=settings, device="cpu", folder=folder)


def another_town(name: str, *, seed: int, nodes: int) -> RoadNetworkStream:
    stream = random_stream([random_network(nodes, seed=seed, isolated=1)], seed=seed, quantity=quantity_of(name))
    return replace(stream, timezone="Europe/Luxembourg", unit="vehicles")


def without_readings(stream: RoadNetworkStream) -> RoadNetworkStream:
    return replace(stream, values=np.zeros_like(stream.values), observed=np.zeros_like(stream.observed))


def cases(name: str) -> dict[str, tuple[Inputs, Forecast]]:
    """Inputs of several networks, and the forecasts that they are of."""
    run = small_run(name)
    city = city_of(name)
    small = another_town(name, seed=1, nodes=11)
    large = another_town(name, seed=2, nodes=60)
    asked = {
        "own": {"stream": city},
        "own, edited": {"stream": city, "close": ["6,7"], "add": ["0,6,250"], "at": START_S + 50 * STEP_S},
        "own, all sensors": {"stream": city, "sensors": "all"},
        "own, a node removed": {"stream": city, "network": city.network.remove_nodes([12])},
        "small": {"stream": small},
        "large": {"stream": large},
        "large, blind": {"stream": without_readings(large)},
    }
    return {
        name: (inputs(run, **words), forecast(run, **words, device="cpu"))  # type: ignore[arg-type]
        for name, words in asked.items()
    }


Program = Callable[[Inputs], "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]


@cache
def opened(path: Path) -> Program:
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
        return lambda arrays: module(**{k: torch.from_numpy(v) for k, v in arrays.items()}).detach().numpy()
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return lambda arrays: session.run(None, arrays)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def program(folder: Path) -> Callable[[str], Path]:
    """The file of a preset, exported once: `default` by the command, with a sample beside it."""
    path = folder / "default.pt2"

    @cache
    def made(name: str) -> Path:
        if name != "default":
            return export_program(small_run(name), folder / f"{name}.pt2", city_of(name)).path
        small_run(name, folder / "run")
        write_city(city_of(name), folder / "city")
        options = ["--city", folder / "city", "-o", path, "--sample", folder / "sample.npz"]
        assert frigate("export", "program", folder / "run", *options).status == 0
        return path

    return made


def compare(name: str, call: Program) -> None:
    run = small_run(name)
    sizes = set()
    for case, (arrays, made) in cases(name).items():
        got = call(arrays)
        if name == "default":  # counts are clamped on output
            assert (got > 0).mean() > 0.5 or "blind" in case
            got = np.maximum(got, 0)
        there = ~np.isnan(made.values)
        assert there.any() and got.shape == made.values.shape
        np.testing.assert_allclose(got[there], made.values[there], rtol=1e-5, atol=1e-4, err_msg=case)
        sizes.add((got.shape[1], *(len(arrays[key]) for key in TOWN)))
    assert all(len({size[i] for size in sizes}) >= 3 for i in range(3))  # N, E and P are all open
    no_roads = {k: v[:0] if SHAPES[k] in ("E", "P") else v for k, v in arrays.items()}
    check_parity(run, call, {"no roads": no_roads})


@ALSO_GAUGE
def test_a_program_gives_the_forecast_on_any_network(name: str, program: Callable[[str], Path]) -> None:
    compare(name, opened(program(name)))


@pytest.mark.skipif(not HAVE_ONNX, reason="the extra `export` is absent")
@pytest.mark.slow
@BOTH
def test_onnx_gives_the_forecast_on_any_network(name: str, tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    run = small_run(name)
    made = export_onnx(run, tmp_path / "it.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["it.onnx"]  # in one file, nothing left beside it
    compare(name, opened(made.path))
    # Its sums are wrong in onnxruntime with several threads, now and then, where a node has several roads.
    assert "ScatterND" not in {node.op_type for node in onnx.load(made.path).graph.node}
    session = onnxruntime.InferenceSession(made.path)
    sizes = {"N": "nodes", "E": "roads", "P": "pairs", "T": 2, "H": 2, "C": 3, "K": 3, "R": 23, "M": 32, "D": 4}
    told = {i.name: i.shape for i in session.get_inputs()}
    assert told == {key: [sizes[letter] for letter in SHAPES[key]] for key in inputs(run, stream=city_of(name))}
    assert [(o.name, o.shape) for o in session.get_outputs()] == [(OUTPUT, [2, "nodes"])]


def test_torch_alone_runs_what_the_command_wrote(program: Callable[[str], Path]) -> None:
    """In a process that cannot import this package: the sample's inputs give the sample's forecast."""
    folder = program("default").parent
    code = """
        import sys
        sys.modules["frigate"] = None
        import numpy as np, torch
        sample = dict(np.load("sample.npz"))
        want, ids = sample.pop("forecast"), sample.pop("node_ids")
        program = torch.export.load("default.pt2").module()
        got = program(**{name: torch.from_numpy(array) for name, array in sample.items()}).detach().numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        np.savez("got.npz", got=got, ids=ids)
    """
    script = "\n".join(line.strip() for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = forecast(small_run("default"), stream=city_of("default"), device="cpu")
    out = np.load(folder / "got.npz")
    np.testing.assert_allclose(np.maximum(out["got"], 0), made.values, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(out["ids"], made.node_ids)
    assert set(np.load(folder / "sample.npz")) == {*SHAPES, OUTPUT, "node_ids"} - {"positions"}


@pytest.mark.parametrize("suffix", [".pt2", pytest.param(".onnx", marks=[needs_onnx, pytest.mark.slow])])
def test_a_model_that_corrects_demand_reads_it(suffix: str, program: Callable[[str], Path], tmp_path: Path) -> None:
    run = small_run("default")
    city = city_of("default")
    path = program("default") if suffix == ".pt2" else export_onnx(run, tmp_path / "counts.onnx", city).path
    arrays = inputs(run, stream=city, close=["6,7"])
    assert set(DEMAND) <= set(arrays) and (arrays["demand_node"][:, -1] != 1).any()
    made = forecast(run, stream=city, close=["6,7"], device="cpu")
    np.testing.assert_allclose(np.maximum(opened(path)(arrays), 0), made.values, rtol=1e-4, atol=1e-4)


def test_a_program_names_no_path_of_this_machine(program: Callable[[str], Path]) -> None:
    with ZipFile(program("default")) as archive:
        held = b"".join(archive.read(name) for name in archive.namelist())
    assert str(Path(__file__).parents[2]).encode() not in held


@ALSO_GAUGE
def test_the_order_of_roads_and_values_without_a_reading_do_not_matter(
    name: str, program: Callable[[str], Path]
) -> None:
    run = small_run(name)
    call = opened(program(name))
    arrays = inputs(run, stream=another_town(name, seed=2, nodes=60))
    order = np.random.default_rng(0).permutation(len(arrays["senders"]))
    turned = {k: v[order] if SHAPES[k] == "E" else v for k, v in arrays.items()}
    turned["values"] = np.where(arrays["observed"], arrays["values"], np.nan)
    np.testing.assert_allclose(call(turned), call(arrays), rtol=1e-5, atol=1e-5)


@BOTH
def test_inputs_are_of_the_types_and_sizes_that_are_documented(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| \[([A-Z,]+)\] \| (\w+) \|", text, re.MULTILINE)
    assert [(key, shape.replace(",", "")) for key, shape, _ in rows] == list(SHAPES.items())
    types = {key: kind for key, _, kind in rows}
    arrays = inputs(small_run(name), stream=city_of(name))
    sizes: dict[str, set[int]] = {}
    for key, array in arrays.items():
        assert array.dtype == types[key] and array.flags.c_contiguous
        for letter, size in zip(SHAPES[key], array.shape, strict=True):
            sizes.setdefault(letter, set()).add(size)
    assert all(len(of) == 1 for of in sizes.values())
    assert sizes["N"] == {25} and sizes["T"] == {2} and sizes["H"] == {2}
    assert ("near_sensor" in arrays) == ("road_features" in arrays) == (name == "default")


def test_where_the_roads_change_those_of_the_last_snapshot_stand_for_all() -> None:
    run = small_run("paper")
    city = city_of("paper")
    stream = city.stream
    whole = city.network
    shut = whole.close([(6, 7), (7, 6)])
    recorded = replace(stream, networks=(whole, shut), network_of=(np.arange(S) >= 60).astype(np.int64))
    for at, network in ((59, whole), (61, shut), (62, shut), (90, shut)):
        got = inputs(run, stream=recorded, at=START_S + at * STEP_S)
        want = inputs(run, network, stream, at=START_S + at * STEP_S)
        for key in want:
            np.testing.assert_array_equal(got[key], want[key])
    assert len(got["senders"]) < whole.num_edges
    gauge = inputs(small_run("gauge"), stream=replace(recorded, quantity="speed", unit=city_of("gauge").stream.unit))
    assert len(gauge["senders"]) == whole.num_edges  # of a gauge, closures are not modelled


def test_a_difference_is_an_error() -> None:
    run = small_run("paper")
    city = city_of("paper")
    arrays = inputs(run, stream=city)
    right = forecast(run, stream=city, device="cpu").values.astype(np.float32)
    off = right.copy()
    nan = right.copy()
    off[1, 7] += 1e-4 * max(run.scaling.value_scale, float(np.abs(right).max()))
    nan[0, 3] = np.nan
    assert check_parity(run, lambda _: right, {"Grid": arrays})["Grid"] < 1e-4
    for wrong in (off, nan):
        with raises(FrigateError, "Grid", "differs"):
            check_parity(run, lambda _, wrong=wrong: wrong, {"Grid": arrays})  # type: ignore[misc]
    with raises(FrigateError, "(2, 24)", "(2, 25)"):
        check_parity(run, lambda _: right[:, 1:], {"Grid": arrays})


@pytest.mark.slow
@pytest.mark.parametrize("export", [export_program, export_onnx])
def test_a_program_that_differs_is_not_written(export: Callable[[Run, Path], object], tmp_path: Path) -> None:
    run = small_run("paper")
    broken = build_model(run.settings, run.scaling)
    with torch.no_grad():
        broken.value_scale.fill_(torch.nan)
    path = tmp_path / ("it.pt2" if export is export_program else "it.onnx")
    path.write_text("the one before")
    with raises(FrigateError, "differs", "nan"):
        export(replace(run, model=broken), path)
    assert path.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_stays_as_it_is(program: Callable[[str], Path]) -> None:
    run = small_run("default")
    city = city_of("default")
    before = forecast(run, stream=city, device="cpu").values
    run.model.train()
    inputs(run, stream=city)
    program("default")
    assert run.model.training and all(parameter.requires_grad for parameter in run.model.parameters())
    assert not run.model._forward_pre_hooks
    run.model.eval()
    np.testing.assert_array_equal(forecast(run, stream=city, device="cpu").values, before)


def test_unsupported_exports_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run("paper")
    city = city_of("paper")
    baseline = change(preset("dcrnn"), {"task": {"past": 2, "horizon": 2}})
    theirs = replace(run, settings=baseline, model=build_model(baseline, run.scaling))
    for refuse in (lambda: export_program(theirs, tmp_path / "it.pt2"), lambda: inputs(theirs, stream=city)):
        with raises(SettingsError, 'preset "dcrnn"', "paper and default"):
            refuse()
    other = build_model(run.settings, run.scaling)
    other.convolutions[0] = torch.nn.Identity()  # type: ignore[operator, assignment]
    with raises(SettingsError, "paper and default"):
        export_program(replace(run, model=other), tmp_path / "it.pt2")
    with raises(SettingsError, "it.onnx", ".pt2"):
        export_program(run, tmp_path / "it.onnx")
    (tmp_path / "file").write_text("")
    with raises(SettingsError, "written"):
        export_program(run, tmp_path / "file" / "it.pt2")
    for at, words in ((1, "1 snapshots and 2 steps"), (S + 1, "2 snapshots and 3 steps")):
        with raises(SettingsError, words, "2 and 2"):
            inputs(run, stream=city, at=START_S + at * STEP_S)
    with raises(CityError, "snapshot"):
        inputs(run, stream=city.stream.slice(0, 0))
    for package in NEEDED:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with raises(MissingExtraError, package, "[export]"):
                export_onnx(run, tmp_path / "it.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
