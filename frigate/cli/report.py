"""`frigate report`: a run's map, day and scores in one file that can be mailed."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from frigate.cli.console import log, notice, progress, say
from frigate.cli.parser import DEVICE, EXCLUDE, OTHER_CITY, RUN, Argument, Command
from frigate.cli.train import read
from frigate.errors import SettingsError


def run(args: Namespace) -> None:
    from frigate.evaluation.evaluate import evaluate
    from frigate.forecasting.edits import edit_network
    from frigate.pages.run_page import write_report
    from frigate.training.checkpoint import load_run

    if args.output.suffix.lower() not in (".html", ".htm"):
        raise SettingsError(f"{args.output}: a report is an HTML page. Choose a file name ending in .html with -o")
    opened = load_run(args.run)
    if args.level is not None:
        opened.require_intervals(args.level)
    city = opened.open_city(exclude=args.exclude) if args.city is None else read(args.city, args.exclude)
    edit_network(opened.usual_roads(city.stream), close=args.close)  # refuses unknown roads before the slow part
    with progress("Evaluating") as update:
        result = evaluate(opened, city, stride=args.stride, test=args.test, device=args.device, progress=update)
    if result.note:
        notice(result.note)
    log("Forecasting the day")
    path = write_report(
        args.output,
        opened,
        result,
        city=city,
        close=args.close,
        test=args.test,
        level=args.level,
        device=args.device,
    )
    say(f"{result.city}: {path}, {path.stat().st_size / 1e6:.1f} MB. Open it in a browser; it needs no internet.")


REPORT = Command(
    "report",
    "Write a run's map, day and scores as a single HTML page.",
    run,
    (
        RUN,
        Argument("-o --output FILE", "the page to write", Path, default=Path("report.html")),
        Argument(
            "--close A,B", "show the day with the road from A to B, or a street, closed; may be repeated", repeated=True
        ),
        OTHER_CITY,
        EXCLUDE,
        Argument(
            "--test PERIOD",
            "days to score, such as 2024-03-11/2024-03-15; the map shows the last (default: the run's test period)",
        ),
        Argument("--level PERCENT", "intervals to show (default: 90, if the run has intervals)", float),
        Argument("--stride N", "score every Nth window", int, default=1),
        DEVICE,
    ),
)
