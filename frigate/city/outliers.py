"""Implausible readings: error codes such as 65535, and values far outside the rest of the record.

The usual range of a record, or of a sensor, is the middle 98 % of its non-zero readings, extended to include 0. A
reading is implausible if it is outside the union of the record's and its sensor's ranges by more than ten times the
width of that union, or three times if it is a number that devices and databases write for "no value". In the counts and
speeds that come with this project, nothing is more than twice the width outside.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CODES = (-99999, -9999, -999, 9999, 99999, 32767, -32768, 65535, 2**31 - 1, -(2**31), 2**32 - 1)
CODES_32 = np.array(CODES, np.float32)  # readings are float32
FAR, FAR_FOR_A_CODE = 10.0, 3.0  # widths
SAMPLE = 1_000_000  # readings used to find the usual range of a record


def implausible(values: NDArray[np.floating], observed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[S,N] which observed values are implausible."""
    found = np.zeros(observed.shape, bool)
    some = slice(None, None, max(1, min(observed.size // SAMPLE, len(observed) // 100)))
    low, high = _usual_range(values[some][observed[some]])
    width = FAR_FOR_A_CODE * (high - low)
    for n in np.flatnonzero((observed & ((values > high + width) | (values < low - width))).any(axis=0)).tolist():
        read = values[:, n]
        own_low, own_high = _usual_range(read[observed[:, n]])
        lowest = min(low, own_low)
        highest = max(high, own_high)
        far = np.where(np.isin(read, CODES_32), FAR_FOR_A_CODE, FAR) * (highest - lowest)
        found[:, n] = observed[:, n] & ((read > highest + far) | (read < lowest - far))
    return found


def reading_text(value: float) -> str:
    """A reading as the user wrote it: float32 turns 2147483647 into 2147483648."""
    code = np.flatnonzero(np.float32(value) == CODES_32)
    return f"{CODES[code[0]]}, which looks like an error code" if len(code) else f"{value:.7g}"


def _usual_range(read: NDArray[np.floating]) -> tuple[float, float]:
    some = read[(read != 0) & ~np.isin(read, CODES_32)].astype(np.float64)
    low, high = np.quantile(some, [0.01, 0.99]).tolist() if len(some) else (0.0, 0.0)
    return min(low, 0.0), max(high, 0.0)
