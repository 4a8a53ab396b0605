"""Settings of demand estimation: the route searches that trips are sampled with, and the calibration."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.config import made_of, require, require_between, require_kinds
from frigate.demand.levels import LevelSettings
from frigate.demand.route_search import SearchSettings
from frigate.draws import Draw, seed_of
from frigate.roads.line_graph import LineGraph

SEARCHES = 800  # per route set: fewer leave parts of a town without trips
NODES_PER_SEARCH = 48  # in a large network: with 16 sets, a node is the origin of 8 trips and lies on hundreds
USUAL_SEARCHES = (  # with too few sensors to tune; varied, because drivers differ
    SearchSettings(turn_s=20.0, noise=0.2),
    SearchSettings(turn_s=40.0, noise=0.6, fast_ends=2.0),
    SearchSettings(turn_s=80.0, noise=0.2, shortness=2.0, crossing_s=0.0),
    SearchSettings(turn_s=10.0, noise=0.4, fast_ends=1.0, speed_weight=1.5),
)
FORMER_NAMES = {"below_mean": "median_gap", "below_share": "median_gap_share"}  # in runs of 0.1.0


@dataclass(frozen=True)
class ClosureResponse:
    """How drivers answer closed roads, against what the rerouted trips say: exponents of new flow over old.

    1 is as the trips say, 0 is no change at all. Where the trips say that less traffic is left, the exponent is
    `fewer`; where they say more, `more`. `closures.fit_response` learns both from the closures on a city's record.
    """

    fewer: float = 1.0
    more: float = 0.9  # some of those who lose their road stay at home: 11 % in the median of Cairns et al. (2002)

    def __post_init__(self) -> None:
        require_kinds(self)
        require_between(self, 0, 2, "fewer", "more")

    def answer(self, ratio: NDArray[np.floating]) -> NDArray[np.floating]:
        """The factor that drivers' answer makes of new flow over old."""
        answered: NDArray[np.floating] = np.where(ratio < 1, ratio**self.fewer, np.maximum(ratio, 1) ** self.more)
        return answered


@dataclass(frozen=True)
class DemandSettings:
    """How demand is estimated. `tuning.choose_settings` selects the searches for a city on held-out sensors.

    The median minimises the absolute error, and it lies below the mean: counts are skewed (`median_gap`), and so is
    the uncertainty of an estimated flow (`median_gap_share`). A sensor's own median is known (`own_median`).
    """

    searches: tuple[SearchSettings, ...] = USUAL_SEARCHES  # assigned to the route sets in turn
    sets: int = 16  # independently sampled route sets; the flow is their median
    iterations: int = 60  # of the calibration
    hold: float = 0.03  # weight of the initial trip flows in the calibration, relative to one sensor
    power: float = 0.75  # exponent of the last hour's change: how much of it should persist through the coming hour
    median_gap: float = 0.4  # vehicles between mean and median
    median_gap_share: float = 0.05  # the same as a share of the flow, in addition, where there is no sensor
    own_median: float = 0.5  # weight of a sensor's own gap between mean and median, against `median_gap`
    levels: LevelSettings | None = None  # what the sensors around say of a place; None: the trips alone
    closures: ClosureResponse = ClosureResponse()
    detour_sets: int = 16  # route sets that are rerouted: fewer where the record has many networks

    def __post_init__(self) -> None:
        require_kinds(self)
        require(len(self.searches) > 0, "searches", self.searches, "give at least one")
        require_between(self, 1, 1000, "sets", "iterations", "detour_sets")
        require_between(self, 0, 1, "hold", "power", "median_gap_share", "own_median")
        require_between(self, 0, 1e6, "median_gap")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DemandSettings:
        # Runs of 0.1.0 have trips alone, and drivers who answer closures as these say.
        named: dict[str, Any] = {"levels": None, "closures": {"fewer": 1.0, "more": 1.0}, "detour_sets": 16}
        named |= {FORMER_NAMES.get(name, name): value for name, value in data.items()}
        levels = named["levels"]
        return made_of(
            cls,
            named
            | {
                "searches": tuple(made_of(SearchSettings, each) for each in data["searches"]),
                "levels": None
                if levels is None
                else made_of(LevelSettings, levels | {"scales": tuple(levels["scales"])}),
                "closures": made_of(ClosureResponse, named["closures"]),
            },
        )


def num_searches(graph: LineGraph) -> int:
    """Searches per route set: SEARCHES, but no more than there are roads; in a large network, proportional to nodes."""
    return max(min(SEARCHES, graph.num_roads), graph.num_nodes // NODES_PER_SEARCH)


def route_seed(seed: int, k: int) -> int:
    """The seed of route set k."""
    return seed_of(seed, Draw.TRIPS, k)


def set_searches(settings: DemandSettings) -> list[SearchSettings]:
    """The search settings of each route set."""
    return [settings.searches[k % len(settings.searches)] for k in range(settings.sets)]
