"""How far a run can be trusted: the texts and numbers of a report about its scores."""

from __future__ import annotations

import math
from typing import Any

from frigate.evaluation.evaluate import HOPS
from frigate.evaluation.metrics import Measure, Summary
from frigate.evaluation.results import Evaluation, ScoreRow
from frigate.pages.day import Day, pick_nodes
from frigate.text import duration, format_time, three_digits, unit_text


def trust_figures(day: Day, evaluation: Evaluation, note: str) -> dict[str, Any]:
    """What the page shows about an evaluation: `Trust` in page/src/report.ts."""
    run = day.run
    baseline = best_baseline(evaluation)
    unit = unit_text(evaluation.quantity, evaluation.unit, evaluation.step_s)
    table = evaluation.table_rows()
    ids = run.city.stream.node_ids.tolist()
    places = "roads" if len(day.network.lines) else "intersections"
    scored = f"{places} without a sensor" if evaluation.model.unseen is not None else "sensors"
    return {
        "lead": _lead(day, evaluation, places),
        "notes": [text for text in (note, evaluation.note) if text],
        "tiles": _tiles(evaluation, baseline, unit),
        "verdict": verdict(evaluation, places),
        "scores": f"Errors at {scored}, over all {evaluation.horizon} steps ahead of {evaluation.windows:,} forecasts. "
        f"MAE and RMSE are in {unit}. In brackets: 95 % intervals from resampling the {places}.",
        "columns": list(table[0]),
        "rows": [
            {
                "kind": row.kind,
                "cells": [cell.replace("-", "−") if k else cell for k, cell in enumerate(cells.values())],
            }
            for row, cells in zip(evaluation.rows, table, strict=True)
        ],
        "footnote": evaluation.footnote,
        "unit": f"MAE, {unit}",
        "by_step": _by_step(evaluation),
        "by_hops": _by_hops(evaluation),
        "picked": [{"node": ids[row], "why": why} for row, why in pick_nodes(day).items()],
        "baseline": None if baseline is None else baseline.name,
        "glossary": _glossary(day, evaluation),
    }


def best_baseline(evaluation: Evaluation) -> ScoreRow | None:
    """The baseline with the lowest MAE at unseen nodes, or at sensors if all nodes have one."""
    return None if evaluation.minus_best is None else evaluation.row(evaluation.minus_best.baseline)


def verdict(evaluation: Evaluation, places: str = "intersections") -> str:
    """One sentence: whether the model beats the best baseline, by the interval of their difference."""
    baseline = best_baseline(evaluation)
    ours = _mae(evaluation.model, evaluation)
    if baseline is None or not math.isfinite(ours.value):
        return "There is no baseline to compare the model with."
    difference = evaluation.minus_best
    where = f"At {places} without a sensor" if evaluation.model.unseen is not None else "At sensors"
    if difference is not None and difference.mae.high < 0:
        return f"{where}, the model beats every simple baseline: the 95 % interval of the difference is below 0."
    if ours.value < _mae(baseline, evaluation).value:
        known = math.isfinite(ours.low)
        why = "the 95 % interval of the difference includes 0" if known else "a single node gives no interval"
        return f"{where}, the model is ahead of every simple baseline, but {why}: not a clear win."
    return f"{where}, the model does not beat the simple baselines: {baseline.name} is as good or better."


def _mae(row: ScoreRow, evaluation: Evaluation) -> Measure:
    summary = row.unseen if evaluation.model.unseen is not None else row.at_sensors
    return Measure(math.nan, math.nan, math.nan) if summary is None else summary.mae


def _lead(day: Day, evaluation: Evaluation, places: str) -> str:
    nodes = int(day.network.present.sum())
    seen = len(evaluation.seen)
    unseen = len(evaluation.unseen)
    tested = f"{unseen:,} {places} whose readings it never saw"
    where = tested if evaluation.model.unseen is not None else "the sensors themselves"
    return (
        f"{nodes:,} {places}, {seen:,} of them with a sensor. The model was trained on the sensors only and is "
        f"tested at {where}, from {format_time(evaluation.start)} to {format_time(evaluation.end)}."
    )


