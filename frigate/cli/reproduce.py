"""`frigate reproduce`: the paper's tables and figures, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frigate.cli.console import AsJson, bar, err, notice, print_json, read, say
from frigate.data.city import City, read_city, write_city
from frigate.errors import SettingsError
from frigate.experiments import EXPERIMENTS, named
from frigate.experiments.plan import make_plan
from frigate.experiments.runner import reproduce
from frigate.simulate.demo_city import demo_city

STOPPED = 130
NAMES = ", ".join(experiment.name for experiment in EXPERIMENTS)


def reproduce_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"all, or one or several with commas of {NAMES}.")],
    city: Annotated[
        Path | None, typer.Argument(metavar="CITY", help="A city folder; with --quick the demo town if not said.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="RESULTS", help="The folder for tables, plots and the report.")
    ] = Path("results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small models and few steps: minutes on two cores, to see that it works.")
    ] = False,
    seen: Annotated[str, typer.Option(help="Share of the nodes with a sensor.")] = "30%",
    seeds: Annotated[str | None, typer.Option(help="0,1,2 if not said; 0 with --quick.")] = None,
    splits: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Files CITY-SHARE-SEED.txt of seen node ids, used if there.")
    ] = None,
    models: Annotated[str | None, typer.Option(help="Only these models, with commas.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Windows of a training step; each preset's own if not said.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="So many trainings at once, sharing a GPU.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; what there is if not said.")] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat the paper's experiments on a city. Ctrl-C keeps what is done; the same command goes on."""
    experiments = named(name)
    plan = make_plan(
        _city(city, output, quick), output, seen=seen, seeds=seeds, quick=quick, splits=splits, models=models,
        batch_size=batch_size, device=device,
    )  # fmt: skip
    with bar("Reproducing") as update:
        try:
            done = reproduce(
                experiments,
                plan,
                jobs=jobs,
                say=lambda text: err.print(text, markup=False, highlight=False, soft_wrap=True),
                progress=update,
            )
        except KeyboardInterrupt:
            notice("what is finished is kept; the same command goes on")
            raise typer.Exit(STOPPED) from None
    if as_json:
        print_json({"report": done.page and str(done.page), "left_out": done.left_out})
    else:
        notice(*(f"left out: {recipe}: {reason}" for recipe, reason in done.left_out.items()))
        say(f"Report, to open in a browser: {done.page}" if done.page else f"Results: {output}")


def _city(folder: Path | None, output: Path, quick: bool) -> City:
    """The user's city, or the demo town, simulated once and kept beside the results."""
    if folder is not None:
        return read(folder)
    if not quick:
        raise SettingsError("name a CITY; only with --quick the demo town stands in for one")
    home = output / "city"
    if not (home / "city.toml").exists():
        with err.status("Simulating a town"):
            write_city(demo_city(), home)
    return read_city(home)
