"""The fixed facts about a served city: roads, sensors, time steps."""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S, Steps
from frigate.city.bucketing import Grid, Readings, bucket
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.outliers import Ranges
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.demand.recent_days import KEPT_DAYS, PastDays
from frigate.forecasting.forecaster import split_on
from frigate.forecasting.result import Forecast, make_forecast
from frigate.pages.map_data import network_container
from frigate.serve.store import ReadingPart
from frigate.training.intervals import DEFAULT_LEVEL
from frigate.training.run import Run, TrainedOn


@dataclass(frozen=True)
class ServedCity:
    """A city being served. N nodes, E roads of the usual network."""

    name: str
    source: City  # without readings; for turn restrictions and the cache
    network: RoadNetwork  # the usual roads, none closed
    sensors: NDArray[np.bool_]  # [N] nodes whose readings a forecast uses
    steps: Steps
    past: int  # snapshots that a forecast reads
    horizon: int  # steps that it covers
    trained_on: TrainedOn
    ranges: Ranges  # of the readings in the record
    has_demand: bool  # whether trips are known
    tiles: Mapping[str, str] = field(default_factory=dict)  # the URL of map tiles and their attribution
    level: float | None = None  # of the intervals that the map shows, in percent; None: the run has none
    days: PastDays | None = None  # what each node counted in the last days of the record; None without demand

    @classmethod
    def of(cls, run: Run, city: City, tiles: Mapping[str, str] | None = None) -> ServedCity:
        """The city of a run."""
        run.trained_on.refuse_other_kind(city.stream)
        network = run.usual_roads(city.stream)
        about = run.trained_on
        empty = make_stream(
            np.zeros((0, network.num_nodes)),
            network,
            start_s=about.start_s,
            step_s=about.step_s,
            timezone=city.stream.timezone,
            quantity=about.quantity,
            unit=about.unit,
        )
        return cls(
            name=city.name,
            source=replace(city, stream=empty, road_features={}),
            network=network,
            sensors=split_on(run, network)[0],
            steps=Steps(about.start_s, about.step_s, city.stream.timezone),
            past=run.settings.task.past,
            horizon=run.settings.task.horizon,
            trained_on=about,
            ranges=_ranges(city.stream),
            has_demand=run.scaling.demand is not None,
            tiles=tiles or {},
            level=DEFAULT_LEVEL if run.intervals is not None and run.intervals.allows(DEFAULT_LEVEL) else None,
            days=_last_days(city.stream, split_on(run, network)[0], network) if run.scaling.demand else None,
        )

    def past_days(self, sensors: NDArray[np.int64]) -> PastDays:
        """What these sensors counted in the last days of the record."""
        if self.days is None:
            return PastDays.none(self.step_s, sensors)
        return self.days.at(sensors)

    @property
    def step_s(self) -> int:
        return self.steps.step_s

    @property
    def timezone(self) -> str:
        return self.steps.timezone

    @property
    def quantity(self) -> str:
        return self.trained_on.quantity

    @property
    def unit(self) -> str:
        return self.trained_on.unit

    @property
    def about(self) -> str:
        """Identifies the city in a store (`Store.claim`)."""
        return f"{self.name}, {self.quantity} every {self.step_s} s"

    @cached_property
    def container(self) -> bytes:
        """The network as the map gets it."""
        return network_container(
            self.network,
            self.source.stream,
            self.sensors,
            name=self.name,
            horizon=self.horizon,
            has_demand=self.has_demand,
            detectors=self.source.detectors,
            version=self.version,
            level=self.level,
            **self.tiles,
        )

    @cached_property
    def digest(self) -> str:
        """Changes with anything that the map shows of the network, such as the name of a street."""
        return hashlib.sha256(self.container).hexdigest()

    @cached_property
    def version(self) -> str:
        """The version of the network as it is served. Arrays by row, in the store and on the map, are valid for one."""
        network = self.network
        facts = (network.fingerprint, self.step_s, self.timezone, self.quantity, self.unit, self.horizon)
        digest = hashlib.sha256(repr((*facts, self.has_demand)).encode())
        for by_row in (network.senders, network.receivers, self.sensors):  # the fingerprint has no order of roads
            digest.update(by_row.tobytes())
        return digest.hexdigest()[:12]

    def forecast(self, at_s: int, values: NDArray[np.floating], notices: Iterable[str]) -> Forecast:
        """A forecast [H,N] of this city, made at `at_s`."""
        return make_forecast(
            self.trained_on,
            self.network,
            values,
            at_s,
            sensor=self.sensors,
            timezone=self.timezone,
            notices=notices,
            city=self.source,
        )

    @cached_property
    def node_names(self) -> list[str]:
        """[N] ids as text, as the API sends them."""
        return [str(node_id) for node_id in self.network.node_ids.tolist()]

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.node_names)}

    @cached_property
    def node_of_detector(self) -> dict[str, str]:
        """The node of each detector that is alone at its node, so that its readings are the node's."""
        own = self.source.network.node_ids
        return {
            name: str(own[row]) for name, row in self.source.detectors.alone().items() if str(own[row]) in self.row_of
        }

    @cached_property
    def road_of(self) -> dict[tuple[str, str], int]:
        """Roads by the names of their ends."""
        names = self.node_names
        network = self.network
        ends = zip(network.senders.tolist(), network.receivers.tolist(), strict=True)
        return {(names[a], names[b]): row for row, (a, b) in enumerate(ends)}

    def like(self, node: str) -> str:
        """A "did you mean" for an unknown node. Searches only the names next to it in sorted order, to stay fast."""
        at = bisect(self._sorted_names, node)
        near = get_close_matches(node[:80], self._sorted_names[max(0, at - 100) : at + 100], n=1, cutoff=0.7)
        return f' Did you mean "{near[0]}"?' if near else ""

    @cached_property
    def _sorted_names(self) -> list[str]:
        return sorted(self.node_names)

    def street(self, row: int) -> str:
        """The name of a road at this node, or ""."""
        network = self.network
        names = network.edges.name[(network.senders == row) | (network.receivers == row)]
        return next((str(name) for name in names.tolist() if name), "")

    def boundary(self, time_s: float) -> int:
        """The last step boundary at or before a time."""
        return self.steps.time_s(int(self.steps.snapshot_at(np.array([int(time_s // 1)]))[0]))

    def boundaries(self, time_s: int, first: int, stop: int) -> NDArray[np.int64]:
        """The step boundaries `first` to `stop` (exclusive), counted from the one at `time_s`."""
        return replace(self.steps, start_s=time_s).times_s(first, stop)

    def snapshot(self, begin_s: int, parts: Iterable[ReadingPart]) -> NDArray[np.float32]:
        """[N] the snapshot that begins at `begin_s`, bucketed as on import; NaN where there is no reading.

        Parameters
        ----------
        begin_s
            A step boundary.
        parts
            Nodes, times and values of readings, in chronological order.
        """

        def known() -> Iterator[Readings]:
            for nodes, times_us, values in parts:
                rows = np.array([self.row_of.get(node, -1) for node in nodes], np.int64)
                yield Readings(times_us, rows, values).take(rows >= 0)

        grid = Grid(replace(self.steps, start_s=begin_s), 1)
        made = bucket(known(), grid, num_nodes=self.network.num_nodes, quantity=self.quantity)
        return np.where(made.observed[0], made.values[0], np.float32(np.nan))


def _last_days(stream: RoadNetworkStream, sensors: NDArray[np.bool_], usual: RoadNetwork) -> PastDays:
    kept = 2 * KEPT_DAYS * DAY_S // stream.step_s  # a replay of the last days asks those before
    last = stream.slice(max(0, stream.num_snapshots - kept), stream.num_snapshots)
    return PastDays.of(last, np.flatnonzero(sensors), usual)


def _ranges(stream: RoadNetworkStream) -> Ranges:
    """Those of a record, if it has a whole day at least."""
    if stream.num_snapshots * stream.step_s < DAY_S:
        return Ranges.unknown(stream.num_nodes)
    return Ranges.of(stream.values, stream.observed)
