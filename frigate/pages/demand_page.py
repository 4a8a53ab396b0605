"""Writes the demand of a city: on the map page, as GeoJSON or as Parquet."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import HOUR_S, KINDS_OF_DAY
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.demand.count_profiles import week_mean
from frigate.demand.estimate import Demand
from frigate.demand.flows import Through, road_columns, road_features_geojson
from frigate.errors import SettingsError
from frigate.pages import panels
from frigate.pages.layers import VEHICLES_PER_HOUR, Colours, Layer, Unit, Values
from frigate.pages.map_data import network_container, road_text
from frigate.pages.map_page import History, HistoryLine, MapPage, Place, write_map_page
from frigate.pages.panels import Block, Panel
from frigate.pages.trips import trips_meta
from frigate.pages.wire import rounded
from frigate.reading.files import write_file
from frigate.text import percent, three_digits

SUFFIXES = (".html", ".geojson", ".parquet")
LISTED = 10  # rows of each table
HOUR = 17  # shown first
DROPPED_BITS = 15  # of the 23 bits of a float32 mantissa: values are within 0.2 %
RIGHT = 0.15  # an estimate as near to the count as this share of it, or
RIGHT_VEHICLES = 1.0  # as this number in an hour, is right
FIT = Unit("estimate at sensors")
FITS = ("right: within 15 % or 1 vehicle", "too high", "too low")


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
        if path.suffix.lower() == ".html":
            write_map_page(path, _page(demand, city, through))
        else:
            write_file(path, _table(path.suffix.lower(), demand))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}. Choose a writable folder") from None
    return path


def _table(form: str, demand: Demand) -> str | bytes:
    if form == ".geojson":
        return json.dumps(road_features_geojson(demand))
    import polars as pl

    file = io.BytesIO()
    pl.DataFrame(road_columns(demand)).write_parquet(file)
    return file.getvalue()


def _page(demand: Demand, city: City, through: Through | None) -> MapPage:
    network = demand.network
    container = network_container(
        network,
        city.stream,
        demand.sensors,
        name=city.name,
        horizon=0,
        has_demand=True,
        detectors=city.detectors,
    )
    sensors = np.flatnonzero(demand.sensors)
    counted, estimated = (_per_hour(of[:, sensors], demand) for of in (demand.usual_counts, demand.node_flow))
    lines = (
        HistoryLine("counted", "observed", counted, sensors),
        HistoryLine("estimated", "forecast", estimated, sensors),
    )
    layers = _layers(demand, Values(fit_classes(counted, estimated), FIT, Colours("fit", (0.5, 1.5), FITS), at=sensors))
    if through is not None:
        layers.insert(0, _through_layer(through, network))
    return MapPage(
        title="who drives where",
        network=container,
        layers=tuple(layers),
        panels=(_flows_panel(demand, through), _sensors_panel(demand)),
        place=Place(
            _intro(network),
            History("Counted and estimated", VEHICLES_PER_HOUR, lines, kinds=KINDS_OF_DAY, compare=True),
            trips=None if through is None else trips_meta(through, network, hour=HOUR),
        ),
        open_frame=HOUR,
        select=None if through is None else {"node" if through.is_node else "road": through.row},
    )


def _per_hour(flow: NDArray[np.floating], demand: Demand) -> NDArray[np.float32]:
    return rounded(flow * (HOUR_S / demand.step_s), DROPPED_BITS)


# Layers


def fit_classes(counted: NDArray[np.float32], estimated: NDArray[np.float32]) -> NDArray[np.float32]:
    """[K,V] the class of each estimate, an index into FITS."""
    off = estimated - counted
    right = np.abs(off) <= np.maximum(RIGHT * counted, RIGHT_VEHICLES)
    return np.where(right, 0, np.where(off > 0, 1, 2)).astype(np.float32)


def _layers(demand: Demand, fit: Values) -> list[Layer]:
    """The flow of all trips, and how well it fits the counts.

    In a city on roads the map draws nodes, which are roads: the flow is that of the nodes.
    """
    colours = Colours("flow", group="all trips")
    roads = Values(
        _per_hour(demand.road_flow, demand),
        VEHICLES_PER_HOUR,
        colours,
        spread=rounded(demand.road_spread, DROPPED_BITS),
    )
    nodes = fit
    if len(demand.network.lines):
        spread = rounded(demand.node_spread, DROPPED_BITS)
        nodes = Values(_per_hour(demand.node_flow, demand), VEHICLES_PER_HOUR, colours, spread=spread)
    return [
        Layer("flow", "All trips", roads, nodes, kinds=KINDS_OF_DAY),
        Layer("fit", "Estimates at sensors", None, fit, kinds=KINDS_OF_DAY),
    ]


def _through_layer(through: Through, network: RoadNetwork) -> Layer:
    colours = Colours("flow", group="through")
    roads, nodes = (
        Values(rounded(of, DROPPED_BITS), VEHICLES_PER_HOUR, colours) for of in (through.road_flow, through.node_flow)
    )
    title = f"Trips through {_name(through, network)['text']}"
    return Layer("through", title, roads, nodes if len(network.lines) else None, kinds=KINDS_OF_DAY)


# Panels


def _intro(network: RoadNetwork) -> tuple[Block, ...]:
    one = "a road" if len(network.lines) else "a road or a sensor"
    return (
        panels.heading("Every road, every hour"),
        panels.city_facts(),
        panels.words(f"Click {one} to see its day. At a sensor, the counts are compared with the estimate."),
        panels.words("The two directions of a street are drawn side by side.", style="note"),
    )


def _flows_panel(demand: Demand, through: Through | None) -> Panel:
    network = demand.network
    sensors = int(demand.sensors.sum())
    nodes = int(network.present.sum())
    roads, places = ("turns", "roads") if len(network.lines) else ("roads", "intersections")
    blocks = [
        panels.heading("Who drives where"),
        panels.words(
            f"Estimated trips on {network.num_edges:,} {roads}, fitted to the counts at {sensors:,} of {nodes:,} "
            f"{places}."
        ),
    ]
    if through is not None:
        blocks += [
            panels.heading("Trips through one road", level=3),
            panels.items([(_name(through, network), f"{through.vehicles_per_day:,.0f} vehicles a day")]),
            panels.words("The map shows where they start and end, and which roads they take."),
        ]
    blocks += [
        panels.heading("The busiest roads", level=3),
        panels.words(
            f"Vehicles per day, averaged over the week. The range is one standard deviation over {len(demand.sets)} "
            "route sets: how much the estimate depends on which trips were sampled."
        ),
        panels.table("The busiest roads", ["road", "vehicles a day"], _busiest(demand)),
    ]
    return Panel("flows", "Flows", tuple(blocks))


def _name(through: Through, network: RoadNetwork) -> panels.Link:
    if through.is_node:
        return panels.node(str(network.node_ids[through.row]), through.row)
    return panels.road(road_text(network, through.row), through.row)


def _busiest(demand: Demand) -> list[list[panels.Cell]]:
    """Roads with the most vehicles per day: the estimate, and the range of one standard deviation."""
    network = demand.network
    of_nodes = len(network.lines) > 0
    daily = _daily(demand.node_flow if of_nodes else demand.road_flow, demand.step_s)
    factor = np.exp(demand.node_spread if of_nodes else demand.road_spread)
    rows = np.argsort(-daily)[:LISTED].tolist()
    names = [
        panels.node(str(network.node_ids[row]), row) if of_nodes else panels.road(road_text(network, row), row)
        for row in rows
    ]
    ranges = [f"{three_digits(daily[e] / factor[e])} to {three_digits(daily[e] * factor[e])}" for e in rows]
    values = [{"text": three_digits(daily[e]), "small": span} for e, span in zip(rows, ranges, strict=True)]
    return [list(row) for row in zip(names, values, strict=True)]


def _sensors_panel(demand: Demand) -> Panel:
    blocks = (
        panels.heading("Where counts and estimates differ most"),
        panels.words(
            f"The hourly estimates at the sensors are off by {percent(demand.fit)} of their mean count. A sensor with "
            "a large difference may be faulty, or a road may be missing from the map."
        ),
        panels.layer_buttons({"fit": "Show all sensors on the map"}),
        panels.table(
            "Where counts and estimates differ most",
            ["sensor", "counted a day", "estimated a day", "difference"],
            _worst(demand),
        ),
    )
    return Panel("sensors", "Sensors", blocks)


def _worst(demand: Demand) -> list[list[panels.Cell]]:
    """Sensors whose count and estimate differ most, in vehicles per day."""
    counted, estimated = (_daily(of, demand.step_s) for of in (demand.usual_counts, demand.node_flow))
    off = np.where(demand.sensors, np.abs(counted - estimated), -1)
    rows = np.argsort(-off)[: min(LISTED, int(demand.sensors.sum()))].tolist()
    return [
        [
            panels.node(str(demand.network.node_ids[n]), n),
            three_digits(counted[n]),
            three_digits(estimated[n]),
            f"{estimated[n] - counted[n]:+,.0f}".replace("-", "−"),
        ]
        for n in rows
    ]


def _daily(per_step: NDArray[np.floating], step_s: int) -> NDArray[np.float64]:
    """Vehicles per day, averaged over the week, from [K,...] vehicles per step."""
    daily: NDArray[np.float64] = np.asarray(week_mean(per_step), np.float64) * (24 * HOUR_S / step_s)
    return daily
