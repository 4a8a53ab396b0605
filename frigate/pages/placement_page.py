"""Writes a placement: on the map page, or as GeoJSON with a point (on roads: a line) for each site."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.coordinates import line_points
from frigate.errors import SettingsError
from frigate.pages import panels
from frigate.pages.layers import Colours, Layer, Unit, Values
from frigate.pages.map_data import network_container
from frigate.pages.map_page import MapPage, Place, form, write_map_page
from frigate.pages.panels import Block, Cell, Panel
from frigate.planning.placement import Placement, Redundant, Site
from frigate.reading.files import write_file
from frigate.text import percent

SUFFIXES = (".html", ".geojson")
FACTORS = (1.1, 1.25, 1.5, 1.75, 2.0, 3.0)  # classes of the error: the true level is off by up to this factor
LESS = (2.0, 5.0, 10.0, 20.0, 40.0)  # per cent
UNSURE = Unit("times too high or too low")


def check_placement_suffix(path: Path) -> None:
    """Refuse a file name with an unknown suffix, and a page that cannot be written."""
    if path.suffix.lower() not in SUFFIXES:
        given = f'unknown suffix "{path.suffix}"' if path.suffix else "the file name has no suffix"
        raise SettingsError(f"{path}: {given}. Use {' or '.join(SUFFIXES)}")
    if path.suffix.lower() == ".html":
        form()


def write_placement(path: str | Path, placement: Placement, city: City) -> Path:
    """Write the sites, and the sensors that would be missed least.

    Parameters
    ----------
    path
        File to write: .html is a page with a map, .geojson has a point or line for each.
    placement
        What `frigate.planning.place` found.
    city
        Its city.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    check_placement_suffix(path)
    try:
        if path.suffix.lower() == ".html":
            write_map_page(path, _page(placement, city))
        else:
            write_file(path, json.dumps(placement_geojson(placement), ensure_ascii=False))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}. Choose a writable folder") from None
    return path


def placement_geojson(placement: Placement) -> dict[str, Any]:
    """Sites by rank, then sensors to give up."""
    network = placement.network

    def feature(row: int, properties: dict[str, Any]) -> dict[str, Any]:
        place: dict[str, Any] = {"type": "Point", "coordinates": [float(network.lon[row]), float(network.lat[row])]}
        course = line_points((network.lines[row] if len(network.lines) else b"") or b"")
        if len(course) > 1:
            place = {"type": "LineString", "coordinates": course.tolist()}
        return {"type": "Feature", "geometry": place, "properties": properties}

    left_out = {"row", "lon", "lat", "pins"}
    features = []
    groups: dict[str, tuple[Site | Redundant, ...]] = {"site": placement.sites, "redundant": placement.redundant}
    for kind, some in groups.items():
        for rank, each in enumerate(some, start=1):
            facts = {name: value for name, value in vars(each).items() if name not in left_out}
            features.append(feature(each.row, {"kind": kind, "rank": rank} | facts))
    return {"type": "FeatureCollection", "features": features}


def _page(placement: Placement, city: City) -> MapPage:
    network = placement.network
    container = network_container(
        network, city.stream, placement.sensors, name=city.name, horizon=0, has_demand=False, detectors=city.detectors
    )
    return MapPage(
        title="where to count next",
        network=container,
        layers=tuple(_layers(placement)),
        panels=_panels(placement),
        place=Place(_intro(placement), remarks=_remarks(placement)),
    )


