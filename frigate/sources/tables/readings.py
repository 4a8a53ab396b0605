"""Read a user's table of readings, long or wide, and the locations of its sensors.

A row with an invalid time, sensor or number is rejected. An empty value is not an error: nothing was observed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.city.bucketing import Readings, repeated
from frigate.errors import CityError
from frigate.reading.columns import number_styles, numbered, parse_numbers, text
from frigate.reading.tables import BATCH_ROWS, ROW, Table, TableFile
from frigate.reading.times import Clock, RowOrder, parse_times, settle_formats
from frigate.sources.tables.detectors import SensorSite
from frigate.sources.tables.import_log import ImportLog

PLACE_COLUMNS = ("node_id", "road_id", "source", "target", "lon", "lat", "bearing", "direction", "street")
SENSOR_COLUMNS = ("sensor_id", *PLACE_COLUMNS)
READING_COLUMNS = ("date", "time", "value", *SENSOR_COLUMNS)
# Columns that identify a sensor in a table of readings, best first.
SENSOR_KEYS = (
    ("sensor_id",),
    ("node_id",),
    ("road_id", "direction"),
    ("road_id",),
    ("source", "target"),
    ("lon", "lat", "bearing"),
    ("lon", "lat", "direction"),
    ("lon", "lat"),
)


@dataclass(frozen=True)
class SensorReadings:
    """The readings of a table and the sensors that made them."""

    file: TableFile
    key: str  # the column that identifies a sensor, for the report
    names: list[str]  # [D]
    readings: Readings  # by sensor
    sites: Mapping[str, SensorSite] = field(default_factory=dict)
    total: int = 0  # rows of the table


@dataclass
class _Reader:
    """State while a table is read in batches of rows."""

    file: TableFile
    clock: Clock
    times: tuple[str, ...]  # time columns
    styles: Mapping[str, str]
    quantity: str
    log: ImportLog
    number_of: dict[str, int] = field(default_factory=dict)  # sensor -> its number
    sites: dict[str, SensorSite] = field(default_factory=dict)
    order: RowOrder = field(default_factory=RowOrder)

    def wide(self, table: Table, sensors: list[str]) -> list[Readings]:
        time_us, timed = self._times(table)
        rows = table.frame[ROW].to_numpy().astype(np.int64)
        parts = []
        for column in sensors:
            sensor = np.full(len(table), self.number_of.setdefault(column.strip(), len(self.number_of)), np.int32)
            value, keep = self._values(table, column, timed)
            parts.append(Readings(time_us, sensor, value, rows).take(keep))
        return parts

    def long(self, table: Table, keys: tuple[str, ...]) -> list[Readings]:
        words = [text(table, c).alias(c) for c in keys]
        blank = np.logical_or.reduce([w.is_null().to_numpy() for w in words])
        key = pl.select(pl.concat_str(words, separator=" ").alias("key")).to_series()
        table = self.log.drop(table.with_columns(key), blank, keys[0], "is empty. Every reading needs its sensor")
        key = table.frame["key"]
        known = len(self.number_of)
        sensor = numbered(key, self.number_of)
        self.sites |= _sites(table, set(list(self.number_of)[known:]), self.styles, self.log)
        time_us, timed = self._times(table, sensor)
        value, keep = self._values(table, "value", timed)
        return [Readings(time_us, sensor, value, table.frame[ROW].to_numpy().astype(np.int64)).take(keep)]

    def _times(
        self, table: Table, series: NDArray[np.integer] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        found = parse_times(
            table, self.times, clock=self.clock, notices=self.log.notices, series=series, order=self.order
        )
        wrong = np.flatnonzero(found.faults != "")
        rows = table.frame[ROW].to_numpy()[wrong]
        shown = pl.Series([found.text(row) for row in wrong.tolist()], dtype=pl.String)
        self.log.reject_rows(table.file, rows, self.times[-1], shown, found.faults[wrong].tolist())
        return found.us, found.faults == ""

    def _values(
        self, table: Table, column: str, timed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Values as float32, and which rows have a usable one."""
        found = parse_numbers(table, column, self.styles[column])
        with np.errstate(over="ignore"):
            value = found.values.astype(np.float32)  # too large for float32: infinite
        missing = timed & ~found.wrong & np.isnan(value)
        self.log.notices.add("Readings without a value (empty or NaN), taken as not observed", int(missing.sum()))
        keep = timed & ~missing
        faults = [(found.wrong, "is not a number"), (np.isinf(value), "is infinite")]
        if self.quantity == "count":
            faults.append((value < 0, "is a negative count"))
        for wrong, reason in faults:
            self.log.reject(table, wrong & keep, column, reason)
            keep = keep & ~wrong
        return value, keep


