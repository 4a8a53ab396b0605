"""Scenarios: named sets of dated changes to the roads, forecast beside no change at all, and summed up for a planner.

Flows are those of the forecast. What becomes of the trips (who loses the way, how much longer the new one is) follows
from the estimated trips; its range is that over the route sets. S route sets, H steps, N nodes, E usual roads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import HOUR_S, hourly_bins, local_iso, utc_offsets_s, wall_clock
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.periods import When
from frigate.demand.tables import usual_flow
from frigate.errors import CityError, SettingsError
from frigate.forecasting.forecaster import Forecaster
from frigate.forecasting.plan import RoadChange
from frigate.forecasting.result import Forecast
from frigate.training.run import Run

MEASURES = ("vehicle_km", "moved", "detour_m", "lost")
LISTED = 10  # streets with the largest increases, and places over their usual maximum
RANGE = (0.05, 0.95)  # quantiles over the route sets
Z = 1.645  # the same of a normal distribution
MAX_STEPS = 14 * 288

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Scenario:
    """A name and the changes to the roads that it stands for."""

    name: str
    changes: tuple[RoadChange, ...]


@dataclass(frozen=True)
class Range:
    """A number about the trips: the mean over the route sets, and where most of them lie."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, sets: Floats, per: Floats | None = None) -> Range:
        """From the sum of each route set [S], or from a ratio of two; sets in which there is nothing to divide by count
        for nothing.
        """
        per = np.ones(len(sets)) if per is None else per
        some = per > 0
        if not some.any():
            return cls(0.0, 0.0, 0.0)
        low, high = np.quantile(sets[some] / per[some], RANGE).tolist()
        return cls(float(sets[some].sum() / per[some].sum()), low, high)

    def text(self, form: str = ",.0f") -> str:
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


@dataclass(frozen=True)
class Increase:
    """The hour in which traffic in a street increases most, at the road (in a city on roads: node) where it does so."""

    street: str
    row: int
    time_s: int  # when the hour begins
    before: float  # vehicles per hour
    after: float
    low: float  # of `after`, over the route sets
    high: float


@dataclass(frozen=True)
class OverMaximum:
    """A node whose busiest hour is busier than any usual hour of the week."""

    row: int
    time_s: int  # when the hour begins
    vehicles_per_hour: float
    usual_maximum: float


@dataclass(frozen=True)
class Outcome:
    """A scenario beside no change, over the whole period."""

    scenario: Scenario
    forecast: Forecast
    road_flow: Floats  # [H,E]
    closed: NDArray[np.bool_]  # [E] roads that are closed in a step in which they are open without the scenario
    vehicle_km: Range  # more than without the scenario
    moved: Range  # vehicles that take another way
    detour_m: Range  # that one of these drives more
    lost: Range  # vehicles with no way left
    increases: tuple[Increase, ...]
    over_maximum: tuple[OverMaximum, ...]  # that are not without the scenario
    notices: tuple[str, ...]


@dataclass(frozen=True)
class ScenarioStudy:
    """Scenarios beside no change."""

    city: str
    network: RoadNetwork  # the usual roads
    base: Forecast
    base_flow: Floats  # [H,E]
    vehicle_km: Range  # without any scenario
    over_maximum: tuple[OverMaximum, ...]  # without any scenario
    outcomes: tuple[Outcome, ...]

    @property
    def period(self) -> str:
        last_s = int(self.base.times_s[-1]) + self.base.step_s
        return " to ".join(local_iso(time_s, self.base.timezone)[:16] for time_s in (self.base.at_s, last_s))

    def rows(self) -> list[dict[str, Any]]:
        """One row of numbers for each scenario."""
        found = []
        for outcome in self.outcomes:
            row: dict[str, Any] = {"scenario": outcome.scenario.name}
            for name in MEASURES:
                each: Range = getattr(outcome, name)
                row |= {name: each.value, f"{name}_low": each.low, f"{name}_high": each.high}
            found.append(row | {"over_maximum": len(outcome.over_maximum)})
        return found

    def street_rows(self) -> list[dict[str, Any]]:
        """The largest increases of each scenario."""
        return [
            {
                "scenario": outcome.scenario.name,
                "street": each.street,
                "hour": local_iso(each.time_s, self.base.timezone),
                "before": each.before,
                "after": each.after,
                "after_low": each.low,
                "after_high": each.high,
            }
            for outcome in self.outcomes
            for each in outcome.increases
        ]

    def long_rows(self) -> list[dict[str, Any]]:
        """All numbers in one table: a row for each measure of a scenario, and for each of its largest increases."""
        found = []
        for outcome, row in zip(self.outcomes, self.rows(), strict=True):
            name = outcome.scenario.name
            for what in MEASURES:
                values = {"value": row[what], "low": row[f"{what}_low"], "high": row[f"{what}_high"]}
                found.append({"scenario": name, "what": what, "street": "", "hour": "", "before": "", **values})
            over = {"value": row["over_maximum"], "low": "", "high": ""}
            found.append({"scenario": name, "what": "over_maximum", "street": "", "hour": "", "before": "", **over})
        for each in self.street_rows():
            about = {key: each[key] for key in ("street", "hour", "before")}
            values = {"value": each["after"], "low": each["after_low"], "high": each["after_high"]}
            found.append({"scenario": each["scenario"], "what": "vehicles_per_hour", **about, **values})
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "city": self.city,
            "begin": local_iso(self.base.at_s, self.base.timezone),
            "steps": self.base.horizon,
            "step_s": self.base.step_s,
            "vehicle_km_without": [self.vehicle_km.value, self.vehicle_km.low, self.vehicle_km.high],
            "over_maximum_without": len(self.over_maximum),
            "scenarios": self.rows(),
            "increases": self.street_rows(),
            "notices": {outcome.scenario.name: list(outcome.notices) for outcome in self.outcomes},
        }


