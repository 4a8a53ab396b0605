"""The measures, against slow literal sums, and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.errors import SettingsError
from frigate.evaluation.metrics import DRAWS, Scores, bootstrap_weights, geh, interval
from tests.support.errors import raises


def cells(seed: int, *, windows: int = 7, horizon: int = 12, nodes: int = 5) -> tuple[torch.Tensor, ...]:
    """Forecasts, targets and masks with zeros on both sides, and NaN wherever there is no truth."""
    rng = np.random.default_rng(seed)
    shape = (windows, horizon, nodes)
    forecast = rng.poisson(2, shape).astype(np.float32) / 2
    target = rng.poisson(2, shape).astype(np.float32)
    observed = rng.random(shape) < 0.95
    target[~observed] = rng.choice([np.nan, np.inf, 1e30], (~observed).sum())
    forecast[~observed & (rng.random(shape) < 0.5)] = np.nan
    return torch.from_numpy(forecast), torch.from_numpy(target), torch.from_numpy(observed)


def scored(batch: tuple[torch.Tensor, ...], *, step_s: int = 300, quantity: str = "count", size: int = 100) -> Scores:
    forecast, target, observed = batch
    scores = Scores(horizon=forecast.shape[1], num_nodes=forecast.shape[2], step_s=step_s, quantity=quantity)
    for first in range(0, len(forecast), size):
        part = slice(first, first + size)
        scores.add(forecast[part], target[part], observed[part])
    return scores


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15)
def test_measures_equal_their_literal_definition(seed: int) -> None:
    forecast, target, observed = cells(seed)
    nodes = np.array([True, False, True, True, False])
    pairs, hours = [], []
    for b in range(7):
        for n in np.flatnonzero(nodes):
            pairs += [(float(target[b, h, n]), float(forecast[b, h, n])) for h in range(12) if observed[b, h, n]]
            if all(observed[b, h, n] for h in range(12)):
                hours.append((float(target[b, :, n].sum()), float(forecast[b, :, n].sum())))
    summary = scored((forecast, target, observed)).summary(nodes)
    assert summary is not None
    size = len(pairs)
    assert summary.cells == size
    assert summary.nodes == 3
    assert summary.mae.value == pytest.approx(sum(abs(y - p) for y, p in pairs) / size)
    assert summary.rmse.value == pytest.approx(math.sqrt(sum((y - p) ** 2 for y, p in pairs) / size))
    smape = sum(200 * abs(y - p) / (abs(y) + abs(p)) if y or p else 0 for y, p in pairs) / size
    assert summary.smape.value == pytest.approx(smape)
    assert summary.wape.value == pytest.approx(100 * sum(abs(y - p) for y, p in pairs) / sum(abs(y) for y, _ in pairs))
    good = [math.sqrt(2 * (p - y) ** 2 / (p + y)) < 5 if p + y else True for y, p in hours]
    assert summary.geh_share is not None
    if hours:
        assert summary.geh_share.value == pytest.approx(100 * sum(good) / len(good))
    else:
        assert math.isnan(summary.geh_share.value)


@pytest.mark.parametrize(("horizon", "whole_hours"), [(12, 3), (7, 1), (8, 2), (4, 1)])
def test_every_whole_hour_ahead_has_its_geh(horizon: int, whole_hours: int) -> None:
    forecast, target, observed = cells(5, horizon=horizon)
    counted = np.zeros(5)
    good = np.zeros(5)
    for b in range(7):
        for n in range(5):
            for hour in range(whole_hours):
                part = slice(4 * hour, 4 * hour + 4)
                if observed[b, part, n].all():
                    counted[n] += 1
                    good[n] += bool(geh(forecast[b, part, n].double().sum(), target[b, part, n].double().sum()) < 5)
    assert counted.sum() > 10 * whole_hours
    sums = scored((forecast, target, observed), step_s=900).hour_sums
    np.testing.assert_array_equal(sums, [counted, good])


def test_a_later_hour_that_is_wrong_shows() -> None:
    target = torch.full((2, 8, 3), 10.0)
    forecast = target.clone()
    forecast[:, 4:] = 1000
    summary = scored((forecast, target, torch.ones_like(target, dtype=torch.bool)), step_s=900).summary(
        np.ones(3, bool)
    )
    assert summary is not None
    assert summary.geh_share is not None
    assert summary.geh_share.value == 50


def test_splitting_batches_changes_nothing() -> None:
    batch = cells(1)
    whole = scored(batch)
    parts = scored(batch, size=2)
    np.testing.assert_allclose(whole.cell_sums, parts.cell_sums, rtol=1e-13)
    np.testing.assert_array_equal(whole.hour_sums, parts.hour_sums)


def test_unobserved_values_have_no_influence() -> None:
    forecast, target, observed = cells(2)
    clean = torch.where(observed, target, 0.0), observed
    np.testing.assert_array_equal(
        scored((forecast, target, observed)).cell_sums,
        scored((torch.where(observed, forecast, 0.0), *clean)).cell_sums,
    )


def test_a_forecast_that_is_not_a_number_shows() -> None:
    forecast, target, observed = cells(2)
    forecast = forecast.clone()
    observed[0, 0, 0] = True
    target[0, 0, 0] = 1.0
    forecast[0, 0, 0] = torch.nan
    summary = scored((forecast, target, observed)).summary(np.ones(5, bool))
    assert summary is not None
    assert math.isnan(summary.mae.value)
    assert summary.to_json()["mae"]["value"] is None


def test_geh_by_hand() -> None:
    forecast = torch.tensor([100.0, 0.0, 0.0, 150.0, -5.0])
    truth = torch.tensor([100.0, 0.0, 12.0, 100.0, 5.0])
    expected = [0.0, 0.0, math.sqrt(2 * 144 / 12), math.sqrt(2 * 2500 / 250), math.inf]
    np.testing.assert_allclose(geh(forecast, truth), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("step_s", "quantity", "horizon", "steps"),
    [
        (300, "count", 12, 12),
        (300, "count", 11, 0),
        (900, "count", 12, 4),
        (3600, "count", 2, 1),
        (7200, "count", 2, 0),
        (420, "count", 12, 0),
        (300, "speed", 12, 0),
    ],
)
def test_hourly_sums_need_whole_hours_of_counts(step_s: int, quantity: str, horizon: int, steps: int) -> None:
    scores = scored(cells(0, horizon=horizon), step_s=step_s, quantity=quantity)
    assert scores.hour_steps == steps
    summary = scores.summary(np.ones(5, bool))
    assert summary is not None
    assert (summary.geh_share is None) == (steps == 0)


def test_steps_and_groups_partition_the_cells() -> None:
    scores = scored(cells(4))
    everyone = np.ones(5, bool)
    whole = scores.summary(everyone)
    assert whole is not None
    steps = [summary for summary in scores.by_step(everyone) if summary is not None]
    assert len(steps) == 12
    groups = scores.by_group(np.array([0, 2, 0, 2, -1]), ("a", "b", "c"))
    rest = scores.summary(np.arange(5) == 4)
    assert rest is not None
    assert list(groups) == ["a", "c"]  # b has no node
    assert sum(step.cells for step in steps) == whole.cells
    assert sum(group.cells for group in groups.values()) + rest.cells == whole.cells
    assert sum(step.mae.value * step.cells for step in steps) == pytest.approx(whole.mae.value * whole.cells)


def test_no_cell_no_summary() -> None:
    forecast, target, observed = cells(0)
    empty = scored((forecast, target, torch.zeros_like(observed)))
    assert empty.summary(np.ones(5, bool)) is None
    assert scored((forecast, target, observed)).summary(np.zeros(5, bool)) is None
    assert math.isnan(empty.mae_draws(np.ones(5, bool))[0])


def test_wape_of_nothing_is_undefined() -> None:
    one = torch.ones(2, 3, 4)
    summary = scored((one, torch.zeros_like(one), torch.ones_like(one, dtype=torch.bool))).summary(np.ones(4, bool))
    assert summary is not None
    assert math.isnan(summary.wape.value)
    assert summary.to_json()["wape"] == {"value": None, "low": None, "high": None}


def test_wrong_shape_is_refused() -> None:
    forecast, target, observed = cells(0)
    scores = Scores(horizon=12, num_nodes=5, step_s=300, quantity="count")
    with raises(SettingsError, "(7, 12, 5)"):
        scores.add(forecast[:, :6], target, observed)


def gauss(nodes: int, seed: int) -> Scores:
    """Errors whose size differs from node to node, mean 1."""
    rng = np.random.default_rng(seed)
    error = rng.gamma(2, 0.5, nodes)[None, None] * np.ones((3, 2, 1))
    target = torch.full((3, 2, nodes), 10.0)
    return scored((target + torch.from_numpy(error), target, torch.ones(3, 2, nodes, dtype=torch.bool)))


def test_an_interval_is_the_middle_95_percent_of_its_draws() -> None:
    found = interval(7.0, np.append(np.random.default_rng(0).permutation(1001), np.nan))
    assert (found.value, found.low, found.high) == pytest.approx((7.0, 25.0, 975.0))


def test_interval_covers_and_shrinks() -> None:
    covered, widths = 0, {}
    for nodes in (30, 480):
        each = []
        for seed in range(60):
            summary = gauss(nodes, seed).summary(np.ones(nodes, bool))
            assert summary is not None
            assert summary.mae.low <= summary.mae.value <= summary.mae.high
            covered += summary.mae.low <= 1.0 <= summary.mae.high
            each.append(summary.mae.high - summary.mae.low)
        widths[nodes] = float(np.mean(each))
    assert 0.86 * 120 <= covered <= 119
    assert widths[30] / widths[480] == pytest.approx(4, rel=0.15)  # the square root of 16


def test_a_single_node_has_no_interval() -> None:
    scores = gauss(6, 0)
    summary = scores.summary(np.arange(6) == 2)
    assert summary is not None and summary.nodes == 1
    for measure in (summary.mae, summary.rmse, summary.smape, summary.wape):
        assert math.isfinite(measure.value) and math.isnan(measure.low) and math.isnan(measure.high)
    assert summary.to_json()["mae"]["low"] is None
    two = scores.summary(np.arange(6) < 2)
    assert two is not None and two.mae.low < two.mae.high


def test_draws_equal_resampling_one_node_after_another() -> None:
    scores = scored(cells(9, nodes=6))
    nodes = np.array([True, True, False, True, True, True])
    mae, draws = scores.mae_draws(nodes, seed=4)
    weights = bootstrap_weights(5, seed=4)
    assert weights.shape == (DRAWS, 5)
    np.testing.assert_array_equal(weights.sum(1), 5)
    count, error = scores.cell_sums[:2].sum(1)
    for draw in range(20):
        drawn = np.repeat(np.flatnonzero(nodes), weights[draw].astype(int))
        assert draws[draw] == pytest.approx(error[drawn].sum() / count[drawn].sum())
    summary = scores.summary(nodes, seed=4)
    assert summary is not None
    assert summary.mae.value == pytest.approx(mae)
    assert summary.mae.low == pytest.approx(float(np.quantile(draws, 0.025)))
