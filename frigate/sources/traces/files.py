"""Read and clean tables of GPS positions. Unusable positions are counted by reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.coordinates import haversine_m, on_earth
from frigate.errors import CityError
from frigate.reading.column_names import check_rename
from frigate.reading.columns import as_text, numbered, numbers
from frigate.reading.notices import Notices
from frigate.reading.sandbox import sandboxed
from frigate.reading.tables import Table, city_table, open_table
from frigate.reading.times import Clock, RowOrder, times_us, utc_text

COLUMNS = ("vehicle", "time", "lon", "lat")
MERGE_M = 40.0  # successive positions of a vehicle closer than this are one place
MARGIN_DEG = 0.1  # around the network, when looking for swapped coordinates
MAX_POSITIONS = 200_000_000  # 5.6 GB

NO_VEHICLE = "Positions without a vehicle were left out"
NO_TIME = "Positions without a time were left out"
NO_PLACE = "Positions without coordinates (empty, NaN or infinite) were left out"
ZERO = "Positions at (0, 0), which usually means unknown, were left out"
SWAPPED = "Positions whose lon and lat look swapped were left out"
NOT_ON_EARTH = "Positions that are not on earth were left out"
TWO_PLACES = "Positions of a vehicle that is in two places at once were left out"
REPEATED = "Positions repeated for the same vehicle and time, the first kept"
REASONS = (NO_VEHICLE, NO_TIME, NO_PLACE, ZERO, SWAPPED, NOT_ON_EARTH, TWO_PLACES, REPEATED)


@dataclass(frozen=True)
class Trace:
    """Positions sorted by vehicle and time; a vehicle has at most one at any time."""

    vehicle: NDArray[np.int32]  # [P] row of names
    time_us: NDArray[np.int64]  # [P]
    lon: NDArray[np.float64]  # [P]
    lat: NDArray[np.float64]  # [P]
    names: tuple[str, ...] = ()
    read: int = 0  # rows of the tables
    dropped: Mapping[str, int] = field(default_factory=dict)  # by reason

    def __len__(self) -> int:
        return len(self.vehicle)

    def take(self, rows: NDArray[np.generic]) -> Trace:
        return Trace(self.vehicle[rows], self.time_us[rows], self.lon[rows], self.lat[rows])


@dataclass
class _TableReader:
    """State shared by all tables."""

    network: RoadNetwork
    clock: Clock
    notices: Notices
    codes: dict[str, int] = field(default_factory=dict)  # vehicle -> its number
    order: RowOrder = field(default_factory=RowOrder)
    read: int = 0

    @property
    def dropped(self) -> dict[str, int]:
        """Number of unusable positions, by reason."""
        return {reason: self.notices.counts[reason] for reason in REASONS if reason in self.notices.counts}


@sandboxed
def read_traces(
    paths: Sequence[Path], network: RoadNetwork, *, names: Mapping[str, str], clock: Clock, notices: Notices
) -> tuple[Trace, Notices]:
    """The usable positions of all files, and the notices, extended. `names` maps columns to ours."""
    if not paths:
        raise CityError("no trace file is given")
    reading = _TableReader(network, clock, notices)
    runs: list[Trace] = []
    for path in paths:
        if path.suffix not in (".csv", ".parquet"):
            raise CityError(f'{path.name}: "{path.suffix}" files are not supported. Give .csv or .parquet')
        check_rename(names, open_table(path, strict=True).names, COLUMNS)
        for table in city_table(path, COLUMNS, rename=names, notices=notices).batches():
            runs.append(_usable(table, reading))
            if reading.read > MAX_POSITIONS:
                raise CityError(f"{path.name}: more than {MAX_POSITIONS:,} positions. Import fewer vehicles at a time")
    columns = zip(*([run.vehicle, run.time_us, run.lon, run.lat] for run in runs), strict=True)
    vehicle, time_us, lon, lat = (np.concatenate(column) for column in columns)
    whole = Trace(vehicle, time_us, lon, lat)
    vehicles = tuple(reading.codes)
    single = _one_place_each(_in_order(whole, vehicles, notices), vehicles, reading)
    if not len(single):
        raise CityError(_nothing(paths, reading))
    return replace(single, names=vehicles, read=reading.read, dropped=reading.dropped), notices


def _usable(table: Table, reading: _TableReader) -> Trace:
    """The rows of a table that have a vehicle, a time and a place on earth."""
    reading.read += len(table)
    raw = table.frame["time"]
    no_time = raw.is_null() | (raw.is_nan() if raw.dtype.is_float() else False)
    no_vehicle = table.frame["vehicle"].is_null() & ~no_time
    reading.notices.add_rows(NO_TIME, no_time.to_numpy(), table.place_of())
    reading.notices.add_rows(NO_VEHICLE, no_vehicle.to_numpy(), table.place_of())
    table = table.filter((~no_time & ~no_vehicle).to_numpy())
    lon, lat = (numbers(table, column)[0] for column in ("lon", "lat"))
    vehicle = numbered(as_text(table, "vehicle"), reading.codes)
    time_us = times_us(table, "time", clock=reading.clock, notices=reading.notices, series=vehicle, order=reading.order)
    kept = _on_earth(table, lon, lat, reading)
    return Trace(vehicle, time_us, lon, lat).take(kept)


def _on_earth(
    table: Table, lon: NDArray[np.float64], lat: NDArray[np.float64], reading: _TableReader
) -> NDArray[np.bool_]:
    finite = np.isfinite(lon) & np.isfinite(lat)
    zero = finite & (lon == 0) & (lat == 0)
    placed = finite & ~zero
    swapped = placed & ~_near(reading.network, lon, lat) & _near(reading.network, lat, lon)
    astray = placed & ~swapped & ~on_earth(lon, lat)
    place = table.place_of("lon", "lat")
    for reason, rows in ((NO_PLACE, ~finite), (ZERO, zero), (SWAPPED, swapped), (NOT_ON_EARTH, astray)):
        reading.notices.add_rows(reason, rows, place)
    kept: NDArray[np.bool_] = placed & ~swapped & ~astray
    return kept


def _near(network: RoadNetwork, lon: NDArray[np.float64], lat: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which positions are in the bounding box of a network, plus a margin."""
    present = network.present
    near = np.ones(len(lon), bool)
    with np.errstate(invalid="ignore"):
        for value, box in ((lon, network.lon[present]), (lat, network.lat[present])):
            near &= (value >= box.min() - MARGIN_DEG) & (value <= box.max() + MARGIN_DEG)
    return near


