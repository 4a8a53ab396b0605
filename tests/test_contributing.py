"""CONTRIBUTING.md, followed to the letter: its source and its baseline are added to a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from frigate.city.folder import read_city
from tests.support import stand_ins
from tests.support.documents import ROOT, blocks

STATIONS = {
    "stations": [{"id": "A", "lon": 6.1, "lat": 49.6}, {"id": "B", "lon": 6.2, "lat": 49.6}],
    "roads": [{"from": "A", "to": "B", "length_m": 900}, {"from": "B", "to": "A", "length_m": 900}],
    "counts": [
        {"station": station, "time": f"2024-03-04T08:0{minute}", "vehicles": vehicles}
        for station, minute, vehicles in (("A", 0, 3), ("A", 1, 4), ("B", 5, 5), ("C", 5, 6))
    ],
}
SETTINGS = "[model]\nwidth = 8\n[train]\nsteps_per_epoch = 1\nbatch_size = 2\nvalidation_windows = 2\n"
COPIED = ("config.py", "cli", "sources", "baselines")  # what a contributor changes; the rest is linked


def block_with(text: str) -> str:
    return next(block.text for block in blocks(ROOT / "CONTRIBUTING.md") if text in block.text)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package to be changed, in a folder of its own."""
    copy = tmp_path / "clone" / "frigate"
    copy.mkdir(parents=True)
    for path in (ROOT / "frigate").iterdir():
        if path.name not in COPIED:
            (copy / path.name).symlink_to(path)
        elif path.is_dir():
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy)
    return copy


def run(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    here = os.environ | {"PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-m", "frigate", *words]
    return subprocess.run(command, cwd=package.parent, env=here, capture_output=True, text=True, check=False)


def replace_once(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_the_source_is_added_and_imports_a_city(package: Path) -> None:
    (package / "sources" / "stations.py").write_text(block_with("def import_stations"))
    imports = package / "cli" / "imports.py"
    shared = "# Shared arguments\n"
    replace_once(imports, shared, f"{block_with('def _import_stations')}\n\n{shared}")
    first = '        Command(\n            "matrix",'
    replace_once(imports, first, textwrap.indent(block_with('    "stations",').rstrip(), " " * 8) + ",\n" + first)

    file = package.parent / "town.json"
    file.write_text(json.dumps(STATIONS))
    done = run(package, "import", "stations", "town.json", "--timezone", "Europe/Luxembourg", "-o", "town")
    assert done.returncode == 0 and "2 nodes, 2 roads, 2 snapshots" in done.stdout, done.stderr
    city = read_city(package.parent / "town")
    assert city.name == "town" and city.stream.timezone == "Europe/Luxembourg"
    assert city.stream.values.tolist() == [[7, 0], [0, 5]]
    assert city.stream.observed.tolist() == [[True, False], [False, True]]
    assert "Counts of unknown stations, left out: 1" in done.stderr  # station C
    help_text = run(package, "import", "--help").stdout
    assert "Import counting stations from a JSON file." in help_text and "Import a SUMO network" in help_text

    file.write_text("{}")
    refused = run(package, "import", "stations", "town.json", "-o", "other")
    assert refused.returncode == 2 and "town.json: KeyError" in refused.stderr and "Traceback" not in refused.stderr


def test_the_baseline_is_added_and_trains(package: Path) -> None:
    (package / "baselines" / "one_hop.py").write_text(block_with("class OneHop"))
    name, sizes, of_class = block_with("# in BASELINE_SIZES").splitlines()
    config = package / "config.py"
    deep = package / "baselines" / "deep.py"
    replace_once(config, '    "stnn": "STNN",\n', f'    "stnn": "STNN",\n    {name}\n')
    replace_once(config, "BASELINE_SIZES = {\n", f"BASELINE_SIZES = {{\n    {sizes}\n")
    replace_once(deep, '        "stnn": STNN,\n', f'        "stnn": STNN,\n        {of_class}\n')
    imported = "    from frigate.baselines.stnn import STNN\n"
    replace_once(deep, imported, f"    from frigate.baselines.one_hop import OneHop\n{imported}")

    stand_ins.city(package.parent / "city", "2024-03-04T00:00")
    (package.parent / "short.toml").write_text(SETTINGS)
    short = ("--settings", "short.toml", "--epochs", "1", "--seen", "50%", "--device", "cpu")
    done = run(package, "train", "city", "-o", "run", "--preset", "one-hop", *short)
    assert done.returncode == 0, done.stderr
    made = run(package, "forecast", "run", "--json")
    forecast = json.loads(made.stdout)
    assert len(forecast["nodes"]) == 48 and all(len(node["values"]) == 12 for node in forecast["nodes"])
