"""A forecast as it is issued and stored: every process and every later request gets the same numbers.

Values are rounded to 12 binary digits, an error of at most 0.013 %, and compressed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from frigate.forecasting.result import Forecast
from frigate.serve.city import ServedCity
from frigate.serve.packing import pack, unpack
from frigate.serve.store import Closure, StoredForecast


@dataclass(frozen=True)
class Issued:
    """A forecast for a served city."""

    forecast: Forecast  # values as float32, rounded
    made_s: float
    version: str  # of the network
    closures: tuple[Closure, ...]  # those that hold at some step

    @property
    def issued_s(self) -> int:
        """The forecast uses readings before this time."""
        return self.forecast.at_s

    def stored(self) -> StoredForecast:
        forecast = self.forecast
        closures = [asdict(closure) for closure in self.closures]
        meta = {"times_s": forecast.times_s.tolist(), "closures": closures, "notices": forecast.notices}
        body = pack(meta, {"values": forecast.values.astype(np.float32)})
        return StoredForecast(self.issued_s, self.made_s, self.version, body)

    @staticmethod
    def of(stored: StoredForecast, city: ServedCity) -> Issued | None:
        """None if it was made for another version of the city's network, or is damaged."""
        if stored.network != city.version:
            return None
        what = f"forecast issued at {stored.issued_s}"
        shape = (-1, city.network.num_nodes)
        body = unpack(stored.body, what, header=("times_s", "closures", "notices"), values=shape)
        if body is None:
            return None
        meta, arrays = body
        times_s = np.array(meta["times_s"], np.int64)
        return Issued(
            forecast=city.forecast(stored.issued_s, times_s, arrays["values"], notices=meta["notices"]),
            made_s=stored.made_s,
            version=stored.network,
            closures=tuple(Closure(**closure) for closure in meta["closures"]),
        )
