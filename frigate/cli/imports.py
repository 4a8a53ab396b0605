"""`frigate import ...`: from other data to a city folder."""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import notice, progress, say, status
from frigate.cli.parser import Command, Group, Parser, add_output
from frigate.errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from frigate.data.city import City

BENCHMARKS = "metr-la, pems-bay, pems03, pems04, pems07, pems08, libcity, frigate"


# Arguments that several kinds of data share


def _add_city(parser: Parser) -> None:
    """The city to write."""
    add_output(parser, "CITY", "the city folder to write")
    parser.add_argument("--name", help="name of the city (default: the folder's)")
    parser.add_argument("--csv", action="store_true", help="write CSV tables instead of Parquet")


def _add_map(parser: Parser) -> None:
    parser.add_argument("--map", default="", metavar="THEIRS=OURS,...", help="column names, theirs to ours")


def _add_times(parser: Parser, *, zone: str | None, step: str = "5min") -> None:
    parser.add_argument("--step", help=f"time between snapshots, such as 5min (default: {step})")
    shown = "that of the data" if zone is None else zone
    parser.add_argument("--timezone", default=zone, help=f"time zone, such as Europe/Luxembourg (default: {shown})")


def _add_quantity(parser: Parser) -> None:
    parser.add_argument(
        "--quantity", default="count", help="count (summed) or a gauge such as speed (latest) (default: count)"
    )
    parser.add_argument("--unit", default="", help="unit of the values, for display")


def _add_on(parser: Parser) -> None:
    parser.add_argument(
        "--on", choices=("nodes", "roads"), default="nodes",
        help="what a node of the city is: an intersection, or a road segment (default: nodes)",
    )  # fmt: skip


def _add_readings(parser: Parser) -> None:
    parser.add_argument(
        "--readings", metavar="FILE", type=Path, help="table of readings: time, value, and a node, a sensor or a place"
    )
    parser.add_argument(
        "--sensors", metavar="FILE", type=Path, help="table of sensors: sensor_id, and node_id or lon, lat"
    )
    parser.add_argument(
        "--snap", metavar="METRES", type=float, help="attach a sensor to the nearest node within this distance"
    )
    _add_map(parser)
    parser.add_argument(
        "--date-order", choices=("dmy", "mdy"), help="order of dates such as 03/04/2024, where no value decides"
    )
    parser.add_argument("--encoding", default="utf-8", help="of text tables, such as latin-1 (default: utf-8)")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the rows that could not be used, as CSV")
    _add_quantity(parser)


# Commands


def _add_matrix(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="a matrix [time, node]: .npz, .npy, .h5 or wide .csv")
    parser.add_argument("--nodes", metavar="FILE", type=Path, required=True, help="table of nodes: node_id, lon, lat")
    parser.add_argument(
        "--edges", metavar="FILE", type=Path, required=True,
        help="table of roads: source, target [, length_m, road_class, ...]",
    )  # fmt: skip
    _add_city(parser)
    parser.add_argument("--values", metavar="ARRAY", help="name of the matrix in the file")
    parser.add_argument("--time", metavar="ARRAY", help="name of the array of times in the file")
    parser.add_argument("--valid", metavar="ARRAY", help="name of the array that marks valid rows or cells")
    parser.add_argument("--start", metavar="TIME", help="time of the first row, if the file has no times")
    _add_times(parser, zone="UTC", step="that of the times")
    _add_map(parser)
    _add_quantity(parser)


def _import_matrix(args: Namespace) -> None:
    from frigate.data.network_tables import ATTRIBUTES
    from frigate.sources.matrix import import_matrix

    columns = ("node_id", "lon", "lat", "source", "target", "length_m", *ATTRIBUTES)
    with status(f"Importing {args.file}"):
        city = import_matrix(
            args.file, values=args.values, time=args.time, valid=args.valid, start=args.start, step=args.step,
            timezone=args.timezone, nodes=args.nodes, edges=args.edges, rename=parse_map(args.map, known=columns),
            quantity=args.quantity, unit=args.unit, name=_name(args),
        )  # fmt: skip
    _write(city, args)


