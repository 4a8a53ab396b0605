"""Longitude and latitude in degrees: checks, distances, and the points of a line."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EARTH_RADIUS_M = 6_371_008.8
MAX_LON = 180.0
MAX_LAT = 90.0


def haversine_m(
    lon_a: NDArray[np.float64], lat_a: NDArray[np.float64], lon_b: NDArray[np.float64], lat_b: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Great-circle distance in metres between points in degrees."""
    lon_a, lat_a, lon_b, lat_b = (np.radians(np.asarray(x, np.float64)) for x in (lon_a, lat_a, lon_b, lat_b))
    half = np.sin((lat_b - lat_a) / 2) ** 2 + np.cos(lat_a) * np.cos(lat_b) * np.sin((lon_b - lon_a) / 2) ** 2
    metres: NDArray[np.float64] = 2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(np.clip(half, 0, 1)))
    return metres


def on_earth(lon: NDArray[np.float64], lat: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which coordinates are on earth; False for NaN."""
    with np.errstate(invalid="ignore"):
        return np.asarray((np.abs(lon) <= MAX_LON) & (np.abs(lat) <= MAX_LAT))


def coordinate_fault(lon: float, lat: float, *, allow_zero: bool = True) -> str:
    """Why coordinates are not on earth, worded to follow the name of their owner; "" if they are."""
    if abs(lon) <= MAX_LON and abs(lat) <= MAX_LAT:
        return "(0, 0), which usually means an unknown place" if lon == lat == 0 and not allow_zero else ""
    swapped = abs(lat) <= MAX_LON and abs(lon) <= MAX_LAT
    hint = "lon and lat look swapped" if swapped else "lon is within 180 degrees and lat within 90 (WGS84)"
    return f"lon {lon:g}, lat {lat:g} is not a place on earth; {hint}"


def line_points(wkb: bytes) -> NDArray[np.float64]:
    """[points,2] of a two-dimensional WKB line string, empty for anything else. Needs only numpy, unlike shapely."""
    order = "<" if wkb[:1] == b"\x01" else ">"
    if len(wkb) < 9 or np.frombuffer(wkb, f"{order}u4", 1, 1)[0] != 2:
        return np.zeros((0, 2))
    count = int(np.frombuffer(wkb, f"{order}u4", 1, 5)[0])
    if len(wkb) != 9 + 16 * count:
        return np.zeros((0, 2))
    return np.frombuffer(wkb, f"{order}f8", 2 * count, 9).reshape(count, 2).astype(np.float64)
