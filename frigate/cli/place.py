"""`frigate place`: where to count next, and which sensors would be missed least."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import notice, print_json, print_table, progress, say, status
from frigate.cli.parser import CITY_FOLDER, EXCLUDE, JSON, Argument, Command

if TYPE_CHECKING:
    from frigate.planning.placement import Placement

WEIGHTS = ("traffic", "vehicle-km", "even")
CURVE_POINTS = 8


def run(args: Namespace) -> None:
    from frigate.city.folder import read_city
    from frigate.city.split import read_seen_file
    from frigate.pages.placement_page import check_placement_suffix, write_placement
    from frigate.planning.placement import place
    from frigate.planning.sites import read_costs
    from frigate.roads.feature_cache import ensure_road_features

    if args.output is not None:
        check_placement_suffix(args.output)
    with status(f"Reading {args.city}"):
        city = ensure_road_features(read_city(args.city, exclude=args.exclude))
        candidates, targets = (
            None if file is None else read_seen_file(file, city.network) for file in (args.candidates, args.targets)
        )
        costs = None if args.costs is None else read_costs(args.costs, city.network)
    with progress("Choosing sites") as update:
        found = place(
            city,
            budget=args.budget,
            weight=args.weight,
            candidates=candidates,
            targets=targets,
            force=args.force,
            forbid=args.forbid,
            costs=costs,
            days=args.days,
            remove=args.remove,
            seed=args.seed,
            progress=update,
        )
    if args.output is not None:
        write_placement(args.output, found, city)
    if args.json:
        print_json(found.to_json())
        return
    notice(*found.notices)
    print_placement(found)
    if args.output is not None:
        say(f"{len(found.sites):,} sites: {args.output}")


def print_placement(found: Placement) -> None:
    """Print the sites, the gain curve and the sensors missed least."""
    from frigate.text import percent, three_digits

    if found.sites:
        say(f"Where to count next in {found.city}: {len(found.sites):,} of {found.candidates:,} candidates")
        rows = []
        for rank, site in enumerate(found.sites, start=1):
            cells = {"": str(rank), "node": str(site.node), "street": site.street, "cost": f"{site.cost:,.10g}"}
            cells["error taken"] = percent(site.gain)
            cells["vehicles a day"] = "" if site.vehicles_per_day is None else three_digits(site.vehicles_per_day)
            rows.append({name: cell for name, cell in cells.items() if _wanted(name, found)})
        print_table(rows, drop=("street",), left=("node", "street"))
        print()
        for rank, site in enumerate(found.sites, start=1):
            say(f"{rank}. {site.node}: {site.reason}")
        print()
        if found.days is not None:
            say(found.days.sentence())
        say(f"Error left over the network, of what is expected now: {_curve_text(found.curve)}")
    if found.redundant:
        say(f"Sensors missed least, of {int(found.sensors.sum()):,}, in the order in which to give them up:")
        for rank, sensor in enumerate(found.redundant, start=1):
            street = f" ({sensor.street})" if sensor.street else ""
            say(f"{rank}. {sensor.node}{street}: {sensor.reason}")


def _wanted(column: str, found: Placement) -> bool:
    """Whether a column of the table says anything."""
    if column == "street":
        return any(site.street for site in found.sites)
    if column == "vehicles a day":
        return any(site.vehicles_per_day is not None for site in found.sites)
    return column != "cost" or found.in_money


def _curve_text(curve: tuple[float, ...]) -> str:
    """Such as "5 sites 91 %, 10 sites 85 %"."""
    from frigate.text import percent

    count = len(curve) - 1
    shown = sorted({max(1, round(count * k / CURVE_POINTS)) for k in range(1, CURVE_POINTS + 1)})
    return ", ".join(f"{k} site{'s' * (k > 1)} {percent(curve[k])}" for k in shown)


PLACE = Command(
    "place",
    "Find where the next sensors are worth most.",
    run,
    (
        CITY_FOLDER,
        Argument("--budget K", "how many sites; with --costs, how much money", float),
        Argument(
            "--weight",
            "what an error counts: the vehicles missed, these times the road's length, or the same everywhere",
            default="traffic",
            choices=WEIGHTS,
        ),
        Argument("--candidates FILE", "choose among these nodes alone, one id per line", Path),
        Argument("--targets FILE", "only the error at these nodes counts, one id per line (default: all)", Path),
        Argument("--force NODE", "a site that must be among the chosen; may be repeated", repeated=True),
        Argument("--forbid NODE", "a node, or a street by its name, that is no site; may be repeated", repeated=True),
        Argument("--costs FILE", "a table with the columns node_id and cost; other nodes are no sites", Path),
        Argument("--days N", "count for so many days with portable counters (default: sensors that stay)", int),
        Argument("--remove K", "also name the K present sensors that would be missed least", int, 0),
        Argument("-o --output FILE", "also write .html (a map) or .geojson", Path),
        Argument("--seed N", "of the sampled trips", int, 0),
        EXCLUDE,
        JSON,
    ),
    details="Needs a map; counts at some of its nodes make it better. Without readings, the map alone decides.",
)
