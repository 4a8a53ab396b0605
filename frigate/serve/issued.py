"""A forecast as it is issued and stored: every process and every later request gets the same numbers.

Values are rounded to 12 binary digits, an error of at most 0.013 %, and compressed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.serve import wire
from frigate.serve.store import StoredForecast

DROPPED_BITS = 11  # of the 23 bits of a float32 mantissa


@dataclass(frozen=True)
class Issued:
    """A forecast for a city. H steps, N nodes."""

    issued_s: int  # the forecast uses readings before this time
    made_s: float
    version: str  # of the network
    times_s: NDArray[np.int64]  # [H] start of each forecast interval
    values: NDArray[np.float32]  # [H,N] NaN at absent nodes
    closed: tuple[tuple[str, str, str], ...]  # id, source and target of the active closures
    notices: tuple[str, ...]

    def stored(self) -> StoredForecast:
        meta = {"times_s": self.times_s.tolist(), "closed": self.closed, "notices": self.notices}
        body = wire.encode(meta, {"values": self.values})
        return StoredForecast(self.issued_s, self.made_s, self.version, zlib.compress(body, 1))

    @staticmethod
    def of(stored: StoredForecast) -> Issued:
        meta, arrays = wire.decode(zlib.decompress(stored.body))
        return Issued(
            issued_s=stored.issued_s,
            made_s=stored.made_s,
            version=stored.network,
            times_s=np.array(meta["times_s"], np.int64),
            values=arrays["values"],
            closed=tuple((closure, a, b) for closure, a, b in meta["closed"]),
            notices=tuple(meta["notices"]),
        )


def rounded(values: NDArray[np.floating], dropped_bits: int = DROPPED_BITS) -> NDArray[np.float32]:
    """Values rounded as in issued forecasts, or to fewer bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    half, keep = np.uint32(1 << (dropped_bits - 1)), np.uint32(~((1 << dropped_bits) - 1) & 0xFFFFFFFF)
    return np.where(np.isfinite(values), ((bits + half) & keep).view(np.float32), np.float32(np.nan))
