"""A forecast at one moment: what it may read, on which roads, and what comes out of it."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.demand.tables import DEMAND_NODE
from frigate.errors import CityError, SettingsError
from frigate.forecasting.edits import about_closed, edit_network
from frigate.forecasting.forecaster import Forecaster
from frigate.forecasting.live import Live
from frigate.forecasting.plan import RoadChange, RoadPlan
from frigate.forecasting.result import COLUMNS
from frigate.nn.batch import Batch
from frigate.roads.feature_cache import ensure_road_features
from frigate.roads.on_roads import on_roads
from tests.support.errors import names, raises
from tests.support.forecast_runs import SIDE, START_S, STEP_S, S, forecast, grid, readings, small_city, small_run

BOTH = pytest.mark.parametrize("name", ["paper", "default"])


@BOTH
def test_it_is_what_the_model_says_at_that_window(name: str) -> None:
    run = small_run(name)
    made = forecast(run, at=START_S + 60 * STEP_S)
    run_on_city = run.on(small_city())
    batch = run_on_city.windows().batch(
        np.array([59]), past=4, horizon=3, inputs=torch.from_numpy(run_on_city.split.seen)
    )
    with torch.inference_mode():
        expected = run.model(batch)[0].numpy()
    np.testing.assert_allclose(made.values, np.maximum(expected, 0), rtol=1e-5, atol=1e-5)
    assert made.times_s.tolist() == [START_S + (60 + k) * STEP_S for k in range(3)]
    assert made.notices == ()


@BOTH
def test_only_snapshots_complete_at_the_time_are_read(name: str) -> None:
    run = small_run(name)
    stream = small_city().stream
    for at, known in ((START_S + 60 * STEP_S, 60), (START_S + 61 * STEP_S - 1, 60), (None, S)):
        made = forecast(run, at=at)
        rng = np.random.default_rng(1)
        values = stream.values.copy()
        observed = stream.observed.copy()
        observed[known:] = rng.random(observed[known:].shape) < 0.5
        values[known:] = rng.uniform(0, 500, values[known:].shape) * observed[known:]
        later = forecast(run, stream=replace(stream, values=values, observed=observed), at=at)
        np.testing.assert_array_equal(made.values, later.values)
        values[known - 1] += 50 * observed[known - 1]
        last = forecast(run, stream=replace(stream, values=values, observed=observed), at=at)
        assert not np.array_equal(made.values, last.values)


def test_readings_held_out_as_test_are_not_read_unless_asked() -> None:
    run = small_run()
    stream = small_city().stream
    unseen = run.on(small_city()).split.unseen
    poisoned = replace(stream, values=np.where(unseen & stream.observed, 900, stream.values).astype(np.float32))
    made = forecast(run)
    other = forecast(run, stream=poisoned)
    np.testing.assert_array_equal(made.values, other.values)
    assert not (made.sensor & unseen).any()
    everything = forecast(run, sensors="all")
    poisoned_too = forecast(run, stream=poisoned, sensors="all")
    assert not np.array_equal(everything.values, made.values)
    assert not np.array_equal(everything.values, poisoned_too.values)
    assert (everything.sensor & unseen).any()


def test_a_node_held_out_as_test_is_a_sensor_if_asked_even_while_it_is_silent() -> None:
    """As in training, whoever is near whom does not depend on who reports in the window."""
    run = small_run()
    stream = small_city().stream
    split = run.on(small_city()).split
    observed = stream.observed.copy()
    observed[-4:, split.seen | split.unseen] = False  # the window: nothing at all
    silent = replace(stream, observed=observed, values=stream.values * observed)
    for sensors, read in (("seen", split.seen), ("all", split.seen | split.unseen)):
        for source in (stream, silent):
            (topology,) = Forecaster(run, source, sensors=sensors).request().batch.topologies  # type: ignore[arg-type]
            near = topology.near_sensor[topology.near_distance_m.isfinite()]
            np.testing.assert_array_equal(np.unique(near.numpy()), np.flatnonzero(read))


def test_a_sensor_that_the_run_does_not_know_is_read_from_its_first_reading_on() -> None:
    """Its usual counts are those of the readings before the forecast."""
    run = small_run()
    city = small_city()
    stream = city.stream
    node, first = 22, 60
    assert not (stream.sensors | run.on(city).split.seen)[node]
    values = stream.values.copy()
    observed = stream.observed.copy()
    values[first:, node], observed[first:, node] = 40.0, True
    grown = replace(stream, values=values, observed=observed)
    values = values.copy()
    values[71:, node] = 900.0
    louder = replace(grown, values=values)

    def batch(stream: RoadNetworkStream, *current: int) -> Batch:
        return Forecaster(run, replace(city, stream=stream), device="cpu").batch(np.array(current))

    def told(batch: Batch, row: int = 0) -> tuple[bool, float]:
        """Whether demand knows the sensor, and its usual counts in the window."""
        assert batch.demand_node is not None and batch.usual_past is not None
        sensor = bool(batch.demand_node[row, node, DEMAND_NODE.index("is_sensor")])
        assert sensor == bool(batch.observed[row, :, node].any())
        return sensor, float(batch.usual_past[row, -1, node])

    assert told(batch(grown, 59))[0] is False
    assert told(batch(grown, 62))[0] is True
    for earlier in (59, 70):
        one, other = (batch(each, earlier) for each in (grown, louder))
        for name in ("values", "observed", "usual_past", "demand", "demand_node"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert told(batch(grown, 70))[1] == pytest.approx(40)
    assert told(batch(louder, 90))[1] > 100
    assert told(batch(grown, 70, 59))[0] is False  # windows in one batch know what the first of them does


@BOTH
def test_a_closed_road_is_a_network_without_it_in_every_snapshot(name: str) -> None:
    run = small_run(name)
    stream = small_city().stream
    closed = edit_network(stream.network, close=["6,7", "7,6"])
    made = forecast(run, closed)
    keep = ~np.isin(stream.network.senders * 100 + stream.network.receivers, [607, 706])
    without = stream.network.with_roads(stream.network.edges.take(keep))
    np.testing.assert_array_equal(made.values, forecast(run, without).values)
    if name == "paper":  # `default` has other trips where a road was never there
        all_along = replace(stream, networks=(without,))
        np.testing.assert_allclose(made.values, forecast(run, stream=all_along).values, rtol=1e-5, atol=1e-5)
    recorded = replace(stream, networks=(stream.network, without), network_of=np.arange(S) // (S - 1))
    last_only = forecast(run, stream=recorded)
    assert not np.allclose(made.values, forecast(run).values, rtol=1e-5, atol=1e-5)
    assert not np.allclose(made.values, last_only.values, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(last_only.values, forecast(run, closed, stream=recorded).values)  # closed already


def test_closing_roads_moves_the_traffic_and_says_who_is_cut_off() -> None:
    run = small_run()
    network = small_city().network
    before = forecast(run).values
    into = [f"{a},12" for a in (7, 11, 13, 17)]
    shut = forecast(run, close=into)
    assert (shut.values[:, 12] == 0).all() and before[:, 12].min() > 0
    assert any("node 12" in notice and "0" in notice for notice in shut.notices)
    assert shut.values[:, [7, 11, 13, 17]].sum() != before[:, [7, 11, 13, 17]].sum()
    said = forecast(run, close="12").notices  # the crossing itself: what was closed, and who is cut off by it
    assert any("8 roads" in notice for notice in said) and any("no way" in notice for notice in said)
    one = forecast(run, close=["11,12"])
    assert 0 < one.values[:, 12].mean() < before[:, 12].mean()
    assert not one.notices
    # Between the second and the third row of the grid: a city cut in two.
    rows = [(a, a + SIDE) for a in range(SIDE, 2 * SIDE)]
    apart = forecast(run, network.close([*rows, *((b, a) for a, b in rows)]))
    assert any("10 nodes" in notice for notice in apart.notices)
    assert any("%" in notice for notice in apart.notices)


@BOTH
def test_an_edit_starts_from_the_network_at_that_time(name: str) -> None:
    run = small_run(name)
    stream = small_city().stream
    whole = small_city().network
    morning = whole.close([(0, 1), (1, 0)])
    evening = whole.close([(23, 24), (24, 23)])
    recorded = replace(stream, networks=(whole, morning, evening), network_of=np.arange(S) // 50)  # 0, 1, 2
    for at, then in ((45, whole), (50, morning), (51, morning), (97, morning), (100, evening), (None, evening)):
        moment = None if at is None else START_S + at * STEP_S
        made = forecast(run, stream=recorded, at=moment, close=["6,7", (7, 6)], add=["0,6,250"])
        edited = edit_network(then, close=["6,7", "7,6"], add=["0,6,250"])
        expected = forecast(run, edited, recorded, at=moment)
        np.testing.assert_array_equal(made.values, expected.values)
        for other in (n for n in (whole, morning, evening) if n is not then and at in (50, 100)):
            elsewhere = edit_network(other, close=["6,7", "7,6"], add=["0,6,250"])
            assert not np.array_equal(made.values, forecast(run, elsewhere, recorded, at=moment).values)
    # A road that is closed then cannot be closed again, and one that is closed only later can.
    with raises(CityError, "0,1"):
        forecast(run, stream=recorded, at=START_S + 60 * STEP_S, close=["0,1"])
    forecast(run, stream=recorded, close="0,1")
    shut = forecast(run, morning, recorded, close=[(6, 7)])  # on the network that is given
    np.testing.assert_array_equal(shut.values, forecast(run, morning.close([(6, 7)]), recorded).values)


def test_a_network_with_roads_that_were_closed_at_that_time_is_said() -> None:
    run = small_run("paper")
    stream = small_city().stream
    whole = small_city().network
    then = whole.close([(0, 1)])
    last = whole.close([(23, 24)])
    recorded = replace(stream, networks=(then, last), network_of=np.arange(S) // 100)
    at = START_S + 50 * STEP_S
    (said,) = forecast(run, last.close([(6, 7)]), recorded, at=at).notices
    assert names(said, "road 0,1 open") and names(said, "road 23,24 closed") and not names(said, "6,7")
    assert forecast(run, then.close([(6, 7)]), recorded, at=at).notices == ()  # of that time
    assert forecast(run, last.close([(6, 7)]), recorded).notices == ()  # of the end
    assert forecast(run, stream=recorded, at=at, close=["6,7"]).notices == ()


def test_without_demand_too_a_node_that_is_cut_off_is_named() -> None:
    said = forecast(small_run("paper"), close=[f"{a},12" for a in (7, 11, 13, 17)]).notices
    assert any(names(notice, "node 12") for notice in said)


@BOTH
def test_another_place_is_forecast_and_said_aloud(name: str) -> None:
    run = small_run(name)
    town = grid(first_id=1000, lon=8.0, road_class="")
    stream = readings(town, seed=3)
    made = forecast(run, stream=stream)
    assert np.isfinite(made.values).all()
    assert made.sensor.sum() == stream.observed[-4:].any(0).sum()  # nothing of another place was held out
    said = " ".join(made.notices)
    assert ("anchors are on this network" in said) == (name == "paper")
    assert ("road class: known in training, unknown here" in said) == (name == "default")


def test_the_same_ids_at_another_place_hold_nothing_out() -> None:
    run = small_run()
    stream = readings(grid(lon=8.0))
    assert forecast(run, stream=stream).sensor.sum() > forecast(run).sensor.sum()


def test_readings_are_matched_to_another_network_by_id() -> None:
    run = small_run()
    home = small_city().network
    order = np.random.default_rng(0).permutation(home.num_nodes)
    row_of = np.argsort(order)
    shuffled = RoadNetwork(
        home.node_ids[order],
        home.lon[order],
        home.lat[order],
        replace(home.edges, senders=row_of[home.senders], receivers=row_of[home.receivers]),
    )
    made = forecast(run, shuffled)
    np.testing.assert_allclose(made.values, forecast(run).values[:, order], rtol=1e-4, atol=1e-4)
    elsewhere = forecast(run, grid(first_id=1000, lon=8.0))
    sensors = int(small_city().stream.observed[-4:].any(0).sum())
    assert any(f"{sensors} of {sensors} nodes with readings are not on this" in n for n in elsewhere.notices)
    assert any("map and the clock alone" in notice for notice in elsewhere.notices)
    assert not elsewhere.sensor.any()


def test_readings_do_not_follow_an_id_to_another_place() -> None:
    run = small_run()
    home = small_city().network
    away = np.arange(home.num_nodes) < 6
    moved = replace(home, lat=home.lat + np.where(away, 60 / 111_195, 0))
    made = forecast(run, moved)
    assert not made.sensor[away].any()
    np.testing.assert_array_equal(made.sensor[~away], forecast(run).sensor[~away])
    sensors = small_city().stream.observed[-4:].any(0)
    lost = f"{(sensors & away).sum()} of {sensors.sum()} nodes with readings are not on this network"
    assert any(notice.startswith(lost) and "id and place (within 50 m)" in notice for notice in made.notices)
    near = forecast(run, replace(home, lat=home.lat + np.where(away, 40 / 111_195, 0)))
    np.testing.assert_array_equal(near.sensor, forecast(run).sensor)
    assert not any("not on this network" in notice for notice in near.notices)


def test_a_city_is_as_good_as_its_stream(tmp_path: Path) -> None:
    run = small_run()
    other = City("Other", readings(grid(first_id=1000, lon=8.0), seed=3))
    made = forecast(run, stream=other)
    np.testing.assert_array_equal(made.values, forecast(run, stream=other.stream).values)
    assert made.notices == forecast(run, stream=other.stream).notices
    # The features that a city keeps are used, not computed again.
    ((key, raw),) = ensure_road_features(other).road_features.items()
    assert not np.array_equal(forecast(run, stream=replace(other, road_features={key: raw + 1})).values, made.values)


def test_the_runs_own_model_stays_as_it_is() -> None:
    run = small_run()
    made = forecast(run)
    run.model.train()
    np.testing.assert_array_equal(forecast(run).values, made.values)
    assert run.model.training
    run.model.eval()


@BOTH
def test_an_absent_node_has_no_forecast(name: str) -> None:
    run = small_run(name)
    made = forecast(run, small_city().network.remove_nodes([12]))
    assert np.isnan(made.values[:, 12]).all()
    assert np.isfinite(np.delete(made.values, 12, axis=1)).all()
    assert not made.sensor[12]
    assert made.to_frame().filter(pl.col("node_id") == 12)["value"].null_count() == 3


@BOTH
@pytest.mark.parametrize(("past", "horizon"), [(1, 1), (9, 7), (4, 24)])
def test_any_past_and_any_horizon(name: str, past: int, horizon: int) -> None:
    run = small_run(name)
    made = forecast(run, past=past, horizon=horizon)
    assert made.values.shape == (horizon, 25)
    assert np.isfinite(made.values).all()
    assert (made.values >= 0).all()
    shorter = forecast(run, past=past, horizon=1)
    np.testing.assert_allclose(made.values[:1], shorter.values, rtol=1e-5, atol=1e-5)


def test_beyond_the_training_is_said() -> None:
    run = small_run("paper")
    assert forecast(run, past=4, horizon=3).notices == () == forecast(run, past=2, horizon=1).notices
    (said,) = forecast(run, past=9).notices
    assert names(said, "9") and names(said, "4")
    (said,) = forecast(run, horizon=24).notices
    assert names(said, "3 steps") and names(said, "4 to 24")
    with raises(SettingsError, "horizon", "25 nodes", "GB"):
        forecast(run, horizon=10**9)


def test_forecasts_that_are_no_numbers_are_left_empty_and_said() -> None:
    run = small_run("paper")
    broken = replace(run, model=copy.deepcopy(run.model))
    broken.model.value_scale.fill_(math.inf)
    network = small_city().network.remove_nodes([12])
    assert not any("numbers" in notice for notice in forecast(run, network).notices)  # of the absent node
    live = Live(broken, network, device="cpu")
    live.push(START_S, np.ones((4, 25)))
    for made in (forecast(broken, network), live.forecast()):
        assert np.isnan(made.values).all()
        assert any(names(notice, "72 of 72") for notice in made.notices)
        json.dumps(made.to_json(), allow_nan=False)


def test_small_numbers_stay_as_they_are_in_json() -> None:
    made = forecast(small_run("paper"))
    small = replace(made, values=np.full_like(made.values, 1.25e-9), quantity="density")
    assert small.to_json()["nodes"][0]["values"] == [1.25e-9] * 3
    assert small.to_geojson()["features"][0]["properties"]["value"] == 1.25e-9
    exact = replace(made, values=made.values.astype(np.float32).astype(np.float64))
    read = [node["values"] for node in json.loads(json.dumps(exact.to_json()))["nodes"]]
    np.testing.assert_allclose(np.array(read).T, exact.values, rtol=5e-7)


def test_fewer_snapshots_than_asked_for_are_used_and_said() -> None:
    run = small_run()
    made = forecast(run, at=START_S + 2 * STEP_S)
    np.testing.assert_array_equal(made.values, forecast(run, at=START_S + 2 * STEP_S, past=2).values)
    assert made.notices == ("2 snapshots are complete by then, not 4: those are used.",)


def test_after_the_end_the_forecast_reaches_further() -> None:
    run = small_run()
    later = forecast(run, at=START_S + (S + 2) * STEP_S)
    np.testing.assert_allclose(later.values, forecast(run, horizon=5).values[2:], rtol=1e-5, atol=1e-5)
    assert later.times_s[0] == later.at_s == START_S + (S + 2) * STEP_S
    assert "2 steps before" in later.notices[0]


def test_tomorrow_is_the_day_after_the_end_of_the_readings() -> None:
    run = small_run()
    end = small_city().stream.end_s
    tomorrow = forecast(run, at="tomorrow 08:00")
    assert tomorrow.at_s == int(datetime(2024, 3, 10, 7, tzinfo=UTC).timestamp()) > end
    steps = (tomorrow.at_s - end) // STEP_S
    far = forecast(run, horizon=steps + 3)
    np.testing.assert_allclose(tomorrow.values, far.values[steps:], rtol=1e-5, atol=1e-5)
    with raises(SettingsError, "14 days after its end"):
        forecast(run, at=end + 14 * 86_400 + STEP_S)


def test_a_time_without_zone_is_the_citys_own() -> None:
    run = small_run()
    expected = int(datetime(2024, 3, 6, 7, tzinfo=UTC).timestamp())
    for at in (
        "2024-03-06T08:00",
        "2024-03-06T07:00Z",
        datetime(2024, 3, 6, 8),
        expected,
        np.int64(expected),
    ):
        made = forecast(run, at=at)
        assert made.at_s == expected
        assert made.notices == ()
    assert made.local_times()[0] == "2024-03-06T08:00:00+01:00"
    inside = forecast(run, at="2024-03-06T08:59:59.5")
    assert inside.at_s == expected
    assert "is inside a step" in inside.notices[0]


def test_the_hour_that_comes_twice_is_taken_as_the_first_and_said() -> None:
    run = small_run()
    october = replace(small_city().stream, start_s=int(datetime(2024, 10, 26, tzinfo=UTC).timestamp()))
    made = forecast(run, stream=october, at="2024-10-27T02:00")
    assert made.at_s == int(datetime(2024, 10, 27, 0, tzinfo=UTC).timestamp())
    assert "not one moment" in made.notices[0]
    assert made.local_times() == [
        "2024-10-27T02:00:00+02:00",
        "2024-10-27T02:00:00+01:00",
        "2024-10-27T03:00:00+01:00",
    ]


def test_only_counts_are_kept_above_zero() -> None:
    run = small_run(quantity="speed")
    with torch.no_grad():
        model = run.model
        kept = model.value_offset.clone()
        model.value_offset.fill_(-1000.0)
        made = forecast(run)
        model.value_offset.copy_(kept)
    assert (made.values < 0).all()


@pytest.mark.parametrize("text", [False, True])
def test_tables_and_maps_carry_the_users_ids(text: bool, tmp_path: Path) -> None:
    run = small_run(text=text)
    made = forecast(run, small_city(text).network.remove_nodes(["n12" if text else 12]))
    frame = made.to_frame()
    assert frame.height == 3 * 25
    assert frame["node_id"].dtype == (pl.String if text else pl.Int64)
    expected = {
        (node, step + 1): None if np.isnan(value) else pytest.approx(value, abs=1e-4)
        for step, row in enumerate(made.values.tolist())
        for node, value in zip(made.node_ids.tolist(), row, strict=True)
    }
    for read, name in ((pl.read_csv, "out.csv"), (pl.read_parquet, "out.parquet")):
        table = read(made.write(tmp_path / name))
        assert {(n, s): v for n, s, v in table.select("node_id", "step_ahead", "value").rows()} == expected
        first = table.filter(pl.col("step_ahead") == 1)["time"][0]
        assert str(first).replace(" ", "T")[:19] == datetime.fromtimestamp(made.at_s, UTC).isoformat()[:19]
    features = json.loads(made.write(tmp_path / "out.geojson").read_text(encoding="utf-8"))
    assert features["type"] == "FeatureCollection"
    assert len(features["times"]) == 3
    points = {(p["node_id"], p["step_ahead"]): p["value"] for p in (f["properties"] for f in features["features"])}
    assert points == expected
    assert features["features"][3 * 3]["geometry"] == {"type": "Point", "coordinates": [made.lon[3], made.lat[3]]}
    plain = json.loads(made.write(tmp_path / "out.json").read_text(encoding="utf-8"))
    assert {(n["node_id"], s): n["values"][s - 1] for n in plain["nodes"] for s in (1, 2, 3)} == expected


def test_files_say_where_and_when_in_words_that_map_programs_know(tmp_path: Path) -> None:
    """kepler.gl and QGIS's temporal controller take `time` and `end_time`, ISO-8601 in UTC, from each feature."""
    network = small_city().network
    first = np.where(network.senders == 0, "Rue du Fort", np.where(network.receivers == 0, "Grand-Rue", ""))
    named = network.with_roads(replace(network.edges, name=np.where(network.senders == 7, "Quai", first)))
    made = forecast(small_run(), named, at="2024-03-05T08:00")
    features = json.loads(made.write(tmp_path / "out.geojson").read_text(encoding="utf-8"))["features"]
    assert len(features) == 3 * 25
    told = features[1]["properties"]  # node 0, the second hour
    assert told["street"] == "Grand-Rue / Rue du Fort"
    assert (told["time"], told["end_time"]) == ("2024-03-05T08:00:00Z", "2024-03-05T09:00:00Z")
    assert told["local_time"] == "2024-03-05T09:00:00+01:00"
    for read, name in ((pl.read_csv, "out.csv"), (pl.read_parquet, "out.parquet")):
        row = read(made.write(tmp_path / name)).row(1, named=True)
        assert tuple(row) == COLUMNS
        assert (row["lon"], row["lat"], row["street"]) == (made.lon[0], made.lat[0], told["street"])
        assert row["sensor"] == bool(made.sensor[0])
    assert "\n0,6.0,49.0,Grand-Rue / Rue du Fort," in (tmp_path / "out.csv").read_text(encoding="utf-8")
    # A closed road keeps its name.
    assert np.array_equal(named.close([(0, 1), (1, 0)]).streets, named.streets)
    nodes = json.loads(made.write(tmp_path / "out.json").read_text(encoding="utf-8"))["nodes"]
    assert {node["node_id"]: node["street"] for node in nodes} == dict(
        zip(range(25), named.streets.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"step_s": 300}, ("300 s", "3600 s")),
        ({"quantity": "speed"}, ('"speed"', '"count"')),
    ],
)
def test_another_step_or_quantity_is_refused(changes: dict[str, object], named: tuple[str, ...]) -> None:
    run = small_run()
    with raises(SettingsError, *named):
        forecast(run, stream=replace(small_city().stream, **changes))  # type: ignore[arg-type]


