"""`frigate scenario`: plans for the roads, compared with no change and with each other."""

from __future__ import annotations

import csv
import io
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import notice, print_json, print_table, progress, say
from frigate.cli.parser import DEVICE, EXCLUDE, JSON, OTHER_CITY, RUN, Argument, Command
from frigate.errors import SettingsError

if TYPE_CHECKING:
    from frigate.city.city import City
    from frigate.forecasting.scenarios import ScenarioStudy

SUFFIXES = (".html", ".csv", ".xlsx")
STREETS = 5  # of each scenario, on the terminal


def run(args: Namespace) -> None:
    from frigate.city.folder import open_city
    from frigate.forecasting.scenario_file import read_scenarios
    from frigate.forecasting.scenarios import compare_scenarios
    from frigate.training.checkpoint import load_run

    for path in args.output:
        if path.suffix.lower() not in SUFFIXES:
            raise SettingsError(f"{path}: choose a file name ending in {', '.join(SUFFIXES)}")
    asked = read_scenarios(args.plan)
    opened = load_run(args.run)
    city = opened.open_city(exclude=args.exclude) if args.city is None else open_city(args.city, exclude=args.exclude)
    with progress("Forecasting") as update:
        study = compare_scenarios(
            opened,
            asked.scenarios,
            begin=asked.begin,
            end=asked.end,
            city=city,
            device=args.device,
            progress=lambda done, total: update(done, total, "scenarios"),
        )
    for path in args.output:
        _write(path, study, city)
    if args.json:
        print_json(study.to_json())
        return
    for outcome in study.outcomes:
        notice(*(f"{outcome.scenario.name}: {text}" for text in outcome.notices))
    print_study(study)
    for path in args.output:
        say(f"{study.city}, {len(study.outcomes)} scenarios: {path}")


def print_study(study: ScenarioStudy) -> None:
    """Print a table of the scenarios, and the streets with the largest increases."""
    from frigate.calendar import local_iso

    say(f"{study.period} ({study.base.timezone}), compared with no change")
    say(f"Without any change: {study.vehicle_km.text()} vehicle-km. In brackets: nine of ten estimates of the trips.")
    print()
    rows = [
        {
            "scenario": outcome.scenario.name,
            "vehicle-km": f"{outcome.vehicle_km.value:+,.0f}",
            "take another way": f"{outcome.moved.value:,.0f}",
            "longer by": f"{outcome.detour_m.value:,.0f} m",
            "no way left": f"{outcome.lost.value:,.0f}",
        }
        for outcome in study.outcomes
    ]
    print_table(rows, left=("scenario",))
    for outcome in study.outcomes:
        print()
        ranges = {"vehicle-km": outcome.vehicle_km, "take another way": outcome.moved, "no way left": outcome.lost}
        told = "; ".join(f"{name} {each.low:,.0f} to {each.high:,.0f}" for name, each in ranges.items())
        say(f"{outcome.scenario.name}: {told}; {len(outcome.over_maximum)} places over their usual maximum")
        print_table(
            [
                {
                    "street": each.street,
                    "from": local_iso(each.time_s, study.base.timezone)[11:16],
                    "before": f"{each.before:,.0f}",
                    "after": f"{each.after:,.0f}",
                    "between": f"{each.low:,.0f} and {each.high:,.0f}",
                }
                for each in outcome.increases[:STREETS]
            ],
            left=("street", "from"),
        )
    print()


def _write(path: Path, study: ScenarioStudy, city: City) -> None:
    from frigate.pages.scenario_page import write_scenarios
    from frigate.reading.files import write_file
    from frigate.reading.spreadsheets import write_sheets
    from frigate.text import no_formula

    if path.suffix.lower() == ".html":
        write_scenarios(path, study, city)
    elif path.suffix.lower() == ".xlsx":
        write_sheets(path, {"scenarios": study.rows(), "streets": study.street_rows()})
    else:
        rows = study.long_rows()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow([no_formula(cell) if isinstance(cell, str) else cell for cell in row.values()])
        write_file(path, text.getvalue())


SCENARIO = Command(
    "scenario",
    "Compare plans for the roads with no change, and with each other.",
    run,
    (
        RUN,
        Argument("PLAN", "a file of scenarios, such as plan.toml", Path),
        Argument(
            "-o --output FILE",
            "write a page with maps (.html), or the numbers as a table (.csv, .xlsx); may be repeated",
            Path,
            repeated=True,
        ),
        OTHER_CITY,
        EXCLUDE,
        DEVICE,
        JSON,
    ),
    details="Each scenario closes and adds roads, from a time until another.",
)
