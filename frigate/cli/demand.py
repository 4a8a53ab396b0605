"""`frigate demand`: who drives where, estimated from a city's counts."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from frigate.cli.console import print_json, say, status
from frigate.cli.parser import CITY_FOLDER, JSON, Argument, Command
from frigate.cli.train import read
from frigate.errors import SettingsError

SUFFIXES = (".geojson", ".parquet")
LISTED = 10  # of the trips through a road


def run(args: Namespace) -> None:
    through = None if args.through is None else _ends(args.through)
    if args.output is not None and args.output.suffix not in SUFFIXES:
        raise SettingsError(f'{args.output}: "{args.output.suffix}" is not known. Use {" or ".join(SUFFIXES)}')
    if args.output is None and through is None:
        raise SettingsError("name a file for the flows with -o, or a road with --through")
    city = read(args.city)
    from frigate.demand.estimate import estimate_demand
    from frigate.demand.flows import find_road, road_columns, road_features_geojson, trips_through
    from frigate.demand.tuning import choose_settings

    if through is not None:
        find_road(city.network, through)
    stream = city.stream
    with status("Estimating demand"):
        known = {"forbidden_turns": city.forbidden_turns, "seed": args.seed}
        settings = choose_settings(stream, stream.sensors, **known)
        demand = estimate_demand(stream, stream.sensors, settings=settings, **known)
    if args.output is not None:
        from frigate.data.files import replacing_file, write_file

        if args.output.suffix == ".parquet":
            import polars as pl

            with replacing_file(args.output) as new:
                pl.DataFrame(road_columns(demand, city.network, step_s=stream.step_s)).write_parquet(new)
        else:
            write_file(args.output, json.dumps(road_features_geojson(demand, city.network, step_s=stream.step_s)))
    movements = () if through is None else trips_through(demand, city.network, through, step_s=stream.step_s)
    if args.json:
        print_json(
            {
                "roads": city.network.num_edges,
                "sensors": int(demand.sensors.sum()),
                "relative_error_at_sensors": round(demand.fit, 4),
                "searches": settings.to_json()["searches"],
                "through": [vars(movement) for movement in movements],
            }
        )
        return
    if through is not None:
        total = sum(movement.vehicles_per_day for movement in movements)
        say(f"{through[0]} -> {through[1]}: about {total:,.0f} vehicles a day. The largest movements:")
        for movement in movements[:LISTED]:
            (a, b), (c, d) = movement.origin, movement.destination
            say(f"  {movement.vehicles_per_day:10,.1f}  from {a} -> {b}  to {c} -> {d}")
    if args.output is not None:
        roads, sensors = city.network.num_edges, int(demand.sensors.sum())
        say(f"Flows of {roads:,} roads by kind of day and hour, from {sensors:,} sensors: {args.output}")


def _ends(text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise SettingsError(f'--through "{text}": name a road by its two end nodes, as --through 41,42')
    return parts[0], parts[1]


DEMAND = Command(
    "demand", "Estimate who drives where: the flow of every road, by hour.", run,
    (
        CITY_FOLDER,
        Argument("-o --output FILE", "write the flows of all roads: .geojson or .parquet", Path),
        Argument("--through A,B", "list the trips that pass the road from node A to node B"),
        Argument("--seed N", "of the sampled trips", int, 0),
        JSON,
    ),
    details="Needs counts. Trips are sampled on the network and their numbers fitted to the sensors.",
)  # fmt: skip
