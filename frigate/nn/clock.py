"""Kind of day and hour, recovered from a batch's calendar."""

from __future__ import annotations

import torch
from torch import Tensor

from frigate.data.stream import CALENDAR

HOURS = 24
CLOCK_BINS = 2 * HOURS  # weekday hours, then weekend hours
DAY_SIN, DAY_COS, WEEKEND = (CALENDAR.index(name) for name in ("day_sin", "day_cos", "weekend"))


def clock_seconds(calendar: Tensor) -> Tensor:
    """[...] seconds since local midnight, from calendar rows [...,C]."""
    turn = torch.atan2(calendar[..., DAY_SIN].double(), calendar[..., DAY_COS].double()) / (2 * torch.pi)
    # float32 sines resolve about a hundredth of a second; snapshots start on whole seconds, so rounding is exact.
    return (turn * 86_400).round().long() % 86_400


def clock_bins(calendar: Tensor) -> Tensor:
    """[...] the bin (weekday or weekend, and local hour) of calendar rows [...,C]."""
    return clock_seconds(calendar) // 3600 + HOURS * (calendar[..., WEEKEND] > 0.5).long()


def between_bins(calendar: Tensor, step_s: int) -> tuple[Tensor, Tensor, Tensor]:
    """The two hourly bins to interpolate between: those whose midpoints bracket the midpoint of a snapshot.

    Parameters
    ----------
    calendar
        [...,C] calendar at the start of each snapshot.
    step_s
        Length of a snapshot.

    Returns
    -------
    first, second, share
        [...] the two bins, both of the snapshot's kind of day, and the weight of the second.
    """
    middle = clock_seconds(calendar) + step_s // 2 - 1800
    hour = middle.div(3600, rounding_mode="floor")
    share = (middle - 3600 * hour) / 3600
    weekend = HOURS * (calendar[..., WEEKEND] > 0.5).long()
    return hour % HOURS + weekend, (hour + 1) % HOURS + weekend, share
