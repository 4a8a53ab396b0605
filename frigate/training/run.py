"""Run, a trained model with everything it needs to forecast; and RunOnCity, a run applied to one city.

A run does not contain its city: it records the city's folder, which is opened when needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.baselines.deep import build_baseline
from frigate.config import BaselineSettings, ModelSettings, Settings
from frigate.data.city import City, excluding, open_city
from frigate.data.coordinates import haversine_m
from frigate.data.network import SAME_PLACE_M, Edges, RoadNetwork
from frigate.data.split import Period, Split
from frigate.data.stream import RoadNetworkStream
from frigate.demand.calibration import RouteSet
from frigate.demand.count_profiles import usual_counts, usual_medians
from frigate.demand.estimate import Demand, calibrate
from frigate.demand.rerouting import Detours, Rerouted, reroute, sensor_shares_on_detours
from frigate.demand.route_search import LineGraph
from frigate.demand.sensor_shares import SensorShares
from frigate.demand.settings import DemandSettings
from frigate.demand.trip_cache import cached_detours, cached_trips
from frigate.errors import CheckpointError, FrigateError, SettingsError
from frigate.nn.batch import Windows
from frigate.nn.demand_tables import DemandTables
from frigate.nn.forecaster import ForecastModel
from frigate.nn.model import default, paper
from frigate.nn.predictor import Predictor
from frigate.nn.scaling import Scaling, build_topologies
from frigate.nn.topology import Topology

Model = ForecastModel
Build = Callable[[Settings, Scaling], Model]


def has_demand(settings: Settings, stream: RoadNetworkStream) -> bool:
    """Whether a model with these settings uses demand on this stream; only counts have demand."""
    model = settings.model
    return isinstance(model, ModelSettings) and model.demand and stream.quantity == "count"


def build_model(settings: Settings, scaling: Scaling) -> Model:
    model = settings.model
    if isinstance(model, BaselineSettings):
        return build_baseline(model, settings.task, scaling)
    return default(model, scaling) if model.roads else paper(model, scaling)


@dataclass(frozen=True)
class TrainingState:
    """Training progress."""

    epoch: int = 0  # finished epochs
    best_epoch: int = 0
    best_mae: float = float("inf")  # at the validation nodes and times
    seconds: float = 0.0
    finished: bool = False


@dataclass(frozen=True)
class TrainedOn:
    """What a run records about the city it was trained on."""

    name: str
    folder: Path | None  # None: a city in memory
    network: str  # fingerprint of the last snapshot's network
    changes: str  # digest of the sequence of topologies and when each begins
    readings: str  # digest
    start_s: int
    step_s: int
    snapshots: int
    quantity: str
    unit: str
    timezone: str
    excluded: tuple[str, ...] = ()  # readings excluded in addition to those in its city.toml

    @classmethod
    def of(cls, city: City) -> TrainedOn:
        stream = city.stream
        return cls(
            name=city.name,
            folder=city.folder,
            network=city.network.fingerprint,
            changes=_changes_digest(stream),
            readings=stream.digest,
            start_s=stream.start_s,
            step_s=stream.step_s,
            snapshots=stream.num_snapshots,
            quantity=stream.quantity,
            unit=stream.unit,
            timezone=stream.timezone,
            excluded=city.excluded,
        )

    def refuse_other_kind(self, stream: RoadNetworkStream) -> None:
        """Raise an error if the stream's step or quantity differs from that in training."""
        if stream.step_s != self.step_s:
            raise SettingsError(
                f"the stream's step is {stream.step_s} s, the model was trained on steps of {self.step_s} s. "
                "Bring the readings to that step, or train on this stream"
            )
        if stream.quantity != self.quantity:
            raise SettingsError(
                f'the stream\'s quantity is "{stream.quantity}", the model was trained on "{self.quantity}". '
                "Use a model trained on that quantity"
            )


