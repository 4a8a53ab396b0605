"""Scales and anchors, fitted once and stored with the model; and the topologies built with them.

They are fitted on the map and on the training period's readings of seen nodes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.outliers import implausible
from frigate.city.split import Split
from frigate.city.stream import RoadNetworkStream
from frigate.config import BaselineSettings, ModelSettings, made_of, require, require_kinds
from frigate.demand.settings import DemandSettings
from frigate.nn.topology import Topology, make_topology
from frigate.roads.feature_cache import features_of
from frigate.roads.features import FeatureScaling, fit_feature_scaling
from frigate.roads.nearest_sensors import nearest_sensors
from frigate.roads.positions import Anchors, choose_anchors, distances_m, locate_anchors, position_scale_m, positions

NEAR_SENSORS = 32  # M
NEAR_CUTOFF = 50.0  # median road lengths: sensors farther away tell nothing about a node


@dataclass(frozen=True)
class Scaling:
    """The scales and anchors of one trained model."""

    value_offset: float
    value_scale: float
    length_scale_m: float  # the median road length: delta = length / this
    position_scale_m: float  # the median finite distance to an anchor
    anchors: Anchors | None  # None: a model without positions
    roads: FeatureScaling | None  # None: a model without road features
    demand: DemandSettings | None = None  # None: a model without demand

    def __post_init__(self) -> None:
        require_kinds(self)
        for name in ("value_scale", "length_scale_m", "position_scale_m"):
            require(getattr(self, name) > 0, name, getattr(self, name), "must be above 0")

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {
            "anchors": self.anchors and self.anchors.to_json(),
            "roads": self.roads and self.roads.to_json(),
            "demand": self.demand and self.demand.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Scaling:
        kinds: dict[str, Callable[[dict[str, Any]], object]] = {
            "anchors": Anchors.from_json,
            "roads": FeatureScaling.from_json,
            "demand": DemandSettings.from_json,
        }
        parts = {name: None if data[name] is None else read(data[name]) for name, read in kinds.items()}
        return made_of(cls, data | parts)


def fit_scaling(
    stream: RoadNetworkStream,
    split: Split,
    settings: ModelSettings | BaselineSettings,
    *,
    features: NDArray[np.float32] | None,
    seed: int,
) -> Scaling:
    """Fit scales and anchors. `features` are the network's raw road features; None for a model without any."""
    network = stream.usual_network(split.train)
    first, stop = split.train
    rows = np.flatnonzero(split.seen)
    values = stream.values[first:stop, rows]
    seen = stream.observed[first:stop, rows]
    seen = seen & ~implausible(values, seen)  # a single 2147483647 would scale all other readings to 0
    readings = values[seen].astype(np.float64)
    # Zero is meaningful for counts, so they are only divided; a gauge such as speed is centred as well.
    offset = 0.0 if stream.quantity == "count" or not len(readings) else float(readings.mean())
    spread = float(readings.std()) if len(readings) else 0.0
    anchors = None
    scale_m = 1.0
    if isinstance(settings, ModelSettings) and settings.anchors:
        anchors = choose_anchors(network, count=settings.anchors, choice=settings.anchor_choice, seed=seed)
        scale_m = position_scale_m(distances_m(network, anchors))
    return Scaling(
        value_offset=offset,
        value_scale=spread if spread > 0 else 1.0,
        length_scale_m=float(np.median(network.length_m)) if network.num_edges else 1.0,
        position_scale_m=scale_m,
        anchors=anchors,
        roads=None if features is None else fit_feature_scaling(features, np.flatnonzero(network.present)),
    )


@dataclass(frozen=True)
class Description:
    """What a model is told of each place: what the map says of it, and the sensors around it."""

    road_features: NDArray[np.float32]  # [N,R] standardised
    near_sensor: NDArray[np.int64]  # [N,M] as in `Topology`
    near_distance_m: NDArray[np.float32]  # [N,M]
    notice: str


def describe(
    network: RoadNetwork,
    scaling: Scaling,
    *,
    sensors: NDArray[np.bool_],
    city: City | Path | None = None,
    features: NDArray[np.float32] | None = None,
) -> Description:
    """Describe the places of a network; parameters as in `build_topologies`."""
    roads = np.zeros((network.num_nodes, 0), np.float32)
    notice = ""
    if scaling.roads is not None:
        raw = features_of([network], city)[0] if features is None else features
        roads = scaling.roads.apply(raw)
        notice = scaling.roads.notice(raw)
    cutoff_m = NEAR_CUTOFF * scaling.length_scale_m
    near, near_m = nearest_sensors(network, sensors, count=NEAR_SENSORS, cutoff_m=cutoff_m)
    return Description(roads, near, near_m, notice)


def build_topology(
    network: RoadNetwork, scaling: Scaling, described: Description, *, anchors: Anchors | None
) -> Topology:
    """A network as model input. Its anchors are those of the scaling, located on the network."""
    at = np.zeros((network.num_nodes, 0), np.float32)
    if anchors is not None:
        at = positions(distances_m(network, anchors), scaling.position_scale_m)
    return make_topology(
        network,
        positions=at,
        road_features=described.road_features,
        near_sensor=described.near_sensor,
        near_distance_m=described.near_distance_m,
    )


def build_topologies(
    networks: Sequence[RoadNetwork],
    scaling: Scaling,
    *,
    sensors: NDArray[np.bool_],
    city: City | Path | None = None,
    features: Sequence[NDArray[np.float32]] | None = None,
) -> tuple[tuple[Topology, ...], list[str]]:
    """Convert networks that share one table of nodes to model inputs; also returns notices for the user.

    Parameters
    ----------
    networks : sequence of RoadNetwork
        Each is described as it is. The model's anchors are located on the last one.
    scaling : Scaling
        The model's scaling.
    sensors : [N] bool
        The nodes that may have readings.
    city : City or folder of one, optional
        Its stored road features are used for networks that it contains; others are computed.
    features : sequence of [N,R], optional
        The raw road features, if already known.
    """
    anchors, notice = (None, "") if scaling.anchors is None else locate_anchors(networks[-1], scaling.anchors)
    raw = [None] * len(networks) if features is None else features
    described = [
        describe(network, scaling, sensors=sensors, city=city, features=known)
        for network, known in zip(networks, raw, strict=True)
    ]
    made = (
        build_topology(network, scaling, each, anchors=anchors)
        for network, each in zip(networks, described, strict=True)
    )
    return tuple(made), [notice for notice in (notice, described[-1].notice) if notice]
