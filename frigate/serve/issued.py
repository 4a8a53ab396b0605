"""Forecasts as the service issues them: every process and every later request gets the same numbers from the store.

Values are rounded to 12 binary digits, an error of at most 0.013 %, and compressed.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

import numpy as np

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

    @property
    def issued_s(self) -> int:
        """The forecast uses readings before this time."""
        return self.forecast.at_s


def issue(city: ServedCity, made: Forecast, closures: list[Closure], *, now_s: float) -> IssuedForecast:
    """A forecast made just now."""
    hold = tuple(each for each in closures if any(map(each.active, made.times_s.tolist())))
    return IssuedForecast(city.forecast(made.at_s, rounded(made.values), made.notices), now_s, hold)


def store_issued(store: Store, city: ServedCity, issued: IssuedForecast, *, term: int | None = None) -> bool:
    """Returns False, and changes nothing, if there is already one for that time, or this term of the clock is over."""
    forecast = issued.forecast
    meta = {"closures": [asdict(each) for each in issued.closures], "notices": forecast.notices}
    body = pack(meta, {"values": forecast.values.astype(np.float32)})
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
        return IssuedForecast(city.forecast(issued_s, arrays["values"], meta["notices"]), made_s, closures)
    except (TypeError, ValueError) as error:
        LOG.warning("a stored forecast is damaged and left out", extra={"issued_s": issued_s, "error": repr(error)})
        return None
