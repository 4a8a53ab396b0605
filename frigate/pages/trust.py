"""How far a run can be trusted: the panel of a report about its scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from frigate.evaluation.evaluate import HOPS
from frigate.evaluation.metrics import Measure, Summary
from frigate.evaluation.results import Evaluation, ScoreRow
from frigate.pages import panels
from frigate.pages.day import Day
from frigate.pages.layers import Unit
from frigate.pages.panels import Panel
from frigate.text import duration, format_time, three_digits, unit_text


def trust_panel(day: Day, evaluation: Evaluation, note: str) -> Panel:
    """What the page shows about an evaluation."""
    baseline = best_baseline(evaluation)
    unit = unit_text(evaluation.quantity, evaluation.unit, evaluation.step_s)
    table = evaluation.table_rows()
    places = places_of(day)
    scored = f"{places} without a sensor" if evaluation.model.unseen is not None else "sensors"
    by_hops = _by_hops(day, evaluation)
    blocks = [
        panels.heading("How accurate is it?"),
        panels.words(_lead(day, evaluation, places)),
        panels.tiles(_tiles(evaluation, baseline, unit)),
        panels.words(verdict(evaluation, places), style="verdict"),
        *(panels.words(text, style="note") for text in (note, evaluation.note) if text),
        panels.words(
            f"Errors at {scored}, over all {evaluation.horizon} steps ahead of {evaluation.windows:,} forecasts. "
            f"MAE and RMSE are in {unit}. In brackets: 95 % intervals from resampling the {places}."
        ),
        panels.table(
            "Scores",
            list(table[0]),
            [[name, *(_cell(text) for text in cells)] for name, *cells in (row.values() for row in table)],
            styles=[row.kind for row in evaluation.rows],
        ),
        panels.words(evaluation.footnote, style="note"),
        *_by_place(evaluation),
        *_by_volume(evaluation),
        *_calibration(evaluation),
        _by_step(day, evaluation),
        *([] if by_hops is None else [by_hops]),
        panels.details("Glossary", panels.terms(_glossary(day, evaluation))),
    ]
    return Panel("trust", "How accurate is it?", tuple(blocks))


def places_of(day: Day) -> str:
    return "roads" if len(day.network.lines) else "intersections"


def _cell(text: str) -> panels.Cell:
    value, _, interval = text.replace("-", "−").partition(" [")
    return {"text": value, "small": f"[{interval}"} if interval else value


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


def _tiles(evaluation: Evaluation, baseline: ScoreRow | None, unit: str) -> list[tuple[str, str, str]]:
    """Title, value and detail of each tile."""
    mae = _mae(evaluation.model, evaluation)
    share = evaluation.model.share_of_sensor
    where = "without a sensor" if evaluation.model.unseen is not None else "at sensors"
    tiles = [(f"Mean absolute error {where}", three_digits(mae.value), f"{unit}; {_interval(mae)}")]
    if baseline is not None:
        other = _mae(baseline, evaluation)
        tiles.append(("Best simple baseline", three_digits(other.value), f"{baseline.name}; {_interval(other)}"))
        if other.value > 0:
            change = round(100 * mae.value / other.value - 100)
            more = "more error" if change > 0 else "less error"
            tiles.append(("Compared with that baseline", f"{abs(change)} %", more))
    if share is not None:
        known = f"; 95 % interval {100 * share.low:.0f} to {100 * share.high:.0f} %" if math.isfinite(share.low) else ""
        tiles.append(("Share of a sensor", f"{100 * share.value:.0f} %", f"recovered{known}"))
    return tiles


def _interval(measure: Measure) -> str:
    if not math.isfinite(measure.low):
        return "a single node, no interval"
    return f"95 % interval {three_digits(measure.low)} to {three_digits(measure.high)}"


def _by_place(evaluation: Evaluation) -> list[panels.Block]:
    """How many places gain by the model."""
    if not evaluation.skill:
        return []
    said = "At each place, against the best simple forecast that is possible there; with a sensor, also its own past."
    rows = [
        [f"{each.places:,} {each.where}", each.baseline, f"{each.better:.0f} %", f"{each.much_better:.0f} %"]
        for each in evaluation.skill
    ]
    columns = ["places", "beside", "less error", "a fifth less"]
    return [
        panels.heading("Place by place", level=3),
        panels.words(said),
        panels.table("Place by place", columns, rows, left=2),
        panels.layer_buttons({"skill": "Skill on the map", "error": "Error on the map"}),
    ]


def _by_volume(evaluation: Evaluation) -> list[panels.Block]:
    rows = evaluation.volume_table()
    if not rows:
        return []
    where = "without a sensor" if evaluation.geh_by_volume.get("unseen") else "at sensors"
    return [
        panels.heading(f"GEH by hourly volume, {where}", level=3),
        panels.table("GEH by hourly volume", list(rows[0]), [list(row.values()) for row in rows]),
    ]


def _calibration(evaluation: Evaluation) -> list[panels.Block]:
    """How often intervals of each level hold."""
    found = evaluation.intervals
    if found is None or not found.calibration:
        return []
    levels = [each.level for each in found.calibration]
    lines = [
        panels.ChartLine("without a sensor", "forecast", [each.unseen for each in found.calibration]),
        panels.ChartLine("at sensors", "other", [each.at_sensors for each in found.calibration]),
        panels.ChartLine("as it should be", "observed", levels),
    ]
    known = [line for line in lines if any(value is not None for value in line.values)]
    names = [f"{level:g} %" for level in levels]
    drift = [] if found.drift is None else [panels.words(found.drift.line(), style="note")]
    return [
        panels.heading("Do intervals hold?", level=3),
        panels.words(found.line()),
        panels.chart("How often intervals of each level hold", Unit("% of hours and places"), known, names=names),
        panels.words(
            "Counts are whole numbers, so intervals of quiet places hold more often than asked: none is narrower than "
            "one number.",
            style="note",
        ),
        *drift,
    ]


def _by_step(day: Day, evaluation: Evaluation) -> panels.Block:
    ahead = [duration((step + 1) * evaluation.step_s) for step in range(evaluation.horizon)]
    return _chart("Error by time ahead", day, evaluation, ahead, lambda row: row.by_step)


def _by_hops(day: Day, evaluation: Evaluation) -> panels.Block | None:
    groups = [name for name in HOPS if any(name in row.by_hops for row in evaluation.rows)]
    title = "Error by number of roads to the nearest sensor"
    if not groups:
        return None
    return _chart(title, day, evaluation, groups, lambda row: [row.by_hops.get(name) for name in groups])


def _chart(
    title: str,
    day: Day,
    evaluation: Evaluation,
    names: list[str],
    of: Callable[[ScoreRow], Sequence[Summary | None]],
) -> panels.Block:
    def value(summary: Summary | None) -> float | None:
        return None if summary is None or not math.isfinite(summary.mae.value) else round(summary.mae.value, 6)

    style = {"model": "forecast", "yardstick": "observed"}
    lines = [
        panels.ChartLine(row.label, style.get(row.kind, "other"), [value(each) for each in of(row)])
        for row in evaluation.rows
    ]
    return panels.chart(title, Unit.of(day.run.city.stream), lines, names=names)


def _glossary(day: Day, evaluation: Evaluation) -> list[tuple[str, str]]:
    run = day.run
    model = run.settings.model
    parameters = sum(p.numel() for p in run.model.parameters())
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
        (
            "GEH",
            "The difference of an hourly count and its forecast, relative to about the square root of their mean: "
            "below 5 is a good match, above 10 is none.",
        ),
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
    return [(term, text) for term, text in terms if not term.startswith("GEH") or evaluation.quantity == "count"]
