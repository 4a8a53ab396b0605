"""How demand is estimated: the searches that trips are made up by, and a few numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from frigate.config import made_of, require, require_between, require_kinds
from frigate.demand.route_search import LineGraph, SearchSettings
from frigate.draws import Draw, seed_of

SEARCHES = 800  # a set: fewer leave parts of a town without trips
NODES_PER_SEARCH = 48  # in a large network: with 16 sets a node is the origin of 8 trips and lies on hundreds
USUAL_SEARCHES = (  # where too few sensors are known to choose: drivers differ
    SearchSettings(turn_s=20.0, noise=0.2),
    SearchSettings(turn_s=40.0, noise=0.6, fast_ends=2.0),
    SearchSettings(turn_s=80.0, noise=0.2, shortness=2.0, crossing_s=0.0),
    SearchSettings(turn_s=10.0, noise=0.4, fast_ends=1.0, speed_weight=1.5),
)


@dataclass(frozen=True)
class DemandSettings:
    """How demand is estimated. `tuning.choose_settings` finds the searches of a city by hiding sensors.

    A forecast's least absolute error is at the median, which lies under the mean: counts are skewed (`below_mean`), and
    so is what is known of a flow (`below_share`). A sensor's own median is known (`own_median`).
    """

    searches: tuple[SearchSettings, ...] = USUAL_SEARCHES  # of the route sets, in turn
    sets: int = 16  # route sets with other trips; the flow is their median
    iterations: int = 60  # of the calibration
    hold: float = 0.03  # weight of the trip numbers that the calibration begins with; 1: that of a sensor
    power: float = 0.75  # of the last hour's change: how much of it is expected to last through the coming hour
    below_mean: float = 0.4  # vehicles
    below_share: float = 0.05  # of the flow where there is no sensor
    own_median: float = 0.5  # weight of what a sensor says itself of how far its median lies under its mean

    def __post_init__(self) -> None:
        require_kinds(self)
        require(len(self.searches) > 0, "searches", self.searches, "give at least one")
        require_between(self, 1, 1000, "sets", "iterations")
        require_between(self, 0, 1, "hold", "power", "below_share", "own_median")
        require_between(self, 0, 1e6, "below_mean")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DemandSettings:
        return made_of(cls, data | {"searches": tuple(made_of(SearchSettings, each) for each in data["searches"])})


def num_searches(graph: LineGraph) -> int:
    """Of a route set: one from every road of a small network, and as many as its nodes ask for in a large one."""
    return max(min(SEARCHES, graph.num_roads), graph.num_nodes // NODES_PER_SEARCH)


def route_seed(seed: int, k: int) -> int:
    """The seed that the trips of set k are searched with."""
    return seed_of(seed, Draw.TRIPS, k)


def set_searches(settings: DemandSettings) -> list[SearchSettings]:
    """The search of each set."""
    return [settings.searches[k % len(settings.searches)] for k in range(settings.sets)]
