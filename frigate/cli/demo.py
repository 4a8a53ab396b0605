"""`frigate demo`: simulate a town, train on sensors at 30 % of it, evaluate, close a bridge, write a report."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import log, progress, say, status
from frigate.cli.evaluate import print_evaluation
from frigate.cli.parser import Argument, Command
from frigate.cli.serve import PORT
from frigate.config import Settings, change, preset
from frigate.errors import CheckpointError, SettingsError
from frigate.progress import Progress

if TYPE_CHECKING:
    from frigate.city.stream import RoadNetworkStream
    from frigate.evaluation.results import Evaluation
    from frigate.pages.closure_study import ClosureStudy
    from frigate.training.trainer import StepReport

SEEN = 0.3
STRIDE = 2
DAYS = 12  # from a Monday to a Friday, so that what is tested is a weekday
MORNING_S = 6 * 3600 + 1800  # time of day at which the live map starts
SPEED = 60  # of the live map, relative to real time
CITY, RUN, REPORT = "city", "run", "report.html"


def run(args: Namespace) -> None:
    if not (args.serve and is_finished(args.output)):
        with progress("Demo") as update:
            result = run_demo(args.output, seed=args.seed, say=log, progress=update)
        print_evaluation(result.evaluation)
        say(result.verdict)
        say(f"Report with a map (open it in a browser): {result.report}")
    if args.serve:
        serve_demo(args.output, args.port)
    else:
        typed = "python -m frigate" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]
        say(f"To see the live map with a replay of the town's readings: {typed} demo --serve -o {args.output}")


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    evaluation: Evaluation
    verdict: str
    closure: ClosureStudy
    report: Path


def demo_settings(seed: int) -> Settings:
    """A smaller model than the preset's, which trains in two minutes on two cores."""
    return change(
        preset("default"),
        {
            "model": {"width": 24, "layers": 3},
            "train": {
                "seed": seed,
                "epochs": 12,
                "steps_per_epoch": 20,
                "batch_size": 8,
                "warmup_steps": 30,
                "learning_rate": 4e-3,
                "validation_windows": 40,
            },
        },
    )


def run_demo(
    folder: Path,
    *,
    seed: int,
    say: Callable[[str], None],
    progress: Progress,
    settings: Settings | None = None,
    intersections: int = 400,
    days: int = DAYS,
) -> Demo:
    """Simulate, train, evaluate, close a bridge, write a report. Replaces an earlier demo in the folder."""
    import numpy as np

    from frigate.city.folder import read_city, write_city
    from frigate.evaluation.evaluate import evaluate
    from frigate.pages.closure_study import study_closure
    from frigate.pages.run_page import write_report
    from frigate.pages.trust import verdict
    from frigate.simulate.demo_city import demo_city
    from frigate.simulate.streets import BRIDGE_NAMES
    from frigate.training.train import train

    began = time.perf_counter()
    _clear(folder)
    settings = settings or demo_settings(seed)
    write_city(demo_city(seed=seed, intersections=intersections, days=days), folder / CITY)
    city = read_city(folder / CITY)
    most = max(network.num_edges for network in city.stream.networks)
    closed = np.array([network.num_edges < most for network in city.stream.networks])[city.stream.network_of]
    say(
        f"{city.name}: {city.stream.num_nodes} intersections, {most} roads, {city.stream.num_snapshots} snapshots "
        f"({int(closed.sum())} with closed roads)"
    )

    def on_step(step: StepReport) -> None:
        words = f"training, epoch {step.epoch + 1}/{step.epochs}"
        progress(step.epoch * step.steps + step.step, step.epochs * step.steps, words)

    run = train(city, seen=SEEN, settings=settings, folder=folder / RUN, on_step=on_step)
    if not run.progress.finished:
        raise KeyboardInterrupt
    parameters = sum(p.numel() for p in run.model.parameters())
    model = settings.model
    full = preset("default").model
    note = (
        f"A small model for a quick demo: width {model.width} and {model.layers} layers (the preset has {full.width} "
        f"and {full.layers}), {parameters:,} parameters, {run.progress.epoch} epochs in {run.progress.seconds:.0f} s."
    )
    say(note)
    evaluation = evaluate(run, city, stride=STRIDE, progress=lambda done, total, _: progress(done, total, "evaluating"))
    closure = study_closure(run.on(city), BRIDGE_NAMES, seed=seed, intersections=intersections)
    say(closure.summary())
    report = write_report(folder / REPORT, run, evaluation, city=city, note=note, study=closure)
    say(f"Finished in {time.perf_counter() - began:.0f} s.")
    return Demo(evaluation, verdict(evaluation), closure, report)


