"""The fast model against the equations as loops: values, and gradients of all weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from frigate.city.stream import RoadNetworkStream
from frigate.nn.batch import Batch
from frigate.nn.calendar import calendar
from frigate.nn.model import DefaultEmbedding, Frigate
from frigate.nn.moments import KernelMean, moments
from frigate.nn.scaling import NEAR_CUTOFF
from tests.support import second_writing as reference
from tests.support.gradients import assert_same_gradients
from tests.support.towns import (
    Town,
    bare_topology,
    build_model,
    edited,
    hide,
    in_float64,
    make_town,
    random_network,
    random_stream,
    random_town,
    seen_by,
    small_settings,
    without_readings,
)

PAST, HORIZON = 4, 3


def changing_town() -> Town:
    """Roads close, open and appear, and a node goes, with its readings, inside the window."""
    before = random_network(9, seed=5)
    during = edited(before, seed=5, closed=4)
    after = during.remove_nodes(during.node_ids[2:3].tolist())
    stream = random_stream([before, during, after], seed=5, snapshots=9)
    return make_town(stream, small_settings("paper"))


def quiet_town() -> Town:
    """Nearly all nodes are silent: some have no neighbour with a reading."""
    stream = random_stream([random_network(10, seed=2)], seed=2, silent=0.8)
    return make_town(stream, small_settings("paper"))


def roadless_town() -> Town:
    network = random_network(5, seed=3)
    roads = zip(network.node_ids[network.senders].tolist(), network.node_ids[network.receivers].tolist(), strict=True)
    return make_town(random_stream([network.close(roads)], seed=3), small_settings("paper"))


TOWNS: dict[str, Callable[[], Town]] = {
    "two isolated nodes": lambda: random_town("paper", seed=0, num_nodes=9, isolated=2),
    "gauge": lambda: random_town("paper", seed=1, num_nodes=8, quantity="speed"),
    "quiet": quiet_town,
    "no road": roadless_town,
    "changing": changing_town,
    "three topologies": lambda: random_town("paper", seed=4, num_nodes=7, topologies=3),
}


def reference_forecast(town: Town, model: Frigate, current: list[int], inputs: np.ndarray) -> Tensor:
    """[B,H,N]"""
    windows = []
    for last in current:
        steps = []
        for ahead in range(1, HORIZON + 1):
            snapshots = reference.window(town.stream, town.scaling, current=last, past=PAST, inputs=inputs, ahead=ahead)
            y = reference.forecast(model, snapshots, reference.clock(town.stream, last), horizon=HORIZON)
            steps.append(torch.stack([of_node[ahead - 1] for of_node in y]))
        windows.append(torch.stack(steps))
    return torch.stack(windows)


@pytest.mark.parametrize("name", TOWNS)
def test_model_equals_the_loops(name: str) -> None:
    town = TOWNS[name]()
    model = build_model(town.settings, town.scaling, seed=len(name)).double()
    S = town.stream.num_snapshots
    N = town.stream.num_nodes
    current = [PAST - 1, S // 2, S - HORIZON - 1]
    inputs = np.arange(N) != 1  # one node is unseen
    batch = in_float64(town.batch(current, past=PAST, horizon=HORIZON, inputs=inputs))
    forecast = batch.join(model(batch))
    expected = reference_forecast(town, model, current, inputs)
    assert forecast.dtype == torch.float64
    torch.testing.assert_close(forecast, expected, rtol=1e-9, atol=1e-9)
    assert expected.std() > 1e-3  # not all alike
    assert_same_gradients(model, forecast, expected)


def test_cases_are_what_they_say() -> None:
    """A node without neighbour readings, a topology that changes inside a window, missing readings."""
    quiet = quiet_town()
    snapshots = reference.window(quiet.stream, quiet.scaling, current=9, past=PAST, inputs=np.ones(10, bool))
    around = [len(reference.neighbour_readings(snapshots, v)) for v in range(10)]
    assert min(around) == 0 < max(around)
    changing = changing_town()
    network_of = changing.stream.network_of.tolist()
    assert len(set(network_of[:PAST])) == 2
    assert not changing.stream.networks[-1].present.all()
    assert roadless_town().stream.network.num_edges == 0
    assert not all(reading is not None for s in snapshots for reading in s.reading)


def test_float32_is_close_to_the_loops() -> None:
    town = TOWNS["two isolated nodes"]()
    model = build_model(town.settings, town.scaling)
    inputs = np.ones(town.stream.num_nodes, bool)
    single = model(town.batch([10, 20], past=PAST, horizon=HORIZON))
    expected = reference_forecast(town, copy.deepcopy(model).double(), [10, 20], inputs)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["changing", "three topologies", "quiet"])
def test_positions_and_calendar_equal_the_loops(name: str) -> None:
    town = TOWNS[name]()
    assert town.settings.anchors == 2
    for network, topology in zip(town.stream.networks, town.topologies, strict=True):
        expected = torch.tensor(reference.positions(network, town.scaling))
        torch.testing.assert_close(topology.positions, expected)
    for t in (0, 7):
        torch.testing.assert_close(
            calendar(torch.from_numpy(town.stream.wall_clock[t]))[:4].double(), reference.clock(town.stream, t)
        )


def one_window(values: Tensor, observed: Tensor, senders: list[int], receivers: list[int]) -> Batch:
    """One window of [T,N] readings on one bare topology."""
    T, N = values.shape
    return Batch(
        values=(values * observed)[None],
        observed=observed[None],
        time_past=torch.zeros(1, T, 3, dtype=torch.int64),
        time_future=torch.zeros(1, 1, 3, dtype=torch.int64),
        topologies=(bare_topology(N, senders, receivers),),
        topology_of=torch.zeros(1, T, dtype=torch.int64),
    )


def loop_moments(batch: Batch, topology: int = 0) -> Tensor:
    """[N,6]"""
    roads = dict.fromkeys(
        zip(
            batch.topologies[topology].senders.tolist(),
            batch.topologies[topology].receivers.tolist(),
            strict=True,
        ),
        1.0,
    )
    snapshots = []
    for values, observed in zip(batch.values[0].tolist(), batch.observed[0].tolist(), strict=True):
        reading = [value if seen else None for value, seen in zip(values, observed, strict=True)]
        snapshots.append(reference.Snapshot(roads, reading, []))
    return torch.tensor([reference.moments(reference.neighbour_readings(snapshots, v)) for v in range(batch.num_nodes)])


@settings(max_examples=30)
@given(
    num_nodes=st.integers(2, 9),
    past=st.integers(1, 4),
    level=st.sampled_from([0.0, 3.0, -50.0]),
    spread=st.sampled_from([0.0, 0.5, 4.0]),
    seen=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_moments_equal_the_loops(
    num_nodes: int, past: int, level: float, spread: float, seen: float, seed: int
) -> None:
    network = random_network(num_nodes, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    values = level + spread * torch.randn(past, num_nodes, generator=generator, dtype=torch.float64) ** 3
    observed = torch.rand(past, num_nodes, generator=generator) < seen
    batch = one_window(values, observed, network.senders.tolist(), network.receivers.tolist())
    found = moments(batch, batch.values)[:, 0]
    torch.testing.assert_close(found, loop_moments(batch).double(), rtol=1e-6, atol=1e-6)


def test_moments_of_large_values_with_a_small_spread() -> None:
    """In float32, where a sum of fourth powers that is not centred would be noise."""
    values = torch.tensor([[5000.0, 5000.5, 5001.0, 5003.0], [5000.25, 5000.0, 5002.0, 5000.0]])
    batch = one_window(values, torch.ones(2, 4, dtype=torch.bool), [1, 2, 3], [0, 0, 0])
    found = moments(batch, batch.values)[0, 0]
    torch.testing.assert_close(found, loop_moments(batch)[0], rtol=1e-3, atol=1e-3)
    assert found.dtype == torch.float32


def test_moments_that_are_extreme_are_bounded() -> None:
    N = 1202
    values = torch.zeros(1, N, dtype=torch.float64)
    values[0, 1] = 1.0  # one in 1,200: skewness 34, kurtosis 1,195
    around = list(range(1, N - 1))
    batch = one_window(values, torch.ones(1, N, dtype=torch.bool), around, [0] * len(around))
    found = moments(batch, batch.values)[0, 0]
    assert found[3] == 10
    assert found[4] == 30
    batch = replace(batch, values=-batch.values)
    assert moments(batch, batch.values)[0, 0, 3] == -10


def test_moments_count_a_two_way_street_once_and_never_the_node_itself() -> None:
    values = torch.tensor([[7.0, 2.0, 4.0]])
    batch = one_window(values, torch.ones(1, 3, dtype=torch.bool), [0, 1, 0], [1, 0, 2])
    log_count, mean, std, *_ = moments(batch, batch.values)[0, 0].tolist()
    assert (round(np.expm1(log_count), 5), mean, std) == (2, 3, 1)


def kernel_town(seed: int) -> tuple[Town, KernelMean]:
    stream: RoadNetworkStream = random_stream(
        [
            random_network(11, seed=seed, isolated=1),
            edited(random_network(11, seed=seed, isolated=1), seed=seed),
        ],
        seed=seed,
        snapshots=8,
    )
    town = make_town(stream, small_settings("default"))
    model = build_model(town.settings, town.scaling, seed=seed).double()
    assert isinstance(model.embedding, DefaultEmbedding)
    return town, model.embedding.kernel


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kernel_mean_equals_the_loops(seed: int) -> None:
    town, kernel = kernel_town(seed)
    past, last = 5, 5
    batch = in_float64(town.batch([last], past=past, horizon=1))
    assert len(batch.topologies) == 2
    found = kernel(batch, batch.values)  # [N,1,T,2G]
    weights = dict(kernel.named_parameters())
    snapshots = reference.window(
        town.stream,
        replace(town.scaling, anchors=None),
        current=last,
        past=past,
        inputs=np.ones(town.stream.num_nodes, bool),
    )
    rows = []
    for t, snapshot in enumerate(snapshots):
        features = batch.topologies[int(batch.topology_of[0, t])].road_features
        near = reference.kernel_mean(
            weights,
            snapshot,
            features,
            town.stream.sensors,
            heads=kernel.heads,
            cutoff_m=NEAR_CUTOFF * town.scaling.length_scale_m,
        )
        rows.append(torch.stack([torch.stack(row) for row in near]))
    expected = torch.stack(rows, dim=1)
    shares = expected[..., kernel.heads :]
    assert (shares == 0).any()  # the isolated node sees nothing
    # The mean fades where less than a ten-thousandth of the weight is visible: a choice of the model, tested below.
    faded = (shares < 1e-4).repeat(1, 1, 2)
    torch.testing.assert_close(found[:, 0].where(~faded, 0.0), expected.where(~faded, 0.0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[:, 0, :, kernel.heads :], shares, rtol=1e-6, atol=1e-6)
    assert_same_kernel_gradients(kernel, found[:, 0].where(~faded, 0.0), expected.where(~faded, 0.0))


def assert_same_kernel_gradients(kernel: KernelMean, left: Tensor, right: Tensor) -> None:
    weights = torch.randn(left.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters = list(kernel.parameters())
    found = torch.autograd.grad((left * weights).sum(), parameters)
    expected = torch.autograd.grad((right * weights).sum(), parameters)
    for a, b in zip(found, expected, strict=True):
        assert b.any()
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


def test_kernel_mean_of_equal_readings_is_that_reading() -> None:
    town, kernel = kernel_town(3)
    batch = in_float64(town.batch([5], past=5, horizon=1))
    batch = replace(batch, values=torch.where(batch.observed, 2.5, 0.0).double())
    mean, share = kernel(batch, batch.values).chunk(2, dim=-1)
    assert ((share >= 0) & (share <= 1 + 1e-6)).all()
    torch.testing.assert_close(mean[share > 1e-4], torch.full_like(mean[share > 1e-4], 2.5))
    assert (mean[share == 0] == 0).all()
    assert (mean <= 2.5 + 1e-6).all()


def test_kernel_mean_of_a_hidden_sensor_equals_that_of_no_sensor() -> None:
    """Where it is not even a sensor, only the share of the weight that is visible differs."""
    town, kernel = kernel_town(4)
    node = int(np.flatnonzero(town.stream.sensors)[0])
    fewer = seen_by(without_readings(town.stream, node), town.settings, town.scaling)
    assert not fewer.stream.sensors[node]
    hidden = torch.zeros(1, town.stream.num_nodes, dtype=torch.bool)
    hidden[:, node] = True
    hiding = in_float64(hide(town.batch([5], horizon=1), hidden))
    never = in_float64(fewer.batch([5], horizon=1))
    mean, share = kernel(hiding, hiding.values).chunk(2, dim=-1)
    mean_never, share_never = kernel(never, never.values).chunk(2, dim=-1)
    clear = share > 1e-4
    torch.testing.assert_close(mean[clear], mean_never[clear], rtol=1e-5, atol=1e-5)
    assert (share <= share_never + 1e-6).all()
    assert (share < share_never - 1e-3).any()
