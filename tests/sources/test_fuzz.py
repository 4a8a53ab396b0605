"""Importers survive damaged files: refused or read, never a traceback, a crash, a hang or memory without bound.

Seven inputs of each format here, 2,000 in `make test-slow`. Each import runs in a child process with a limit on memory
and time, since native parsers can crash; a child that dies is told apart by the input that killed it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.fuzz_child import LIMIT_S, Job
from tests.support.fuzz_formats import FORMATS

FEW, MANY = 7, 2000
AT_ONCE = 500  # inputs for one child
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """What became of the inputs of one format."""

    how: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def fuzz(jobs: Iterable[Job], folder: Path, *, limit_s: float = LIMIT_S) -> dict[str, Outcome]:
    """Run the jobs in a process of their own and gather what it logs."""
    jobs = list(jobs)
    folder.mkdir(parents=True)
    asked = folder / "jobs.json"
    log = folder / "log.jsonl"
    asked.write_text(json.dumps({"jobs": jobs, "limit_s": limit_s}))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.fuzz_child", str(asked), str(log)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "2", "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"the harness ended with {ended.returncode}: {ended.stderr[-3000:]}"
    outcomes = {name: Outcome() for name, _, _ in jobs}
    for name, k, which, how, said in map(json.loads, log.read_text().splitlines()):
        if how != "begun":
            outcomes[name].how[how] += 1
            if how not in ("read", "refused"):
                outcomes[name].faults.append(f"{name} input {k} ({which}), {how}: {said}")
    return outcomes


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("fuzz")
    jobs = [(name, 0, FEW) for name in FORMATS]
    half = len(FORMATS) // 2
    # Formats that stand together compile and import the same.
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(fuzz, (jobs[:half], jobs[half:]), (folder / "first", folder / "second"))
    return {name: outcome for part in parts for name, outcome in part.items()}


def judge(outcome: Outcome, count: int) -> None:
    assert not outcome.faults, "\n\n".join(outcome.faults[:5])
    assert outcome.how["read"] + outcome.how["refused"] == count
    assert outcome.how["refused"]  # else the damage does not reach the importer


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused_or_read(few: dict[str, Outcome], name: str) -> None:
    judge(few[name], FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_thousands_of_damaged_files_are_refused_or_read(tmp_path: Path, name: str) -> None:
    jobs = [(name, first, AT_ONCE) for first in range(0, MANY, AT_ONCE)]
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda job: fuzz([job], tmp_path / str(job[1]))[name], jobs))
    whole = Outcome(sum((part.how for part in parts), Counter()), [fault for part in parts for fault in part.faults])
    print(name, dict(whole.how))
    judge(whole, MANY)


def test_the_harness_finds_planted_errors(tmp_path: Path) -> None:
    jobs = [("slip", 0, 1), ("greed", 0, 1), ("hang", 3, 1), ("crash", 0, 2), ("matrix npy", 0, 1)]
    found = fuzz(jobs, tmp_path / "traps", limit_s=1.0)
    assert found["slip"].how == {"fault": 1}
    assert "KeyError" in found["slip"].faults[0]
    assert found["greed"].how == {"fault": 1}
    assert "MemoryError" in found["greed"].faults[0]
    assert found["hang"].how == {"SIGPROF": 1}
    assert "_hang" in found["hang"].faults[0]
    assert found["crash"].how == {"SIGSEGV": 2}
    assert "crash input 1 (m.npy), SIGSEGV" in found["crash"].faults[1]
    assert found["matrix npy"].how.total() == 1
    assert not found["matrix npy"].faults
