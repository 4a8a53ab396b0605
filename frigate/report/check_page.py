"""`frigate check --html`: one offline page with the network, its sensors, their gaps, and what had to be said.

Built of the report's maps, style sheet and script. Nothing is fetched. What is drawn is bounded, so that a large city
gives a page of a few megabytes: roads and nodes are left out of the maps, sensors share rows of the gap chart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.check.city import CheckReport, lasting_words, percent
from frigate.check.sensors import SensorCheck
from frigate.data.city import City
from frigate.data.network import NodeId, RoadNetwork
from frigate.data.stream import RoadNetworkStream
from frigate.graph.positions import hops_to
from frigate.graph.road_features import class_levels
from frigate.report.gap_chart import gap_chart
from frigate.report.maps import MapProjection, Sheet, draw_map
from frigate.report.words import clock, span

MAX_ROADS = 40_000  # drawn
MAX_BENT_ROADS = 20_000  # drawn with their bends
MAX_NODES = 15_000  # drawn
MAX_LISTED = 20  # sensors in the table

SHARES = (50.0, 80.0, 95.0, 99.0)  # % observed, where the map's colours part
HOPS = (1.5, 2.5, 3.5, 5.5, 10.5)
HOPS_WORDS = ("1", "2", "3", "4 or 5", "6 to 10", "more")

CSS = """
.fault { stroke: var(--s4); stroke-linecap: round }
.key .cross { width: 14px; height: 14px }
.key .cross::before { content: "✕"; color: var(--s4); font: 700 15px/14px sans-serif }
.key .stuck { height: 4px; background: var(--s4) }
.key .blank { border: 1px solid var(--line); background: var(--card) }
.gaps .cell { stroke: var(--s0); shape-rendering: crispEdges }
.gaps .all { opacity: .8 }
.gaps .most { opacity: .55 }
.gaps .some { opacity: .35 }
.gaps .few { opacity: .18 }
.gaps .key .cell { background: var(--s0) }
.gaps svg .back { fill: var(--card) }
.gaps .row { fill: transparent }
.gaps .row:hover { fill: var(--ink); fill-opacity: .12 }
.gaps .stuck { stroke: var(--s4) }
td.left, th.left { text-align: left }
td.words { white-space: normal; text-align: left }
.hops { max-width: 520px }
.hops .bar { width: 60% }
.hops .bar i { display: block; height: 12px; min-width: 1px; border-radius: 3px; background: var(--s0) }
details { margin: 6px 0 10px }
summary { cursor: pointer }
details ul { margin: 6px 0; color: var(--soft) }
"""


def write_check_page(path: str | Path, city: City, report: CheckReport) -> Path:
    """Write the page about a city that was checked, and return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(city, report), encoding="utf-8", errors="replace")
    return path


def _page(city: City, report: CheckReport) -> str:
    sections = (
        ("Where are the sensors?", _maps(city, report)),
        ("How far is the nearest sensor?", _hops_table(report)),
        ("When did they report?", gap_chart(city.stream, report) + _gap_list(report)),
        ("Sensors to look at", _sensor_table(report)),
        ("What had to be said when it was read", _notices(report)),
    )
    body = "".join(f"<section><h2>{title}</h2>{inner}</section>" for title, inner in sections if inner)
    name = escape(report.name)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}: check</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>\n{_file('report.css')}{CSS}</style></head>"
        f"<body><main>{_header(report)}{body}</main><script>\n{_file('report.js')}</script></body></html>\n"
    )


def _file(name: str) -> str:
    return files("frigate.report").joinpath(name).read_text(encoding="utf-8")


# Words


def _header(report: CheckReport) -> str:
    connected = (
        "Every intersection can be reached from every other."
        if report.parts == 1
        else f"{report.parts:,} strongly connected parts, the largest of {report.largest_part:,} nodes"
        + (f"; {len(report.isolated):,} nodes without any road." if report.isolated else ".")
    )
    changes = (
        f"The network changes: {report.topologies:,} forms of it, changed at {report.changes:,} snapshots."
        if report.topologies > 1
        else ""
    )
    absent = f"{report.absent_nodes:,} nodes are not there at the end." if report.absent_nodes else ""
    advice = "".join(f'<p class="verdict">Before training: {escape(words)}.</p>' for words in report.advice)
    return (
        f"<header><h1>{escape(report.name)}: what is in it, and what is wrong with it</h1>"
        f'<p class="lead">{escape(_period(report))}</p>'
        f'<p class="note">{escape(" ".join(filter(None, (connected, changes, absent))))}</p>{_tiles(report)}{advice}'
        "</header>"
    )


def _period(report: CheckReport) -> str:
    if report.first is None or report.last is None:
        return f"No readings yet. A step is {report.step}."
    what = f"{report.quantity}, in {report.unit}," if report.unit else report.quantity
    return (
        f"{what[:1].upper()}{what[1:]} every {span(report.step_s)}, {report.snapshots:,} snapshots from "
        f"{clock(report.first)} to {clock(report.last)} ({report.timezone})."
    )


