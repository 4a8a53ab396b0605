"""Check what is in a city and what is wrong with it, as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from frigate.calendar import DAY_S
from frigate.check.conflicts import Conflicts, find_conflicts
from frigate.check.exclusions import exclude_block, exclusion_lines, exclusions
from frigate.check.sensors import SHOWN, SensorCheck, check_sensors, fault_lines
from frigate.city.city import City
from frigate.city.city_toml import read_city_file, step_text
from frigate.city.network import NodeId, RoadNetwork, joined_nodes
from frigate.city.network_tables import connected_parts
from frigate.city.stream import RoadNetworkStream
from frigate.config import ANCHOR_CHOICES
from frigate.roads.nearest_sensors import hops_to
from frigate.roads.positions import choose_anchors, distances_m, distortion
from frigate.text import duration

ANCHORS = 16
HOPS = (1, 2, 3, 5, 10)


@dataclass(frozen=True)
class CheckReport:
    """The result of a check. Sensors are named by the user's ids."""

    name: str
    quantity: str
    unit: str
    on_roads: bool  # its nodes are roads, and its edges turns
    nodes: int
    absent_nodes: int  # in the node table, but not in the current network
    roads: int
    road_km: float
    parts: int  # strongly connected
    largest_part: int
    isolated: tuple[NodeId, ...]
    sensors: int
    sensor_share: float
    unseen: int  # present nodes without a sensor
    unseen_within: Mapping[int, float]  # hops -> share of them with a sensor that near, ignoring directions
    unseen_apart: int  # those not connected to any sensor
    first: str | None  # start of the first snapshot, local time
    last: str | None  # start of the last one
    timezone: str
    step: str
    step_s: int
    snapshots: int
    observed_share: float  # of all cells
    observed_at_sensors: float  # of the sensors' cells
    gaps: tuple[tuple[str, int], ...]  # with no reading at all: local start, number of snapshots
    by_sensor: tuple[SensorCheck, ...]  # most missing readings first
    dead: tuple[NodeId, ...]
    stuck: tuple[NodeId, ...]
    silent: tuple[NodeId, ...]
    exclusions: tuple[tuple[str, str], ...]  # what to leave out, as for --exclude, and why
    excluded: tuple[str, ...]  # what city.toml leaves out already
    conflicts: Conflicts | None  # None: no counts that could contradict each other
    networks: int
    changes: int  # snapshots whose network differs from the one before
    distortions: dict[str, dict[str, float]] | None  # by choice of anchors
    advice: tuple[str, ...]  # what to fix before training
    notices: tuple[str, ...]
    places: Mapping[str, tuple[str, ...]]  # notice -> its first places
    imported: Mapping[str, tuple[str, ...]]  # notices of the import -> first places
    detectors: tuple[tuple[str, NodeId, float | None], ...]  # own name, node, metres moved; farthest first

    def to_json(self) -> dict[str, Any]:
        measured = {
            choice: {k: v if np.isfinite(v) else None for k, v in of.items()}  # JSON has no infinity
            for choice, of in (self.distortions or {}).items()
        }
        return asdict(self) | {"distortions": measured or None}

    def lines(self) -> list[str]:
        lines = [
            f"{self.name}: {self.nodes:,} {self.node_word}, {self.network_text}",
            f"Sensors: {self.sensors:,} ({self.sensor_share:.1%} of the {self.node_word})",
            *([self.hops_line()] if self.unseen and self.sensors else []),
            *([self.detectors_line()] if self.detectors else []),
            self.period(),
            f"Observed: {self.observed_share:.1%} of all cells, {self.observed_at_sensors:.1%} of the sensors' cells",
            *self._gap_lines(),
            *fault_lines(self.by_sensor),
            *exclusion_lines(self.exclusions, self.excluded),
            *([] if self.conflicts is None else self.conflicts.lines()),
            f"Strongly connected parts: {self.parts:,}, the largest of {self.largest_part:,} {self.node_word}",
            f"Networks: {self.networks:,}, changed at {self.changes:,} snapshots",
        ]
        if self.absent_nodes:
            lines.append(f"{self.node_word.capitalize()} removed, or not yet added: {self.absent_nodes:,}")
        for choice, measured in (self.distortions or {}).items():
            shown = ", ".join(f"{k} {measured[k]:.3g}" for k in ("distortion", "expansion", "contraction"))
            lines.append(f"Positions, {ANCHORS} {choice} anchors: {shown} over {measured['pairs']:,} pairs")
        for notice in self.notices:
            lines += [notice, *(f"  {place}" for place in self.places.get(notice, ()))]
        if self.imported:
            lines.append("Reported by the import:")
        for notice, places in self.imported.items():
            lines += [f"  {notice}", *(f"    {place}" for place in places)]
        return lines + [f"Before training: {words}" for words in self.advice]

    @property
    def node_word(self) -> str:
        """What a node is: "nodes", or "roads" in a city on roads."""
        return "roads" if self.on_roads else "nodes"

    @property
    def link_word(self) -> str:
        """What an edge is: "roads", or "turns" in a city on roads."""
        return "turns" if self.on_roads else "roads"

    @property
    def network_text(self) -> str:
        if self.on_roads:
            return f"{self.roads:,} turns"
        return f"{self.roads:,} roads, {self.road_km:,.1f} km"

    def exclude_block(self) -> str:
        """A ready [exclude] block for city.toml, with all that looks broken."""
        return exclude_block(self.exclusions, self.excluded)

    def period(self) -> str:
        if self.first is None:
            return f"No readings; the step is {self.step}"
        what = f"{self.quantity} ({self.unit})" if self.unit else self.quantity
        return f"{what}, {self.snapshots:,} snapshots of {self.step} from {self.first} to {self.last} ({self.timezone})"

    def detectors_line(self) -> str:
        line = (
            f"Detectors: {len(self.detectors):,} at {len({node for _, node, _ in self.detectors}):,} {self.node_word}"
        )
        moved = [(metres, name, node) for name, node, metres in self.detectors if metres is not None]
        if not moved:
            return line
        metres, name, node = moved[0]
        half = float(np.median([each[0] for each in moved]))
        return f"{line}; moved there by {half:.0f} m (median), at most {metres:.0f} m ({name} to {node})"

    def hops_line(self) -> str:
        near = ", ".join(f"{hops}: {share:.1%}" for hops, share in self.unseen_within.items())
        apart = f"; not connected to any: {self.unseen_apart:,}" if self.unseen_apart else ""
        words = f"{self.node_word.capitalize()} without a sensor: {self.unseen:,}"
        return f"{words}; share with one within this many {self.link_word}: {near}{apart}"

    def _gap_lines(self) -> list[str]:
        longest = sorted(self.gaps, key=lambda gap: -gap[1])[:SHOWN]
        lines = [f"No reading at all from {start} for {count:,} snapshots" for start, count in longest]
        if len(self.gaps) > SHOWN:
            lines.append(f"No reading at all in {len(self.gaps) - SHOWN:,} other gaps, none of them longer")
        common = sum(count for _, count in self.gaps) / max(1, self.snapshots)
        worst = [sensor for sensor in self.by_sensor if sensor.missing_share > common + 1e-9]
        if worst:
            half = sum(sensor.missing_share > 0.5 for sensor in worst)
            median = float(np.median([sensor.missing_share for sensor in self.by_sensor]))
            lines.append(
                f"Gaps: {len(worst):,} of {self.sensors:,} sensors miss readings{' at other times too' * bool(lines)}, "
                f"the median sensor {median:.1%}" + (f"; more than half are missing at {half:,}" if half else "")
            )
        for sensor in worst[:SHOWN]:
            gap = f"the longest gap {duration(sensor.longest_gap * self.step_s)} from {sensor.gap_from}"
            lines.append(f"  {sensor.node_id}: {sensor.missing_share:.1%} missing, {gap}")
        return lines


