"""The command line. Each command reads, calls one function of the package, and says what came of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from frigate.check.city import check_city
from frigate.cli.bench import bench_command
from frigate.cli.console import PLAIN, AsJson, bar, err, notice, out, print_json, read, say
from frigate.cli.demo import run_demo
from frigate.cli.imports import export_app, import_app
from frigate.cli.reproduce import reproduce_command
from frigate.data.city import open_city, read_city
from frigate.errors import FrigateError
from frigate.evaluation.evaluate import evaluate
from frigate.evaluation.results import Evaluation
from frigate.forecasting.forecast import forecast
from frigate.graph.feature_cache import ensure_road_features
from frigate.nn.choice import described, kernels
from frigate.nn.device import best_device
from frigate.report.check_page import write_check_page
from frigate.training.checkpoint import load_run
from frigate.training.distributed import current, joined, only_the_first_speaks
from frigate.training.train import seen_from, settings_from, summary_line, train
from frigate.training.trainer import StepReport, epoch_line

app = typer.Typer(**PLAIN, add_completion=False, pretty_exceptions_enable=False, help=(
    "Forecast traffic at every intersection of a road network from sensors at a few of them."
))  # fmt: skip
app.add_typer(import_app, name="import")
app.add_typer(export_app, name="export")
app.command("reproduce")(reproduce_command)
app.command("bench")(bench_command)

WITH_INTERVAL = ("MAE", "share of a sensor")
STOPPED = 130  # the exit status of a program that Ctrl-C ended

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `frigate train` wrote.")]
CityFolder = Annotated[Path, typer.Argument(metavar="CITY", help="A city folder.")]
With = Annotated[
    str, typer.Option("--kernels", help="auto, or reference: the equations in plain operations, to compare with.")
]
OnDevice = Annotated[str | None, typer.Option("--device", help="cpu or cuda; what there is if not said.")]
OtherCity = Annotated[Path | None, typer.Option("--city", help="Use this city instead of the run's own.")]


def main() -> None:
    """Run the command line; a mistake of the user ends with one line and status 2, never a traceback."""
    with only_the_first_speaks(), joined():
        _main()


def _main() -> None:
    try:
        app()
    except FrigateError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder without permission
        _fail(": ".join(filter(None, (str(error.filename or ""), error.strerror or str(error)))))
    except SystemExit as ended:
        if ended.code == STOPPED:
            err.print("frigate: stopped", markup=False)
        raise


def _fail(message: str) -> NoReturn:
    err.print(f"frigate: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)


@app.command("check")
def check_command(
    city: CityFolder,
    positions: Annotated[bool, typer.Option("--positions", help="Measure the distortion of positions.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the network, its sensors and their gaps.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What is in a city, and what is wrong with it."""
    with err.status(f"Reading {escape(str(city))}"):
        opened = ensure_road_features(read_city(city))
        report = check_city(opened, positions=positions)
        page = None if html is None else write_check_page(html, opened, report)
    if as_json:
        print_json(report.to_json())
        return
    for line in report.lines():
        say(line)
    if page is not None:
        say(f"Page: {page}")


