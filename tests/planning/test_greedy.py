"""The choice of sites: lazy evaluation against all gains, greedy against the best of all choices, money, giving up."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from frigate.planning.greedy import choose, expected_error, gains, give_up
from frigate.planning.uncertainty import Knowledge

ERROR = 1e-3
NONE = np.zeros(0, np.int64)


def random_knowledge(seed: int, points: int = 12, sites: int = 9, spread: float = 0.15) -> Knowledge:
    """Places on a plane that depend on each other as far as they are near."""
    rng = np.random.default_rng(seed)
    place = rng.random((points, 2))
    away = np.linalg.norm(place[:, None] - place, axis=-1)
    scale = rng.uniform(0.5, 1.5, points)
    whole = np.outer(scale, scale) * np.exp(-away / spread) + 0.05 * np.eye(points)
    site = rng.permutation(points)[:sites]
    return Knowledge(site, whole[:, site].astype(np.float32), np.zeros((points, 0), np.float32), np.diag(whole).copy())


def weights_of(seed: int, points: int = 12) -> NDArray[np.float64]:
    return np.random.default_rng(seed + 1000).uniform(0.1, 3, points)


def pick(known: Knowledge, weights: NDArray[np.float64], budget: float, **more: object) -> list[int]:
    options = {"costs": np.ones(len(known.site)), "forced": NONE, "error": ERROR, **more}
    steps, after = choose(known, weights, np.arange(len(known.site)), budget=budget, **options)  # type: ignore[arg-type]
    for step in steps:
        assert step.gain == pytest.approx(step.lowered.sum(), rel=1e-4)
    if steps:
        assert steps[-1].error == pytest.approx(expected_error(after, weights))
    return [step.site for step in steps]


@pytest.mark.parametrize("seed", range(5))
def test_lazy_evaluation_chooses_as_if_all_gains_were_computed(seed: int) -> None:
    known = random_knowledge(seed, points=90, sites=80)
    weights = weights_of(seed, 90)
    chosen = pick(known, weights, 12)
    left = list(range(80))
    for site in chosen:
        gain = gains(known, weights, np.array(left), ERROR)
        assert gain[left.index(site)] == pytest.approx(gain.max(), rel=1e-6)
        left.remove(site)
        known = known.after(site, ERROR)


def test_greedy_is_nearly_as_good_as_the_best_of_all_choices() -> None:
    ratios = []
    for seed in range(30):
        known = random_knowledge(seed)
        weights = weights_of(seed)

        def gain_of(sites: tuple[int, ...], known: Knowledge = known, weights: NDArray[np.float64] = weights) -> float:
            return expected_error(known, weights) - expected_error(known.after_all(np.array(sites), ERROR), weights)

        best = max(gain_of(sites) for sites in combinations(range(9), 3))
        ratios.append(gain_of(tuple(pick(known, weights, 3))) / best)
    assert min(ratios) > 0.95 and np.mean(ratios) > 0.995


def test_gains_fall_as_more_is_counted() -> None:
    known = random_knowledge(1, points=60, sites=50)
    weights = weights_of(1, 60)
    steps, _ = choose(known, weights, np.arange(50), budget=20, costs=np.ones(50), forced=NONE, error=ERROR)
    gain = [step.gain for step in steps]
    assert all(b <= a * (1 + 1e-6) for a, b in pairwise(gain))
    errors = [expected_error(known, weights), *(step.error for step in steps)]
    np.testing.assert_allclose(-np.diff(errors), gain, rtol=1e-4)


def test_money_buys_what_is_worth_it() -> None:
    known = random_knowledge(2)
    weights = weights_of(2)
    (first,) = pick(known, weights, 1)
    costs = np.ones(9)
    costs[first] = 100.0
    assert first not in pick(known, weights, 5, costs=costs)
    chosen = pick(known, weights, 108, costs=costs)
    assert len(chosen) == 9 and costs[chosen].sum() == 108
    assert pick(known, weights, 0.5, costs=costs) == []


def test_cheap_sites_do_not_use_up_the_money_for_one_that_is_worth_more() -> None:
    variance = np.array([100.0, 0.1, 0.1])
    site = np.arange(3)
    known = Knowledge(site, np.diag(variance).astype(np.float32), np.zeros((3, 0), np.float32), variance)
    costs = np.array([1000.0, 1.0, 1.0])
    assert pick(known, np.ones(3), 1000, costs=costs) == [0]
    assert sorted(pick(known, np.ones(3), 999, costs=costs)) == [1, 2]


def test_forced_sites_come_first_and_are_paid() -> None:
    known = random_knowledge(3)
    weights = weights_of(3)
    free = pick(known, weights, 3)
    worst = np.array([site for site in range(9) if site not in free][:2])
    chosen = pick(known, weights, 3, forced=worst)
    assert set(chosen[:2]) == set(worst.tolist()) and len(chosen) == 3


def test_a_rough_count_tells_less() -> None:
    known = random_knowledge(4)
    weights = weights_of(4)
    exact, rough = (gains(known, weights, np.arange(9), error) for error in (1e-4, 0.2))
    assert (rough < exact).all() and (rough > 0).all()


def test_sensors_are_given_up_as_if_they_had_never_been() -> None:
    known = random_knowledge(5)
    weights = weights_of(5)
    sensors = np.array([0, 2, 3, 5, 8])
    kept = sensors.tolist()
    before = expected_error(known.after_all(sensors, ERROR), weights)
    for removal in give_up(known, weights, sensors, count=3, error=ERROR):
        losses = {}
        for each in kept:
            others = np.array([site for site in kept if site != each])
            losses[each] = expected_error(known.after_all(others, ERROR), weights) - before
        site = int(sensors[removal.sensor])
        assert site == min(losses, key=lambda each: losses[each])
        assert removal.loss == pytest.approx(losses[site], rel=1e-2)
        before += losses[site]
        kept.remove(site)