def test_another_unit_is_said() -> None:
    run = small_run()
    made = forecast(run, stream=replace(small_city().stream, unit="lorries"))
    assert made.notices == ('the stream\'s unit is "lorries"; the model reads and forecasts "vehicles".',)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"at": START_S + STEP_S - 1}, ("2024-03-04T02:00:00",)),
        ({"at": START_S + S * STEP_S + 14 * 86_400 + 1}, ("2024-03-23T11:00:00",)),
        ({"at": "yesterday"}, ('at "yesterday"',)),
        ({"at": 1.5}, ('at "1.5"', "ISO-8601")),
        ({"at": date(2024, 3, 6)}, ('at "2024-03-06"',)),
        ({"at": 10**18}, (str(10**18), "not a time")),
        ({"at": datetime.min}, (str(datetime.min), "not a time")),
        ({"at": "9999-12-31T23:59"}, ('at "9999-12-31T23:59"',)),
        ({"at": "0001-01-01"}, ('at "0001-01-01"',)),
        ({"past": 0}, ("past = 0", "1")),
        ({"horizon": 0}, ("horizon = 0", "1")),
        ({"sensors": "some"}, ('sensors = "some"',)),
        ({"device": "nonsense"}, ("nonsense",)),
    ],
)
def test_impossible_forecasts_are_refused(options: dict[str, object], named: tuple[str, ...]) -> None:
    with raises(SettingsError, *named):
        forecast(small_run(), **options)


