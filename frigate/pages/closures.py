"""Closed roads in a report: the flow before and after, the largest changes, and a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.forecasting.summary import largest_changes
from frigate.pages.day import ClosedDay, Day

LISTED = 10
MAX_NAMES = 3  # streets named in a title


@dataclass(frozen=True)
class ClosureView:
    """What a report shows about closed roads: `ClosureMeta` in page/src/report.ts, and its arrays."""

    title: str
    words: tuple[str, ...]
    notices: tuple[str, ...]
    roads: NDArray[np.int64]  # rows of the usual roads
    unit: str
    note: str  # the hours that the values are means over; "" if they follow the times of the day
    largest: list[dict[str, Any]]
    arrays: dict[str, NDArray[np.float32]] = field(repr=False)  # by name; a row per time of the day, or one row

    def meta(self, times: Sequence[str]) -> dict[str, Any]:
        return {
            "title": self.title,
            "words": self.words,
            "notices": self.notices,
            "roads": self.roads.tolist(),
            "times": list(times),
            "note": self.note,
            "unit": self.unit,
            "largest": self.largest,
        }


def view_closed_day(day: Day, closed: ClosedDay, unit: str) -> ClosureView:
    """The day with roads closed, compared with the day as forecast."""
    sensors = int(day.run.split.seen.sum())
    if day.has_demand:
        how = f"the trips that Frigate estimated from {sensors:,} sensors are rerouted"
    else:
        how = "the model forecasts again without these roads. It has no trips to reroute"
    words = f"The day as if {_roads(day.network, len(closed.roads))} closed throughout. Nothing is retrained: {how}."
    return ClosureView(
        title=title_of(day.network, closed.roads),
        words=(words,),
        notices=closed.notices,
        roads=closed.roads,
        unit=unit,
        note="",
        largest=list_changes(day.network, day.forecast.mean(0), closed.forecast.mean(0)),
        arrays={"after": closed.forecast, "road_after": closed.road_flow},
    )


def title_of(network: RoadNetwork, roads: NDArray[np.int64]) -> str:
    """The street names of some roads, or their ends if they have no names."""
    names = list(dict.fromkeys(filter(None, network.edges.name[roads].tolist())))
    if not names:
        ids = network.node_ids
        names = [f"{ids[network.senders[road]]} → {ids[network.receivers[road]]}" for road in roads.tolist()]
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def list_changes(
    network: RoadNetwork, before: NDArray[np.floating], after: NDArray[np.floating]
) -> list[dict[str, Any]]:
    """The nodes that change most, for the page: `Change` in page/src/service.ts."""
    ids = network.node_ids.tolist()
    streets = network.streets
    return [
        {"node": ids[n], "street": str(streets[n]), "before": float(before[n]), "after": float(after[n])}
        for n in largest_changes(before, after, count=LISTED)
    ]


def _roads(network: RoadNetwork, count: int) -> str:
    word = "turn" if len(network.lines) else "road"
    return f"this {word} were" if count == 1 else f"these {count:,} {word}s were"
