"""What a run promises at its sensors, and whether that still holds.

Measured once training is over, on days that no count of training is from: the error relative to the width of the
intervals, so that quiet hours and busy ones can be compared, and how often intervals held. Evaluations and the service
measure the same on later readings. What falls out of the promise by more than days and sensors differ is told; if most
of the error has one sign at each sensor, levels have moved, and training on the new readings pays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.config import is_a, require
from frigate.text import percent

LEVEL = 90.0  # of the intervals that are compared, in percent
DEVIATIONS = 3.0  # standard deviations from day to day that are still as promised
ERRORS = 2.0  # and standard errors, with sensors as the unit
LEAST_ERROR_MARGIN = 0.2  # of the promised error: less is no reason to act
LEAST_COVERAGE_MARGIN = 5.0  # percentage points
LEAST_SENSORS, LEAST_CELLS = 3, 100  # with fewer comparisons nothing is told
ONE_SIGN = 0.5  # share of the error that has one sign at each sensor, from which on training pays

Sums = NDArray[np.float64]


@dataclass(frozen=True)
class Tally:
    """Forecasts against readings: sums of each of n places."""

    cells: Sums
    error: Sums  # absolute
    width: Sums  # of the intervals
    signed: Sums  # readings minus forecasts
    inside: Sums  # cells with the reading in its interval

    @classmethod
    def of(
        cls,
        forecast: NDArray[np.floating],
        truth: NDArray[np.floating],
        lower: NDArray[np.floating],
        upper: NDArray[np.floating],
        place: NDArray[np.integer],
        count: int,
    ) -> Tally:
        """Of flat cells, with the place of each of `count`. Those without an interval, which is NaN, are left out."""
        known = np.isfinite(lower) & np.isfinite(upper)
        off = np.where(known, truth - forecast, 0)
        held = known & (np.where(known, lower, 0) <= truth) & (truth <= np.where(known, upper, 0))
        of_cells = (known, np.abs(off), np.where(known, upper - lower, 0), off, held)
        return cls(*(np.bincount(place, weights=each, minlength=count).astype(np.float64) for each in of_cells))

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Tally)))

    @property
    def places(self) -> int:
        """Those with a comparison."""
        return int((self.cells > 0).sum())

    @property
    def relative_error(self) -> float:
        """The error over the width of the intervals; NaN without any."""
        return _ratio(self.error.sum(), self.width.sum())

    @property
    def coverage(self) -> float:
        """Percent of the intervals that held; NaN without any."""
        return 100 * _ratio(self.inside.sum(), self.cells.sum())

    @property
    def standard_errors(self) -> tuple[float, float]:
        """Of `relative_error` and `coverage`, with places as the unit."""
        found = []
        for part, whole in ((self.error, self.width), (100 * self.inside, self.cells)):
            away = part - _ratio(part.sum(), whole.sum()) * whole
            found.append(_ratio(float(np.sqrt((away**2).sum())), whole.sum()))
        return found[0], found[1]

    @property
    def bias(self) -> float:
        """Share of the error that has one sign at each place."""
        return _ratio(np.abs(self.signed).sum(), self.error.sum())


@dataclass(frozen=True)
class Promise:
    """What later readings at the sensors are compared with."""

    error: float  # over the width of the intervals
    error_limit: float  # more is told
    coverage: float  # percent
    coverage_limit: float  # less is told

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require(is_a(value, "float") and value >= 0, name, value, "give a number from 0 on")

    @classmethod
    def of(cls, days: Sequence[Tally]) -> Promise | None:
        """From the comparisons of each day; None if there are too few."""
        if not days:
            return None
        whole = sum(days[1:], days[0])
        error, coverage = whole.relative_error, whole.coverage
        if not (enough(whole) and math.isfinite(error) and math.isfinite(coverage)):
            return None
        errors, coverages = ([getattr(day, name) for day in days] for name in ("relative_error", "coverage"))
        margins = [DEVIATIONS * _deviation(of_days) for of_days in (errors, coverages)]
        return cls(
            error=_short(error),
            error_limit=_short(error + max(margins[0], LEAST_ERROR_MARGIN * error)),
            coverage=_short(coverage),
            coverage_limit=_short(max(0.0, coverage - max(margins[1], LEAST_COVERAGE_MARGIN))),
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Promise:
        names = {each.name for each in fields(cls)}
        require(set(data) == names, "promise", list(data), f"give {', '.join(sorted(names))}")
        return cls(**data)


@dataclass(frozen=True)
class Drift:
    """Later readings at the sensors against what was promised."""

    promise: Promise
    sensors: int
    count: int  # forecasts compared with a reading
    error: float  # relative to the promised one
    coverage: float  # percent
    bias: float  # share of the error that has one sign at each sensor
    standard_errors: tuple[float, float]  # of error and coverage, with sensors as the unit

    @classmethod
    def of(cls, promise: Promise | None, tally: Tally) -> Drift | None:
        """None if nothing was promised, or too little can be compared."""
        if promise is None or not promise.error or not enough(tally) or not math.isfinite(tally.relative_error):
            return None
        of_error, of_coverage = tally.standard_errors
        return cls(
            promise=promise,
            sensors=tally.places,
            count=int(tally.cells.sum()),
            error=tally.relative_error / promise.error,
            coverage=tally.coverage,
            bias=tally.bias,
            standard_errors=(of_error / promise.error, of_coverage),
        )

    @property
    def error_limit(self) -> float:
        """Relative to the promised error."""
        return self.promise.error_limit / self.promise.error

    @property
    def larger_error(self) -> bool:
        return self.error - ERRORS * self.standard_errors[0] > self.error_limit

    @property
    def lower_coverage(self) -> bool:
        return self.coverage + ERRORS * self.standard_errors[1] < self.promise.coverage_limit

    @property
    def retraining_pays(self) -> bool:
        """Whether levels have moved, so that training on the new readings removes most of the error."""
        return (self.larger_error or self.lower_coverage) and self.bias >= ONE_SIGN

    @property
    def told(self) -> tuple[str, ...]:
        """What is no longer as promised, in sentences; () if all is."""
        said = []
        if self.larger_error:
            said.append(
                f"the error at sensors is {self.error:.2f} times what it was in such traffic when training ended; "
                f"up to {self.error_limit:.2f} times is usual."
            )
        if self.lower_coverage:
            said.append(
                f"{LEVEL:g} % intervals hold for {self.coverage:.0f} % of the readings at sensors; when training "
                f"ended, for {self.promise.coverage:.0f} %, and {self.promise.coverage_limit:.0f} % or more is usual."
            )
        if said and self.retraining_pays:
            said.append(
                f"{percent(self.bias)} of the error has one sign at each sensor: traffic has another level than in the "
                "readings trained on. Train again with readings of the new level."
            )
        elif said:
            said.append(
                f"only {percent(self.bias)} of the error has one sign at each sensor: look for broken sensors "
                "(frigate check) and closed roads that are not recorded before training again."
            )
        return tuple(said)

    def to_json(self) -> dict[str, Any]:
        return {
            "error": round(self.error, 4),
            "error_limit": round(self.error_limit, 4),
            "coverage": round(self.coverage, 3),
            "coverage_promised": self.promise.coverage,
            "coverage_limit": self.promise.coverage_limit,
            "bias": round(self.bias, 4) if math.isfinite(self.bias) else None,
            "sensors": self.sensors,
            "count": self.count,
            "told": list(self.told),
            "retraining_pays": self.retraining_pays,
        }

    def line(self) -> str:
        """In one line, for a terminal."""
        if self.told:
            return "No longer as promised: " + " ".join(self.told)
        return (
            f"At sensors as promised: the error is {self.error:.2f} times what it was in such traffic when training "
            f"ended (up to {self.error_limit:.2f} is usual), and {LEVEL:g} % intervals hold {self.coverage:.0f} %."
        )


def enough(tally: Tally) -> bool:
    """Whether there is enough to say anything."""
    return tally.places >= LEAST_SENSORS and tally.cells.sum() >= LEAST_CELLS


def _deviation(of_days: Sequence[float]) -> float:
    known = [value for value in of_days if math.isfinite(value)]
    return float(np.std(known)) if len(known) > 1 else 0.0


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else math.nan


def _short(number: float) -> float:
    return float(f"{number:.4g}")