def compare_scenarios(
    run: Run,
    scenarios: Sequence[Scenario],
    *,
    begin: When | None = None,
    end: When | None = None,
    city: City | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ScenarioStudy:
    """Forecast each scenario, and no change, over a period.

    Parameters
    ----------
    run : Run
        Must forecast counts, with demand: trips are what is rerouted.
    scenarios : sequence of Scenario
        With different names.
    begin, end : time, optional
        The period, as `at` of `frigate.forecast`. Default: from the end of the readings, for as long as a forecast.
    city : City, optional
        Default: the city the run was trained on.
    device : str, optional
        "cpu" or "cuda". Default: cuda if available.
    progress
        Called with how many forecasts are done, and of how many.
    """
    if not scenarios:
        raise SettingsError("there is no scenario to compare. Name at least one")
    names = [scenario.name for scenario in scenarios]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f'two scenarios are called "{twice[0]}". Give each its own name')
    forecaster = Forecaster(run, city, device=device)
    if forecaster.demand is None:
        raise SettingsError("scenarios reroute trips, and this run has none: it was trained without demand")
    steps = forecaster.steps_between(begin, end)
    if steps > MAX_STEPS:
        raise SettingsError(f"the period has {steps:,} steps. Compare at most {MAX_STEPS:,}")
    total = len(scenarios) + 1
    base = _Answered.of(forecaster, begin, steps, ())
    progress(1, total)
    outcomes = []
    for scenario in scenarios:
        try:
            answered = _Answered.of(forecaster, begin, steps, scenario.changes)
        except (CityError, SettingsError) as error:
            raise type(error)(f'scenario "{scenario.name}": {error}') from None
        outcomes.append(_outcome(forecaster, scenario, base, answered))
        progress(1 + len(outcomes), total)
    driven_m, *_ = _trip_sums(forecaster, base)
    return ScenarioStudy(
        city="" if forecaster.city is None else forecaster.city.name,
        network=forecaster.usual_roads,
        base=base.forecast,
        base_flow=base.road_flow,
        vehicle_km=Range.of(driven_m / 1000),
        over_maximum=_over_maximum(forecaster, base, frozenset()),
        outcomes=tuple(outcomes),
    )


@dataclass(frozen=True)
class _Answered:
    """A forecast of the period with the networks of its steps."""

    forecast: Forecast
    networks: tuple[RoadNetwork, ...]  # [H]
    road_flow: Floats  # [H,E]

    @classmethod
    def of(cls, forecaster: Forecaster, begin: When | None, steps: int, changes: Sequence[RoadChange]) -> _Answered:
        request = forecaster.request(begin, changes=changes, horizon=steps)
        made = forecaster.answer(request)
        return cls(made, request.networks, forecaster.road_flow(made.values, request.networks, made.times_s))

    @property
    def hour_of(self) -> Ints:
        """[H] the hour that each step begins in, by the clock on the wall; counted from any origin."""
        return (self.forecast.times_s + utc_offsets_s(self.forecast.times_s, self.forecast.timezone)) // HOUR_S

    def hourly(self, flow: Floats) -> tuple[Floats, Ints]:
        """[hours,...] the values [H,...] as vehicles per hour, and when each hour begins."""
        hours, first, of = np.unique(self.hour_of, return_index=True, return_inverse=True)
        total = np.zeros((len(hours), flow.shape[1]))
        np.add.at(total, of, np.nan_to_num(flow))
        covered_s = self.forecast.step_s * np.bincount(of)
        return total * (HOUR_S / covered_s)[:, None], self.forecast.times_s[first]


