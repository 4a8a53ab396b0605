"""The lines of roads: read from WKT or WKB with shapely, measure, project to a plane, and find the nearest."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import shapely
from numpy.typing import NDArray

from frigate.city.network import Edges, RoadNetwork
from frigate.coordinates import EARTH_RADIUS_M, haversine_m, on_earth

Line = NDArray[np.float64]  # [points,2] lon, lat

EXPECTED = "LINESTRING or MULTILINESTRING in WKT, or WKB, is expected"
MEETING_DEG = 1e-6  # parts of a line whose ends are this close meet


class NotALineError(Exception):
    """Why a value is not a line, worded to follow the value."""


def read_line(value: str | bytes) -> Line:
    """Read a line from WKT, WKB or hexadecimal WKB, optionally with an SRID. Raises NotALineError."""
    srid = 0
    if isinstance(value, str):
        value = value.strip()
        if named := re.match(r"SRID\s*=\s*(\d{1,9})\s*;", value, re.I):
            srid = int(named[1])
            value = value[named.end() :]
    binary = isinstance(value, bytes) or value[:1] == "0"  # WKB begins with a byte of 0 or 1
    _check_kind(value, binary=binary)
    try:
        with np.errstate(invalid="ignore", over="ignore"):  # bad coordinates are refused below
            found = shapely.from_wkb(value) if binary else shapely.from_wkt(value)
    except (shapely.errors.ShapelyError, ValueError, TypeError) as error:
        detail = (str(error).strip().splitlines() or [""])[0].rpartition("Exception: ")[2]
        raise NotALineError(f"is not a line ({detail}). {EXPECTED}") from None
    srid = srid or int(shapely.get_srid(found))
    if srid not in (0, 4326):
        raise NotALineError(f"has SRID {srid}. Convert it to degrees of WGS84 (4326)")
    if isinstance(found, shapely.LineString):
        return _checked(shapely.get_coordinates(found))
    if isinstance(found, shapely.MultiLineString):
        return _checked(_joined([shapely.get_coordinates(part) for part in found.geoms]))
    raise NotALineError(f"is a {type(found).__name__}. A line is expected")


def _check_kind(value: str | bytes, *, binary: bool) -> None:
    """Refuse anything but lines before GEOS sees it: nested collections overflow its stack and crash it."""
    if not binary:
        word = re.match(r"[A-Za-z]{0,30}", str(value))[0].upper()  # type: ignore[index]  # it matches anything
        if word and word not in ("LINESTRING", "MULTILINESTRING", "LINEARRING"):
            raise NotALineError(f"is a {word}. A line is expected")
        return
    try:
        wkb = bytes.fromhex(value) if isinstance(value, str) else value
        kind, at, _ = _wkb_header(wkb, 0)
        if kind == 5:  # a multi-line: check its parts
            (parts,) = struct.unpack_from("<I" if wkb[0] else ">I", wkb, at)
            at += 4
            for _ in range(parts):
                kind, start, point_bytes = _wkb_header(wkb, at)
                if kind != 2:
                    break
                (points,) = struct.unpack_from("<I" if wkb[at] else ">I", wkb, start)
                at = start + 4 + points * point_bytes
    except (struct.error, IndexError, ValueError):
        raise NotALineError(f"is not a line (cut short, or not WKB). {EXPECTED}") from None
    if kind != 2:
        raise NotALineError(f"is WKB of kind {kind}. A line is expected")


def _wkb_header(wkb: bytes, at: int) -> tuple[int, int, int]:
    """The kind of geometry at this byte (2: line, 5: multi-line), where its content begins, and bytes per point."""
    (code,) = struct.unpack_from("<I" if wkb[at] else ">I", wkb, at + 1)
    kind = code & 0x1FFFFFFF  # without the EWKB flags for Z, M and SRID
    height_and_measure = (0, 1, 1, 2)[min(kind // 1000, 3)]  # ISO: 1002, 2002 and 3002 are lines too
    dimensions = 2 + bool(code & 0x80000000) + bool(code & 0x40000000) + height_and_measure
    srid = 4 if code & 0x20000000 else 0
    return kind % 1000, at + 5 + srid, 8 * dimensions


def _joined(parts: list[Line]) -> Line:
    parts = [part for part in parts if len(part)] or [np.zeros((0, 2))]
    for a, b in pairwise(parts):
        if not np.allclose(a[-1], b[0], rtol=0, atol=MEETING_DEG):
            raise NotALineError("has parts that do not meet. Give each part its own row")
    return np.concatenate([parts[0], *(part[1:] for part in parts[1:])])


def _checked(line: Line) -> Line:
    if len(line) < 2:
        raise NotALineError("has fewer than two points")
    lon, lat = line.T
    if not on_earth(lon, lat).all():
        swapped = on_earth(lat, lon).all()
        hint = "its coordinates look swapped" if swapped else "degrees of WGS84 are expected"
        raise NotALineError(f"is not on earth; {hint}")
    if not line.any(axis=1).all():
        raise NotALineError("has a point at (0, 0), which usually means an unknown place")
    return line


def write_line(line: Line) -> bytes:
    """WKB, little-endian, two coordinates."""
    return struct.pack("<BII", 1, 2, len(line)) + np.ascontiguousarray(line, "<f8").tobytes()


def road_lines(nodes: RoadNetwork, edges: Edges) -> tuple[list[Line], NDArray[np.bool_]]:
    """The line of every road, straight from node to node if it has none; and [E] which could not be read."""
    ends = np.stack([edges.senders, edges.receivers], axis=1)
    lines = list(np.stack([nodes.lon[ends], nodes.lat[ends]], axis=2))
    unread = np.zeros(len(edges), bool)
    for road in np.flatnonzero(edges.geometry != b"").tolist():
        try:
            lines[road] = read_line(edges.geometry[road])
        except NotALineError:
            unread[road] = True
    return lines, unread


def line_length_m(line: Line) -> float:
    return float(haversine_m(line[:-1, 0], line[:-1, 1], line[1:, 0], line[1:, 1]).sum())


@dataclass(frozen=True)
class Projection:
    """Projects to metres east and north of a place, on a plane that touches the earth at its latitude.

    Across a city, distances are accurate to a few parts per thousand.
    """

    lon: float
    lat: float

    @staticmethod
    def of(network: RoadNetwork) -> Projection:
        """A projection at the middle latitude of a network."""
        lat = network.lat[network.present]
        return Projection(float(network.lon[network.present][0]), float((lat.min() + lat.max()) / 2))

    def metres(
        self, lon: NDArray[np.float64], lat: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        east = (lon - self.lon + 180.0) % 360.0 - 180.0  # the short way, even across 180 degrees
        scale = np.radians(1.0) * EARTH_RADIUS_M
        return east * scale * np.cos(np.radians(self.lat)), (lat - self.lat) * scale

    def degrees(
        self, east_m: NDArray[np.float64], north_m: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Longitude and latitude: the inverse of `metres`."""
        scale = np.radians(1.0) * EARTH_RADIUS_M
        lon = self.lon + east_m / (scale * np.cos(np.radians(self.lat)))
        return np.where(np.abs(lon) > 180.0, (lon + 180.0) % 360.0 - 180.0, lon), self.lat + north_m / scale


