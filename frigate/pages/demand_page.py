"""Writes the demand of a city as a page with a map of road flows by hour, as GeoJSON or as Parquet."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import HOUR_S, KINDS_OF_DAY
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.demand.count_profiles import week_mean
from frigate.demand.estimate import Demand
from frigate.demand.flows import Through, road_columns, road_features_geojson
from frigate.errors import SettingsError
from frigate.pages.page import render
from frigate.pages.road_map import RoadLayer, RoadMap, SensorFit, Symbols, named_road, road_lines_data
from frigate.reading.files import write_file

SUFFIXES = (".html", ".geojson", ".parquet")
LISTED = 10  # rows of each table
UNIT = "vehicles per hour"


def check_suffix(path: Path) -> None:
    """Refuse a file name with an unknown suffix."""
    if path.suffix.lower() not in SUFFIXES:
        given = f'unknown suffix "{path.suffix}"' if path.suffix else "the file name has no suffix"
        raise SettingsError(f"{path}: {given}. Use {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")


def write_flows(path: str | Path, demand: Demand, city: City, *, through: Through | None = None) -> Path:
    """Write the flow on every road by kind of day and hour.

    Parameters
    ----------
    path
        File to write: .html is a page with a map, .geojson has a line for each road, .parquet is a long table.
    demand
        Demand on the city's network.
    city
        Gives the roads, their names and the step.
    through
        Trips that use a road (`frigate.demand.flows.trips_through`), to show on the page.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    check_suffix(path)
    try:
        write_file(path, _file(path.suffix.lower(), demand, city, through))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}. Choose a writable folder") from None
    return path


def _file(form: str, demand: Demand, city: City, through: Through | None) -> str | bytes:
    if form == ".html":
        return _page(demand, city, through)
    if form == ".geojson":
        return json.dumps(road_features_geojson(demand))
    import polars as pl

    file = io.BytesIO()
    pl.DataFrame(road_columns(demand)).write_parquet(file)
    return file.getvalue()


def _page(demand: Demand, city: City, through: Through | None) -> str:
    network = demand.network
    per_hour = HOUR_S / demand.step_s
    flow = demand.road_flow * per_hour
    sensors = np.flatnonzero(demand.sensors)
    fit = SensorFit(sensors, *((x[:, sensors] * per_hour) for x in (demand.usual_counts, demand.node_flow)))
    layer = RoadLayer.of_flow("all trips", flow, UNIT)
    flow_map = RoadMap(
        title=f"Trips through {named_road(network, through.row)}" if through else "Estimated flow on every road",
        network=network,
        layers=(layer,) if through is None else (_layer_through(through), layer),
        kinds=KINDS_OF_DAY,
        spread=demand.road_spread,
        sensors=fit,
        marked=() if through is None else (through.row,),
        mark="the selected road",
        symbols=() if through is None else _ends(through),
    )
    return render(
        "demand.html.j2",
        city=city.name,
        roads=network.num_edges,
        nodes=int(network.present.sum()),
        sensors=len(sensors),
        sets=len(demand.sets),
        fit=demand.fit,
        map=flow_map,
        lines=road_lines_data(network),
        busiest=_busiest(demand),
        worst=_worst(demand),
        through=None if through is None else _movements(through, demand.network),
    )


def _layer_through(through: Through) -> RoadLayer:
    return RoadLayer.of_flow("trips through the selected road", through.road_flow, UNIT)


def _ends(through: Through) -> tuple[Symbols, ...]:
    def symbols(shape: str, text: str, number: NDArray[np.float64]) -> Symbols:
        at = np.flatnonzero(number > 0)
        return Symbols(shape, text, at, number[at])

    return symbols("round", "trips start", through.starting), symbols("diamond", "trips end", through.ending)


def _daily(per_step: NDArray[np.floating], step_s: int) -> NDArray[np.float64]:
    """Vehicles per day, averaged over the week, from [K,...] vehicles per step."""
    daily: NDArray[np.float64] = np.asarray(week_mean(per_step), np.float64) * (24 * HOUR_S / step_s)
    return daily


def _busiest(demand: Demand) -> list[tuple[str, float, float, float]]:
    """Roads with the most vehicles per day: name, estimate, and the range of one standard deviation."""
    daily = _daily(demand.road_flow, demand.step_s)
    factor = np.exp(demand.road_spread)
    rows = np.argsort(-daily)[:LISTED].tolist()
    return [(named_road(demand.network, e), daily[e], daily[e] / factor[e], daily[e] * factor[e]) for e in rows]


def _worst(demand: Demand) -> list[tuple[Any, float, float]]:
    """Sensors whose count and estimate differ most: id, vehicles per day counted and estimated."""
    measured, estimated = (_daily(x, demand.step_s) for x in (demand.usual_counts, demand.node_flow))
    off = np.where(demand.sensors, np.abs(measured - estimated), -1)
    rows = np.argsort(-off)[: min(LISTED, int(demand.sensors.sum()))].tolist()
    return [(demand.network.node_ids[n], measured[n], estimated[n]) for n in rows]


def _movements(through: Through, network: RoadNetwork) -> dict[str, Any]:
    ends = network.node_ids[[network.senders, network.receivers]].T.tolist()
    row_of = {(a, b): row for row, (a, b) in enumerate(ends)}
    listed = [
        (named_road(network, row_of[m.origin]), named_road(network, row_of[m.destination]), m.vehicles_per_day)
        for m in through.movements[:LISTED]
    ]
    return {
        "road": named_road(network, through.row),
        "total": through.vehicles_per_day,
        "movements": len(through.movements),
        "listed": listed,
    }
