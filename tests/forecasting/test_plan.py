"""Changes to the roads ahead, each from a time until another."""

from __future__ import annotations

import numpy as np
import pytest

from frigate.errors import CityError, SettingsError
from frigate.forecasting.plan import RoadChange, RoadPlan
from tests.support.errors import raises
from tests.support.forecast_runs import grid

NOW_S = 1_710_748_800  # 2024-03-18 08:00 UTC
HOURS_S = NOW_S + 3600 * np.arange(6)  # the steps ahead begin at 08:00 to 13:00


def plan(*changes: RoadChange) -> RoadPlan:
    return RoadPlan.of(changes, now_s=NOW_S, timezone="UTC")


def test_each_change_holds_in_the_steps_that_begin_in_its_time() -> None:
    usual = grid()
    first, second = usual.close([(6, 7)]), usual.close([(7, 8)])
    both = first.close([(7, 8)])
    made = plan(
        RoadChange(["6,7"], begin="09:00", end="11:00"), RoadChange(["7,8"], begin="09:30", end="tomorrow 08:00")
    )
    found = made.roads([usual] * 6, HOURS_S)
    expected = [usual, first, both, second, second, second]
    assert [each.fingerprint for each in found] == [each.fingerprint for each in expected]


def test_an_end_is_the_first_after_the_begin() -> None:
    found = plan(RoadChange(["6,7"], begin="10:00", end="09:00")).roads([grid()] * 6, HOURS_S)
    assert [each.num_edges for each in found] == [grid().num_edges] * 2 + [grid().num_edges - 1] * 4


def test_roads_that_are_planned_to_close_anyway_stay_closed() -> None:
    usual = grid()
    shut = usual.close([(6, 7)])
    found = plan(RoadChange(["6,7"], end="10:00")).roads([usual, usual, shut, shut, usual, usual], HOURS_S)
    assert [each.fingerprint == shut.fingerprint for each in found] == [True, True, True, True, False, False]


def test_without_times_a_change_holds_in_all_steps() -> None:
    added = grid().add(roads=[(0, 6)])
    found = plan(RoadChange(add=["0,6"])).roads([grid()] * 6, HOURS_S)
    assert {each.fingerprint for each in found} == {added.fingerprint}
    assert not plan(RoadChange())


def test_a_change_without_effect_is_refused() -> None:
    usual = grid()
    with raises(SettingsError, "from 2024-03-18T14:00:00+00:00", "last at 2024-03-18T13:00:00"):
        plan(RoadChange(["6,7"], begin="14:00")).roads([usual] * 6, HOURS_S)
    with raises(SettingsError, "until 2024-03-18T07:00:00+00:00"):
        plan(RoadChange(["6,7"], end="2024-03-18T07:00")).roads([usual] * 6, HOURS_S)
    with raises(CityError, "0,12"):  # no such road, in any of its steps
        plan(RoadChange(["6,7"]), RoadChange(["0,12"], begin="09:00")).roads([usual] * 6, HOURS_S)
    with raises(SettingsError, "end", "after begin"):
        plan(RoadChange(["6,7"], begin="09:00", end="2024-03-18T09:00"))
    with raises(SettingsError, "closes and adds no road"):
        plan(RoadChange(begin="09:00"))


@pytest.mark.parametrize("times", [{"begin": "soon"}, {"end": "8"}])
def test_a_time_that_is_none_is_refused_by_its_name(times: dict[str, str]) -> None:
    with raises(SettingsError, next(iter(times)), "not a time"):
        plan(RoadChange(["6,7"], **times))
