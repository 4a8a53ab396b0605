"""Tables that are whole but hold what nobody expects: columns of every type that Parquet has, cells of odd text."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import polars as pl

TYPES: tuple[Any, ...] = (
    pl.Int8,
    pl.Int64,
    pl.Int128,
    pl.UInt16,
    pl.UInt64,
    pl.Float32,
    pl.Float64,
    pl.Boolean,
    pl.Null,
    pl.String,
    pl.Binary,
    pl.Categorical,
    pl.Decimal(38, 0),
    pl.Decimal(38, 9),
    pl.Decimal(12, 2),
    pl.Date,
    pl.Time,
    pl.Duration("us"),
    pl.Datetime("ms"),
    pl.Datetime("us", "UTC"),
    pl.Datetime("us", "Asia/Tokyo"),
    pl.Datetime("ns"),
    pl.List(pl.Int64),
    pl.Array(pl.Int64, 2),
    pl.Struct({"a": pl.Int64}),
)
NUMBERS = (0, -1, 1, 127, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 10**30, 1_704_067_200, 1_704_067_200_000)
CELLS = (
    "",
    " ",
    "-",
    "0",
    "-1",
    "1.5",
    "1,5",
    "007",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "0x10",
    "1_000",
    "٣",
    "true",
    "None",
    "9223372036854775808",
    "170141183460469231731687303715884105728",
    "1704067200",
    "24/01/05",
    "2024-02-30",
    "24:00",
    "2024-01-01T00:00Z",
    "2024-01-01T00:00:00.123456789+14:00",
    "-9999-01-01",
    "=1+1",
    "@x",
    "\x1b[31m",
    "\u202e",
    "😀",
    ":bomb:",
    "[bold]",
    "a'b",
    "é",
    "LINESTRING (0 0, 1 1)",
    "x" * 300,
    "\t",
    "\x00",
    "\ufeff",
)


def other_types(parquet: bytes, rng: np.random.Generator) -> bytes:
    """A Parquet file with one or two of its columns of another type, their values as far as they can be kept."""
    frame = pl.read_parquet(io.BytesIO(parquet))
    for _ in range(int(rng.integers(1, 3))):
        name = frame.columns[int(rng.integers(frame.width))]
        frame = frame.with_columns(_converted(frame[name], TYPES[int(rng.integers(len(TYPES)))], rng).alias(name))
    if rng.random() < 0.05:
        frame = frame.head(0)
    out = io.BytesIO()
    frame.write_parquet(out)
    return out.getvalue()


def _converted(column: pl.Series, dtype: Any, rng: np.random.Generator) -> pl.Series:
    size = len(column)
    drawn = [NUMBERS[int(i)] for i in rng.integers(len(NUMBERS), size=size)]
    below = {pl.Time: 86_400_000_000_000, pl.Boolean: 2}.get(dtype)
    numbers = pl.Series(drawn if below is None else [n % below for n in drawn], dtype=pl.Int128)
    if dtype.is_nested():
        held = {"a": 1} if isinstance(dtype, pl.Struct) else [1, 2]
        return pl.Series([held] * size, dtype=dtype)
    if dtype.is_temporal():
        return numbers.cast(pl.Int32 if dtype == pl.Date else pl.Int64, strict=False).cast(dtype)
    if dtype == pl.Null:
        return pl.Series([None] * size, dtype=pl.Null)
    if dtype == pl.Boolean:
        return numbers.cast(pl.Boolean)
    if rng.random() < 0.5 and (column.dtype.is_numeric() or column.dtype == pl.String):
        return column.cast(pl.String).cast(dtype, strict=False)
    if dtype in (pl.String, pl.Binary, pl.Categorical):
        return pl.Series([CELLS[int(i)] for i in rng.integers(len(CELLS), size=size)]).cast(dtype)
    return numbers.cast(dtype, strict=False)


def other_cells(csv: bytes, rng: np.random.Generator) -> bytes:
    """A CSV file with odd text in a few of its cells, or in the names of its columns."""
    rows = [line.split(",") for line in csv.decode().splitlines()]
    for _ in range(int(rng.integers(1, 5))):
        row = rows[int(rng.integers(len(rows)))]
        row[int(rng.integers(len(row)))] = CELLS[int(rng.integers(len(CELLS)))]
    return ("\n".join(",".join(row) for row in rows) + "\n").encode()
