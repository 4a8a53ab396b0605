"""Every block of code in the documents is executed, on small files in place of those that it speaks of."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frigate.city.folder import read_city, write_city
from frigate.serve.client import ServiceClient, ServiceGoneError
from tests.support import stand_ins
from tests.support.command_line import frigate
from tests.support.documents import DOCUMENTS, ROOT, blocks
from tests.support.service_process import free_port, until

LUXEMBOURG = "Europe/Luxembourg"
LOS_ANGELES = "America/Los_Angeles"
SETTINGS = """
[task]
past = 4
horizon = 4
[model]
width = 8
layers = 2
hidden = 8
[train]
steps_per_epoch = 2
batch_size = 4
masks = 3
validation_windows = 4
"""
# Commands that are not executed here, why, and what tries them instead.
NOT_EXECUTED = {
    r"make [a-z-]+": ("set-up, and what runs this test", "Makefile"),
    r"\.venv/bin/": ("a part of `make test`", "Makefile"),
    r"(useradd|createuser|createdb|systemctl|journalctl|nginx|sudo|chown)\b|cp (frigate\.service|nginx\.conf)|.*/opt/|"
    r"cp -r (CITY|RUN) /var|curl .*readyz": ("the administrator of a machine", "tests/serve/test_deploy.py"),
    r"frigate serve RUN --store postgresql:": ("a database server", "tests/serve/test_store.py"),
    r"frigate serve RUN --mqtt": ("a broker", "tests/serve/test_mqtt.py"),
    r"(FRIGATE_TOKEN=\S+ )?frigate replay": ("a service that runs meanwhile", "tests/serve/test_replay.py"),
    r"export FRIGATE_TOKEN=": ("the token of that service", "tests/serve/test_app_docs.py"),
    r"frigate serve runs/town --socket|curl --unix-socket": ("a folder of the system", "tests/serve/test_session.py"),
    r"torchrun": ("several processes or machines", "tests/training/test_distributed.py"),
    r"frigate bench": ("minutes on a network of 3,000 nodes", "tests/bench/test_bench.py"),
    r"frigate demo": ("two minutes", "tests/cli/test_commands.py"),
    r"frigate reproduce": ("minutes", "tests/experiments/test_experiments.py"),
}
# Pages whose blocks are executed by a test of their own.
OF_ITS_OWN = {"docs/serve.md": "tests/serve/test_app_docs.py", "CONTRIBUTING.md": "tests/test_contributing.py"}
INSTEAD = {"fg.train(city, seen=0.3)": 'fg.load_run("demo/run")'}  # the other way that the README names


def of_readme(folder: Path) -> None:
    trained(folder / "demo", "2024-03-15T00:00", "city", "run")
    for_matrix(folder)
    for_osm("town")(folder)


def for_matrix(folder: Path) -> None:
    stand_ins.matrix(folder, "2008-06-08T10:00", LOS_ANGELES)


def for_osm(name: str) -> stand_ins.Stage:
    def stage(folder: Path) -> None:
        stand_ins.osm(folder / f"{name}.osm.pbf")
        stand_ins.loops_by_place(folder / "counts.csv", "2024-03-04T00:00")
        stand_ins.loops_by_place(folder / "loops.csv", "2024-03-04T00:00")

    return stage


def for_tables(folder: Path) -> None:
    stand_ins.german_tables(folder, "2024-03-10T00:00")
    stand_ins.street_lines(folder, "2024-03-10T00:00")
    stand_ins.counts_by_sensor(folder / "2024-03-12.csv", "2024-03-12T00:00")
    stand_ins.city(folder / "map", "2024-03-01T00:00", "Europe/Berlin")


def for_traces(folder: Path) -> None:
    stand_ins.osm(folder / "city.osm.pbf")
    for day, local in (("monday", "2024-03-04T00:00"), ("tuesday", "2024-03-05T01:00")):
        stand_ins.taxi_traces(folder / f"{day}.parquet", local, LOS_ANGELES)


def trained(folder: Path, local: str, city: str, run: str) -> None:
    stand_ins.city(folder / city, local)
    (folder / "short.toml").write_text(SETTINGS)
    said = frigate("train", folder / city, "-o", folder / run, "--settings", folder / "short.toml", *SHORT)
    assert said.status == 0, said.err


def for_planners(folder: Path) -> None:
    """A city with sensors at a third of its nodes."""
    stand_ins.city(folder / "all", "2024-03-04T00:00")
    town = read_city(folder / "all")
    observed = town.stream.observed & (np.arange(town.stream.num_nodes) % 3 == 0)
    write_city(replace(town, stream=replace(town.stream, observed=observed)), folder / "CITY")


def with_run(local: str, *places: tuple[str, str]) -> stand_ins.Stage:
    """A trained town in each of these places: the city and the run."""

    def stage(folder: Path) -> None:
        for city, run in places:
            trained(folder, local, city, run)

    return stage


STAGES: dict[str, stand_ins.Stage] = {
    "README.md": of_readme,
    "docs/export.md": with_run("2024-03-06T00:00", ("CITY", "RUN")),
    "docs/index.md": for_osm("town"),
    "docs/intervals.md": with_run("2024-03-11T00:00", ("CITY", "RUN")),
    "docs/map.md": with_run("2024-03-04T00:00", ("CITY", "RUN"), ("town", "runs/town")),
    "docs/operations.md": with_run("2024-03-04T00:00", ("CITY", "RUN"), ("demo/city", "demo/run")),
    "docs/performance.md": with_run("2024-03-06T00:00", ("demo/city", "demo/run")),
    "docs/place.md": for_planners,
    "docs/quickstart.md": for_matrix,
    "docs/scenarios.md": with_run("2024-03-04T00:00", ("town", "runs/town")),
    "docs/sources/benchmarks.md": lambda folder: stand_ins.benchmarks(folder / "downloads"),
    "docs/sources/osm.md": for_osm("luxembourg"),
    "docs/sources/sumo.md": stand_ins.sumo,
    "docs/sources/tables.md": for_tables,
    "docs/sources/traces.md": for_traces,
}
SLOW = {"docs/export.md": pytest.mark.slow}  # ONNX takes ten seconds
SHORT = ("--epochs", "1", "--device", "cpu")


@pytest.mark.parametrize("page", [pytest.param(page, marks=SLOW.get(page, ())) for page in STAGES])
def test_every_block_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "lightgbm", None)  # not installed, as Python marks it: it takes most of the time
    STAGES[page](tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(ROOT / page):
        if block.language == "sh":
            for command in block.commands():
                if not any(re.match(pattern, command) for pattern in NOT_EXECUTED):
                    execute(command)
        elif block.language == "python":
            text = block.text
            for long, short in INSTEAD.items():
                text = text.replace(long, short)
            exec(compile(text, page, "exec"), names)
        else:
            named = re.match(r"# (\w+\.toml)\n", block.text)
            (tmp_path / (named[1] if named else "small.toml")).write_text(block.text)


def test_the_sessions_of_the_services_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained(tmp_path, "2024-03-04T00:00", "town", "runs/town")
    said: list[str] = []
    token = ""
    for command in commands("console"):
        if not any(re.match(pattern, command) for pattern in NOT_EXECUTED):
            if "revoke" in command:
                token = next(line.split()[0] for line in said[-1].splitlines() if "Control room" in line)
            said.append(execute(command.replace("1c0fab18", token)))
    served, _, tokens, revoked, *_ = said
    assert re.search(r"^town: http://127.0.0.1:\d+/ \(Ctrl-C to stop\)$", served, re.MULTILINE)
    assert "Control room" in tokens and f"Token {token} is revoked" in revoked


def execute(command: str) -> str:
    """Run a command as a reader would, in this process if it is ours; a training is cut short. What it printed."""
    words = shlex.split(command.removeprefix("python -m "))
    if words[0] != "frigate":
        return subprocess.run(["bash", "-eu", "-c", command], check=True, capture_output=True, text=True).stdout
    if words[1] == "train":
        words += SHORT if "--epochs" not in words else SHORT[2:]
        if not {"--settings", "--resume"} & set(words):
            Path("short.toml").write_text(SETTINGS)
            words += ["--settings", "short.toml"]
    if words[1] == "serve":
        port = free_port()
        words += ["--port", str(port), "--device", "cpu"]
        threading.Thread(target=interrupt_when_it_answers, args=(port,), daemon=True).start()
    said = frigate(*words[1:])
    assert said.status == 0, (command, said.err)
    return said.out + said.err


def interrupt_when_it_answers(port: int) -> None:
    """As Ctrl-C does."""
    client = ServiceClient(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        try:
            return bool(client.get("/healthz"))
        except ServiceGoneError:
            return False

    until(answers, "the service answers")
    client.close()
    os.kill(os.getpid(), signal.SIGINT)


def commands(*languages: str) -> Iterator[str]:
    for path in DOCUMENTS:
        for block in blocks(path):
            if block.language in languages:
                yield from block.commands()


def test_each_page_with_code_is_executed_by_a_test() -> None:
    with_code = {block.page for path in DOCUMENTS for block in blocks(path)}
    # Settings and answers are held to the code by tests/test_docs.py.
    only_data = {page for page in with_code if {b.language for b in blocks(ROOT / page)} <= {"toml", "json"}}
    assert with_code - only_data == {*STAGES, *OF_ITS_OWN}
    for page, test in OF_ITS_OWN.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("pattern", NOT_EXECUTED)
def test_a_command_that_is_not_executed_is_there_and_tried_elsewhere(pattern: str) -> None:
    assert any(re.match(pattern, command) for command in commands("sh", "console"))
    assert (ROOT / NOT_EXECUTED[pattern][1]).is_file()
