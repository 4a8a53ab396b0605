"""`frigate check --html`: one offline page with a city's network, its sensors, their means, gaps and faults.

The page of a large city stays at a few megabytes: the maps leave out minor roads and some nodes, and sensors share rows
of the gap chart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.check.city import CheckReport
from frigate.check.sensors import SensorCheck
from frigate.city.city import City
from frigate.city.network import NodeId, RoadNetwork
from frigate.pages.check_charts import KINDS, Usual, change_map, day_chart, road_changes, usual
from frigate.pages.gap_chart import gap_chart
from frigate.pages.map_data import detector_texts
from frigate.pages.maps import BaseMap, MapLayer, NodeMap, bin_edges, draw_map
from frigate.pages.page import render
from frigate.reading.files import write_file
from frigate.roads.features import class_levels
from frigate.roads.nearest_sensors import hops_to
from frigate.text import percent, unit_text

MAX_ROADS = 40_000  # drawn
MAX_BENT_ROADS = 20_000  # if there are more, all are drawn straight
MAX_NODES = 15_000  # drawn
MAX_LISTED = 20  # rows of a table or list

HOPS = (1.5, 2.5, 3.5, 5.5, 10.5)
HOPS_TEXTS = ("1", "2", "3", "4 or 5", "6 to 10", "more")


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
    path = Path(path)
    write_file(path, _page(city, report))
    return path


def _page(city: City, report: CheckReport) -> str:
    faulty = [sensor for sensor in report.by_sensor if sensor.faults]
    gappy = [sensor for sensor in report.by_sensor if sensor.missing_share > 0 and not sensor.faults]
    network = _drawable(city.network)
    rows = _drawn_nodes(network, [sensor.node_id for sensor in report.by_sensor])
    means = usual(city.stream)
    changes = road_changes(city.stream)
    unit = unit_text(report.quantity, report.unit, report.step_s)
    drawn = [(len(rows), network.num_nodes, "nodes"), (network.num_edges, city.network.num_edges, "roads")]
    return render(
        "check.html.j2",
        report=report,
        gaps=sorted(report.gaps, key=lambda gap: -gap[1])[:MAX_LISTED],
        gap_chart=gap_chart(city.stream, report),
        maps=_maps(city, network, rows, {sensor.node_id: sensor for sensor in report.by_sensor}, means, unit),
        day=day_chart(means, unit) if report.sensors else None,
        kinds=KINDS,
        changes=changes,
        change_map=change_map(BaseMap.of(network), city.stream) if changes else None,
        changes_listed=changes[:MAX_LISTED],
        drawn=drawn if any(shown < total for shown, total, _ in drawn) else [],
        faulty=len(faulty),
        gappy=len(gappy),
        listed=[*faulty, *gappy][:MAX_LISTED],
    )


def _maps(
    city: City,
    network: RoadNetwork,
    rows: NDArray[np.int64],
    checks: Mapping[NodeId, SensorCheck],
    means: Usual,
    unit: str,
) -> list[NodeMap]:
    """A map of the mean reading at each sensor, and one of the distance from other nodes to the nearest sensor."""
    base = BaseMap.of(network)
    found = [checks.get(node_id) for node_id in network.node_ids[rows].tolist()]
    mean = means.of_node[rows]
    layer = MapLayer(
        colours="forecast",
        title=f"{city.name}: mean {city.stream.quantity} at each sensor",
        node_ids=network.node_ids[rows],
        lon=network.lon[rows],
        lat=network.lat[rows],
        sensor=np.array([check is not None for check in found], bool),
        values=mean,
        shapes=(("square", "sensor"), ("round", "no sensor"), ("cross", "dead, stuck or silent")),
        unit=unit,
        edges=tuple(bin_edges(mean, skewed=city.stream.quantity == "count")),
        tips=tuple(
            "no sensor" if check is None else _about(check, value, unit)
            for check, value in zip(found, mean.tolist(), strict=True)
        ),
        crosses=np.array([check is not None and bool(check.faults) for check in found], bool),
        detectors=detector_texts(*city.detectors.at_nodes(city.network.node_ids, network.node_ids[rows])),
    )
    hops = hops_to(city.network, city.stream.sensors)[rows].astype(float)
    hops[hops <= 0] = np.nan
    distance = replace(
        layer,
        colours="error",
        title=f"{city.name}: roads to the nearest sensor",
        values=hops,
        shapes=(("hollow", "sensor"), ("round", "no sensor")),
        unit="roads",
        edges=HOPS,
        bins=HOPS_TEXTS,
        tips=tuple(
            _distance(h) if check is None else "has a sensor" for check, h in zip(found, hops.tolist(), strict=True)
        ),
        crosses=None,
    )
    layers = [layer, distance] if checks and (city.network.present & ~city.stream.sensors).any() else [layer]
    return [draw_map(base, each) for each in layers]


def _about(check: SensorCheck, mean: float, unit: str) -> str:
    return "; ".join((f"{mean:.3g} {unit}", f"{percent(1 - check.missing_share)} observed", *check.faults))


def _distance(hops: float) -> str:
    return "no road to a sensor" if math.isnan(hops) else f"{hops:.0f} road{'s' * (hops > 1)} to the nearest sensor"


def _drawable(network: RoadNetwork) -> RoadNetwork:
    """The network, reduced to its main roads and to straight lines if it is large."""
    edges = network.edges
    if len(edges) > MAX_ROADS:
        level = np.nan_to_num(class_levels(edges.road_class), nan=1.0)
        order = np.lexsort((-edges.length_m, -level))[:MAX_ROADS]
        edges = edges.take(np.sort(order))
    if len(edges) > MAX_BENT_ROADS:
        edges = replace(edges, geometry=np.full(len(edges), b"", np.object_))
    return network.with_roads(edges)


def _drawn_nodes(network: RoadNetwork, sensors: list[NodeId]) -> NDArray[np.int64]:
    """Rows of the nodes to draw: first the sensors, in the given order, then an even sample of the others."""
    if network.num_nodes <= MAX_NODES:
        return np.arange(network.num_nodes)
    first = network.rows_of(sensors[:MAX_NODES])
    others = np.setdiff1d(np.arange(network.num_nodes), network.rows_of(sensors))
    step = math.ceil(len(others) / max(1, MAX_NODES - len(first)))
    return np.sort(np.concatenate([first, others[:: max(1, step)][: MAX_NODES - len(first)]]))