def _add_osm(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help=".osm.pbf, .osm, .osm.gz, Overpass JSON or GraphML")
    _add_city(parser)
    _add_readings(parser)
    _add_times(parser, zone="UTC")
    parser.add_argument(
        "--highways", metavar="A,B,...", help="values of the tag highway to keep (default: all drivable)"
    )
    parser.add_argument(
        "--keep-all", action=BooleanOptionalAction, default=False,
        help="keep roads outside the largest strongly connected part",
    )  # fmt: skip
    _add_on(parser)


def _import_osm(args: Namespace) -> None:
    from frigate.sources.osm.importer import osm_city
    from frigate.sources.osm.tags import DRIVABLE
    from frigate.sources.tables.importer import attach_readings

    highways = DRIVABLE if args.highways is None else frozenset(filter(None, map(str.strip, args.highways.split(","))))
    with status(f"Importing {args.file}"):
        city, roads = osm_city(
            args.file, name=_name(args), step=args.step or "5min", timezone=args.timezone, highways=highways,
            keep_all=args.keep_all, on=args.on,
        )  # fmt: skip
        if args.readings is not None:
            city = attach_readings(
                city, args.readings, sensors=args.sensors, roads=roads, rename=parse_map(args.map), snap_m=args.snap,
                step=args.step, timezone=args.timezone, date_order=args.date_order, encoding=args.encoding,
                quantity=args.quantity, unit=args.unit, report=args.report,
            )  # fmt: skip
    _write(city, args)


def _add_traces(parser: Parser) -> None:
    parser.add_argument("files", metavar="TRACES", nargs="+", type=Path, help="tables of positions, CSV or Parquet")
    parser.add_argument("--network", metavar="CITY", type=Path, required=True, help="the city whose roads were driven")
    _add_city(parser)
    _add_map(parser)
    _add_times(parser, zone=None)
    parser.add_argument(
        "--sigma", metavar="METRES", type=float, help="spread of positions about their road (default: estimated)"
    )
    parser.add_argument(
        "--beta", metavar="METRES", type=float, help="scale of route minus straight distance (default: estimated)"
    )
    parser.add_argument(
        "--max-gap", metavar="SECONDS", type=float, default=240.0, help="cut traces at longer gaps (default: 240)"
    )
    parser.add_argument(
        "--radius", metavar="METRES", type=float, default=50.0, help="consider roads within this distance (default: 50)"
    )
    parser.add_argument("--workers", metavar="N", type=int, default=1, help="threads on this machine (default: 1)")
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local",
        help="where to compute; ray needs the extra `cluster` (default: local)",
    )  # fmt: skip
    _add_on(parser)


def _import_traces(args: Namespace) -> None:
    from frigate.data.city import read_city
    from frigate.sources.traces.importer import import_traces

    with progress("Matching") as update:
        city = import_traces(
            args.files, read_city(args.network), rename=parse_map(args.map), step=args.step or "5min",
            timezone=args.timezone, sigma_m=args.sigma, beta_m=args.beta, max_gap_s=args.max_gap, radius_m=args.radius,
            workers=args.workers, engine=args.engine, on=args.on, name=_name(args),
            on_progress=update,
        )  # fmt: skip
    _write(city, args)


def _add_sumo(parser: Parser) -> None:
    parser.add_argument("net", metavar="NET", type=Path, help="net.xml, plain or gzip")
    _add_city(parser)
    parser.add_argument(
        "--edgedata", metavar="FILE", type=Path, action="append", default=[], help="edge data; may be repeated"
    )
    parser.add_argument(
        "--detectors", metavar="FILE", type=Path, action="append", default=[],
        help="E1 loops and their output; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--start", metavar="TIME", action="append", default=[],
        help="the time of second 0: once for all files, or once for each (default: 2024-01-01T00:00)",
    )  # fmt: skip
    _add_times(parser, zone="UTC", step="that of the files")
    _add_on(parser)


def _import_sumo(args: Namespace) -> None:
    from frigate.sources.sumo.importer import import_sumo

    start = args.start[0] if len(args.start) == 1 else args.start or "2024-01-01T00:00"
    with status(f"Importing {args.net}"):
        city = import_sumo(
            args.net, edgedata=args.edgedata, detectors=args.detectors, on=args.on, start=start,
            timezone=args.timezone, step=args.step, name=_name(args),
        )  # fmt: skip
    _write(city, args)


