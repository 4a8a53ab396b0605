"""`frigate import ...`: make a city folder from other data."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import log, notice, progress, say, status
from frigate.cli.parser import Argument, Command, CommandGroup
from frigate.errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from frigate.city.city import City

PLACES = 5  # of a notice, printed after it
BENCHMARKS = "metr-la, pems-bay, pems03, pems04, pems07, pems08, libcity, frigate"


def _import_matrix(args: Namespace) -> None:
    from frigate.city.network_tables import NODE_COLUMNS
    from frigate.sources.matrix import import_matrix
    from frigate.sources.tables.network import EDGE_COLUMNS

    _default_to_existing_city(args)
    columns = (*NODE_COLUMNS, *EDGE_COLUMNS)
    with status(f"Importing {args.file}"):
        city = import_matrix(
            args.file,
            values=args.values,
            time=args.time,
            valid=args.valid,
            start=args.start,
            step=args.step,
            timezone=args.timezone,
            nodes=args.nodes,
            edges=args.edges,
            rename=parse_map(args.map, known=columns),
            encoding=args.encoding,
            quantity=args.quantity,
            unit=args.unit,
            on=args.on,
            name=_name(args),
        )
    _write(city, args)


def _import_osm(args: Namespace) -> None:
    from frigate.city.city_toml import read_city_file
    from frigate.sources.osm.importer import import_osm
    from frigate.sources.osm.tags import DRIVABLE
    from frigate.sources.tables.importer import import_tables

    _default_to_existing_city(args)
    highways = DRIVABLE if args.highways is None else frozenset(filter(None, map(str.strip, args.highways.split(","))))
    with status(f"Importing {args.file}"):
        city = import_osm(
            args.file,
            name=_name(args),
            step=args.step or "5min",
            timezone=args.timezone,
            highways=highways,
            keep_all=args.keep_all,
            on=(args.on or "nodes") if args.readings is None else "nodes",
        )
        if args.readings is not None:
            if args.append and (args.output / "city.toml").is_file():
                city = replace(city, read_as=read_city_file(args.output).read_as)
            city = import_tables(
                network=city,
                readings=args.readings,
                sensors=args.sensors,
                on=args.on,
                bearing=args.bearing,
                rename=parse_map(args.map),
                snap_m=args.snap,
                step=args.step,
                timezone=args.timezone,
                date_order=args.date_order,
                encoding=args.encoding,
                quantity=args.quantity,
                unit=args.unit,
                report=args.report,
            )
    _write(city, args)


def _import_traces(args: Namespace) -> None:
    from frigate.city.folder import read_city
    from frigate.sources.traces.importer import import_traces

    _default_to_existing_city(args)
    with progress("Matching") as update:
        city = import_traces(
            args.traces,
            read_city(args.network),
            rename=parse_map(args.map),
            step=args.step or "5min",
            timezone=args.timezone,
            sigma_m=args.sigma,
            beta_m=args.beta,
            max_gap_s=args.max_gap,
            radius_m=args.radius,
            workers=args.workers,
            engine=args.engine,
            on=args.on,
            name=_name(args),
            on_progress=update,
        )
    _write(city, args)


def _import_sumo(args: Namespace) -> None:
    from frigate.sources.sumo.importer import import_sumo

    _default_to_existing_city(args)
    start = args.start[0] if len(args.start) == 1 else args.start or "2024-01-01T00:00"
    with status(f"Importing {args.net}"):
        city = import_sumo(
            args.net,
            edgedata=args.edgedata,
            detectors=args.detectors,
            on=args.on,
            start=start,
            timezone=args.timezone,
            step=args.step,
            origin=parse_origin(args.origin),
            name=_name(args),
        )
    _write(city, args)


def _import_tables(args: Namespace) -> None:
    from frigate.sources.tables.importer import import_tables

    _default_to_existing_city(args)
    if args.append and args.network is None and args.edges is None and (args.output / "city.toml").is_file():
        args.network = args.output
    with status("Importing tables"):
        city = import_tables(
            nodes=args.nodes,
            edges=args.edges,
            readings=args.readings,
            network=args.network,
            sensors=args.sensors,
            rename=parse_map(args.map),
            snap_m=args.snap,
            step=args.step,
            timezone=args.timezone,
            date_order=args.date_order,
            encoding=args.encoding,
            quantity=args.quantity,
            unit=args.unit,
            on=args.on,
            bearing=args.bearing,
            name=_name(args),
            report=args.report,
        )
    _write(city, args)


def _import_benchmark(args: Namespace) -> None:
    from frigate.sources.benchmarks.importer import import_benchmark

    with status(f"Importing {args.folder}"):
        city = import_benchmark(
            args.kind,
            files=args.folder,
            name=_name(args),
            feature=args.feature,
            timezone=args.timezone,
            length_unit=args.length_unit,
            zeros=args.zeros,
        )
    _write(city, args)


def _default_to_existing_city(args: Namespace) -> None:
    """With --append, take the step, time zone, quantity and unit that are not given from the existing city."""
    from frigate.city.city_toml import read_city_file, step_text

    if not args.append or not (args.output / "city.toml").is_file():
        return
    city = read_city_file(args.output)
    known = {
        "step": step_text(city.step_s),
        "timezone": city.timezone,
        "quantity": city.quantity,
        "unit": city.unit,
    }
    for name, value in known.items():
        if getattr(args, name, value) in (None, ""):
            setattr(args, name, value)


def _name(args: Namespace) -> str:
    return str(args.name or args.output.resolve().name)


def _write(city: City, args: Namespace) -> None:
    """Write the city and the cache of its road features, and print a summary."""
    from frigate.city.append import append_readings
    from frigate.city.folder import read_city, write_city
    from frigate.roads.feature_cache import ensure_road_features

    append_notices: tuple[str, ...] = ()
    with status(f"Writing {args.output}"):
        if args.append and (args.output / "city.toml").is_file():
            append_notices = append_readings(city, args.output)
        else:
            write_city(city, args.output, csv=args.csv, overwrite=args.overwrite)
        written = read_city(args.output)
        ready = ensure_road_features(written)  # so that a machine without the import packages can train on it
    new = [text for text in ready.notices if text not in (*city.notices, *written.notices)]
    for text in city.notices:
        notice(text)
        _list_places(city.places.get(text, ()))
    notice(*new, *append_notices)
    stream = written.stream
    readings = "no readings"
    if stream.num_snapshots:
        readings = f"{stream.num_snapshots} snapshots, sensors at {int(stream.sensors.sum())}"
    words = ("roads", "turns") if len(written.network.lines) else ("nodes", "roads")
    say(f"{stream.num_nodes} {words[0]}, {written.network.num_edges} {words[1]}, {readings}: {args.output}")


def _list_places(places: Sequence[str]) -> None:
    """Print the places of a notice after the first, which is in its sentence."""
    for place in places[1 : PLACES + 1]:
        log(f"  {place}")
    if len(places) > PLACES + 1:
        log("  `frigate check` lists more")


def parse_origin(text: str | None) -> tuple[float, float] | None:
    """Parse LON,LAT, such as 6.13,49.61."""
    if text is None:
        return None
    try:
        lon, lat = map(float, text.split(","))
    except ValueError:
        raise SettingsError(f'--origin "{text}": give degrees as LON,LAT, such as 6.13,49.61') from None
    return lon, lat


def parse_map(text: str, *, known: Sequence[str] = ()) -> dict[str, str]:
    """Parse "src=source,..." into {"src": "source", ...}: their column names to ours.

    Parameters
    ----------
    text
        The value of --map.
    known
        Our column names that are allowed; default: any.
    """
    pairs = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        theirs, equals, ours = map(str.strip, pair.partition("="))
        if not (theirs and equals and ours):
            raise SettingsError(f'--map "{pair}": write theirs=ours, such as src=source,dst=target')
        if known and ours not in known:
            raise SettingsError(
                f'--map "{pair}": unknown column {ours}{did_you_mean(ours, known)}. Known: {", ".join(known)}'
            )
        pairs[theirs] = ours
    return pairs


# Shared arguments

OUTPUT = (
    Argument("-o --output CITY", "the city folder to write", Path, required=True),
    Argument("--name NAME", "name of the city (default: the folder's)"),
    Argument("--csv", "write CSV tables instead of Parquet"),
    Argument("--overwrite", "replace a city even if it was made or edited by hand"),
    Argument("--append", "add the readings to the city if it exists, for daily files"),
)
MAP = Argument("--map THEIRS=OURS,...", "rename columns, from their names to ours", default="")
UTC = Argument("--timezone ZONE", "time zone, such as Europe/Luxembourg", default="UTC")
PLACE = Argument("--timezone ZONE", "time zone, such as Europe/Luxembourg (default: from the location)")
ZONE = Argument(
    "--timezone ZONE", "time zone, such as Europe/Luxembourg (default: from the network, the data or the location)"
)
STEP = Argument("--step STEP", "time between snapshots (default: 5min)")
STEP_OF_DATA = Argument("--step STEP", "time between snapshots, such as 5min (default: as in the data)")
QUANTITY = Argument(
    "--quantity NAME", "count (summed over a step) or a gauge such as speed (last value of a step) (default: count)"
)
UNIT = Argument("--unit UNIT", "unit of the values, for display", default="")
ON = Argument(
    "--on",
    "what a node of the city is: an intersection, or a road segment",
    default="nodes",
    choices=("nodes", "roads"),
)
ON_OR_ASK = Argument(
    "--on",
    "what a node of the city is: an intersection, or a road segment (default: nodes; must be given where detectors "
    "measure single roads)",
    choices=("nodes", "roads"),
)
ENCODING = Argument("--encoding NAME", "encoding of tables that are not UTF-8, such as latin-1", default="utf-8")
ENCODING_OF_READINGS = Argument("--encoding NAME", "encoding of tables that are not UTF-8, such as latin-1")
READINGS = (
    Argument("--readings FILE", "table of readings: time, value, and node_id, sensor_id or lon, lat", Path),
    Argument("--sensors FILE", "table of sensors: sensor_id, and node_id or lon, lat", Path),
    Argument("--snap METRES", "attach a sensor to the nearest node or road within this distance (default: 50)", float),
    Argument("--bearing DIRECTION", "of sensors without one: degrees, N, NE, ..., or both if each measures both ways"),
    MAP,
    Argument(
        "--date-order",
        "order of day, month and year in ambiguous dates such as 03/04/24",
        choices=("dmy", "mdy", "ymd"),
    ),
    ENCODING_OF_READINGS,
    Argument("--report FILE", "write the rows that could not be used to a CSV file", Path),
    QUANTITY,
    UNIT,
)

IMPORT = CommandGroup(
    "import",
    "Make a city folder from other data.",
    (
        Command(
            "matrix",
            "Import a matrix of readings, with tables of nodes and roads.",
            _import_matrix,
            (
                Argument(
                    "FILE", "a matrix [time, node] or, on roads, [time, road]: .npz, .npy, .h5 or wide .csv", Path
                ),
                Argument("--nodes FILE", "table of nodes: node_id, lon, lat", Path, required=True),
                Argument(
                    "--edges FILE", "table of roads: source, target [, length_m, road_class, ...]", Path, required=True
                ),
                *OUTPUT,
                Argument("--values ARRAY", "name of the matrix in the file"),
                Argument("--time ARRAY", "name of the array of times in the file"),
                Argument("--valid ARRAY", "name of the array that marks valid rows or cells"),
                Argument("--start TIME", "time of the first row, if the file has no times"),
                STEP_OF_DATA,
                PLACE,
                MAP,
                ENCODING,
                QUANTITY,
                UNIT,
                ON,
            ),
        ),
        Command(
            "osm",
            "Import drivable roads from OpenStreetMap, with or without readings.",
            _import_osm,
            (
                Argument("FILE", ".osm.pbf, .osm, .osm.gz, Overpass JSON or GraphML", Path),
                *OUTPUT,
                *READINGS,
                STEP,
                PLACE,
                Argument("--highways A,B,...", "values of the highway tag to keep (default: all drivable)"),
                Argument("--keep-all --no-keep-all", "keep roads outside the largest strongly connected component"),
                ON_OR_ASK,
            ),
        ),
        Command(
            "traces",
            "Import GPS traces, matched to roads and counted at every node.",
            _import_traces,
            (
                Argument("TRACES...", "tables of positions, CSV or Parquet", Path),
                Argument("--network CITY", "the city that the traces were recorded in", Path, required=True),
                *OUTPUT,
                MAP,
                STEP,
                ZONE,
                Argument("--sigma METRES", "standard deviation of GPS positions (default: estimated)", float),
                Argument("--beta METRES", "scale of route minus straight-line distance (default: estimated)", float),
                Argument("--max-gap SECONDS", "cut traces at longer gaps", float, default=240.0),
                Argument("--radius METRES", "consider roads within this distance", float, default=50.0),
                Argument("--workers N", "threads on this machine", int, default=1),
                Argument(
                    "--engine",
                    "where to compute; ray needs the extra `cluster`",
                    default="local",
                    choices=("local", "ray"),
                ),
                ON,
            ),
        ),
        Command(
            "sumo",
            "Import a SUMO network, with counts from edge data or detectors.",
            _import_sumo,
            (
                Argument("NET", "net.xml, plain or gzip", Path),
                *OUTPUT,
                Argument("--edgedata FILE", "edge data; may be repeated", Path, repeated=True),
                Argument("--detectors FILE", "E1 loops and their output; may be repeated", Path, repeated=True),
                Argument(
                    "--start TIME",
                    "time of simulation second 0: once for all files, or once for each (default: 2024-01-01T00:00)",
                    repeated=True,
                ),
                Argument("--origin LON,LAT", "location of point 0,0, for a network without a projection"),
                STEP_OF_DATA,
                UTC,
                ON,
            ),
        ),
        Command(
            "tables",
            "Import tables of nodes, roads and readings.",
            _import_tables,
            (
                *OUTPUT,
                Argument("--nodes FILE", "table of nodes: node_id, lon, lat", Path),
                Argument("--edges FILE", "table of roads: source, target or a geometry", Path),
                Argument("--network CITY", "use this city's network instead of tables", Path),
                *READINGS,
                STEP_OF_DATA,
                ZONE,
                ON_OR_ASK,
            ),
        ),
        Command(
            "benchmark",
            "Import a published data set, such as METR-LA.",
            _import_benchmark,
            (
                Argument("KIND", f"one of {BENCHMARKS}"),
                Argument("FOLDER", "the files as published, under their original names", Path),
                *OUTPUT,
                Argument("--feature NAME", "which feature to import, such as flow or speed"),
                ZONE,
                Argument("--length-unit UNIT", "unit of the distances: m, km or mi (default: the data set's)"),
                Argument(
                    "--zeros",
                    "whether a 0 is a missing reading (default: the data set's rule)",
                    choices=("missing", "kept"),
                ),
            ),
        ),
    ),
)
