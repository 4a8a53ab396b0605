"""`frigate evaluate`: score a run on the test period, compared with naive baselines."""

from __future__ import annotations

import math
from argparse import Namespace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from frigate.cli.console import notice, print_json, print_table, progress, say
from frigate.cli.parser import DEVICE, EXCLUDE, JSON, KERNELS, OTHER_CITY, RUN, Argument, Command
from frigate.cli.train import read

if TYPE_CHECKING:
    from frigate.evaluation.results import Evaluation
    from frigate.training.run import RunOnCity

WITH_INTERVAL = ("MAE", "share of a sensor")  # --json has the other intervals: no terminal has room for all
DROPPED_FIRST = ("of zero", "sMAPE %", "GEH<5 %", "WAPE %", "RMSE", "share of a sensor")  # in a narrow terminal
LIGHTGBM_S = 60  # auto leaves LightGBM out if it takes longer
DROPPED_FIRST_BASELINES = (
    "zero",
    "constant median",
    "label propagation",
    "clock profile",
    "nearest sensors",
    "demand alone",
    "persistence",
    "last hour",
    "last week",
    "LightGBM",
)


def run(args: Namespace) -> None:
    from frigate.evaluation.evaluate import evaluate
    from frigate.nn.ops import use_kernels
    from frigate.training.checkpoint import load_run

    opened = load_run(args.run)
    city = opened.open_city(exclude=args.exclude) if args.city is None else read(args.city, args.exclude)
    lightgbm, left_out = _lightgbm(args, opened.on(city))
    with progress("Evaluating") as update, use_kernels(args.kernels):
        result = evaluate(
            opened,
            city,
            stride=args.stride,
            test=args.test,
            since=args.since,
            lightgbm=lightgbm,
            device=args.device,
            progress=update,
        )
    if args.json:
        print_json(result.to_json())
        return
    print_evaluation(result)
    if left_out:
        notice(left_out)
    if args.details:
        for title, rows in result.detail_tables().items():
            print()
            say(title)
            _print_table(rows, DROPPED_FIRST_BASELINES)
        by_volume = result.volume_table()
        if by_volume:
            print()
            say("GEH by hourly volume")
            _print_table(by_volume, ())


def _lightgbm(args: Namespace, run_on_city: RunOnCity) -> tuple[bool, str]:
    """Whether to fit LightGBM, and a notice if it would take too long."""
    from frigate.evaluation.evaluate import lightgbm_seconds, with_test_period

    if args.lightgbm != "auto" or find_spec("lightgbm") is None:
        return args.lightgbm == "yes", ""
    seconds = lightgbm_seconds(with_test_period(run_on_city, args.test, since=args.since), stride=args.stride)
    if seconds <= LIGHTGBM_S:
        return True, ""
    return (
        False,
        f"LightGBM was left out: it would take about {math.ceil(seconds / 60)} min. Add --lightgbm yes to fit it",
    )


def print_evaluation(result: Evaluation) -> None:
    """Print the scores of a model and its baselines, and what they were scored on."""
    say(result.summary())
    dropped = _print_scores(result.table_rows())
    if result.minus_best is not None:
        say(result.comparison_line())
    for skill in result.skill:
        say(skill.line())
    if result.intervals is not None:
        say(result.intervals.line())
        if result.intervals.drift is not None:
            say(result.intervals.drift.line())
    if result.broken is not None:
        say(result.broken.line())
    at_sensors = result.sensor_table()
    if at_sensors:
        print()
        say(f"At the {len(result.seen)} sensors, whose past readings are known")
        dropped += _print_scores(at_sensors)
    if dropped:
        names = ", ".join(dict.fromkeys(reversed(dropped)))
        say(f"Not shown, because the terminal is too narrow: {names}. --json has everything.")
    if result.note:
        notice(result.note)
    say("In brackets: 95 % intervals from resampling nodes.")
    say(result.footnote)


def _print_scores(rows: list[dict[str, str]]) -> list[str]:
    """Print scores, most without their intervals. Returns the columns that were dropped."""
    shown = [
        {
            name: cell if name in WITH_INTERVAL else cell.partition(" [")[0]
            for name, cell in row.items()
            if name != "MAE at sensors"  # has its own table
        }
        for row in rows
    ]
    return print_table(shown, drop=DROPPED_FIRST)


def _print_table(rows: list[dict[str, str]], drop: tuple[str, ...]) -> None:
    dropped = print_table(rows, drop=drop)
    if dropped:
        say(f"Not shown, because the terminal is too narrow: {', '.join(reversed(dropped))}. --json has everything.")


EVALUATE = Command(
    "evaluate",
    "Score a run on its test period, compared with naive baselines.",
    run,
    (
        RUN,
        OTHER_CITY,
        EXCLUDE,
        Argument("--test PERIOD", "days to score, such as 2024-03-11/2024-03-15 (default: the run's test period)"),
        Argument("--since TIME", "score all since then, such as 2024-03-11; says whether the run is still as good"),
        Argument("--stride N", "score every Nth window", int, default=1),
        Argument(
            "--lightgbm",
            "also fit LightGBM; auto: if it is installed and takes at most about a minute",
            default="auto",
            choices=("auto", "yes", "no"),
        ),
        Argument("--details", "also show scores by step ahead, by traffic volume and by distance to a sensor"),
        DEVICE,
        KERNELS,
        JSON,
    ),
)
