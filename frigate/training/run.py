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
from frigate.city.city import City
from frigate.city.folder import excluding, open_city
from frigate.city.network import SAME_PLACE_M, Edges, RoadNetwork
from frigate.city.split import NODES, Period, Split
from frigate.city.stream import RoadNetworkStream
from frigate.config import BaselineSettings, ModelSettings, Settings
from frigate.coordinates import haversine_m
from frigate.demand.count_profiles import usual_counts, usual_medians, usual_week
from frigate.demand.trip_model import TripModel
from frigate.errors import CheckpointError, FrigateError, SettingsError
from frigate.nn.forecast_model import ForecastModel
from frigate.nn.model import default, paper
from frigate.nn.network_views import NetworkViews
from frigate.nn.scaling import Scaling
from frigate.nn.windows import Windows
from frigate.notebook import card
from frigate.roads.feature_cache import features_of
from frigate.text import duration, unit_text
from frigate.training.intervals import Intervals, parse_level

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
    usual_roads: str  # fingerprint of the roads that are open in most snapshots of the training period
    changes: str  # digest of the sequence of networks and when each begins
    readings: str  # digest
    start_s: int
    step_s: int
    snapshots: int
    quantity: str
    unit: str
    timezone: str
    excluded: tuple[str, ...] = ()  # readings excluded in addition to those in its city.toml

    @classmethod
    def of(cls, city: City, train: Period) -> TrainedOn:
        """`train` is the training period."""
        stream = city.stream
        return cls(
            name=city.name,
            folder=city.folder,
            network=city.network.fingerprint,
            usual_roads=stream.usual_network(train).fingerprint,
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
    prints = np.array([network.fingerprint for network in stream.networks])[stream.network_of]  # [S]
    turns = np.flatnonzero(prints[1:] != prints[:-1]) + 1
    course = [*prints[:1].tolist(), *(f"{stream.times_s[turn]} {prints[turn]}" for turn in turns)]
    return hashlib.sha256("\n".join(course).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """A trained model with everything it needs to forecast, except the city.

    `nodes` are the seen, unseen and left out nodes with id and location, without roads. `split` refers to their rows;
    its periods are in snapshots since `trained_on.start_s`. `usual_counts` and `usual_medians` are from the training
    period, by kind of day and hour, for a model with demand; NaN at other than seen nodes, and in hours without a
    reading.
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
    usual_week: NDArray[np.float32] | None = None  # [W,n]; runs of 0.1.0 have none
    intervals: Intervals | None = None  # None: not measured, or the weights have changed since

    def __repr__(self) -> str:
        where = f", in {self.folder}" if self.folder is not None else ""
        about = f"{self._split_text()}, {self._progress_text()}{where}"
        return f"<Run of {self.settings.model.label} on {self.trained_on.name!r}: {about}>"

    def _repr_html_(self) -> str:
        about = self.trained_on
        task = self.settings.task
        shown = {
            "city": about.name,
            "sensors": self._split_text(),
            "training": self._progress_text(),
            "forecasts": f"{task.horizon} steps of {duration(about.step_s)}, from {task.past} snapshots",
            "unit": unit_text(about.quantity, about.unit, about.step_s),
            "folder": self.folder or "in memory",
        }
        return card(f"Run of {self.settings.model.label}", shown)

    def _split_text(self) -> str:
        return f"{int(self.split.seen.sum()):,} sensors seen, {int(self.split.unseen.sum()):,} held out"

    def _progress_text(self) -> str:
        done = f"epoch {self.progress.epoch} of {self.settings.train.epochs}"
        return f"{done}, validation MAE {self.progress.best_mae:.4g}" if self.progress.best_epoch else done

    def require_intervals(self, level: float) -> Intervals:
        """The run's intervals; SettingsError if it has none, or none of this level in percent."""
        parse_level(level)
        if self.intervals is None:
            where = "" if self.folder is None else f" -o {self.folder}"
            raise SettingsError(
                f"level = {level:g}: this run has no intervals: its training was stopped, its record has too few "
                "sensors or windows to measure them on, or it was made by an earlier version. Measure them with "
                f"frigate train CITY{where} --resume"
            )
        self.intervals.checked(level)
        return self.intervals

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
        name = self.folder or "the run"
        where = self.trained_on.folder
        remedy = "Pass the city, or name its folder with --city CITY"
        if where is None:
            raise CheckpointError(f"{name}: trained on {self.trained_on.name}, a city in memory. {remedy}")
        try:
            city = open_city(where, exclude=self.trained_on.excluded)
        except FrigateError as error:
            raise CheckpointError(f"{name}: the city it was trained on cannot be opened: {error}. {remedy}") from error
        return excluding(city, exclude)

    @property
    def follows_closures(self) -> bool:
        """Whether the model is told that roads are closed.

        Of counts, demand knows the detours. Of a gauge nobody does: a model that misses a road among its neighbours
        forecasts faster detours. The paper's model and the other baselines are told, as in the paper.
        """
        model = self.settings.model
        return self.trained_on.quantity == "count" or not (isinstance(model, ModelSettings) and model.roads)

    def usual_roads(self, stream: RoadNetworkStream) -> RoadNetwork:
        """The roads that are usual in a city: those of the training period, or of the whole record in another city."""
        about = self.trained_on
        first = stream.snapshot_at(about.start_s)
        period = tuple(min(max(0, first + snapshot), stream.num_snapshots) for snapshot in self.split.train)
        usual = stream.usual_network((period[0], period[1]))
        return usual if usual.fingerprint == about.usual_roads else stream.usual_network()

    def trips_on(
        self, network: RoadNetwork, city: City | Path | None = None, *, more: NDArray[np.floating] | None = None
    ) -> TripModel:
        """The trips of a network, with the run's usual counts at its nodes. The run must have demand.

        Parameters
        ----------
        network
            The usual roads.
        city
            The network's city, for its turn restrictions and cache; or a city folder, for its cache only.
        more
            [K,N] usual counts for nodes that the run does not know.
        """
        assert self.scaling.demand is not None and self.usual_counts is not None and self.usual_medians is not None
        row = network.same_nodes(self.nodes)
        usual, medians = (np.where(row >= 0, x[:, row], np.nan) for x in (self.usual_counts, self.usual_medians))
        week = None if self.usual_week is None else np.where(row >= 0, self.usual_week[:, row], np.nan)
        if more is not None:
            usual = np.where(np.isnan(usual), more, usual)
        return TripModel.of(
            network,
            self.scaling.demand,
            step_s=self.trained_on.step_s,
            usual_counts=usual,
            usual_medians=medians,
            usual_week=week,
            seed=self.settings.train.seed,
            forbidden_turns=city.forbidden_turns if isinstance(city, City) else None,
            folder=city.folder if isinstance(city, City) else city,
            features=None if self.scaling.demand.levels is None else features_of([network.map], city)[0],
        )

    def _split_on(self, city: City) -> Split:
        """The split in rows and snapshots of this city, which may have lost or gained early readings."""
        stream = city.stream
        network = city.network
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
            left_out=mask(split.left_out),
            train=left(split.train),
            validate=left(split.validate),
            test=later(split.test),
        )


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
        rows = np.concatenate([np.flatnonzero(each) for each in (split.seen, split.unseen, split.left_out)])
        nodes = RoadNetwork(network.node_ids[rows], network.lon[rows], network.lat[rows], Edges.none())
        masks = {name: getattr(split, name)[rows] for name in NODES}
        run = Run(model, settings, scaling, nodes, replace(split, **masks), TrainedOn.of(city, split.train), folder)
        if scaling.demand is not None:
            usual = usual_counts(city.stream, split.seen, split.train)
            medians = usual_medians(city.stream, split.seen, split.train)[:, rows]
            week = usual_week(city.stream, split.seen, usual, split.train)[:, rows]
            run = replace(run, usual_counts=usual[:, rows].astype(np.float32), usual_medians=medians, usual_week=week)
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

    @cached_property
    def usual_roads(self) -> RoadNetwork:
        return self.run.usual_roads(self.city.stream)

    def windows(
        self, device: torch.device | str = "cpu", *, sensors: Sequence[NDArray[np.bool_]] | None = None
    ) -> Windows:
        """The city as model input, with one demand per set of sensors [N] (default: one, of all seen sensors)."""
        trips = None
        demands = []
        if self.scaling.demand is not None:
            trips = self.run.trips_on(self.usual_roads, self.city)
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                demands = list(pool.map(trips.demand, [self.split.seen] if sensors is None else sensors))
        views = NetworkViews.of_scaling(
            self.scaling,
            self.usual_roads,
            device,
            sensors=self.split.seen,
            city=self.city,
            trips=trips,
            demands=demands,
            step_s=self.city.stream.step_s,
            quantity=self.run.trained_on.quantity,
            follow_closures=self.run.follows_closures,
        )
        return Windows(self.city.stream, views)
