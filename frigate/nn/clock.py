"""Kinds of day and hours, read off the calendar that a batch carries."""

from __future__ import annotations

import torch
from torch import Tensor

from frigate.data.stream import CALENDAR

HOURS = 24
CLOCK_BINS = 2 * HOURS  # weekday hours, then weekend hours
DAY_SIN, DAY_COS, WEEKEND = (CALENDAR.index(name) for name in ("day_sin", "day_cos", "weekend"))


def clock_seconds(calendar: Tensor) -> Tensor:
    """[...] seconds since local midnight of a calendar row [...,C]."""
    turn = torch.atan2(calendar[..., DAY_SIN].double(), calendar[..., DAY_COS].double()) / (2 * torch.pi)
    # Sines in float32 are exact to about a hundredth of a second; snapshots start on whole seconds.
    return (turn * 86_400).round().long() % 86_400


def clock_bins(calendar: Tensor) -> Tensor:
    """[...] the bin, weekday or weekend and local hour, of a calendar row [...,C]."""
    return clock_seconds(calendar) // 3600 + HOURS * (calendar[..., WEEKEND] > 0.5).long()


def between_bins(calendar: Tensor, step_s: int) -> tuple[Tensor, Tensor, Tensor]:
    """The two hours whose middles are next to the middle of a snapshot, for values that change from hour to hour.

    Parameters
    ----------
    calendar
        [...,C] of the start of snapshots.
    step_s
        Their length.

    Returns
    -------
    first, second, share
        [...] the two bins, of the same kind of day, and the share of the second.
    """
    middle = clock_seconds(calendar) + step_s // 2 - 1800
    hour = middle.div(3600, rounding_mode="floor")
    share = (middle - 3600 * hour) / 3600
    weekend = HOURS * (calendar[..., WEEKEND] > 0.5).long()
    return hour % HOURS + weekend, (hour + 1) % HOURS + weekend, share
