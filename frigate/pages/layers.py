"""The layers of the map page: values of roads and nodes, when they hold, and how they are coloured.

`page/src/layers.ts` reads them. A layer has one frame, or one for each time of a day, or one for each hour of each kind
of day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.stream import RoadNetworkStream

Array = NDArray[Any]


@dataclass(frozen=True)
class Unit:
    """What a value counts or measures."""

    text: str
    per_s: int | None = None  # seconds that vehicles are counted for; None: not a count

    @classmethod
    def of(cls, stream: RoadNetworkStream) -> Unit:
        """The unit of a stream's readings."""
        if stream.quantity == "count":
            return cls(stream.unit or "count", stream.step_s)
        return cls(stream.unit or stream.quantity)

    def meta(self) -> dict[str, Any]:
        return {"text": self.text, "per_s": self.per_s}


VEHICLES_PER_HOUR = Unit("vehicles", 3600)


@dataclass(frozen=True)
class Colours:
    """The classes of values.

    A palette is "flow", "error", "change" (of both signs), "kind" (of no order) or "fit" (right, too high, too low).
    """

    palette: str
    edges: tuple[float, ...] | None = None  # between the classes; None: round numbers that fit the values
    texts: tuple[str, ...] = ()  # of the classes; (): made from the edges
    group: str = ""  # values of the same group share their classes

    def meta(self) -> dict[str, Any]:
        return {"palette": self.palette, "edges": self.edges, "texts": self.texts or None, "group": self.group}


@dataclass(frozen=True)
class Band:
    """Intervals of values, of the same shape."""

    lower: Array
    upper: Array
    level: float  # percent


@dataclass(frozen=True)
class Values:
    """Values of roads or of nodes; NaN is no value."""

    of: Array  # [F,E] or [F,N], or [F,V] with `at`
    unit: Unit
    colours: Colours
    minus: Array | None = None  # as `of`; the page subtracts it
    at: NDArray[np.int64] | None = None  # [V] rows that have values; None: all
    spread: Array | None = None  # [E] or [N] standard deviation of the logarithm of the values
    band: Band | None = None


@dataclass(frozen=True)
class Layer:
    """One thing that the map shows."""

    key: str
    title: str
    roads: Values | None = None
    nodes: Values | None = None
    times: Sequence[str] = ()  # of the frames, ISO
    kinds: Sequence[str] = ()  # of days, each with a frame for every hour
    note: str = ""  # instead of a time, if there is one frame
    crossed: Array | None = None  # rows of nodes to cross out
    crossed_roads: Array | None = None  # rows of roads to cross out
    crossed_text: str = ""  # what the crosses mean
    closed: Array | None = None  # [F] which of the page's sets of closed roads holds
    planned: Array | None = None  # rows of roads that the layer takes as closed


class Packing:
    """Arrays by name, for a container. An array that is put in twice is stored once."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._name_of: dict[int, str] = {}

    def put(self, array: Array | None, name: str) -> str | None:
        """The name under which the array is stored."""
        if array is None:
            return None
        known = self._name_of.get(id(array))
        if known is None:
            known = self._name_of[id(array)] = name
            self.arrays[name] = array
        return known

    def band(self, band: Band | None, name: str) -> dict[str, Any] | None:
        """A band as JSON, with its arrays by name."""
        if band is None:
            return None
        ends = {end: self.put(getattr(band, end), f"{name}.{end}") for end in ("lower", "upper")}
        return {**ends, "level": band.level}

    def layer(self, layer: Layer) -> dict[str, Any]:
        """A layer as JSON, with its arrays by name."""
        key = layer.key
        return {
            "key": key,
            "title": layer.title,
            "roads": self._values(layer.roads, f"{key}.roads"),
            "nodes": self._values(layer.nodes, f"{key}.nodes"),
            "times": list(layer.times),
            "kinds": list(layer.kinds),
            "note": layer.note,
            "crossed": self.put(_rows(layer.crossed), f"{key}.crossed"),
            "crossed_roads": self.put(_rows(layer.crossed_roads), f"{key}.crossed_roads"),
            "crossed_text": layer.crossed_text,
            "closed": self.put(layer.closed, f"{key}.closed"),
            "planned": self.put(_rows(layer.planned), f"{key}.planned"),
        }

    def _values(self, values: Values | None, name: str) -> dict[str, Any] | None:
        if values is None:
            return None
        return {
            "of": self.put(values.of, name),
            "minus": self.put(values.minus, f"{name}.minus"),
            "at": self.put(_rows(values.at), f"{name}.at"),
            "spread": self.put(values.spread, f"{name}.spread"),
            "band": self.band(values.band, name),
            "unit": values.unit.meta(),
            **values.colours.meta(),
        }


def _rows(rows: Array | None) -> Array | None:
    return None if rows is None else np.asarray(rows, np.uint32)
