"""What the sensors say of one another, and which of them are left out of demand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frigate.city.city import City
from frigate.config import change, preset
from frigate.demand.trip_model import ask_sensors, doubted_sensors, estimate_demand
from frigate.training.train import train
from tests.support.broken_sensors import busiest, own, town, with_values
from tests.support.forecast_runs import small_city


def test_nobody_honest_is_left_out() -> None:
    doubts = doubted_sensors(town(), town().stream.sensors)
    assert doubts.rows == ()
    assert doubts.notices == ()


@pytest.mark.parametrize("fault", ["stuck", "total", "ten times", "dead"])
def test_a_broken_sensor_is_left_out_and_named(fault: str) -> None:
    row = busiest(20)
    readings = {
        "stuck": np.full_like(own(row), 30_000),
        "total": np.cumsum(own(row)),
        "ten times": own(row) * 10,
        "dead": np.zeros_like(own(row)),
    }[fault]
    doubts = doubted_sensors(with_values(**{f"n{row}": readings}), town().stream.sensors)
    assert doubts.rows == (row,)
    (notice,) = doubts.notices
    assert notice.startswith(f"Sensor {town().stream.node_ids[row]} is left out: it")


def test_one_broken_sensor_does_not_spoil_the_flow_elsewhere() -> None:
    row = busiest(20)
    broken = with_values(**{f"n{row}": np.full_like(own(row), 30_000)})
    truth = town().stream.values.mean(0)
    some = np.arange(town().stream.num_nodes) % 3 == row % 3  # a third of the nodes have a sensor
    others = ~some

    def error(city: City, *, trust_all: bool) -> float:
        demand = estimate_demand(city, some, trust_all=trust_all)
        return float(np.abs(demand.usual_level - truth)[others].mean())

    honest = error(town(), trust_all=True)
    assert error(broken, trust_all=True) > 2 * honest
    assert error(broken, trust_all=False) < 1.2 * honest
    demand = estimate_demand(broken, some)
    assert not demand.sensors[row]
    assert len(demand.notices) == 1
    assert estimate_demand(town(), some).notices == ()


def test_what_all_counts_are_multiplied_by_does_not_matter() -> None:
    sensors = town().stream.sensors
    asked = ask_sensors(town(), sensors)
    times = replace(town(), stream=replace(town().stream, values=town().stream.values * np.float32(12)))
    twelve = ask_sensors(times, sensors)
    assert np.allclose(twelve.expected, 12 * asked.expected, rtol=0.02)
    assert np.allclose(twelve.suspicion, asked.suspicion, atol=0.1)


def test_a_sensor_that_is_multiplied_is_the_most_suspect() -> None:
    row = busiest(30)
    asked = ask_sensors(with_values(**{f"n{row}": own(row) * 4}), town().stream.sensors)
    assert asked.rows[np.argmax(asked.suspicion)] == row
    honest = ask_sensors(town(), town().stream.sensors)
    at = int(np.flatnonzero(asked.rows == row)[0])
    assert asked.counted[at] == pytest.approx(4 * honest.counted[at])
    assert asked.expected[at] < 2 * honest.counted[at]  # its own count has no say
    assert asked.influence.min() >= 0
    assert 0.5 < asked.influence.sum() <= 1.001


def test_a_few_sensors_say_nothing_of_one_another() -> None:
    few = np.arange(town().stream.num_nodes) < 8
    asked = ask_sensors(town(), few)
    assert np.isnan(asked.expected).all()
    assert not asked.contradicted.any()
    stuck = with_values(n3=np.full_like(own(3), 30_000))
    assert doubted_sensors(stuck, few).rows == (3,)  # its own record says enough


def test_where_too_many_are_contradicted_all_are_used() -> None:
    values = np.array(town().stream.values)
    values[:, ::3] *= 40
    odd = replace(town(), stream=replace(town().stream, values=values))
    doubts = doubted_sensors(odd, town().stream.sensors)
    assert doubts.rows == () or len(doubts.rows) < len(values[0]) / 5


def test_training_leaves_out_what_it_names_and_keeps_it_out() -> None:
    city = small_city()
    row = int(np.flatnonzero(city.stream.sensors)[2])
    values = np.array(city.stream.values)
    values[:, row] = np.cumsum(values[:, row] + 1)
    broken = replace(city, stream=replace(city.stream, values=values))
    settings = change(
        preset("default"),
        {"model": {"width": 8, "layers": 2, "hidden": 8}, "task": {"past": 4, "horizon": 3}, "train": {"epochs": 0}},
    )
    told: list[str] = []
    run = train(broken, seen="all", settings=settings, device="cpu", on_notice=told.append)
    node = broken.stream.node_ids[row].item()
    assert run.nodes.node_ids[run.split.left_out].tolist() == [node]
    assert not run.split.seen[run.split.left_out].any()
    assert len(told) == 1
    assert f"Sensor {node} is left out" in told[0]
    whole = train(broken, seen="all", settings=settings, device="cpu", trust_all=True)
    assert not whole.split.left_out.any()

    from frigate.forecasting.forecaster import Forecaster

    for sensors in ("seen", "all"):
        forecaster = Forecaster(run, broken, sensors=sensors, device="cpu")
        assert not forecaster.inputs()[row]
        assert any("are not used" in notice and str(node) in notice for notice in forecaster.notices)
