"""How far off a forecast may be: a distribution of the value at every node and step, fitted to out-of-fold errors.

Counts have a negative binomial distribution, so that a quiet street gets {0, 1} and a motorway a wide band. Gauges,
such as speeds, have an error with a scale. What makes a forecast less sure widens either: the route sets of demand
disagree, the nearest sensor is far, the step is far ahead, closed roads change who passes. The distributions need not
be right: how far out intervals must reach on their scale is measured (`conformal`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from frigate.config import is_a, require

FITTED_CELLS = 20_000
ITERATIONS = 200
LOG_DISPERSION = (-9.0, 5.0)  # least and largest
SMALL = 0.02  # of the mean count, added to a size before its logarithm
FAR_HOPS = 20
LEAST_TAIL = 1e-12  # 1 minus less than that is 1 in a float
MAX_SPREAD = 3.0
MOST_CHANGE = 20.0  # of flow on closed or opened roads, as a factor

MOST = 1e9  # no detector measures more

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]


class NotFittedError(Exception):
    """The readings are beyond what any detector measures: nothing says how sure a forecast is."""


@dataclass(frozen=True)
class Cells:
    """Forecasts, and what is known of how sure they are. The shapes broadcast to that of `forecast`."""

    forecast: Floats  # in the user's unit
    usual: Floats  # the usual flow then, on these roads; without demand, the forecast
    spread: Floats  # how far the route sets disagree: standard deviation of the logarithm; 0 without demand
    hops: Floats | Ints  # roads to the nearest sensor; -1: none
    step: Floats | Ints  # ahead, from 1
    rerouted: Floats  # flow on the roads ahead, relative to the usual flow; 1 without demand
    own: Floats  # at a sensor, how much wider its own errors are than those of others, as a logarithm; else 0

    def of_nodes(self, rows: NDArray[Any] | slice) -> Cells:
        """Those of some nodes."""
        fields_of = (np.asarray(getattr(self, each.name)) for each in fields(self))
        return Cells(*(some if some.shape[-1] == 1 else some[..., rows] for some in fields_of))

    def take(self, at: NDArray[Any] | tuple[NDArray[Any], ...]) -> Cells:
        """Some of the cells, as flat arrays."""
        shape = self.forecast.shape
        return Cells(*(np.broadcast_to(getattr(self, each.name), shape)[at] for each in fields(self)))


def cells_together(parts: list[Cells]) -> Cells:
    """The cells of all parts, which are flat."""
    return Cells(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Cells)))


@dataclass(frozen=True)
class CountLaw:
    """A negative binomial distribution of each count."""

    typical: float  # a mean count, to which sizes are put in relation
    mean: tuple[float, ...]  # of a typical count, of the forecast and of the usual flow: the weights of the mean
    dispersion: tuple[float, ...]  # weights of its logarithm: 1, and the columns of `_reasons`
    closure: float  # share of a predicted change by which the flow may fall short of it, or exceed it

    def __post_init__(self) -> None:
        require_numbers(self, typical=1, mean=3, dispersion=5, closure=1)
        require(self.typical > 0 and min(self.mean) >= 0, "mean", self.mean, "must not be negative")

    def size(self, cells: Cells) -> Floats:
        """The mean count."""
        a = self.mean
        return np.asarray(a[0] * self.typical + a[1] * cells.forecast + a[2] * cells.usual)

    def score(self, cells: Cells, count: Floats) -> Floats:
        """Minus the logarithm of the two-sided p-value of the true counts."""
        mean = self.size(cells)
        n = 1 / self._dispersion(cells, mean)
        least, most = self._means(cells, mean)
        below = special.betainc(n, count + 1, n / (n + least))  # P(Y <= count)
        above = np.where(count > 0, special.betainc(np.maximum(count, 1), n, most / (n + most)), 1.0)  # P(Y >= count)
        return np.asarray(-np.log(np.clip(2 * np.minimum(below, above), 1e-300, 1)))

    def band(self, cells: Cells, score: Floats) -> tuple[Floats, Floats]:
        """The least and the largest count with at most this score; never without the rounded forecast."""
        mean = self.size(cells)
        dispersion = self._dispersion(cells, mean)
        tail = np.broadcast_to(np.maximum(np.exp(-score) / 2, LEAST_TAIL), mean.shape)
        middle = np.rint(cells.forecast)
        least, most = self._means(cells, mean)
        lower = np.where(np.isinf(score), 0.0, quantile_of_counts(tail, least, dispersion))
        upper = np.where(np.isinf(score), np.inf, quantile_of_counts(1 - tail, most, dispersion))
        return np.minimum(lower, middle), np.maximum(upper, middle)

    def own(self, cells: Cells, count: Floats, prior: float) -> float:
        """A sensor's own dispersion relative to the law's, as a logarithm, from its cells and `prior` usual ones."""
        mean = self.size(cells)
        usual = self._dispersion(cells, mean) * mean**2
        found = (np.sum((count - mean) ** 2 - mean) + prior * usual.mean()) / (usual.sum() + prior * usual.mean())
        return float(np.clip(np.log(max(found, 1e-2)), -3, 3))

    def _means(self, cells: Cells, mean: Floats) -> tuple[Floats, Floats]:
        """The least and the largest mean count: closed roads may change the flow by less than predicted, or by more."""
        away = np.exp(self.closure * np.abs(np.log(np.clip(cells.rerouted, 1 / MOST_CHANGE, MOST_CHANGE))))
        return mean / away, np.minimum(mean * away, MOST)

    def _dispersion(self, cells: Cells, mean: Floats) -> Floats:
        logs = self.dispersion[0] + sum(
            weight * x for weight, x in zip(self.dispersion[1:], _reasons(cells, mean, self.typical), strict=True)
        )
        return np.asarray(np.exp(np.clip(logs + cells.own, *LOG_DISPERSION)))


@dataclass(frozen=True)
class GaugeLaw:
    """A scale of the error of each value."""

    typical: float  # a mean value
    scale: tuple[float, ...]  # weights of its logarithm: 1, and the columns of `_reasons`

    def __post_init__(self) -> None:
        require_numbers(self, typical=1, scale=5)
        require(self.typical > 0, "typical", self.typical, "must be above 0")

    def size(self, cells: Cells) -> Floats:
        """The scale."""
        reasons = _reasons(cells, np.abs(cells.forecast), self.typical)
        logs = self.scale[0] + sum(weight * x for weight, x in zip(self.scale[1:], reasons, strict=True))
        return np.asarray(self.typical * np.exp(np.clip(logs + cells.own, -20, 5)))

    def score(self, cells: Cells, value: Floats) -> Floats:
        return np.asarray(np.abs(value - cells.forecast) / self.size(cells))

    def band(self, cells: Cells, score: Floats) -> tuple[Floats, Floats]:
        away = score * self.size(cells)
        return cells.forecast - away, cells.forecast + away

    def own(self, cells: Cells, value: Floats, prior: float) -> float:
        """A sensor's own scale relative to the law's, as a logarithm, from its cells and `prior` usual ones."""
        found = (self.score(cells, value).sum() + prior) / (cells.forecast.size + prior)
        return float(np.clip(np.log(max(found, 1e-2)), -3, 3))


Law = CountLaw | GaugeLaw


def quantile_of_counts(probability: Floats, mean: Floats, dispersion: Floats) -> Floats:
    """The least count that a negative binomial variable is at most with at least this probability."""
    shape = np.shape(mean)
    probability, mean, dispersion = (np.broadcast_to(x, shape).ravel() for x in (probability, mean, dispersion))
    n = 1 / dispersion
    none = n / (n + mean)
    width = 1 + dispersion * mean
    # From the quantile of the gamma distribution with the same mean and variance, which is near, to the right count.
    count = np.floor(special.gammaincinv(np.maximum(mean / width, 1e-12), probability) * width)
    for step in (1.0, -1.0):
        todo = np.arange(count.size)
        while len(todo):
            asked = count[todo] if step > 0 else count[todo] - 1
            reached = np.where(
                asked < 0, False, special.betainc(n[todo], np.maximum(asked, 0) + 1, none[todo]) >= probability[todo]
            )
            todo = todo[~reached if step > 0 else reached]
            count[todo] += step
    return count.reshape(shape)


def _reasons(cells: Cells, size: Floats, typical: float) -> tuple[Floats, ...]:
    """What the logarithm of a dispersion or scale may depend on, each around 0 to 1."""
    hops = np.where(cells.hops < 0, FAR_HOPS, np.clip(cells.hops, 1, FAR_HOPS))
    return (
        np.log(size / typical + SMALL),
        np.minimum(cells.spread, MAX_SPREAD),
        np.log(hops),
        np.log(cells.step) / 3,
    )


def fit_counts(cells: Cells, count: Floats, weight: Floats, *, closure: float) -> CountLaw:
    """The law with the highest likelihood of the counts of flat cells. `closure` is not fitted."""
    typical = max(float(np.average(count, weights=weight)), 1e-3)
    some = _some(len(count))
    rough = (cells.forecast + cells.usual) / 2
    y, w, forecast, usual = (_tensor(x[some]) for x in (count, weight / weight.mean(), cells.forecast, cells.usual))
    reasons = _design(cells.take(some), rough[some], typical)
    mean_logs = torch.tensor([math.log(0.05), math.log(0.5), math.log(0.5)], dtype=torch.float64, requires_grad=True)
    weights = torch.zeros(reasons.shape[1], dtype=torch.float64, requires_grad=True)

    def unlikely() -> Tensor:
        a = mean_logs.exp()
        mean = a[0] * typical + a[1] * forecast + a[2] * usual
        n = torch.exp(-(reasons @ weights).clamp(*LOG_DISPERSION))
        likely = torch.lgamma(y + n) - torch.lgamma(n) - n * torch.log1p(mean / n) + y * (mean.log() - (mean + n).log())
        return -(w * likely).mean() + 1e-3 * (weights[1:] ** 2).sum()

    _minimise(unlikely, [mean_logs, weights])
    mean = mean_logs.detach().exp().tolist()
    _require_fitted([typical, *mean, *weights.detach().tolist()])
    return CountLaw(_short(typical), _all_short(mean), _all_short(weights.detach().tolist()), closure)


def fit_gauges(cells: Cells, value: Floats, weight: Floats) -> GaugeLaw:
    """The law with the highest likelihood of the values of flat cells."""
    typical = max(float(np.average(np.abs(value), weights=weight)), 1e-3)
    some = _some(len(value))
    error = _tensor(np.abs(value - cells.forecast)[some])
    w = _tensor(weight[some] / weight.mean())
    reasons = _design(cells.take(some), np.abs(cells.forecast)[some], typical)
    weights = torch.zeros(reasons.shape[1], dtype=torch.float64, requires_grad=True)

    def unlikely() -> Tensor:
        logs = (reasons @ weights).clamp(-20, 5)
        return (w * (logs + error / typical * torch.exp(-logs))).mean() + 1e-3 * (weights[1:] ** 2).sum()

    _minimise(unlikely, [weights])
    _require_fitted([typical, *weights.detach().tolist()])
    return GaugeLaw(_short(typical), _all_short(weights.detach().tolist()))


def _require_fitted(numbers: list[float]) -> None:
    if not all(abs(number) <= MOST for number in numbers):
        raise NotFittedError


def _design(cells: Cells, size: Floats, typical: float) -> Tensor:
    """[n,5]"""
    return _tensor(np.stack([np.ones(len(size)), *_reasons(cells, size, typical)], axis=1))


def _minimise(function: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    optimiser = torch.optim.LBFGS(parameters, max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        with torch.enable_grad():
            value = function()
            value.backward()
        return float(value.detach())

    optimiser.step(closure)


def _some(count: int) -> NDArray[np.int64]:
    """At most FITTED_CELLS of the cells, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, FITTED_CELLS)).round().astype(np.int64))


def _tensor(array: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float64))


def _short(number: float) -> float:
    return float(f"{number:.6g}")


def _all_short(numbers: tuple[float, ...] | list[float]) -> tuple[float, ...]:
    return tuple(map(_short, numbers))


def require_numbers(law: Law, **counts: int) -> None:
    """Raise an error if a field is not a finite number, or a tuple of that many."""
    for name, count in counts.items():
        value = getattr(law, name)
        numbers = value if isinstance(value, tuple) else (value,)
        ok = len(numbers) == count and all(is_a(number, "float") for number in numbers)
        require(ok, name, value, f"give {count} numbers" if count > 1 else "give a number")
