"""Skill by place and GEH by volume are what counting place by place gives."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from frigate.evaluation.evaluate import DEMAND, evaluate, evaluate_forecaster, forecaster_of
from frigate.evaluation.metrics import VOLUMES, Scores, geh
from frigate.evaluation.places import node_geh, volume_classes
from tests.support.forecast_runs import small_city, small_run

H, N = 4, 3


def scores(*, step_s: int = 1800, quantity: str = "count") -> tuple[Scores, torch.Tensor, torch.Tensor]:
    made = Scores(horizon=H, num_nodes=N, step_s=step_s, quantity=quantity)
    rng = torch.Generator().manual_seed(0)
    truth = torch.tensor([10.0, 200.0, 2000.0]) * (1 + torch.rand(6, H, N, generator=rng))
    forecast = truth * (0.7 + 0.6 * torch.rand(6, H, N, generator=rng))
    observed = torch.rand(6, H, N, generator=rng) < 0.9
    made.add(forecast, truth, observed)
    return made, torch.where(observed, forecast, torch.nan), torch.where(observed, truth, torch.nan)


def test_hourly_counts_are_sorted_by_their_size() -> None:
    made, forecast, truth = scores()
    hourly = [x.reshape(6, 2, 2, N).sum(2) for x in (forecast, truth)]
    off = geh(*hourly)
    known = hourly[1].isfinite()
    found = {each.name: each for each in volume_classes(made, np.ones(N, bool))}
    assert list(found) == [VOLUMES[0], VOLUMES[1], VOLUMES[3]]
    assert sum(each.hours for each in found.values()) == int(known.sum())
    for name, node in ((VOLUMES[0], 0), (VOLUMES[1], 1), (VOLUMES[3], 2)):
        of_node = off[..., node][known[..., node]]
        assert found[name].hours == len(of_node)
        assert found[name].mean == pytest.approx(float(of_node.mean()))
        assert found[name].good == pytest.approx(100 * float((of_node < 5).double().mean()))
    assert [each.name for each in volume_classes(made, np.arange(N) == 1)] == [VOLUMES[1]]
    means = node_geh(made)
    assert means is not None
    np.testing.assert_allclose(means, torch.nanmean(torch.where(known, off, torch.nan).reshape(-1, N), 0).numpy(), 1e-5)
    assert made.hour_sums[0].sum() == int(known.sum())


def test_gauges_have_no_geh() -> None:
    made, _, _ = scores(quantity="speed")
    assert volume_classes(made, np.ones(N, bool)) == () and node_geh(made) is None


def test_skill_is_beside_the_best_simple_forecast_possible_there() -> None:
    run = small_run().on(small_city())
    forecaster = forecaster_of(run, "cpu")
    found = evaluate_forecaster(
        forecaster.predictor, run.city, run.split, forecaster.windows(), run.settings.task, name="Frigate"
    )
    without, there = found.skill
    assert (without.where, there.where) == ("without a sensor", "at sensors")
    simple = [row for row in found.rows if row.kind == "baseline" and row.name != DEMAND]
    unseen = {row.name: row.unseen.mae.value for row in simple if row.unseen is not None}
    seen = {row.name: row.at_sensors.mae.value for row in (*simple, *found.own_past) if row.at_sensors is not None}
    assert (without.baseline, there.baseline) == (min(unseen, key=unseen.__getitem__), min(seen, key=seen.__getitem__))
    assert set(seen) - set(unseen)  # a place's own past
    assert found.best_node_mae is not None
    for skill, nodes in ((without, run.split.unseen), (there, run.split.seen)):
        known = nodes & np.isfinite(found.best_node_mae) & (found.best_node_mae > 0)
        ratio = found.node_mae[known] / found.best_node_mae[known]
        assert skill.places == known.sum() > 0
        assert skill.better == pytest.approx(100 * (ratio < 1).mean())
        assert skill.middle == pytest.approx(np.median(ratio))
        assert f"{skill.better:.0f} % of {skill.places}" in skill.line()
    told = json.loads(json.dumps(found.to_json()))
    assert [each["baseline"] for each in told["skill"]] == [without.baseline, there.baseline]
    assert sum(each["hours"] for each in told["geh_by_volume"]["unseen"]) > 0
    assert found.volume_table()[0].keys() == {"vehicles an hour", "hourly counts", "GEH<5 %", "mean GEH"}


def test_intervals_of_higher_levels_hold_more_often() -> None:
    result = evaluate(small_run(), small_city(), stride=4, device="cpu")
    assert result.intervals is not None
    table = result.intervals.calibration
    assert [each.level for each in table] == sorted(each.level for each in table) and table[-1].level >= 90
    for kind in ("unseen", "at_sensors"):
        shares = [getattr(each, kind) for each in table]
        assert (np.diff(shares) >= 0).all() and shares[-1] > shares[0] + 20
    at_90 = next(each for each in table if each.level == 90)
    assert result.intervals.unseen is not None and result.intervals.at_sensors is not None
    assert at_90.unseen == pytest.approx(result.intervals.unseen.share.value, abs=0.2)
    assert at_90.at_sensors == pytest.approx(result.intervals.at_sensors.share.value, abs=0.2)
    bare = evaluate(replace(small_run(), intervals=None), small_city(), stride=8, device="cpu")
    assert bare.intervals is None and bare.skill
