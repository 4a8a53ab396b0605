"""How busy a place is: what the sensors around it say, beside what the trips say.

Trips take the routes that drivers are assumed to take. Where real drivers take others, the levels of the sensors say
more: those on the same street, nearby, or at places that look alike on the map. A Gaussian process learns the logarithm
of a place's mean count from all of these and from the trips' level; the trips' level at a sensor is one that was
estimated without it. How far the process is trusted is decided by its leave-one-out error at the sensors, against that
of the trips: where the trips are better, they alone count.

n sensors, N nodes, F features of a node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from frigate.city.network import RoadNetwork
from frigate.config import require, require_between, require_kinds
from frigate.coordinates import EARTH_RADIUS_M
from frigate.roads.features import FEATURE_WIDTH, fit_feature_scaling

MIN_SENSORS = 60  # with fewer, the process cannot be told from chance
FITTED_SENSORS = 400  # that the scales are fitted to: the time grows with the cube
READ_SENSORS = 2_000  # that an estimate is made from
ITERATIONS = 60
RATE = 0.15
OFFSET_SHARES = (0.1, 0.3)  # of the mean count, added before the logarithm: how much a quiet street counts
TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
MIN_GAIN = 0.01  # of the trips' error, from which the process is used
NOISE = 1e-4  # least variance of a count's logarithm
MAX_CELLS = 20_000_000  # of a kernel matrix at a time
SCALES = ("alike", "near", "near_km", "street", "word", "noise")  # then one for each input
INPUTS = 2 + FEATURE_WIDTH  # the trips' level and its spread, and the road features

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class LevelSettings:
    """The fitted process."""

    offset_share: float  # of the sensors' mean count
    trust: float  # in the process, against the trips: 0 to 1
    scales: tuple[float, ...]  # logarithms: variances and a length in km, as SCALES, then 1 / length^2 of each input

    def __post_init__(self) -> None:
        require_kinds(self)
        require_between(self, 0, 1, "trust", "offset_share")
        count = len(SCALES) + INPUTS
        finite = all(isinstance(x, float) and math.isfinite(x) for x in self.scales)
        require(len(self.scales) == count and finite, "scales", self.scales, f"give {count} numbers")


@dataclass(frozen=True)
class Places:
    """What the map says of each node. Two nodes are on the same street if a road at both has the same name."""

    features: Tensor  # [N,F] standardised
    km: NDArray[np.float64]  # [N,2] east and north
    streets: csr_array  # [N,names] rows of length 1
    words: csr_array  # [N,words] the same for the first word of the name, such as "Boulevard" or a motorway's number

    def between(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        """[a,b] kilometres between nodes, and how far they share a street and its first word, 0 to 1."""
        away = np.hypot(*(self.km[a, None, k] - self.km[None, b, k] for k in range(2)))
        shared = ((matrix[a] @ matrix[b].T).toarray() for matrix in (self.streets, self.words))
        km, street, word = (torch.from_numpy(np.ascontiguousarray(each)) for each in (away, *shared))
        return km, street, word


def places_of(network: RoadNetwork, features: NDArray[np.float32]) -> Places:
    """From the network and its raw road features [N,R]."""
    scaling = fit_feature_scaling(features, np.flatnonzero(network.present))
    edges = network.edges
    of_roads = len(network.lines) > 0
    at = edges.receivers if of_roads else np.concatenate([edges.senders, edges.receivers])
    names = edges.name if of_roads else np.tile(edges.name, 2)  # a turn has the name of the road that it enters
    kilometre = EARTH_RADIUS_M / 1000
    east = np.radians(network.lon) * np.cos(np.radians(network.lat.mean() if network.num_nodes else 0))
    return Places(
        features=torch.from_numpy(scaling.apply(features)).double(),
        km=kilometre * np.stack([east, np.radians(network.lat)], axis=1),
        streets=_unit_rows(network.num_nodes, at, names),
        words=_unit_rows(network.num_nodes, at, np.array([_first_word(name) for name in names.tolist()], np.str_)),
    )


def _first_word(name: str) -> str:
    found = re.search(r"[^\W_]+", name)
    return found[0].casefold() if found else ""


def _unit_rows(num_nodes: int, at: NDArray[np.int64], words: NDArray[np.str_]) -> csr_array:
    """[N,words] which words stand at a node."""
    known = words != ""
    distinct, word = np.unique(words[known], return_inverse=True)
    found = csr_array((np.ones(len(word)), (at[known], word)), (num_nodes, max(len(distinct), 1)))
    found.data[:] = 1 / np.sqrt(np.repeat(np.diff(found.indptr), np.diff(found.indptr)))
    return found


@dataclass(frozen=True)
class Estimates:
    """Mean counts according to the trips, and how sure they are."""

    level: Floats  # [N]
    spread: Floats  # [N] standard deviation of the logarithm over the route sets


def fit_levels(
    places: Places, rows: NDArray[np.int64], counts: Floats, held_out: Estimates, keys: NDArray[np.uint64]
) -> LevelSettings | None:
    """Fit the process to the sensors' mean counts; None if the trips alone do better.

    Parameters
    ----------
    places
        Of all nodes.
    rows, counts
        [n] the sensors, and the mean count of each.
    held_out
        What the trips say of each node; at a sensor, estimated without it.
    keys
        [N] numbers that stand for the nodes: the sensors to fit are chosen by them.
    """
    if len(rows) < MIN_SENSORS or not counts.any():
        return None
    by_key = np.argsort(keys[rows], kind="stable")
    rows = rows[by_key]
    counts = counts[by_key]
    some = slice(FITTED_SENSORS)
    alone = float(np.abs(held_out.level[rows] - counts).mean())
    best = None
    least = (1 - MIN_GAIN) * alone
    for share in OFFSET_SHARES:
        offset = share * float(counts.mean())
        inputs = _inputs(places, held_out, offset)
        logs = torch.from_numpy(np.log(counts + offset))
        scales = _fit_scales(inputs, places, rows[some], logs[some])
        left_out = _leave_one_out(scales, inputs, places, rows, logs).numpy()
        for trust in TRUSTS[1:]:
            error = float(np.abs(_blend(held_out.level[rows], left_out, offset, trust) - counts).mean())
            if error < least:
                best = LevelSettings(share, trust, tuple(scales.tolist()))
                least = error
    return best


def estimate_levels(
    settings: LevelSettings,
    places: Places,
    rows: NDArray[np.int64],
    counts: Floats,
    *,
    held_out: Estimates,
    trips: Estimates,
    keys: NDArray[np.uint64],
) -> NDArray[np.float64]:
    """[N] the mean count of every node; at a sensor, as if it were none. Parameters as in `fit_levels`.

    `trips` is what the trips say when all sensors are used.
    """
    read = np.argsort(keys[rows], kind="stable")[:READ_SENSORS]
    rows = rows[read]
    counts = counts[read]
    offset = settings.offset_share * float(counts.mean())
    scales = torch.tensor(settings.scales, dtype=torch.float64)
    known = _inputs(places, held_out, offset)
    asked = _inputs(places, trips, offset)
    logs = torch.from_numpy(np.log(counts + offset))
    mean = logs.mean()
    solved = torch.cholesky_solve((logs - mean)[:, None], _cholesky(scales, known, places, rows))
    N = len(trips.level)
    made = []
    for part in np.array_split(np.arange(N), max(1, N * len(rows) // MAX_CELLS)):
        kernel = _kernel(scales, asked[part], known[rows], places.between(part, rows))
        made.append((kernel @ solved)[:, 0] + mean)
    return _blend(trips.level, torch.cat(made).numpy(), offset, settings.trust)


def _inputs(places: Places, trips: Estimates, offset: float) -> Tensor:
    """[N,INPUTS]"""
    logs = np.log(trips.level + offset)
    return torch.cat([torch.from_numpy(np.stack([logs, trips.spread], axis=1)).double(), places.features], dim=1)


def _blend(trips: Floats, logs: Floats, offset: float, trust: float) -> NDArray[np.float64]:
    """Levels between those of the trips and those of the process, in logarithms."""
    blended: NDArray[np.float64] = np.exp((1 - trust) * np.log(trips + offset) + trust * logs) - offset
    return np.maximum(blended, 0)


def _kernel(scales: Tensor, a: Tensor, b: Tensor, between: Sequence[Tensor]) -> Tensor:
    """[a,b] covariance of the logarithms at nodes with these inputs."""
    alike, near, near_km, street, word = scales[: len(SCALES) - 1].exp()
    weight = scales[len(SCALES) :].exp()
    square = (a**2 @ weight)[:, None] + (b**2 @ weight)[None] - 2 * (a * weight) @ b.T
    km, same_street, same_word = between
    kernel: Tensor = alike * (1 + square.clamp(min=0) / 4) ** -2
    kernel = kernel + near * torch.exp(-km / near_km) + street * same_street + word * same_word
    return kernel


def _cholesky(scales: Tensor, inputs: Tensor, places: Places, rows: NDArray[np.int64]) -> Tensor:
    return _factor(scales, inputs[rows], places.between(rows, rows))


def _factor(scales: Tensor, inputs: Tensor, between: Sequence[Tensor]) -> Tensor:
    noise = (scales[SCALES.index("noise")].exp() + NOISE) * torch.eye(len(inputs), dtype=torch.float64)
    factor: Tensor = torch.linalg.cholesky(_kernel(scales, inputs, inputs, between) + noise)
    return factor


def usual_scales(variance: float) -> Tensor:
    """The scales before any count is known, for counts whose logarithms have this variance."""
    shares = {"alike": 0.4, "near": 0.1, "street": 0.1, "word": 0.1, "noise": 0.1}
    scales = [math.log(shares[name] * variance) if name in shares else math.log(0.7) for name in SCALES]
    scales += [math.log(1 / variance), math.log(0.5), *[math.log(0.2 / FEATURE_WIDTH)] * FEATURE_WIDTH]
    return torch.tensor(scales, dtype=torch.float64)


@dataclass(frozen=True)
class LevelCovariance:
    """How uncertain the process takes the logarithms of mean counts to be, before it reads any sensor."""

    places: Places
    inputs: Tensor  # [N,INPUTS]
    scales: Tensor

    @classmethod
    def of(cls, places: Places, trips: Estimates, *, offset: float, scales: Tensor) -> LevelCovariance:
        return cls(places, _inputs(places, trips, offset), scales)

    @property
    def own(self) -> float:
        """Variance that a place shares with no other."""
        return float(self.scales[SCALES.index("noise")].exp()) + NOISE

    def between(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
        """[a,b] what nodes share; a node's own variance is not in it."""
        shared: NDArray[np.float64] = _kernel(
            self.scales, self.inputs[a], self.inputs[b], self.places.between(a, b)
        ).numpy()
        return shared