def is_finished(folder: Path) -> bool:
    """Whether the folder holds a finished demo, whatever has been added to it since."""
    from frigate.training.checkpoint import is_finished as is_trained

    with suppress(CheckpointError):
        return (folder / REPORT).exists() and is_trained(folder / RUN)
    return False


def serve_demo(folder: Path, port: int) -> None:
    """Serve the map of a finished demo, replaying its last days as if they were live, until Ctrl-C."""
    from frigate.serve.auth import link, make_token
    from frigate.serve.client import ServiceClient
    from frigate.serve.replay import Replay
    from frigate.serve.server import Server
    from frigate.serve.service import Service
    from frigate.serve.store import REPLAY_FILE, open_store
    from frigate.training.checkpoint import load_run

    with status(f"Opening {folder}"):
        run = load_run(folder / RUN)
        city = run.open_city()
        _forget_replay(folder / REPLAY_FILE)
        store = open_store(str(folder / REPLAY_FILE))
        service = Service(run, city, store, replay=True, keep_days=None, device="cpu")
    ended = threading.Event()
    first = last_weekday_morning(city.stream)

    def wait(seconds: float) -> None:
        if ended.wait(seconds):
            raise _EndedError

    def replay(url: str) -> None:
        token = make_token(store, "the demo's replay", "replay", int(time.time()))
        with closing(ServiceClient(url, token)) as client, suppress(_EndedError):
            sending = Replay(city.stream, client, speed=SPEED, say=lambda _: None, wait=wait)
            for _ in sending.run(first, city.stream.num_snapshots):
                pass

    with closing(store):
        server = Server(service, host="127.0.0.1", port=port)
        opened = link(server.url, make_token(store, "the demo's map", "admin", int(time.time())))
        thread = threading.Thread(target=replay, args=(server.url,), name="replay")
        thread.start()
        begin = city.stream.local_time(int(city.stream.times_s[first]))[:16]
        say(f"{city.name}, replayed from {begin} at {SPEED} times real speed (Ctrl-C to stop).")
        say(f"The map, where you may do everything: {opened}")
        try:
            server.run()
        finally:
            ended.set()
            thread.join()


def _forget_replay(path: Path) -> None:
    """Delete the store of an earlier replay; refuse if it is in use."""
    from frigate.serve.store import open_store

    with closing(open_store(str(path))) as store:
        if not store.hold_clock():
            raise SettingsError(
                f"{path}: this map is already being served. Stop it with Ctrl-C, or choose another folder with -o"
            )
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()


class _EndedError(Exception):
    """The service was stopped, so the replay ends too."""


def last_weekday_morning(stream: RoadNetworkStream) -> int:
    """The snapshot at 6:30 local time on the last weekday of the readings."""
    from frigate.calendar import KIND, KINDS_OF_DAY, SECOND

    clock = stream.wall_clock
    weekday = clock[:, KIND] == KINDS_OF_DAY.index("weekday")
    mornings = (weekday & (clock[:, SECOND] == MORNING_S)).nonzero()[0]
    return int(mornings[-1]) if len(mornings) else 0


def _clear(folder: Path) -> None:
    """Remove the run of an earlier demo; refuse a folder with other files, or with what a service has stored."""
    from frigate.city.folder import read_city
    from frigate.serve.store import DEFAULT_FILE, REPLAY_FILE
    from frigate.simulate.streets import TOWN
    from frigate.training.checkpoint import is_run

    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file. Choose a folder with -o")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    names = {name for name in names if not name.startswith(REPLAY_FILE)}  # left by the live map
    stores = sorted(path.name for path in folder.glob(f"{RUN}/*.db") if path.name in (DEFAULT_FILE, REPLAY_FILE))
    if stores:
        raise SettingsError(
            f"{folder / RUN / stores[0]} holds what `frigate serve {folder / RUN}` has stored. Delete it, or choose "
            "another folder with -o"
        )
    ours = names <= {CITY, RUN, REPORT} and (CITY not in names or read_city(folder / CITY).name == TOWN)
    if not ours or (RUN in names and (CITY not in names or not is_run(folder / RUN))):
        raise SettingsError(f"{folder} contains other files. Choose an empty or new folder with -o")
    if RUN in names:
        shutil.rmtree(folder / RUN)


DEMO = Command(
    "demo",
    "Simulate a small town, train, evaluate, forecast, close a bridge.",
    run,
    (
        Argument("-o --output FOLDER", "folder for the city, the run and the report", Path, default=Path("demo")),
        Argument("--seed N", "seed for the town, its traffic and the weights", int, default=0),
        Argument(
            "--serve",
            "then serve the live map with a replay of the town's readings; if the demo exists already, "
            "serve it at once",
        ),
        PORT,
    ),
    details="Takes about two minutes on two cores.",
    if_stopped="the next demo replaces the contents of the folder",
)
