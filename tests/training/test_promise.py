"""What is promised at sensors, and when later readings fall out of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frigate.errors import SettingsError
from frigate.training.promise import LEAST_CELLS, Drift, Promise, Tally
from tests.support.errors import raises

SENSORS, HOURS = 20, 24


def day(seed: int, *, level: float = 1.0, noise: float = 1.0, sensors: int = SENSORS) -> Tally:
    """Forecasts of 10 to 100 vehicles, with the interval that holds 90 % of Poisson counts; the truth may be others."""
    rng = np.random.default_rng(seed)
    place = np.repeat(np.arange(sensors), HOURS)
    mean = np.repeat(np.linspace(10, 100, sensors), HOURS)
    truth = level * mean + noise * (rng.poisson(mean) - mean)
    reach = 1.645 * np.sqrt(mean)
    return Tally.of(mean, truth, mean - reach, mean + reach, place, sensors)


def promised() -> Promise:
    made = Promise.of([day(seed) for seed in range(5)])
    assert made is not None
    return made


def test_a_tally_is_what_counting_cell_by_cell_gives() -> None:
    forecast, truth = np.array([10.0, 20, 5, 7]), np.array([12.0, 26, 5, 9])
    lower, upper = np.array([8.0, 15, 4, np.nan]), np.array([13.0, 25, 6, np.nan])
    tally = Tally.of(forecast, truth, lower, upper, np.array([0, 1, 1, 2]), 4)
    assert tally.cells.tolist() == [1, 2, 0, 0] and tally.places == 2  # the last cell has no interval
    assert tally.relative_error == pytest.approx((2 + 6 + 0) / (5 + 10 + 2))
    assert tally.coverage == pytest.approx(100 * 2 / 3)
    assert tally.bias == pytest.approx(1.0)  # 2 and 6, each of one sign
    twice = tally + tally
    assert twice.relative_error == tally.relative_error and twice.cells.sum() == 6


def test_more_days_of_the_same_are_as_promised() -> None:
    for seed in range(10, 30):
        found = Drift.of(promised(), day(seed))
        assert found is not None and found.told == () and not found.retraining_pays
        assert found.error == pytest.approx(1, abs=0.15) and "as promised" in found.line()


@pytest.mark.parametrize("level", [0.4, 2.0])
def test_another_level_is_told_and_training_pays(level: float) -> None:
    found = Drift.of(promised(), day(10, level=level))
    assert found is not None and found.larger_error and found.lower_coverage and found.retraining_pays
    assert "Train again" in found.line() and len(found.told) == 3 and found.bias > 0.9


def test_levels_that_move_up_here_and_down_there_are_no_noise() -> None:
    up, down = day(10, level=1.6), day(11, level=0.4)
    every_other = np.arange(SENSORS) % 2 == 0
    mixed = Tally(*(np.where(every_other, a, b) for a, b in zip(vars(up).values(), vars(down).values(), strict=True)))
    assert abs(mixed.signed.sum()) < 0.4 * mixed.error.sum()
    found = Drift.of(promised(), mixed)
    assert found is not None and found.bias > 0.9 and found.retraining_pays


def test_noise_without_a_sign_is_told_but_training_does_not_pay() -> None:
    found = Drift.of(promised(), day(10, noise=3.0))
    assert found is not None and found.larger_error and found.bias < 0.5 and not found.retraining_pays
    assert "frigate check" in found.told[-1]


def test_days_that_differ_among_themselves_promise_less() -> None:
    rough = Promise.of([day(seed, level=level) for seed, level in enumerate((0.8, 1.0, 1.2, 1.3))])
    assert rough is not None
    assert rough.error_limit / rough.error > promised().error_limit / promised().error
    assert rough.coverage - rough.coverage_limit > promised().coverage - promised().coverage_limit


def test_one_broken_sensor_is_no_drift() -> None:
    tally, broken = day(10), day(11, level=10.0)
    one = np.arange(SENSORS) == 0
    mixed = Tally(*(np.where(one, b, a) for a, b in zip(vars(tally).values(), vars(broken).values(), strict=True)))
    found = Drift.of(promised(), mixed)
    assert found is not None and not found.lower_coverage and not found.larger_error


def test_nothing_is_said_of_too_little() -> None:
    few = day(0, sensors=2)
    assert Promise.of([few]) is None and Drift.of(promised(), few) is None
    assert Drift.of(None, day(0)) is None and Promise.of([]) is None
    short = Tally(*(each * (LEAST_CELLS - 1) / (SENSORS * HOURS) for each in vars(day(0)).values()))
    assert Drift.of(promised(), short) is None


def test_what_is_stored_is_checked() -> None:
    made = promised()
    assert Promise.from_json(dict(vars(made))) == made
    with raises(SettingsError, "promise", "coverage_limit"):
        Promise.from_json({"error": 1.0})
    with raises(SettingsError, "error"):
        replace(made, error=-1.0)
