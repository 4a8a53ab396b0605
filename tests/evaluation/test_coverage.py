"""How often intervals hold is what counting them one by one says."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import frigate as fg
from frigate.evaluation.coverage import MAX_WINDOWS, score_intervals
from frigate.evaluation.evaluate import evaluate, forecaster_of
from tests.support.service import HORIZON, PAST, STEP_S, Town, train_town


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return train_town(tmp_path_factory.mktemp("town"))


def test_coverage_is_that_of_forecasts_one_by_one(town: Town) -> None:
    on_city = town.run.on(town.city)
    first, _ = on_city.split.test
    on_city = replace(on_city, split=replace(on_city.split, test=(first, first + PAST + HORIZON + 1)))  # two windows
    found = score_intervals(forecaster_of(on_city, "cpu"), on_city, level=80)
    assert found.windows == 2 <= MAX_WINDOWS
    stream = town.city.stream
    inside, score = [], []
    for snapshot in (first + PAST - 1, first + PAST):
        at = int(stream.times_s[snapshot]) + STEP_S
        made = fg.forecast(town.run, stream=town.city, at=at, level=80, device="cpu")
        assert made.lower is not None and made.upper is not None
        ahead = slice(snapshot + 1, snapshot + 1 + HORIZON)
        truth, known = stream.values[ahead], stream.observed[ahead] & on_city.split.unseen
        hit = (made.lower <= truth) & (truth <= made.upper)
        away = np.where(hit, 0, np.minimum(abs(truth - made.lower), abs(truth - made.upper)))
        inside.append(hit[known])
        score.append((made.upper - made.lower + 10 * away)[known])
    assert found.unseen is not None and found.at_sensors is not None
    assert found.unseen.share.value == pytest.approx(100 * np.concatenate(inside).mean())
    assert found.unseen.score == pytest.approx(np.concatenate(score).mean())
    assert found.unseen.share.low <= found.unseen.share.value <= found.unseen.share.high
    assert found.unseen.places == int((stream.sensors & on_city.split.unseen).sum())


def test_an_evaluation_has_them_if_the_run_has(town: Town) -> None:
    result = evaluate(town.run, town.city, stride=8, device="cpu")
    assert result.intervals is not None
    assert json.loads(json.dumps(result.to_json()))["intervals"]["level"] == 90
    assert "90 % intervals" in result.intervals.line()
    bare = evaluate(replace(town.run, intervals=None), town.city, stride=8, device="cpu")
    assert bare.intervals is None and bare.to_json()["intervals"] is None
