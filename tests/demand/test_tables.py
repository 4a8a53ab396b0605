"""What demand tells a model: nothing about hidden sensors, the last hour's change, and where traffic goes."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from frigate.city.city import City
from frigate.config import change, preset
from frigate.demand.estimate import Demand
from frigate.demand.sensor_shares import SensorShares
from frigate.demand.tables import (
    NEW_ROADS,
    PRIOR_VEHICLES,
    PRIOR_VEHICLES_EVERYWHERE,
    DemandTables,
    FlowsOn,
    usual_flow,
)
from frigate.nn.batch import Batch
from frigate.nn.partition import cut_parts, in_parts
from frigate.training.hidden_sensors import kept_out_sensors, training_masks, training_windows
from frigate.training.run import RunOnCity
from frigate.training.train import new_run
from tests.support.forecast_runs import small_city
from tests.support.towns import following

SETTINGS = change(
    preset("default"),
    {
        "model": {"width": 8, "layers": 2, "hidden": 8},
        "task": {"past": 4, "horizon": 3},
        "train": {"masks": 3, "hide": [0.4, 0.6]},
    },
)


@pytest.fixture(scope="module")
def run() -> RunOnCity:
    return new_run(small_city(), settings=SETTINGS, seen=0.8)


def demand_of(run: RunOnCity) -> Demand:
    """Of all seen sensors."""
    (demand,) = run.windows().views.demands
    return demand


def batch_of(run: RunOnCity, masks: list[int], demand: list[int] | None = None) -> Batch:
    """Windows of the training period, each with its mask's sensors hidden, and that mask's demand or another."""
    hidden = torch.from_numpy(training_masks(run)[masks])
    return training_windows(run, "cpu").batch(
        np.array([20, 33, 47][: len(masks)]),
        past=4,
        horizon=3,
        inputs=torch.from_numpy(run.split.training),
        hidden=hidden,
        demand=torch.tensor(masks if demand is None else demand),
    )


def test_where_no_trip_passes_a_thousandth_of_the_towns_mean_is_usual(run: RunOnCity) -> None:
    """With the town's day. A detour there is put in relation to it, so that it cannot be nothing."""
    demand = demand_of(run)
    place = int(np.flatnonzero(~demand.sensors)[0])
    elsewhere = np.arange(len(demand.level)) != place
    empty = replace(demand, level=demand.level * elsewhere, node_flow=demand.node_flow * elsewhere)
    usual = usual_flow(empty)
    expected = 1e-3 * empty.usual_level.mean() * demand.other_factor
    np.testing.assert_allclose(usual[:, place], expected, rtol=1e-4)
    np.testing.assert_array_equal(usual[:, demand.sensors], demand.usual_counts[:, demand.sensors])


def test_the_untrained_model_forecasts_what_demand_does(run: RunOnCity) -> None:
    batch = batch_of(run, [0, 1, 2])
    assert batch.demand is not None and batch.demand.max() > 1
    with torch.no_grad():
        torch.testing.assert_close(run.model.eval()(batch), batch.demand)


