"""Random draws. All of a run's come from its one seed, each kind from a stream that shares no number with another's.

A spawn key does what a list of numbers as seed does not: [seed], [seed, 0] and [seed, 0, 0] are the same to numpy.
"""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np


@unique
class Draw(IntEnum):
    """What is drawn; the numbers in brackets tell its streams apart."""

    SPLIT = 1
    ANCHORS = 2
    ANCHOR_PAIRS = 3  # of nodes, whose distortion is measured
    TRIPS = 4  # (set)
    TRIED_TRIPS = 5  # those of the searches that are compared
    TRIED_FOLDS = 6
    WEIGHTS = 7
    HIDDEN_SETS = 8
    EPOCH = 9  # (epoch) order, and what is hidden
    DROPOUT = 10  # (epoch, process)
    PARTS = 11  # (times around)
    TREES = 12
    BOOTSTRAP = 13
    CHANGED_ROADS = 14  # (hundredths of a percent)
    KEPT_SNAPSHOTS = 15


def generator(seed: int, draw: Draw, *numbers: int) -> np.random.Generator:
    """A generator at the start of a stream."""
    return np.random.default_rng(_sequence(seed, draw, *numbers))


def seed_of(seed: int, draw: Draw, *numbers: int) -> int:
    """A stream as a number of 32 bits, for generators other than numpy's; torch's own takes no more of them."""
    return int(_sequence(seed, draw, *numbers).generate_state(1)[0])


def _sequence(seed: int, draw: Draw, *numbers: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(draw, *numbers))
