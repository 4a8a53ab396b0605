"""Scenarios: forecast as anything else is, summed up over the trips, and read from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import frigate as fg
from frigate.demand.tables import usual_flow
from frigate.errors import SettingsError
from frigate.forecasting.plan import RoadChange
from frigate.forecasting.scenario_file import read_scenarios
from frigate.forecasting.scenarios import Range, Scenario, ScenarioStudy, compare_scenarios
from tests.support.errors import raises
from tests.support.forecast_runs import small_city, small_run
from tests.support.service import STEP_S, Town, train_town

BEGIN = 40  # the snapshot that the period begins with
STEPS = 4  # an hour


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return train_town(tmp_path_factory.mktemp("town"))


@pytest.fixture(scope="module")
def busiest(town: Town) -> tuple[str, str]:
    demand = fg.Forecaster(town.run, town.city, device="cpu").demand
    assert demand is not None
    network = demand.network
    row = int(demand.road_flow.mean(0).argmax())
    return str(network.node_ids[network.senders[row]]), str(network.node_ids[network.receivers[row]])


def begin_s(town: Town) -> int:
    return int(town.city.stream.times_s[BEGIN])


@pytest.fixture(scope="module")
def change(town: Town, busiest: tuple[str, str]) -> RoadChange:
    """The busiest road closes in two of the four steps."""
    return RoadChange([busiest], begin=begin_s(town) + STEP_S, end=begin_s(town) + 3 * STEP_S)


@pytest.fixture(scope="module")
def study(town: Town, change: RoadChange) -> ScenarioStudy:
    always = replace(change, begin=None, end=None)
    return compare_scenarios(
        town.run,
        [Scenario("some time", (change,)), Scenario("always", (always,))],
        begin=begin_s(town),
        end=begin_s(town) + STEPS * STEP_S,
        city=town.city,
        device="cpu",
    )


def test_each_scenario_is_the_forecast_with_its_changes(town: Town, study: ScenarioStudy, change: RoadChange) -> None:
    ask = {"stream": town.city, "at": begin_s(town), "horizon": STEPS, "device": "cpu"}
    for made, changes in ((study.base, []), (study.outcomes[0].forecast, [change])):
        expected = fg.forecast(town.run, changes=changes, **ask)  # type: ignore[arg-type]
        np.testing.assert_allclose(made.values, expected.values, rtol=1e-5, atol=1e-5)
    part, whole = study.outcomes
    assert (np.abs(part.road_flow - study.base_flow).sum(1) > 0).tolist() == [False, True, True, False]
    assert part.closed.sum() == whole.closed.sum() == 1
    assert (part.road_flow[1:3, part.closed] == 0).all() and (study.base_flow[:, part.closed] > 0).all()


def test_trips_are_counted_while_their_road_is_closed(town: Town, study: ScenarioStudy, change: RoadChange) -> None:
    """Half of an hour: half of the vehicles, the same detour."""
    part, whole = study.outcomes
    demand = fg.Forecaster(town.run, town.city, device="cpu").demand
    assert demand is not None
    row = int(np.flatnonzero(part.closed)[0])
    bins = np.array([hour_bin(town, begin_s(town) + k * STEP_S) for k in range(STEPS)])
    on_road = [
        demand.trips(k)[np.flatnonzero(trips.through_road[:, [row]].toarray().ravel())][:, bins].sum()
        for k, trips in enumerate(demand.sets[: demand.settings.detour_sets])
    ]
    assert whole.moved.value + whole.lost.value == pytest.approx(np.mean(on_road), rel=1e-4)
    assert part.moved.value == pytest.approx(whole.moved.value / 2, rel=1e-4)
    assert part.detour_m.value == pytest.approx(whole.detour_m.value, rel=1e-4)
    assert whole.vehicle_km.low <= whole.vehicle_km.value <= whole.vehicle_km.high
    if whole.lost.value == 0:
        extra_km = whole.moved.value * whole.detour_m.value / 1000
        assert whole.vehicle_km.value == pytest.approx(extra_km, rel=1e-3)


def hour_bin(town: Town, time_s: int) -> int:
    local = fg.Forecaster(town.run, town.city, device="cpu").stream.local_time(time_s)
    assert local[:10] < "2024-03-09"  # a weekday
    return int(local[11:13])


def test_the_largest_increases_are_by_street_and_hour(town: Town, study: ScenarioStudy) -> None:
    whole = study.outcomes[1]
    per_hour = 3600 / STEP_S
    rise = per_hour * (whole.road_flow - study.base_flow).mean(0)  # the period lies in one hour
    assert len({each.street for each in whole.increases}) == len(whole.increases) > 0
    first = whole.increases[0]
    assert first.row == rise.argmax() and first.after - first.before == pytest.approx(rise.max(), rel=1e-4)
    assert first.low <= first.after <= first.high
    names = study.network.edges.name
    assert all(each.street == names[each.row] for each in whole.increases if names[each.row])
    assert [each.after - each.before for each in whole.increases] == sorted(
        (each.after - each.before for each in whole.increases), reverse=True
    )


def test_places_over_their_usual_maximum_are_named(town: Town, study: ScenarioStudy) -> None:
    demand = fg.Forecaster(town.run, town.city, device="cpu").demand
    assert demand is not None
    most = usual_flow(demand).max(0) * 3600 / STEP_S
    for outcome in study.outcomes:
        hourly = outcome.forecast.values.mean(0) * 3600 / STEP_S
        before = {each.row for each in study.over_maximum}
        expected = {row for row in np.flatnonzero(hourly > most).tolist() if row not in before}
        assert {each.row for each in outcome.over_maximum} == expected
        for each in outcome.over_maximum:
            assert each.vehicles_per_hour == pytest.approx(hourly[each.row], rel=1e-4)


def test_a_ratio_leaves_out_what_cannot_be_divided() -> None:
    assert Range.of(np.array([2.0, 4.0, 0.0]), per=np.array([1.0, 1.0, 0.0])).value == 3
    assert Range.of(np.array([1.0]), per=np.zeros(1)) == Range(0, 0, 0)
    assert Range.of(np.array([1.0, 3.0])).value == 2


def test_all_numbers_are_in_one_table(study: ScenarioStudy) -> None:
    rows = study.long_rows()
    assert len({tuple(row) for row in rows}) == 1
    values = {(row["scenario"], row["what"]): row["value"] for row in rows if not row["street"]}
    assert values["always", "moved"] == study.outcomes[1].moved.value
    assert len(rows) == 2 * 5 + sum(len(outcome.increases) for outcome in study.outcomes)


def test_what_cannot_be_compared_is_refused(town: Town, change: RoadChange) -> None:
    scenario = Scenario("A", (change,))
    with raises(SettingsError, "no scenario"):
        compare_scenarios(town.run, [], city=town.city)
    with raises(SettingsError, '"A"', "own name"):
        compare_scenarios(town.run, [scenario, scenario], city=town.city)
    with raises(SettingsError, "without demand"):
        compare_scenarios(small_run("paper"), [scenario], city=small_city())
    ask = {"city": town.city, "begin": begin_s(town), "device": "cpu"}
    with raises(SettingsError, "end", "after the begin"):
        compare_scenarios(town.run, [scenario], end=begin_s(town), **ask)  # type: ignore[arg-type]
    with raises(SettingsError, 'scenario "A"', "none of the steps"):
        compare_scenarios(town.run, [scenario], end=begin_s(town) + STEP_S, **ask)  # type: ignore[arg-type]


PLAN = """
begin = 2024-03-04T06:00:00
end = "10:00"