@pytest.fixture(scope="module")
def run_with_gaps(run: RunOnCity) -> RunOnCity:
    """Every other sensor never has a reading between 8 and 11 o'clock: its usual counts then are filled in."""
    stream = run.city.stream
    observed = stream.observed.copy()
    observed[np.ix_(np.isin(stream.wall_clock[:, 0] // 3600, (8, 9, 10)), np.arange(0, stream.num_nodes, 2))] = False
    return new_run(City("Grid", replace(stream, observed=observed)), settings=SETTINGS, seen=0.8)


def poisoned_at(run: RunOnCity, hidden: np.ndarray) -> RunOnCity:
    """The same run, trained where these nodes count 1000 in every hour that is even, and nothing in others."""
    values = run.city.stream.values.copy()
    values[::2, hidden], values[1::2, hidden] = 1000.0, 0.0
    city = City("Grid", replace(run.city.stream, values=values))
    poisoned = new_run(city, settings=SETTINGS, seen=0.8)
    return replace(poisoned, run=replace(poisoned.run, scaling=run.scaling))  # the settings chosen may differ


def test_hours_are_filled_with_the_profile_of_visible_sensors_only(run_with_gaps: RunOnCity) -> None:
    run = run_with_gaps
    # What is kept out and what validates must not help to forecast itself.
    hidden_in = [*training_masks(run), kept_out_sensors(run), ~run.split.training]
    for which, hidden in enumerate(hidden_in):
        before, after = (training_windows(each, "cpu").views.demands[which] for each in (run, poisoned_at(run, hidden)))
        assert (before.sensors == (run.split.training & ~hidden)).all() and before.usual_counts[8].any()
        np.testing.assert_array_equal(before.usual_counts, after.usual_counts)
        np.testing.assert_array_equal(before.node_flow, after.node_flow)


def test_a_window_knows_nothing_of_its_hidden_sensors_and_a_wrong_demand_would_tell(run: RunOnCity) -> None:
    masks = training_masks(run)
    assert masks.any(1).all() and not (masks & ~run.split.training).any()
    for mask in range(len(masks)):
        values = run.city.stream.values.copy()
        values[:, masks[mask]] = 1000.0
        city = City("Grid", replace(run.city.stream, values=values))
        poisoned = new_run(city, settings=SETTINGS, seen=0.8, trust_all=True)  # stuck sensors would be left out
        poisoned = replace(poisoned, run=replace(poisoned.run, scaling=run.scaling))  # the settings chosen may differ
        before, after = (batch_of(each, [mask]) for each in (run, poisoned))
        for name in ("usual_past", "demand", "demand_node", "values"):
            assert torch.equal(getattr(before, name), getattr(after, name)), name
        leaking = batch_of(poisoned, [mask], [len(masks) + 1])  # the demand of all training nodes
        assert leaking.demand is not None and before.demand is not None
        assert (leaking.demand - before.demand).abs().max() > 100


def test_the_last_hour_by_hand(run: RunOnCity) -> None:
    demand = demand_of(run)
    tables = DemandTables.of([demand], "cpu", step_s=3600)
    tables = replace(tables, power=1.0, below=torch.zeros_like(tables.below))
    plain = run.windows().batch(np.array([33]), past=4, horizon=3, inputs=torch.from_numpy(run.split.seen))
    plain = following(tables, plain)  # on days as usual
    # Every sensor counts exactly what it usually does: the usual flow is forecast.
    assert plain.usual_past is not None
    usual = replace(plain, values=plain.usual_past.where(plain.observed, 0.0))
    calm = following(tables, usual)
    assert calm.demand is not None and calm.demand_node is not None
    bins = (33 + np.arange(1, 4) + 1) % 24  # Luxembourg is an hour ahead of UTC, in which snapshot 0 is at midnight
    of_week = demand.week[8 + bins // 3]  # on a Tuesday, in parts of three hours
    assert of_week.std() > 0.01
    expected = np.where(demand.sensors, demand.usual_counts, demand.node_flow)[bins] * of_week
    torch.testing.assert_close(calm.demand[0], torch.from_numpy(expected.astype(np.float32)))
    # Three times as much at each sensor, pulled towards the usual by a few vehicles.
    busy = following(tables, replace(usual, values=3 * usual.values))
    assert busy.demand is not None and busy.demand_node is not None
    rose = busy.demand_node[0, :, 0].exp()
    counted = usual.values[0].sum(0)[demand.sensors]
    everywhere = (3 * counted.sum() + PRIOR_VEHICLES_EVERYWHERE) / (counted.sum() + PRIOR_VEHICLES_EVERYWHERE)
    ratio = (3 * counted + PRIOR_VEHICLES * everywhere) / (counted + PRIOR_VEHICLES)
    many = counted > 20  # a sensor that counts few vehicles follows its neighbours
    assert many.sum() > 8
    torch.testing.assert_close(rose[demand.sensors][many], ratio[many], rtol=0.15, atol=0)
    assert (rose[~demand.sensors] > 1.5).all()
    half = following(replace(tables, power=0.5), replace(usual, values=3 * usual.values))
    assert half.demand is not None
    torch.testing.assert_close(half.demand / calm.demand, (busy.demand / calm.demand) ** 0.5)


def test_closed_roads_move_the_forecast_and_the_expected_readings(run: RunOnCity) -> None:
    demand = demand_of(run)
    roads = torch.ones(1, 2, 25)
    roads[0, 1, 7], roads[0, 1, 8] = 0.0, 2.0
    tables = replace(DemandTables.of([demand], "cpu", step_s=3600), roads=roads)
    plain = run.windows().batch(np.array([20]), past=4, horizon=3, inputs=torch.from_numpy(run.split.seen))
    usual = torch.zeros(1, 4, dtype=torch.int64)
    before = following(tables, plain, [0], usual, torch.tensor([0]))
    after = following(tables, plain, [0], usual, torch.tensor([1]))
    assert before.demand is not None and after.demand is not None and after.usual_past is not None
    assert (after.demand[..., 7] == 0).all()
    torch.testing.assert_close(after.demand[..., 8], 2 * before.demand[..., 8])
    torch.testing.assert_close(after.demand[..., 9:], before.demand[..., 9:])
    measured = following(tables, plain, [0], usual + 1, torch.tensor([1]))  # closed in the past hour, too
    assert measured.usual_past is not None and before.usual_past is not None
    torch.testing.assert_close(measured.usual_past[..., 8], 2 * before.usual_past[..., 8])
    # What the network adds goes where the traffic goes: nothing is left at a node that nobody passes.
    model = run.model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in list(model.get_submodule("readout").children())[-1].parameters():
            parameter.normal_()
        made = model(after)
        correction = made - after.demand
        assert (made[..., 7] == 0).all() and correction[..., 9].abs().max() > 0.01
        for parameter in list(model.get_submodule("readout").children())[-1].parameters():
            parameter.zero_()


def test_the_effect_of_readings_on_new_roads_lasts(run: RunOnCity) -> None:
    demand = demand_of(run)
    roads = torch.ones(1, 2, 25)
    roads[0, 1, 7:10] = torch.tensor([0.0, 2.0, 1.05])
    tables = replace(DemandTables.of([demand], "cpu", step_s=3600), roads=roads)
    tables = replace(tables, power=0.5, below=torch.zeros_like(tables.below))
    plain = run.windows().batch(np.array([20]), past=4, horizon=3, inputs=torch.from_numpy(run.split.seen))
    busy = replace(plain, values=5 * plain.values)

    def powers(past_on: list[int]) -> torch.Tensor:
        """[N] by which the change of the window's readings moves what is forecast."""
        on = torch.tensor([past_on]), torch.tensor([1])
        found = following(tables, busy, [0], *on)
        usual = following(replace(tables, power=0.0, roads=None), busy)
        assert found.demand is not None and found.demand_node is not None and usual.demand is not None
        moved = (found.demand[0] / (usual.demand[0] * roads[0, 1])).log().mean(0)
        assert (found.demand_node[0, :, 0].abs() > 0.1).all()
        return moved / found.demand_node[0, :, 0]

    there = torch.arange(25) != 7  # nobody passes it
    day = 0.5 * float(np.exp(-np.arange(1, 4) / 4).mean())  # half of the day's change, fading with the hours
    expected = torch.full((25,), day)
    torch.testing.assert_close(powers([0, 0, 0, 0])[there], expected[there])
    expected[8], expected[9] = 1.0, day + (1 - day) * np.log(1.05) / NEW_ROADS
    torch.testing.assert_close(powers([1, 1, 1, 1])[there], expected[there])
    expected[9] = day + (1 - day) * np.log(1.05) / NEW_ROADS / 4  # the roads were new for a quarter of the window
    torch.testing.assert_close(powers([0, 0, 0, 1])[there], expected[there])


def test_nodes_lean_on_what_is_counted_on_the_roads_of_the_coming_hour(run: RunOnCity) -> None:
    demand = demand_of(run)
    own = demand.sensor_shares
    other = replace(own, sensor=np.roll(own.sensor, 1, axis=0), share=np.roll(own.share, 1, axis=0))
    plain = run.windows().batch(np.array([20]), past=4, horizon=3, inputs=torch.from_numpy(run.split.seen))

    def change(shares: list[SensorShares], ahead_on: int) -> torch.Tensor:
        own = [[torch.from_numpy(getattr(s, name))[None] for name in ("sensor", "share", "rest")] for s in shares]
        flows = [FlowsOn(torch.ones(1, 25), (a, b, c)) for a, b, c in own]
        tables = DemandTables.of([demand], "cpu", step_s=3600).on(flows)
        on = torch.zeros(1, 4, dtype=torch.int64), torch.tensor([ahead_on % len(shares)])
        node = following(tables, plain, [0], *on).demand_node
        assert node is not None
        return node[..., 0]

    for ahead_on, sensor_shares in enumerate((own, other)):
        torch.testing.assert_close(change([own, other], ahead_on), change([sensor_shares], ahead_on))
    assert not torch.allclose(change([own, other], 0), change([own, other], 1))


def test_the_correction_fades_where_other_roads_take_traffic_away_or_bring_more(run: RunOnCity) -> None:
    torch.manual_seed(0)
    model = copy.deepcopy(run.model).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch = batch_of(run, [0])
    assert batch.demand is not None and batch.demand_node is not None
    node = batch.demand_node.clone()
    node[0, :3, -1] = torch.tensor([0.0, 0.5, 3.0])
    with torch.no_grad():
        usual, rerouted = (model(each) - batch.demand for each in (batch, replace(batch, demand_node=node)))
    assert usual.abs().min() > 1e-3
    scale = torch.ones(batch.num_nodes)
    scale[:3] = torch.tensor([0.0, 1 / 4, 1 / 9])
    torch.testing.assert_close(rerouted, usual * scale)


def test_a_part_of_the_network_has_its_part_of_the_demand(run: RunOnCity) -> None:
    batch = batch_of(run, [0, 2])
    model = run.model.eval()
    rows = np.random.default_rng(0).permutation(25)
    assert model.reach is not None
    with torch.no_grad():
        parts = list(cut_parts(batch.topologies, [rows[:9], rows[9:]], model.reach))
        torch.testing.assert_close(in_parts(model, batch, parts), model(batch))


def test_a_gauge_has_no_demand() -> None:
    speeds = new_run(small_city(quantity="speed"), settings=SETTINGS, seen=0.8)
    assert speeds.scaling.demand is None and not speeds.windows().views.demands
