"""A user's table of readings, long or wide, and the places of the sensors that made them.

A row without a time, a sensor or a number is listed as rejected. An empty cell is no fault: nothing was observed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.data.bucketing import Readings, repeated
from frigate.data.tables import BATCH_ROWS, ROW
from frigate.data.times import Clock
from frigate.errors import CityError
from frigate.sources.tables.detectors import Place
from frigate.sources.tables.rejected import Told
from frigate.sources.tables.times import TimeReader, time_reader
from frigate.sources.tables.user_table import OwnTable, number_styles, read_numbers, read_words

PLACE_COLUMNS = ("node_id", "road_id", "source", "target", "lon", "lat", "bearing", "direction")
SENSOR_COLUMNS = ("sensor_id", *PLACE_COLUMNS)
READING_COLUMNS = ("date", "time", "value", *SENSOR_COLUMNS)
# By which columns a sensor is known in a table of readings, the best first.
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
class Book:
    """The readings of a table and the sensors that made them."""

    table: OwnTable
    key: str  # the column by which a sensor is known, for the report
    names: list[str]  # [D]
    readings: Readings
    places: Mapping[str, Place] = field(default_factory=dict)
    total: int = 0  # rows of the table


def read_readings(table: OwnTable, *, clock: Clock, date_order: str | None, quantity: str, told: Told) -> Book:
    """Every reading that has a time, a sensor and a value. The table's columns are known by READING_COLUMNS."""
    keys = next((k for k in SENSOR_KEYS if all(c in table for c in k)), ())
    wide = "value" not in table and not keys
    if wide:
        others = [n for n in table.names if n not in table.source_of.values()]
        table = replace(table, source_of={**table.source_of, **{n: n for n in others}})
        styles = number_styles(table, others)
        told.notices.add(f"Columns of {table.path.name} read as sensors", len(others))
    else:
        table.need(["value"])
        if not keys:
            table.need(["sensor_id"])
        others, styles = ["value"], number_styles(table, ["value", "lon", "lat"])
        left = [n for n in table.names if n not in table.source_of.values()]
        told.notices.add(f"Columns of {table.path.name} that are not read ({', '.join(left[:20])})", len(left))
    reader = time_reader(table, clock=clock, date_order=date_order)
    if wide and not others:
        raise CityError(f"{table.path.name} has times, but no readings. Long tables need a column value")
    columns = [*reader.columns, *others, *([] if wide else [c for c in SENSOR_COLUMNS if c in table])]
    number: dict[str, int] = {}
    places: dict[str, Place] = {}
    parts: list[Readings] = []
    total = 0
    for frame in table.batches(columns, batch_rows=max(1, BATCH_ROWS // len(others))):
        total += len(frame)
        if wide:
            parts += _wide_part(table, frame, others, styles, reader, number, quantity, told)
        else:
            parts += _long_part(table, frame, keys, styles, reader, number, places, quantity, told)
    if wide or not any(c in table for c in PLACE_COLUMNS):
        places = {name: Place(node_id=name, road_id=name) for name in number}
    if not total:
        raise CityError(f"{table.path.name} has no rows. Readings are expected")
    key = "" if wide or not keys else keys[0]
    return Book(table, key, list(number), Readings.join([Readings.none(), *parts]), places, total)


def _wide_part(
    table: OwnTable,
    frame: pl.DataFrame,
    others: list[str],
    styles: Mapping[str, str],
    reader: TimeReader,
    number: dict[str, int],
    quantity: str,
    told: Told,
) -> list[Readings]:
    time_us, good = reader.read(frame, notices=told.notices, rejected=told.rejected)
    parts = []
    for column in others:
        detector = np.full(len(frame), number.setdefault(column.strip(), len(number)), np.int32)
        value, keep = _values(table, frame, column, styles[column], good, quantity, told)
        rows = frame[ROW].to_numpy().astype(np.int64)
        parts.append(Readings(time_us, detector, value, rows).take(keep))
    return parts


def _long_part(
    table: OwnTable,
    frame: pl.DataFrame,
    keys: tuple[str, ...],
    styles: Mapping[str, str],
    reader: TimeReader,
    number: dict[str, int],
    places: dict[str, Place],
    quantity: str,
    told: Told,
) -> list[Readings]:
    rows = frame[ROW].to_numpy().astype(np.int64)
    words = [read_words(frame, c).alias(c) for c in keys]
    blank = np.logical_or.reduce([w.is_null().to_numpy() for w in words])
    at = np.flatnonzero(blank)
    told.rejected.add(table, rows[at], keys[0], frame[keys[0]][at], "is empty. Every reading needs its sensor")
    frame, rows = frame.filter(pl.Series(~blank)), rows[~blank]
    key = pl.select(pl.concat_str([w.filter(pl.Series(~blank)) for w in words], separator=" ")).to_series()
    distinct = key.unique(maintain_order=True)
    new = [name for name in distinct.to_list() if name not in number]
    number.update({name: len(number) + i for i, name in enumerate(new)})
    _take_places(table, frame.with_columns(key.alias("key")), set(new), styles, places, told)
    coded = pl.Series([number[name] for name in distinct.to_list()], dtype=pl.Int32)
    detector = key.replace_strict(distinct, coded, return_dtype=pl.Int32).to_numpy()
    time_us, good = reader.read(frame, notices=told.notices, rejected=told.rejected)
    value, keep = _values(table, frame, "value", styles["value"], good, quantity, told)
    return [Readings(time_us, detector, value, rows).take(keep)]


def _values(
    table: OwnTable,
    frame: pl.DataFrame,
    column: str,
    style: str,
    kept: NDArray[np.bool_],
    quantity: str,
    told: Told,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values as they are stored, and which rows have one. An empty cell is no fault: nothing was observed."""
    found = read_numbers(table, frame, column, style)
    with np.errstate(over="ignore"):
        value = found.values.astype(np.float32)  # what float32 cannot hold becomes infinite
    missing = kept & ~found.wrong & np.isnan(value)
    told.notices.add("Readings without a value (empty or NaN), taken as not observed", int(missing.sum()))
    keep = kept & ~missing
    faults = [(found.wrong, "is not a number"), (np.isinf(value), "is infinite")]
    if quantity == "count":
        faults.append((value < 0, "is a negative count"))
    for wrong, reason in faults:
        at = np.flatnonzero(wrong & keep)
        told.rejected.add(table, frame[ROW].to_numpy()[at], column, frame[column][at], reason)
        keep = keep & ~wrong
    return value, keep


# Sensors


def _take_places(
    table: OwnTable,
    frame: pl.DataFrame,
    new: set[str],
    styles: Mapping[str, str],
    places: dict[str, Place],
    told: Told,
) -> None:
    """Where the sensors stand that a run of rows has for the first time, by their columns `key` and others."""
    columns = [c for c in PLACE_COLUMNS if c in table]
    if not columns or not new:
        return
    frame = frame.filter(pl.col("key").is_in(list(new)))
    moved = frame.group_by("key").agg(pl.struct(columns).n_unique().alias("n")).filter(pl.col("n") > 1)
    told.notices.add(f"Sensors of {table.path.name} with several places, the first taken", len(moved))
    first = frame.unique("key", keep="first", maintain_order=True)
    words = {c: read_words(first, c).to_list() for c in columns if c not in ("lon", "lat")}
    points = {c: read_numbers(table, first, c, styles.get(c, "dot")).values for c in ("lon", "lat") if c in columns}
    for i, key in enumerate(first["key"].to_list()):
        held = {c: words[c][i] for c in ("node_id", "road_id", "source", "target") if c in words}
        bearing = next((words[c][i] for c in ("bearing", "direction") if c in words and words[c][i]), None)
        lon, lat = (float(points[c][i]) if c in points else math.nan for c in ("lon", "lat"))
        places[key] = Place(**held, bearing=bearing, lon=lon, lat=lat)


def read_sensors(table: OwnTable, told: Told) -> dict[str, Place]:
    """Where each sensor of a table stands. Its columns are known by SENSOR_COLUMNS."""
    if not any(c in table for c in PLACE_COLUMNS):
        table.need(["lon", "lat"])
    frame = table.read(SENSOR_COLUMNS)
    if not len(frame):
        raise CityError(f"{table.path.name} has no rows. Sensors are expected")
    frame = frame.with_columns(read_words(frame, "sensor_id").alias("key"))
    rows = frame[ROW].to_numpy()
    blank = np.flatnonzero(frame["key"].is_null().to_numpy())
    told.rejected.add(table, rows[blank], "sensor_id", frame["key"][blank], "is empty. Every sensor needs an id")
    again = np.flatnonzero((~frame["key"].is_first_distinct() & frame["key"].is_not_null()).to_numpy())
    told.rejected.add(table, rows[again], "sensor_id", frame["key"][again], "is there already: ids are not unique")
    told.rejected.refuse_most(table, len(frame), report=told.report)
    places: dict[str, Place] = {}
    whole = frame.filter(pl.col("key").is_not_null() & pl.col("key").is_first_distinct())
    _take_places(table, whole, set(whole["key"].to_list()), number_styles(table, ["lon", "lat"]), places, told)
    return places


def without_lost(book: Book, node_of: NDArray[np.int64], reasons: list[str], told: Told) -> Readings:
    """The readings whose sensors stand in the network; when most do not, it is another network's table."""
    held = book.readings
    lost = np.flatnonzero(node_of < 0)
    if len(lost) * 2 > len(node_of) or not len(node_of):
        if not len(node_of):
            raise CityError(
                f"{book.table.path.name} has no reading that can be used{told.rejected.finish(told.report)}"
            )
        name, rows = book.names[int(lost[0])], held.row[held.column == lost[0]]
        where = f"{book.table.place(int(rows[0]))}: " if len(rows) else f"{book.table.path.name}: "
        count = "" if len(lost) == 1 else f". So it is with {len(lost):,} of {len(node_of):,} sensors"
        raise CityError(f'{where}sensor "{name}" {reasons[int(lost[0])]}{count}')
    off = node_of[held.column] < 0
    at = np.flatnonzero(off)
    if len(at):
        which = held.column[at]
        names = pl.Series([book.names[d] for d in which])
        said = [f"sensor {reasons[d]}" for d in which]
        told.rejected.add(book.table, held.row[at], book.key, names, said)
    told.notices.add("Sensors left out, as they stand nowhere in the network", len(lost))
    return held.take(~off)


def without_repeated(held: Readings, book: Book, told: Told) -> Readings:
    """Of several readings of one sensor and time, the last in the file."""
    corrected = repeated(held)
    again = np.flatnonzero(corrected)
    if len(again):
        names = pl.Series([book.names[d] for d in held.column[again]])
        reason = "has a later row for the same time, which is kept"
        told.rejected.add(book.table, held.row[again], book.key, names, f"sensor {reason}")
    if corrected.all():
        raise CityError(f"{book.table.path.name} has no reading that can be used{told.rejected.finish(told.report)}")
    return held.take(~corrected)
