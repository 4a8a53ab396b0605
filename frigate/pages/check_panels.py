"""The panels of `frigate check --html`: what a city contains, its sensors, its changes, and the notices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frigate.calendar import DAY_S, KINDS_OF_DAY
from frigate.check.city import CheckReport
from frigate.check.conflicts import Conflicts
from frigate.city.city import City
from frigate.city.network import NodeId, RoadNetwork
from frigate.pages import panels
from frigate.pages.city_record import RecordedChange, Usual
from frigate.pages.gap_chart import gap_chart, what_rows_are
from frigate.pages.layers import Unit
from frigate.pages.panels import Block, Panel
from frigate.text import duration, format_time, percent, three_digits

MAX_LISTED = 20  # rows of a table or list
MAX_EXCLUDED = 40  # lines of the [exclude] block
MAX_DETECTORS = 500  # listed
NAMED = 3  # roads of a change


def overview_panel(city: City, report: CheckReport, means: Usual) -> Panel:
    blocks = [
        panels.heading("Data check"),
        panels.words(_period(report)),
        *(panels.words(text, style="note") for text in _network_words(report)),
        panels.tiles(_tiles(report)),
        *(panels.words(f"Before training: {advice}.", style="verdict") for advice in report.advice),
    ]
    if report.sensors:
        blocks += [
            panels.heading("What does a typical day look like?", level=3),
            _day_chart(city, means),
            panels.words("If the peaks are hours early or late, the time zone is wrong.", style="note"),
        ]
    return Panel("overview", "Overview", tuple(blocks))


def _period(report: CheckReport) -> str:
    if report.first is None or report.last is None:
        return f"No readings yet. The step is {report.step}."
    what = report.quantity[:1].upper() + report.quantity[1:] + (f" ({report.unit})" if report.unit else "")
    return (
        f"{what} every {duration(report.step_s)}: {report.snapshots:,} snapshots from {format_time(report.first)} to "
        f"{format_time(report.last)} ({report.timezone})."
    )


def _network_words(report: CheckReport) -> list[str]:
    if report.parts == 1:
        one = "road" if report.on_roads else "intersection"
        words = [f"Every {one} can be reached from every other."]
    else:
        isolated = f"; {len(report.isolated):,} {report.node_word} lead nowhere" if report.isolated else ""
        words = [
            f"The network has {report.parts:,} strongly connected components; the largest has {report.largest_part:,} "
            f"{report.node_word}{isolated}."
        ]
    if report.networks > 1:
        words.append(
            f"The network changes over time: it has {report.networks:,} versions and changes at {report.changes:,} "
            "snapshots."
        )
    if report.absent_nodes:
        words.append(f"{report.absent_nodes:,} {report.node_word} are gone by the end.")
    return words


def _tiles(report: CheckReport) -> list[tuple[str, str, str]]:
    tiles = [
        ("Network", f"{report.nodes:,}", f"{report.node_word}; {report.network_text}"),
        ("Sensors", f"{report.sensors:,}", f"{percent(report.sensor_share)} of the {report.node_word} have one"),
    ]
    if report.sensors:
        over_all = f"of the sensors' snapshots; {percent(report.observed_share)} over all {report.node_word}"
        faulty = sum(bool(sensor.faults) for sensor in report.by_sensor)
        tiles.append(("Observed", percent(report.observed_at_sensors), over_all))
        tiles.append(("Possibly broken", f"{faulty:,}", "sensors: always 0, stuck, or silent towards the end"))
    if report.sensors and report.unseen:
        near = f"{report.node_word}; {percent(report.unseen_within[3])} have one within 3 {report.link_word}"
        tiles.append(("Without a sensor", f"{report.unseen:,}", near))
    return tiles


def _day_chart(city: City, means: Usual) -> Block:
    """The usual day: a line for each kind of day."""
    styles = ("forecast", *["other"] * (len(KINDS_OF_DAY) - 1))
    whole_days = means.bin_s == DAY_S  # one value a day becomes a level line
    lines = [
        panels.ChartLine(
            kind,
            style,
            [None if np.isnan(value) else round(value, 6) for value in values.tolist() * (2 if whole_days else 1)],
        )
        for kind, style, values in zip(KINDS_OF_DAY, styles, means.of_day, strict=True)
    ]
    hours = means.bin_s / 3600 / (2 if whole_days else 1)
    return panels.chart("Mean of all sensors by local time of day", Unit.of(city.stream), lines, hours=hours)


def sensors_panel(city: City, report: CheckReport) -> Panel:
    blocks = [
        panels.heading("When did the sensors report?"),
        *_gaps(city, report),
        panels.heading("Sensors to look at"),
        *_faults(city, report),
        panels.heading("How far is the nearest sensor?"),
        *_distances(report),
    ]
    return Panel("sensors", "Sensors", tuple(blocks))


def _gaps(city: City, report: CheckReport) -> list[Block]:
    if report.observed_at_sensors == 1:
        return [panels.words("Every sensor reported in every snapshot.")]
    blocks = [panels.words(what_rows_are(city.stream, report)), gap_chart(city.stream, report)]
    longest = sorted(report.gaps, key=lambda gap: -gap[1])[:MAX_LISTED]
    if longest:
        listed: list[panels.Cell] = [
            f"{format_time(start)}, for {duration(snapshots * report.step_s)}" for start, snapshots in longest
        ]
        if len(report.gaps) > len(longest):
            listed.append(f"and {len(report.gaps) - len(longest):,} more")
        title = f"Periods without a reading from any sensor: {len(report.gaps):,}"
        blocks.append(panels.details(title, panels.items(listed), is_open=len(report.gaps) <= 5))
    return blocks


def _faults(city: City, report: CheckReport) -> list[Block]:
    faulty = [sensor for sensor in report.by_sensor if sensor.faults]
    gappy = [sensor for sensor in report.by_sensor if sensor.missing_share > 0 and not sensor.faults]
    listed = [*faulty, *gappy][:MAX_LISTED]
    if not listed:
        return [panels.words("None: no sensor has gaps, or looks dead, stuck or silent.")]
    row_of = city.network.row_of
    rows: list[list[panels.Cell]] = [
        [
            panels.node(sensor.label, row_of(sensor.node_id)),
            "; ".join(sensor.faults),
            percent(sensor.missing_share),
            duration(sensor.longest_gap * report.step_s) if sensor.longest_gap else "none",
            format_time(sensor.gap_from) if sensor.gap_from else "",
        ]
        for sensor in listed
    ]
    columns = ["sensor (detectors)" if report.detectors else "sensor", "possible fault", "missing", "longest gap"]
    blocks = [
        panels.words(
            f"{len(faulty):,} may be broken: {len(report.dead):,} only ever report 0, {len(report.stuck):,} report one "
            f"value for hours, {len(report.silent):,} report nothing in the last tenth of the period. (On a quiet "
            f"road, 0 may be correct.) {len(gappy):,} others have gaps."
        ),
        *_exclude(report),
        panels.table("Sensors to look at", [*columns, "from"], rows, left=2),
    ]
    more = len(faulty) + len(gappy) - len(listed)
    return [*blocks, *_more(more)]


def _exclude(report: CheckReport) -> list[Block]:
    """The [exclude] block that leaves out what looks broken."""
    if not report.exclusions:
        return []
    lines: list[panels.Cell] = [*report.exclude_block().splitlines()[:MAX_EXCLUDED]]
    hint = "To leave it out, write this in city.toml; frigate check --write-exclude FILE writes all of it to a file"
    return [panels.details(f"{hint}: {len(report.exclusions):,} entries", panels.items(lines))]


def conflicts_panel(city: City, conflicts: Conflicts) -> Panel:
    """Counts that contradict each other."""
    row_of = city.network.row_of
    doubted = conflicts.doubted
    blocks = [
        panels.heading("Which counts contradict each other?"),
        panels.words(
            "Each sensor is estimated from the others, as if it were a place without one. Volumes are vehicles an "
            "hour, averaged over the week. GEH above 10 is bad; the usual difference between a count and what the "
            "others say is 1."
        ),
        panels.layer_buttons({"conflicts": "Show them on the map"}),
    ]
    if doubted:
        rows: list[list[panels.Cell]] = [
            [
                panels.node(str(each.node_id), row_of(each.node_id)),
                three_digits(each.counted),
                "" if each.expected is None else three_digits(each.expected),
                "" if each.geh is None else f"{each.geh:.0f}",
                f"{each.suspicion:+.1f}",
                percent(each.influence),
                "yes" if each.contradicted else "",
            ]
            for each in doubted[:MAX_LISTED]
        ]
        columns = ["sensor", "counts", "others say", "GEH", "differences apart", "traffic that rests on it", "left out"]
        blocks += [panels.table("Sensors that the others contradict", columns, rows, left=1)]
        blocks += _more(max(0, len(doubted) - MAX_LISTED))
    else:
        blocks.append(panels.words("No sensor is far from what the others say of it."))
    if conflicts.pairs:
        pairs: list[list[panels.Cell]] = [
            [
                panels.node(str(pair.first), row_of(pair.first)),
                panels.node(str(pair.second), row_of(pair.second)),
                *(three_digits(x) for x in pair.counted),
                f"{pair.geh:.0f}",
                "the same" if pair.both_ways else "the first is not more",
            ]
            for pair in conflicts.pairs[:MAX_LISTED]
        ]
        blocks.append(panels.heading("Sensors with no exit between them", level=3))
        columns = ["first", "second", "counts", "counts", "GEH", "should be"]
        blocks.append(panels.table("Pairs of sensors that contradict each other", columns, pairs, left=2))
        blocks += _more(max(0, len(conflicts.pairs) - MAX_LISTED))
    return Panel("conflicts", "Conflicts", tuple(blocks))


def _more(count: int) -> list[Block]:
    if not count:
        return []
    return [panels.words(f"{count:,} more are in the output of frigate check --json.", style="note")]


def _distances(report: CheckReport) -> list[Block]:
    if not report.unseen:
        return [panels.words(f"Every {report.node_word.removesuffix('s')} has a sensor.")]
    apart = f" {report.unseen_apart:,} have no way to any sensor." if report.unseen_apart else ""
    return [
        panels.words(
            f"Share of the {report.unseen:,} {report.node_word} without a sensor that have one within this many "
            f"{report.link_word}, in either "
            f"direction.{apart} The farther the sensor, the harder the forecast."
        ),
        panels.bars(
            f"Share of the {report.node_word} by {report.link_word} to the nearest sensor",
            [(str(hops), share, percent(share)) for hops, share in report.unseen_within.items()],
        ),
    ]


def changes_panel(city: City, changes: Sequence[RecordedChange], every: RoadNetwork) -> Panel:
    row_of = {(a, b): row for row, (a, b) in enumerate(every.node_ids[[every.senders, every.receivers]].T.tolist())}

    def cell(roads: list[tuple[NodeId, NodeId]], nodes: list[NodeId]) -> panels.Cell:
        names = [str(node) for node in nodes] + [f"{a} → {b}" for a, b in roads]
        text = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
        if nodes:
            return panels.node(text, city.network.row_of(nodes[0]))
        return panels.road(text, row_of[roads[0]]) if roads else text

    rows = [
        [
            format_time(change.time),
            cell(change.closed, change.closed_nodes),
            cell(change.opened, change.opened_nodes),
        ]
        for change in changes[:MAX_LISTED]
    ]
    blocks = [
        panels.heading("Which roads change?"),
        panels.layer_buttons({"changes": "Show them on the map"}),
        panels.table("Roads that change", ["time", "closed", "opened"], rows, left=3),
    ]
    if len(changes) > MAX_LISTED:
        blocks.append(panels.words(f"and {len(changes) - MAX_LISTED:,} more times.", style="note"))
    return Panel("changes", "Roads", tuple(blocks))


def notices_panel(report: CheckReport) -> Panel:
    blocks = []
    if report.detectors:
        rows = [
            [name, str(node), "" if moved_m is None else f"{moved_m:.0f} m"]
            for name, node, moved_m in report.detectors[:MAX_DETECTORS]
        ]
        title = "Each detector with its node and how far it was moved there, farthest first"
        blocks += [
            panels.heading("Detectors"),
            panels.words(f"{report.detectors_line()}."),
            panels.details(
                title,
                panels.table("Detectors", ["detector", "node", "moved"], rows, left=2),
                *_more(max(0, len(report.detectors) - MAX_DETECTORS)),
            ),
        ]
    if report.imported:
        blocks.append(panels.heading("Notices from the import"))
        blocks += [_notice(notice, places) for notice, places in report.imported.items()]
    blocks.append(panels.heading("Notices from reading the files"))
    blocks += [_notice(notice, report.places.get(notice, ())) for notice in report.notices]
    if not report.notices:
        blocks.append(panels.words("None: every row of the tables was used as is."))
    return Panel("notices", "Notices", tuple(blocks))


def _notice(notice: str, places: Sequence[str]) -> Block:
    return panels.details(notice, panels.items(places)) if places else panels.words(notice)
