"""`frigate check`: show what is in a city, and what is wrong with it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from frigate.cli.console import notice, print_json, say, status
from frigate.cli.parser import CITY_FOLDER, EXCLUDE, JSON, Argument, Command

LARGE = 10_000  # nodes


def run(args: Namespace) -> None:
    from frigate.check.city import check_city
    from frigate.check.exclusions import write_exclusions
    from frigate.city.folder import read_city
    from frigate.pages.check_page import write_check_page
    from frigate.roads.feature_cache import ensure_road_features

    with status(f"Reading {args.city}"):
        city = ensure_road_features(read_city(args.city, exclude=args.exclude))
        large = city.network.num_nodes > LARGE
        conflicts = args.conflicts == "yes" or (args.conflicts == "auto" and not large)
        report = check_city(city, positions=args.positions, conflicts=conflicts)
        page = None if args.html is None else write_check_page(args.html, city, report)
    if args.write_exclude is not None:
        write_exclusions(args.write_exclude, report.exclusions, report.excluded)
    if args.json:
        print_json(report.to_json())
        return
    for line in report.lines():
        say(line)
    if args.conflicts == "auto" and large:
        notice("Counts were not compared with one another, which takes minutes here. Add --conflicts yes to do it")
    if page is not None:
        say(f"Page: {page}")
    if args.write_exclude is not None:
        say(f"[exclude] block for city.toml, {len(report.exclusions):,} entries: {args.write_exclude}")


CHECK = Command(
    "check",
    "Show what is in a city, and what is wrong with it.",
    run,
    (
        CITY_FOLDER,
        EXCLUDE,
        Argument(
            "--conflicts",
            "compare each count with what the other sensors say of it; auto: unless the city is large",
            default="auto",
            choices=("auto", "yes", "no"),
        ),
        Argument("--write-exclude FILE", "write an [exclude] block for city.toml, with all that looks broken", Path),
        Argument("--positions", "also measure the distortion of the positions"),
        Argument("--html FILE", "also write a page with maps of the network, its sensors and their gaps", Path),
        JSON,
    ),
)
