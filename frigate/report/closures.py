"""Closed roads in a report: the flow before and after, the largest changes, and what to say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.data.network import RoadNetwork
from frigate.report.day import ClosedDay, Day

LISTED = 10
MAX_NAMES = 3  # of streets in a title


@dataclass(frozen=True)
class ClosureView:
    """What a report shows of closed roads: `ClosureMeta` of page/src/report.ts, and its arrays."""

    title: str
    words: tuple[str, ...]
    notices: tuple[str, ...]
    roads: NDArray[np.int64]  # rows of the usual roads
    unit: str
    note: str  # which hours values are of, where they are not of the times of the day
    largest: list[dict[str, Any]]
    arrays: dict[str, NDArray[np.float32]] = field(repr=False)  # by name; of the times of the day, or one row each

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
    """The day with roads closed beside the day as it was forecast."""
    sensors = int(day.run.split.seen.sum())
    if day.demand is not None:
        how = f"the trips that Frigate estimated from {sensors:,} sensors are routed by other ways"
    else:
        how = "the model forecasts again without these roads. It knows of no trips that could take other ways"
    words = f"Had {_roads(day.network, len(closed.roads))} been closed all along. Nothing is trained again: {how}."
    return ClosureView(
        title=title_of(day.network, closed.roads),
        words=(words,),
        notices=closed.notices,
        roads=closed.roads,
        unit=unit,
        note="",
        largest=largest_changes(day.network, day.forecast.mean(0), closed.forecast.mean(0)),
        arrays={"after": closed.forecast, "road_after": closed.road_flow},
    )


def title_of(network: RoadNetwork, roads: NDArray[np.int64]) -> str:
    """The streets of some roads, or their ends where streets have no names."""
    names = list(dict.fromkeys(filter(None, network.edges.name[roads].tolist())))
    if not names:
        ids = network.node_ids
        names = [f"{ids[network.senders[road]]} → {ids[network.receivers[road]]}" for road in roads.tolist()]
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def largest_changes(
    network: RoadNetwork, before: NDArray[np.floating], after: NDArray[np.floating]
) -> list[dict[str, Any]]:
    """The nodes [N] that change most, the largest first."""
    change = np.nan_to_num(np.abs(after - before))
    order = np.argsort(-change, kind="stable")[:LISTED]
    ids, streets = network.node_ids.tolist(), network.streets
    return [
        {"node": ids[n], "street": str(streets[n]), "before": float(before[n]), "after": float(after[n])}
        for n in order[change[order] > 0].tolist()
    ]


def _roads(network: RoadNetwork, count: int) -> str:
    word = "turn" if len(network.lines) else "road"
    return f"this {word}" if count == 1 else f"these {count:,} {word}s"
