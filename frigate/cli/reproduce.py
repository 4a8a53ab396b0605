"""`frigate reproduce`: the paper's tables and figures."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import log, notice, print_json, progress, say, status
from frigate.cli.parser import Command, Parser, add_device, add_json, add_output
from frigate.cli.train import read
from frigate.errors import SettingsError

if TYPE_CHECKING:
    from frigate.data.city import City

EXPERIMENTS = (  # a copy of the names in frigate.experiments, which takes seconds to import
    "datasets, profile, accuracy, horizon, traffic-buckets, seen-sweep, ablation, layers, topology, irregular, "
    "distortion, expressivity, parameters, inference-time"
)


def add_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"all, or one or more, separated by commas, of {EXPERIMENTS}")
    parser.add_argument(
        "city", metavar="CITY", nargs="?", type=Path,
        help="a city folder, or its cache (default with --quick: a simulated town)",
    )  # fmt: skip
    add_output(parser, "RESULTS", "the folder for tables, plots and the report (default: results)", default="results")
    parser.add_argument(
        "--quick", action="store_true", help="small models and few steps: minutes on two cores, to see that it works"
    )
    parser.add_argument("--seen", default="30%", metavar="SHARE", help="share of nodes with a sensor (default: 30%%)")
    parser.add_argument("--seeds", metavar="0,1,...", help="random seeds (default: 0,1,2; with --quick: 0)")
    parser.add_argument(
        "--splits", metavar="FOLDER", type=Path, help="files CITY-SHARE-SEED.txt of seen node ids, used where present"
    )
    parser.add_argument("--models", metavar="A,B,...", help="only these models")
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="windows in one optimiser step (default: the preset's)"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="trainings at once, which share a GPU (default: 1)"
    )
    add_device(parser)
    add_json(parser)


def run(args: Namespace) -> None:
    from frigate.experiments import named
    from frigate.experiments.plan import make_plan
    from frigate.experiments.runner import reproduce

    experiments = named(args.name)
    plan = make_plan(
        _city(args), args.output, seen=args.seen, seeds=args.seeds, quick=args.quick, splits=args.splits,
        models=args.models, batch_size=args.batch_size, device=args.device,
    )  # fmt: skip
    with progress("Reproducing") as update:
        done = reproduce(experiments, plan, jobs=args.jobs, say=log, progress=update)
    if args.json:
        print_json({"report": done.page and str(done.page), "left_out": done.left_out})
        return
    notice(*(f"left out: {recipe}: {reason}" for recipe, reason in done.left_out.items()))
    say(f"Report, to open in a browser: {done.page}" if done.page else f"Results: {args.output}")


def _city(args: Namespace) -> City:
    """The user's city, or the demo town, simulated once and kept beside the results."""
    if args.city is not None:
        return read(args.city)
    if not args.quick:
        raise SettingsError("name a CITY. Only --quick can do without one: it simulates a town")
    from frigate.data.city import write_city
    from frigate.simulate.demo_city import demo_city

    folder: Path = args.output / "city"
    if not (folder / "city.toml").exists():
        with status("Simulating a town"):
            write_city(demo_city(), folder)
    return read(folder)


REPRODUCE = Command(
    "reproduce", "Repeat the paper's experiments on a city.", add_arguments, run,
    details="Ctrl-C keeps what is finished; the same command resumes.",
    if_stopped="finished trainings are kept, and the same command resumes",
)  # fmt: skip
