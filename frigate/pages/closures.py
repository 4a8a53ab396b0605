"""Closed roads in a report: the flow before and after as layers, the largest changes, and a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.forecasting.summary import largest_changes
from frigate.pages import panels
from frigate.pages.day import ClosedDay, Day
from frigate.pages.layers import Band, Colours, Layer, Unit, Values
from frigate.pages.panels import Panel

Floats = NDArray[np.float32]

CHANGE = "closure-change"  # key of the layer that a page about a closure opens on
LISTED = 10
MAX_NAMES = 3  # streets named in a title


@dataclass(frozen=True)
class BeforeAfter:
    """Values of nodes and of roads, before and after roads close; a row for each frame."""

    before: Floats  # [F,N]
    after: Floats  # [F,N]
    road_before: Floats  # [F,E]
    road_after: Floats  # [F,E]
    road_simulated: Floats | None = None  # [F,E] after, where the truth is known
    road_simulated_change: Floats | None = None  # [F,E]
    band_before: Band | None = None
    band_after: Band | None = None


@dataclass(frozen=True)
class ClosureView:
    """What a report shows about closed roads."""

    title: str
    words: tuple[str, ...]
    notices: tuple[str, ...]
    roads: NDArray[np.int64]  # rows of the usual roads
    unit: Unit
    note: str  # the hours that the values are means over; "" if they follow the times of the day
    largest: list[dict[str, Any]]
    values: BeforeAfter = field(repr=False)

    def panel(self) -> Panel:
        names = {layer.key: layer.title.removeprefix(f"{self.title}: ") for layer in self.layers()}
        blocks = [
            panels.heading(f"{self.title} closes"),
            *(panels.words(text) for text in self.words),
            *(panels.words(text, style="note") for text in self.notices),
            panels.heading("On the map", level=3),
            panels.layer_buttons(names),
            panels.changes(self.unit, self.largest),
        ]
        return Panel("closure", "Closure", tuple(blocks))

    def layers(self, times: Sequence[str] = (), closed: NDArray[np.uint32] | None = None) -> list[Layer]:
        """Change, after and before, and what is simulated. `closed` [F]: the roads that were closed anyway."""
        each = self.values
        change = Colours("change", group="closure change")
        flow = Colours("flow", group="closure")

        def layer(name: str, roads: Values, nodes: Values | None, *, planned: bool) -> Layer:
            key = "closure-" + name.replace(", ", "-")
            rows = self.roads if planned else None
            title = f"{self.title}: {name}"
            return Layer(key, title, roads, nodes, times, note=self.note, closed=closed, planned=rows)

        def values(of: Floats, colours: Colours, minus: Floats | None = None, *, band: Band | None = None) -> Values:
            return Values(of, self.unit, colours, minus, band=band)

        roads = values(each.road_after, change, each.road_before)
        made = [
            layer("change", roads, values(each.after, change, each.before), planned=True),
            layer("after", values(each.road_after, flow), values(each.after, flow, band=each.band_after), planned=True),
            layer(
                "before",
                values(each.road_before, flow),
                values(each.before, flow, band=each.band_before),
                planned=False,
            ),
        ]
        if each.road_simulated is not None and each.road_simulated_change is not None:
            made.append(layer("after, simulated", values(each.road_simulated, flow), None, planned=True))
            made.append(layer("change, simulated", values(each.road_simulated_change, change), None, planned=True))
        return made


def view_closed_day(day: Day, closed: ClosedDay) -> ClosureView:
    """The day with roads closed, compared with the day as forecast."""
    sensors = int(day.run.split.seen.sum())
    if day.has_demand:
        how = f"the trips that Frigate estimated from {sensors:,} sensors are rerouted"
    elif day.run.run.follows_closures:
        how = "the model forecasts again without these roads. It has no trips to reroute"
    else:
        how = "these roads are left out. Detours are not modelled"
    words = f"The day as if {_roads(day.network, len(closed.roads))} closed throughout. Nothing is retrained: {how}."
    return ClosureView(
        title=title_of(day.network, closed.roads),
        words=(words,),
        notices=closed.notices,
        roads=closed.roads,
        unit=Unit.of(day.run.city.stream),
        note="",
        largest=list_changes(day.network, day.forecast.mean(0), closed.forecast.mean(0)),
        values=BeforeAfter(
            day.forecast,
            closed.forecast,
            day.road_flow,
            closed.road_flow,
            band_before=day.band,
            band_after=closed.band,
        ),
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
