"""The public names, and that they are what their names say."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import frigate as fg

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PUBLIC = {
    "CheckpointError",
    "City",
    "CityError",
    "Demand",
    "Evaluation",
    "Forecast",
    "Forecaster",
    "FrigateError",
    "Live",
    "MissingExtraError",
    "RoadChange",
    "RoadNetwork",
    "RoadNetworkStream",
    "Run",
    "Scenario",
    "Settings",
    "SettingsError",
    "change",
    "compare_scenarios",
    "demo_city",
    "estimate_demand",
    "evaluate",
    "forecast",
    "import_benchmark",
    "import_matrix",
    "import_osm",
    "import_sumo",
    "import_tables",
    "import_traces",
    "load_run",
    "make_stream",
    "place",
    "preset",
    "read_city",
    "train",
    "trips_through",
    "write_city",
    "write_report",
}


def test_the_public_names() -> None:
    assert fg.__all__ == sorted(PUBLIC)


def test_each_name_is_listed_once() -> None:
    for name in PUBLIC:
        getattr(fg, name)  # which makes it a global too
    listed = dir(fg)
    assert [name for name in listed if not name.startswith("__")] == sorted(PUBLIC)
    assert len(listed) == len(set(listed)) and "__version__" in listed


def test_a_type_checker_sees_the_names_that_are_imported() -> None:
    tree = ast.parse(Path(fg.__file__).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    assert {name.name: node.module for node in imports for name in node.names} == vars(fg)["_MODULE_OF"]
    for name, module in vars(fg)["_MODULE_OF"].items():
        assert getattr(fg, name).__module__ == module  # where it is written, not where it passes through


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_needs_one_import_of_frigate(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [line for line in imported if "frigate" in line] == ["import frigate as fg"]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_no_module_hides_a_public_name(name: str) -> None:
    # `frigate.training.train` is a module too; whoever imports it must not lose the function.
    assert not isinstance(getattr(fg, name), types.ModuleType)


def test_a_public_name_is_imported_when_it_is_used() -> None:
    """So that `import frigate`, and help on the command line, need not wait for torch."""
    code = "import sys, frigate; assert 'numpy' not in sys.modules; frigate.train; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert set(fg.__all__) <= set(dir(fg))
    with pytest.raises(AttributeError, match="trian"):
        fg.trian  # type: ignore[attr-defined]  # noqa: B018


def test_the_invented_town_is_a_city_to_train_on() -> None:
    city = fg.demo_city(seed=1, intersections=100, days=2, step_s=1800)
    assert isinstance(city, fg.City)
    assert not np.array_equal(
        city.stream.values, fg.demo_city(seed=2, intersections=100, days=2, step_s=1800).stream.values
    )
    model = {"width": 8, "layers": 1, "hidden": 8, "anchors": 4}
    task = {"past": 2, "horizon": 2}
    few = {"epochs": 1, "steps_per_epoch": 1, "batch_size": 2, "validation_windows": 2}
    settings = fg.change(fg.preset("paper"), {"model": model, "task": task, "train": few})
    run = fg.train(city, seen=0.3, settings=settings, device="cpu")
    assert fg.evaluate(run, city, device="cpu").city == city.name
    made = fg.forecast(run, stream=city, device="cpu")
    assert made.values.shape == (2, city.stream.num_nodes)
    for shown, word in (
        (city, "100 nodes"),
        (city.network, "roads"),
        (city.stream, "snapshots"),
        (run, "epoch 1 of 1"),
        (made, "sensors"),
    ):
        assert word in repr(shown) and len(repr(shown)) < 250 and "\n" not in repr(shown)


def test_every_error_is_a_frigate_error() -> None:
    errors = [getattr(fg, name) for name in PUBLIC if name.endswith("Error")]
    assert all(issubclass(error, fg.FrigateError) for error in errors)


def test_no_two_classes_share_a_name() -> None:
    """Nor a name but for an underscore: whoever reads one name has one thing in mind."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(fg.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_").lower(), []).append(f"{path.name}: {node.name}")
    assert len(found) > 300
    assert {name: where for name, where in found.items() if len(where) > 1} == {}