def read_sensor_readings(
    file: TableFile, *, clock: Clock, date_order: str | None, quantity: str, log: ImportLog
) -> SensorReadings:
    """Every reading that has a time, a sensor and a value. Columns are already matched to READING_COLUMNS."""
    keys = next((k for k in SENSOR_KEYS if all(c in file for c in k)), ())
    wide = "value" not in file and not keys
    if wide:
        values = [n for n in file.names if n not in file.source_of.values()]
        file = replace(file, source_of={**file.source_of, **{n: n for n in values}})
        styles = number_styles(file, values)
        log.notices.add(f"Columns of {file.path.name} read as sensors", len(values))
    else:
        file.need(["value"] if keys else ["value", "sensor_id"])
        values = ["value"]
        styles = number_styles(file, ["value", "lon", "lat"])
        file.note_unread(log.notices)
    file.need(["time"] if "date" not in file else ["date"])
    times = tuple(c for c in ("date", "time") if c in file)
    clock = settle_formats(file, times, clock, date_order)
    if not values:
        raise CityError(f"{file.path.name} has times but no readings. Long tables need a column named value")
    columns = [*times, *values, *([] if wide else [c for c in SENSOR_COLUMNS if c in file])]
    reader = _Reader(file, clock, times, styles, quantity, log)
    parts = [Readings.none()]
    total = 0
    for table in file.batches(columns, batch_rows=max(1, BATCH_ROWS // len(values))):
        total += len(table)
        parts += reader.wide(table, values) if wide else reader.long(table, keys)
    if not total:
        raise CityError(f"{file.path.name} has no rows. Readings are expected")
    sites = reader.sites
    if wide or not any(c in file for c in PLACE_COLUMNS):
        sites = {name: SensorSite(node_id=name, road_id=name) for name in reader.number_of}
    key = keys[0] if keys else ""
    return SensorReadings(file, key, list(reader.number_of), Readings.join(parts), sites, total)


# Sensors


def _sites(table: Table, new: set[str], styles: Mapping[str, str], log: ImportLog) -> dict[str, SensorSite]:
    """Locations of the sensors that first appear in this batch of rows. The column `key` names them."""
    columns = [c for c in PLACE_COLUMNS if c in table]
    if not columns or not new:
        return {}
    frame = table.frame.filter(pl.col("key").is_in(list(new)))
    moved = frame.group_by("key").agg(pl.struct(columns).n_unique().alias("n")).filter(pl.col("n") > 1)
    log.notices.add(f"Sensors of {table.path.name} with several locations, the first used", len(moved))
    first = replace(table, frame=frame.unique("key", keep="first", maintain_order=True))
    words = {c: text(first, c).to_list() for c in columns if c not in ("lon", "lat")}
    points = {c: parse_numbers(first, c, styles.get(c, "dot")).values for c in ("lon", "lat") if c in columns}
    sites = {}
    for i, key in enumerate(first.frame["key"].to_list()):
        ids = {c: words[c][i] for c in ("node_id", "road_id", "source", "target") if c in words}
        bearing = next((words[c][i] for c in ("bearing", "direction") if c in words and words[c][i]), None)
        lon, lat = (float(points[c][i]) if c in points else math.nan for c in ("lon", "lat"))
        street = words["street"][i] if "street" in words else None
        sites[key] = SensorSite(**ids, bearing=bearing, lon=lon, lat=lat, street=street)
    return sites


def read_sensors(file: TableFile, log: ImportLog) -> dict[str, SensorSite]:
    """The location of each sensor in a table. Columns are already matched to SENSOR_COLUMNS."""
    if not any(c in file for c in PLACE_COLUMNS):
        file.need(["lon", "lat"])
    table = file.read(SENSOR_COLUMNS)
    if not len(table):
        raise CityError(f"{file.path.name} has no rows. Sensors are expected")
    key = text(table, "sensor_id").alias("key")
    table = table.with_columns(key)
    blank = key.is_null().to_numpy()
    first = key.is_first_distinct().to_numpy()
    log.reject(table, blank, "sensor_id", "is empty. Every sensor needs an id")
    log.reject(table, ~first & ~blank, "sensor_id", "is repeated: ids must be unique")
    log.refuse_most(file, len(table))
    whole = table.filter(first & ~blank)
    return _sites(whole, set(whole.frame["key"].to_list()), number_styles(file, ["lon", "lat"]), log)


def usable_readings(found: SensorReadings, node_of: NDArray[np.int64], reasons: list[str], log: ImportLog) -> Readings:
    """The readings of attached sensors, keeping the last in the file for each sensor and time.

    If most sensors are not attached, the table is refused: it must belong to another network.
    """
    readings = found.readings
    file = found.file
    lost = np.flatnonzero(node_of < 0)
    if not len(node_of):
        raise CityError(f"{file.path.name} has no usable reading{log.where_listed()}")
    if len(lost) * 2 > len(node_of):
        name = found.names[int(lost[0])]
        rows = readings.row[readings.column == lost[0]]
        where = file.place(int(rows[0])) if len(rows) else file.path.name
        count = "" if len(lost) == 1 else f". {len(lost):,} of {len(node_of):,} sensors cannot be attached"
        raise CityError(f'{where}: sensor "{name}" {reasons[int(lost[0])]}{count}')

    def reject(rows: NDArray[np.bool_], why: list[str] | str) -> Readings:
        out = readings.take(rows)
        names = pl.Series([found.names[sensor] for sensor in out.column], dtype=pl.String)
        why_each = [f"sensor {why if isinstance(why, str) else why[sensor]}" for sensor in out.column]
        log.reject_rows(file, out.row, found.key, names, why_each)
        return readings.take(~rows)

    readings = reject(node_of[readings.column] < 0, reasons)
    what = "Sensors left out because they have no place in the network"
    log.notices.add_rows(what, node_of < 0, lambda i: f'"{found.names[i]}" {reasons[i]}')
    readings = reject(repeated(readings), "has a later row for the same time, which is kept")
    if not len(readings):
        raise CityError(f"{file.path.name} has no usable reading{log.where_listed()}")
    return readings