def _nothing(paths: Sequence[Path], reading: _TableReader) -> str:
    """Why no position is left."""
    named = ", ".join(path.name for path in paths[:3])
    if not reading.read:
        return f"{named} has no rows. Traces need positions"
    said = "; ".join(f"{reason}: {count:,}" for reason, count in reading.dropped.items())
    most = max(reading.dropped, key=lambda reason: reading.dropped[reason])
    remedy = {
        SWAPPED: " Swap them with a map: lon=lat and lat=lon",
        NOT_ON_EARTH: " Are they degrees? Map a column in 100,000ths of a degree under such a name: lon_e5=lon",
    }.get(most, "")
    return f"{named}: no position is usable. {said}.{remedy}"


# Across tables


def _in_order(whole: Trace, names: tuple[str, ...], notices: Notices) -> Trace:
    by_vehicle = np.argsort(whole.vehicle, kind="stable")
    vehicle = whole.vehicle[by_vehicle]
    time_us = whole.time_us[by_vehicle]
    earlier = np.zeros(len(whole), bool)
    earlier[1:] = (np.diff(time_us) < 0) & (np.diff(vehicle) == 0)

    def spot(row: int) -> str:
        return f"vehicle {names[vehicle[row]]} at {utc_text(int(time_us[row]))}"

    notices.add_rows("Positions earlier than the one above of the same vehicle; all were sorted by time", earlier, spot)
    if not earlier.any():
        return whole.take(by_vehicle)
    return whole.take(np.lexsort((whole.time_us, whole.vehicle)))


def _one_place_each(held: Trace, names: tuple[str, ...], reading: _TableReader) -> Trace:
    """One position per vehicle and time: the first if they are close together, none if they are far apart."""
    same = np.zeros(len(held), bool)
    same[1:] = (np.diff(held.vehicle) == 0) & (np.diff(held.time_us) == 0)
    if not same.any():
        return held
    group = np.cumsum(~same) - 1
    first = np.flatnonzero(~same)[group]
    far = haversine_m(held.lon, held.lat, held.lon[first], held.lat[first]) > MERGE_M
    torn = np.bincount(group, far)[group] > 0

    def spot(row: int) -> str:
        when = utc_text(int(held.time_us[row]))
        return f"vehicle {names[held.vehicle[row]]} at {when}, lon {held.lon[row]:g}, lat {held.lat[row]:g}"

    reading.notices.add_rows(TWO_PLACES, torn, spot)
    reading.notices.add_rows(REPEATED, same & ~torn, spot)
    return held.take(~torn & ~(same & ~torn))
