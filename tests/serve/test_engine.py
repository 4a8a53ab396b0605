"""What the service says beside its forecasts: who drives on a road now, what a node leans on, how good it was."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from numpy.typing import NDArray

from frigate.demand.flows import trips_through
from frigate.pages.trips import trips_meta
from frigate.serve.api.whatif import TRIP_ENDS
from frigate.serve.engine import SUPPORTS, Engine
from frigate.serve.issued import IssuedForecast, issue
from frigate.serve.packing import unpack
from frigate.serve.scoring import score_snapshot
from frigate.serve.store import Closure, open_store
from tests.support.service import HORIZON, STEP_S, Town


@pytest.fixture(scope="module")
def engine(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    store = open_store(str(tmp_path_factory.mktemp("engine") / "store.db"))
    yield Engine(town.run, town.served, store, device="cpu")
    store.close()


def test_trips_on_a_road_are_those_of_the_hour(engine: Engine) -> None:
    """Of a weekday or a weekend, in the city's time."""
    demand = engine.live.demand
    assert demand is not None
    row = int(np.argmax(demand.road_flow[8]))
    road = next(ends for ends, at in engine.city.road_of.items() if at == row)
    through = trips_through(demand, road)
    said = {}
    for weekday, hour in ((0, 3), (0, 8), (5, 17)):
        local = datetime(2024, 3, 4, hour, 59, tzinfo=ZoneInfo(engine.city.timezone)) + timedelta(days=weekday)
        found = engine.select_link(road, now_s=int(local.timestamp()))
        assert found is not None
        meta = trips_meta(found.through, demand.network, hour=found.hour, ends=TRIP_ENDS)
        assert meta["vehicles_per_hour"] == pytest.approx(through.road_flow[24 * (weekday >= 5) + hour, row], abs=0.01)
        said[weekday, hour] = meta["vehicles_per_hour"]
        for ends, daily, at in (
            (meta["from"], through.starting, demand.network.senders),
            (meta["to"], through.ending, demand.network.receivers),
        ):
            shares = [end["share"] for end in ends]
            assert 0 < len(shares) <= TRIP_ENDS and shares == sorted(shares, reverse=True)
            node = engine.city.row_of[ends[0]["node"]]
            assert shares[0] == pytest.approx(daily[at == node].sum() / daily.sum(), abs=1e-5)
    assert len(set(said.values())) == 3


def test_a_node_leans_on_the_sensors_that_most_of_its_vehicles_pass(engine: Engine) -> None:
    """Not on itself, which is known already."""
    city = engine.city
    demand = engine.live.demand
    assert demand is not None
    for row in (int(np.flatnonzero(city.sensors)[0]), int(np.flatnonzero(~city.sensors)[0])):
        found = engine.main_sensors(row)
        shares = dict(
            zip(demand.sensor_shares.sensor[row].tolist(), demand.sensor_shares.share[row].tolist(), strict=True)
        )
        nodes = [node for node, _ in found]
        assert 0 < len(found) <= SUPPORTS
        assert row not in nodes and city.sensors[nodes].all()
        largest = sorted((n for n, share in shares.items() if share > 0 and n != row), key=lambda n: -shares[n])
        assert nodes == largest[:SUPPORTS]
        assert all(away_m > 0 for _, away_m in found)


def issued(town: Town, issued_s: int, values: NDArray[np.float32]) -> IssuedForecast:
    return IssuedForecast(town.served.forecast(issued_s, values, ()), 0.0, ())


def test_a_forecast_names_the_closures_that_hold_at_some_step_of_it(town: Town) -> None:
    begin_s = 1_709_510_400
    made = town.served.forecast(begin_s, np.ones((HORIZON, town.served.network.num_nodes), np.float32), ())
    end_s = begin_s + HORIZON * STEP_S
    periods = {
        "all along": (begin_s - 1, None),
        "until the second step": (begin_s - 1, begin_s + STEP_S),
        "in the last step": (end_s - STEP_S, end_s),
        "before": (begin_s - 900, begin_s),
        "after": (end_s, None),
    }
    closures = [Closure(name, "a", "b", first_s, stop_s, 0) for name, (first_s, stop_s) in periods.items()]
    named = [each.id for each in issue(town.served, made, closures, now_s=begin_s).closures]
    assert named == ["all along", "until the second step", "in the last step"]


def test_only_nodes_with_a_reading_then_and_before_are_judged(town: Town) -> None:
    """By hand: the error of each forecast of a snapshot, and that of the last reading before it was issued."""
    N = town.served.network.num_nodes
    rng = np.random.default_rng(0)
    S, k = 5, 4
    times_s = 1_709_510_400 + STEP_S * np.arange(S)
    values = rng.uniform(0, 50, (S, N)).astype(np.float32)
    values[rng.random((S, N)) < 0.3] = np.nan
    forecasts = rng.uniform(0, 50, (2, HORIZON, N)).astype(np.float32)
    forecasts[0, :, :7] = np.nan
    made = {int(times_s[k]): issued(town, int(times_s[k]), forecasts[0])}
    made[int(times_s[k - 2])] = issued(town, int(times_s[k - 2]), forecasts[1])
    ends = np.sort(rng.uniform(0, 50, (2, HORIZON, N)), axis=0)
    ends[:, :, 11:20] = np.nan
    bands = dict.fromkeys(made, (ends[0], ends[1]))
    body = score_snapshot(k, times_s, values, made, bands)
    assert body is not None
    found = unpack(body, "scores", row=(-1,), error=(-1,), count=(-1,), steps=(-1, 3))
    assert found is not None
    arrays = found[1]
    steps = np.zeros((k, 3))
    error, count = np.zeros(N), np.zeros(N, int)
    tally = np.zeros((5, N))
    for ahead, forecast in ((0, forecasts[0]), (2, forecasts[1])):
        for node in range(N):
            last = values[k - ahead - 1, node]
            off = abs(forecast[ahead, node] - values[k, node])
            naive = abs(last - values[k, node])
            if np.isfinite([off, naive]).all():
                steps[ahead] += off, naive, 1
                lower, upper = ends[:, ahead, node]
                if np.isfinite(lower):
                    truth = values[k, node]
                    signed = truth - forecast[ahead, node]
                    tally[:, node] += 1, off, upper - lower, signed, lower <= truth <= upper
                error[node] += off
                count[node] += 1
    np.testing.assert_allclose(arrays["steps"], steps, rtol=1e-5)
    np.testing.assert_array_equal(arrays["row"], np.flatnonzero(count))
    np.testing.assert_allclose(arrays["error"], error[count > 0], rtol=1e-5)
    np.testing.assert_array_equal(arrays["count"], count[count > 0])
    np.testing.assert_allclose(arrays["tally"], tally[:, count > 0], rtol=1e-4, atol=1e-4)
    assert 0 < steps[0, 2] < N and steps[1].tolist() == [0, 0, 0]
    assert score_snapshot(k, times_s, values, {}) is None
