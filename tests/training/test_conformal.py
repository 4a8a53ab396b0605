"""Scores of sensors bound those of a new place as often as they say; crepes, and simulations, agree."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from crepes import ConformalRegressor

from frigate.training.conformal import KEPT_SCORES, ScoreTable, highest_level, least_sensors


def table(scores: np.ndarray, sensor: np.ndarray, group: np.ndarray | None = None, groups: int = 1) -> ScoreTable:
    return ScoreTable.of(scores, sensor, np.zeros(len(scores), np.int64) if group is None else group, groups)


@pytest.mark.parametrize("sensors", [2, 3, 7, 8, 15, 16, 57, 100])
@pytest.mark.parametrize("level", [50, 75, 87.5, 93.75])  # whole in binary: crepes rounds others up by a sensor
def test_one_score_a_sensor_is_the_usual_conformal_quantile(sensors: int, level: float) -> None:
    """Against crepes, which gives an infinite interval with too few examples."""
    scores = np.random.default_rng(sensors).gamma(2.0, size=sensors)
    oracle = ConformalRegressor()
    oracle.fit(scores)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that they are too few
        ((_, expected),) = oracle.predict_int(np.zeros(1), confidence=level / 100)
    (found,) = table(scores, np.arange(sensors)).quantile(level)
    assert found == pytest.approx(expected)
    assert np.isinf(found) == (sensors < least_sensors(level))


def test_sensors_count_and_not_their_hours() -> None:
    rng = np.random.default_rng(0)
    scores = rng.gamma(2.0, size=12)
    once = table(scores, np.arange(12))
    often = table(np.repeat(scores, 500), np.repeat(np.arange(12), 500))
    uneven = np.array([1, 900, 3, 1, 1, 40, 2, 1, 1, 7, 1, 500])
    assert once.quantile(90) == often.quantile(90)
    assert once.quantile(90) == table(np.repeat(scores, uneven), np.repeat(np.arange(12), uneven)).quantile(90)


@pytest.mark.parametrize("sensors", [9, 30])
def test_a_new_place_is_covered_as_often_as_promised(sensors: int) -> None:
    """Places whose errors differ far more than their hours: what their hours alone say covers far fewer."""
    rng = np.random.default_rng(sensors)
    inside, pooled = [], []
    for _ in range(1500):
        place = np.exp(rng.normal(0, 1.2, sensors + 1))  # the scale of each place's errors
        scores = place[:, None] * np.exp(rng.normal(0, 0.2, (sensors + 1, 8)))
        known = scores[:-1].ravel()
        (reach,) = table(known, np.repeat(np.arange(sensors), 8)).quantile(90)
        inside.append((scores[-1] <= reach).mean())
        pooled.append((scores[-1] <= np.quantile(known, 0.9)).mean())
    assert 0.9 - 3 * np.std(inside) / 1500**0.5 <= np.mean(inside) <= 0.9 + 1.5 / sensors
    assert np.mean(inside) > np.mean(pooled)


def test_higher_levels_reach_further() -> None:
    rng = np.random.default_rng(1)
    sensor = rng.integers(0, 40, 3000)
    found = table(rng.gamma(2.0, size=3000), sensor, sensor % 3, 3)
    reach = np.array([found.quantile(level) for level in (1, 10, 50, 80, 90, 95, 97)])
    assert (np.diff(reach, axis=0) >= 0).all()
    assert np.isfinite(reach).all()


def test_a_small_group_borrows_and_an_empty_one_is_as_all() -> None:
    rng = np.random.default_rng(2)
    sensor = np.arange(43)
    group = np.where(sensor < 40, 0, 1)  # 3 sensors with far larger scores; none in the third
    scores = rng.random(43) + 5 * group
    found = table(scores, sensor, group, 3)
    usual, small, empty = found.quantile(90)
    assert found.borrows(90).tolist() == [False, True, True]
    assert usual < small < 6.1
    assert np.isfinite(empty)
    alone = table(scores[:8], sensor[:8], group[:8], 2)
    assert np.isinf(alone.quantile(90)).all()
    assert highest_level(8) == pytest.approx(100 * 8 / 9)
    assert np.isfinite(alone.quantile(88)[0])


def test_a_summary_of_many_scores_errs_on_the_safe_side() -> None:
    rng = np.random.default_rng(3)
    scores = rng.gamma(1.0, size=20_000)
    sensor = rng.integers(0, 400, 20_000)
    kept = table(scores, sensor)
    assert len(kept.score) <= KEPT_SCORES + 1
    for level in (50, 90, 99):
        (reach,) = kept.quantile(level)
        weight = 1 / np.bincount(sensor)[sensor] / 401
        exact = np.sort(scores)[np.searchsorted(np.cumsum(weight[np.argsort(scores)]), level / 100)]
        assert exact * 0.999 <= reach <= exact * 1.04
