"""Forecasts as the service issues them: every process and every later request gets the same numbers from the store.

Values are rounded to 12 binary digits, an error of at most 0.013 %, and compressed. Intervals are not stored: those of
any level follow from the values, what closed roads change, and the run's intervals, of which the version is stored.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.forecasting.result import Forecast
from frigate.pages.wire import rounded
from frigate.serve.city import ServedCity
from frigate.serve.packing import pack, unpack
from frigate.serve.store import Closure, Store

LOG = logging.getLogger("frigate.serve")


@dataclass(frozen=True)
class IssuedForecast:
    """A forecast of a served city, with what was known of its roads."""

    forecast: Forecast  # values as float32, rounded
    made_s: float
    closures: tuple[Closure, ...]  # those that hold at some step
    changes: NDArray[np.float32] | None = None  # [H,N] see `Forecaster.node_changes`; None: the roads are as usual
    intervals: str = ""  # version of the run's intervals; "": it had none

    @property
    def issued_s(self) -> int:
        """The forecast uses readings before this time."""
        return self.forecast.at_s


def issue(
    city: ServedCity,
    made: Forecast,
    closures: list[Closure],
    *,
    now_s: float,
    changes: NDArray[np.float64] | None = None,
    intervals: str = "",
) -> IssuedForecast:
    """A forecast made just now."""
    hold = tuple(each for each in closures if any(map(each.active, made.times_s.tolist())))
    rerouted = None if changes is None or (changes == 1).all() else rounded(changes)
    forecast = city.forecast(made.at_s, rounded(made.values), made.notices)
    return IssuedForecast(forecast, now_s, hold, rerouted, intervals)


def store_issued(store: Store, city: ServedCity, issued: IssuedForecast, *, term: int | None = None) -> bool:
    """Returns False, and changes nothing, if there is already one for that time, or this term of the clock is over."""
    forecast = issued.forecast
    meta = {
        "closures": [asdict(each) for each in issued.closures],
        "notices": forecast.notices,
        "intervals": issued.intervals,
    }
    arrays = {"values": forecast.values.astype(np.float32)}
    if issued.changes is not None:
        arrays["changes"] = issued.changes
    body = pack(meta, arrays)
    return store.add_forecast(issued.issued_s, made_s=issued.made_s, network=city.version, body=body, term=term)


def read_issued(store: Store, city: ServedCity, issued_s: int | None = None) -> IssuedForecast | None:
    """The forecast issued at that time, or the latest; None if it is not of this version of the network, or damaged."""
    row = store.forecast(city.version, issued_s)
    if row is None:
        return None
    issued_s, made_s, body = row
    shape = (city.horizon, city.network.num_nodes)
    found = unpack(body, f"forecast issued at {issued_s}", header=("closures", "notices"), values=shape)
    if found is None:
        return None
    meta, arrays = found
    try:
        closures = tuple(Closure(**each) for each in meta["closures"])
        changes = arrays.get("changes")
        if changes is not None and changes.shape != shape:
            raise ValueError(f"changes has the shape {changes.shape}, not {shape}")
        forecast = city.forecast(issued_s, arrays["values"], meta["notices"])
        return IssuedForecast(forecast, made_s, closures, changes, str(meta.get("intervals", "")))
    except (TypeError, ValueError) as error:
        LOG.warning("a stored forecast is damaged and left out", extra={"issued_s": issued_s, "error": repr(error)})
        return None