def test_an_unknown_form_of_file_is_refused(tmp_path: Path) -> None:
    made = forecast(small_run())
    with raises(SettingsError, ".xlsx", ".csv, .parquet, .geojson, .json"):
        made.write(tmp_path / "out.xlsx")
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "x", Path("/proc/none/x")):
        for form in (".csv", ".parquet", ".geojson", ".json"):
            with raises(SettingsError, str(path), "written"):
                made.write(path, suffix=form)
    assert made.write(tmp_path / "table", suffix=".csv").read_text(encoding="utf-8").startswith("node_id,lon,lat,")


def test_roads_are_closed_and_added_by_their_ends() -> None:
    network = grid()
    edited = edit_network(network, close=["0,1"], add=["0,6", " 6 , 0 ,250.5"])
    pairs = dict(
        zip(zip(edited.senders.tolist(), edited.receivers.tolist(), strict=True), edited.length_m, strict=True)
    )
    assert (0, 1) not in pairs
    assert (1, 0) in pairs
    assert pairs[6, 0] == 250.5
    assert 200 < pairs[0, 6] < 300  # as the crow flies
    assert edit_network(network).fingerprint == network.fingerprint
    assert edit_network(grid(text=True), close=["n0,n1"]).num_edges == network.num_edges - 1


def named_grid() -> RoadNetwork:
    """The grid, with a bridge over two roads both ways."""
    plain = grid()
    ends = zip(plain.senders.tolist(), plain.receivers.tolist(), strict=True)
    names = ["Tanner Bridge" if {a, b} in ({6, 7}, {7, 8}) else "" for a, b in ends]
    return plain.with_roads(replace(plain.edges, name=np.array(names)))


