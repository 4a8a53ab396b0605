"""Lines of roads: read from WKT or WKB, reversed, measured, and the nearest of them found."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from frigate.data.coordinates import EARTH_RADIUS_M, haversine_m
from frigate.data.network import RoadNetwork

Line = NDArray[np.float64]  # [points,2] lon, lat

LINE_STRING, MULTI_LINE_STRING = 2, 5
MAX_POINTS = 1_000_000
_WKT = re.compile(r"\s*(?:SRID\s*=\s*(\d+)\s*;)?\s*(MULTI)?LINESTRING\s*(ZM|Z|M)?\s*\((.*)\)\s*", re.I | re.S)


class NotALineError(Exception):
    """Why a value is no line, to stand after the value."""


def read_line(value: str | bytes) -> Line:
    """A line from WKT, WKB or WKB in hexadecimal digits. NotALineError."""
    if isinstance(value, bytes):
        line = _from_wkb(value)
    elif re.fullmatch(r"\s*[0-9A-Fa-f]{18,}\s*", value):
        try:
            line = _from_wkb(bytes.fromhex(value.strip()))
        except ValueError:
            raise NotALineError("is not WKB in hexadecimal digits") from None
    else:
        line = _from_wkt(value)
    if len(line) < 2:
        raise NotALineError("has fewer than two points")
    with np.errstate(invalid="ignore"):
        if not (np.isfinite(line).all() and (np.abs(line) <= (180, 90)).all()):
            swapped = bool((np.abs(line) <= (90, 180)).all())
            hint = "its coordinates look swapped" if swapped else "degrees of WGS84 are expected"
            raise NotALineError(f"does not lie on earth; {hint}")
    if (line == 0).all(axis=1).any():
        raise NotALineError("has a point at (0, 0), which stands for an unknown place")
    return line


def _from_wkt(text: str) -> Line:
    match = _WKT.fullmatch(text)
    if match is None:
        raise NotALineError("is not a line. LINESTRING or MULTILINESTRING in WKT, or WKB, is expected")
    if match[1] not in (None, "4326"):
        raise NotALineError(f"has SRID {match[1]}. Convert it to degrees of WGS84 (4326)")
    bodies = re.findall(r"\(([^()]*)\)", match[4]) if match[2] else [match[4]]
    parts = []
    for body in bodies:
        try:
            points = [[float(x) for x in point.split()] for point in body.split(",")]
            part = np.array(points, np.float64)
        except ValueError:
            raise NotALineError("has a point that is not numbers") from None
        if part.ndim != 2 or not 2 <= part.shape[1] <= 4:
            raise NotALineError("has a point of other than two to four numbers")
        parts.append(part[:, :2])
    return _joined(parts)


def _from_wkb(data: bytes) -> Line:
    try:
        parts, _ = _wkb_parts(data, 0, nested=False)
    except (struct.error, ValueError):
        raise NotALineError("is WKB cut short") from None
    return _joined(parts)


def _wkb_parts(data: bytes, at: int, *, nested: bool) -> tuple[list[Line], int]:
    if data[at : at + 1] not in (b"\0", b"\1"):
        raise NotALineError("is not WKB")
    order = "<" if data[at] else ">"
    (code,) = struct.unpack_from(f"{order}I", data, at + 1)
    at += 5
    if code & 0x20000000:  # EWKB carries its reference system
        (srid,) = struct.unpack_from(f"{order}I", data, at)
        at += 4
        if srid not in (0, 4326):
            raise NotALineError(f"has SRID {srid}. Convert it to degrees of WGS84 (4326)")
    flags, kind = code >> 30, code & 0x0FFFFFFF
    width = 2 + (flags & 1) + (flags >> 1) + (0, 1, 1, 2)[min(kind // 1000, 3)]
    (count,) = struct.unpack_from(f"{order}I", data, at)
    at += 4
    if kind % 1000 == LINE_STRING:
        if count > MAX_POINTS or at + 8 * width * count > len(data):
            raise NotALineError("is WKB cut short")
        points = np.frombuffer(data, f"{order}f8", width * count, at).reshape(count, width)
        return [points[:, :2].astype(np.float64)], at + 8 * width * count
    if kind % 1000 == MULTI_LINE_STRING and not nested:
        parts: list[Line] = []
        for _ in range(min(count, MAX_POINTS)):
            inner, at = _wkb_parts(data, at, nested=True)
            parts += inner
        return parts, at
    raise NotALineError("is WKB, but no line")


def _joined(parts: list[Line]) -> Line:
    parts = [p for p in parts if len(p)]
    if not parts:
        raise NotALineError("is empty")
    for a, b in pairwise(parts):
        if not np.allclose(a[-1], b[0], rtol=0, atol=1e-6):
            raise NotALineError("has parts that do not meet. Give each a row of its own")
    return np.concatenate([parts[0], *(p[1:] for p in parts[1:])])


def write_line(line: Line) -> bytes:
    """WKB, little-endian, two coordinates."""
    return struct.pack("<BII", 1, LINE_STRING, len(line)) + np.ascontiguousarray(line, "<f8").tobytes()


def line_length_m(line: Line) -> float:
    return float(haversine_m(line[:-1, 0], line[:-1, 1], line[1:, 0], line[1:, 1]).sum())


# The nearest


def on_sphere_m(lon: NDArray[np.float64], lat: NDArray[np.float64]) -> NDArray[np.float64]:
    """[...,3] places as points of a sphere: straight distances there are right to a millimetre over a kilometre."""
    x, y = np.radians(lon), np.radians(lat)
    return EARTH_RADIUS_M * np.stack([np.cos(y) * np.cos(x), np.cos(y) * np.sin(x), np.sin(y)], axis=-1)


PIECE_M = 50.0
MAX_PIECES = 2_000  # of one stretch: a line around the world must not fill the memory


@dataclass(frozen=True)
class RoadIndex:
    """Roads cut into short pieces, so that the nearest is found exactly by a tree of middles."""

    start: NDArray[np.float64]  # [P,3]
    end: NDArray[np.float64]  # [P,3]
    road: NDArray[np.int64]  # [P] row of the road
    bearing_deg: NDArray[np.float64]  # [P] clockwise from north
    longest_m: float  # of the pieces
    tree: cKDTree

    @staticmethod
    def of(network: RoadNetwork) -> RoadIndex:
        """Of every open road: its line where it has one, else straight from node to node."""
        starts, ends, roads, bearings = [], [], [], []
        for road, (a, b, geometry) in enumerate(
            zip(network.senders, network.receivers, network.edges.geometry, strict=True)
        ):
            try:
                line = read_line(geometry) if geometry else None
            except NotALineError:
                line = None
            if line is None:
                line = np.array([[network.lon[a], network.lat[a]], [network.lon[b], network.lat[b]]])
            points = on_sphere_m(line[:, 0], line[:, 1])
            heading = _bearings_deg(line)
            long_m = np.linalg.norm(np.diff(points, axis=0), axis=1)
            pieces = np.clip(np.ceil(long_m / PIECE_M), 1, MAX_PIECES).astype(np.int64)
            of = np.repeat(np.arange(len(pieces)), pieces)
            share = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            step = (points[1:] - points[:-1]) / pieces[:, None]
            starts.append(points[of] + share[:, None] * step[of])
            ends.append(starts[-1] + step[of])
            roads.append(np.full(len(of), road))
            bearings.append(heading[of])
        start, end = np.concatenate(starts), np.concatenate(ends)
        longest_m = float(np.linalg.norm(end - start, axis=1).max())
        return RoadIndex(
            start, end, np.concatenate(roads), np.concatenate(bearings), longest_m, cKDTree((start + end) / 2)
        )

    def near(
        self, lon: float, lat: float, within_m: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Roads within a distance, the nearest first; always at least the nearest: road, metres, bearing there."""
        point = on_sphere_m(np.float64(lon), np.float64(lat))  # type: ignore[arg-type]
        to_middle, _ = self.tree.query(point)
        reach = max(within_m, float(to_middle)) + self.longest_m / 2 + 1
        pieces = np.array(self.tree.query_ball_point(point, reach), np.int64)
        a, along = self.start[pieces], self.end[pieces] - self.start[pieces]
        share = ((point - a) * along).sum(axis=1) / np.maximum((along * along).sum(axis=1), 1e-12)
        metres = np.linalg.norm(point - a - np.clip(share, 0, 1)[:, None] * along, axis=1)
        order = np.lexsort((self.road[pieces], np.round(metres, 3)))  # both directions of a road tie
        _, first = np.unique(self.road[pieces][order], return_index=True)
        best = order[np.sort(first)]
        best = best[(metres[best] <= within_m) | (np.arange(len(best)) == 0)]
        return self.road[pieces[best]], metres[best], self.bearing_deg[pieces[best]]


def _bearings_deg(line: Line) -> NDArray[np.float64]:
    """[points-1] clockwise from north."""
    lon, lat = np.radians(line).T
    east = np.diff(lon) * np.cos((lat[1:] + lat[:-1]) / 2)
    bearing: NDArray[np.float64] = np.degrees(np.arctan2(east, np.diff(lat))) % 360
    return bearing


def bearing_gap_deg(a: NDArray[np.float64], b: float) -> NDArray[np.float64]:
    """[...] degrees between directions, 0 to 180."""
    gap: NDArray[np.float64] = np.abs((a - b + 180) % 360 - 180)
    return gap
