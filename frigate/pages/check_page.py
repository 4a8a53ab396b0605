"""`frigate check --html`: a city on the map page, with its sensors, their means, gaps and faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.check.city import CheckReport
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.pages import panels
from frigate.pages.check_panels import changes_panel, conflicts_panel, notices_panel, overview_panel, sensors_panel
from frigate.pages.city_record import Usual, changing_nodes, changing_roads, every_road, road_changes, usual
from frigate.pages.layers import Colours, Layer, Unit, Values
from frigate.pages.map_data import network_container
from frigate.pages.map_page import MapPage, Place, form, write_map_page
from frigate.pages.panels import Block
from frigate.roads.nearest_sensors import hops_to
from frigate.text import duration, format_time, three_digits

MISSING = (1, 5, 20, 50)
HOPS = (1.5, 2.5, 3.5, 5.5, 10.5)
HOPS_TEXTS = ("1", "2", "3", "4 or 5", "6 to 10", "more")
APART = (-66.7, -50, -33.3, 50, 100, 200)  # percent
APART_TEXTS = (
    "under a third",
    "a third to a half",
    "a half to two thirds",
    "as the others say",
    "1.5 to 2 times",
    "2 to 3 times",
    "over 3 times",
)
ONE_VEHICLE = 1.0  # an hour, added to both: nothing is infinitely many times as much
FOR_A_TIME, LASTING = 0, 1  # classes of roads that change
RECORD = "The whole record"


def write_check_page(path: str | Path, city: City, report: CheckReport) -> Path:
    """Write the page about a city.

    Parameters
    ----------
    path
        File to write; its folder is created.
    city
        The city.
    report
        Result of `check_city`.

    Returns
    -------
    Path
        The file.
    """
    form()
    every = every_road(city.stream)
    means = usual(city.stream)
    changes = road_changes(city.stream)
    shown = [overview_panel(city, report, means)]
    if report.sensors:
        shown.append(sensors_panel(city, report))
    if report.conflicts is not None:
        shown.append(conflicts_panel(city, report.conflicts))
    if changes:
        shown.append(changes_panel(city, changes, every))
    shown.append(notices_panel(report))
    container = network_container(
        every,
        city.stream,
        city.stream.sensors,
        name=city.name,
        horizon=0,
        has_demand=False,
        detectors=city.detectors,
    )
    page = MapPage(
        title="data check",
        network=container,
        layers=tuple(_layers(city, report, means, every)),
        panels=tuple(shown),
        place=Place(_intro(city), remarks=_remarks(city, report)),
    )
    return write_map_page(path, page)


def _intro(city: City) -> tuple[Block, ...]:
    one = "a road" if len(city.network.lines) else "an intersection or a road"
    return (
        panels.heading("Every place"),
        panels.city_facts(),
        panels.words(f"Click {one}, or search for one. Sensors are squares."),
    )


def _remarks(city: City, report: CheckReport) -> dict[int, list[str]]:
    """Sentences about the sensors with faults or gaps."""
    remarks: dict[int, list[str]] = {}
    rows = city.network.rows_of(sensor.node_id for sensor in report.by_sensor)
    for row, sensor in zip(rows.tolist(), report.by_sensor, strict=True):
        said = [f"Possible fault: {fault}." for fault in sensor.faults]
        if sensor.longest_gap and sensor.gap_from is not None:
            gap = duration(sensor.longest_gap * report.step_s)
            said.append(f"The longest gap is {gap}, from {format_time(sensor.gap_from)}.")
        if said:
            remarks[row] = said
    for each in () if report.conflicts is None else report.conflicts.doubted:
        row = city.network.row_of(each.node_id)
        words = f"Counts {three_digits(each.counted)} vehicles an hour"
        if each.expected is not None:
            words += f", and the other sensors say {three_digits(each.expected)} (GEH {each.geh:.0f})"
        remarks.setdefault(row, []).append(f"{words}{': left out of demand' if each.contradicted else ''}.")
    return remarks


def _layers(city: City, report: CheckReport, means: Usual, every: RoadNetwork) -> list[Layer]:
    stream = city.stream
    rows = city.network.rows_of(sensor.node_id for sensor in report.by_sensor)
    faulty = np.array([bool(sensor.faults) for sensor in report.by_sensor], bool)
    missing = np.full(stream.num_nodes, np.nan, np.float32)
    missing[rows] = [100 * sensor.missing_share for sensor in report.by_sensor]

    def of_nodes(values: NDArray[np.floating], unit: Unit, colours: Colours) -> Values:
        return Values(values.astype(np.float32)[None], unit, colours)

    layers = [
        Layer(
            "mean",
            f"Mean {stream.quantity} at each sensor",
            nodes=of_nodes(means.of_node, Unit.of(stream), Colours("flow")),
            note=RECORD,
            crossed=rows[faulty],
            crossed_text="dead, stuck or silent" if faulty.any() else "",
        )
    ]
    if report.sensors:
        colours = Colours("error", MISSING)
        layers.append(
            Layer("missing", "Readings missing", nodes=of_nodes(missing, Unit("% missing"), colours), note=RECORD)
        )
    if report.sensors and (city.network.present & ~stream.sensors).any():
        hops = hops_to(city.network, stream.sensors).astype(float)
        hops[hops <= 0] = np.nan
        nodes = of_nodes(hops, Unit(report.link_word), Colours("error", HOPS, HOPS_TEXTS))
        layers.append(
            Layer(
                "distance",
                f"{report.link_word.capitalize()} to the nearest sensor",
                nodes=nodes,
                note="In either direction",
            )
        )
    conflicts = _conflicts_layer(city, report)
    layers += [] if conflicts is None else [conflicts]
    changing = _changing_layer(city, every)
    return layers if changing is None else [*layers, changing]


def _conflicts_layer(city: City, report: CheckReport) -> Layer | None:
    """Each sensor's count against what the others say of it."""
    if report.conflicts is None or not any(each.geh is not None for each in report.conflicts.sensors):
        return None
    times = np.full(city.stream.num_nodes, np.nan, np.float32)
    rows = city.network.rows_of(each.node_id for each in report.conflicts.sensors)
    for row, each in zip(rows.tolist(), report.conflicts.sensors, strict=True):
        if each.expected is not None:
            times[row] = 100 * (each.counted + ONE_VEHICLE) / (each.expected + ONE_VEHICLE) - 100
    left_out = np.array([each.contradicted for each in report.conflicts.sensors], bool)
    return Layer(
        "conflicts",
        "Counts against what the other sensors say",
        nodes=Values(times[None], Unit("% more than the others say"), Colours("change", APART, APART_TEXTS)),
        note="Mean over the week",
        crossed=rows[left_out],
        crossed_text="left out of demand" if left_out.any() else "",
    )


def _changing_layer(city: City, every: RoadNetwork) -> Layer | None:
    """What closes or opens within the record. A city on roads has roads as nodes, and turns that close alone."""
    roads = changing_roads(city.stream, every)
    if not roads.any.any():
        return None
    on_roads = len(every.lines) > 0
    marked = changing_nodes(city.stream) if on_roads else roads
    alone = roads.any & ~(marked.any[every.senders] | marked.any[every.receivers]) if on_roads else None
    kinds = np.full(len(marked.any), np.nan, np.float32)
    kinds[marked.for_a_time] = FOR_A_TIME
    kinds[marked.lasting] = LASTING
    texts = (
        f"closed or open for a time: {int(marked.for_a_time.sum()):,}",
        f"different at the end than at the start: {int(marked.lasting.sum()):,}",
    )
    values = Values(kinds[None], Unit("roads that are not always open"), Colours("kind", (0.5,), texts))
    turns = 0 if alone is None else int(alone.sum())
    return Layer(
        "changes",
        "Roads that change",
        roads=None if on_roads else values,
        nodes=values if on_roads else None,
        note=RECORD,
        crossed_roads=None if alone is None else np.flatnonzero(alone),
        crossed_text=f"turns that close or open alone: {turns:,}" if turns else "",
    )
