"""What a model sees of each network: computed when first asked for, then kept.

This is the one place where a network becomes model input, for training, evaluation, forecasts and live forecasts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.demand.estimate import Demand
from frigate.demand.recent_days import PastDays, RecentDays
from frigate.demand.rerouting import Rerouted
from frigate.demand.tables import DemandTables, FlowsOn
from frigate.demand.trip_model import TripModel
from frigate.nn.scaling import Description, Scaling, build_topology, describe
from frigate.nn.topology import Topology
from frigate.roads.positions import locate_anchors

KEPT = 16  # views that nobody holds any longer; a what-if is often asked again


@dataclass(frozen=True, eq=False)
class NetworkView:
    """A network as model input."""

    network: RoadNetwork
    topology: Topology
    flows: FlowsOn | None  # None without demand
    rerouted: Rerouted | None  # the effect on the first demand; None without demand, or if the roads are as usual
    notices: tuple[str, ...]


class NetworkViews:
    """Views of networks with one table of nodes.

    Parameters
    ----------
    make_topology
        Returns the topology of a network, and notices about it.
    device
        Where the tensors are.
    trips, demands
        The trips of the usual roads, and demands calibrated on them. Default: a model without demand.
    step_s
        Length of a snapshot.
    usual
        The usual roads.
    quantity
        What is forecast: "count" or a gauge.
    follow_closures
        Whether the model is told that usual roads are closed.
    """

    def __init__(
        self,
        make_topology: Callable[[RoadNetwork], tuple[Topology, list[str]]],
        device: torch.device | str = "cpu",
        *,
        trips: TripModel | None = None,
        demands: Sequence[Demand] = (),
        step_s: int = 0,
        usual: RoadNetwork | None = None,
        quantity: str = "count",
        follow_closures: bool = True,
    ) -> None:
        self.device = torch.device(device)
        self.trips = trips
        self.demands = tuple(demands)
        self._make_topology = make_topology
        self._usual = usual
        self._quantity = quantity
        self._follow_closures = follow_closures
        self._usual_tables = DemandTables.of(demands, device, step_s=step_s) if demands else None
        self._views: dict[str, NetworkView] = {}  # by fingerprint; most recently used last
        self._pinned: set[str] = set()
        self._tables: tuple[tuple[NetworkView, ...], DemandTables] | None = None  # the last ones

    def past_days(self, stream: RoadNetworkStream) -> PastDays:
        """What the sensors whose usual counts are known counted in a record; nothing without demand."""
        if self.trips is None or not self.demands:
            return PastDays.none(stream.step_s, np.zeros(0, np.int64))
        sensors = np.flatnonzero(np.any([demand.sensors for demand in self.demands], axis=0))
        return PastDays.of(stream, sensors, self.trips.network)

    def recent_days(self, days: PastDays) -> RecentDays | None:
        """Past days beside the usual counts; None if one of them is not known."""
        if self.trips is None or not len(days.sensors):
            return None
        return RecentDays.of(days, self.trips.usual_counts, self.trips.usual_week, self.device)

    @classmethod
    def of_scaling(
        cls,
        scaling: Scaling,
        usual: RoadNetwork,
        device: torch.device | str = "cpu",
        *,
        sensors: np.ndarray,
        city: City | Path | None = None,
        trips: TripModel | None = None,
        demands: Sequence[Demand] = (),
        step_s: int = 0,
        quantity: str = "count",
        follow_closures: bool = True,
    ) -> NetworkViews:
        """Views for a model with this scaling.

        Places are described by the whole map, with the roads that are closed: a closure changes who can drive where
        (the topology and demand), not what kind of place a crossing is. So a record of many closures costs little.

        Parameters
        ----------
        scaling
            Its anchors are located on the usual roads.
        usual
            The usual roads.
        sensors
            [N] bool, the nodes that may have readings.
        city
            The city, or its folder, whose stored road features are used.
        quantity, follow_closures
            As for `NetworkViews`.
        """
        anchors, notice = (None, "") if scaling.anchors is None else locate_anchors(usual, scaling.anchors)
        known: dict[str, Description] = {}

        def make_topology(network: RoadNetwork) -> tuple[Topology, list[str]]:
            everything = usual.map_with(network)
            key = everything.fingerprint
            if key not in known:
                known[key] = describe(everything, scaling, sensors=sensors, city=city)
            topology = build_topology(network, scaling, known[key], anchors=anchors)
            return topology, [*filter(None, [notice, known[key].notice])]

        return cls(
            make_topology,
            device,
            trips=trips,
            demands=demands,
            step_s=step_s,
            usual=usual,
            quantity=quantity,
            follow_closures=follow_closures,
        )

    @classmethod
    def of_topologies(cls, networks: Sequence[RoadNetwork], topologies: Sequence[Topology]) -> NetworkViews:
        """Views of a few networks whose topologies are known. No others can be asked for."""
        known = {network.fingerprint: topology for network, topology in zip(networks, topologies, strict=True)}
        return cls(lambda network: (known[network.fingerprint], []), topologies[0].presence.device)

    def pin(self, networks: Sequence[RoadNetwork]) -> None:
        """Keep the views of these networks for good."""
        self._pinned |= {network.fingerprint for network in networks}

    def view(self, network: RoadNetwork) -> NetworkView:
        key = network.fingerprint
        view = self._views.pop(key) if key in self._views else self._make(network)
        self._views[key] = view
        for old in [key for key in self._views if key not in self._pinned][:-KEPT]:
            del self._views[old]
        return view

    def _make(self, network: RoadNetwork) -> NetworkView:
        as_usual = network if self._usual is None else self._usual.despite_closures(network)
        topology, notices = self._make_topology(network if self._follow_closures else as_usual)
        if self._quantity != "count" and as_usual.fingerprint != network.fingerprint:
            notices = [*notices, about_closures_of_gauge(self._quantity, told=self._follow_closures)]
        flows = None
        rerouted = None
        if self.trips is not None and self.demands:
            if network.fingerprint == self.trips.network.fingerprint:
                flows = FlowsOn(torch.ones(len(self.demands), network.num_nodes, device=self.device), None)
            else:
                flows, rerouted = self._flows(network)
                notices = [*notices, *about_detours(rerouted, network)]
        return NetworkView(network, topology.to(self.device), flows, rerouted, tuple(notices))

    def _flows(self, network: RoadNetwork) -> tuple[FlowsOn, Rerouted]:
        assert self.trips is not None
        each = self.trips.rerouted(self.demands, network)
        change = torch.from_numpy(np.stack([rerouted.node_change for rerouted in each])).to(self.device)
        if len(self.demands) > 1:  # in training: shares of so many demands take too much memory
            return FlowsOn(change, None), each[0]
        shares = self.trips.sensor_shares(self.demands[0], network)
        arrays = (shares.sensor, shares.share, shares.rest)
        sensor, share, rest = (torch.from_numpy(array)[None].to(self.device) for array in arrays)
        return FlowsOn(change, (sensor, share, rest)), each[0]

    def tables(self, views: Sequence[NetworkView]) -> DemandTables | None:
        """Demand on these networks, as topologies 0, 1, ...; None for a model without demand."""
        usual = self._usual_tables
        if usual is None or all(view.rerouted is None for view in views):
            return usual
        if self._tables is None or self._tables[0] != tuple(views):
            self._tables = tuple(views), usual.on([view.flows for view in views if view.flows is not None])
        return self._tables[1]


def about_closures_of_gauge(quantity: str, *, told: bool) -> str:
    """A notice about closed roads where no demand reroutes anyone; `told`: whether the model knows of them."""
    left_out = f"{quantity} is not forecast on closed roads"
    if told:
        return f"{left_out}, and how it changes on detours was never learned."
    return f"{left_out}, and detours are not modelled: elsewhere it is forecast as if no road were closed."


def about_detours(rerouted: Rerouted, network: RoadNetwork) -> list[str]:
    """Notices about rerouted trips."""
    notices = []
    nobody = network.node_ids[(rerouted.node_change == 0) & network.present]
    if len(nobody):
        notices.append(f"nobody can pass {named(nobody.tolist())} any more: forecast as 0.")
    if rerouted.lost >= 0.001:
        notices.append(f"{rerouted.lost:.1%} of the vehicles can no longer get to where they were going.")
    return notices


def named(ids: Sequence[object], what: str = "node") -> str:
    """The first of some nodes or roads, and how many there are."""
    first = (", " if what == "node" else "; ").join(map(str, ids[:3]))
    if len(ids) == 1:
        return f"{what} {first}"
    return f"{len(ids):,} {what}s ({first}{', ...' if len(ids) > 3 else ''})"