def _changes_digest(stream: RoadNetworkStream) -> str:
    prints = np.array([network.fingerprint for network in stream.topologies])[stream.topology_of]  # [S]
    turns = np.flatnonzero(prints[1:] != prints[:-1]) + 1
    course = [*prints[:1].tolist(), *(f"{stream.times_s[turn]} {prints[turn]}" for turn in turns)]
    return hashlib.sha256("\n".join(course).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """A trained model with everything it needs to forecast, except the city.

    `nodes` are the seen and unseen nodes with id and location, without roads. `split` refers to their rows; its periods
    are in snapshots since `trained_on.start_s`. `usual_counts` and `usual_medians` are from the training period, by
    kind of day and hour, for a model with demand; NaN at unseen nodes.
    """

    model: Model
    settings: Settings
    scaling: Scaling
    nodes: RoadNetwork
    split: Split
    trained_on: TrainedOn
    folder: Path | None = None
    progress: TrainingState = TrainingState()
    usual_counts: NDArray[np.float32] | None = None  # [K,n]
    usual_medians: NDArray[np.float32] | None = None  # [K,n]

    def __repr__(self) -> str:
        done = f"epoch {self.progress.epoch} of {self.settings.train.epochs}"
        if self.progress.best_epoch:
            done += f", validation MAE {self.progress.best_mae:.4g}"
        nodes = f"{int(self.split.seen.sum()):,} sensors seen, {int(self.split.unseen.sum()):,} held out"
        where = f", in {self.folder}" if self.folder is not None else ""
        return f"<Run of {self.settings.model.label} on {self.trained_on.name!r}: {nodes}, {done}{where}>"

    def on(self, city: City | str | Path | None = None) -> RunOnCity:
        """Apply the run to a city that contains the nodes of its split.

        Parameters
        ----------
        city : City or path, optional
            A city, a city folder or a cache. Default: the city the run was trained on, from its folder.
        """
        if city is None:
            city = self.open_city()
        elif not isinstance(city, City):
            city = open_city(city)
        self.trained_on.refuse_other_kind(city.stream)
        return RunOnCity(self, city, self._split_on(city))

    def open_city(self, *, exclude: Sequence[str] = ()) -> City:
        """Open the city the run was trained on, from the recorded folder and with the same exclusions.

        Parameters
        ----------
        exclude
            Additional readings to exclude, as for `read_city`.
        """
        name, where = self.folder or "the run", self.trained_on.folder
        remedy = "Pass the city, or name its folder with --city CITY"
        if where is None:
            raise CheckpointError(f"{name}: trained on {self.trained_on.name}, a city in memory. {remedy}")
        try:
            city = open_city(where, exclude=self.trained_on.excluded)
        except FrigateError as error:
            raise CheckpointError(f"{name}: the city it was trained on cannot be opened: {error}. {remedy}") from error
        return excluding(city, exclude)

    def _split_on(self, city: City) -> Split:
        """The split in rows and snapshots of this city, which may have lost or gained early readings."""
        stream, network = city.stream, city.network
        row_of = {node_id: row for row, node_id in enumerate(stream.node_ids.tolist())}
        missing = [node_id for node_id in self.nodes.node_ids.tolist() if node_id not in row_of]
        if missing:
            raise CheckpointError(
                f"{len(missing)} nodes of the split are not in the city, first "
                f'"{missing[0]}". Use the city that the run was trained on, or train on this one'
            )
        row = np.array([row_of[node_id] for node_id in self.nodes.node_ids.tolist()], np.int64)
        # By the median, so up to half of the nodes may have moved: ids alone do not identify a city.
        away_m = float(np.median(haversine_m(self.nodes.lon, self.nodes.lat, network.lon[row], network.lat[row])))
        if not away_m <= SAME_PLACE_M:
            raise CheckpointError(
                f"the nodes of the run are {away_m:,.0f} m away from those of the same ids in this city. "
                "Use the city that the run was trained on, or train on this one"
            )
        shift = stream.snapshot_at(self.trained_on.start_s)

        def mask(chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
            return np.isin(np.arange(stream.num_nodes), row[chosen])

        def later(period: Period) -> Period:
            return period[0] + shift, period[1] + shift

        def left(period: Period) -> Period:
            """The part of a period that the city still has."""
            first, stop = later(period)
            return max(0, first), max(0, stop)

        split = self.split
        return Split(
            seen=mask(split.seen),
            validation=mask(split.validation),
            unseen=mask(split.unseen),
            train=left(split.train),
            validate=left(split.validate),
            test=later(split.test),
        )


@dataclass(frozen=True)
class RunTrips:
    """The trips of a network for a run with demand, and the usual counts to calibrate them to."""

    network: RoadNetwork  # the usual roads, from which detours start
    graph: LineGraph
    sets: tuple[RouteSet, ...]
    usual_counts: NDArray[np.float32]  # [K,N] NaN where unknown
    usual_medians: NDArray[np.float32]  # [K,N]
    settings: DemandSettings
    seed: int
    forbidden_turns: NDArray[np.int64] | None

    @classmethod
    def of(
        cls, run: Run, network: RoadNetwork, city: City | Path | None = None, *, past: RoadNetworkStream | None = None
    ) -> RunTrips:
        """The trips of a network, with the run's usual counts at its nodes.

        Parameters
        ----------
        run : Run
            A run with demand.
        network : RoadNetwork
            The roads that trips use.
        city : City or path, optional
            The network's city, for its turn restrictions and cache; or a city folder, for its cache only.
        past : RoadNetworkStream, optional
            Readings at the same nodes, the source of usual counts for nodes that the run does not know.
        """
        assert run.scaling.demand is not None and run.usual_counts is not None and run.usual_medians is not None
        turns = city.forbidden_turns if isinstance(city, City) else None
        folder, seed = city.folder if isinstance(city, City) else city, run.settings.train.seed
        graph, sets = cached_trips(network, run.scaling.demand, forbidden_turns=turns, seed=seed, folder=folder)
        row = network.same_nodes(run.nodes)
        usual, medians = (np.where(row >= 0, x[:, row], np.nan) for x in (run.usual_counts, run.usual_medians))
        if past is not None:
            usual = np.where(np.isnan(usual), usual_counts(past, np.isnan(usual[0])), usual)
        tables = usual.astype(np.float32), medians.astype(np.float32)
        return cls(network, graph, sets, *tables, run.scaling.demand, seed, turns)

    def demand(self, sensors: NDArray[np.bool_]) -> Demand:
        """The demand calibrated to these sensors [N]."""
        usual = np.where(sensors, self.usual_counts, np.nan)
        return calibrate(self.graph, self.sets, usual, self.settings, seed=self.seed, medians=self.usual_medians)

    def rerouted(self, demands: Sequence[Demand], network: RoadNetwork) -> list[Rerouted]:
        """Each demand rerouted on a network with the same nodes."""
        detours = self._detours(network)
        return [reroute(demand, detours) for demand in demands]

    def sensor_shares(self, demand: Demand, network: RoadNetwork) -> SensorShares:
        """The share of each node's vehicles that pass each sensor, on a network with the same nodes."""
        if network.fingerprint == self.network.fingerprint:
            return demand.sensor_shares
        return sensor_shares_on_detours(demand, self._detours(network))

    def _detours(self, network: RoadNetwork) -> Detours:
        return cached_detours(
            self.network, network, self.sets, self.settings, seed=self.seed, forbidden_turns=self.forbidden_turns
        )

    def flow_changes(self, demands: Sequence[Demand], networks: Sequence[RoadNetwork]) -> torch.Tensor | None:
        """[C,G,N] flow multiplier of each demand on each network; None if nothing changes."""
        if all(network.fingerprint == self.network.fingerprint for network in networks):
            return None
        changes = [[each.node_change for each in self.rerouted(demands, network)] for network in networks]  # G times C
        return torch.from_numpy(np.array(changes)).transpose(0, 1)


@dataclass(frozen=True)
class RunOnCity:
    """A run applied to one city."""

    run: Run
    city: City
    split: Split  # in the city's rows and snapshots

    @classmethod
    def untrained(
        cls, city: City, split: Split, settings: Settings, scaling: Scaling, model: Model, folder: Path | None = None
    ) -> RunOnCity:
        """A run before its first step, on the city it will be trained on."""
        network = city.network
        rows = np.concatenate([np.flatnonzero(split.seen), np.flatnonzero(split.unseen)])
        nodes = RoadNetwork(network.node_ids[rows], network.lon[rows], network.lat[rows], Edges.none())
        masks = {name: getattr(split, name)[rows] for name in ("seen", "validation", "unseen")}
        run = Run(model, settings, scaling, nodes, replace(split, **masks), TrainedOn.of(city), folder)
        if scaling.demand is not None:
            usual = usual_counts(city.stream, split.seen, split.train)[:, rows].astype(np.float32)
            medians = usual_medians(city.stream, split.seen, split.train)[:, rows]
            run = replace(run, usual_counts=usual, usual_medians=medians)
        return cls(run, city, split)

    @property
    def model(self) -> Model:
        return self.run.model

    @property
    def settings(self) -> Settings:
        return self.run.settings

    @property
    def scaling(self) -> Scaling:
        return self.run.scaling

    @property
    def progress(self) -> TrainingState:
        return self.run.progress

    @property
    def notices(self) -> list[str]:
        """Notices for the user if the city differs from the one the run was trained on."""
        return self._view[1]

    def windows(
        self, device: torch.device | str = "cpu", *, sensors: Sequence[NDArray[np.bool_]] | None = None
    ) -> Windows:
        """The city as model input, with one demand per set of sensors [N] (default: one, of all seen sensors)."""
        if self.scaling.demand is None:
            return Windows(self.city.stream, self._view[0], device)
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            demands = list(pool.map(self.trips.demand, [self.split.seen] if sensors is None else sensors))
        networks = self.city.stream.topologies
        roads = self.trips.flow_changes(demands, networks)
        shares = None  # not per network in training: there are too many demands
        if roads is not None and sensors is None:
            shares = [[self.trips.sensor_shares(demands[0], network) for network in networks]]
        tables = DemandTables.of(demands, device, step_s=self.city.stream.step_s, roads=roads, shares=shares)
        return Windows(self.city.stream, self._view[0], device, demand=tables)

    @cached_property
    def trips(self) -> RunTrips:
        """The trips of this city, on its main network."""
        return RunTrips.of(self.run, self.city.stream.main_network, self.city)

    def predictor(self, device: torch.device, *, kernels: str = "auto") -> Predictor:
        """The model, ready to forecast on this city."""
        return Predictor(
            self.model,
            self.city.network,
            device,
            quantity=self.city.stream.quantity,
            memory_gb=self.settings.train.memory_gb,
            kernels=kernels,
        )

    @cached_property
    def _view(self) -> tuple[tuple[Topology, ...], list[str]]:
        return build_topologies(self.city.stream.topologies, self.scaling, sensors=self.split.seen, city=self.city)