def _tiles(report: CheckReport) -> str:
    faulty = sum(bool(sensor.faults) for sensor in report.by_sensor)
    tiles = [
        ("Network", f"{report.nodes:,}", f"nodes; {report.roads:,} roads, {report.road_km:,.1f} km"),
        ("Sensors", f"{report.sensors:,}", f"{percent(report.sensor_share)} of the nodes are seen"),
    ]
    if report.sensors:
        seen = percent(report.observed_at_sensors)
        tiles.append(("Observed", seen, f"of the sensors' cells; {percent(report.observed_share)} of all"))
        tiles.append(("Broken?", f"{faulty:,}", "sensors only read 0, are stuck, or fell silent"))
    if report.sensors and report.unseen:
        near = percent(report.unseen_within[3])
        tiles.append(("Without a sensor", f"{report.unseen:,}", f"nodes; {near} have one within 3 roads"))
    return '<div class="tiles">' + "".join(
        f"<div><h3>{escape(title)}</h3><b>{escape(value)}</b><span>{escape(small)}</span></div>"
        for title, value, small in tiles
    ) + "</div>"  # fmt: skip


def _hops_table(report: CheckReport) -> str:
    if not report.sensors:
        return ""
    if not report.unseen:
        return "<p>Every node has a sensor.</p>"
    rows = "".join(
        f'<tr><th>{hops}</th><td class="bar"><i style="width:{100 * share:.1f}%"></i></td>'
        f"<td>{percent(share)}</td></tr>"
        for hops, share in report.unseen_within.items()
    )
    apart = f" {report.unseen_apart:,} are joined to no sensor by any road." if report.unseen_apart else ""
    return (
        f"<p>Of the {report.unseen:,} nodes without a sensor, the share with one within so many roads, directions "
        f'ignored.{apart} The farther, the harder the forecast.</p><table class="hops"><thead><tr><th>roads</th>'
        f'<th class="left">share</th><th></th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _gap_list(report: CheckReport) -> str:
    if not report.gaps:
        return ""
    longest = sorted(report.gaps, key=lambda gap: -gap[1])[:MAX_LISTED]
    items = "".join(f"<li>{clock(start)}, {lasting_words(count * report.step_s)}</li>" for start, count in longest)
    more = f"<li>and {len(report.gaps) - len(longest):,} more</li>" if len(report.gaps) > len(longest) else ""
    title = f"Times without any reading at all: {len(report.gaps):,}"
    return f"<details{' open' * (len(report.gaps) <= 5)}><summary>{title}</summary><ul>{items}{more}</ul></details>"


def _sensor_table(report: CheckReport) -> str:
    faulty = [sensor for sensor in report.by_sensor if sensor.faults]
    gappy = [sensor for sensor in report.by_sensor if sensor.missing_share > 0 and not sensor.faults]
    shown = [*faulty[:MAX_LISTED], *gappy[: MAX_LISTED - len(faulty[:MAX_LISTED])]]
    if not shown:
        return "<p>None: no sensor misses a reading, or looks dead, stuck or silent.</p>" if report.sensors else ""
    rows = "".join(
        f"<tr><th>{escape(str(s.node_id))}</th><td>{percent(s.missing_share)}</td><td>{_gap(s, report)}</td>"
        f'<td class="left">{clock(s.gap_from) if s.gap_from else ""}</td><td class="words">{_faults(s)}</td></tr>'
        for s in shown
    )
    text = (
        f"{len(faulty):,} look broken: {len(report.dead):,} only ever read 0, {len(report.stuck):,} read one value for "
        f"hours, {len(report.silent):,} read nothing in the last tenth of the period. "
        "A quiet road may truly count nothing. "
        f"{len(gappy):,} others miss some readings."
    )
    left = len(faulty) + len(gappy) - len(shown)
    more = f'<p class="note">{left:,} more are in <code>frigate check --json</code>.</p>' if left else ""
    return (
        f'<p>{text}</p><div class="wide"><table><thead><tr><th>sensor</th><th>missing</th><th>longest gap</th>'
        '<th class="left">from</th><th class="left">what is odd</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}"
    )


def _gap(sensor: SensorCheck, report: CheckReport) -> str:
    return lasting_words(sensor.longest_gap * report.step_s) if sensor.longest_gap else "none"


def _faults(sensor: SensorCheck) -> str:
    return escape("; ".join(sensor.faults))


def _notices(report: CheckReport) -> str:
    if not report.notices:
        return "<p>Nothing: every row of its tables was used as it stands.</p>"
    parts = []
    for notice in report.notices:
        places = report.places.get(notice, ())
        items = "".join(f"<li>{escape(place)}</li>" for place in places)
        told = escape(notice)
        parts.append(f"<details><summary>{told}</summary><ul>{items}</ul></details>" if places else f"<p>{told}</p>")
    return "".join(parts)


# Maps


def _maps(city: City, report: CheckReport) -> str:
    network = _drawable(city.network)
    checks = {sensor.node_id: sensor for sensor in report.by_sensor}
    rows = _drawn_nodes(network, checks)
    ids = network.node_ids.tolist()
    plan = MapProjection.of(network)
    sensor = np.array([ids[n] in checks for n in rows.tolist()], bool)
    seen = np.array([100 * (1 - checks[ids[n]].missing_share) if ids[n] in checks else np.nan for n in rows.tolist()])
    faulty = np.array([ids[n] in checks and bool(checks[ids[n]].faults) for n in rows.tolist()], bool)
    said = tuple(
        "no sensor" if ids[n] not in checks
        else "; ".join((f"{percent(1 - checks[ids[n]].missing_share)} observed", *checks[ids[n]].faults))
        for n in rows.tolist()
    )  # fmt: skip
    sheet = Sheet(
        kind="forecast",
        title="Sensors, by the share of their snapshots observed",
        aside="",
        node_ids=network.node_ids[rows],
        lon=network.lon[rows],
        lat=network.lat[rows],
        sensor=sensor,
        frames=seen[None],
        labels=("observed",),
        shapes=(("square", "sensor"), ("round", "no sensor"), ("cross", "dead, stuck or silent")),
        unit="% observed",
        by_factors=False,
        edges=SHARES,
        said=said,
        marks=_crosses(plan, network, rows[faulty]),
    )
    drawn = draw_map(plan, sheet) + (
        _hops_map(plan, sheet, city.stream, rows) if report.sensors and report.unseen else ""
    )
    left = (
        "" if network.num_edges == city.network.num_edges and len(rows) == len(ids) else _left_out(city, network, rows)
    )
    return f'{left}<div class="pair">{drawn}</div>'


def _hops_map(plan: MapProjection, sheet: Sheet, stream: RoadNetworkStream, rows: NDArray[np.int64]) -> str:
    """The nodes without a sensor, by the roads between them and the nearest one; sensors are hollow."""
    hops = hops_to(stream.network, stream.sensors)[rows].astype(float)
    hops[hops <= 0] = np.nan
    said = tuple(
        "a sensor"
        if sensor
        else f"{h:.0f} road{'s' * (h > 1)} to the nearest sensor"
        if h > 0
        else "joined to no sensor"
        for sensor, h in zip(sheet.sensor.tolist(), hops.tolist(), strict=True)
    )
    shapes = (("hollow", "sensor"), ("round", "no sensor"))
    title = "Nodes without a sensor, by the roads to the nearest one"
    return draw_map(plan, replace(
        sheet, kind="error", title=title, frames=hops[None], labels=("hops",), shapes=shapes, unit="roads",
        edges=HOPS, bins=HOPS_WORDS, said=said, marks="",
    ))  # fmt: skip


def _drawable(network: RoadNetwork) -> RoadNetwork:
    """The network, or its main roads, without their bends where they are many."""
    edges = network.edges
    if len(edges) > MAX_ROADS:
        level = np.nan_to_num(class_levels(edges.road_class), nan=1.0)
        order = np.lexsort((-edges.length_m, -level))[:MAX_ROADS]
        edges = edges.take(np.sort(order))
    if len(edges) > MAX_BENT_ROADS:
        edges = replace(edges, geometry=np.full(len(edges), b"", np.object_))
    return replace(network, edges=edges)


def _drawn_nodes(network: RoadNetwork, sensors: Mapping[NodeId, SensorCheck]) -> NDArray[np.int64]:
    """Rows of the nodes to draw: sensors before others, those that miss most before those that miss least."""
    if network.num_nodes <= MAX_NODES:
        return np.arange(network.num_nodes)
    first = network.rows_of(sensors)[:MAX_NODES]
    others = np.setdiff1d(np.arange(network.num_nodes), first)
    step = max(1, math.ceil(len(others) / max(1, MAX_NODES - len(first))))
    return np.sort(np.concatenate([first, others[::step] if len(first) < MAX_NODES else others[:0]]))


def _left_out(city: City, network: RoadNetwork, rows: NDArray[np.int64]) -> str:
    return (
        f'<p class="note">Drawn are {len(rows):,} of {city.network.num_nodes:,} nodes, sensors first, and '
        f"{network.num_edges:,} of {city.network.num_edges:,} roads, the main ones.</p>"
    )


def _crosses(plan: MapProjection, network: RoadNetwork, rows: NDArray[np.int64]) -> str:
    xs, ys = plan.xy(network.lon[rows], network.lat[rows])
    r = 1.1 * plan.dot
    d = "".join(
        f"M{x - r:.1f} {y - r:.1f}l{2 * r:.1f} {2 * r:.1f}m0 {-2 * r:.1f}l{-2 * r:.1f} {2 * r:.1f}"
        for x, y in zip(xs, ys, strict=True)
    )
    return f'<path class="fault" stroke-width="{0.38 * plan.dot:.2f}" d="{d}"/>' if d else ""