def test_a_street_is_closed_by_its_name() -> None:
    network = named_grid()
    by_name = edit_network(network, close=["tanner bridge "])
    by_ends = edit_network(network, close=["6,7", "7,6", "7,8", "8,7"])
    assert by_name.fingerprint == by_ends.fingerprint != network.fingerprint
    assert about_closed(network, ["tanner bridge "]) == ["closed tanner bridge: 4 roads of that name."]
    plan = RoadPlan.of([RoadChange(["Tanner Bridge"])], now_s=START_S, timezone="UTC")
    (partly,) = plan.roads([by_ends.reopen([(6, 7)])], np.array([START_S]))  # of which three roads are closed
    assert partly.fingerprint == by_ends.fingerprint
    with raises(CityError, '--close "Taner Bridge"', '"Tanner Bridge"'):
        edit_network(network, close=["Taner Bridge"])
    with raises(CityError, '--close "Tanner Bridge"'):  # no road of it is open
        edit_network(by_ends, close=["Tanner Bridge"])


def test_in_a_city_on_roads_a_street_is_its_roads() -> None:
    line = on_roads(named_grid())
    roads = [str(node) for node, name in zip(line.node_ids, line.streets, strict=True) if name == "Tanner Bridge"]
    if not len(line.names):
        line = replace(line, names=line.streets)
    closed = edit_network(line, close=["Tanner Bridge"])
    assert len(roads) >= 4 and closed.fingerprint == line.close_nodes(roads).fingerprint


@pytest.mark.parametrize(
    ("close", "add", "named"),
    [
        (["77"], [], ('--close "77"',)),
        (["0,1,2"], [], ('--close "0,1,2"',)),
        (["0,"], [], ('--close "0,"',)),
        (["0,12"], [], ("0,12", "1, 5")),
        (["0,99"], [], ('"99"',)),
        ([], ["0,6,far"], ('"far"', "length")),
        ([], ["0,6,-1"], ("-1.0 m",)),
        ([], ["0,1"], ("0,1", "already there")),
        ([], ["0"], ('--add "0"',)),
    ],
)
def test_a_road_that_cannot_be_changed_is_refused(close: list[str], add: list[str], named: tuple[str, ...]) -> None:
    with raises(CityError, *named):
        edit_network(grid(), close=close, add=add)
