"""The naive baselines against brute force, and that nothing of an unseen node reaches them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from frigate.baselines.naive import (
    LabelPropagation,
    NearestSensors,
    column_medians,
    fit_clock_profile,
    fit_own_median,
    naive_baselines,
    own_past_baselines,
    seen_median,
)
from frigate.calendar import BINS, hourly_bins, wall_clock
from frigate.city.network import Edges, RoadNetwork
from frigate.city.split import Split, make_split
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.nn.batch import Batch
from tests.support.grids import START_S, tidal_grid, windows_of


def batch_at(stream: RoadNetworkStream, split: Split, current: list[int], *, past: int = 6, horizon: int = 4) -> Batch:
    inputs = torch.from_numpy(split.seen)
    return windows_of(stream, split.seen).batch(np.array(current), past=past, horizon=horizon, inputs=inputs)


def test_clock_bins_are_the_local_hour_of_every_second() -> None:
    local_s = START_S + np.concatenate([np.arange(0, 8 * 86_400, 7), np.arange(0, 8 * 86_400, 3600) - 1])
    bins = hourly_bins(wall_clock(local_s))
    weekend = (local_s - START_S) // 86_400 % 7 >= 5
    np.testing.assert_array_equal(bins, local_s // 3600 % 24 + 24 * weekend)


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_column_medians(rows: int) -> None:
    rng = np.random.default_rng(rows)
    values = rng.normal(size=(rows, 40)).astype(np.float32)
    observed = rng.random((rows, 40)) < 0.6
    expected = [np.median(values[o, i]) if o.any() else np.nan for i, o in enumerate(observed.T)]
    np.testing.assert_allclose(column_medians(values, observed), expected, rtol=1e-6)
    assert np.isnan(column_medians(values[:0], observed[:0])).all()


def test_profiles_equal_literal_medians() -> None:
    stream = tidal_grid()
    split = make_split(stream, seen=0.4, past=6, horizon=4)
    middle = seen_median(stream, split)
    profile = fit_clock_profile(stream, split, otherwise=middle).profile[:, 0]
    own = fit_own_median(stream, split, otherwise=middle).profile
    for weekend, hour in itertools.product([False, True], [0, 7, 23]):
        rows = [
            s for s in range(*split.train) if s * 1800 // 3600 % 24 == hour and (s * 1800 // 86_400 % 7 >= 5) == weekend
        ]
        values = stream.values[rows]
        observed = stream.observed[rows]
        seen = values[:, split.seen][observed[:, split.seen]]
        assert profile[hour + 24 * weekend] == pytest.approx(float(np.median(seen)))
        node = int(np.flatnonzero(split.unseen)[0])
        assert own[hour + 24 * weekend, node] == pytest.approx(float(np.median(values[observed[:, node], node])))


def test_medians_fall_back() -> None:
    stream = tidal_grid()
    bins = hourly_bins(stream.wall_clock)
    stream.observed[bins == 5] = False  # an hour when nobody reads
    stream.observed[:, 3] = False
    stream.observed[700:, 3] = True  # a node without a training reading
    split = make_split(stream, seen=0.5, past=6, horizon=4)
    own = fit_own_median(stream, split, otherwise=-1.0).profile
    assert (own[:, 3] == -1).all()
    part = slice(*split.train)
    assert own[5, 8] == np.median(stream.values[part, 8][stream.observed[part, 8]])
    profile = fit_clock_profile(stream, split, otherwise=-1.0).profile[:, 0]
    np.testing.assert_array_equal(np.flatnonzero(profile == -1), [5])


def brute_nearest(network: RoadNetwork, mean: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Floyd and Warshall, then five nearest by sorting."""
    N = network.num_nodes
    far = np.full((N, N), np.inf)
    np.fill_diagonal(far, 0)
    far[network.senders, network.receivers] = network.length_m
    for k in range(N):
        far = np.minimum(far, far[:, k : k + 1] + far[k])
    far = np.minimum(far, far.T)
    out = np.empty(N)
    for v in range(N):
        best = sorted((far[v, u], u) for u in np.flatnonzero(known))[:5]
        weight = np.array([1 / (d + 1) for d, _ in best])
        out[v] = weight @ mean[[u for _, u in best]] / weight.sum()
    return out


