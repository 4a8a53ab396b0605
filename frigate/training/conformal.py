"""How large an error can be at a new place: hierarchical conformal prediction, with sensors as the groups.

A place is nearly always inside its intervals or nearly never, so it is sensors that count and not hours. With the
scores s_ki of K sensors, N_k of each, the score of a new place stays below

    q = quantile of sum_k sum_i delta(s_ki) / ((K + 1) N_k) + delta(inf) / (K + 1)

with the probability asked for, if the place could have been any of the sensors (Lee, Barber and Willett, 2306.06342;
Dunn, Wasserman and Ramdas, 1809.07441). With fewer than 9 sensors q is infinite at 90 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BORROWED = 10.0  # sensors of all kinds that are added to those of a group: a small group alone is a matter of luck
KEPT_SCORES = 128  # score values at which distributions are kept
ROUNDING = 1e-5  # of their shares

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]


def least_sensors(level: float) -> int:
    """The fewest sensors with which an interval of this level, in percent, is finite."""
    return math.ceil(level / (100 - level) - 1e-9)


def highest_level(sensors: int) -> float:
    """The highest level in percent that this number of sensors can give."""
    return 100 * sensors / (sensors + 1)


@dataclass(frozen=True)
class ScoreTable:
    """Distributions of scores, each sensor with the same weight. G groups of cells, P score values.

    A sensor may be in several groups: quiet by night and busy by day.
    """

    score: NDArray[np.float64]  # [P] increasing
    share: NDArray[np.float64]  # [G,P] of the scores in each group that are at most that
    share_of_all: NDArray[np.float64]  # [P]
    sensors: NDArray[np.int64]  # [G] with a score in the group
    all_sensors: int

    @classmethod
    def of(cls, scores: Floats, sensor: Ints, group: Ints, num_groups: int) -> ScoreTable:
        """From the scores of cells [n], the sensor and the group of each."""
        rank, kept = _few_values(np.asarray(scores, np.float64))
        shares = [_shares(rank[group == g], sensor[group == g], len(kept)) for g in range(num_groups)]
        everything, count = _shares(rank, sensor, len(kept))
        return cls(
            score=kept,
            share=np.array([share for share, _ in shares]).reshape(num_groups, len(kept)),
            share_of_all=everything,
            sensors=np.array([found for _, found in shares], np.int64),
            all_sensors=count,
        )

    def quantile(self, level: float) -> NDArray[np.float64]:
        """[G] the score that a new place stays below with this probability, in percent; infinite with too few sensors.

        A group borrows as many sensors of all kinds as it needs for a finite quantile, and at least BORROWED.
        """
        others = self.all_sensors - self.sensors
        lent = np.clip(least_sensors(level) - self.sensors, BORROWED, None).clip(max=others)
        total = self.sensors[:, None] * self.share + lent[:, None] * self.share_of_all
        reached = total / (self.sensors + lent + 1)[:, None] >= level / 100 - 2 * ROUNDING
        at = np.where(reached.any(1), reached.argmax(1), len(self.score))
        return np.append(self.score, np.inf)[at]

    def borrows(self, level: float) -> NDArray[np.bool_]:
        """[G] the groups that have too few sensors of their own for this level."""
        return self.sensors < least_sensors(level)


def _few_values(scores: NDArray[np.float64]) -> tuple[Ints, NDArray[np.float64]]:
    """Each score's place in a few values, none of which is below the score; and these values."""
    values = np.unique(scores)
    if len(values) > KEPT_SCORES:
        ranks = 1 - (1 - np.linspace(0, 1, KEPT_SCORES)) ** 2  # closer together where levels are high
        by_rank = np.quantile(scores, ranks).tolist()
        values = np.unique([*(float(f"{value:.6g}") for value in by_rank), values[-1]])
    return np.searchsorted(values, scores, side="left"), values


def _shares(rank: Ints, sensor: Ints, count: int) -> tuple[NDArray[np.float64], int]:
    """[P] the mean over sensors of the share of their scores up to each value, and the number of sensors."""
    found, which, cells = np.unique(sensor, return_inverse=True, return_counts=True)
    if len(found) == 0:
        return np.zeros(count), 0
    weight = 1 / (cells[which] * len(found))
    share = np.cumsum(np.bincount(rank, weights=weight, minlength=count))
    return np.minimum(np.floor(share / ROUNDING + 0.5) * ROUNDING, 1.0), len(found)
