"""`frigate reproduce`: the paper's tables and figures."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import log, notice, print_json, progress, say, status
from frigate.cli.parser import DEVICE, JSON, Argument, Command
from frigate.cli.train import read
from frigate.errors import SettingsError

if TYPE_CHECKING:
    from frigate.city.city import City

EXPERIMENTS = (  # copied from frigate.experiments, which takes seconds to import
    "datasets, profile, accuracy, horizon, traffic-buckets, seen-sweep, ablation, layers, topology, irregular, "
    "distortion, expressivity, parameters, inference-time"
)


def run(args: Namespace) -> None:
    from frigate.experiments import named
    from frigate.experiments.plan import make_plan
    from frigate.experiments.runner import reproduce

    experiments = named(args.name)
    plan = make_plan(
        _city(args),
        args.output,
        seen=args.seen,
        seeds=args.seeds,
        quick=args.quick,
        splits=args.splits,
        models=args.models,
        batch_size=args.batch_size,
        device=args.device,
    )
    with progress("Reproducing") as update:
        done = reproduce(experiments, plan, jobs=args.jobs, say=log, progress=update)
    if args.json:
        print_json({"report": done.page and str(done.page), "left_out": done.left_out})
        return
    notice(*(f"left out: {recipe}: {reason}" for recipe, reason in done.left_out.items()))
    say(f"Report (open it in a browser): {done.page}" if done.page else f"Results: {args.output}")


def _city(args: Namespace) -> City:
    """The user's city, or the demo town, which is simulated once and kept with the results."""
    if args.city is not None:
        return read(args.city)
    if not args.quick:
        raise SettingsError("CITY is required, except with --quick, which simulates a town")
    from frigate.city.folder import write_city
    from frigate.simulate.demo_city import demo_city

    folder: Path = args.output / "city"
    if not (folder / "city.toml").exists():
        with status("Simulating a town"):
            write_city(demo_city(), folder)
    return read(folder)


REPRODUCE = Command(
    "reproduce",
    "Repeat the paper's experiments on a city.",
    run,
    (
        Argument("NAME", f"all, or some of these, separated by commas: {EXPERIMENTS}"),
        Argument("[CITY]", "a city folder, or its cache (default with --quick: a simulated town)", Path),
        Argument("-o --output RESULTS", "the folder for tables, plots and the report", Path, default=Path("results")),
        Argument("--quick", "small models and few steps, to try it out in minutes on two cores"),
        Argument("--seen SHARE", "share of nodes with a sensor", default="30%"),
        Argument("--seeds 0,1,...", "random seeds (default: 0,1,2; with --quick: 0)"),
        Argument("--splits FOLDER", "folder of files CITY-SHARE-SEED.txt with seen node ids, used where present", Path),
        Argument("--models A,B,...", "only these models"),
        Argument("--batch-size N", "windows per optimiser step (default: the preset's)", int),
        Argument("--jobs N", "trainings to run at once, sharing a GPU", int, default=1),
        DEVICE,
        JSON,
    ),
    details="Ctrl-C keeps finished trainings; the same command resumes.",
    if_stopped="finished trainings are kept, and the same command resumes",
)