@app.command("train")
def train_command(
    city: CityFolder,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="RUN", help="The run folder to write.")],
    seen: Annotated[
        str | None, typer.Option(help="Sensors to use: 30%, 0.3, a file of node ids, or all. 80 % if not said.")
    ] = None,
    split: Annotated[str, typer.Option(help="Unseen nodes: random, or a contiguous region.")] = "random",
    preset: Annotated[
        str | None, typer.Option(help="default, paper, or a baseline such as dcrnn; default if not said.")
    ] = None,
    settings_file: Annotated[
        Path | None, typer.Option("--settings", metavar="FILE", help="TOML with [task], [model], [train].")
    ] = None,
    past: Annotated[int | None, typer.Option(help="Past snapshots in a window.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Steps to forecast.")] = None,
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows in one step of the optimiser.")] = None,
    parts: Annotated[
        int | None, typer.Option(help="Train on so many parts of the network, one to a step; for large networks.")
    ] = None,
    validation: Annotated[str | None, typer.Option(help="seen, or unseen: the paper's setting.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes validation nodes, anchors, first weights and order.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    device: OnDevice = None,
    with_kernels: With = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a model on a city. Ctrl-C keeps the finished epochs; --resume goes on."""
    said: dict[str, dict[str, Any]] = {
        "task": {"past": past, "horizon": horizon},
        "train": {
            "epochs": epochs,
            "batch_size": batch_size,
            "parts": parts,
            "validation": validation,
            "seed": seed,
        },
    }
    group = current()
    settings = group.agree(
        lambda: settings_from(preset_name=preset, file=settings_file, said=said, resume=output if resume else None)
    )
    opened = group.in_turn(lambda: read(city))  # which keeps a cache
    sensors = group.agree(lambda: seen_from(seen, opened))
    if settings.train.validation == "unseen":
        notice("validation = unseen: the checkpoint is chosen at the test nodes, as in the paper. Scores are flattered")
    with kernels(with_kernels), training_bar("Training") as on_step:
        on = best_device(group.device_name(device))
        how = described(on)
        run = train(
            opened, seen=sensors, mode=split, settings=settings, folder=output, resume=resume,
            device=device, on_step=on_step,
        )  # fmt: skip
        err.print(f"trained on {on.type}: {how}", highlight=False)
    if as_json:
        mae = run.progress.best_mae
        facts = {**vars(run.progress), "best_mae": mae if math.isfinite(mae) else None}
        parameters = sum(p.numel() for p in run.model.parameters())
        print_json({"run": str(output), **facts, "parameters": parameters, "kernels": how})
    else:
        say(summary_line(run))
    if not run.progress.finished:
        raise typer.Exit(STOPPED)


@contextmanager
def training_bar(title: str) -> Iterator[Callable[[StepReport], None]]:
    """A progress bar over all epochs, and a line for each."""
    with bar(title) as update:

        def on_step(tick: StepReport) -> None:
            words = f"epoch {tick.epoch + 1}/{tick.epochs} loss {tick.loss:.4f}"
            update(tick.epoch * tick.steps + tick.step, tick.epochs * tick.steps, words)
            if tick.metrics is not None:
                err.print(epoch_line(tick.metrics), highlight=False, markup=False)

        yield on_step


@app.command("evaluate")
def evaluate_command(
    run: RunFolder,
    city: OtherCity = None,
    stride: Annotated[int, typer.Option(help="Score every so many windows; 1 is all.")] = 1,
    details: Annotated[
        bool, typer.Option("--details", help="Also by step ahead, by how busy a node is, by roads to a sensor.")
    ] = False,
    device: OnDevice = None,
    with_kernels: With = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a run on the test period, beside naive baselines."""
    opened = load_run(run)
    with kernels(with_kernels), bar("Evaluating") as update:
        result = evaluate(opened, city, stride=stride, device=device, progress=update)
    if as_json:
        print_json(result.to_json())
        return
    print_evaluation(result)
    if details:
        print_details(result)


def print_details(result: Evaluation) -> None:
    for title, rows in result.detail_tables().items():
        table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for name in rows[0]:
            # A long title goes over several lines; a number does not.
            width = max(*(len(row[name]) for row in rows), *map(len, name.split()), min(len(name), 12))
            table.add_column(name, justify="left" if name == next(iter(rows[0])) else "right", width=width)
        for row in rows:
            table.add_row(*map(escape, row.values()))
        say(title)
        (out if out.is_terminal else Console(width=140)).print(table)


def print_evaluation(result: Evaluation) -> None:
    rows = result.table_rows()
    nodes = f"{len(result.unseen)} unseen nodes" if result.model.unseen is not None else f"{len(result.seen)} sensors"
    say(f"{result.city}: {nodes}, {result.windows} windows from {result.start} to {result.end}")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "forecaster" else "right")
    for scored, row in zip(result.rows, rows, strict=True):
        if scored.kind == "yardstick":
            table.add_section()
        # The intervals of the rest are in --json: with all of them no terminal is wide enough.
        cells = (text if name in WITH_INTERVAL else text.partition(" [")[0] for name, text in row.items())
        table.add_row(*map(escape, cells), style="dim" if scored.kind == "yardstick" else None)
    (out if out.is_terminal else Console(width=140)).print(table)
    if result.note:
        notice(result.note)
    say("In brackets: 95 % intervals, nodes resampled.")
    say(result.footnote)


@app.command("forecast")
def forecast_command(
    run: RunFolder,
    at: Annotated[
        str | None, typer.Option(help="Forecast from this time on; the end of the readings if not said.")
    ] = None,
    close: Annotated[list[str] | None, typer.Option(help="Close the road from A to B: A,B. May be repeated.")] = None,
    add: Annotated[
        list[str] | None, typer.Option(help="Add a road from A to B: A,B or A,B,METRES. May be repeated.")
    ] = None,
    past: Annotated[int | None, typer.Option(help="Past snapshots to use.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Steps to forecast.")] = None,
    all_sensors: Annotated[
        bool, typer.Option("--all-sensors", help="Also use readings of nodes held out as test.")
    ] = False,
    city: OtherCity = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a long table.")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a long table.")] = None,
    geojson: Annotated[Path | None, typer.Option(metavar="FILE", help="Write points with their forecasts.")] = None,
    memory_gb: Annotated[
        float | None, typer.Option(help="For activations; 4 on a CPU, what is free on a GPU if not said.")
    ] = None,
    device: OnDevice = None,
    with_kernels: With = "auto",
    as_json: AsJson = False,
) -> None:
    """Forecast every node; with roads closed or added, on any network."""
    with kernels(with_kernels), err.status(f"Opening {escape(str(run))}"):
        other = None if city is None else open_city(city)
        result = forecast(
            load_run(run), stream=other, at=at, close=close or (), add=add or (),
            past=past, horizon=horizon, sensors="all" if all_sensors else "seen", device=device,
            memory_gb=memory_gb,
        )  # fmt: skip
    if other is not None:
        notice(*other.notices)
    notice(*result.notices)
    asked = ((csv, ".csv"), (parquet, ".parquet"), (geojson, ".geojson"))
    files = [(path, suffix) for path, suffix in asked if path is not None]
    if not files and not as_json:
        files = [(run / "forecast.parquet", ".parquet")]
    for path, suffix in files:
        result.write(path, suffix=suffix)
    if as_json:
        print_json(result.to_json())
    else:
        say(f"{result.summary()}: {', '.join(str(path) for path, _ in files)}")


@app.command("demo")
def demo_command(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="For the city, the run and the report.")
    ] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Another town, other people, other weights.")] = 0,
) -> None:
    """Simulate a small town, train, evaluate, forecast, and write a report."""
    with bar("Demo") as update:
        result = run_demo(
            output,
            seed=seed,
            say=lambda text: err.print(text, markup=False, highlight=False, soft_wrap=True),
            progress=update,
        )
    print_evaluation(result.evaluation)
    say(result.verdict)
    say(f"Report, with maps, to open in a browser: {result.report}")