[[scenario]]
name = "Bridge works"
[[scenario.change]]
close = ["Tanner Bridge", "41,42"]
begin = "08:00"
end = 09:30:00

[[scenario]]
name = "A new road"
change = [{ add = "41,97,120" }]
"""


def test_a_file_of_scenarios_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    found = read_scenarios(path)
    assert (found.begin, found.end) == ("2024-03-04T06:00:00", "10:00")
    works = RoadChange(["Tanner Bridge", "41,42"], [], "08:00", "09:30:00")
    assert found.scenarios == (
        Scenario("Bridge works", (works,)),
        Scenario("A new road", (RoadChange([], ["41,97,120"]),)),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("begin = ", ("not TOML",)),
        ("", ("[[scenario]]", "at least one")),
        ("scenario = 3", ("[[scenario]]",)),
        ("start = 1\n[[scenario]]", ('"start"', "begin, end, scenario")),
        ("begin = 7\n[[scenario]]\nname='A'\nchange=[{close='1,2'}]", ("begin = 7", "a time is expected")),
        ("[[scenario]]\nchange = [{close='1,2'}]", ("scenario 1", "no name")),
        ("[[scenario]]\nname='A'", ('scenario 1, "A"', "change")),
        ("[[scenario]]\nname='A'\nclosed='1,2'", ('"closed"',)),
        ("[[scenario]]\nname='A'\nchange=[{begin='08:00'}]", ("change 1", "no road")),
        ("[[scenario]]\nname='A'\nchange=[{close=[1]}]", ("close = [1]", "texts")),
        ("[[scenario]]\nname='A'\nchange=[{closes='1,2'}]", ('"closes"', "close")),
        ("[[scenario]]\nname='A'\nchange=[{close='1,2'}]\n" * 21, ("21 scenarios", "20")),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with raises(SettingsError, "plan.toml", *named):
        read_scenarios(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with raises(SettingsError, "nowhere.toml", "No such file"):
        read_scenarios(tmp_path / "nowhere.toml")
