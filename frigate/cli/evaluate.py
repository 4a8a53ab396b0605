"""`frigate evaluate`: score a run on the test period, beside naive baselines."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from frigate.cli.console import notice, print_json, print_table, progress, say
from frigate.cli.parser import DEVICE, JSON, KERNELS, OTHER_CITY, RUN, Argument, Command

if TYPE_CHECKING:
    from frigate.evaluation.results import Evaluation

WITH_INTERVAL = ("MAE", "share of a sensor")  # the other intervals are in --json: no terminal has room for all
LEAST_IMPORTANT = ("of zero", "sMAPE %", "GEH<5 %", "WAPE %", "MAE at sensors", "RMSE", "share of a sensor")
LEAST_IMPORTANT_BASELINES = (
    "zero",
    "constant median",
    "label propagation",
    "clock profile",
    "nearest sensors",
    "demand alone",
)


def run(args: Namespace) -> None:
    from frigate.evaluation.evaluate import evaluate
    from frigate.training.checkpoint import load_run

    opened = load_run(args.run)
    with progress("Evaluating") as update:
        result = evaluate(
            opened, args.city, stride=args.stride, device=args.device, progress=update, kernels=args.kernels
        )
    if args.json:
        print_json(result.to_json())
        return
    print_evaluation(result)
    if args.details:
        for title, rows in result.detail_tables().items():
            print()
            say(title)
            _print_table(rows, LEAST_IMPORTANT_BASELINES)


def print_evaluation(result: Evaluation) -> None:
    """The table of a model and its baselines, with what it was scored on."""
    nodes = f"{len(result.unseen)} unseen nodes" if result.model.unseen is not None else f"{len(result.seen)} sensors"
    say(f"{result.city}: {nodes}, {result.windows} windows from {result.start} to {result.end}")
    rows = [
        {name: cell if name in WITH_INTERVAL else cell.partition(" [")[0] for name, cell in row.items()}
        for row in result.table_rows()
    ]
    _print_table(rows, LEAST_IMPORTANT)
    if result.note:
        notice(result.note)
    say("In brackets: 95 % intervals, nodes resampled.")
    say(result.footnote)


def _print_table(rows: list[dict[str, str]], drop: tuple[str, ...]) -> None:
    dropped = print_table(rows, drop=drop)
    if dropped:
        say(f"Not shown, for lack of width: {', '.join(reversed(dropped))}. --json has everything.")


EVALUATE = Command(
    "evaluate", "Score a run on its test period, beside naive baselines.", run,
    (
        RUN, OTHER_CITY,
        Argument("--stride N", "score every Nth window", int, default=1),
        Argument("--details", "also by step ahead, by traffic volume and by distance to a sensor"),
        DEVICE, KERNELS, JSON,
    ),
)  # fmt: skip
