"""Between the hours: the two whose middles are next to a snapshot's."""

from __future__ import annotations

import numpy as np

from frigate.calendar import between_bins, wall_clock

SATURDAY_S = 1_704_499_200  # 2024-01-06T00:00Z


def test_a_value_of_each_hour_is_met_in_its_middle_and_changes_evenly_between() -> None:
    second = np.array([0, 1500, 1650, 1800, 3450, 5250, 86_100])
    for step_s, middle in (
        (300, second + 150),
        (3600, second // 3600 * 3600 + 1800),
        (7200, second // 3600 * 3600 + 3600),
    ):
        start = middle - step_s // 2
        first, second_bin, share = between_bins(wall_clock(SATURDAY_S + start), step_s)
        where = first + share  # 24 + hour, from the middle of each hour
        expected = 24 + ((middle - 1800) / 3600) % 24
        np.testing.assert_allclose(where[start >= 0], expected[start >= 0])
        assert ((second_bin - first) % 24 == 1).all()
        assert ((first >= 24) & (second_bin >= 24))[start >= 0].all()
