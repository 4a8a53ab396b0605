"""Random draws. A run has one seed, from which each kind of draw gets an independent stream.

Streams are separated by spawn key, not by a list as seed: to numpy, [seed], [seed, 0] and [seed, 0, 0] are equal.
"""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np
from numpy.typing import NDArray


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
    KEPT_OUT = 16  # sensors that no training step scores


def generator(seed: int, draw: Draw, *numbers: int) -> np.random.Generator:
    """A numpy generator for a stream."""
    return np.random.default_rng(_sequence(seed, draw, *numbers))


def seed_of(seed: int, draw: Draw, *numbers: int) -> int:
    """A 32-bit seed for a stream, for generators other than numpy's; torch's CPU generator uses only 32 bits."""
    return int(_sequence(seed, draw, *numbers).generate_state(1)[0])


def keys_of(ids: NDArray[np.generic]) -> NDArray[np.uint64]:
    """[N] a number that stands for each id in a draw, so that draws do not depend on the order of a table's rows.

    It is the FNV-1a hash of the id as text: 41 and "41" have the same one.
    """
    letters = np.ascontiguousarray(ids.astype(np.str_))
    codes = letters.view(np.uint32).reshape(len(letters), letters.itemsize // 4)
    keys = np.full(len(letters), 0xCBF29CE484222325, np.uint64)
    for code in codes.T.astype(np.uint64):
        keys = np.where(code > 0, (keys ^ code) * np.uint64(0x100000001B3), keys)  # 0: the id has ended
    return keys


def _sequence(seed: int, draw: Draw, *numbers: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(draw, *numbers))
