"""Closed roads where speeds are measured: they have no forecast, and what detours do elsewhere is not made up."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import frigate as fg
from frigate.city.city import City
from frigate.city.folder import write_city
from frigate.city.stream import RoadNetworkStream
from frigate.config import change, preset
from frigate.evaluation.evaluate import evaluate
from frigate.forecasting.forecaster import Forecaster
from frigate.forecasting.live import Live
from frigate.forecasting.summary import change_table, largest_changes, total_line
from frigate.pages.closures import view_closed_day
from frigate.pages.day import forecast_day
from frigate.roads.on_roads import on_roads
from frigate.serve.store import open_store
from frigate.training.run import Run
from frigate.training.train import train
from tests.support.command_line import frigate
from tests.support.forecast_runs import grid, readings
from tests.support.service import Town, serve_town

TINY = {
    "model": {"width": 8, "layers": 2, "hidden": 8},
    "task": {"past": 4, "horizon": 3},
    "train": {"epochs": 1, "steps_per_epoch": 2, "batch_size": 4, "masks": 3},
}
ROAD = "7>12"


@cache
def speeds_on_roads() -> City:
    stream = readings(on_roads(grid()), quantity="speed")
    return City("Speeds", replace(stream, unit="km/h"))


@cache
def speed_run(name: str = "default") -> Run:
    anchors = {"anchors": 4} if name == "paper" else {}
    settings = change(preset(name), {**TINY, "model": {**TINY["model"], **anchors}})
    return train(speeds_on_roads(), seen=0.5, settings=settings, device="cpu")


def told(notices: tuple[str, ...]) -> list[str]:
    return [notice for notice in notices if "speed is not forecast on closed roads" in notice]


def test_a_closed_road_has_no_speed_and_no_other_gets_faster() -> None:
    city = speeds_on_roads()
    forecaster = Forecaster(speed_run(), city, device="cpu")
    row = city.network.row_of(ROAD)
    before = forecaster.forecast()
    assert np.isfinite(before.values).all() and not told(before.notices)
    edited = city.network.close_nodes([ROAD])
    for after in (forecaster.forecast(close=[ROAD]), forecaster.forecast(network=edited)):
        assert np.isnan(after.values[:, row]).all()
        others = np.arange(city.network.num_nodes) != row
        np.testing.assert_allclose(after.values[:, others], before.values[:, others], rtol=1e-5)
        (said,) = told(after.notices)
        assert "detours are not modelled" in said
        assert largest_changes(before.values.mean(0), after.values.mean(0), count=5) == []
        assert change_table(after, before) == []
        mean = before.values[:, others].mean()
        assert total_line(after, before).endswith(f"{mean:,.4g} km/h (before the change {mean:,.4g}).")


def test_the_papers_model_sees_the_closure_and_forecasts_no_speed_on_the_closed_road() -> None:
    city = speeds_on_roads()
    forecaster = Forecaster(speed_run("paper"), city, device="cpu")
    before, after = forecaster.forecast(), forecaster.forecast(close=[ROAD])
    row = city.network.row_of(ROAD)
    assert np.isnan(after.values[:, row]).all() and np.isfinite(np.delete(after.values, row, axis=1)).all()
    assert np.nanmax(np.abs(after.values - before.values)) > 0
    (said,) = told(after.notices)
    assert "was never learned" in said


def test_live_leaves_it_out_too_however_it_is_closed() -> None:
    city = speeds_on_roads()
    stream = city.stream
    row = city.network.row_of(ROAD)
    live = Live(speed_run(), city, device="cpu")
    live.push(int(stream.times_s[-8]), np.where(stream.observed[-8:], stream.values[-8:], np.nan))
    before = live.forecast()
    asked = live.what_if(close=[ROAD])
    since_s = int(stream.times_s[-3])
    live.change(city.network.close_nodes([ROAD]), since_s=since_s)
    closed = live.forecast()
    for after in (asked, closed):
        assert np.isnan(after.values[:, row]).all() and told(after.notices)
        np.testing.assert_allclose(np.delete(after.values, row, 1), np.delete(before.values, row, 1), rtol=1e-4)
    np.testing.assert_allclose(asked.values, Forecaster(speed_run(), city).forecast(close=[ROAD]).values, rtol=1e-4)


def recorded() -> RoadNetworkStream:
    """The same record, with the road closed in its last 40 hours."""
    stream = speeds_on_roads().stream
    closed = stream.network.close_nodes([ROAD])
    network_of = (np.arange(stream.num_snapshots) >= stream.num_snapshots - 40).astype(np.int64)
    return replace(stream, networks=(stream.network, closed), network_of=network_of)


def test_a_recorded_closure_is_as_one_that_is_asked_for() -> None:
    city = speeds_on_roads()
    row = city.network.row_of(ROAD)
    asked = Forecaster(speed_run(), city, device="cpu").forecast(close=[ROAD])
    forecaster = Forecaster(speed_run(), replace(city, stream=recorded()), device="cpu")
    of_record = forecaster.forecast()
    np.testing.assert_allclose(of_record.values, asked.values, rtol=1e-4)
    assert told(of_record.notices)
    values = forecaster.values(np.array([60, city.stream.num_snapshots - 10]))
    assert np.isfinite(values[0]).all() and np.isnan(values[1][:, row]).all()
    flow = forecaster.road_flow(of_record.values, [forecaster.stream.network] * 3, of_record.times_s)
    turns = (forecaster.usual_roads.senders == row) | (forecaster.usual_roads.receivers == row)
    assert np.isnan(flow[:, turns]).all() and np.isfinite(flow[:, ~turns]).all()  # no traffic has no speed


def test_a_report_and_the_command_leave_it_out(tmp_path: Path) -> None:
    write_city(speeds_on_roads(), tmp_path / "city")
    city = fg.read_city(tmp_path / "city")
    run = train(city, seen=0.5, settings=change(preset("default"), TINY), folder=tmp_path / "run", device="cpu")
    day = forecast_day(run.on(city), device="cpu")
    usual = day.network
    row = usual.row_of(ROAD)
    closed = day.close((usual.senders == row) | (usual.receivers == row))
    assert np.isnan(closed.forecast[:, row]).all() and told(closed.notices)
    np.testing.assert_allclose(np.delete(closed.forecast, row, 1), np.delete(day.forecast, row, 1), rtol=1e-4)
    assert np.isfinite(evaluate(run, city).model.at_sensors.mae.value)  # type: ignore[union-attr]
    page = tmp_path / "r.html"
    made = frigate("report", tmp_path / "run", "--close", ROAD, "-o", page, "--device", "cpu", "--stride", 4)
    assert made.status == 0, made.err
    view = view_closed_day(day, closed)
    assert "Detours are not modelled" in view.words[0] and told(view.notices) and view.largest == []
    words = ("--close", "7,12", "--csv", tmp_path / "f.csv", "--device", "cpu")
    said = frigate("forecast", tmp_path / "run", *words)
    assert said.status == 0 and "detours are not modelled" in said.err and "No node's forecast changes." in said.out
    lines = [line.split(",") for line in (tmp_path / "f.csv").read_text().splitlines()]
    assert {line[-1] for line in lines if line[0] == ROAD} == {""}


def test_the_service_leaves_it_out(tmp_path: Path) -> None:
    write_city(fg.demo_city(intersections=100, days=2, step_s=900, closures=0), tmp_path / "counts")
    counts = fg.read_city(tmp_path / "counts").stream
    speeds = replace(counts, values=60 - np.minimum(counts.values, 50), quantity="speed", unit="km/h")
    write_city(City("Speeds", speeds), tmp_path / "city")
    city = fg.read_city(tmp_path / "city")
    run = train(city, seen=0.25, settings=change(preset("default"), TINY), folder=tmp_path / "run", device="cpu")
    ids = city.network.node_ids
    roads = list(zip(ids[city.network.senders].tolist(), ids[city.network.receivers].tolist(), strict=True))
    node = str(ids[0])
    at_node = [[str(a), str(b)] for a, b in roads if node in (str(a), str(b))]
    with (
        closing(open_store(str(tmp_path / "s.db"))) as store,
        serve_town(Town(tmp_path, run, city), store) as served,
    ):
        asked = served.client.post("/v1/what-if", json={"close": at_node}, headers={"Accept": "application/json"})
        assert asked.status_code == 200
        assert told(tuple(asked.json()["notices"])) and asked.json()["largest"] == []
        for a, b in at_node:
            closed = served.client.post("/v1/closures", json={"source": a, "target": b})
            assert closed.status_code in (200, 201), closed.text
        served.step(37)
        made = served.client.get("/v1/forecast.json")
        assert made.status_code == 200, made.text
        issued = served.service.latest.get()
        row = city.network.row_of(node)
        assert np.isnan(issued.issued.forecast.values[:, row]).all()
        closed_road = served.service.city.road_of[(at_node[0][0], at_node[0][1])]
        assert np.isnan(issued.road_forecast[:, closed_road]).all()


@pytest.mark.parametrize("name", ["default", "paper"])
def test_a_closed_road_between_intersections_leaves_them_their_speed(name: str) -> None:
    city = City("Speeds", readings(grid(), quantity="speed"))
    anchors = {"anchors": 4} if name == "paper" else {}
    settings = change(preset(name), {**TINY, "model": {**TINY["model"], **anchors}})
    forecaster = Forecaster(train(city, seen=0.5, settings=settings, device="cpu"), city, device="cpu")
    after = forecaster.forecast(close=["7,12"])
    assert np.isfinite(after.values).all() and told(after.notices)
    if name == "default":
        np.testing.assert_allclose(after.values, forecaster.forecast().values, rtol=1e-5)
