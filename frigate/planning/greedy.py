"""Chooses sites one after another, each the one whose count lowers the expected error most for its cost.

The expected absolute error of a Gaussian is proportional to its standard deviation, so the error over the network is
the weighted sum of standard deviations. A count lowers it less, the more is counted already; so a site's last known
gain bounds its gain now, and most sites need not be looked at again (lazy evaluation, Minoux 1978). That holds nearly,
not strictly, for standard deviations: tests compare with the best of all choices in small cases.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from frigate.planning.uncertainty import LEAST_VARIANCE, Floats, Knowledge, Rows
from frigate.progress import Progress

TOGETHER = 32  # sites whose gains are computed at a time


@dataclass(frozen=True)
class Step:
    """One chosen site, and what was known before and after it."""

    site: int
    gain: float  # of the weighted sum of standard deviations
    error: float  # what is left of that sum
    lowered: Floats  # [P] how much the error at each point fell, with its weight


def expected_error(knowledge: Knowledge, weights: Floats) -> float:
    """The weighted sum of standard deviations; `weights` [P]."""
    return float(weights @ np.sqrt(knowledge.variance))


def gains(knowledge: Knowledge, weights: Floats, sites: Rows, error: float) -> Floats:
    """[sites] how much a count at each site lowers the expected error."""
    found = []
    before = np.sqrt(knowledge.variance)
    counts = weights > 0
    for part in np.array_split(sites, max(1, -(-len(sites) // TOGETHER))):
        told = knowledge.tells(part, error)[counts]
        left = np.sqrt(np.maximum(knowledge.variance[counts, None] - told**2, LEAST_VARIANCE))
        found.append(weights[counts] @ (before[counts, None] - left))
    return np.concatenate(found)


def choose(
    knowledge: Knowledge,
    weights: Floats,
    sites: Rows,
    *,
    budget: float,
    costs: Floats,
    forced: Rows,
    error: float,
    progress: Progress | None = None,
) -> tuple[list[Step], Knowledge]:
    """The sites to count at, in the order in which they are chosen, and what is then known.

    Parameters
    ----------
    knowledge
        What the present sensors tell.
    weights
        [P] what an error at each point counts.
    sites
        The candidates.
    budget, costs
        What may be spent, and the cost [C] of each site.
    forced
        Sites that are chosen first, best first.
    error
        Variance of the logarithm of a count against the true mean.
    """
    by = partial(
        _choose, knowledge, weights, sites, budget=budget, costs=costs, forced=forced, error=error, progress=progress
    )
    by_price = by(prices=costs)
    if len(np.unique(costs[sites])) <= 1:
        return by_price
    # By price alone, cheap sites may use up the money for a dear one that is worth more than all of them.
    by_gain = by(prices=np.ones(len(costs)))
    return min((by_price, by_gain), key=lambda found: expected_error(found[1], weights))


def _choose(
    knowledge: Knowledge,
    weights: Floats,
    sites: Rows,
    *,
    budget: float,
    costs: Floats,
    prices: Floats,
    forced: Rows,
    error: float,
    progress: Progress | None,
) -> tuple[list[Step], Knowledge]:
    """As `choose`, by gain for the price."""
    steps: list[Step] = []
    left = budget
    for pool, must in ((forced, True), (np.setdiff1d(sites, forced), False)):
        queue = _queue(gains(knowledge, weights, pool, error) if len(pool) else np.zeros(0), pool, prices)
        while queue:
            if not must and (queue := _affordable(queue, costs, left)) == []:
                break
            gain, site = _best(queue, knowledge, weights, prices, error, len(steps))
            before = np.sqrt(knowledge.variance)
            knowledge = knowledge.after(site, error)
            lowered = weights * (before - np.sqrt(knowledge.variance))
            steps.append(Step(site, gain, expected_error(knowledge, weights), lowered))
            left -= float(costs[site])
            if progress is not None:
                progress(round(budget - left), round(budget), "")
    return steps, knowledge


def _queue(gain: Floats, sites: Rows, prices: Floats) -> list[tuple[float, int, int, float]]:
    """Heap of (-gain for its price, site, steps when it was computed, gain)."""
    queue = [(-g / float(prices[s]), s, -1, g) for g, s in zip(gain.tolist(), sites.tolist(), strict=True)]
    heapq.heapify(queue)
    return queue


def _affordable(
    queue: list[tuple[float, int, int, float]], costs: Floats, left: float
) -> list[tuple[float, int, int, float]]:
    some = [each for each in queue if costs[each[1]] <= left * (1 + 1e-9)]
    heapq.heapify(some)
    return some


def _best(
    queue: list[tuple[float, int, int, float]],
    knowledge: Knowledge,
    weights: Floats,
    prices: Floats,
    error: float,
    step: int,
) -> tuple[float, int]:
    """Take the best site off the queue, after as many gains as it takes have been computed again."""
    while queue[0][2] != step:
        stale = [heapq.heappop(queue) for _ in range(min(TOGETHER, len(queue)))]
        again = np.array([site for _, site, at, _ in stale if at != step], np.int64)
        for each in stale:
            if each[2] == step:
                heapq.heappush(queue, each)
        for gain, site in zip(gains(knowledge, weights, again, error).tolist(), again.tolist(), strict=True):
            heapq.heappush(queue, (-gain / float(prices[site]), site, step, gain))
    _, site, _, gain = heapq.heappop(queue)
    return gain, site


@dataclass(frozen=True)
class Removal:
    """A sensor that is given up, and by how much the error then grows."""

    sensor: int  # its place among the sensors
    loss: float


def give_up(knowledge: Knowledge, weights: Floats, sensors: Rows, *, count: int, error: float) -> list[Removal]:
    """The sensors that are missed least, in the order in which they are given up.

    `knowledge` is that before any count; `sensors` are the sites that are counted at.
    """
    among = knowledge.prior[knowledge.site[sensors]][:, sensors].astype(np.float64)
    precision = np.linalg.inv(among + (error + LEAST_VARIANCE) * np.eye(len(sensors)))
    shared = knowledge.prior[:, sensors].astype(np.float64)
    regression = shared @ precision  # [P,n]
    variance = np.maximum(knowledge.variance - (regression * shared).sum(1), LEAST_VARIANCE)
    kept = np.ones(len(sensors), bool)
    removals = []
    for _ in range(count):
        rows = np.flatnonzero(kept)
        growth = regression[:, rows] ** 2 / np.diag(precision)[rows]
        loss = weights @ (np.sqrt(variance[:, None] + growth) - np.sqrt(variance)[:, None])
        least = int(rows[np.argmin(loss)])
        removals.append(Removal(least, float(loss.min())))
        kept[least] = False
        own = precision[least, least]
        variance = variance + regression[:, least] ** 2 / own
        regression = regression - np.outer(regression[:, least] / own, precision[least])
        precision = precision - np.outer(precision[:, least], precision[least]) / own
    return removals


def mask_of(rows: Rows, count: int) -> NDArray[np.bool_]:
    """[count] true at these rows."""
    mask = np.zeros(count, bool)
    mask[rows] = True
    return mask
