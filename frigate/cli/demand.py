"""`frigate demand`: who drives where, estimated from a city's counts."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from frigate.cli.console import notice, print_json, say, status
from frigate.cli.parser import CITY_FOLDER, EXCLUDE, JSON, TRUST_ALL, Argument, Command
from frigate.cli.train import read
from frigate.errors import SettingsError

LISTED = 10  # of the trips through a road


def run(args: Namespace) -> None:
    from frigate.demand.flows import find_road, trips_through
    from frigate.demand.trip_model import estimate_demand
    from frigate.pages.demand_page import check_suffix, write_flows

    if args.output is not None:
        check_suffix(args.output)
    if args.output is None and args.through is None:
        raise SettingsError("name a file for the flows with -o, or a road with --through")
    road = None if args.through is None else _road(args.through)
    city = read(args.city, args.exclude)
    if isinstance(road, str) and not len(city.network.lines):
        raise _not_a_road(road)
    if road is not None:
        find_road(city.stream.usual_network(), road)
    with status("Estimating demand"):
        demand = estimate_demand(city, seed=args.seed, trust_all=args.trust_all)
        through = None if road is None else trips_through(demand, road)
        if args.output is not None:
            write_flows(args.output, demand, city, through=through)
    notice(*demand.notices)
    if args.json:
        print_json(
            {
                "roads": demand.network.num_edges,
                "sensors": int(demand.sensors.sum()),
                "notices": list(demand.notices),
                "relative_error_at_sensors": round(demand.fit, 4),
                "searches": demand.settings.to_json()["searches"],
                "through": [] if through is None else [vars(movement) for movement in through.movements],
            }
        )
        return
    if road is not None and through is not None:
        name = road if isinstance(road, str) else " -> ".join(road)
        say(f"{name}: about {through.vehicles_per_day:,.0f} vehicles a day. The largest movements:")
        for movement in through.movements[:LISTED]:
            (a, b) = movement.origin
            (c, d) = movement.destination
            say(f"  {movement.vehicles_per_day:10,.1f}  from {a} -> {b}  to {c} -> {d}")
    if args.output is not None:
        roads = demand.network.num_edges
        sensors = int(demand.sensors.sum())
        say(f"Flows of {roads:,} roads by kind of day and hour, from {sensors:,} sensors: {args.output}")


def _road(text: str) -> tuple[str, str] | str:
    """The two end nodes of a road, or its own id."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2 or not all(parts):
        raise _not_a_road(text)
    return (parts[0], parts[1]) if len(parts) == 2 else parts[0]


def _not_a_road(text: str) -> SettingsError:
    return SettingsError(f'--through "{text}": name a road by its two end nodes, as --through 41,42')


DEMAND = Command(
    "demand",
    "Estimate who drives where: the flow of every road, by hour.",
    run,
    (
        CITY_FOLDER,
        EXCLUDE,
        Argument("-o --output FILE", "write the flows of all roads: .html (a map), .geojson or .parquet", Path),
        Argument("--through A,B", "list the trips that pass the road from A to B; a page draws them"),
        TRUST_ALL,
        Argument("--seed N", "of the sampled trips", int, 0),
        JSON,
    ),
    details="Needs counts. Trips are sampled on the network and their numbers fitted to the sensors.",
)
