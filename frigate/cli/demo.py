"""The demo: a simulated town, a model trained on sensors at 30 % of its intersections, an honest table, a report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frigate.config import Settings, change, preset
from frigate.data.city import read_city, write_city
from frigate.data.stream import DAY_S, RoadNetworkStream
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import evaluate
from frigate.evaluation.results import Evaluation
from frigate.forecasting.forecast import forecast
from frigate.report.run_page import verdict, write_report
from frigate.simulate.demo_city import demo_city
from frigate.simulate.streets import TOWN
from frigate.training.train import train
from frigate.training.trainer import StepReport

SEEN = 0.3
SHOWN_S = 17 * 3600  # time of day of the forecast on the map: at the end of the record, midnight, streets are empty
STRIDE = 2
CITY, RUN, REPORT = "city", "run", "report.html"


@dataclass(frozen=True)
class Demo:
    evaluation: Evaluation
    verdict: str
    report: Path


def demo_settings(seed: int) -> Settings:
    """A smaller model than the full preset, so that two cores train it in two minutes."""
    return change(
        preset("default"),
        {
            "model": {"width": 24, "layers": 3},
            "train": {"seed": seed, "epochs": 12, "steps_per_epoch": 20, "batch_size": 8, "warmup_steps": 30,
                      "learning_rate": 4e-3, "validation_windows": 40},
        },
    )  # fmt: skip


def run_demo(
    folder: Path,
    *,
    seed: int,
    say: Callable[[str], None],
    progress: Callable[[int, int, str], None],
    settings: Settings | None = None,
    intersections: int = 400,
    days: int = 14,
) -> Demo:
    """Simulate, train, evaluate, forecast, report. An earlier demo in the folder is replaced."""
    began = time.perf_counter()
    _clear(folder)
    settings = settings or demo_settings(seed)
    write_city(demo_city(seed=seed, intersections=intersections, days=days), folder / CITY)
    city = read_city(folder / CITY)
    most = max(network.num_edges for network in city.stream.topologies)
    closed = np.array([network.num_edges < most for network in city.stream.topologies])[city.stream.topology_of]
    say(
        f"{city.name}: {city.stream.num_nodes} intersections, {most} roads, {city.stream.num_snapshots} snapshots, "
        f"roads closed in {int(closed.sum())} of them"
    )

    def on_step(tick: StepReport) -> None:
        words = f"training, epoch {tick.epoch + 1}/{tick.epochs}"
        progress(tick.epoch * tick.steps + tick.step, tick.epochs * tick.steps, words)

    run = train(city, seen=SEEN, settings=settings, folder=folder / RUN, on_step=on_step)
    if not run.progress.finished:
        raise KeyboardInterrupt
    parameters, model, full = sum(p.numel() for p in run.model.parameters()), settings.model, preset("default").model
    note = (
        f"A small model for a quick demo: width {model.width} and {model.layers} layers (the preset has {full.width} "
        f"and {full.layers}), {parameters:,} parameters, {run.progress.epoch} epochs in {run.progress.seconds:.0f} s."
    )
    say(note)
    evaluation = evaluate(run, city, stride=STRIDE, progress=lambda done, total, _: progress(done, total, "evaluating"))
    shown = forecast(run, stream=city, at=last_afternoon_s(city.stream))
    report = write_report(folder / REPORT, run, evaluation, shown, city=city, note=note)
    say(f"All in {time.perf_counter() - began:.0f} s.")
    return Demo(evaluation, verdict(evaluation), report)


def last_afternoon_s(stream: RoadNetworkStream) -> int:
    """17:00, in the city's time, of the last whole day of the readings; seconds since 1970 UTC."""
    local_s = stream.times_s + stream.utc_offset_s
    whole_days = (int(local_s[-1]) + stream.step_s) // DAY_S
    later = local_s >= (whole_days - 1) * DAY_S + SHOWN_S
    return int(stream.times_s[np.argmax(later)])


def _clear(folder: Path) -> None:
    """Take an earlier demo's run away; refuse to touch anything that no demo wrote."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder}: that is a file. Name a folder with -o")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    ours = names <= {CITY, RUN, REPORT} and (CITY not in names or read_city(folder / CITY).name == TOWN)
    if not ours or (RUN in names and CITY not in names):
        raise SettingsError(f"{folder}: there are other files in it. Name an empty or a new folder with -o")
    if RUN in names:
        shutil.rmtree(folder / RUN)
