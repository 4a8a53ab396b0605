"""Kinds of day and hours, read off the calendar that a batch carries."""

from __future__ import annotations

import torch
from torch import Tensor

from frigate.data.stream import CALENDAR

HOURS = 24
CLOCK_BINS = 2 * HOURS  # weekday hours, then weekend hours
DAY_SIN, DAY_COS, WEEKEND = (CALENDAR.index(name) for name in ("day_sin", "day_cos", "weekend"))


def clock_bins(calendar: Tensor) -> Tensor:
    """[...] the bin, weekday or weekend and local hour, of a calendar row [...,C]."""
    turn = torch.atan2(calendar[..., DAY_SIN].double(), calendar[..., DAY_COS].double()) / (2 * torch.pi)
    # Sines in float32 are exact to about a hundredth of a second; snapshots start on whole seconds.
    second = (turn * 86_400).round().long() % 86_400
    return second // 3600 + HOURS * (calendar[..., WEEKEND] > 0.5).long()
