"""A closed road in the report: the flow before, as forecast and as simulated, and how much of the change is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.demand.flows import HOUR_S
from frigate.evaluation.closures import LeftOfChange, left_of_change
from frigate.report.demand_page import UNIT
from frigate.report.road_map import RoadLayer, RoadMap, road_lines_data
from frigate.simulate.demo_city import UsualFlow, usual_weekday
from frigate.training.run import RunOnCity

HOURS = range(9, 18)  # of a weekday: as many as in benchmarks/closures.py


@dataclass(frozen=True)
class ClosureStudy:
    """Roads of the demo city that close on a weekday. Flows are vehicles an hour, means over some hours."""

    name: str
    maps: tuple[RoadMap, ...]  # before, forecast, simulated; the change as forecast and as simulated
    sensors: int
    unseen: int  # intersections that are scored
    left: LeftOfChange  # at intersections without a sensor, as benchmarks/closures.py has it
    left_on_roads: float  # of all roads, by the estimated flows that the maps show
    before: float  # vehicles an hour on the closed roads, estimated
    simulated_before: float
    lost: float  # share of the vehicles that can no longer get to where they were going

    @property
    def lines(self) -> dict[str, Any]:
        return road_lines_data(self.maps[0].network)

    def summary(self) -> str:
        """How much of the change is left, in words."""
        text = (
            f"{self.name} closed: at the {self.unseen:,} intersections without a sensor, {self.left.everywhere:.2f} of "
            "the change in flow is left when the forecast change is subtracted; 1 would be no forecast, 0 a perfect one"
        )
        affected = int(self.left.affected.sum())
        return f"{text}. At the {affected:,} that change much: {self.left.at_affected:.2f}." if affected else f"{text}."


def study_closure(run: RunOnCity, names: Sequence[str], *, seed: int, intersections: int) -> ClosureStudy:
    """Close a street of the demo city: route the trips again that a run knows of, and simulate the town again.

    Parameters
    ----------
    run
        A run with demand, on the demo city.
    names
        Of streets; the one with the largest estimated flow closes.
    seed, intersections
        Those of the demo city.
    """
    trips, split = run.trips, run.split
    network, demand = trips.network, trips.demand(split.seen)
    flow = demand.road_flow.mean(0)
    name = max(names, key=lambda each: float(flow[network.edges.name == each].sum()))
    rows = np.flatnonzero(network.edges.name == name)
    ends = network.node_ids[[network.senders[rows], network.receivers[rows]]].T.tolist()
    closed = network.close([(a, b) for a, b in ends])
    (rerouted,) = trips.rerouted([demand], closed)
    truth = usual_weekday([network, closed], seed=seed, intersections=intersections, hours=HOURS)
    before = demand.road_flow[HOURS.start : HOURS.stop].mean(0, dtype=np.float64) * (HOUR_S / run.city.stream.step_s)
    after = before * rerouted.road_change
    forecast = truth[0].node * (rerouted.node_change - 1)
    every_road = np.ones(network.num_edges, bool)
    closed_map = RoadMap("", network, (), marked=tuple(rows.tolist()), mark="closed", closed=True)
    return ClosureStudy(
        name=name,
        maps=_maps(closed_map, before, after, truth),
        sensors=int(split.seen.sum()),
        unseen=int(split.unseen.sum()),
        left=left_of_change(truth[0].node, truth[1].node, forecast, split.unseen),
        left_on_roads=left_of_change(truth[0].road, truth[1].road, after - before, every_road).everywhere,
        before=float(before[rows].sum()),
        simulated_before=float(truth[0].road[rows].sum()),
        lost=rerouted.lost,
    )


def _maps(
    closed: RoadMap, before: NDArray[np.float64], after: NDArray[np.float64], truth: list[UsualFlow]
) -> tuple[RoadMap, ...]:
    """Maps of one scale for the flows, and of one for the changes."""
    flows = np.stack([before, after, truth[1].road])
    changes = np.stack([after - before, truth[1].road - truth[0].road])
    flow_titles = "Before, estimated", "After, forecast", "After, simulated"
    layers = [
        RoadLayer.of_flow(title, flow[None], UNIT, like=flows) for title, flow in zip(flow_titles, flows, strict=True)
    ]
    layers += [
        RoadLayer.of_change(title, change[None], UNIT, like=changes)
        for title, change in zip(("Change, forecast", "Change, simulated"), changes, strict=True)
    ]
    first, *others = (replace(closed, title=layer.name, layers=(layer,)) for layer in layers)
    return replace(first, mark="will close", closed=False), *others