def _tiles(evaluation: Evaluation, baseline: ScoreRow | None, unit: str) -> list[dict[str, str]]:
    def tile(title: str, value: str, detail: str) -> dict[str, str]:
        return {"title": title, "value": value, "detail": detail}

    mae = _mae(evaluation.model, evaluation)
    share = evaluation.model.share_of_sensor
    where = "without a sensor" if evaluation.model.unseen is not None else "at sensors"
    tiles = [tile(f"Mean absolute error {where}", three_digits(mae.value), f"{unit}; {_interval(mae)}")]
    if baseline is not None:
        other = _mae(baseline, evaluation)
        tiles.append(tile("Best simple baseline", three_digits(other.value), f"{baseline.name}; {_interval(other)}"))
        if other.value > 0:
            change = round(100 * mae.value / other.value - 100)
            more = "more error" if change > 0 else "less error"
            tiles.append(tile("Compared with that baseline", f"{abs(change)} %", more))
    if share is not None:
        known = f"; 95 % interval {100 * share.low:.0f} to {100 * share.high:.0f} %" if math.isfinite(share.low) else ""
        tiles.append(tile("Share of a sensor", f"{100 * share.value:.0f} %", f"recovered{known}"))
    return tiles


def _interval(measure: Measure) -> str:
    if not math.isfinite(measure.low):
        return "a single node, no interval"
    return f"95 % interval {three_digits(measure.low)} to {three_digits(measure.high)}"


def _by_step(evaluation: Evaluation) -> dict[str, Any]:
    ahead = [duration((step + 1) * evaluation.step_s) for step in range(evaluation.horizon)]
    return _group(evaluation, ahead, lambda row: list(row.by_step))


def _by_hops(evaluation: Evaluation) -> dict[str, Any] | None:
    groups = [name for name in HOPS if any(name in row.by_hops for row in evaluation.rows)]
    return _group(evaluation, groups, lambda row: [row.by_hops.get(name) for name in groups]) if groups else None


def _group(evaluation: Evaluation, names: list[str], of: Any) -> dict[str, Any]:
    def value(summary: Summary | None) -> float | None:
        return None if summary is None or not math.isfinite(summary.mae.value) else round(summary.mae.value, 6)

    lines = [
        {"name": row.label, "kind": row.kind, "values": [value(each) for each in of(row)]} for row in evaluation.rows
    ]
    return {"names": names, "lines": lines}


def _glossary(day: Day, evaluation: Evaluation) -> list[tuple[str, str]]:
    run = day.run
    model, parameters = run.settings.model, sum(p.numel() for p in run.model.parameters())
    terms = [
        (
            "MAE, RMSE",
            "Mean absolute error and root mean squared error, over every forecast, step and intersection "
            "with a reading to compare with.",
        ),
        ("sMAPE", "Mean of |forecast − observed| divided by the mean of the two: 0 to 200 %."),
        ("WAPE", "Sum of all absolute errors divided by the sum of all observed values."),
        (
            "GEH<5",
            "Share of hourly totals with a GEH statistic below 5, which traffic engineers accept as a good match.",
        ),
        ("of zero", "MAE divided by the MAE of always forecasting zero."),
        (
            "share of a sensor",
            "How much of a sensor the forecast replaces: 0 % is one constant for the whole city; "
            "100 % is as good as knowing the intersection's own median for that hour and type of day.",
        ),
        ("error relative to traffic", "The mean absolute error of an intersection divided by its mean reading."),
        (
            "roads to the nearest sensor",
            "The least number of roads between an intersection and a sensor, in either direction.",
        ),
        (
            "simple baselines",
            "Zero, constant median, clock profile, nearest sensors, label propagation, and demand "
            "alone: none of them is trained. At sensors also their own last readings.",
        ),
        (
            "model",
            f"Preset {model.preset}, {parameters:,} parameters, {run.progress.epoch} epochs, seed "
            f"{run.settings.train.seed}. Input: {evaluation.past} snapshots of {duration(evaluation.step_s)}; "
            f"output: the next {evaluation.horizon}.",
        ),
    ]
    return [(term, text) for term, text in terms if term != "GEH<5" or evaluation.quantity == "count"]