def check_city(city: City, *, positions: bool = False, conflicts: bool = False) -> CheckReport:
    """Check what a city holds and what is wrong with it.

    Parameters
    ----------
    city
        The city.
    positions
        Whether to measure the distortion of positions for each choice of anchors, which takes longer.
    conflicts
        Whether to ask every sensor of counts about the others, which estimates demand.

    Returns
    -------
    A report: `lines()` for a person, `to_json()` for a program.
    """
    stream = city.stream
    network = city.network
    names, _ = city.detectors.at_nodes(stream.node_ids, stream.node_ids)
    parts = connected_parts(network)
    sensors = check_sensors(stream, names)
    M = len(sensors)
    S = stream.num_snapshots
    N = stream.num_nodes
    observed = int(stream.observed.sum())
    present = np.stack([each.present for each in stream.networks])[:, stream.sensors].sum(axis=1)
    unseen = network.present & ~stream.sensors
    hops = hops_to(network, stream.sensors)[unseen]
    silent = np.concatenate([[False], ~stream.observed.any(axis=1), [False]])
    turns = np.flatnonzero(np.diff(silent)).tolist()
    return CheckReport(
        name=city.name,
        quantity=stream.quantity,
        unit=stream.unit,
        on_roads=len(network.lines) > 0,
        nodes=N,
        absent_nodes=int((~network.present).sum()),
        roads=network.num_edges,
        road_km=float(network.length_m.sum()) / 1000,
        parts=len(parts),
        largest_part=int(parts[0]) if len(parts) else 0,
        isolated=tuple(network.node_ids[network.present & ~joined_nodes(network)].tolist()),
        sensors=M,
        sensor_share=M / max(1, N),
        unseen=len(hops),
        unseen_within={h: float(((hops >= 0) & (hops <= h)).mean()) for h in HOPS} if len(hops) else {},
        unseen_apart=int((hops < 0).sum()),
        first=stream.local_time(stream.start_s) if S else None,
        last=stream.local_time(int(stream.times_s[-1])) if S else None,
        timezone=stream.timezone,
        step=step_text(stream.step_s),
        step_s=stream.step_s,
        snapshots=S,
        observed_share=observed / (S * N) if S * N else 0.0,
        observed_at_sensors=observed / int(present[stream.network_of].sum()) if M else 0.0,
        gaps=tuple(
            (stream.local_time(int(stream.times_s[a])), b - a) for a, b in zip(turns[::2], turns[1::2], strict=True)
        ),
        by_sensor=sensors,
        dead=tuple(sensor.node_id for sensor in sensors if sensor.dead),
        stuck=tuple(sensor.node_id for sensor in sensors if sensor.stuck_snapshots),
        silent=tuple(sensor.node_id for sensor in sensors if sensor.silent_since),
        exclusions=exclusions(sensors),
        excluded=_excluded(city),
        conflicts=find_conflicts(city) if conflicts else None,
        networks=len(stream.networks),
        changes=int((np.diff(stream.network_of) != 0).sum()),
        distortions=_distortions(network) if positions else None,
        advice=_advice(stream, M),
        notices=city.notices,
        places={notice: where for notice, where in city.places.items() if where},
        imported={notice: where for notice, where in city.imported.items() if notice not in city.notices},
        detectors=_detectors(city),
    )