def _add_tables(parser: Parser) -> None:
    _add_city(parser)
    parser.add_argument("--nodes", metavar="FILE", type=Path, help="table of nodes: node_id, lon, lat")
    parser.add_argument("--edges", metavar="FILE", type=Path, help="table of roads: source, target or a geometry")
    parser.add_argument("--network", metavar="CITY", type=Path, help="use this city's network instead of tables")
    _add_readings(parser)
    _add_times(parser, zone=None, step="that of the readings")
    _add_on(parser)


def _import_tables(args: Namespace) -> None:
    from frigate.sources.tables.importer import import_tables

    with status("Importing tables"):
        city = import_tables(
            nodes=args.nodes, edges=args.edges, readings=args.readings, network=args.network, sensors=args.sensors,
            rename=parse_map(args.map), snap_m=args.snap, step=args.step, timezone=args.timezone,
            date_order=args.date_order, encoding=args.encoding, quantity=args.quantity, unit=args.unit, on=args.on,
            name=_name(args), report=args.report,
        )  # fmt: skip
    _write(city, args)


def _add_benchmark(parser: Parser) -> None:
    parser.add_argument("kind", metavar="KIND", help=f"one of {BENCHMARKS}")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the files as published, under their usual names")
    _add_city(parser)
    parser.add_argument("--feature", help="which of several, such as flow or speed")
    parser.add_argument("--timezone", help="time zone (default: that of the data set)")
    parser.add_argument("--length-unit", metavar="UNIT", help="of the distances: m, km or mi (default: the data set's)")
    parser.add_argument(
        "--zeros", choices=("missing", "kept"), help="whether a 0 is a missing reading (default: the data set's rule)"
    )


def _import_benchmark(args: Namespace) -> None:
    from frigate.sources.benchmarks.importer import import_benchmark

    with status(f"Importing {args.folder}"):
        city = import_benchmark(
            args.kind, files=args.folder, name=_name(args), feature=args.feature, timezone=args.timezone,
            length_unit=args.length_unit, zeros=args.zeros,
        )  # fmt: skip
    _write(city, args)


def _name(args: Namespace) -> str:
    return str(args.name or args.output.resolve().name)


def _write(city: City, args: Namespace) -> None:
    """Write the city with its road features in the cache, and print what is in it."""
    from frigate.data.city import read_city, write_city
    from frigate.graph.feature_cache import ensure_road_features

    with status(f"Writing {args.output}"):
        write_city(city, args.output, csv=args.csv)
        ensure_road_features(read_city(args.output))  # so that a bare machine can train on it
    notice(*city.notices)
    stream = city.stream
    readings = "no readings"
    if stream.num_snapshots:
        readings = f"{stream.num_snapshots} snapshots, sensors at {int(stream.sensors.sum())}"
    say(f"{stream.num_nodes} nodes, {city.network.num_edges} roads, {readings}: {args.output}")


def parse_map(text: str, *, known: Sequence[str] = ()) -> dict[str, str]:
    """{"src": "source", ...} from "src=source,...": theirs to ours.

    Parameters
    ----------
    text
        What was typed after --map.
    known
        The names that ours may have; default: any.
    """
    pairs = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        theirs, equals, ours = map(str.strip, pair.partition("="))
        if not (theirs and equals and ours):
            raise SettingsError(f'--map "{pair}": write theirs=ours, such as src=source,dst=target')
        if known and ours not in known:
            hint = did_you_mean(ours, known) or f". Known columns: {', '.join(known)}"
            raise SettingsError(f'--map "{pair}": no column {ours} is read{hint}')
        pairs[theirs] = ours
    return pairs


IMPORT = Group(
    "import", "Make a city folder from other data.",
    (
        Command("matrix", "A matrix of readings, with tables of nodes and roads.", _add_matrix, _import_matrix),
        Command("osm", "Drivable roads of OpenStreetMap, with or without readings.", _add_osm, _import_osm),
        Command("traces", "GPS positions, matched to roads and counted at every node.", _add_traces, _import_traces),
        Command("sumo", "A SUMO network, with counts from edge data or loops.", _add_sumo, _import_sumo),
        Command("tables", "Your own tables of nodes, roads and readings.", _add_tables, _import_tables),
        Command("benchmark", "A published data set, such as METR-LA.", _add_benchmark, _import_benchmark),
    ),
)  # fmt: skip
