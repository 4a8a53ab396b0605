"""`frigate check`: show what is in a city, and what is wrong with it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from frigate.cli.console import print_json, say, status
from frigate.cli.parser import CITY_FOLDER, EXCLUDE, JSON, Argument, Command


def run(args: Namespace) -> None:
    from frigate.check.city import check_city
    from frigate.city.folder import read_city
    from frigate.pages.check_page import write_check_page
    from frigate.roads.feature_cache import ensure_road_features

    with status(f"Reading {args.city}"):
        city = ensure_road_features(read_city(args.city, exclude=args.exclude))
        report = check_city(city, positions=args.positions)
        page = None if args.html is None else write_check_page(args.html, city, report)
    if args.json:
        print_json(report.to_json())
        return
    for line in report.lines():
        say(line)
    if page is not None:
        say(f"Page: {page}")


CHECK = Command(
    "check",
    "Show what is in a city, and what is wrong with it.",
    run,
    (
        CITY_FOLDER,
        EXCLUDE,
        Argument("--positions", "also measure the distortion of the positions"),
        Argument("--html FILE", "also write a page with maps of the network, its sensors and their gaps", Path),
        JSON,
    ),
)
