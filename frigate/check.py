"""What is in a city and what is wrong with it, in plain words or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city import City
from frigate.city.city_toml import step_text
from frigate.city.network_tables import connected_parts, isolated_nodes
from frigate.network import NodeId
from frigate.positions import choose_anchors, distances_m, distortion
from frigate.stream import RoadNetworkStream

ANCHORS = 16
STUCK_READINGS = 12  # fewer equal readings than this say nothing


@dataclass(frozen=True)
class CheckReport:
    """Counts and lists; a sensor is named by the user's id."""

    name: str
    quantity: str
    unit: str
    nodes: int
    absent_nodes: int  # in the table, but not in the network as it is now
    roads: int
    road_km: float
    parts: int  # strongly connected
    largest_part: int
    isolated: tuple[NodeId, ...]
    sensors: int
    sensor_share: float
    first: str | None  # start of the first snapshot, local time
    last: str | None  # start of the last one
    timezone: str
    step: str
    snapshots: int
    observed_share: float  # of all cells
    observed_at_sensors: float  # of the sensors' cells
    gaps: tuple[tuple[str, int], ...]  # where nothing was read at all: local start, snapshots
    dead: tuple[NodeId, ...]  # sensors that only ever read 0
    stuck: tuple[NodeId, ...]  # sensors that only ever read one other value
    topologies: int
    changes: int  # snapshots whose topology is not that of the one before
    distortions: dict[str, dict[str, float]] | None  # by choice of anchors
    notices: tuple[str, ...]
    places: Mapping[str, tuple[str, ...]]  # by notice: its first places, one by one

    def to_json(self) -> dict[str, Any]:
        measured = {
            choice: {k: v if np.isfinite(v) else None for k, v in of.items()}  # JSON has no infinity
            for choice, of in (self.distortions or {}).items()
        }
        return asdict(self) | {"distortions": measured or None}

    def lines(self) -> list[str]:
        roads = f"{self.nodes:,} nodes, {self.roads:,} roads, {self.road_km:,.1f} km"
        lines = [
            f"{self.name}: {roads}",
            f"Sensors: {self.sensors:,} ({self.sensor_share:.1%} of the nodes)",
            self._period(),
            f"Observed: {self.observed_share:.1%} of all cells, {self.observed_at_sensors:.1%} of the sensors' cells",
            f"Strongly connected parts: {self.parts:,}, the largest of {self.largest_part:,} nodes",
            f"Topologies: {self.topologies:,}, changed at {self.changes:,} snapshots",
        ]
        if self.absent_nodes:
            lines.append(f"Nodes that are not there any more, or not yet: {self.absent_nodes:,}")
        lines += [f"No reading at all from {start} for {count:,} snapshots" for start, count in self.gaps]
        for what, ids in (("read only 0", self.dead), ("read one value only", self.stuck)):
            if ids:
                lines.append(f"Sensors that {what}: {len(ids):,} ({_some(ids)})")
        for choice, measured in (self.distortions or {}).items():
            shown = ", ".join(f"{k} {measured[k]:.3g}" for k in ("distortion", "expansion", "contraction"))
            lines.append(f"Positions, {ANCHORS} {choice} anchors: {shown} over {measured['pairs']:,} pairs")
        for notice in self.notices:
            lines += [notice, *(f"  {place}" for place in self.places.get(notice, ()))]
        return lines

    def _period(self) -> str:
        if self.first is None:
            return f"No readings; a step is {self.step}"
        what = f"{self.quantity} ({self.unit})" if self.unit else self.quantity
        return f"{what}, {self.snapshots:,} snapshots of {self.step} from {self.first} to {self.last} ({self.timezone})"


def _some(ids: Sequence[NodeId]) -> str:
    return ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")


def check_city(city: City, *, positions: bool = False) -> CheckReport:
    """Look a city over. `positions` measures the distortion for each choice of anchors, which takes a little longer."""
    stream, network = city.stream, city.network
    parts = connected_parts(network)
    sensors, filled, dead, stuck = _sensors(stream)
    rows = np.flatnonzero(sensors)
    S, N = stream.num_snapshots, stream.num_nodes
    ids = network.node_ids

    def named(which: NDArray[np.generic]) -> tuple[NodeId, ...]:
        return tuple(ids[which].tolist())

    return CheckReport(
        name=city.name,
        quantity=stream.quantity,
        unit=stream.unit,
        nodes=N,
        absent_nodes=int((~network.present).sum()),
        roads=network.num_edges,
        road_km=float(network.length_m.sum()) / 1000,
        parts=len(parts),
        largest_part=int(parts[0]) if len(parts) else 0,
        isolated=named(isolated_nodes(network)),
        sensors=len(rows),
        sensor_share=len(rows) / N,
        first=stream.local_time(stream.start_s) if S else None,
        last=stream.local_time(int(stream.times_s[-1])) if S else None,
        timezone=stream.timezone,
        step=step_text(stream.step_s),
        snapshots=S,
        observed_share=int(filled.sum()) / (S * N) if S else 0.0,
        observed_at_sensors=int(filled.sum()) / (S * len(rows)) if len(rows) else 0.0,
        gaps=_gaps(stream),
        dead=named(dead),
        stuck=named(stuck),
        topologies=len(stream.topologies),
        changes=int((np.diff(stream.topology_of) != 0).sum()),
        distortions=_distortions(city) if positions else None,
        notices=city.notices,
        places={notice: where for notice, where in city.places.items() if where},
    )


def _sensors(
    stream: RoadNetworkStream,
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """[N] which nodes are sensors, how often each was read, which only read 0, which only one other value."""
    N = stream.num_nodes
    count, low, high = np.zeros(N, np.int64), np.full(N, np.inf), np.full(N, -np.inf)
    for first in range(0, stream.num_snapshots, 256):  # a part at a time: the stream may be larger than memory
        values, observed = stream.values[first : first + 256], stream.observed[first : first + 256]
        count += observed.sum(axis=0)
        low = np.minimum(low, np.where(observed, values, np.inf).min(axis=0))
        high = np.maximum(high, np.where(observed, values, -np.inf).max(axis=0))
    sensors = count > 0
    dead = sensors & (low == 0) & (high == 0)
    stuck = (count >= STUCK_READINGS) & (low == high) & ~dead
    return sensors, count, dead, stuck


def _gaps(stream: RoadNetworkStream) -> tuple[tuple[str, int], ...]:
    silent = np.concatenate([[False], ~stream.observed.any(axis=1), [False]])
    turns = np.flatnonzero(np.diff(silent))
    return tuple(
        (stream.local_time(int(stream.times_s[a])), int(b - a)) for a, b in zip(turns[::2], turns[1::2], strict=True)
    )


def _distortions(city: City) -> dict[str, dict[str, float]]:
    network = city.network
    measured = {}
    for choice in ("random", "farthest", "bourgain"):
        anchors = choose_anchors(network, count=ANCHORS, choice=choice)
        measured[choice] = asdict(distortion(network, distances_m(network, anchors)))
    return measured
