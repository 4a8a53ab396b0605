"""Forecasts of sensors that were left out in turn: what the run's intervals are measured on.

The seen sensors are divided into folds. The sensors of a fold are hidden from a forecast's readings, and from the
counts that its demand is calibrated to and its levels are learned from; then they are as any place without a sensor.
The times are those of the validation period, which no count of training is from. The network is the trained one, whose
loss knew the sensors that it forecasts here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.calendar import DAY_S
from frigate.city.split import windows_in
from frigate.draws import keys_of
from frigate.nn.predictor import Predictor
from frigate.nn.windows import Windows
from frigate.progress import Progress
from frigate.roads.nearest_sensors import hops_to
from frigate.training.intervals import Intervals, Surroundings, fit_intervals
from frigate.training.predictive import Cells, cells_together
from frigate.training.promise import LEVEL, Promise, Tally
from frigate.training.run import RunOnCity
from frigate.training.trainer import spread

FOLDS = 8
WINDOWS = 2  # over all folds, for each window that validation scores

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class _Flat:
    """Cells with a reading."""

    cells: Cells
    truth: Floats
    sensor: NDArray[np.int64]  # row in the city
    day: int  # of the forecast


def measured_intervals(
    run: RunOnCity, device: torch.device | str = "cpu", *, progress: Progress | None = None
) -> Intervals | None:
    """The intervals of a trained run; None if there are too few readings to measure them on."""
    task = run.settings.task
    current = windows_in(run.split.validate, past=task.past, horizon=task.horizon)
    folds = _folds(run)
    current = spread(current, max(len(folds), WINDOWS * run.settings.train.validation_windows))
    if len(folds) < 2 or len(current) < len(folds):
        return None
    windows = run.windows(device, sensors=[run.split.seen & ~fold for fold in folds])
    predictor = Predictor(
        run.model,
        run.usual_roads,
        torch.device(device),
        quantity=run.city.stream.quantity,
        memory_gb=run.settings.train.memory_gb,
    )
    left_out: list[_Flat] = []
    read: list[_Flat] = []
    for k, fold in enumerate(folds):
        visible = run.split.seen & ~fold
        demand = windows.views.demands[k] if windows.views.demands else None
        around = Surroundings.of(visible, hops_to(run.usual_roads, visible), demand, step_s=run.city.stream.step_s)
        for snapshot in current[k :: len(folds)].tolist():
            cells = _forecast(run, windows, predictor, around, k, fold, snapshot)
            left_out.append(_flat(run, cells, snapshot, np.flatnonzero(fold)))
            read.append(_flat(run, cells, snapshot, np.flatnonzero(around.sensor)))
        if progress is not None:
            progress(k + 1, len(folds), "")
    known = _together(run, read)
    intervals = fit_intervals(
        _together(run, left_out),
        known,
        nodes=int(run.split.seen.sum()),
        quantity=run.city.stream.quantity,
    )
    if intervals is None or intervals.sensors is None or not intervals.allows(LEVEL):
        return intervals
    return replace(intervals, promise=_promise(intervals, known, _days(run, read)))


def _promise(
    intervals: Intervals, known: tuple[Cells, Floats, NDArray[np.int64]], day: NDArray[np.int64]
) -> Promise | None:
    """What the forecasts at sensors were like on each day."""
    cells, truth, sensor = known
    cells = replace(cells, own=intervals.own[sensor])
    lower, upper, _ = intervals.band(cells, np.ones(len(truth), bool), LEVEL)

    def of_day(number: int) -> Tally:
        at = day == number
        return Tally.of(cells.forecast[at], truth[at], lower[at], upper[at], sensor[at], len(intervals.own))

    return Promise.of([of_day(number) for number in np.unique(day).tolist()])


def _forecast(
    run: RunOnCity,
    windows: Windows,
    predictor: Predictor,
    around: Surroundings,
    k: int,
    fold: NDArray[np.bool_],
    snapshot: int,
) -> Cells:
    """The cells [H,N] of the forecast after a snapshot, without the sensors of fold k."""
    task = run.settings.task
    batch = windows.batch(
        np.array([snapshot]),
        past=task.past,
        horizon=task.horizon,
        inputs=torch.from_numpy(run.split.seen).to(windows.device),
        hidden=torch.from_numpy(fold)[None].to(windows.device),
        demand=torch.full((1,), k, device=windows.device) if windows.views.demands else None,
    )
    made = batch.join(predictor(batch)).float()
    rerouted = torch.ones_like(made)
    if batch.demand_node is not None:
        rerouted = batch.join(batch.demand_node[:, None, :, -1].expand(-1, task.horizon, -1))
    clock = run.city.stream.wall_clock[snapshot + 1 : snapshot + 1 + task.horizon]
    forecast = made[0].clamp(min=predictor.least).cpu().numpy().astype(np.float64)
    return around.cells(forecast, clock, rerouted[0].cpu().numpy().astype(np.float64))


def _flat(run: RunOnCity, cells: Cells, snapshot: int, rows: NDArray[np.int64]) -> _Flat:
    """The cells of these nodes that have a reading."""
    ahead = slice(snapshot + 1, snapshot + 1 + run.settings.task.horizon)
    stream = run.city.stream
    step, at = np.nonzero(stream.observed[ahead, rows])
    where = step, rows[at]
    day = int((stream.times_s[snapshot] + stream.utc_offset_s[snapshot]) // DAY_S)
    return _Flat(cells.take(where), stream.values[ahead][where].astype(np.float64), where[1], day)


def _together(run: RunOnCity, parts: list[_Flat]) -> tuple[Cells, Floats, NDArray[np.int64]]:
    """All cells, the truth, and each sensor's number among the run's seen nodes; in an order that no table decides."""
    cells = cells_together([part.cells for part in parts])
    truth, sensor = (np.concatenate([getattr(part, name) for part in parts]) for name in ("truth", "sensor"))
    order = _order(run, sensor)
    number = np.cumsum(run.run.split.seen) - 1
    row_in_run = run.city.network.same_nodes(run.run.nodes)
    return cells.take(order), truth[order], number[row_in_run[sensor[order]]]


def _days(run: RunOnCity, parts: list[_Flat]) -> NDArray[np.int64]:
    """The day of each cell, in the order of `_together`."""
    sensor = np.concatenate([part.sensor for part in parts])
    day = np.concatenate([np.full(len(part.truth), part.day) for part in parts])
    return np.asarray(day[_order(run, sensor)], np.int64)


def _order(run: RunOnCity, sensor: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.argsort(keys_of(run.city.stream.node_ids)[sensor], kind="stable")


def _folds(run: RunOnCity) -> list[NDArray[np.bool_]]:
    """[N] masks of the seen nodes; nodes with the same detector are in the same fold, whatever their order."""
    stream = run.city.stream
    together = run.city.detectors.together(stream.num_nodes)
    measured = run.split.seen & stream.observed[slice(*run.split.validate)].any(0)
    rows = np.flatnonzero(measured)
    rows = rows[np.argsort(keys_of(stream.node_ids[rows]), kind="stable")]
    groups = list(dict.fromkeys(together[rows].tolist()))
    masks = (np.isin(together, groups[k::FOLDS]) & run.split.seen for k in range(FOLDS))
    return [mask for mask in masks if mask.any()]
