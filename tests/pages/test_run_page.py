"""The report: complete in one file, true to the numbers, and safe whatever things are called."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frigate.pages.map_page
import frigate.pages.run_page
from frigate.baselines.naive import naive_baselines
from frigate.city.city import City
from frigate.errors import CityError, SettingsError
from frigate.evaluation.evaluate import evaluate_forecaster
from frigate.evaluation.metrics import Measure
from frigate.evaluation.results import Comparison, Evaluation
from frigate.forecasting.forecast import forecast
from frigate.forecasting.road_flow import closed_roads
from frigate.pages.day import Day, forecast_day
from frigate.pages.run_page import write_report
from frigate.pages.trust import best_baseline, verdict
from frigate.text import unit_text
from frigate.training.run import RunOnCity
from frigate.training.train import train
from tests.support.errors import raises
from tests.support.forecast_runs import SIDE, small_city, small_run
from tests.support.map_page import MapFile

ODD_NAME = 'Ville </script><img src=x onerror=alert(1)> & "Co"'
HORIZON = 3


@cache
def judged(quantity: str = "count") -> tuple[RunOnCity, Evaluation]:
    run = small_run(quantity=quantity).on(small_city(quantity=quantity))
    return run, _evaluate(run)


def report(path: Path, run: RunOnCity, evaluation: Evaluation, **options: Any) -> MapFile:
    return MapFile(write_report(path, run.run, evaluation, city=run.city, device="cpu", **options))


def _evaluate(run: RunOnCity) -> Evaluation:
    task = run.settings.task
    return evaluate_forecaster(run.model, run.city, run.split, run.windows(), task, name="Frigate")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MapFile:
    run, evaluation = judged()
    path = tmp_path_factory.mktemp("report") / "made" / "report.html"
    return report(path, run, evaluation, note="A small model.", close=["7,12", "12,7"])


@cache
def day() -> Day:
    run, evaluation = judged()
    best = best_baseline(evaluation)
    assert best is not None
    return forecast_day(run, baseline=best.name, device="cpu")


def test_a_level_draws_bands(tmp_path: Path, made: MapFile) -> None:
    """In the chart and on the map, before a closure and after, as `frigate forecast --level` writes them."""
    run, evaluation = judged()
    low = report(tmp_path / "low.html", run, evaluation, level=60, close=["7,12", "12,7"])
    for page, level in ((made, 90), (low, 60)):
        assert page.layers["width"]["title"] == f"Width of the {level} % interval"
        about = page.layers["forecast"]["nodes"]["band"]
        assert about["level"] == level == page.layers["closure-after"]["nodes"]["band"]["level"]
        assert page.meta["place"]["history"]["band"] == about == page.layers["closure-before"]["nodes"]["band"]
        lower, upper = page.arrays[about["lower"]], page.arrays[about["upper"]]
        np.testing.assert_array_equal(page.values("width"), upper - lower)
        for k, current in enumerate(day().current.tolist()):
            at = int(run.city.stream.times_s[current + 1])
            one = forecast(run.run, stream=run.city, at=at, level=level, device="cpu")
            assert one.lower is not None and one.upper is not None
            for ours, theirs in ((lower, one.lower), (upper, one.upper)):
                np.testing.assert_allclose(ours[HORIZON * k : HORIZON * (k + 1)], theirs, rtol=1e-3)
    after = made.layers["closure-after"]["nodes"]["band"]
    assert (made.arrays[after["upper"]] != made.arrays[made.layers["forecast"]["nodes"]["band"]["upper"]]).any()
    assert made.values("width").sum() > low.values("width").sum()


def test_a_run_without_intervals_has_no_bands(tmp_path: Path) -> None:
    run, evaluation = judged()
    bare = replace(run, run=replace(run.run, intervals=None))
    page = report(tmp_path / "r.html", bare, evaluation)
    assert "width" not in page.layers and page.meta["place"]["history"]["band"] is None
    with raises(SettingsError, "level = 80", "frigate train"):
        report(tmp_path / "r.html", bare, evaluation, level=80)
    with raises(SettingsError, "level = 100"):
        report(tmp_path / "r.html", run, evaluation, level=100)


def test_nothing_is_fetched(made: MapFile) -> None:
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', made.text)
    assert len(policy) == 1 and policy[0].startswith("default-src 'none';") and "http" not in policy[0]
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"'](?!data:,)", made.text)


def test_the_scores_are_those_of_the_evaluation(made: MapFile) -> None:
    _, evaluation = judged()
    table, places, volumes = made.blocks("trust", "table")
    skill = evaluation.skill
    assert [row[0] for row in places["rows"]] == [f"{each.places} {each.where}" for each in skill]
    assert [each.where for each in skill] == ["without a sensor", "at sensors"]
    assert [row[2] for row in places["rows"]] == [f"{each.better:.0f} %" for each in skill]
    assert volumes["rows"] == [list(row.values()) for row in evaluation.volume_table()] != []
    assert table["styles"] == [row.kind for row in evaluation.rows]
    for row, cells in zip(table["rows"], evaluation.table_rows(), strict=True):
        shown = [cell if isinstance(cell, str) else f"{cell['text']} {cell['small']}" for cell in row]
        assert [cell.replace("−", "-") for cell in shown] == list(cells.values())
    assert table["columns"] == list(evaluation.table_rows()[0])
    words = {each["style"]: each["text"] for each in reversed(made.blocks("trust", "words"))}
    assert words["note"] == "A small model."
    assert words["verdict"] == verdict(evaluation)
    assert evaluation.footnote in made.said("trust")
    by_step, by_hops = made.blocks("trust", "chart")
    assert by_step["names"] == ["1 h", "2 h", "3 h"]
    for line, each in zip(by_step["lines"], evaluation.rows, strict=True):
        assert line["values"] == pytest.approx([s.mae.value for s in each.by_step if s is not None], rel=1e-4)
    groups = by_hops["names"]
    assert groups == list(evaluation.model.by_hops)
    values = by_hops["lines"][0]["values"]
    assert values == pytest.approx([evaluation.model.by_hops[name].mae.value for name in groups], rel=1e-4)


def test_the_day_is_forecast_as_it_would_have_been() -> None:
    run, evaluation = judged()
    stream = run.city.stream
    split = run.split
    each = day()
    assert each.rows.tolist() == list(range(split.test[1] - len(each.rows), split.test[1]))
    assert each.current[0] >= split.test[0] + run.settings.task.past - 1
    for k, current in enumerate(each.current.tolist()):
        made = forecast(run.run, stream=run.city, at=int(stream.times_s[current + 1]), device="cpu")
        rows = slice(HORIZON * k, HORIZON * (k + 1))
        np.testing.assert_allclose(each.forecast[rows], made.values, rtol=1e-4, atol=1e-4)
    best = best_baseline(evaluation)
    assert best is not None and each.baseline is not None
    if best.name in naive_baselines(stream, split):
        assert np.isfinite(each.baseline).all()
    np.testing.assert_array_equal(np.isnan(each.observed), ~stream.observed[each.rows])
    known = stream.observed[each.rows]
    np.testing.assert_array_equal(each.observed[known], stream.values[each.rows][known])


def test_the_map_shows_the_day(made: MapFile) -> None:
    run, _ = judged()
    assert made.network_meta["node_ids"] == run.city.network.node_ids.tolist()
    np.testing.assert_array_equal(made.network["sensor"], run.split.seen)
    for key, expected in (("forecast", day().forecast), ("truth", day().observed)):
        np.testing.assert_allclose(made.values(key), expected, rtol=1e-3)
    np.testing.assert_allclose(made.values("forecast", "roads"), day().road_flow, rtol=1e-3)
    best = best_baseline(judged()[1])
    baseline = day().baseline
    assert best is not None and baseline is not None
    for name, of in (("forecast", day().forecast), (best.name, baseline), ("observed", day().observed)):
        np.testing.assert_allclose(made.history(name), of, rtol=1e-3)
    layer = made.layers["forecast"]
    assert len(layer["times"]) == len(day().rows)
    assert layer["times"] == made.meta["place"]["history"]["times"]
    assert layer["times"][0].endswith("Z")
    assert made.meta["closed_sets"] == [[]] and not made.arrays[layer["closed"]].any()
    busiest = int(made.values("forecast").sum(1).argmax())
    assert made.meta["open"] == {"layer": "closure-change", "frame": busiest}
    assert [panel["key"] for panel in made.meta["panels"]] == ["closure", "trust"]
    assert "every 3 h" in made.said("place")


def test_values_that_layers_share_are_stored_once(made: MapFile) -> None:
    before, forecast = made.layers["closure-before"], made.layers["forecast"]
    assert before["roads"]["of"] == forecast["roads"]["of"] == made.layers["closure-change"]["roads"]["minus"]
    stored = [array.tobytes() for array in made.arrays.values() if array.size > 100]
    assert len(set(stored)) == len(stored)


def test_errors_are_geh_and_skill_is_beside_the_best_simple_forecast_there(made: MapFile) -> None:
    run, evaluation = judged()
    (error,) = made.values("error")
    (skills,) = made.values("skill")
    assert evaluation.best_node_mae is not None and evaluation.node_geh is not None
    shown = (run.split.unseen | run.split.seen) & np.isfinite(evaluation.node_geh)
    assert shown[run.split.seen].any() and shown[run.split.unseen].any()
    np.testing.assert_array_equal(np.isfinite(error), shown)
    np.testing.assert_allclose(error[shown], evaluation.node_geh[shown], 1e-3)
    skill = 100 * (evaluation.node_mae / evaluation.best_node_mae - 1)
    np.testing.assert_allclose(skills[shown], skill[shown], rtol=1e-3, atol=1e-2)
    scored = run.split.unseen & np.isfinite(evaluation.node_mae)
    stream = run.city.stream
    (first, last) = run.split.test
    test = slice(first + run.settings.task.past, last)
    mean = [np.abs(stream.values[test, n][stream.observed[test, n]]).mean() for n in np.flatnonzero(scored)]
    assert np.corrcoef(mean, evaluation.node_mean[scored])[0, 1] > 0.99
    means = np.average(evaluation.node_mae[scored]), np.average(evaluation.best_node_mae[scored])
    best = evaluation.row(evaluation.skill[0].baseline)
    assert best.unseen is not None and evaluation.model.unseen is not None
    assert means == pytest.approx((evaluation.model.unseen.mae.value, best.unseen.mae.value), rel=0.05)


def test_a_closed_road_shows_the_day_without_it(made: MapFile) -> None:
    run, _ = judged()
    network = day().network
    planned = made.rows("closure-after", "planned")
    (before, after) = (made.values(f"closure-{when}") for when in ("before", "after"))
    stream = run.city.stream
    ends = {(7, 12), (12, 7)}
    assert {(int(network.senders[row]), int(network.receivers[row])) for row in planned} == ends
    assert made.rows("closure-before", "planned") == []
    for k, current in enumerate(day().current.tolist()):
        at_s = int(stream.times_s[current + 1])
        closed = forecast(run.run, stream=run.city, at=at_s, close=["7,12", "12,7"], device="cpu")
        shown = after[HORIZON * k : HORIZON * (k + 1)]
        np.testing.assert_allclose(shown, closed.values, rtol=1e-3, atol=1e-3)
    assert (made.values("closure-after", "roads")[:, planned] == 0).all()
    assert (day().road_flow[:, planned] > 0).any()
    np.testing.assert_allclose(made.values("closure-change"), after - before, rtol=1e-6)
    change = np.abs(after.mean(0) - day().forecast.mean(0))
    (listed,) = made.blocks("closure", "changes")
    assert [each["node"] for each in listed["changes"]] == np.argsort(-change, kind="stable")[:10].tolist()
    first = listed["changes"][0]
    assert first["before"] == pytest.approx(day().forecast.mean(0)[first["node"]], rel=1e-4)
    assert made.layers["closure-after"]["times"] == made.layers["forecast"]["times"]
    assert f"from {int(run.split.seen.sum())} sensors are rerouted" in made.said("closure")


def test_recorded_closures_are_on_the_map(tmp_path: Path) -> None:
    run, _ = judged()
    stream = run.city.stream
    shut = stream.network.close([(7, 12)])
    network_of = np.zeros(stream.num_snapshots, np.int64)
    network_of[-4:] = 1
    changed = City("Grid", replace(stream, networks=(stream.network, shut), network_of=network_of))
    each = forecast_day(run.run.on(changed), device="cpu")
    row = int(np.flatnonzero(closed_roads(stream.network, shut))[0])
    assert each.closed() == [[]] * (len(each.rows) - 4) + [[row]] * 4
    assert (each.road_flow[-3:, row] == 0).all() and (each.road_flow[:-3, row] > 0).any()
    again = each.close(closed_roads(stream.network, shut))
    np.testing.assert_allclose(again.forecast[-3:], each.forecast[-3:], rtol=1e-3, atol=1e-3)
    assert np.abs(again.forecast[:-3] - each.forecast[:-3]).max() > 1e-3


def test_names_are_escaped(tmp_path: Path) -> None:
    run = small_run(text=True)
    stream = small_city(text=True).stream
    ids = np.array([f'</script><img src="{i}">' for i in range(stream.num_nodes)])
    networks = tuple(replace(network, node_ids=ids) for network in stream.networks)
    nodes = replace(run.nodes, node_ids=ids[stream.network.rows_of(run.nodes.node_ids.tolist())])
    named = replace(run, nodes=nodes, trained_on=replace(run.trained_on, unit="<b>cars</b>"))
    odd = named.on(City(name=ODD_NAME, stream=replace(stream, networks=networks, unit="<b>cars</b>")))
    made = report(tmp_path / "odd.html", odd, _evaluate(odd), note="<i>note</i>")
    assert made.network_meta["name"] == ODD_NAME
    assert made.network_meta["node_ids"] == ids.tolist()
    assert "<img src" not in made.text and "<i>note" not in made.text and "<b>cars" not in made.text
    assert "<i>note</i>" in made.said("trust")
    assert made.blocks("trust", "chart")[0]["unit"]["text"] == "<b>cars</b>"


def test_an_absent_node_has_no_value() -> None:
    run, _ = judged()
    stream = run.city.stream
    gone = City("Grid", replace(stream, networks=(stream.network.remove_nodes([12]),)))
    made = forecast_day(run.run.on(gone), device="cpu").forecast
    assert np.isnan(made[:, 12]).all() and np.isfinite(np.delete(made, 12, axis=1)).all()


def test_a_gauge_has_no_demand_and_main_sensors_the_nearest(tmp_path: Path) -> None:
    run, evaluation = judged("speed")
    made = report(tmp_path / "r.html", run, evaluation, close=["7,12"])
    assert "Detours are not modelled" in made.said("closure")
    shown = made.values("forecast")
    mean = (shown[:, made.network["source"]] + shown[:, made.network["target"]]) / 2
    np.testing.assert_allclose(made.values("forecast", "roads"), mean, rtol=1e-3)
    about = made.meta["place"]["main_sensors"]
    main = made.arrays[about["nodes"]]
    assert run.split.seen[main[main >= 0]].all()
    assert not about["is_share"] and (made.arrays[about["near"]][main >= 0] >= 100).all()
    (glossary,) = made.blocks("trust", "terms")
    assert not any(term == "GEH<5" for term, _ in glossary["terms"])


def test_a_run_with_every_sensor_seen_says_so(tmp_path: Path) -> None:
    all_seen = train(small_city(), seen="all", settings=small_run().settings, device="cpu").on(small_city())
    made = report(tmp_path / "r.html", all_seen, _evaluate(all_seen))
    said = made.said("trust")
    assert "say nothing about nodes without a sensor" in said
    assert "At sensors, the model" in said
    assert "is tested at the sensors themselves" in said
    assert [panel["key"] for panel in made.meta["panels"]] == ["trust"]
    np.testing.assert_array_equal(np.isfinite(made.values("error")[0]), all_seen.split.seen)


def test_a_large_city_has_fewer_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, evaluation = judged()
    monkeypatch.setattr(frigate.pages.run_page, "MAX_VALUES", 1200)
    made = report(tmp_path / "r.html", run, evaluation)
    layer = made.layers["forecast"]
    shown = made.values("forecast")
    times = day().times_s[::2]
    assert len(layer["times"]) == len(times) == len(shown) == len(made.arrays[layer["closed"]])
    assert "one time every 2 h" in made.said("place")
    np.testing.assert_allclose(shown, day().forecast[::2], rtol=1e-3)


def test_impossible_settings_are_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, evaluation = judged()
    with raises(CityError, "0,24"):
        report(tmp_path / "r.html", run, evaluation, close=["0,24"])
    monkeypatch.setattr(frigate.pages.map_page, "FORM", tmp_path / "none.html")
    with raises(SettingsError, "make page"):
        report(tmp_path / "r.html", run, evaluation)
    (tmp_path / "none.html").write_text("<html></html>")
    with raises(SettingsError, "another version"):
        report(tmp_path / "r.html", run, evaluation)
    assert not (tmp_path / "r.html").exists()


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


def test_units_are_said_in_words() -> None:
    assert unit_text("count", "vehicles", 300) == "vehicles per 5 min"
    assert unit_text("count", "", 7200) == "count per 2 h"
    assert unit_text("speed", "km/h", 300) == "km/h"
    assert unit_text("speed", "", 300) == "speed"


def test_some_intersections_are_picked_by_how_busy_they_are(made: MapFile) -> None:
    run, _ = judged()
    (picked,) = made.blocks("place", "items")
    nodes = [what["node"] for what, _ in picked["items"]]
    assert len(set(nodes)) == len(nodes) == 4
    assert run.split.unseen[nodes].all()
    assert [what["text"] for what, _ in picked["items"]] == [f"Intersection {node}" for node in nodes]
    reasons = [why.split(",")[0] for _, why in picked["items"] if "far" not in why]
    assert reasons == ["busy", "typical", "quiet"]
    assert run.city.stream.num_nodes == SIDE**2
