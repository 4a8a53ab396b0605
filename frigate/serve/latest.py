"""The latest forecast as the map shows it: with the readings before it, their earlier forecasts, and road flows.

Built once per forecast in each process. All of it comes from the store, so every process shows the same.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.errors import ServiceError
from frigate.serve.engine import Engine
from frigate.serve.issued import IssuedForecast, read_issued

Floats = NDArray[np.float32]


class NoForecastError(ServiceError):
    """The service has just started and has no forecast yet."""


@dataclass(frozen=True)
class LatestForecast:
    """The latest forecast, with the hours before it. T past snapshots, H steps ahead, N nodes, E usual roads.

    NaN means unknown.
    """

    issued: IssuedForecast
    past_times_s: NDArray[np.int64]  # [T]
    past: Floats  # [T,N] readings
    past_forecast: Floats  # [T,N] the one-step-ahead forecasts for these snapshots
    road_past: Floats  # [T,E] from readings, or from `past_forecast` where there is none
    road_forecast: Floats  # [H,E]


class Latest:
    """The latest forecast of a store. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._latest: LatestForecast | None = None
        self._first_steps: dict[int, Floats | None] = {}  # [N] by the time of the forecast

    def get(self) -> LatestForecast:
        """The latest forecast; NoForecastError if there is none yet."""
        issued_s = self._engine.store.state()[0]
        with self._lock:
            if self._latest is None or self._latest.issued.issued_s != issued_s:
                self._latest = self._read()
            return self._latest

    def _read(self) -> LatestForecast:
        engine = self._engine
        city = self._engine.city
        issued = read_issued(engine.store, city)
        if issued is None:
            raise NoForecastError("no forecast yet. The first is issued at the end of the current step")
        times_s, past = engine.window(issued.issued_s)
        past_forecast = self._past_forecast(times_s)
        closures = engine.store.closures(int(times_s[0]))
        nodes = np.where(np.isfinite(past), past, past_forecast)
        return LatestForecast(
            issued=issued,
            past_times_s=times_s,
            past=past,
            past_forecast=past_forecast,
            road_past=engine.road_flow(times_s, nodes, closures),
            road_forecast=engine.road_flow(issued.forecast.times_s, issued.forecast.values, issued.closures),
        )

    def _past_forecast(self, times_s: NDArray[np.int64]) -> Floats:
        """[T,N] the first step of the forecasts issued at these times."""
        city = self._engine.city
        store = self._engine.store
        known = self._first_steps
        self._first_steps = {}
        for time_s in times_s.tolist():
            if known.get(time_s) is None:
                issued = read_issued(store, city, time_s)
                known[time_s] = None if issued is None else issued.forecast.values[0].copy()
            self._first_steps[time_s] = known[time_s]
        nothing = np.full(city.network.num_nodes, np.nan, np.float32)
        rows = [self._first_steps[time_s] for time_s in times_s.tolist()]
        return np.stack([nothing if row is None else row for row in rows])
