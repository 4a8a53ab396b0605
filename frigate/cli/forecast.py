"""`frigate forecast`: the next hour at every node; with roads closed or added, on any network."""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from frigate.cli.console import notice, print_json, say, status
from frigate.cli.parser import Command, Parser, add_device, add_json, add_kernels, add_other_city, add_run


def add_arguments(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--at", metavar="TIME", help="forecast from this time on (default: the end of the readings)")
    parser.add_argument(
        "--close", action="append", default=[], metavar="A,B", help="close the road from A to B; may be repeated"
    )
    parser.add_argument(
        "--add", action="append", default=[], metavar="A,B[,METRES]",
        help="add a road from A to B (default length: the straight distance); may be repeated",
    )  # fmt: skip
    parser.add_argument("--past", type=int, metavar="N", help="past snapshots to use (default: as in training)")
    parser.add_argument("--horizon", type=int, metavar="N", help="steps to forecast (default: as in training)")
    parser.add_argument("--all-sensors", action="store_true", help="also use the readings of held-out test nodes")
    add_other_city(parser)
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write a long table")
    parser.add_argument(
        "--parquet", metavar="FILE", type=Path, help="write a long table (default: RUN/forecast.parquet)"
    )
    parser.add_argument("--geojson", metavar="FILE", type=Path, help="write points with their forecasts")
    parser.add_argument(
        "--memory-gb", type=float, metavar="GB",
        help="memory for activations (default: 4 on a CPU, what is free on a GPU)",
    )  # fmt: skip
    add_device(parser)
    add_kernels(parser)
    add_json(parser)


def run(args: Namespace) -> None:
    from frigate.data.city import open_city
    from frigate.forecasting.forecast import forecast
    from frigate.training.checkpoint import load_run

    with status(f"Opening {args.run}"):
        other = None if args.city is None else open_city(args.city)
        result = forecast(
            load_run(args.run), stream=other, at=args.at, close=args.close,
            add=args.add, past=args.past, horizon=args.horizon, sensors="all" if args.all_sensors else "seen",
            device=args.device, memory_gb=args.memory_gb, kernels=args.kernels,
        )  # fmt: skip
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
        say(f"{result.summary()}: {', '.join(map(str, files.values()))}")


FORECAST = Command(
    "forecast", "Forecast the traffic at every node.", add_arguments, run,
    details="Roads can be closed or added, and the city can be another one.",
)  # fmt: skip