def _fit_scales(inputs: Tensor, places: Places, rows: NDArray[np.int64], logs: Tensor) -> Tensor:
    """Scales with the highest marginal likelihood, near the scales that they start from."""
    centred = logs - logs.mean()
    between = places.between(rows, rows)
    of_rows = inputs[rows]
    more = torch.full((inputs.shape[1] - INPUTS,), math.log(0.2), dtype=torch.float64)
    begin = torch.cat([usual_scales(max(float(centred.var()), 1e-3)), more])
    scales = begin.clone().requires_grad_()
    optimiser = torch.optim.Adam([scales], lr=RATE)
    with torch.enable_grad():
        for _ in range(ITERATIONS):
            optimiser.zero_grad()
            factor = _factor(scales, of_rows, between)
            solved = torch.cholesky_solve(centred[:, None], factor)[:, 0]
            unlikely = 0.5 * (centred @ solved) + factor.diagonal().log().sum() + 0.05 * ((scales - begin) ** 2).sum()
            unlikely.backward()
            optimiser.step()
    return scales.detach()


def _leave_one_out(scales: Tensor, inputs: Tensor, places: Places, rows: NDArray[np.int64], logs: Tensor) -> Tensor:
    """[n] the estimate at each sensor from all others."""
    inverse = torch.cholesky_inverse(_cholesky(scales, inputs, places, rows))
    centred = logs - logs.mean()
    return logs - (inverse @ centred) / inverse.diagonal()


