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
from frigate.serve.issued import Issued

Floats = NDArray[np.float32]


class NoForecastError(ServiceError):
    """The service has just started and has no forecast yet."""


@dataclass(frozen=True)
class Shown:
    """What the map shows. T past snapshots, H steps ahead, N nodes, E usual roads. NaN means unknown."""

    issued: Issued
    past_times_s: NDArray[np.int64]  # [T]
    past: Floats  # [T,N] readings
    foretold: Floats  # [T,N] the one-step-ahead forecasts for these snapshots
    road_past: Floats  # [T,E] from readings, or from `foretold` where there is none
    road_forecast: Floats  # [H,E]


class Latest:
    """The latest forecast of a store. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._shown: Shown | None = None
        self._first_steps: dict[int, Floats | None] = {}  # [N] by the time of the forecast

    def get(self) -> Shown:
        """The latest forecast; NoForecastError if there is none yet."""
        issued_s = self._engine.store.state()[0]
        with self._lock:
            if self._shown is None or self._shown.issued.issued_s != issued_s:
                self._shown = self._read()
            return self._shown

    def _read(self) -> Shown:
        engine, city = self._engine, self._engine.city
        stored = engine.store.forecast()
        if stored is None or stored.network != city.version:
            raise NoForecastError("no forecast yet. The first is issued at the end of the current step")
        issued = Issued.of(stored)
        times_s, past = engine.window(issued.issued_s)
        foretold = self._foretold(times_s)
        closures = engine.store.closures(int(times_s[0]))
        ends_s = [*times_s[1:].tolist(), issued.issued_s]
        networks = [engine.network_at(end_s, closures) for end_s in ends_s]
        nodes = np.where(np.isfinite(past), past, foretold)
        rows = [engine.road_flow(times_s[[k]], nodes[[k]], network)[0] for k, network in enumerate(networks)]
        return Shown(
            issued=issued,
            past_times_s=times_s,
            past=past,
            foretold=foretold,
            road_past=np.stack(rows),
            road_forecast=engine.road_flow(issued.times_s, issued.values, engine.network_of(issued)),
        )

    def _foretold(self, times_s: NDArray[np.int64]) -> Floats:
        """[T,N] the first step of the forecasts issued at these times."""
        city, store = self._engine.city, self._engine.store
        known = self._first_steps
        self._first_steps = {}
        for time_s in times_s.tolist():
            if known.get(time_s) is None:
                stored = store.forecast(time_s)
                fits = stored is not None and stored.network == city.version
                known[time_s] = Issued.of(stored).values[0].copy() if stored is not None and fits else None
            self._first_steps[time_s] = known[time_s]
        nothing = np.full(city.network.num_nodes, np.nan, np.float32)
        rows = [self._first_steps[time_s] for time_s in times_s.tolist()]
        return np.stack([nothing if row is None else row for row in rows])
