"""How often each detector reports, and the step of a city that is made of their readings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S
from frigate.city.bucketing import Readings
from frigate.city.city_toml import step_text, whole_step
from frigate.errors import CityError

FEW_GAPS = 4  # fewer gaps between readings may just be missing readings, not a coarse detector


def settle_step(readings: Readings, names: Sequence[str], *, step_s: int | None, quantity: str, where: str) -> int:
    """The step, inferred if not given. Detectors that report less often than once per step are refused."""
    every_s, gaps = _intervals_s(readings, len(names))
    known = every_s[every_s > 0]
    if step_s is None:
        if not len(known):
            raise CityError(f"{where}: the step of its readings cannot be inferred. Pass one, such as --step 5min")
        each, count = np.unique(known, return_counts=True)
        step_s = whole_step(int(each[len(each) - 1 - np.argmax(count[::-1])]), where=where)
    every_s = np.where(gaps >= FEW_GAPS, every_s, 0)
    coarse = np.flatnonzero(every_s > step_s)
    if len(coarse):
        needed_s = int(every_s.max())
        fits = next((s for s in range(needed_s, DAY_S + 1) if DAY_S % s == 0 and s % needed_s == 0), None)
        worst = int(coarse[np.argmax(every_s[coarse])])
        remedy = f"Pass --step {step_text(fits)}" if fits else "Remove their readings"
        raise CityError(
            f'{where}: sensor "{names[worst]}" reports every {step_text(needed_s)}, coarser than the step of '
            f"{step_text(step_s)} (so do {len(coarse)} of {len(names)} sensors). {remedy}"
        )
    uneven = np.flatnonzero((every_s > 0) & (step_s % np.maximum(every_s, 1) != 0))
    if len(uneven) and quantity == "count":
        first = int(uneven[0])
        raise CityError(
            f'{where}: sensor "{names[first]}" counts every {step_text(int(every_s[first]))}, which does not divide '
            f"the step of {step_text(step_s)}. Pass a --step that is a multiple of it"
        )
    return step_s


def _intervals_s(readings: Readings, num_detectors: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[D] usual seconds between a detector's readings, 0 if irregular; and the number of gaps this is based on."""
    order = np.lexsort((readings.time_us, readings.column))
    detector = readings.column[order]
    time_us = readings.time_us[order]
    gap_us = np.diff(time_us)
    inside = (np.diff(detector) == 0) & (gap_us > 0)
    of = detector[1:][inside]
    gap_us = gap_us[inside]
    every_s = np.zeros(num_detectors, np.int64)
    seen = np.zeros(num_detectors, np.int64)
    which, first = np.unique(of, return_index=True)
    for i, gaps in zip(which.tolist(), np.split(gap_us, first[1:]), strict=False):
        each, count = np.unique(gaps, return_counts=True)
        usual = int(each[np.argmax(count)])
        # Irregular readings, such as one per passing vehicle, have no usual gap.
        regular = count.max() * 2 >= len(gaps) and (gaps % usual == 0).mean() >= 0.9 and len(gaps) >= 2
        every_s[i] = usual // 1_000_000 if regular and usual % 1_000_000 == 0 else 0
        seen[i] = len(gaps)
    return every_s, seen
