"""One offline page about a run: scores beside the baselines, maps, forecast against truth, error by step and hops.

Everything is inside the file: SVG, a style sheet for light and dark, a few lines of script for the slider and the
hover. Nothing is fetched. Without script the page is complete but still.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path

from frigate.data.city import City
from frigate.evaluation.results import Evaluation
from frigate.forecasting.forecast import Forecast
from frigate.report.charts import error_charts
from frigate.report.day import day_panels, day_title, rolling_day
from frigate.report.maps import MapProjection, error_map, forecast_map
from frigate.report.words import best_baseline, glossary, header, table, unit_text
from frigate.training.run import Run, RunOnCity


def write_report(
    path: str | Path,
    run: Run,
    evaluation: Evaluation,
    forecast: Forecast,
    *,
    city: City | None = None,
    note: str = "",
) -> Path:
    """Write the page and return its path. `city` is the one evaluated; default: the one that the run was trained on.

    `note` is a sentence of the caller's, such as how small the model is.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(run.on(city), evaluation, forecast, note), encoding="utf-8")
    return path


def _page(run: RunOnCity, evaluation: Evaluation, forecast: Forecast, note: str) -> str:
    unit = unit_text(evaluation.quantity, evaluation.unit, evaluation.step_s)
    best = best_baseline(evaluation)
    day = rolling_day(run, baseline="" if best is None else best.name)
    plan = MapProjection.of(run.city.network)
    maps = forecast_map(plan, forecast, unit) + error_map(plan, run, evaluation, unit)
    sections = (
        ("How good is it?", table(evaluation, unit)),
        ("Where?", f'<div class="pair">{maps}</div>'),
        (day_title(run), day_panels(day, run, unit)),
        ("When does it get harder?", error_charts(evaluation, unit)),
        ("What the words mean", glossary(evaluation, run)),
    )
    body = "".join(f"<section><h2>{escape(title)}</h2>{inner}</section>" for title, inner in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(evaluation.city)}: forecast</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>\n{_file('report.css')}</style></head>"
        f"<body><main>{header(run, evaluation, unit, note)}{body}</main>"
        f"<script>\n{_file('report.js')}</script></body></html>\n"
    )


def _file(name: str) -> str:
    return files("frigate.report").joinpath(name).read_text(encoding="utf-8")
