"""Random streams: no two of one seed share their numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import frigate
from frigate.draws import Draw, generator, seed_of

NUMBERS: list[tuple[int, ...]] = [(), *((i,) for i in range(20)), *((i, j) for i in range(20) for j in range(4))]
FIXED = {  # draws that no seed changes, or that are given a stream's number
    "demand/route_search.py",
    "demand/tuning.py",
    "forecasting/export.py",
    "roads/betweenness.py",
    "sources/benchmarks/layout.py",
}


def test_no_two_streams_share_their_numbers() -> None:
    streams: list[tuple[Any, ...]] = [(seed, draw, *numbers) for seed in (0, 1) for draw in Draw for numbers in NUMBERS]
    firsts = [generator(*stream).integers(2**63) for stream in streams]
    plain = [np.random.default_rng([0, i]).integers(2**63) for i in range(30)]  # as a simulated town is drawn
    assert len({*firsts, *plain}) == len(streams) + 30
    assert generator(3, Draw.EPOCH, 5).integers(2**63) == generator(3, Draw.EPOCH, 5).integers(2**63)


def test_each_process_drops_other_things_in_each_epoch() -> None:
    seeds = {seed_of(s, Draw.DROPOUT, epoch, rank) for s in range(5) for epoch in range(50) for rank in range(8)}
    seeds |= {seed_of(s, Draw.WEIGHTS) for s in range(5)}
    assert len(seeds) == 5 * 50 * 8 + 5
    assert max(seeds) < 2**32


def test_a_run_draws_from_these_streams_alone() -> None:
    house = Path(frigate.__file__).parent
    makes_its_own = re.compile(r"default_rng\(|manual_seed\((?!seed_of)|SeedSequence\(")
    found = {
        path.relative_to(house).as_posix() for path in house.rglob("*.py") if makes_its_own.search(path.read_text())
    }
    apart = {name for name in found if name.startswith(("simulate/", "bench/"))}
    assert found - apart == FIXED | {"draws.py", "experiments/theory.py"}
