"""The calendar that a model reads: sines and cosines of the local time."""

from __future__ import annotations

import numpy as np
import torch

from frigate.calendar import wall_clock
from frigate.nn.calendar import CALENDAR, calendar

MONDAY_S = 1_704_067_200  # 2024-01-01T00:00Z


def test_the_calendar_is_a_clock_and_a_week() -> None:
    hours = np.arange(0, 14 * 24)
    table = calendar(torch.from_numpy(wall_clock(MONDAY_S + 3600 * hours))).numpy()
    assert table.shape == (len(hours), len(CALENDAR)) and table.dtype == np.float32
    column = dict(zip(CALENDAR, table.T, strict=True))
    np.testing.assert_allclose(column["day_sin"] ** 2 + column["day_cos"] ** 2, 1, rtol=1e-6)
    np.testing.assert_allclose(column["week_sin"] ** 2 + column["week_cos"] ** 2, 1, rtol=1e-6)
    np.testing.assert_allclose(table[:168], table[168:], atol=1e-6)  # a week comes round
    np.testing.assert_allclose(column["day_sin"][:24], column["day_sin"][24:48], atol=1e-6)
    assert column["day_cos"][0] == column["week_cos"][0] == 1  # Monday 00:00 is where both begin
    assert np.argmax(column["day_sin"][:24]) == 6
    assert column["weekend"].tolist() == ([0] * 120 + [1] * 48) * 2
