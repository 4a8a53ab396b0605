"""Preset `default` against loops: values and gradients of all weights, with and without demand; and demand's inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from frigate.calendar import KIND
from frigate.city.stream import make_stream
from frigate.config import change, preset
from frigate.demand.settings import DemandSettings
from frigate.demand.tables import DemandTables, FlowsOn
from frigate.nn.batch import Batch
from frigate.nn.model import Frigate
from frigate.nn.predictor import Predictor
from frigate.nn.scaling import NEAR_CUTOFF
from frigate.training.run import RunOnCity
from frigate.training.train import new_run
from tests.support import second_writing_of_default as reference
from tests.support.forecast_runs import small_city
from tests.support.gradients import assert_same_gradients
from tests.support.second_writing import window
from tests.support.towns import (
    START_S,
    TIMEZONE,
    Town,
    build_model,
    edited,
    following,
    in_float64,
    make_town,
    random_network,
    random_stream,
    small_settings,
)

PAST, HORIZON = 4, 3
FRIDAY_S = START_S + 4 * 86_400


def weekend_town(quantity: str) -> Town:
    """Roads change, and Saturday begins, inside the window that is forecast."""
    network = random_network(7, seed=6, isolated=1)
    drawn = random_stream([network, edited(network, seed=6)], seed=6, quantity=quantity)
    stream = make_stream(
        drawn.values,
        drawn.networks,
        observed=drawn.observed,
        network_of=(np.arange(30) >= 19).astype(np.int64),
        start_s=FRIDAY_S,
        step_s=3600,
        timezone=TIMEZONE,
        quantity=quantity,
    )
    return make_town(stream, small_settings("default", layers=2))


def random_demand(batch: Batch, seed: int) -> Batch:
    """With numbers of the right sizes; some nodes lose half or all of their traffic, some have three times as much."""
    rng = np.random.default_rng(seed)
    B = batch.num_windows
    N = batch.num_nodes
    node = [rng.normal(0, 0.3, (B, N)), rng.gamma(1, 0.5, (B, N)), rng.random((B, N)) < 0.5]
    rerouted = rng.choice([0.0, 0.5, 1.0, 3.0], (B, N))
    return replace(
        batch,
        usual_past=torch.from_numpy(rng.gamma(1, 5, (B, batch.past, N))),
        demand=torch.from_numpy(rng.gamma(1, 5, (B, batch.horizon, N))),
        demand_node=torch.from_numpy(np.stack([*node, rerouted], axis=-1)),
    )


def inputs_of(batch: Batch, b: int) -> reference.DemandInputs | None:
    if batch.usual_past is None or batch.demand is None or batch.demand_node is None:
        return None
    node = batch.demand_node[b].T.tolist()
    return reference.DemandInputs(batch.usual_past[b].tolist(), batch.demand[b].tolist(), *node)


def loops(town: Town, model: Frigate, batch: Batch, current: list[int], inputs: np.ndarray) -> Tensor:
    """[B,H,N]"""
    made = []
    for b, last in enumerate(current):
        times = range(last - PAST + 1, last + 1)
        y = reference.forecast(
            model,
            window(town.stream, town.scaling, current=last, past=PAST, inputs=inputs),
            [town.topologies[int(town.stream.network_of[t])].road_features.double() for t in times],
            town.stream.sensors,
            [reference.calendar(town.stream, t) for t in times],
            [reference.calendar(town.stream, last + k) for k in range(1, HORIZON + 1)],
            inputs_of(batch, b),
            cutoff_m=NEAR_CUTOFF * town.scaling.length_scale_m,
        )
        made.append(torch.stack([torch.stack(steps) for steps in y], dim=1))
    return torch.stack(made)


@pytest.mark.parametrize(("quantity", "demand"), [("speed", False), ("count", True)])
def test_default_equals_the_loops(quantity: str, demand: bool) -> None:
    town = weekend_town(quantity)
    scaling = replace(town.scaling, demand=DemandSettings()) if demand else town.scaling
    model = build_model(town.settings, scaling, seed=1).double()
    current = [20, 9]
    inputs = np.arange(7) != 1  # one node is unseen
    batch = in_float64(town.batch(current, past=PAST, horizon=HORIZON, inputs=inputs))
    batch = random_demand(batch, 0) if demand else batch
    assert len(set(batch.topology_of[0].tolist())) == 2
    kinds = torch.cat([batch.time_past, batch.time_future], dim=1)[..., KIND]
    assert set(kinds.ravel().tolist()) == {0, 1}
    found = model(batch)
    expected = loops(town, model, batch, current, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert expected.std() > 1e-3
    assert_same_gradients(model, found, expected, rtol=1e-5)


def test_a_network_that_adds_nothing_is_not_run() -> None:
    """Its hidden weights are poisoned: running it would give NaN."""
    town = weekend_town("count")
    model = build_model(town.settings, replace(town.scaling, demand=DemandSettings())).double()
    batch = random_demand(in_float64(town.batch([20], past=PAST, horizon=HORIZON)), 0)
    predict = {"trusted": Predictor(model, town.stream.network, torch.device("cpu"))}
    model.trust_correction(0)
    predict["no trust"] = Predictor(model, town.stream.network, torch.device("cpu"))
    model.trust_correction(1)
    with torch.no_grad():
        for mlp in (model.first, model.readout):
            for parameter in mlp[-1].parameters():
                parameter.zero_()
    predict["untrained"] = Predictor(model, town.stream.network, torch.device("cpu"))
    nodes = torch.tensor([4, 1])
    for name, made in predict.items():
        with torch.no_grad():
            for parameter in made.model.encoder.parameters():  # type: ignore[union-attr]
                parameter.fill_(torch.nan)
        if name == "trusted":
            assert made(batch).isnan().all()
        else:
            assert torch.equal(made(batch), batch.demand)  # type: ignore[arg-type]
            assert torch.equal(made(batch, nodes), batch.demand[..., nodes])  # type: ignore[index]


# What demand tells of a window


@pytest.fixture(scope="module")
def run() -> RunOnCity:
    small = {"model": {"width": 8, "layers": 1, "hidden": 8}, "task": {"past": PAST, "horizon": HORIZON}}
    return new_run(small_city(), settings=change(preset("default"), small), seen=0.8)


@pytest.mark.parametrize("current", [33, 118])  # on Tuesday, and where Saturday begins
@pytest.mark.parametrize("odd", [False, True])
def test_demand_inputs_equal_plain_loops(run: RunOnCity, current: int, odd: bool) -> None:
    """On the usual roads in the first half of the window, on others in the second and in the coming hour.

    Also where some sensors count a hundred times as much as usual, and others nothing.
    """
    stream = run.city.stream
    windows = run.windows()
    (demand,) = windows.views.demands
    rng = np.random.default_rng(0)
    roads = rng.choice([0.0, 0.5, 0.95, 1.0, 1.05, 2.0], (2, stream.num_nodes))
    other = replace(demand.sensor_shares, sensor=np.roll(demand.sensor_shares.sensor, 1, axis=0))
    shares = tuple(torch.from_numpy(getattr(other, name))[None] for name in ("sensor", "share", "rest"))
    changes = torch.from_numpy(roads)[None].unbind(1)
    flows = [FlowsOn(changes[0], None), FlowsOn(changes[1], (shares[0], shares[1], shares[2]))]
    tables = DemandTables.of([demand], "cpu", step_s=stream.step_s).on(flows)
    seen = torch.from_numpy(run.split.seen)
    batch = windows.batch(
        np.array([current]), past=PAST, horizon=HORIZON, inputs=seen, hidden=(torch.arange(25) % 7 == 0)[None] & seen
    )
    if odd:
        times = torch.from_numpy(np.where(demand.sensors, rng.choice([0.0, 1.0, 100.0], 25), 1.0)).float()
        batch = replace(batch, values=batch.values * times)
    found = following(tables, batch, [0], torch.tensor([[0, 0, 1, 1]]), torch.tensor([1]))
    readings = [
        [float(x) if there else None for x, there in zip(row, observed, strict=True)]
        for row, observed in zip(batch.values[0], batch.observed[0], strict=True)
    ]
    expected = reference.demand_inputs(
        demand,
        other,
        stream,
        readings,
        current=current,
        horizon=HORIZON,
        past_roads=[roads[i].tolist() for i in (0, 0, 1, 1)],
        coming_roads=roads[1].tolist(),
    )
    mine = inputs_of(found, 0)
    assert mine is not None
    for name, numbers in vars(expected).items():
        np.testing.assert_allclose(getattr(mine, name), numbers, rtol=1e-4, atol=1e-4, err_msg=name)
    assert np.ptp(expected.log_change) > 0.05 and np.ptp(expected.forecast) > 1
    assert not odd or max(expected.log_change) == pytest.approx(np.log(reference.MAX_CHANGE))