def _layers(placement: Placement) -> list[Layer]:
    sites = np.array([site.row for site in placement.sites], np.int64)
    unsure = Values(_factor(placement.error), UNSURE, Colours("error", FACTORS, group="unsure"))
    layers = [Layer("unsure", "How sure the traffic is", nodes=unsure, note="Now")]
    if len(sites):
        after = Values(_factor(placement.error_after), UNSURE, Colours("error", FACTORS, group="unsure"))
        less = 100 * (1 - placement.error_after / placement.error)
        narrowed = Values(less.astype(np.float32)[None], Unit("% less error"), Colours("flow", LESS))
        layers = [
            Layer("sites", "What the new counts tell", nodes=narrowed, note="With all sites"),
            *layers,
            Layer("after", "How sure with the new counts", nodes=after, note="With all sites"),
        ]
        text = f"count here: {len(sites):,}"
        layers = [replace(layer, crossed=sites, crossed_text=text) for layer in layers]
    if placement.redundant:
        rows = np.array([sensor.row for sensor in placement.redundant], np.int64)
        loss = np.array([[100 * sensor.loss for sensor in placement.redundant]], np.float32)
        missed = Values(loss, Unit("% more error without it"), Colours("error"), at=rows)
        layers.append(Layer("redundant", "Sensors missed least", nodes=missed, note="If given up one after another"))
    return layers


def _factor(error: NDArray[np.float64]) -> NDArray[np.float32]:
    """[1,N] by which factor the true level may be off: one standard deviation."""
    return np.exp(error).astype(np.float32)[None]


def _intro(placement: Placement) -> tuple[Block, ...]:
    one = "a road" if len(placement.network.lines) else "an intersection"
    return (
        panels.heading("Where to count next"),
        panels.city_facts(),
        panels.words(f"Click {one} to read what a count there would tell. Sensors are squares."),
    )


def _remarks(placement: Placement) -> dict[int, list[str]]:
    remarks: dict[int, list[str]] = {}
    for rank, site in enumerate(placement.sites, start=1):
        remarks[site.row] = [f"Site {rank}: takes away {percent(site.gain)} of the error. {site.reason}"]
    for rank, sensor in enumerate(placement.redundant, start=1):
        remarks.setdefault(sensor.row, []).append(f"Number {rank} of the sensors missed least. {sensor.reason}")
    return remarks


def _panels(placement: Placement) -> tuple[Panel, ...]:
    found = []
    if placement.sites:
        found.append(Panel("sites", "Sites", tuple(_sites(placement))))
    if placement.redundant:
        found.append(Panel("redundant", "Sensors", tuple(_redundant(placement))))
    return tuple(found)


def _sites(placement: Placement) -> list[Block]:
    curve = placement.curve
    blocks = [
        panels.heading("Where to count next"),
        panels.words(
            f"{len(placement.sites):,} of {placement.candidates:,} candidates. With counts at all of them, "
            f"{percent(curve[-1])} of the present error over the network is left to be expected."
        ),
    ]
    if placement.days is not None:
        blocks.append(panels.words(placement.days.sentence()))
    blocks += [panels.words(text, style="note") for text in placement.notices]
    if len(curve) > 2:
        unit = Unit("% of the present error")
        line = panels.ChartLine("error left", "forecast", [round(100 * left, 2) for left in curve])
        blocks.append(
            panels.chart("Error left, by number of sites", unit, [line], names=[str(k) for k in range(len(curve))])
        )
    blocks += [
        panels.layer_buttons({"sites": "Show what they tell"}),
        panels.table(
            "Sites", ["site", "error taken away"], [[_name(site), percent(site.gain)] for site in placement.sites]
        ),
        _why(placement.sites),
    ]
    return blocks


def _why(places: Sequence[Site | Redundant]) -> Block:
    said = [panels.words(f"{rank}. {place.node}: {place.reason}") for rank, place in enumerate(places, start=1)]
    return panels.details("Why these", *said, is_open=True)


def _name(place: Site | Redundant) -> Cell:
    text = f"{place.node}, {place.street}" if place.street else str(place.node)
    return panels.node(text, place.row)


def _redundant(placement: Placement) -> list[Block]:
    rows = [[_name(each), percent(each.loss)] for each in placement.redundant]
    return [
        panels.heading("Sensors that would be missed least"),
        panels.words("In the order in which to give them up; each loss is counted after those before it are gone."),
        panels.layer_buttons({"redundant": "Show them on the map"}),
        panels.table("Sensors missed least", ["sensor", "more error"], rows),
        _why(placement.redundant),
    ]
