"""Tests of a mistake, in a copy of the repository and in a process of its own, which has torch and the like imported.

The process ends, with all that it started, once a test fails or the time is over. A mistake never touches another's
copy, nor the repository.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mutant_tests import MARKS

READY = (
    "torch",
    "scipy.optimize",
    "scipy.sparse.csgraph",
    "pytest",
    "hypothesis",
    "fastapi",
    "starlette.testclient",
    "polars",
)
STATIC = Path("frigate/pages/static")  # the built page, which git ignores
_number = itertools.count(1)
SERVED = "frigate/serve/"
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """Tests to run on a changed file; without a file, on the package as it is."""

    name: str
    tests: list[str]
    cpu_s: float  # limit of processor time
    file: str | None = None
    text: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of it: "passed", "failed" or "over time", and the test that failed."""

    result: str
    test: str | None
    cpu_s: float


def copies(root: Path, folder: Path, count: int) -> list[Path]:
    """Copies of what git knows of in the repository, and of the built page."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
    made = []
    for k in range(count):
        copy = folder / f"copy-{k}"
        shutil.rmtree(copy, ignore_errors=True)
        for name in names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
        if (root / STATIC).exists():
            shutil.copytree(root / STATIC, copy / STATIC)
        (copy / ".venv").symlink_to(Path(sys.prefix))
        made.append(copy)
    return made


def run_all(jobs: Iterable[Job], places: list[Path], told: Callable[[Job, Outcome], Job | None]) -> None:
    """Run jobs, one in each copy at a time; `told` hears of each outcome, and may ask for another job on the same."""
    for name in READY:
        importlib.import_module(name)
    waiting, free = iter(jobs), list(places)
    running: dict[int, tuple[Job, Path, float]] = {}
    again: list[Job] = []
    try:
        _run_all(waiting, free, running, again, told)
    finally:
        for child in running:  # of a run that is interrupted
            _end(child)


def _run_all(
    waiting: Iterator[Job],
    free: list[Path],
    running: dict[int, tuple[Job, Path, float]],
    again: list[Job],
    told: Callable[[Job, Outcome], Job | None],
) -> None:
    while True:
        while free and (job := again.pop() if again else next(waiting, None)) is not None:
            place = free.pop()
            running[_start(job, place)] = (job, place, time.monotonic() + 60 + 10 * job.cpu_s)
        if not running:
            return
        for child, status, cpu_s in _ended(running):
            job, place, _ = running.pop(child)
            outcome = _outcome(place, status, cpu_s)
            if job.file is not None:
                shutil.copy2(place / f"{job.file}.kept", place / job.file)  # with its old time, so that caches hold
            free.append(place)
            if (more := told(job, outcome)) is not None:
                again.append(more)


def _start(job: Job, place: Path) -> int:
    if job.file is not None:
        if not (place / f"{job.file}.kept").exists():
            shutil.copy2(place / job.file, place / f"{job.file}.kept")
        (place / job.file).write_text(job.text, encoding="utf-8")
        stamp = int((place / f"{job.file}.kept").stat().st_mtime) + next(_number)  # or bytecode of another would do
        os.utime(place / job.file, (stamp, stamp))
    scratch = place / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = _run(job, place, scratch)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def _run(job: Job, place: Path, scratch: Path) -> int:
    """In the child."""
    import pytest

    os.setsid()
    log = os.open(place / "log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    limit = int(job.cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    os.chdir(place)
    os.environ |= {"PYTHONPATH": str(place), "TMPDIR": str(scratch)}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if job.file is not None and job.file.startswith(SERVED):
        os.environ["FRIGATE_TEST_TOWN"] = str(place / "town")  # no mistake there changes what is trained
    sys.dont_write_bytecode = False
    sys.path.insert(0, str(place))
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-rfE",
        "--tb=no",
        "--no-header",
        "--assert=plain",
        "-m",
        MARKS,
    ]
    return int(pytest.main([*options, f"--basetemp={scratch / 'pytest'}", *job.tests]))


def _ended(running: dict[int, tuple[Job, Path, float]]) -> Iterator[tuple[int, int, float]]:
    """Children that ended since, after a wait for the first; what they started is ended too."""
    while True:
        some = False
        for child, (_, _, until) in list(running.items()):
            if time.monotonic() > until:
                _end(child)
            ended, status, used = os.wait4(child, os.WNOHANG)
            if ended:
                _end(child)
                some = True
                yield child, status, used.ru_utime + used.ru_stime
        if some:
            return
        time.sleep(0.05)


def _end(child: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGTERM)


def _outcome(place: Path, status: int, cpu_s: float) -> Outcome:
    text = (place / "log").read_text(encoding="utf-8", errors="replace")
    found = FAILED.search(text)
    if os.WIFSIGNALED(status):
        return Outcome("over time", None, cpu_s)
    match os.WEXITSTATUS(status):
        case 0:
            return Outcome("passed", None, cpu_s)
        case 1 | 2 | 4:  # 4: the tests could not even be imported
            return Outcome("failed", found[1] if found else "where the tests are collected", cpu_s)
    return Outcome(f"pytest ended with {os.WEXITSTATUS(status)}: {text[-500:]}", None, cpu_s)
