"""Random draws. A run has one seed, from which each kind of draw gets an independent stream.

Streams are separated by spawn key, not by a list as seed: to numpy, [seed], [seed, 0] and [seed, 0, 0] are equal.
"""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np


@unique
class Draw(IntEnum):
    """The kinds of draw; the values in brackets distinguish streams of the same kind."""

    SPLIT = 1
    ANCHORS = 2
    ANCHOR_PAIRS = 3  # node pairs for measuring distortion
    TRIPS = 4  # (set)
    TRIED_TRIPS = 5  # trips for comparing search settings
    TRIED_FOLDS = 6
    WEIGHTS = 7
    HIDDEN_SETS = 8
    EPOCH = 9  # (epoch) order of windows, and hidden sensors
    DROPOUT = 10  # (epoch, process)
    PARTS = 11  # (pass over the parts)
    TREES = 12
    BOOTSTRAP = 13
    CHANGED_ROADS = 14  # (hundredths of a percent)
    KEPT_SNAPSHOTS = 15


def generator(seed: int, draw: Draw, *numbers: int) -> np.random.Generator:
    """A numpy generator for a stream."""
    return np.random.default_rng(_sequence(seed, draw, *numbers))


def seed_of(seed: int, draw: Draw, *numbers: int) -> int:
    """A 32-bit seed for a stream, for generators other than numpy's; torch's CPU generator uses only 32 bits."""
    return int(_sequence(seed, draw, *numbers).generate_state(1)[0])


def _sequence(seed: int, draw: Draw, *numbers: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(draw, *numbers))
