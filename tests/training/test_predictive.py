"""Predictive distributions: whole numbers, never negative, wider where less is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy import stats

from frigate.errors import SettingsError
from frigate.training.predictive import (
    Cells,
    CountLaw,
    GaugeLaw,
    fit_counts,
    fit_gauges,
    quantile_of_counts,
)
from tests.support.errors import raises

LAW = CountLaw(10.0, (0.01, 0.5, 0.5), (-1.0, -0.3, 0.5, 0.2, 0.1), 0.5)
GAUGE = GaugeLaw(50.0, (-2.0, 0.1, 0.0, 0.3, 0.2))


def cells(forecast: ArrayLike, *, spread: float = 0.2, hops: ArrayLike = 1.0, rerouted: float = 1.0) -> Cells:
    made = np.asarray(forecast, np.float64)
    like = np.ones_like(made)
    return Cells(made, made, spread * like, np.asarray(hops, np.float64) * like, like, rerouted * like, 0 * like)


@given(
    st.floats(0.001, 0.999), st.floats(1e-3, 1e4), st.floats(1e-4, 100), st.integers(0, 10)
)  # scipy's own search is exact where its numbers do not overflow
def test_quantiles_of_counts_are_those_of_scipy(probability: float, mean: float, dispersion: float, rows: int) -> None:
    (found,) = quantile_of_counts(np.array([probability]), np.array([mean]), np.array([dispersion]))
    n, none = 1 / dispersion, 1 / (1 + dispersion * mean)
    assert stats.nbinom.cdf(found, n, none) >= probability * (1 - 1e-9)
    assert found == 0 or stats.nbinom.cdf(found - 1, n, none) < probability * (1 + 1e-9)
    many = quantile_of_counts(np.full(rows, probability), np.full(rows, mean), np.full(rows, dispersion))
    assert (many == found).all()


def test_a_band_is_of_the_counts_with_at_most_its_score() -> None:
    counts = np.arange(200.0)
    for forecast in (0.05, 0.4, 3.0, 30.0):
        for score in (0.1, 1.0, 2.3, 4.0):
            one = cells([forecast])
            lower, upper = (float(end[0]) for end in LAW.band(one, np.array([score])))
            inside = LAW.score(cells(np.full(200, forecast)), counts) <= score
            inside |= counts == np.rint(forecast)
            assert counts[inside].min() == lower
            assert counts[inside].max() == upper
            assert lower == np.rint(lower) >= 0


def test_bands_are_nested_and_as_wide_as_the_street_is_busy() -> None:
    forecast = np.array([0.0, 0.1, 1.0, 10.0, 1000.0])
    before = LAW.band(cells(forecast), np.zeros(5))
    for score in (0.5, 1.0, 2.3, 5.0):
        lower, upper = LAW.band(cells(forecast), np.full(5, score))
        assert (lower <= before[0]).all()
        assert (upper >= before[1]).all()
        before = lower, upper
    lower, upper = LAW.band(cells(forecast), np.full(5, 2.3))
    assert lower[:2].tolist() == [0, 0]
    assert upper[1] <= 1
    assert (np.diff((upper - lower)[1:]) > 0).all()
    assert np.isinf(LAW.band(cells(forecast), np.full(5, np.inf))[1]).all()


@pytest.mark.parametrize("less_sure", [{"spread": 1.0}, {"hops": 6.0}, {"rerouted": 0.3}, {"rerouted": 3.0}])
def test_intervals_are_wider_where_demand_is_less_sure(less_sure: dict[str, float]) -> None:
    usual = LAW.band(cells([50.0]), np.array([2.3]))
    unsure = LAW.band(cells([50.0], **less_sure), np.array([2.3]))
    assert unsure[1] - unsure[0] > usual[1] - usual[0]


def test_a_change_that_does_not_come_is_inside_if_all_of_it_is_in_doubt() -> None:
    """And the more is in doubt, the wider: no closure widens beyond use."""
    usual = 50.0
    for change in (0.06, 0.3, 3.0, 15.0):
        closed = cells([usual * change], rerouted=change)
        bands = [replace(LAW, closure=doubt).band(closed, np.array([1.0])) for doubt in (0.0, 0.5, 1.0, 2.0)]
        widths = [float(upper[0] - lower[0]) for lower, upper in bands]
        assert widths == sorted(widths) and widths[0] < widths[-1] < 1e7
        lower, upper = bands[2]
        assert lower[0] <= usual <= upper[0]
        scores = [float(replace(LAW, closure=doubt).score(closed, np.array([usual]))[0]) for doubt in (0.0, 0.5, 1.0)]
        assert scores == sorted(scores, reverse=True)


def test_the_law_that_counts_were_drawn_from_is_found() -> None:
    rng = np.random.default_rng(0)
    usual = np.exp(rng.normal(5, 1, 20_000))
    mean, dispersion = 0.9 * usual, 0.2
    count = rng.negative_binomial(1 / dispersion, 1 / (1 + dispersion * mean)).astype(np.float64)
    known = replace(cells(usual), spread=np.zeros(20_000))
    law = fit_counts(known, count, np.ones(20_000), closure=0.5)
    assert np.median(law.size(known) / mean) == pytest.approx(1, abs=0.03)
    p_value = np.exp(-law.score(known, count))
    for share in (0.05, 0.1, 0.5):
        assert (p_value <= share).mean() == pytest.approx(share, abs=0.02)


def test_gauges_have_bands_around_the_forecast() -> None:
    rng = np.random.default_rng(0)
    forecast = rng.uniform(20, 80, 5000)
    hops = rng.integers(1, 10, 5000).astype(np.float64)
    speed = forecast + rng.laplace(0, 1 + hops)
    law = fit_gauges(cells(forecast, hops=hops), speed, np.ones(5000))
    near, far = (law.size(cells([50.0], hops=float(h)))[0] for h in (1, 9))
    assert far > 2 * near
    lower, upper = law.band(cells(forecast, hops=hops), np.full(5000, np.log(10)))
    assert ((speed >= lower) & (speed <= upper)).mean() == pytest.approx(0.9, abs=0.02)
    assert GAUGE.score(cells([50.0]), np.array([50.0])) == 0


def test_numbers_of_a_law_are_checked() -> None:
    with raises(SettingsError, "mean"):
        CountLaw(10.0, (0.1, 0.5), (0.0,) * 5, 0.5)
    with raises(SettingsError, "dispersion"):
        CountLaw(10.0, (0.1, 0.5, 0.5), (0.0, float("nan"), 0, 0, 0), 0.5)
    with raises(SettingsError, "scale"):
        GaugeLaw(10.0, (0.0, 1.0))
