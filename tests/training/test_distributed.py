"""Several processes train the model that one would, leave the same files, and stop and refuse together.

Most of them are forked from one process that has imported everything, with torchrun's variables set; torchrun itself
takes many seconds to begin, and is used once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

import frigate.cli.main
from frigate.city.city import City
from frigate.city.folder import open_city, read_city, write_city
from frigate.config import BaselineSettings, Settings
from frigate.errors import FrigateError
from frigate.nn.scaling import Scaling
from frigate.roads.feature_cache import ensure_road_features
from frigate.training.distributed import Group, joined
from frigate.training.run import Model, Run, build_model
from frigate.training.train import train
from frigate.training.trainer import StepReport
from tests.support.crash_points import at_file_event
from tests.support.training_runs import equal, log, tensors, tiny, town

STILL = {"dropout": 0.0, "edge_dropout": 0.0}
CASES: dict[str, Settings] = {  # which several processes do exactly as one does, up to rounding
    "paper": tiny("paper"),
    "default": tiny(model=STILL, learning_rate=5e-4),
    "indivisible": tiny("paper", batch_size=5, validation_windows=5, learning_rate=1e-3),
    "fewer windows than processes": tiny("paper", batch_size=1, validation_windows=1),
    "little memory": tiny("paper", epochs=1, memory_gb=1e-9),
    "parts": tiny("paper", parts=3),
    "patience": tiny("paper", epochs=50, patience=2, learning_rate=1e-30, weight_decay=0.0),
    "diverged": tiny(learning_rate=1e30, warmup_steps=0, patience=2, clip_norm=1e9, model=STILL),
    "a spare parameter": tiny("paper", epochs=1),
}
DCRNN = replace(tiny("paper", batch_size=5), model=BaselineSettings("dcrnn", 8, 1))
LONG = tiny(epochs=24, patience=24, steps_per_epoch=1, batch_size=3)
TOLERANCE = 1e-5
MAX_WAIT_S = 900  # only for what hangs


def spare(settings: Settings, scaling: Scaling) -> Model:
    """A model with a parameter that nothing reads: it has no gradient, so that not even its weight decays."""
    model = build_model(settings, scaling)
    model.register_parameter("spare", torch.nn.Parameter(torch.ones(3)))
    return model


def build_of(case: str) -> Callable[[Settings, Scaling], Model]:
    return spare if case == "a spare parameter" else build_model


# What each process does


def as_torchrun(rank: int, size: int, port: int, told: Path, work: Callable[..., int | None], *arguments: Any) -> None:
    """Do the work as if torchrun had started this process; what it prints goes into files."""
    facts = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in facts.items()}, TORCHELASTIC_USE_AGENT_STORE="True")
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have ignored it
    (told / f"{rank}.pid").write_text(str(os.getpid()))
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(told / f"{rank}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, descriptor)
    sys.exit(work(*arguments))


def signalled(told: Path, number: signal.Signals, file: str, words: list[str]) -> int:
    """A command in whose course process 0, about to touch the file, sends the signal to process 1."""
    if os.environ["RANK"] == "0":
        at_file_event(file, 1, lambda: os.kill(int((told / "1.pid").read_text()), number))
    return command_line(*words)


def command_line(*words: str) -> int:
    return frigate.cli.main.main(words)


def straight(place: Path) -> None:
    train(read_city(place / "city"), settings=LONG, folder=place / "straight", device="cpu")


def study(cities: Path, out: Path) -> None:
    with joined() as group:
        _study(open_city(cities), out, group)


def _study(city: City, out: Path, group: Group) -> None:
    for case, settings in CASES.items():
        keep(out, group, case, train(city, settings=settings, folder=out / case, device="cpu", build=build_of(case)))
    keep(out, group, "dropout", train(city, settings=tiny(), folder=out / "dropout", device="cpu"))
    keep(out, group, "dcrnn", train(city, settings=DCRNN, folder=out / "dcrnn", device="cpu"))

    def stop(tick: StepReport) -> None:
        if (tick.epoch, tick.step) == (1, 1):
            raise KeyboardInterrupt

    keep(out, group, "half", train(city, settings=tiny(), folder=out / "halves", device="cpu", on_step=stop))
    keep(out, group, "halves", train(city, folder=out / "halves", resume=True, device="cpu"))
    refuse(out, group, "other settings", city, settings=tiny(seed=group.rank))
    refuse(out, group, "only one refuses", city, settings=tiny(), seen="all" if group.rank != 1 else 0.0001)
    blocked = out / "cannot be written"
    refuse(out, group, blocked.name, city, settings=tiny(), on_step=lambda tick: block(blocked))
    keep(out, group, "after refusals", train(city, settings=CASES["paper"], device="cpu"))


def keep(out: Path, group: Group, case: str, run: Run) -> None:
    mine = out / f"rank{group.rank}"
    mine.mkdir(exist_ok=True)
    save_file(run.model.state_dict(), mine / f"{case}.safetensors")
    facts = {**vars(run.progress), "seconds": 0, "best_mae": str(run.progress.best_mae)}
    (mine / f"{case}.json").write_text(json.dumps(facts))


def refuse(out: Path, group: Group, case: str, city: City, **how: Any) -> None:
    try:
        train(city, folder=out / case, device="cpu", **how)
    except FrigateError as error:
        (out / f"rank{group.rank}" / f"{case}.txt").write_text(str(error))


def block(folder: Path) -> None:
    (folder / "metrics.jsonl").mkdir(exist_ok=True)


# What is looked at


class Processes:
    """Several that were started together, as by torchrun, but nobody looks after them."""

    def __init__(self, size: int, told: Path, work: Callable[..., int | None], *arguments: Any) -> None:
        told.mkdir()
        self.told = told
        # Where the processes find each other; torchrun has one too. It takes a free port and keeps it.
        self.store = dist.TCPStore(  # type: ignore[attr-defined]  # which torch documents
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        self.all: list[ForkServerProcess] = [
            context().Process(target=as_torchrun, args=(rank, size, self.store.port, told, work, *arguments))
            for rank in range(size)
        ]
        for process in self.all:
            process.start()

    def end(self) -> tuple[list[int | None], list[tuple[str, str]]]:
        """The status of each, and what it wrote to stdout and stderr."""
        for process in self.all:
            process.join(MAX_WAIT_S)
        told = [tuple((self.told / f"{rank}.{n}").read_text() for n in ("out", "err")) for rank in range(len(self.all))]
        status = [process.exitcode for process in self.all]
        for process in self.all:
            process.kill()
        return status, [(out, err) for out, err in told]


def context() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        context().set_forkserver_preload(
            ["tests.training.test_distributed", "torch._dynamo"]
        )  # the optimiser imports it
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case, by one process."""
    folder = tmp_path_factory.mktemp("alone")
    for case, settings in CASES.items():
        train(town(), settings=settings, folder=folder / case, device="cpu", build=build_of(case))
    train(town(), settings=DCRNN, folder=folder / "dcrnn", device="cpu")
    return folder


