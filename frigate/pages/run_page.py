"""The report of a run: its last test day on the map page, and its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import utc_iso
from frigate.city.city import City
from frigate.city.network import Road
from frigate.evaluation.evaluate import with_test_period
from frigate.evaluation.results import Evaluation
from frigate.forecasting.edits import edit_network
from frigate.forecasting.road_flow import closed_roads
from frigate.pages import panels
from frigate.pages.closure_study import ClosureStudy
from frigate.pages.closures import CHANGE, BeforeAfter, ClosureView, view_closed_day
from frigate.pages.day import Day, forecast_day, pick_nodes
from frigate.pages.layers import Band, Colours, Layer, Unit, Values
from frigate.pages.map_data import network_container
from frigate.pages.map_page import History, HistoryLine, MainSensors, MapPage, Place, form, write_map_page
from frigate.pages.trust import best_baseline, places_of, trust_panel
from frigate.pages.wire import rounded
from frigate.text import duration
from frigate.training.intervals import DEFAULT_LEVEL
from frigate.training.run import Run

Floats = NDArray[np.float32]

MAX_VALUES = 5_000_000  # over all times: about 13 MB in the file
DROPPED_BITS = 13  # of the 23 bits of a float32 mantissa: values are within 0.05 %
EVERY = (1, 2, 3, 4, 6, 12, 24, 48)  # a large city shows every 2nd, 3rd, ... time only
GEH_EDGES = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0)  # below 5 is a good match, above 10 is none
TEST_PERIOD = "Mean of the test period"
SKILLS = (
    "half the error or less",
    "20 to 50 % less",
    "5 to 20 % less",
    "about the same",
    "5 to 20 % more",
    "20 to 50 % more",
    "over 50 % more",
)


def write_report(
    path: str | Path,
    run: Run,
    evaluation: Evaluation,
    *,
    city: City | None = None,
    test: str | None = None,
    close: Sequence[str | Road] = (),
    study: ClosureStudy | None = None,
    note: str = "",
    level: float | None = None,
    device: str | None = None,
) -> Path:
    """Write the page about a run.

    Parameters
    ----------
    path
        File to write; its folder is created.
    run
        The trained run.
    evaluation
        Its evaluation.
    city
        The city that was evaluated. Default: the one that the run was trained on.
    test
        The period that was scored, as in `evaluate`; the report shows its last day.
    close
        One-way roads to close in the report: "A,B" or (A, B).
    study
        A closure study to show instead of `close`.
    note
        A sentence to add, such as how small the model is.
    level
        Of the intervals to show, in percent. Default: 90 if the run has them, else none.
    device
        "cpu" or "cuda". Default: cuda if available.

    Returns
    -------
    Path
        The file.
    """
    form()
    if level is not None:
        run.require_intervals(level)
    elif run.intervals is not None and run.intervals.allows(DEFAULT_LEVEL):
        level = DEFAULT_LEVEL
    run_on_city = with_test_period(run.on(city), test)
    usual = run_on_city.usual_roads
    shut = closed_roads(usual, edit_network(usual, close=close))
    baseline = best_baseline(evaluation)
    day = forecast_day(run_on_city, baseline="" if baseline is None else baseline.name, level=level, device=device)
    closure = None if study is None else study.view
    if shut.any() and study is None:
        closure = view_closed_day(day, day.close(shut))
    return write_map_page(path, _page(day, evaluation, closure, note))


def _page(day: Day, evaluation: Evaluation, closure: ClosureView | None, note: str) -> MapPage:
    shown = slice(None, None, _every(day, closure))
    of_day = _ShownDay.of(day, shown)
    layers = [*_day_layers(of_day), *_score_layers(day, evaluation)]
    if closure is not None and closure.note:
        layers += closure.layers()
    elif closure is not None:
        values = BeforeAfter(
            of_day.forecast,
            _rounded(closure.values.after[shown]),
            of_day.road_flow,
            _rounded(closure.values.road_after[shown]),
            band_before=of_day.band,
            band_after=_shown_band(closure.values.band_after, shown),
        )
        layers += replace(closure, values=values).layers(of_day.times, of_day.closed_set)
    trust = trust_panel(day, evaluation, note)
    return MapPage(
        title="report",
        network=_network(day),
        layers=tuple(layers),
        panels=(trust,) if closure is None else (closure.panel(), trust),
        place=_place(of_day, evaluation),
        open_layer="" if closure is None else CHANGE,
        open_frame=_busiest(of_day.forecast, evaluation.quantity),
        closed_sets=of_day.closed_sets,
    )


@dataclass(frozen=True)
class _ShownDay:
    """The times of the day that are shown. F times."""

    day: Day
    times: list[str]  # [F]
    forecast: Floats  # [F,N]
    observed: Floats  # [F,N]
    road_flow: Floats  # [F,E]
    baseline: Floats | None  # [F,N]
    band: Band | None
    closed_sets: list[tuple[int, ...]]  # distinct sets of roads closed
    closed_set: NDArray[np.uint32]  # [F] which of them
    every_s: int  # from one time to the next

    @classmethod
    def of(cls, day: Day, shown: slice) -> _ShownDay:
        closed = day.closed()[shown]
        sets = sorted({tuple(each) for each in closed})
        return cls(
            day=day,
            times=[utc_iso(time_s) for time_s in day.times_s[shown].tolist()],
            forecast=_rounded(day.forecast[shown]),
            observed=_rounded(day.observed[shown]),
            road_flow=_rounded(day.road_flow[shown]),
            baseline=None if day.baseline is None else _rounded(day.baseline[shown]),
            band=_shown_band(day.band, shown),
            closed_sets=sets,
            closed_set=np.array([sets.index(tuple(each)) for each in closed], np.uint32),
            every_s=shown.step * day.run.city.stream.step_s,
        )


def _busiest(forecast: Floats, quantity: str) -> int:
    """The frame with the most traffic: of speeds, that with the lowest."""
    sign = -1 if quantity == "speed" else 1
    return int(np.argmax(sign * np.nansum(forecast, axis=1)))


def _day_layers(of: _ShownDay) -> list[Layer]:
    unit = Unit.of(of.day.run.city.stream)
    flow = Colours("flow", group="day")

    def values(rows: Floats, band: Band | None = None) -> Values:
        return Values(rows, unit, flow, band=band)

    nodes = values(of.forecast, of.band)
    layers = [
        Layer("forecast", "Forecast", values(of.road_flow), nodes, of.times, closed=of.closed_set),
        Layer("truth", "Observed", None, values(of.observed), of.times, closed=of.closed_set),
    ]
    if of.band is not None:
        width = Values(of.band.upper, unit, Colours("error"), minus=of.band.lower)
        title = f"Width of the {of.band.level:g} % interval"
        layers.append(Layer("width", title, None, width, of.times, closed=of.closed_set))
    return layers


def _shown_band(band: Band | None, shown: slice) -> Band | None:
    return None if band is None else Band(_rounded(band.lower[shown]), _rounded(band.upper[shown]), band.level)


def _score_layers(day: Day, evaluation: Evaluation) -> list[Layer]:
    """The error at each scored node, and that beside the best simple forecast that is possible there."""
    if evaluation.node_geh is not None:
        geh = np.where(_scored(day), evaluation.node_geh, np.nan).astype(np.float32)
        error, title = (
            Values(geh[None], Unit("mean GEH of hourly counts"), Colours("error", GEH_EDGES)),
            "Error, as GEH",
        )
    else:
        share = _relative_error(day, evaluation)[None]
        error = Values(share, Unit("% of the mean there"), Colours("error", (5, 10, 20, 35, 50, 100)))
        title = "Error relative to the mean"
    layers = [Layer("error", title, None, error, note=TEST_PERIOD)]
    if evaluation.best_node_mae is not None:
        unit = Unit("% error, beside the best simple forecast")
        skill = Values(_skill(day, evaluation)[None], unit, Colours("change", (-50, -20, -5, 5, 20, 50), SKILLS))
        layers.append(Layer("skill", "Skill against the best simple forecast", None, skill, note=TEST_PERIOD))
    return layers


def _place(of: _ShownDay, evaluation: Evaluation) -> Place:
    day = of.day
    task = day.run.settings.task
    period = duration(task.horizon * evaluation.step_s)
    made = f"A new forecast is made every {'hour' if period == '1 h' else period} and shown until the next one."
    words = [f"The last day of the test period. {made}"]
    if of.every_s > evaluation.step_s:
        words.append(f"The map shows one time every {duration(of.every_s)}, to keep the file small.")
    places = places_of(day)
    one = "a road" if places == "roads" else "an intersection or a road"
    words.append(f"Click {one}, or search for one.")
    ids = day.run.city.stream.node_ids.tolist()
    picked = [(panels.node(f"{places[:-1].capitalize()} {ids[row]}", row), why) for row, why in pick_nodes(day).items()]
    baseline = best_baseline(evaluation)
    lines = [HistoryLine("forecast", "forecast", of.forecast)]
    if of.baseline is not None and baseline is not None:
        lines.append(HistoryLine(baseline.name, "other", of.baseline))
    lines.append(HistoryLine("observed", "observed", of.observed))
    return Place(
        intro=(
            panels.heading("A day, everywhere"),
            panels.city_facts(),
            *(panels.words(text) for text in words),
            *([panels.heading(f"Some {places}, not picked for their accuracy", level=3)] if picked else []),
            panels.items(picked),
        ),
        history=History("History and forecast", Unit.of(day.run.city.stream), tuple(lines), of.times, band=of.band),
        main_sensors=MainSensors(*day.main_sensors(), is_share=day.has_demand),
    )


def _every(day: Day, closure: ClosureView | None) -> int:
    """The report shows every nth time: the smallest n that keeps the file small enough to mail."""
    N = day.network.num_nodes
    E = day.network.num_edges
    ends = 0 if day.band is None else 2
    values_per_time = N * (2 + ends + (day.baseline is not None)) + E
    if closure is not None and not closure.note:
        values_per_time += N * (1 + ends) + E
    return next((every for every in EVERY if len(day.rows) / every * values_per_time <= MAX_VALUES), EVERY[-1])


def _network(day: Day) -> bytes:
    run = day.run
    stream = day.run.city.stream
    return network_container(
        day.network,
        stream,
        run.split.seen & day.network.present,
        name=run.city.name,
        horizon=run.settings.task.horizon,
        has_demand=False,  # the file contains no trips
        detectors=run.city.detectors,
    )


def _rounded(values: NDArray[np.floating]) -> NDArray[np.float32]:
    return rounded(values, DROPPED_BITS)


def _scored(day: Day) -> NDArray[np.bool_]:
    return day.run.split.unseen | day.run.split.seen


def _relative_error(day: Day, evaluation: Evaluation) -> NDArray[np.float32]:
    """[N] the error in % of the mean reading, at the scored nodes."""
    known = _scored(day) & (evaluation.node_mean > 0)
    share = evaluation.node_mae / np.where(known, evaluation.node_mean, 1)
    return np.where(known, 100 * share, np.nan).astype(np.float32)


def _skill(day: Day, evaluation: Evaluation) -> NDArray[np.float32]:
    """[N] by how many % the error exceeds that of the best simple forecast there; below 0 is better."""
    assert evaluation.best_node_mae is not None
    known = _scored(day) & (evaluation.best_node_mae > 0)
    share = evaluation.node_mae / np.where(known, evaluation.best_node_mae, 1)
    return np.where(known, 100 * (share - 1), np.nan).astype(np.float32)
