"""Rows of a matrix at local times, made into the snapshots of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.data.city_toml import whole_step
from frigate.data.network import RoadNetwork
from frigate.data.notices import Notices, Spot
from frigate.data.readings import Span, align_start_s, count_snapshots, valid_values
from frigate.data.stream import RoadNetworkStream, make_stream, zone
from frigate.data.tables import ROW, Table
from frigate.data.times import Clock, times_us
from frigate.errors import CityError

CELLS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Measure:
    """What the numbers are and how they are read."""

    quantity: str
    unit: str
    timezone: str
    zeros_missing: bool
    zeros_why: str  # stands in the notice that tells what became of zeros


def local_times_us(path: Path, times: NDArray[np.datetime64], timezone: str, notices: Notices) -> NDArray[np.int64]:
    """Microseconds since 1970 UTC of times on the clocks of a zone."""
    held = times.astype("datetime64[us]")
    if np.isnat(held).any():
        raise CityError(f"{path.name}: row {int(np.argmax(np.isnat(held))) + 1} has no time")
    rows = pl.Series(range(len(held)), dtype=pl.UInt32)
    table = Table(path, pl.DataFrame({ROW: rows, "time": pl.Series(held)}))
    return times_us(table, "time", clock=Clock(zone(timezone), ""), notices=notices)


def usual_step_s(path: Path, time_us: NDArray[np.int64]) -> int:
    """The step most of the times are apart."""
    gaps, count = np.unique(np.diff(np.unique(time_us)), return_counts=True)
    if not len(gaps):
        raise CityError(f"{path.name}: one time only, so the step cannot be told. At least two rows are needed")
    usual_us = int(gaps[np.argmax(count)])
    if usual_us % 1_000_000:
        raise CityError(f"{path.name}: its times are mostly {usual_us / 1e6:g} s apart. A step is whole seconds")
    return whole_step(usual_us // 1_000_000, where=path.name)


def grid_stream(
    path: Path,
    values: NDArray[np.generic],
    time_us: NDArray[np.int64],
    network: RoadNetwork,
    *,
    measure: Measure,
    notices: Notices,
) -> RoadNetworkStream:
    """A stream from a matrix [rows, N] and the time of each row. Snapshots without a row are not observed."""
    N = network.num_nodes
    if values.shape != (len(time_us), N) or not values.size:
        raise CityError(f"{path.name}: its values are {values.shape}. {len(time_us)} times and {N} nodes make no such")
    if values.dtype.kind not in "biuf":
        raise CityError(f"{path.name}: its values are {values.dtype}. Numbers are expected")
    step_s = usual_step_s(path, time_us)
    order = np.argsort(time_us, kind="stable")
    start_s = align_start_s(int(time_us[order[0]]), step_s=step_s, timezone=measure.timezone)
    snapshot = (time_us[order] // 1_000_000 - start_s) // step_s
    last = np.append(np.diff(snapshot) != 0, True)
    again = np.zeros(len(order), bool)
    again[order[~last]] = True
    said = f"Rows of {path.name} left out, a later one falls into the same snapshot"
    notices.add_rows(said, again, lambda row: Spot(f"row {row + 1}"))
    order, snapshot = order[last], snapshot[last]
    ends = (Spot(f"row {int(row) + 1}") for row in (order[0], order[-1]))
    span = Span(int(time_us[order[0]]), int(time_us[order[-1]]), *ends)
    S = count_snapshots(span, start_s=start_s, step_s=step_s, num_nodes=N, num_readings=values.size)
    held, observed = _filled(values, order, snapshot, (S, N), network, measure, notices)
    if not observed.any():
        raise CityError(f"{path.name} has no reading: every cell is missing")
    return make_stream(
        held,
        network,
        start_s=start_s,
        step_s=step_s,
        observed=observed,
        timezone=measure.timezone,
        quantity=measure.quantity,
        unit=measure.unit,
    )


def _filled(
    values: NDArray[np.generic],
    order: NDArray[np.int64],
    snapshot: NDArray[np.int64],
    shape: tuple[int, int],
    network: RoadNetwork,
    measure: Measure,
    notices: Notices,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    held, observed = np.zeros(shape, np.float32), np.zeros(shape, bool)
    zeros, N = 0, shape[1]
    at_once = max(1, CELLS_AT_ONCE // N)
    for first in range(0, len(order), at_once):
        rows = order[first : first + at_once]

        def spot(cell: int, rows: NDArray[np.int64] = rows) -> Spot:
            row, node = divmod(cell, N)
            return Spot(f'row {int(rows[row]) + 1}, node "{network.node_ids[node]}"')

        raw = values[rows].reshape(-1)
        kept = np.ones(raw.shape, bool)
        zero = raw == 0
        zeros += int(zero.sum())
        if measure.zeros_missing:
            kept &= ~zero
        stored, keep = valid_values(raw, kept, quantity=measure.quantity, notices=notices, spot=spot)  # type: ignore[arg-type]
        into = snapshot[first : first + at_once]
        held[into] = np.where(keep, stored, 0).reshape(-1, N)
        observed[into] = keep.reshape(-1, N)
    rule = "taken as not observed" if measure.zeros_missing else "kept as readings of 0"
    notices.counts[f"Zeros {rule}: {measure.zeros_why}"] = zeros  # told even when there are none: it is a choice
    return held, observed