@dataclass(frozen=True)
class PlaceIndex:
    """Finds the nodes, or the straight pieces of roads, near a place."""

    start: NDArray[np.float64]  # [P,2] lon, lat
    end: NDArray[np.float64]  # [P,2]
    row: NDArray[np.int64]  # [P] of the node or road
    projection: Projection
    tree: shapely.STRtree  # of the pieces, projected

    @staticmethod
    def of_roads(network: RoadNetwork, edges: Edges | None = None) -> PlaceIndex:
        """An index of every open road, or of these roads, along their lines or straight from node to node."""
        lines, _ = road_lines(network, network.edges if edges is None else edges)
        start = np.concatenate([line[:-1] for line in lines])
        end = np.concatenate([line[1:] for line in lines])
        return PlaceIndex._of(network, start, end, np.repeat(np.arange(len(lines)), [len(x) - 1 for x in lines]))

    @staticmethod
    def of_nodes(network: RoadNetwork) -> PlaceIndex:
        """An index of all present nodes."""
        present = np.flatnonzero(network.present)
        place = np.stack([network.lon[present], network.lat[present]], axis=1)
        return PlaceIndex._of(network, place, place, present)

    @staticmethod
    def _of(network: RoadNetwork, start: Line, end: Line, row: NDArray[np.int64]) -> PlaceIndex:
        projection = Projection.of(network)
        ends = np.stack([np.stack(projection.metres(*points.T), axis=1) for points in (start, end)], axis=1)
        return PlaceIndex(start, end, row, projection, shapely.STRtree(shapely.linestrings(ends)))

    def near(
        self, lon: float, lat: float, within_m: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Row, distance in metres and bearing of everything within a distance, nearest first; at least the nearest."""
        place = np.array([lon, lat])
        projected = shapely.Point(*self.projection.metres(*place))
        _, apart_m = self.tree.query_nearest(projected, return_distance=True, all_matches=False)
        # The tree's plane is scaled for another latitude: widen the search to make up for it.
        scales = np.maximum(np.cos(np.radians([lat, self.projection.lat, *self._latitudes])), 0.01)
        reach_m = max(within_m, float(apart_m[0])) * float(scales.max() / scales.min()) ** 2 + 1
        pieces = self.tree.query(projected, predicate="dwithin", distance=reach_m)
        projection = Projection(lon, lat)
        a, b = (np.stack(projection.metres(*points[pieces].T), axis=1) for points in (self.start, self.end))
        along = b - a
        share = np.clip(-(a * along).sum(axis=1) / np.maximum((along * along).sum(axis=1), 1e-12), 0, 1)
        metres = np.linalg.norm(a + share[:, None] * along, axis=1)
        order = np.lexsort((self.row[pieces], np.round(metres, 3)))  # rounded, so that both directions of a road tie
        _, first = np.unique(self.row[pieces][order], return_index=True)
        best = order[np.sort(first)]
        best = best[(metres[best] <= within_m) | (np.arange(len(best)) == 0)]
        return self.row[pieces[best]], metres[best], self.bearing_deg[pieces[best]]

    @cached_property
    def _latitudes(self) -> tuple[float, float]:
        return float(self.start[:, 1].min()), float(self.start[:, 1].max())

    @cached_property
    def bearing_deg(self) -> NDArray[np.float64]:
        """[P] direction of each piece, clockwise from north."""
        (lon, lat) = np.radians(self.start).T
        (to_lon, to_lat) = np.radians(self.end).T
        east = (to_lon - lon + np.pi) % (2 * np.pi) - np.pi
        bearing: NDArray[np.float64] = np.degrees(np.arctan2(east * np.cos((lat + to_lat) / 2), to_lat - lat)) % 360
        return bearing


def bearing_gap_deg(a: NDArray[np.float64], b: float) -> NDArray[np.float64]:
    """[...] angle between two directions, 0 to 180 degrees."""
    gap: NDArray[np.float64] = np.abs((a - b + 180) % 360 - 180)
    return gap