def _outcome(forecaster: Forecaster, scenario: Scenario, base: _Answered, made: _Answered) -> Outcome:
    driven_m, moved, extra_m, lost, lost_m = _trip_sums(forecaster, made)
    before_m, moved_before, extra_before, lost_before, lost_m_before = _trip_sums(forecaster, base)
    shut = np.zeros(base.road_flow.shape[1], bool)
    for old, new in zip(base.networks, made.networks, strict=True):
        if old.fingerprint != new.fingerprint:
            shut |= forecaster.closed(new) & ~forecaster.closed(old)
    over_before = frozenset(each.row for each in _over_maximum(forecaster, base, frozenset()))
    more_moved = moved - moved_before
    said = set(base.forecast.notices)
    return Outcome(
        scenario=scenario,
        forecast=made.forecast,
        road_flow=made.road_flow,
        closed=shut,
        vehicle_km=Range.of(((driven_m + extra_m - lost_m) - (before_m + extra_before - lost_m_before)) / 1000),
        moved=Range.of(more_moved),
        detour_m=Range.of(extra_m - extra_before, per=more_moved),
        lost=Range.of(lost - lost_before),
        increases=_increases(forecaster, base, made),
        over_maximum=_over_maximum(forecaster, made, over_before),
        notices=tuple(notice for notice in made.forecast.notices if notice not in said),
    )


def _trip_sums(forecaster: Forecaster, answered: _Answered) -> tuple[Floats, ...]:
    """[S] over all steps: metres driven as usual; vehicles moved, and their extra metres; vehicles lost, and theirs."""
    forecast = answered.forecast
    times_s = forecast.times_s
    bins = hourly_bins(wall_clock(times_s + utc_offsets_s(times_s, forecast.timezone)))
    prints = np.array([network.fingerprint for network in answered.networks])
    sums: list[Sequence[Floats]] = []
    for fingerprint in np.unique(prints).tolist():
        of_network = prints == fingerprint
        network = answered.networks[int(of_network.argmax())]
        totals = forecaster.detour_totals(network)
        weight = np.bincount(bins[of_network], minlength=totals.driven_m.shape[1])
        each = [found @ weight for found in (totals.driven_m, totals.moved, totals.extra_m, totals.lost, totals.lost_m)]
        sums.append(each)
    return tuple(np.sum([of[k] for of in sums], axis=0) for k in range(len(sums[0])))


def _increases(forecaster: Forecaster, base: _Answered, made: _Answered) -> tuple[Increase, ...]:
    """The largest increase of each street, largest first."""
    network = forecaster.usual_roads
    on_roads = len(network.lines) > 0
    flows = [each.forecast.values if on_roads else each.road_flow for each in (base, made)]
    (before, begins_s), (after, _) = (each.hourly(flow) for each, flow in zip((base, made), flows, strict=True))
    spread = _spread(forecaster, made, on_roads=on_roads)
    rise = after - before
    hour = rise.argmax(0)  # of each road
    largest = rise.max(0)
    streets = network.streets if on_roads else network.edges.name
    found: dict[str, Increase] = {}
    for row in np.argsort(-largest, kind="stable").tolist():
        if largest[row] <= 0 or len(found) == LISTED:
            break
        street = str(streets[row]) or _ends(network, row, on_roads=on_roads)
        if street in found:
            continue
        was, now = float(before[hour[row], row]), float(after[hour[row], row])
        factor = float(np.exp(Z * spread[row]))
        found[street] = Increase(
            street, row, int(begins_s[hour[row]]), was, now, max(now / factor, min(was, now)), now * factor
        )
    return tuple(found.values())


def _spread(forecaster: Forecaster, made: _Answered, *, on_roads: bool) -> Floats:
    """[E] or [N] the largest uncertainty of the change in any step: standard deviation of its logarithm."""
    distinct = {network.fingerprint: network for network in made.networks}.values()
    found = [each for each in map(forecaster.rerouted, distinct) if each is not None]
    size = forecaster.usual_roads.num_nodes if on_roads else forecaster.usual_roads.num_edges
    spreads = [each.node_spread if on_roads else each.road_spread for each in found]
    largest: Floats = np.max(np.stack([np.zeros(size, np.float32), *spreads]), axis=0)
    return largest


def _ends(network: RoadNetwork, row: int, *, on_roads: bool) -> str:
    if on_roads:
        return str(network.node_ids[row])
    return f"{network.node_ids[network.senders[row]]} → {network.node_ids[network.receivers[row]]}"


def _over_maximum(forecaster: Forecaster, made: _Answered, but: frozenset[int]) -> tuple[OverMaximum, ...]:
    """The nodes that are busier in an hour than usual in any, but for some; farthest over it first."""
    demand = forecaster.demand
    assert demand is not None
    usual = usual_flow(demand).max(0).astype(np.float64) * (HOUR_S / demand.step_s)
    flow, begins_s = made.hourly(made.forecast.values)
    hour = flow.argmax(0)
    most = flow.max(0)
    over = np.flatnonzero(most > usual)
    ranked = over[np.argsort(usual[over] - most[over], kind="stable")].tolist()
    return tuple(
        OverMaximum(row, int(begins_s[hour[row]]), float(most[row]), float(usual[row]))
        for row in ranked
        if row not in but
    )
