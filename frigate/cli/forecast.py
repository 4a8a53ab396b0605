"""`frigate forecast`: forecast every node; optionally with roads closed or added, or in another city."""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import notice, print_json, print_table, say, status
from frigate.cli.parser import DEVICE, EXCLUDE, JSON, KERNELS, OTHER_CITY, RUN, Argument, Command

if TYPE_CHECKING:
    from frigate.forecasting.plan import RoadChange
    from frigate.forecasting.result import Forecast


def run(args: Namespace) -> None:
    from frigate.city.folder import open_city
    from frigate.forecasting.forecast import forecast
    from frigate.nn.ops import use_kernels
    from frigate.training.checkpoint import load_run

    with status(f"Opening {args.run}"), use_kernels(args.kernels):
        run = load_run(args.run)
        other = None if args.city is None else open_city(args.city, exclude=args.exclude)
        options = {
            "stream": run.open_city(exclude=args.exclude) if other is None else other,
            "at": args.at,
            "past": args.past,
            "horizon": args.horizon,
            "sensors": "all" if args.all_sensors else "seen",
            "device": args.device,
            "memory_gb": args.memory_gb,
            "level": args.level,
        }
        result = forecast(run, **options, changes=[road_change(args)])
        before = None
        if (args.close or args.add) and not args.json:
            before = forecast(run, **options)
    if other is not None:
        notice(*other.notices)
    notice(*result.notices)
    files = {form: getattr(args, form) for form in ("csv", "parquet", "geojson") if getattr(args, form) is not None}
    if not files and not args.json:
        form = "parquet" if find_spec("polars") is not None else "csv"
        files = {form: args.run / f"forecast.{form}"}
    for form, path in files.items():
        result.write(path, suffix=f".{form}")
    if args.json:
        print_json(result.to_json())
    else:
        print_summary(result, before)
        say(f"{result.summary()}: {', '.join(map(str, files.values()))}")


def road_change(args: Namespace) -> RoadChange:
    """The roads to close and to add, with their times."""
    from frigate.forecasting.plan import RoadChange

    return RoadChange(close=args.close, add=args.add, begin=vars(args)["from"], end=args.until)


def print_summary(result: Forecast, before: Forecast | None = None) -> None:
    """Print the busiest nodes, the total and, given the forecast before a change to the roads, the largest changes."""
    from frigate.forecasting.summary import busiest, change_table, total_line

    title, rows = busiest(result)
    tables = {title: rows}
    if before is not None:
        changes = change_table(result, before)
        tables["Largest changes" if changes else "No node's forecast changes."] = changes
    for title, rows in tables.items():
        say(title)
        if rows:
            print_table(rows, drop=("detector", "street"), left=("node", "street", "detector"))
        print()
    say(total_line(result, before))


FORECAST = Command(
    "forecast",
    "Forecast the traffic at every node.",
    run,
    (
        RUN,
        Argument(
            "--at TIME",
            'time of the forecast, such as 2024-03-11T08:00 or "tomorrow 08:00", up to 14 days after the end of the '
            "readings (default: their end)",
        ),
        Argument(
            "--close A,B",
            "close the road from A to B; with one id, close a node and all its roads (in a city on "
            "roads: a road); with the name of a street, close the street; may be repeated",
            repeated=True,
        ),
        Argument("--add A,B[,METRES]", "add a road from A to B; may be repeated", repeated=True),
        Argument("--from TIME", "when the change begins, such as 08:00 (default: with the forecast)"),
        Argument("--until TIME", "when it ends (default: with the forecast)"),
        Argument("--past N", "past snapshots to use (default: as in training)", int),
        Argument("--horizon N", "steps to forecast (default: as in training)", int),
        Argument("--level PERCENT", "also write intervals that hold at this percentage of places, such as 90", float),
        Argument("--all-sensors", "also use the readings of held-out test nodes"),
        OTHER_CITY,
        EXCLUDE,
        Argument("--csv FILE", "write a long table", Path),
        Argument("--parquet FILE", "write a long table (default: RUN/forecast.parquet)", Path),
        Argument("--geojson FILE", "write a point (on roads: a line) for each node and step, with its time", Path),
        Argument("--memory-gb GB", "memory for activations (default: 4 on a CPU, what is free on a GPU)", float),
        DEVICE,
        KERNELS,
        JSON,
    ),
    details="Optionally with roads closed or added, or in another city.",
)
