"""Collect the drivable ways of a map file into arrays, for every file format."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.coordinates import on_earth
from frigate.errors import CityError
from frigate.reading.notices import Notices
from frigate.sources.osm.tags import RoadKind, road_kind

IDS = np.iinfo(np.int64)


@dataclass(frozen=True)
class RawTurn:
    """A turn restriction between two ways at a node, as tagged: no_left_turn, only_straight_on, ..."""

    kind: str
    from_way: int
    via_node: int
    to_way: int


@dataclass(frozen=True)
class RawRoads:
    """W ways and the M nodes on them."""

    node_ids: NDArray[np.int64]  # [M] ascending
    lon: NDArray[np.float64]  # [M] degrees; NaN where not in the file
    lat: NDArray[np.float64]  # [M]
    refs: NDArray[np.int64]  # rows of node_ids, one way after the other
    way_of: NDArray[np.int64]  # the way of each ref
    way_ids: NDArray[np.int64]  # [W]
    kind_of: NDArray[np.int64]  # [W] row of kinds
    length_m: NDArray[np.float64]  # [W] as stated in the file; NaN: from the coordinates
    kinds: tuple[RoadKind, ...]
    turns: tuple[RawTurn, ...]


@dataclass
class Gathered:
    """Collects ways and restrictions while a file is read. Takes 8 bytes per node of a kept road."""

    highways: Collection[str]
    notices: Notices
    refs: array[int] = field(default_factory=lambda: array("q"))
    way_ends: array[int] = field(default_factory=lambda: array("q"))
    way_ids: array[int] = field(default_factory=lambda: array("q"))
    kind_of: array[int] = field(default_factory=lambda: array("q"))
    length_m: array[float] = field(default_factory=lambda: array("d"))
    kinds: dict[RoadKind, int] = field(default_factory=dict)
    turns: list[RawTurn] = field(default_factory=list)

    def add_way(self, way_id: int, refs: Sequence[int], tags: Mapping[str, str]) -> None:
        """Keep a way if it is drivable."""
        kind = road_kind(tags, highways=self.highways, notices=self.notices)
        if kind is not None:
            self.add_kind(way_id, refs, kind)

    def add_kind(self, way_id: int, refs: Sequence[int], kind: RoadKind, *, length_m: float = np.nan) -> None:
        if len(refs) < 2:
            self.notices.add("Ways of fewer than two nodes were left out", 1)
            return
        self.refs.extend(refs)
        self.way_ends.append(len(self.refs))
        self.way_ids.append(way_id)
        self.kind_of.append(self.kinds.setdefault(kind, len(self.kinds)))
        self.length_m.append(length_m)

    def add_turn(self, tags: Mapping[str, str], members: Iterable[tuple[str, str, int]]) -> None:
        """Keep a turn restriction for cars; members are (role, "n" | "w" | "r", id)."""
        kind = tags.get("restriction:motorcar") or tags.get("restriction") or ""
        if not kind.startswith(("no_", "only_")):
            return  # for lorries, conditional, or no longer valid
        exempt = {word.strip() for word in tags.get("except", "").split(";")}
        if exempt & {"motorcar", "motor_vehicle", "vehicle"}:
            return
        role: dict[tuple[str, str], list[int]] = {}
        for name, sort, ref in members:
            role.setdefault((name, sort), []).append(ref)
        if ("via", "w") in role:
            self.notices.add("Turn restrictions via a way instead of a node were left out", 1)
            return
        ends = [role.get(key, []) for key in (("from", "w"), ("via", "n"), ("to", "w"))]
        if not all(ends) or len(ends[1]) > 1:
            self.notices.add("Turn restrictions with missing members were left out", 1)
            return
        self.turns += [RawTurn(kind, f, ends[1][0], t) for f in ends[0] for t in ends[2]]

    def wanted(self) -> NDArray[np.int64]:
        """[M] ids of the nodes on the roads, ascending."""
        return np.unique(np.frombuffer(self.refs, np.int64)) if len(self.refs) else np.zeros(0, np.int64)

    def roads(self, node_ids: NDArray[np.int64], lon: NDArray[np.float64], lat: NDArray[np.float64]) -> RawRoads:
        """The ways with the coordinates of their nodes. The last of several ways with the same id is kept."""
        ends = np.array(self.way_ends, np.int64)
        ids = np.array(self.way_ids, np.int64)
        way_of = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        last = np.zeros(len(ids), bool)
        last[len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]] = True
        self.notices.add("Ways with the id of a later way were left out", int((~last).sum()))
        kept = last[way_of]
        return RawRoads(
            node_ids,
            lon,
            lat,
            np.searchsorted(node_ids, np.array(self.refs, np.int64)[kept]),
            way_of[kept],
            ids,
            np.array(self.kind_of, np.int64),
            np.array(self.length_m, np.float64),
            tuple(self.kinds),
            tuple(self.turns),
        )


def checked_places(
    path: Path, lon: NDArray[np.float64], lat: NDArray[np.float64], notices: Notices, *, hint: str = ""
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The coordinates, NaN where impossible: not on earth, or (0, 0), where there is no road."""
    known = ~(np.isnan(lon) | np.isnan(lat))
    off = known & ~on_earth(lon, lat)
    zero = known & (lon == 0) & (lat == 0)
    if off.sum() * 2 > max(known.sum(), 1):
        row = int(np.argmax(off))
        swapped = on_earth(lat, lon)[row]
        remedy = hint or ("Its lon and lat look swapped" if swapped else "Degrees of WGS84 are expected")
        raise CityError(
            f"{path.name}: lon {lon[row]:g}, lat {lat[row]:g} is not a place on earth. "
            f"The same holds for {int(off.sum()):,} of {int(known.sum()):,} nodes. {remedy}"
        )
    notices.add("Nodes whose coordinates are not on earth were treated as missing", int(off.sum()))
    notices.add("Nodes at longitude 0 and latitude 0 were treated as missing", int(zero.sum()))
    wrong = ~known | off | zero  # a NaN in one makes both NaN
    return np.where(wrong, np.nan, lon), np.where(wrong, np.nan, lat)
