"""The calendar as model inputs: sines and cosines of local time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from frigate.calendar import DAY_S, KIND, KINDS_OF_DAY, SECOND, WEEKDAY

CALENDAR = ("day_sin", "day_cos", "week_sin", "week_cos", "weekend")


def calendar(clock: Tensor) -> Tensor:
    """[...,C] the features in CALENDAR, from wall-clock times [...,3]."""
    second = clock[..., SECOND].double()  # float32 would lose a digit
    day = second * (2 * math.pi / DAY_S)
    week = (clock[..., WEEKDAY] * DAY_S + second) * (2 * math.pi / (7 * DAY_S))
    weekend = (clock[..., KIND] == KINDS_OF_DAY.index("weekend")).to(day.dtype)
    return torch.stack([day.sin(), day.cos(), week.sin(), week.cos(), weekend], dim=-1).float()
