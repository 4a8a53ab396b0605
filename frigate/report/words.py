"""The words and numbers of a report: its header, its verdict, its table, and what the words mean."""

from __future__ import annotations

import math
from datetime import datetime
from html import escape

from frigate.data.stream import DAY_S
from frigate.evaluation.metrics import Measure, Summary
from frigate.evaluation.results import Evaluation, Row
from frigate.training.run import RunOnCity


def unit_text(quantity: str, unit: str, step_s: int) -> str:
    """What a value is counted in: "vehicles in 5 min" for a count, the unit itself for a gauge."""
    if quantity != "count":
        return unit or quantity
    return f"{unit or 'count'} in {span(step_s)}"


def best_baseline(evaluation: Evaluation) -> Row | None:
    """The naive baseline with the least MAE where the table is scored."""
    baselines = [row for row in evaluation.rows if row.kind == "baseline" and _scored(row, evaluation) is not None]
    return min(baselines, key=lambda row: _mae(row, evaluation).value, default=None)


def _scored(row: Row, evaluation: Evaluation) -> Summary | None:
    return row.unseen if evaluation.model.unseen is not None else row.at_sensors


def _mae(row: Row, evaluation: Evaluation) -> Measure:
    summary = _scored(row, evaluation)
    return Measure(math.nan, math.nan, math.nan) if summary is None else summary.mae


def header(run: RunOnCity, evaluation: Evaluation, unit: str, note: str) -> str:
    """What was judged and where, the main numbers, and the verdict."""
    nodes, sensors = int(run.city.network.present.sum()), len(evaluation.seen)
    unseen = f"{len(evaluation.unseen):,} intersections whose readings it never saw"
    text = (
        f"{nodes:,} intersections, sensors at {sensors:,} of them. The model was trained on the sensors alone and is "
        f"judged at {unseen if evaluation.model.unseen is not None else 'the sensors themselves'}, "
        f"from {clock(evaluation.start)} to {clock(evaluation.end)}."
    )
    said = "".join(f'<p class="note">{escape(words)}</p>' for words in (note, evaluation.note) if words)
    return (
        f"<header><h1>{escape(evaluation.city)}: traffic at every intersection, from sensors at a few</h1>"
        f'<p class="lead">{escape(text)}</p>{said}{_tiles(evaluation, unit)}'
        f'<p class="verdict">{escape(verdict(evaluation))}</p></header>'
    )


def _tiles(evaluation: Evaluation, unit: str) -> str:
    model, baseline = evaluation.model, best_baseline(evaluation)
    where = "without a sensor" if model.unseen is not None else "at sensors"
    ours = _mae(model, evaluation)
    tiles = [(f"Mean error {where}", _number(ours.value), f"{unit}; 95 % interval {_interval(ours)}")]
    if baseline is not None:
        theirs = _mae(baseline, evaluation)
        tiles.append(("Best simple baseline", _number(theirs.value), f"{baseline.name}; {_interval(theirs)}"))
        if theirs.value > 0:
            less = 100 * (1 - ours.value / theirs.value)
            tiles.append(
                ("Against that baseline", f"{round(-less):+d} %".replace("-", "−"), "error; below 0 is better")
            )
    share = model.share_of_sensor
    if share is not None:
        low, value, high = (round(100 * x) if math.isfinite(x) else x for x in (share.low, share.value, share.high))
        tiles.append(("Share of a sensor", f"{value} %", f"recovered; {low} to {high} %"))
    return '<div class="tiles">' + "".join(
        f"<div><h3>{escape(title)}</h3><b>{escape(value)}</b><span>{escape(small)}</span></div>"
        for title, value, small in tiles
    ) + "</div>"  # fmt: skip


def verdict(evaluation: Evaluation) -> str:
    """Whether the model beats the best naive baseline outside the intervals, in one sentence."""
    baseline = best_baseline(evaluation)
    ours = _mae(evaluation.model, evaluation)
    if baseline is None or not math.isfinite(ours.value):
        return "There is nothing to compare the model with."
    theirs = _mae(baseline, evaluation)
    where = "At intersections without a sensor" if evaluation.model.unseen is not None else "At sensors"
    if ours.high < theirs.low:
        return f"{where} the model beats every simple baseline, and its interval is clear of theirs."
    if ours.value < theirs.value:
        return f"{where} the model is ahead of every simple baseline, but the intervals overlap: not a clear win."
    return f"{where} the model does not beat the simple baselines: {baseline.name} is as good or better."


