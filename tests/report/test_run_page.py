"""The report: complete in one file, true to the numbers, and safe whatever things are called."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frigate.cli.demo import last_afternoon_s
from frigate.data.city import City
from frigate.data.network import RoadNetwork
from frigate.data.stream import make_stream
from frigate.evaluation.evaluate import evaluate_forecaster
from frigate.evaluation.metrics import Measure
from frigate.evaluation.results import Comparison, Evaluation
from frigate.forecasting.forecast import forecast
from frigate.forecasting.result import Forecast
from frigate.report.maps import BINS, bin_edges
from frigate.report.page import unit_text
from frigate.report.rolling_forecast import rolling_forecast
from frigate.report.run_page import best_baseline, verdict, write_report
from frigate.report.svg import axis, round_step, time_ticks
from frigate.training.run import RunOnCity
from frigate.training.train import train
from tests.support.forecast_runs import SIDE, START_S, grid, small_city, small_run
from tests.support.html_page import Page

ODD_NAME = 'Ville <img src=x onerror=alert(1)> & "Co"'


@cache
def judged(quantity: str = "count") -> tuple[RunOnCity, Evaluation]:
    run = small_run(quantity=quantity).on(small_city(quantity=quantity))
    return run, _evaluate(run)


def report(path: Path, run: RunOnCity, evaluation: Evaluation, forecast: Forecast, *, note: str = "") -> Path:
    return write_report(path, run.run, evaluation, forecast, city=run.city, note=note)


def ahead(run: RunOnCity, network: RoadNetwork | None = None, at: int | None = None) -> Forecast:
    return forecast(run.run, network, run.city, at=at)


def _evaluate(run: RunOnCity) -> Evaluation:
    task = run.settings.task
    return evaluate_forecaster(run.model, run.city, run.split, run.windows(), task, name="Frigate")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    run, evaluation = judged()
    path = tmp_path_factory.mktemp("report") / "made" / "report.html"
    assert report(path, run, evaluation, ahead(run), note="A small model.") == path
    return Page(path)


def test_nothing_is_fetched(page: Page) -> None:
    assert not re.search(r"https?://|//\w+\.|url\(|@import|fetch\(|XMLHttp", page.raw)
    for tag, attributes in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "image", "use"}
        assert not {"src", "href", "srcset", "xlink:href", "action"} & set(attributes)


def test_every_forecaster_is_there_with_its_numbers(page: Page) -> None:
    _, evaluation = judged()
    for row, cells in zip(evaluation.rows, evaluation.table_rows(), strict=True):
        assert row.name in page.text
        value, _, interval = cells["MAE"].partition(" ")
        assert value in page.text
        assert interval in page.text
    assert "A small model." in page.text
    assert verdict(evaluation) in page.text
    assert len([tag for tag, a in page.tags if tag == "figure"]) == 2 + 4 + 2


def test_the_yardstick_is_set_apart(page: Page) -> None:
    _, evaluation = judged()
    *baselines, yardstick = evaluation.rows
    assert f"{yardstick.name} *" in page.text
    assert not any(f"{row.name} *" in page.text for row in baselines)
    assert page.text.count("a yardstick, not a baseline") == 1
    assert evaluation.footnote in page.text


def test_every_series_and_shade_has_a_colour_in_light_and_dark(page: Page) -> None:
    used = {name for _, a in page.tags for name in (a.get("class") or "").split() if re.fullmatch(r"[sb]\d", name)}
    assert {"s0", "s6", "b0"} <= used
    for kind in ("s", "f", "e"):
        defined = re.findall(rf"--{kind}(\d): #", page.raw)
        assert sorted(map(int, defined)) == sorted([*range(BINS)] * 2)
    for k in range(BINS):
        assert f".s{k} {{ --c: var(--s{k}) }}" in page.raw
        for name in ("forecast", "error"):
            assert f".{name}.b{k} {{ --m: var(--{name[0]}{k}); stroke: var(--m) }}" in page.raw


def test_the_maps_hold_the_forecast_and_the_error(page: Page) -> None:
    run, evaluation = judged()
    made = ahead(run)
    shown, error = page.data
    np.testing.assert_allclose(np.array(shown["frames"], float), made.values, rtol=6e-3)
    assert shown["id"] == [str(i) for i in run.city.stream.node_ids.tolist()]
    assert shown["sensor"] == made.sensor.astype(int).tolist()
    assert len(shown["labels"]) == made.horizon
    expected = np.where(run.split.unseen, evaluation.node_mae, np.nan)
    np.testing.assert_allclose(np.array(error["frames"][0], float), expected, rtol=6e-3)
    assert np.isfinite(expected).sum() == run.split.unseen.sum()
    assert error["sensor"] == run.split.seen.astype(int).tolist()


def test_every_node_is_drawn_once_and_sensors_are_squares(page: Page) -> None:
    run, _ = judged()
    made = ahead(run)
    drawn = [(a.get("data-k"), a["d"] or "") for tag, a in page.tags if tag == "path" and a.get("data-k")]
    edges = page.data[0]["edges"]
    first = drawn[: 2 * (len(edges) + 1)]
    assert sum(d.count("M") for k, d in first if k and k[0] == "q") == made.sensor.sum()
    assert sum(d.count("M") for k, d in first if k and k[0] == "c") == (~made.sensor).sum()
    x, y = page.data[0]["x"], page.data[0]["y"]
    for key, d in first:
        for i in range(len(x)):
            here = f"M{x[i]:g} {y[i]:g}h0" in d
            group = int(np.searchsorted(edges, made.values[-1, i], side="right"))
            assert here == (key == f"{'q' if made.sensor[i] else 'c'}{group}")


def test_names_are_escaped(tmp_path: Path) -> None:
    run, stream = small_run(text=True), small_city(text=True).stream
    ids = np.array([f'</script><img src="{i}">' for i in range(stream.num_nodes)])
    networks = tuple(replace(network, node_ids=ids) for network in stream.topologies)
    nodes = replace(run.nodes, node_ids=ids[stream.network.rows_of(run.nodes.node_ids.tolist())])
    named = replace(run, nodes=nodes, trained_on=replace(run.trained_on, unit="<b>cars</b>"))
    odd = named.on(City(name=ODD_NAME, stream=replace(stream, topologies=networks, unit="<b>cars</b>")))
    made = Page(report(tmp_path / "odd.html", odd, _evaluate(odd), ahead(odd), note="<i>note</i>"))
    assert {"img", "b", "i"} & {tag for tag, a in made.tags if "class" not in a} == {"b"}  # the tiles' own
    assert ODD_NAME in made.text
    assert made.data[0]["id"] == ids.tolist()
    assert "<b>cars</b>" in made.text
    assert "<i>note</i>" in made.text


def test_an_absent_node_is_drawn_without_a_value(tmp_path: Path) -> None:
    run, evaluation = judged()
    made = Page(report(tmp_path / "r.html", run, evaluation, ahead(run, run.city.network.remove_nodes([12]))))
    assert [frame[12] for frame in made.data[0]["frames"]] == [None] * 3


def test_a_gauge_below_zero_is_drawn(tmp_path: Path) -> None:
    run, evaluation = judged("temperature")
    made = ahead(run)
    cold = replace(made, values=made.values - 100)
    page = Page(report(tmp_path / "r.html", run, evaluation, cold))
    assert page.data[0]["edges"] == sorted(page.data[0]["edges"])
    assert "vehicles per" not in page.text


def test_a_run_with_every_sensor_seen_says_so(tmp_path: Path) -> None:
    all_seen = train(small_city(), seen="all", settings=small_run().settings, device="cpu").on(small_city())
    page = Page(report(tmp_path / "r.html", all_seen, _evaluate(all_seen), ahead(all_seen)))
    assert "say nothing about nodes without a sensor" in page.text
    assert "At sensors, the model" in page.text
    assert "is tested at the sensors themselves" in page.text


def test_the_day_is_forecast_as_it_would_have_been() -> None:
    run, evaluation = judged()
    best = best_baseline(evaluation)
    assert best is not None
    day = rolling_forecast(run, baseline=best.name)
    model, baseline = day.forecasts["model"], day.forecasts[best.name]
    stream, split = run.city.stream, run.split
    first = split.test[1] - len(day.local_s)
    rows = np.arange(first, split.test[1])
    assert first >= split.test[0] + run.settings.task.past
    assert len(rows) % 3 == 0
    np.testing.assert_array_equal(day.local_s, stream.times_s[rows] + 3600)
    for m, node in enumerate(day.nodes):
        assert split.unseen[node]
        np.testing.assert_array_equal(
            day.observed[:, m], np.where(stream.observed[rows, node], stream.values[rows, node], np.nan)
        )
        for start in range(0, len(rows), 3):
            made = ahead(run, at=int(stream.times_s[rows[start]]))
            np.testing.assert_allclose(model[start : start + 3, m], made.values[:, node], rtol=1e-4, atol=1e-4)
    assert baseline.shape == model.shape
    assert len(set(day.nodes)) == 4


@pytest.mark.parametrize(
    ("ours", "theirs", "difference", "words"),
    [
        (1.0, 2.0, (-1.3, -0.7), "beats every simple baseline"),
        (1.0, 2.0, (-2.2, 0.1), "not a clear win"),
        (2.1, 2.0, (-0.2, 0.4), "does not beat"),
    ],
)
def test_the_verdict_is_honest(ours: float, theirs: float, difference: tuple[float, float], words: str) -> None:
    _, evaluation = judged()
    rows = []
    for row in evaluation.rows:
        assert row.unseen is not None
        value = ours if row.kind == "model" else theirs
        rows.append(replace(row, unseen=replace(row.unseen, mae=Measure(value, value - 0.9, value + 0.9))))
    best = Comparison("zero", Measure(ours - theirs, *difference))
    assert words in verdict(replace(evaluation, rows=tuple(rows), minus_best=best))


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), max_size=30), st.booleans())
def test_map_colours_part_the_range(values: list[float], skewed: bool) -> None:
    array = np.array([*values, np.nan])
    edges = bin_edges(array, skewed=skewed)
    assert len(edges) <= BINS - 1
    assert edges == sorted(set(edges))
    if edges:
        assert np.nanmin(array) < edges[0]
        assert edges[-1] <= np.nanmax(array)


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_axes_hold_zero_and_every_value(values: list[float]) -> None:
    low, high, step = axis(np.array([*values, np.nan]))
    assert low <= min([0, *values])
    assert max([0, *values]) <= high + 1e-9 * step
    assert low < high
    assert 1 <= round((high - low) / step) <= 8


@given(st.floats(1e-6, 1e12), st.integers(2, 9))
def test_steps_are_round_and_as_small_as_fit(span: float, most: int) -> None:
    step = round_step(span, most)
    assert span / step <= most * (1 + 1e-9)
    assert span / step > most / 2.6
    assert f"{step:.0e}"[0] in "125"


@given(st.integers(-(10**9), 4 * 10**9), st.integers(3600, 10**9))
def test_any_period_has_a_few_ticks_in_order(first_s: int, length_s: int) -> None:
    ticks = time_ticks(first_s, first_s + length_s)
    places = [place for place, _ in ticks]
    assert places == sorted(set(places))
    assert all(first_s <= place <= first_s + length_s for place in places)
    assert 1 <= len(ticks) <= 11


@pytest.mark.parametrize(("zone", "days", "day"), [("UTC", 3.0, 2), ("Asia/Tokyo", 3.0, 2), ("Asia/Tokyo", 2.7, 2)])
def test_the_demo_shows_the_last_whole_afternoon(zone: str, days: float, day: int) -> None:
    values = np.ones((round(days * 48), SIDE**2))
    stream = make_stream(values, grid(), start_s=START_S, step_s=1800, timezone=zone)
    local = datetime.fromtimestamp(last_afternoon_s(stream), ZoneInfo(zone))
    first = datetime.fromtimestamp(START_S, ZoneInfo(zone))
    assert (local.hour, local.minute) == (17, 0)
    assert (local.date() - first.date()).days == day
    end = datetime.fromtimestamp(START_S + len(values) * 1800, ZoneInfo(zone))
    assert local.date() < end.date() <= local.date() + timedelta(days=1)


def test_units_are_said_in_words() -> None:
    assert unit_text("count", "vehicles", 300) == "vehicles per 5 min"
    assert unit_text("count", "", 7200) == "count per 2 h"
    assert unit_text("speed", "km/h", 300) == "km/h"
    assert unit_text("speed", "", 300) == "speed"