def dense_harmonic(network: RoadNetwork, mean: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Solve the whole system as it is written: x = label at sensors, x = mean of the neighbours elsewhere."""
    N = network.num_nodes
    joined = np.zeros((N, N))
    joined[network.senders, network.receivers] = joined[network.receivers, network.senders] = 1
    system = np.where(known[:, None], np.eye(N), np.eye(N) - joined / joined.sum(1, keepdims=True))
    return np.asarray(np.linalg.solve(system, np.where(known, mean, 0)))


@pytest.mark.parametrize("baseline", ["nearest", "harmonic"])
def test_space_baselines_equal_brute_force(baseline: str) -> None:
    """In windows with different readable sensors and with the network of their last snapshot."""
    stream = tidal_grid(silent=0.8)
    split = make_split(stream, seen=0.4, past=6, horizon=4)
    current = [100, 400, 856, 870, 880]  # 855 is the first snapshot with the closed roads
    batch = batch_at(stream, split, current)
    forecaster = NearestSensors(0.0) if baseline == "nearest" else LabelPropagation(0.0)
    literal = brute_nearest if baseline == "nearest" else dense_harmonic
    forecast = forecaster(batch)
    assert forecast.shape == (5, 4, 36)
    readable = set()
    for b, c in enumerate(current):
        window = stream.slice(c - 5, c + 1)
        values = window.values
        observed = window.observed
        observed = observed & split.seen
        known = np.asarray(observed.any(0))
        readable.add(known.tobytes())
        mean = (values * observed).sum(0, dtype=np.float64) / np.maximum(observed.sum(0), 1)
        expected = literal(stream.networks[stream.network_of[c]], mean, known)
        for step in range(4):
            np.testing.assert_allclose(forecast[b, step], expected, rtol=1e-4)
    assert len(readable) > 1


@pytest.mark.parametrize("baseline", [NearestSensors(7.5), LabelPropagation(7.5)])
def test_without_a_sensor_in_reach_there_is_a_constant(baseline: NearestSensors | LabelPropagation) -> None:
    stream = tidal_grid()
    network = stream.networks[0]
    corner = network.close([(100, 101), (101, 100), (100, 106), (106, 100)])  # node 100 is cut off
    stream = stream.on(corner)
    split = replace(make_split(stream, seen=0.4, past=6, horizon=4), seen=np.arange(36) == 20)
    forecast = baseline(batch_at(stream, split, [50]))
    assert (forecast[0, :, 0] == 7.5).all()
    own = stream.values[45:51, 20][stream.observed[45:51, 20]].mean()
    np.testing.assert_allclose(forecast[0, :, 1:], own, rtol=1e-5)
    silent = batch_at(stream, replace(split, seen=np.zeros(36, bool)), [50])
    assert (baseline(silent) == 7.5).all()


def test_splitting_a_batch_changes_nothing() -> None:
    stream = tidal_grid(silent=0.5)
    split = make_split(stream, seen=0.4, past=6, horizon=4)
    batch = batch_at(stream, split, [100, 400, 853, 856, 859, 870])
    for name, baseline in naive_baselines(stream, split).items():
        parts = torch.cat([baseline(part) for part in batch.split(2)])
        assert batch.join(parts).shape == (6, 4, 36)
        torch.testing.assert_close(baseline(batch), parts, msg=name)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_an_unseen_node_cannot_matter(poison: float) -> None:
    """Nor can a reading outside the training period, for what is fitted."""
    stream = tidal_grid()
    split = make_split(stream, seen=0.4, past=6, horizon=4)
    clean = batch_at(stream, split, [855, 870])
    values = stream.values.copy()
    values[:, split.unseen] = poison
    poisoned = replace(stream, values=values)
    later = values.copy()
    later[split.train[1] :] = poison
    before, after, past_training = (
        naive_baselines(s, split) for s in (stream, poisoned, replace(stream, values=later))
    )
    # A batch as it would be were the mask the only guard.
    dirty = replace(clean, values=torch.where(clean.observed, clean.values, poison))
    for name in before:
        expected = before[name](clean)
        assert torch.isfinite(expected).all()
        for forecaster, batch in ((after[name], dirty), (past_training[name], clean)):
            torch.testing.assert_close(forecaster(batch), expected, rtol=0, atol=0, msg=name)
    # The yardstick is the one that does look.
    own, poisoned_own = (fit_own_median(s, split, otherwise=0.0).profile for s in (stream, poisoned))
    assert own.shape == (BINS, 36)
    assert not torch.equal(own[:, split.unseen], poisoned_own[:, split.unseen])
    torch.testing.assert_close(own[:, split.seen], poisoned_own[:, split.seen])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_gpu_equals_cpu() -> None:
    stream = tidal_grid(silent=0.5)
    split = make_split(stream, seen=0.4, past=6, horizon=4)
    current = np.array([100, 853, 870])
    here = batch_at(stream, split, current.tolist())
    there = windows_of(stream, split.seen, device="cuda").batch(
        current, past=6, horizon=4, inputs=torch.from_numpy(split.seen).cuda()
    )
    for name, baseline in naive_baselines(stream, split).items():
        torch.testing.assert_close(baseline(there).cpu(), baseline(here), msg=name)


# What repeats a sensor's own past


def test_own_past_is_the_latest_the_last_hour_and_the_same_time_a_week_ago() -> None:
    stream = tidal_grid(silent=0.4)  # steps of half an hour
    split = make_split(stream, seen=0.5, past=6, horizon=4)
    plain, timed = own_past_baselines(stream, split)
    middle = seen_median(stream, split)
    week = 7 * 48
    current = np.array([850, 870])
    batch = batch_at(stream, split, current.tolist())
    latest = plain["persistence"](batch)
    hour = plain["last hour"](batch)
    ago = timed["last week"](batch, current)

    def reading(snapshot: int, node: int) -> float | None:
        return float(stream.values[snapshot, node]) if stream.observed[snapshot, node] else None

    for b, now in enumerate(current.tolist()):
        for node in np.flatnonzero(split.seen).tolist():
            own = [reading(s, node) for s in range(now - 5, now + 1)]
            known = [x for x in own if x is not None]
            last_hour = [x for x in own[-2:] if x is not None]
            mean = np.mean(last_hour) if last_hour else middle
            assert latest[b, 0, node] == (known[-1] if known else middle)
            assert hour[b, 3, node] == pytest.approx(mean)
            for step in range(4):
                then = reading(now + 1 + step - week, node)
                assert ago[b, step, node] == pytest.approx(mean if then is None else then)
    # An unseen node's own readings reach none of them.
    for forecast in (latest, hour, ago):
        assert (forecast[:, :, ~torch.from_numpy(split.seen)] == middle).all()


def test_last_week_never_reads_ahead_however_far_it_forecasts() -> None:
    values = np.arange(60 * 24, dtype=np.float32)[:, None].repeat(3, 1)
    stream = make_stream(values, line_of_three(), start_s=1_711_234_800 - 60 * 86_400, step_s=3600, timezone="UTC")
    split = Split(np.ones(3, bool), np.zeros(3, bool), np.zeros(3, bool), (0, 500), (500, 600), (600, 60 * 24))
    current = np.array([900])
    week = 7 * 24
    batch = batch_at(stream, split, current.tolist(), horizon=16 * 24)
    made = own_past_baselines(stream, split)[1]["last week"](batch, current)[0, :, 0]
    ahead = np.arange(1, 16 * 24 + 1)
    assert made.tolist() == (900 + ahead - week * -(-ahead // week)).tolist()  # the value is its snapshot
    assert made.max() <= 900


def line_of_three() -> RoadNetwork:
    lon = np.array([6.0, 6.001, 6.002])
    return RoadNetwork(np.arange(3), lon, np.full(3, 49.0), Edges.of([0, 1], [1, 2], [9, 9]))


def test_a_week_ago_is_the_same_local_time_when_the_clocks_change() -> None:
    start_s = 1_711_234_800  # Sunday 2024-03-24 00:00 in Berlin; the clocks change a week later at 02:00
    values = np.arange(9 * 24, dtype=np.float32)[:, None].repeat(3, 1)
    stream = make_stream(values, line_of_three(), start_s=start_s, step_s=3600, timezone="Europe/Berlin")
    split = Split(np.ones(3, bool), np.zeros(3, bool), np.zeros(3, bool), (0, 100), (100, 120), (120, 216))
    _, timed = own_past_baselines(stream, split)
    current = np.array([7 * 24 + 12])  # that Sunday at 13:00
    batch = batch_at(stream, split, current.tolist())
    # 14:00 on the day of the change is 167 hours after 14:00 the Sunday before.
    assert timed["last week"](batch, current)[0, 0].tolist() == [7 * 24 + 13 - 167] * 3
    assert own_past_baselines(stream.slice(0, 150), replace(split, test=(120, 150)))[1] == {}
