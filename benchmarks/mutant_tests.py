"""Which tests run which line of the package, and how long each takes.

Loaded by pytest under coverage, this module tells coverage which test is running, and writes down how long it took:

    FRIGATE_TEST_SECONDS=FILE coverage run --context=tests/demand/test_week.py -m pytest -p mutant_tests ...
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest

SECONDS_FILE = "FRIGATE_TEST_SECONDS"
MARKS = "not slow and not shared"
_seconds: dict[str, float] = defaultdict(float)


def pytest_runtest_logstart(nodeid: str) -> None:
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish() -> None:
    if SECONDS_FILE in os.environ:
        Path(os.environ[SECONDS_FILE]).write_text(json.dumps(_seconds), encoding="utf-8")


@dataclass
class TestMap:
    """What is known of the tests."""

    __test__ = False  # for pytest, which would take it for a test

    seconds: dict[str, float] = field(default_factory=dict)  # of each test, with what it sets up
    lines: dict[str, dict[int, set[str]]] = field(
        default_factory=dict
    )  # file of the package -> line -> tests that run it
    files: dict[str, dict[int, set[str]]] = field(default_factory=dict)  # and the files of tests that run it in any way

    def quick(self, file: str, lines: Iterable[int], *, most_s: float) -> list[str]:
        """The tests that run one of the lines, fast ones first, as many as fit in the time (one at least)."""
        chosen: list[str] = []
        for test in sorted(self._of(self.lines, file, lines), key=lambda test: (self.seconds[test], test)):
            most_s -= self.seconds[test]
            if chosen and most_s < 0:
                break
            chosen.append(test)
        cost = Counter[str]()  # by file, so that what tests of a file share is set up once
        for test in chosen:
            cost[test.partition("::")[0]] += int(1000 * self.seconds[test])
        return sorted(
            chosen, key=lambda test: (cost[test.partition("::")[0]], test.partition("::")[0], self.seconds[test])
        )

    def thorough(self, file: str, lines: Iterable[int]) -> list[str]:
        """The files of tests that run one of the lines, if only in a process that they start or in what tests share."""
        return sorted(self._of(self.files, file, lines), key=lambda name: (self.file_seconds(name), name))

    def file_seconds(self, name: str) -> float:
        return sum(seconds for test, seconds in self.seconds.items() if test.startswith(f"{name}::"))

    @staticmethod
    def _of(which: dict[str, dict[int, set[str]]], file: str, lines: Iterable[int]) -> set[str]:
        of_file = which.get(file, {})
        return set().union(*(of_file.get(line, set()) for line in lines))


def measure(root: Path, tests: Iterable[str], folder: Path) -> None:
    """Run each file of tests under coverage, but those measured since it last changed."""
    folder.mkdir(parents=True, exist_ok=True)
    search = os.pathsep.join([str(root), str(root / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    for name in tests:
        seconds = folder / f"{name.replace('/', '__')}.json"
        if seconds.exists() and seconds.stat().st_mtime > (root / name).stat().st_mtime:
            continue
        data = folder / f".coverage.{name.replace('/', '__')}"
        for old in folder.glob(f"{data.name}*"):
            old.unlink()
        here = os.environ | {"PYTHONPATH": search, "COVERAGE_FILE": str(data), SECONDS_FILE: str(seconds)}
        options = [
            "--rcfile=pyproject.toml",
            f"--context={name}",
            "-m",
            "pytest",
            "-p",
            "mutant_tests",
            "-p",
            "no:cacheprovider",
        ]
        command = [sys.executable, "-m", "coverage", "run", *options, "-q", "-m", MARKS, name]
        done = subprocess.run(command, cwd=root, env=here, capture_output=True, text=True, check=False)
        print(f"{name}: {done.stdout.strip().splitlines()[-1]}", flush=True)


def read_map(root: Path, tests: Iterable[str], folder: Path) -> TestMap:
    """What `measure` found of these files of tests."""
    found = TestMap()
    for name in tests:
        flat = name.replace("/", "__")
        if not (folder / f"{flat}.json").exists():
            continue
        found.seconds |= json.loads((folder / f"{flat}.json").read_text(encoding="utf-8"))
        for path in folder.glob(f".coverage.{flat}.*"):
            data = coverage.CoverageData(str(path))
            data.read()
            for measured in data.measured_files():
                file = Path(measured).relative_to(root).as_posix()
                of_tests = found.lines.setdefault(file, defaultdict(set))
                of_files = found.files.setdefault(file, defaultdict(set))
                for line, contexts in data.contexts_by_lineno(measured).items():
                    ran = {test for _, _, test in (context.partition("|") for context in contexts)}
                    of_tests[line] |= ran & found.seconds.keys()
                    of_files[line].add(name)
    return found
