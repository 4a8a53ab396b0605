"""What is left of a closure's change: nothing for a perfect forecast, all of it for none."""

from __future__ import annotations

import numpy as np
import pytest

from frigate.evaluation.closures import left_of_change

BEFORE = np.array([1000.0, 1000.0, 100.0, 50.0, 400.0])
AFTER = np.array([800.0, 1210.0, 10.0, 0.0, 0.0])  # -200, +210, -90, -50, -400
SCORED = np.array([True, True, True, True, False])


def test_none_of_it_or_all_of_it() -> None:
    change = AFTER - BEFORE
    for forecast, left in ((change, 0.0), (np.zeros(5), 1.0), (0.5 * change, 0.5), (-change, 2.0)):
        found = left_of_change(BEFORE, AFTER, forecast, SCORED)
        assert (found.everywhere, found.at_affected) == pytest.approx((left, left))


def test_nodes_are_affected_by_much_and_by_a_share() -> None:
    found = left_of_change(BEFORE, AFTER, np.zeros(5), SCORED)
    assert found.affected.tolist() == [False, True, True, False, False]  # -20 % is not more; -50 an hour is little
    forecast = np.array([0.0, 210.0, 0.0, 0.0, 0.0])
    found = left_of_change(BEFORE, AFTER, forecast, SCORED)
    assert found.at_affected == pytest.approx(90 / 300)
    assert found.everywhere == pytest.approx(340 / 550)  # the last node is not scored


def test_without_a_change_there_is_no_share_of_it() -> None:
    found = left_of_change(BEFORE, BEFORE, np.ones(5), SCORED)
    assert np.isnan(found.everywhere) and np.isnan(found.at_affected)
