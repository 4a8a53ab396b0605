"""The report of a run: scores beside the baselines, maps, forecasts beside what was observed, error by time and place.

Everything is in one file: SVG, a style sheet for light and dark, a short script for the slider and the pointer.
Without script the page is complete but still.
"""

from __future__ import annotations

import math
from pathlib import Path

from frigate.data.city import City
from frigate.data.files import write_file
from frigate.evaluation.metrics import Measure
from frigate.evaluation.results import Evaluation, Row
from frigate.forecasting.result import Forecast
from frigate.report.charts import MARKERS, error_by_hops, error_by_step
from frigate.report.closure_study import ClosureStudy
from frigate.report.maps import BaseMap, error_map, forecast_map
from frigate.report.page import render, unit_text
from frigate.report.rolling_forecast import rolling_charts, rolling_forecast
from frigate.training.run import Run, RunOnCity


def write_report(
    path: str | Path,
    run: Run,
    evaluation: Evaluation,
    forecast: Forecast,
    *,
    city: City | None = None,
    note: str = "",
    closure: ClosureStudy | None = None,
) -> Path:
    """Write the page about a run.

    Parameters
    ----------
    path
        File to write; its folder is made.
    run
        The trained run.
    evaluation, forecast
        What `evaluate` and `forecast` made of it.
    city
        The city that was evaluated. Default: the one that the run was trained on.
    note
        A sentence of the caller's, such as how small the model is.
    closure
        Roads that close, of the demo city.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    write_file(path, _page(run.on(city), evaluation, forecast, note, closure))
    return path


def _page(run: RunOnCity, evaluation: Evaluation, forecast: Forecast, note: str, closure: ClosureStudy | None) -> str:
    unit = unit_text(evaluation.quantity, evaluation.unit, evaluation.step_s)
    best = best_baseline(evaluation)
    rolling = rolling_forecast(run, baseline="" if best is None else best.name)
    base = BaseMap.of(run.city.network)
    return render(
        "run.html.j2",
        run=run,
        evaluation=evaluation,
        any_unseen=evaluation.model.unseen is not None,
        unit=unit,
        note=note,
        closure=closure,
        nodes=int(run.city.network.present.sum()),
        parameters=sum(p.numel() for p in run.model.parameters()),
        mae=_mae(evaluation.model, evaluation),
        baseline=best,
        baseline_mae=None if best is None else _mae(best, evaluation),
        verdict=verdict(evaluation),
        maps=[forecast_map(base, forecast, unit), error_map(base, run, evaluation, unit)],
        rolling=rolling,
        rolling_charts=rolling_charts(rolling, run.city.stream.node_ids, unit),
        markers=[MARKERS[k % len(MARKERS)] for k in range(len(evaluation.rows))],
        by_step=error_by_step(evaluation, unit),
        by_hops=error_by_hops(evaluation, unit),
    )


def best_baseline(evaluation: Evaluation) -> Row | None:
    """The naive baseline with the least MAE at unseen nodes, or at sensors where there are none."""
    scored = [row for row in evaluation.rows if row.kind == "baseline" and math.isfinite(_mae(row, evaluation).value)]
    return min(scored, key=lambda row: _mae(row, evaluation).value, default=None)


def _mae(row: Row, evaluation: Evaluation) -> Measure:
    summary = row.unseen if evaluation.model.unseen is not None else row.at_sensors
    return Measure(math.nan, math.nan, math.nan) if summary is None else summary.mae


def verdict(evaluation: Evaluation) -> str:
    """Whether the model beats the best baseline, by the interval of their difference, in one sentence."""
    baseline = best_baseline(evaluation)
    ours = _mae(evaluation.model, evaluation)
    if baseline is None or not math.isfinite(ours.value):
        return "There is no baseline to compare the model with."
    difference = evaluation.minus_best
    where = "At intersections without a sensor" if evaluation.model.unseen is not None else "At sensors"
    if difference is not None and difference.mae.high < 0:
        return f"{where}, the model beats every simple baseline: the 95 % interval of the difference is below 0."
    if ours.value < _mae(baseline, evaluation).value:
        known = math.isfinite(ours.low)
        why = "the 95 % interval of the difference includes 0" if known else "one intersection has no interval"
        return f"{where}, the model is ahead of every simple baseline, but {why}: not a clear win."
    return f"{where}, the model does not beat the simple baselines: {baseline.name} is as good or better."
