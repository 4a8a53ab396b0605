"""Evaluation since a date says whether the run is still as good as it was: not of the same traffic, but of twice it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from frigate.city.city import City
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import evaluate
from frigate.training.promise import Drift
from tests.support.errors import raises
from tests.support.service import Town, train_town


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return train_town(tmp_path_factory.mktemp("town"))


def doubled(city: City, since: int) -> City:
    """With twice the traffic from a snapshot on."""
    stream = city.stream
    values = np.array(stream.values)
    values[since:] *= 2
    return replace(city, stream=replace(stream, values=values))


def drift_of(town: Town, city: City, since: str) -> Drift:
    result = evaluate(town.run, city, since=since, stride=4, device="cpu")
    assert result.intervals is not None and result.intervals.drift is not None
    assert json.loads(json.dumps(result.to_json()))["intervals"]["drift"]["sensors"] == int(town.run.split.seen.sum())
    return result.intervals.drift


def test_the_same_traffic_is_as_promised_and_twice_the_traffic_is_told(town: Town) -> None:
    stream = town.city.stream
    at = town.run.split.validate[1] - 12
    since = stream.local_time(int(stream.times_s[at]))
    honest = drift_of(town, town.city, since)
    assert honest.told == () and not honest.retraining_pays
    twice = drift_of(town, doubled(town.city, at), since)
    assert twice.lower_coverage and twice.retraining_pays and "Train again" in twice.line()
    assert twice.error > 1.5 * honest.error


def test_since_reaches_to_the_end_of_the_record(town: Town) -> None:
    stream = town.city.stream
    at = stream.num_snapshots - 30
    result = evaluate(town.run, town.city, since=stream.local_time(int(stream.times_s[at])), stride=8, device="cpu")
    assert result.start == stream.local_time(int(stream.times_s[at]))
    assert result.end == stream.local_time(stream.end_s)
    with raises(SettingsError, "since", "record ends at"):
        evaluate(town.run, town.city, since="2099-01-01", device="cpu")
    with raises(SettingsError, 'since "yesterday"'):
        evaluate(town.run, town.city, since="yesterday", device="cpu")
    with raises(SettingsError, "not both"):
        evaluate(town.run, town.city, since="2024-01-01", test="2024-01-01", device="cpu")
