"""Implausible readings: error codes such as 65535, and values far outside the rest of the record.

The usual range of a record, or of a sensor, is the middle 98 % of its non-zero readings, extended to include 0. A
reading is implausible if it is outside the union of the record's and its sensor's ranges by more than ten times the
width of that union, or three times if it is a number that devices and databases write for "no value". In the counts and
speeds that come with this project, nothing is more than twice the width outside.

New readings are judged by a record that does not have them (`Ranges`): by the union of its usual range and all that
their sensor has read, and three times its width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

CODES = (-99999, -9999, -999, 9999, 99999, 32767, -32768, 65535, 2**31 - 1, -(2**31), 2**32 - 1)
CODES_32 = np.array(CODES, np.float32)  # readings are float32
FAR = 10.0  # widths
FAR_FOR_A_CODE = 3.0  # widths
FAR_FOR_NEW = 3.0  # widths
SAMPLE = 1_000_000  # readings used to find the usual range of a record


def implausible(values: NDArray[np.floating], observed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[S,N] which observed values are implausible."""
    found = np.zeros(observed.shape, bool)
    some = slice(None, None, _every(observed.shape))
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


@dataclass(frozen=True)
class Ranges:
    """What a record has shown, to judge new readings by. N nodes; every range includes 0."""

    least: NDArray[np.float64]  # [N] of all readings of a node
    most: NDArray[np.float64]  # [N]
    usual: tuple[float, float]  # of the record

    @classmethod
    def of(cls, values: NDArray[np.floating], observed: NDArray[np.bool_]) -> Ranges:
        """Those of a record [S,N], which may be larger than memory."""
        least = np.zeros(values.shape[1])
        most = np.zeros(values.shape[1])
        for some, read in zip(values, observed, strict=True):
            np.minimum(least, some, out=least, where=read)
            np.maximum(most, some, out=most, where=read)
        rows = slice(None, None, _every(observed.shape))
        return cls(least, most, _usual_range(values[rows][observed[rows]]))

    @classmethod
    def unknown(cls, nodes: int) -> Ranges:
        """Of no record: everything is plausible."""
        return cls(np.zeros(nodes), np.zeros(nodes), (0.0, 0.0))

    @cached_property
    def limits(self) -> tuple[list[float], list[float]]:
        """[N] the lowest and highest new readings that are plausible."""
        low = np.minimum(self.least, self.usual[0])
        high = np.maximum(self.most, self.usual[1])
        far = np.where(high > low, FAR_FOR_NEW * (high - low), np.inf)
        return (low - far).tolist(), (high + far).tolist()


def _every(shape: tuple[int, ...]) -> int:
    """The step in which to sample the rows of a record [S,N]."""
    return max(1, min(shape[0] * shape[1] // SAMPLE, shape[0] // 100))


def reading_text(value: float) -> str:
    """A reading as the user wrote it: float32 turns 2147483647 into 2147483648."""
    code = np.flatnonzero(np.float32(value) == CODES_32)
    return f"{CODES[code[0]]}, which looks like an error code" if len(code) else f"{value:.7g}"


def _usual_range(read: NDArray[np.floating]) -> tuple[float, float]:
    some = read[(read != 0) & ~np.isin(read, CODES_32)].astype(np.float64)
    low, high = np.quantile(some, [0.01, 0.99]).tolist() if len(some) else (0.0, 0.0)
    return min(low, 0.0), max(high, 0.0)
