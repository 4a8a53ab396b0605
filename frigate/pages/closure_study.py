"""A closed road of the demo city: the forecast change in flow compared with the simulated one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frigate.calendar import HOUR_S
from frigate.evaluation.closures import LeftOfChange, left_of_change
from frigate.evaluation.evaluate import forecaster_of
from frigate.pages.closures import BeforeAfter, ClosureView, list_changes
from frigate.pages.layers import VEHICLES_PER_HOUR
from frigate.simulate.demo_city import usual_weekday
from frigate.text import percent, three_digits
from frigate.training.run import RunOnCity

HOURS = range(9, 18)  # of a weekday, as in benchmarks/closures.py


@dataclass(frozen=True)
class ClosureStudy:
    """The closure of a street of the demo city on a weekday. Flows are vehicles per hour, means over HOURS."""

    name: str
    view: ClosureView  # before, after as forecast, after as simulated
    unseen: int  # number of intersections scored
    left: LeftOfChange  # at intersections without a sensor, as in benchmarks/closures.py

    def summary(self) -> str:
        """The score in words."""
        return _summary(self.name, self.unseen, self.left)


def study_closure(run: RunOnCity, names: Sequence[str], *, seed: int, intersections: int) -> ClosureStudy:
    """Close a street of the demo city: reroute the run's estimated trips, and simulate the town without the street.

    Parameters
    ----------
    run
        A run with demand, on the demo city.
    names
        Street names; the one with the largest estimated flow is closed.
    seed, intersections
        As used for the demo city.
    """
    forecaster = forecaster_of(run, None)
    split = run.split
    network = forecaster.usual_roads
    demand = forecaster.demand
    assert demand is not None
    flow = demand.road_flow.mean(0)
    name = max(names, key=lambda each: float(flow[network.edges.name == each].sum()))
    rows = np.flatnonzero(network.edges.name == name)
    ends = network.node_ids[[network.senders[rows], network.receivers[rows]]].T.tolist()
    closed = network.close([(a, b) for a, b in ends])
    rerouted = forecaster.rerouted(closed)
    assert rerouted is not None
    truth = usual_weekday([network, closed], seed=seed, intersections=intersections, hours=HOURS)
    per_hour = HOUR_S / run.city.stream.step_s
    hours = slice(HOURS.start, HOURS.stop)
    before = per_hour * demand.road_flow[hours].mean(0, dtype=np.float64)
    node_before = per_hour * demand.node_flow[hours].mean(0, dtype=np.float64)
    after = before * rerouted.road_change
    node_after = node_before * rerouted.node_change
    left = left_of_change(truth[0].node, truth[1].node, truth[0].node * (rerouted.node_change - 1), split.unseen)
    on_roads = left_of_change(truth[0].road, truth[1].road, after - before, np.ones(network.num_edges, bool)).everywhere
    lost = f" {percent(rerouted.lost)} of all vehicles can no longer reach their destination."
    words = (
        f"Both directions close on a weekday. Nothing is retrained: the trips that Frigate estimated from "
        f"{int(split.seen.sum()):,} sensors are rerouted. The town is simulated, so the true effect is known: the "
        "simulation is run again without the bridge.",
        _summary(name, int(split.unseen.sum()), left),
    )
    notes = (
        f"Before the closure, Frigate estimates {three_digits(before[rows].sum())} vehicles per hour on the bridge; "
        f"the simulation has {three_digits(truth[0].road[rows].sum())}.{lost if rerouted.lost >= 0.001 else ''}",
        "The forecast change at an intersection is the simulated flow before, times the relative change that Frigate "
        "forecasts. An intersection changes much if its flow changes by more than 60 vehicles per hour and 20 %. On "
        f"the roads of this map, with Frigate's own estimate of the flow before, {on_roads:.2f} of the change is left.",
    )
    flows = [node_before, node_after, before, after, truth[1].road, truth[1].road - truth[0].road]
    view = ClosureView(
        title=name,
        words=words,
        notices=notes,
        roads=rows,
        unit=VEHICLES_PER_HOUR,
        note=f"A weekday, mean from {HOURS.start:02}:00 to {HOURS.stop}:00",
        largest=list_changes(network, node_before, node_after),
        values=BeforeAfter(*(flow[None].astype(np.float32) for flow in flows)),
    )
    return ClosureStudy(name, view, int(split.unseen.sum()), left)


def _summary(name: str, unseen: int, left: LeftOfChange) -> str:
    text = (
        f"{name} closed: at the {unseen:,} intersections without a sensor, {left.everywhere:.2f} of the change in flow "
        "is left when the forecast change is subtracted; 1 would be no forecast, 0 a perfect one"
    )
    affected = int(left.affected.sum())
    return f"{text}. At the {affected:,} that change much: {left.at_affected:.2f}." if affected else f"{text}."
