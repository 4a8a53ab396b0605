"""The live service tells when forecasts at sensors are worse than promised, and not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from frigate.pages.wire import decode
from frigate.serve.store import Store
from tests.support.service import Served, Town, serve_town

FIRST = 120
STEPS = 16


def run_steps(served: Served, factor: float) -> None:
    """The recorded readings of the next steps come in, times a factor."""
    for snapshot in range(FIRST + 1, FIRST + 1 + STEPS):
        rows = served.town.reading_rows(snapshot, snapshot + 1)
        served.service.store.add_readings([row._replace(value=factor * row.value) for row in rows], 0)
        served.step(snapshot, readings=False)


def metric(served: Served, name: str) -> float:
    lines = served.client.get("/metrics").text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return float(value)


def test_twice_the_traffic_is_told_everywhere_and_the_same_is_not(
    town: Town, reopen: Callable[[], Store], store: Store
) -> None:
    with serve_town(town, store, first=FIRST) as served:
        assert served.client.get("/v1/accuracy").json()["drift"] is None  # nothing to compare yet
        assert metric(served, "frigate_drift") == 0
        assert "frigate_sensor_error_ratio" not in served.client.get("/metrics").text
        run_steps(served, 1.0)
        drift = served.client.get("/v1/accuracy").json()["drift"]
        assert drift["told"] == [] and not drift["retraining_pays"] and drift["count"] > 100
        assert drift["sensors"] == int(served.service.city.sensors.sum())
        assert metric(served, "frigate_drift") == metric(served, "frigate_retraining_pays") == 0
        honest = drift["error"]
        stream = town.city.stream
        rows = served.service.city.sensors
        assert np.isfinite(stream.values[FIRST:, rows]).all()
        end = FIRST + STEPS
        for snapshot in range(end + 1, end + 1 + STEPS):
            readings = town.reading_rows(snapshot, snapshot + 1)
            store.add_readings([row._replace(value=2 * row.value) for row in readings], 0)
            served.step(snapshot, readings=False)
        drift = served.client.get("/v1/accuracy").json()["drift"]
        assert served.service.known_drift == served.service.drift()
        assert drift["error"] > honest and drift["retraining_pays"] and "Train again" in drift["told"][-1]
        assert metric(served, "frigate_drift") == metric(served, "frigate_retraining_pays") == 1
        assert metric(served, "frigate_sensor_coverage_percent") < drift["coverage_limit"]
        meta, _ = decode(served.client.get("/v1/forecast.bin").content)
        assert meta["notices"][-len(drift["told"]) :] == drift["told"]


def test_a_run_without_a_promise_says_nothing(town: Town, store: Store) -> None:
    with serve_town(replace(town, run=replace(town.run, intervals=None)), store, first=FIRST) as served:
        run_steps(served, 3.0)
        assert served.client.get("/v1/accuracy").json()["drift"] is None
