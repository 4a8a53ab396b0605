"""`frigate import ...` and `frigate export ...`: from other data to a city folder, and to other programs."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from frigate.cli.console import PLAIN, bar, err, notice, say
from frigate.data.city import City, open_city, read_city, write_city
from frigate.data.network_tables import ATTRIBUTES
from frigate.errors import SettingsError
from frigate.forecasting.export import Exported, export_onnx, export_program, write_sample
from frigate.graph.feature_cache import ensure_road_features
from frigate.sources.benchmarks.importer import KINDS, import_benchmark
from frigate.sources.benchmarks.libcity_export import export_libcity
from frigate.sources.matrix import import_matrix
from frigate.sources.osm.importer import osm_city
from frigate.sources.osm.tags import DRIVABLE
from frigate.sources.sumo.importer import import_sumo
from frigate.sources.tables.importer import attach_readings, import_tables
from frigate.training.checkpoint import load_run
from frigate.training.run import Run

import_app = typer.Typer(**PLAIN, help="Make a city folder from other data.")
export_app = typer.Typer(**PLAIN, help="Write a city, or a run's forecast, for other programs.")

OURS = ("node_id", "lon", "lat", "source", "target", "length_m", *ATTRIBUTES)  # columns of nodes and roads

Output = Annotated[Path, typer.Option("-o", "--output", metavar="CITY", help="The city folder to write.")]
Columns = Annotated[str, typer.Option("--map", help="Column names: theirs=ours, separated by commas.")]
Step = Annotated[str | None, typer.Option(help="Time between snapshots, such as 5min.")]
Zone = Annotated[str | None, typer.Option(help="The city's time zone, such as Europe/Luxembourg.")]
On = Annotated[str, typer.Option(help="What a node is: nodes (intersections) or roads (road segments).")]
Quantity = Annotated[str, typer.Option(help="count (summed) or a gauge such as speed.")]
Unit = Annotated[str, typer.Option(help="Unit of the values, for display.")]
Name = Annotated[str | None, typer.Option(help="Name of the city.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Write CSV tables instead of Parquet.")]
Readings = Annotated[Path | None, typer.Option(help="Table of readings: time, value, and a node, a sensor or a place.")]
Sensors = Annotated[Path | None, typer.Option(help="Table of sensors: sensor_id, and node_id or lon, lat.")]
Snap = Annotated[float | None, typer.Option(metavar="METRES", help="Attach sensors to the nearest within so far.")]
DateOrder = Annotated[str | None, typer.Option(help="Order of 03/04/2024, where no value decides: dmy or mdy.")]
Encoding = Annotated[str, typer.Option(help="Of text tables, such as latin-1.")]
Rejected = Annotated[Path | None, typer.Option("--report", help="Write the rows that could not be used, as CSV.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `frigate train` wrote.")]
Sample = Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Also write inputs, and their forecast.")]
OtherCity = Annotated[Path | None, typer.Option("--city", help="Use this city instead of the run's own.")]


def written(city: City, output: Path, *, csv: bool) -> None:
    """Write the city with the features of its roads in its cache, and say what came of it."""
    with err.status(f"Writing {escape(str(output))}"):
        write_city(city, output, csv=csv)
        ensure_road_features(read_city(output))  # so that a bare machine can train on it
    notice(*city.notices)
    stream = city.stream
    had = (
        f"{stream.num_snapshots} snapshots, sensors at {int(stream.sensors.sum())}"
        if stream.num_snapshots
        else "no readings"
    )
    say(f"{stream.num_nodes} nodes, {city.network.num_edges} roads, {had}: {output}")


def parse_map(text: str, *, known: tuple[str, ...] = ()) -> dict[str, str]:
    """{"src": "source", ...} from "src=source,...": theirs to ours. With `known`, ours has to be one of them."""
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        theirs, equals, ours = (word.strip() for word in part.partition("="))
        if not (theirs and equals and ours):
            raise SettingsError(f'--map "{part}": write theirs=ours, such as src=source,dst=target')
        if known and ours not in known:
            close = get_close_matches(ours, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"ours are {', '.join(known)}"
            raise SettingsError(f'--map "{part}": {ours} is not a column that is read; {hint}')
        pairs[theirs] = ours
    return pairs


@import_app.command("matrix")
def matrix_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A matrix [time, node]: .npz, .npy, .h5, wide .csv.")],
    nodes: Annotated[Path, typer.Option(help="Table of nodes: node_id, lon, lat.")],
    edges: Annotated[Path, typer.Option(help="Table of roads: source, target [, length_m, road_class, ...].")],
    output: Output,
    values: Annotated[str | None, typer.Option(help="Name of the matrix in the file.")] = None,
    time: Annotated[str | None, typer.Option(help="Name of the array of times in the file.")] = None,
    valid: Annotated[str | None, typer.Option(help="Name of the array of which rows or cells are valid.")] = None,
    start: Annotated[str | None, typer.Option(help="Time of the first row, where the file has no times.")] = None,
    step: Step = None,
    timezone: Zone = "UTC",
    columns: Columns = "",
    quantity: Quantity = "count",
    unit: Unit = "",
    name: Name = None,
    csv: AsCsv = False,
) -> None:
    """A matrix of readings with a table of nodes and a table of roads."""
    with err.status(f"Importing {escape(str(file))}"):
        city = import_matrix(
            file, values=values, time=time, valid=valid, start=start, step=step, timezone=timezone or "UTC",
            nodes=nodes, edges=edges, rename=parse_map(columns, known=OURS), quantity=quantity, unit=unit,
            name=name or output.resolve().name,
        )  # fmt: skip
    written(city, output, csv=csv)


@import_app.command("osm")
def osm_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=".osm.pbf, .osm, .osm.gz, Overpass JSON or GraphML.")],
    output: Output,
    readings: Readings = None,
    sensors: Sensors = None,
    snap: Snap = None,
    columns: Columns = "",
    step: Step = None,
    timezone: Zone = "UTC",
    date_order: DateOrder = None,
    encoding: Encoding = "utf-8",
    quantity: Quantity = "count",
    unit: Unit = "",
    highways: Annotated[
        str | None, typer.Option(help="Values of the tag highway that are roads, with commas between.")
    ] = None,
    keep_all: Annotated[bool, typer.Option(help="Keep roads outside the largest strongly connected part.")] = False,
    on: On = "nodes",
    name: Name = None,
    report: Rejected = None,
    csv: AsCsv = False,
) -> None:
    """Drivable roads of OpenStreetMap, simplified to intersections; with a table of readings, a whole city."""
    named = name or output.resolve().name
    wanted = DRIVABLE if highways is None else frozenset(filter(None, (word.strip() for word in highways.split(","))))
    with err.status(f"Importing {escape(str(file))}"):
        city, roads = osm_city(
            file, name=named, step=step or "5min", timezone=timezone or "UTC", highways=wanted, keep_all=keep_all, on=on
        )
        if readings is not None:
            city = attach_readings(
                city, readings, sensors=sensors, roads=roads, rename=parse_map(columns), snap_m=snap, step=step,
                timezone=timezone, date_order=date_order, encoding=encoding, quantity=quantity, unit=unit,
                report=report,
            )  # fmt: skip
    written(city, output, csv=csv)


@import_app.command("tables")
def tables_command(
    output: Output,
    nodes: Annotated[Path | None, typer.Option(help="Table of nodes: node_id, lon, lat.")] = None,
    edges: Annotated[Path | None, typer.Option(help="Table of roads: source, target or a geometry.")] = None,
    network: Annotated[Path | None, typer.Option(metavar="CITY", help="Use this city's network.")] = None,
    readings: Readings = None,
    sensors: Sensors = None,
    snap: Snap = None,
    columns: Columns = "",
    step: Step = None,
    timezone: Zone = None,
    date_order: DateOrder = None,
    encoding: Encoding = "utf-8",
    quantity: Quantity = "count",
    unit: Unit = "",
    on: On = "nodes",
    name: Name = None,
    report: Rejected = None,
    csv: AsCsv = False,
) -> None:
    """Your own tables of nodes, roads and readings, in any column names and common time formats."""
    with err.status("Importing tables"):
        city = import_tables(
            nodes=nodes, edges=edges, readings=readings, network=network, sensors=sensors, rename=parse_map(columns),
            snap_m=snap, step=step, timezone=timezone, date_order=date_order, encoding=encoding, quantity=quantity,
            unit=unit, on=on, name=name or output.resolve().name, report=report,
        )  # fmt: skip
    written(city, output, csv=csv)


@import_app.command("traces")
def traces_command(
    files: Annotated[list[Path], typer.Argument(metavar="TRACES...", help="Tables of positions, CSV or Parquet.")],
    network: Annotated[Path, typer.Option(metavar="CITY", help="The city whose roads were driven.")],
    output: Output,
    columns: Columns = "",
    step: Step = None,
    timezone: Zone = None,
    sigma: Annotated[float | None, typer.Option(metavar="METRES", help="Spread of positions about their road.")] = None,
    beta: Annotated[
        float | None, typer.Option(metavar="METRES", help="Scale of route against straight distance.")
    ] = None,
    max_gap: Annotated[float, typer.Option(metavar="SECONDS", help="Cut traces at longer gaps.")] = 240.0,
    radius: Annotated[float, typer.Option(metavar="METRES", help="Consider roads within this distance.")] = 50.0,
    workers: Annotated[int, typer.Option(min=1, help="Threads on this machine.")] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray (extra: cluster).")] = "local",
    on: On = "nodes",
    name: Name = None,
    csv: AsCsv = False,
) -> None:
    """GPS positions (vehicle, time, lon, lat) matched to roads: vehicles passing each node in each step."""
    from frigate.sources.traces.importer import import_traces  # its compiler takes a second to load

    with bar("Matching") as update:
        city = import_traces(
            files, read_city(network), rename=parse_map(columns), step=step or "5min", timezone=timezone, sigma_m=sigma,
            beta_m=beta, max_gap_s=max_gap, radius_m=radius, workers=workers, engine=engine, on=on,
            name=name or output.resolve().name, on_progress=update,
        )  # fmt: skip
    written(city, output, csv=csv)


@import_app.command("sumo")
def sumo_command(
    net: Annotated[Path, typer.Argument(metavar="NET", help="net.xml, plain or gzip.")],
    output: Output,
    edgedata: Annotated[list[Path] | None, typer.Option(help="Edge data. May be repeated.")] = None,
    detectors: Annotated[list[Path] | None, typer.Option(help="E1 loops and what they wrote. May be repeated.")] = None,
    start: Annotated[list[str] | None, typer.Option(help="When second 0 is: for all files, or for each.")] = None,
    step: Step = None,
    timezone: Zone = "UTC",
    on: On = "nodes",
    name: Name = None,
    csv: AsCsv = False,
) -> None:
    """A SUMO network, with counts from edge data or induction loops."""
    begins = "2024-01-01T00:00" if not start else start[0] if len(start) == 1 else start
    with err.status(f"Importing {escape(str(net))}"):
        city = import_sumo(
            net, edgedata=edgedata or (), detectors=detectors or (), on=on, start=begins, timezone=timezone or "UTC",
            step=step, name=name or output.resolve().name,
        )  # fmt: skip
    written(city, output, csv=csv)


@import_app.command("benchmark")
def benchmark_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The files under their usual names.")],
    output: Output,
    feature: Annotated[str | None, typer.Option(help="Of several, such as flow or speed.")] = None,
    timezone: Zone = None,
    length_unit: Annotated[
        str | None, typer.Option(help="Of the distances, in place of the kind's: m, km, mi.")
    ] = None,
    zeros: Annotated[str | None, typer.Option(help="What a 0 is, in place of the kind's rule: missing, kept.")] = None,
    name: Name = None,
    csv: AsCsv = False,
) -> None:
    """A data set of the field, as its publishers give it."""
    with err.status(f"Importing {escape(str(folder))}"):
        city = import_benchmark(
            kind, files=folder, name=name or output.resolve().name, feature=feature, timezone=timezone,
            length_unit=length_unit, zeros=zeros,
        )  # fmt: skip
    written(city, output, csv=csv)


@export_app.command("libcity")
def libcity_command(
    city: Annotated[Path, typer.Argument(metavar="CITY", help="A city folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="The folder to write.")],
) -> None:
    """LibCity's atomic files: .geo, .rel, .dyna and config.json."""
    with err.status(f"Writing {escape(str(output))}"):
        lost = export_libcity(read_city(city), output)
    notice(*lost)
    say(f"Atomic files: {output}")


@export_app.command("program")
def program_command(
    run: RunFolder,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.pt2", help="The program to write.")],
    sample: Sample = None,
    city: OtherCity = None,
) -> None:
    """A run's forecast as a torch.export program: torch alone runs it, on networks of any size."""
    _exported(export_program, load_run(run), output, sample, city)


@export_app.command("onnx")
def onnx_command(
    run: RunFolder,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.onnx", help="The model to write.")],
    sample: Sample = None,
    city: OtherCity = None,
) -> None:
    """A run's forecast as ONNX, on networks of any size. Needs the extra: export."""
    _exported(export_onnx, load_run(run), output, sample, city)


def _exported(
    export: Callable[[Run, Path, City | None], Exported], run: Run, output: Path, sample: Path | None, city: Path | None
) -> None:
    with err.status(f"Exporting and comparing with the model: {escape(str(output))}"):
        other = None if city is None else open_city(city)
        made = export(run, output, other)
        held = None if sample is None else write_sample(run, sample, other)
    say(made.summary())
    if held is not None:
        say(f"Its inputs at the end of {(other or run.trained_on).name}, and their forecast: {held}")