@pytest.fixture(scope="module")
def studies(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Every case, by 2 processes and by 3."""
    folders = {size: tmp_path_factory.mktemp(f"by{size}") for size in (2, 3)}
    begun = [Processes(size, out / "told", study, place / "city", out) for size, out in folders.items()]
    for processes in begun:
        status, told = processes.end()
        assert set(status) == {0}, told
    return folders


SEVERAL = pytest.mark.parametrize("processes", [2, 3])


@SEVERAL
@pytest.mark.parametrize("case", [case for case in CASES if case != "diverged"])  # which is thrown about by rounding
def test_several_processes_train_the_model_that_one_does(
    processes: int, case: str, studies: dict[int, Path], alone: Path
) -> None:
    many = tensors(studies[processes] / case)
    one = tensors(alone / case)
    assert many.keys() == one.keys()
    assert ("step.spare" in one, "model.spare" in one) == (False, case == "a spare parameter")
    for k, v in one.items():
        torch.testing.assert_close(many[k], v, rtol=TOLERANCE, atol=TOLERANCE, msg=k)


@SEVERAL
@pytest.mark.parametrize("case", CASES)
def test_progress_and_early_stopping_are_those_of_one(
    processes: int, case: str, studies: dict[int, Path], alone: Path
) -> None:
    many = log(studies[processes] / case)
    one = log(alone / case)
    assert [line["epoch"] for line in many] == list(range(1, len(one) + 1))
    for ours, theirs in zip(many, one, strict=True):
        for name, value in theirs.items():
            assert ours[name] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), name
    assert len(one) == {"patience": 3, "diverged": 2}.get(case, CASES[case].train.epochs)
    assert {p.name for p in (studies[processes] / case).iterdir()} == {p.name for p in (alone / case).iterdir()}


@SEVERAL
def test_all_processes_end_with_the_same_run(processes: int, studies: dict[int, Path]) -> None:
    mine = [studies[processes] / f"rank{rank}" for rank in range(processes)]
    cases = [*CASES, "dropout", "dcrnn", "half", "halves", "after refusals"]
    for case in cases:
        runs = [load_file(folder / f"{case}.safetensors") for folder in mine]
        assert all(equal_bits(run, runs[0]) for run in runs), case
        assert len({(folder / f"{case}.json").read_text() for folder in mine}) == 1, case
    assert equal_bits(
        load_file(mine[0] / "after refusals.safetensors"),
        {k[5:]: v for k, v in tensors(studies[processes] / "paper").items() if k.startswith("best.")},
    )


def equal_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return equal({k: v.nan_to_num(7.5) for k, v in a.items()}, {k: v.nan_to_num(7.5) for k, v in b.items()})


@SEVERAL
def test_windows_trained_on_are_counted_once_across_processes(
    processes: int, studies: dict[int, Path], alone: Path
) -> None:
    """DCRNN counts the windows that it was trained with; its draws are others in several processes."""
    many = tensors(studies[processes] / "dcrnn")
    one = tensors(alone / "dcrnn")
    windows = DCRNN.train.epochs * (DCRNN.train.steps_per_epoch or 0) * DCRNN.train.batch_size
    assert int(many["model.sampled"]) == int(one["model.sampled"]) == windows
    assert not equal(many, one)


@SEVERAL
def test_stopped_and_gone_on_with_is_the_same_as_straight(processes: int, studies: dict[int, Path]) -> None:
    folder = studies[processes]
    half = json.loads((folder / "rank1" / "half.json").read_text())
    assert (half["epoch"], half["finished"]) == (1, False)
    assert equal(tensors(folder / "halves"), tensors(folder / "dropout"))
    assert log(folder / "halves") == log(folder / "dropout")


@SEVERAL
def test_a_refusal_reaches_every_process(processes: int, studies: dict[int, Path]) -> None:
    def told(case: str) -> list[str]:
        return [(studies[processes] / f"rank{rank}" / f"{case}.txt").read_text() for rank in range(processes)]

    others = ", ".join(map(str, range(1, processes)))
    (message,) = set(told("other settings"))
    assert message.startswith(f"processes 0 and {others} ")
    first, second, *rest = told("only one refuses")
    assert [first, *rest] == [f"process 1: {second}"] * (processes - 1)
    first, *rest = told("cannot be written")
    assert str(studies[processes] / "cannot be written" / "metrics.jsonl") in first
    assert rest == [f"process 0: {first}"] * (processes - 1)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_window_is_in_one_share(size: int) -> None:
    for windows in range(9):
        shares = [list(range(windows))[Group(rank, size).share] for rank in range(size)]
        assert sorted(chain(*shares)) == list(range(windows))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


# The commands


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a city, its features in the cache, and the settings of a long training."""
    folder = tmp_path_factory.mktemp("place")
    write_city(town(), folder / "city")
    ensure_road_features(read_city(folder / "city"))
    lines = []
    for part, values in LONG.to_json().items():
        lines += [f"[{part}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None)]
    (folder / "settings.toml").write_text("\n".join(lines))
    return folder


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run([*launcher, *words], text=True, capture_output=True, timeout=MAX_WAIT_S, check=False)


def test_killed_stopped_and_resumed_is_the_same_as_straight(place: Path) -> None:
    run = place / "run"
    city = str(place / "city")
    words = ["train", city, "-o", str(run), "--settings", str(place / "settings.toml"), "--device", "cpu"]
    by_two = Processes(2, place / "straight-told", straight, place)

    # One of two is killed: the other cannot continue, and nothing is finished.
    told = place / "killed"
    both = Processes(2, told, signalled, told, signal.SIGKILL, "checkpoint-0003", words)
    status, _ = both.end()
    assert status[0] not in (0, None) and status[1] == -signal.SIGKILL
    done = len(log(run))
    assert 2 <= done <= 4

    # One of two gets Ctrl-C: both stop, in the same step.
    told = place / "stopped"
    both = Processes(2, told, signalled, told, signal.SIGINT, f"checkpoint-{done + 3:04d}", [*words, "--resume"])
    status, said = both.end()
    assert status == [130, 130]
    assert str(run) in said[0][0] and "--resume" in said[0][0]
    assert said[1] == ("", "")
    assert done + 3 <= len(log(run)) <= done + 5

    # And torchrun itself: a training that has finished ends without a word from the processes' ends.
    done_by = torchrun("-m", "frigate", *words, "--resume", "--json")
    assert done_by.returncode == 0, done_by.stderr
    assert json.loads(done_by.stdout)["finished"]
    assert done_by.stderr.count(f"epoch {LONG.train.epochs}:") == 1
    assert by_two.end()[0] == [0, 0]
    assert equal(tensors(run), tensors(place / "straight"))
    assert log(run) == log(place / "straight")
    assert [line["epoch"] for line in log(run)] == list(range(1, LONG.train.epochs + 1))


def test_an_error_in_one_process_ends_all_with_one_message(place: Path) -> None:
    there = str(place / "city")
    commands = {  # and what the message names
        "folder": (["train", there, "-o", there], there),
        "settings": (["train", there, "-o", "x", "--epochs", "-1"], "epochs = -1"),
        "usage": (["train", there], "-o"),
    }
    running = {name: Processes(2, place / name, command_line, *words) for name, (words, _) in commands.items()}
    for name, processes in running.items():
        status, told = processes.end()
        assert status == [2, 2], told
        assert commands[name][1] in told[0][1]
        assert told[0][1].count("frigate: ") + told[0][1].count("error: ") == 1
        assert told[1] == ("", "")


# Leaving


def leave(how: str, out: Path) -> None:
    """Leave the group in one of all ways, then write what is left of it in this process."""
    rank = int(os.environ["RANK"])
    with suppress(FrigateError, OSError, KeyboardInterrupt, ZeroDivisionError), joined() as group:
        group.sum_(torch.ones(100))
        if how == "user error":
            raise FrigateError("wrong")
        if how == "no disk":
            raise OSError
        if how == "stopped" and rank == 1:
            raise KeyboardInterrupt
        if how == "fault" and rank == 1:
            raise ZeroDivisionError
        if how == "lost" and rank == 0:
            os._exit(0)
        if how in ("stopped", "fault"):
            with suppress(RuntimeError):  # for process 1 is gone
                group.gather("here")
    names = [Path(f"/proc/self/task/{t}/comm").read_text() for t in os.listdir("/proc/self/task")]
    left = {"group": dist.is_initialized(), "threads": [name for name in names if "gloo" in name]}
    (out / f"{how}-{rank}.json").write_text(json.dumps(left))


def test_however_a_process_leaves_no_group_and_no_thread_of_it_is_left(tmp_path: Path) -> None:
    """What is left when Python exits may abort the process, and torchrun then reports a failure."""
    ways = ("finished", "user error", "no disk", "stopped", "fault", "lost")
    running = {how: Processes(2, tmp_path / how, leave, how, tmp_path) for how in ways}
    for how, processes in running.items():
        status, told = processes.end()
        assert status == [0, 0], (how, told)
        for rank in (0, 1) if how != "lost" else (1,):
            assert json.loads((tmp_path / f"{how}-{rank}.json").read_text()) == {"group": False, "threads": []}, how