@dataclass(frozen=True)
class LeftOut:
    """The logarithm of the mean count at some places, each from the sensors other than itself."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]  # standard deviation


def left_out_levels(
    places: Places,
    rows: NDArray[np.int64],
    counts: Floats,
    held_out: Estimates,
    *,
    asked: NDArray[np.int64],
    own: Floats,
    offset: float,
    keys: NDArray[np.uint64],
) -> LeftOut:
    """What the sensors `rows` say of the places `asked`: of a sensor among them, what all the others say.

    Parameters
    ----------
    places
        Of all nodes.
    rows, counts
        [n] the sensors, and the mean count of each.
    held_out
        What the trips say of each node; at a sensor of `rows`, estimated without it.
    asked
        [m] the places.
    own
        [N,C] standardised: what a sensor's counts say of it whatever they are multiplied by.
    offset
        Added before the logarithm.
    keys
        [N] numbers that stand for the nodes: the sensors to fit and to read are chosen by them.
    """
    by_key = np.argsort(keys[rows], kind="stable")[:READ_SENSORS]
    rows = rows[by_key]
    inputs = torch.cat([_inputs(places, held_out, offset), torch.from_numpy(own)], dim=1)
    logs = torch.from_numpy(np.log(counts[by_key] + offset))
    some = slice(FITTED_SENSORS)
    scales = _fit_scales(inputs, places, rows[some], logs[some])
    factor = _cholesky(scales, inputs, places, rows)
    inverse = torch.cholesky_inverse(factor)
    centred = logs - logs.mean()
    solved = inverse @ centred
    mean = np.zeros(len(places.km))
    variance = np.zeros(len(places.km))
    mean[rows] = (logs - solved / inverse.diagonal()).numpy()
    variance[rows] = (1 / inverse.diagonal()).numpy()
    alike, near, _, street, word = scales[: len(SCALES) - 1].exp().tolist()
    noise = math.exp(float(scales[SCALES.index("noise")])) + NOISE
    others = np.setdiff1d(asked, rows)
    for part in np.array_split(others, max(1, len(others) * len(rows) // MAX_CELLS)):
        kernel = _kernel(scales, inputs[part], inputs[rows], places.between(part, rows))
        mean[part] = (kernel @ solved + logs.mean()).numpy()
        explained = ((kernel @ inverse) * kernel).sum(1).numpy()
        variance[part] = np.maximum(alike + near + street + word - explained, 0) + noise
    return LeftOut(mean[asked], np.sqrt(variance[asked]))