def table(evaluation: Evaluation, unit: str) -> str:
    """Every forecaster with its scores; the yardstick is set apart, for it knows what no forecaster may."""
    rows = evaluation.table_rows()
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = ""
    for row, cells in zip(evaluation.rows, rows, strict=True):
        _, *scores = cells.values()
        inner = "".join(f"<td>{_with_small_interval(text)}</td>" for text in scores)
        mark = "<small>a yardstick, not a baseline</small>" if row.kind == "yardstick" else ""
        body += f'<tr class="{row.kind}"><th>{escape(row.label)}{mark}</th>{inner}</tr>'
    where = "intersections without a sensor" if evaluation.model.unseen is not None else "sensors"
    return (
        f"<p>Errors at {where}, over all {evaluation.horizon} steps ahead, {evaluation.windows:,} forecasts. "
        f"MAE and RMSE in {escape(unit)}. In brackets: 95 % intervals, intersections resampled.</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="note">{escape(evaluation.footnote)}</p>'
    )


def _with_small_interval(text: str) -> str:
    value, bracket, interval = text.replace("-", "−").partition(" [")
    return escape(value) + (f"<small>[{escape(interval)}</small>" if bracket else "")


def glossary(evaluation: Evaluation, run: RunOnCity) -> str:
    """What the page's words mean, and which model this is."""
    settings = run.settings
    parameters = sum(p.numel() for p in run.model.parameters())
    geh = ("GEH<5: the share of hourly sums that a traffic engineer would call good.",)
    lines = (
        "MAE: the mean absolute error over every forecast, step and intersection with truth. RMSE: the root of the "
        "mean squared error.",
        "sMAPE: each error over the mean of forecast and truth, 0 to 200 %. WAPE: all errors over all truth.",
        *(geh if evaluation.quantity == "count" else ()),
        "Of zero: MAE over that of always forecasting zero.",
        "Share of a sensor: 0 % is one constant for the whole city, 100 % is as good as knowing the intersection's own "
        "median for that hour and kind of day.",
        "Hops: roads between an intersection and its nearest sensor.",
        "Zero, constant median, clock profile, nearest sensors, label propagation: baselines without any learning.",
        f"Model: preset {settings.model.preset}, width {settings.model.width}, {settings.model.layers} layers, "
        f"{parameters:,} parameters, {run.progress.epoch} epochs, seed {settings.train.seed}. "
        f"{evaluation.past} snapshots of {span(evaluation.step_s)} in, {evaluation.horizon} out.",
    )
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _number(x: float) -> str:
    return "undefined" if not math.isfinite(x) else f"{x:#.3g}".rstrip(".") if abs(x) < 999.5 else f"{x:,.0f}"


def _interval(measure: Measure) -> str:
    return f"{_number(measure.low)} to {_number(measure.high)}"


def span(seconds: int) -> str:
    """A length of time in its largest whole unit: "5 min", "2 hours"."""
    for size, word in ((DAY_S, "day"), (3600, "hour"), (60, "min")):
        if seconds % size == 0:
            count = seconds // size
            return f"{count} {word}{'s' * (count > 1 and word != 'min')}"
    return f"{seconds} s"


def clock(iso: str) -> str:
    """A time as a reader says it: "Mon 04 Mar 2024 17:00"."""
    return f"{datetime.fromisoformat(iso):%a %d %b %Y %H:%M}"


def round_number(x: float) -> float:
    """The largest of 1, 2, 5, 10, 20, ... (or 0.5, 0.2, 0.1, ...) that is no more than x."""
    x = max(x, 1e-9)  # below that it is noise
    size = 10.0 ** math.floor(math.log10(x))  # which may round up: hence the half
    return max(step * size for step in (0.5, 1, 2, 5) if step * size <= x)