def _excluded(city: City) -> tuple[str, ...]:
    """The entries of [exclude] in city.toml."""
    if city.folder is None or not (city.folder / "city.toml").is_file():
        return ()
    return read_city_file(city.folder).exclude


def _detectors(city: City) -> tuple[tuple[str, NodeId, float | None], ...]:
    node_ids = city.stream.node_ids.tolist()
    rows = [(name, node_ids[node], moved_m) for name, node, _, _, moved_m in city.detectors.rows()]
    return tuple(sorted(rows, key=lambda row: -(row[2] or 0)))


def _advice(stream: RoadNetworkStream, sensors: int) -> tuple[str, ...]:
    S = stream.num_snapshots
    seconds = stream.num_snapshots * stream.step_s
    if not sensors:
        return ("there is nothing to learn from. Import readings",)
    advice = []
    if S < 240:
        advice.append(
            f"the last tenth, on which forecasts are scored, has {S // 10} snapshots, but a window takes 12 past and "
            "12 ahead by default (--past, --horizon). More readings would help"
        )
    if seconds < 7 * DAY_S:
        advice.append(f"the readings span {duration(seconds)}. Learning the weekly pattern takes at least a week")
    return tuple(advice)


def _distortions(network: RoadNetwork) -> dict[str, dict[str, float]]:
    anchors = {choice: choose_anchors(network, count=ANCHORS, choice=choice) for choice in ANCHOR_CHOICES}
    return {choice: asdict(distortion(network, distances_m(network, each))) for choice, each in anchors.items()}
