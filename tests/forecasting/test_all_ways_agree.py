"""However a forecast is asked for, it is the same: in one call, of a window, live, of the service, in a report.

The run has demand and a learned correction that is far from zero, in a city that is not in UTC.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import frigate as fg
from frigate.calendar import utc_iso
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.city.timeline import Timeline
from frigate.evaluation.evaluate import forecaster_of, score
from frigate.evaluation.metrics import Scores
from frigate.forecasting.edits import edit_network
from frigate.forecasting.forecaster import Forecaster
from frigate.forecasting.live import Live
from frigate.nn.model import Frigate
from frigate.nn.windows import Layout, roads_of_windows
from frigate.pages.day import Day, _forecasts
from frigate.pages.wire import decode
from frigate.serve.store import Reading, open_store
from tests.support.service import HORIZON, PAST, STEP_S, Served, Town, serve_town, train_town

FIRST = 36  # the last complete snapshot of most forecasts here: 09:00, local time
LATE = 120  # a snapshot in the test period
LONG = FIRST + 30  # a closure up to here outlasts every forecast, and is not usual

Values = NDArray[np.floating]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    """As in the tests of the service, with a correction that is not small, and readings of another time zone."""
    town = train_town(tmp_path_factory.mktemp("town"))
    model = copy.deepcopy(town.run.model)
    assert isinstance(model, Frigate) and model.corrects_demand
    model.trust_correction(1.0)
    torch.manual_seed(0)
    with torch.no_grad():
        for readout in (model.first, model.readout):
            for parameter in readout[-1].parameters():
                parameter.normal_(std=0.5)
    stream = town.city.stream
    assert stream.timezone != "UTC"
    return Town(town.folder, replace(town.run, model=model), town.city)


@pytest.fixture(scope="module")
def roads(town: Town) -> list[tuple[str, str]]:
    """Both ways of the busiest street."""
    network = town.city.network
    demand = Forecaster(town.run, town.city, device="cpu").demand
    assert demand is not None
    busy = int(demand.road_flow.mean(0).argmax())
    a, b = (str(network.node_ids[ends[busy]]) for ends in (network.senders, network.receivers))
    return [(a, b), (b, a)]


def closed(network: RoadNetwork, roads: Sequence[tuple[str, str]]) -> RoadNetwork:
    return edit_network(network, close=roads)


def changing(
    stream: RoadNetworkStream, *periods: tuple[int, int], roads: Sequence[tuple[str, str]]
) -> RoadNetworkStream:
    """The record with roads closed in snapshots [first, stop)."""
    network_of = np.zeros(stream.num_snapshots, np.int64)
    for first, stop in periods:
        network_of[first:stop] = 1
    usual = stream.usual_network()
    return replace(stream, networks=(usual, closed(usual, roads)), network_of=network_of)


def at(town: Town, snapshot: int) -> int:
    """The end of a snapshot, in seconds since 1970 UTC."""
    return int(town.city.stream.times_s[snapshot]) + STEP_S


def asked(town: Town, stream: RoadNetworkStream | None = None, snapshot: int = FIRST, **how: object) -> Values:
    city = town.city if stream is None else replace(town.city, stream=stream)
    made = fg.forecast(town.run, stream=city, at=at(town, snapshot), device="cpu", **how)  # type: ignore[arg-type]
    return made.values


def live(town: Town, changes: Sequence[tuple[int, RoadNetwork]] = (), snapshot: int = FIRST) -> Live:
    """A live forecast that has been told the window, and of roads that change."""
    stream = town.city.stream
    made = Live(town.run, town.city, device="cpu")
    rows = slice(snapshot + 1 - PAST, snapshot + 1)
    values = np.where(stream.observed[rows], stream.values[rows], np.nan)
    begin_s = int(stream.times_s[rows.start])
    made.restore(begin_s, values, Timeline.of(stream.usual_network(), *changes))
    return made


def same(found: Values, expected: Values) -> None:
    """To the rounding of float32; effects of closures here are some vehicles."""
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.fixture
def served(town: Town, tmp_path: Path) -> Iterator[Served]:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store, first=None) as served:
        served.service.store.add_readings(town.reading_rows(FIRST + 1 - PAST, FIRST + 1), 0)
        yield served
    store.close()


def forecast_by(served: Served, snapshot: int = FIRST) -> Values:
    """As the service issues it: rounded to 12 binary digits."""
    served.time.now_s = at(served.town, snapshot) + 20
    assert served.service.clock.turn()
    return served.service.latest.get().issued.forecast.values


def nearly(found: Values, expected: Values) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


# A closure that begins with the forecast


def test_the_correction_and_the_closure_matter_here(town: Town, roads: list[tuple[str, str]]) -> None:
    usual = asked(town)
    shut = asked(town, close=roads)
    alone = replace(town.run, model=town.run.model)
    forecaster = Forecaster(alone, town.city, device="cpu")
    batch = forecaster.batch(np.array([FIRST]))
    assert batch.demand is not None
    assert np.abs(usual - batch.demand[0].numpy()).max() > 1  # what the network adds
    assert np.abs(usual - shut).max() > 5


def test_roads_that_close_now_close_in_every_way(town: Town, roads: list[tuple[str, str]]) -> None:
    usual = town.city.stream.usual_network()
    expected = asked(town, close=roads)
    same(asked(town, network=closed(usual, roads)), expected)
    same(asked(town, changing(town.city.stream, (FIRST + 1, LONG), roads=roads)), expected)  # a row in `changes`
    ended = town.city.stream.slice(0, FIRST + 1)
    both = usual, closed(usual, roads)
    for since_s in (at(town, FIRST), at(town, FIRST) - 10):  # a row after the last reading, also within a snapshot
        planned = replace(ended, networks=both, later_s=np.array([since_s]), later=np.array([1]))
        same(asked(town, planned), expected)
    same(live(town).what_if(close=roads).values, expected)
    same(live(town).what_if(closed(usual, roads)).values, expected)
    for since_s in (at(town, FIRST), at(town, FIRST) - 10):
        same(live(town, [(since_s, closed(usual, roads))]).forecast().values, expected)


def test_roads_that_are_added_are_added_in_every_way(town: Town, roads: list[tuple[str, str]]) -> None:
    """Past the busiest street's ends, as by a bridge, while another street is closed."""
    usual = town.city.stream.usual_network()
    a, b = roads[0]
    far = str(usual.node_ids[int(np.argmax(np.hypot(usual.lon - usual.lon[0], usual.lat - usual.lat[0])))])
    add = [f"{a},{far},300", f"{far},{b},300"]
    expected = asked(town, add=add, close=roads)
    assert np.abs(expected - asked(town, close=roads)).max() > 0.5
    same(asked(town, network=edit_network(usual, close=roads, add=add)), expected)
    same(live(town).what_if(add=add, close=roads).values, expected)
    same(live(town).what_if(closed(usual, roads), add=add).values, expected)
    assert not np.allclose(live(town).what_if(add=add).values, asked(town), atol=0.1)


def test_the_service_closes_as_a_forecast_does(served: Served, town: Town, roads: list[tuple[str, str]]) -> None:
    expected = asked(town, close=roads)
    nearly(forecast_by(served), asked(town))
    answer = served.client.post("/v1/what-if", json={"close": roads})
    _, arrays = decode(answer.content)
    nearly(arrays["before"], asked(town))
    nearly(arrays["after"], expected)
    ids = town.city.network.node_ids
    bridge = (str(ids[0]), str(ids[-1]))
    _, arrays = decode(served.client.post("/v1/what-if", json={"close": roads, "add": [bridge]}).content)
    nearly(arrays["after"], asked(town, close=roads, add=[bridge]))
    assert np.abs(arrays["after"] - expected).max() > 0.1


@pytest.mark.parametrize("before_s", [0, 10, STEP_S - 1])
def test_a_closure_posted_just_before_the_forecast_is_one_of_the_forecast(
    served: Served, town: Town, roads: list[tuple[str, str]], before_s: int
) -> None:
    served.time.now_s = at(town, FIRST) - before_s
    for source, target in roads:
        assert served.client.post("/v1/closures", json={"source": source, "target": target}).status_code == 201
    nearly(forecast_by(served), asked(town, close=roads))


def test_closed_and_opened_again_is_as_if_nothing_had_been(
    served: Served, town: Town, roads: list[tuple[str, str]]
) -> None:
    usual = town.city.stream.usual_network()
    served.time.now_s = at(town, FIRST) - 400  # within the last snapshot, which began before
    ids = [served.client.post("/v1/closures", json={"source": a, "target": b}).json()["id"] for a, b in roads]
    served.time.now_s += 300
    for closure in ids:
        assert served.client.delete(f"/v1/closures/{closure}").status_code == 200
    nearly(forecast_by(served), asked(town))
    shut = [(at(town, FIRST) - 400, closed(usual, roads)), (at(town, FIRST) - 100, usual)]
    same(live(town, shut).forecast().values, asked(town))
    again = live(town)
    before = again.forecast().values
    again.change(closed(usual, roads))
    assert not np.allclose(again.forecast().values, before)
    again.change(usual)
    same(again.forecast().values, before)


# A closure in the past, ahead, or both


@pytest.mark.parametrize(
    "period",
    [(FIRST - 1, LONG), (FIRST - 1, FIRST + 1), (FIRST - 2, FIRST), (FIRST + 2, LONG), (FIRST - 1, FIRST + 2)],
    ids=["since two steps", "opened now", "opened a step ago", "from the second step", "until the first step"],
)
def test_a_closure_of_some_time_is_the_same_in_every_way(
    served: Served, town: Town, roads: list[tuple[str, str]], period: tuple[int, int]
) -> None:
    usual = town.city.stream.usual_network()
    stream = town.city.stream
    recorded = changing(stream, period, roads=roads)
    expected = asked(town, recorded)
    first, stop = period
    begin_s = int(stream.steps.time_s(first))
    end_s = None if stop == LONG else int(stream.steps.time_s(stop))
    changes = [(begin_s, closed(usual, roads)), *([] if end_s is None else [(end_s, usual)])]
    same(live(town, changes).forecast().values, expected)
    window = Forecaster(town.run, replace(town.city, stream=recorded), device="cpu").values(np.array([FIRST]))
    same(window[0], expected)
    if first > FIRST:  # it is all ahead
        change = fg.RoadChange(roads, begin=begin_s, end=end_s)
        same(asked(town, changes=[change]), expected)
        same(live(town).what_if(changes=[change]).values, expected)
        served.service.store.add_readings(town.reading_rows(FIRST + 1 - PAST, FIRST + 1), 0)
        forecast_by(served)
        times = {"begin": utc_iso(begin_s), "end": None if end_s is None else utc_iso(end_s)}
        _, arrays = decode(served.client.post("/v1/what-if", json={"close": roads, **times}).content)
        nearly(arrays["after"], expected)
        nearly(arrays["before"], asked(town))
        return
    for source, target in roads:
        served.service.store.add_closure(source, target, begin_s=begin_s, end_s=end_s, now_s=0)
    nearly(forecast_by(served), expected)


def test_a_change_ahead_applies_from_its_step_on(town: Town, roads: list[tuple[str, str]]) -> None:
    """Until then the forecast is the usual one, and from then on that of roads that are closed now."""
    usual = asked(town)
    shut = asked(town, close=roads)
    ahead = asked(town, changing(town.city.stream, (FIRST + 2, LONG), roads=roads))
    same(ahead[:1], usual[:1])
    same(ahead[1:], shut[1:])
    until = asked(town, changing(town.city.stream, (FIRST + 1, FIRST + 3), roads=roads))
    same(until[:2], shut[:2])
    same(until[2:], usual[2:])
    same(asked(town, changing(town.city.stream, (FIRST + 2, LONG), roads=roads), close=roads), shut)


def test_a_road_that_opens_mid_record_has_one_usual_network(town: Town, roads: list[tuple[str, str]]) -> None:
    """A node that is there for a quarter of the record: every way of asking starts from the same usual roads."""
    stream = town.city.stream
    node = int(np.argmin(stream.sensors))  # one without a sensor, if there is any
    late = stream.num_snapshots * 3 // 4
    without = stream.usual_network().remove_nodes([stream.node_ids[node]])
    network_of = (np.arange(stream.num_snapshots) >= late).astype(np.int64)
    grown = replace(
        stream,
        networks=(without, stream.usual_network()),
        network_of=network_of,
        observed=stream.observed & ~((network_of == 0)[:, None] & ~without.present),
    )
    city = replace(town.city, stream=grown)
    expected = asked(town, grown, snapshot=LATE)
    run_on_city = town.run.on(city)
    same(forecaster_of(run_on_city, "cpu").values(np.array([LATE]))[0], expected)
    same(Forecaster(town.run, city, device="cpu").values(np.array([LATE, FIRST]))[0], expected)
    ended = replace(city, stream=grown.slice(0, LATE + 1))
    same(fg.forecast(town.run, stream=ended, device="cpu").values, expected)


# Intervals


def test_intervals_are_the_same_in_every_way(town: Town, roads: list[tuple[str, str]]) -> None:
    """In one call, live, and of a city whose record has the closure; wider where roads are closed."""

    def band(made: fg.Forecast) -> Values:
        assert made.lower is not None and made.upper is not None and made.level == 90
        return np.stack([made.lower, made.upper])

    def ask(stream: RoadNetworkStream | None = None, **how: object) -> Values:
        city = town.city if stream is None else replace(town.city, stream=stream)
        return band(fg.forecast(town.run, stream=city, at=at(town, FIRST), level=90, device="cpu", **how))  # type: ignore[arg-type]

    usual = ask()
    lower, upper = usual
    made = asked(town)
    assert (lower <= np.rint(made)).all() and (np.rint(made) <= upper).all()
    assert (usual == np.rint(usual)).all() and (lower >= 0).all()
    same(band(live(town).forecast(level=90)), usual)
    shut = ask(close=roads)
    same(band(live(town).what_if(close=roads, level=90)), shut)
    same(ask(changing(town.city.stream, (FIRST + 1, LONG), roads=roads)), shut)
    assert not np.array_equal(shut, usual)


# What is scored, and what is shown


def test_what_is_scored_is_what_is_forecast(town: Town, roads: list[tuple[str, str]]) -> None:
    """The sums of an evaluation over windows whose roads change ahead, from forecasts one by one."""
    stream = changing(town.city.stream, (LATE + 2, LATE + 4), roads=roads)
    city = town.city
    run_on_city = town.run.on(replace(city, stream=stream))
    split = replace(run_on_city.split, test=(LATE - PAST + 1, LATE + HORIZON + 4))
    forecaster = forecaster_of(run_on_city, "cpu")
    scores: Scores = score(
        {"it": forecaster.predictor}, forecaster.windows(), split, run_on_city.settings.task, batch_size=2
    )["it"]
    error, cells = 0.0, 0
    for snapshot in range(LATE, LATE + 4):
        ahead = slice(snapshot + 1, snapshot + 1 + HORIZON)
        made = asked(town, stream, snapshot=snapshot)
        error += float(np.abs(made - stream.values[ahead])[stream.observed[ahead]].sum())
        cells += int(stream.observed[ahead].sum())
    assert scores.cell_sums[0].sum() == cells
    assert scores.cell_sums[1].sum() == pytest.approx(error, rel=1e-5)


def test_the_day_of_a_report_is_what_is_forecast(town: Town, roads: list[tuple[str, str]]) -> None:
    stream = changing(town.city.stream, (LATE + 2, LATE + 4), roads=roads)
    run_on_city = town.run.on(replace(town.city, stream=stream))
    forecaster = forecaster_of(run_on_city, "cpu")
    current = np.array([LATE, LATE + HORIZON])
    day = Day(run_on_city, forecaster, current, _forecasts(forecaster, current)[0], None)
    expected = np.concatenate([asked(town, stream, snapshot=int(k)) for k in current])
    same(day.forecast, expected)
    network = day.network
    names = [(str(a), str(b)) for a, b in network.node_ids[[network.senders, network.receivers]].T.tolist()]
    row = names.index(roads[0])
    shut_then = np.isin(np.arange(LATE + 1, LATE + 1 + 2 * HORIZON), [LATE + 2, LATE + 3])
    assert ((day.road_flow[:, row] == 0) == shut_then).all()
    assert [row in rows for rows in day.closed()] == shut_then.tolist()
    throughout = day.close(np.isin(np.arange(len(names)), [names.index(road) for road in roads]))
    expected = np.concatenate([asked(town, stream, snapshot=int(k), close=roads) for k in current])
    same(throughout.forecast, expected)
    assert (throughout.road_flow[:, row] == 0).all()


# Set up once


def test_a_day_of_forecasts_costs_one_set_up(
    town: Town, roads: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = Forecaster._demand
    monkeypatch.setattr(Forecaster, "_demand", lambda self, stop: made.append("demand") or real(self, stop))
    forecaster = Forecaster(town.run, town.city, device="cpu")
    for snapshot in range(FIRST, FIRST + 24):
        found = forecaster.forecast(at(town, snapshot))
        if snapshot in (FIRST, FIRST + 23):
            same(found.values, asked(town, snapshot=snapshot))
            made.pop()  # that of the other way
    same(forecaster.forecast(at(town, FIRST), close=roads).values, asked(town, close=roads))
    assert made == ["demand", "demand"]


# The days before


def test_the_days_before_are_the_same_in_every_way(town: Town, served: Served, roads: list[tuple[str, str]]) -> None:
    """Of the record, of the store where that knows better, and of what was pushed to a live forecast."""
    stream = town.city.stream
    louder = np.where(np.arange(stream.num_snapshots)[:, None] < 96, np.float32(10), np.float32(1))
    busy = replace(stream, values=louder * stream.values)
    expected = asked(town, busy, snapshot=LATE)
    assert np.abs(expected - asked(town, snapshot=LATE)).max() > 1
    rows = slice(LATE + 1 - PAST, LATE + 1)
    readings = np.where(busy.observed, busy.values, np.nan)
    from_record = Live(town.run, replace(town.city, stream=busy), device="cpu")
    from_record.push(int(stream.times_s[rows.start]), readings[rows])
    same(from_record.forecast().values, expected)
    shut = asked(town, busy, snapshot=LATE, close=roads)
    same(from_record.what_if(close=roads).values, shut)
    pushed = Live(town.run, stream.usual_network(), device="cpu")
    for first in range(0, LATE + 1, 11):  # neither a day nor a slot at a time
        stop = min(first + 11, LATE + 1)
        pushed.push(int(stream.times_s[first]), readings[first:stop])
    same(pushed.forecast().values, expected)
    store = served.service.store
    yesterday = [replace_value(row, 10) for row in town.reading_rows(0, 96)]
    store.add_readings([*yesterday, *town.reading_rows(96, LATE + 1)], 0)
    nearly(forecast_by(served, LATE), expected)
    store.add_readings([replace_value(row, 0.1) for row in yesterday], 0)  # corrected later
    nearly(
        served.service.engine.forecast(at(town, LATE), now_s=at(town, LATE)).forecast.values, asked(town, snapshot=LATE)
    )


def replace_value(reading: Reading, factor: float) -> Reading:
    return reading._replace(value=factor * reading.value)


def test_on_other_roads_the_days_before_say_nothing(town: Town, roads: list[tuple[str, str]]) -> None:
    """They may have been measured on the same roads, and then they hold the detours that demand adds."""
    stream = changing(town.city.stream, (LATE + 1, LATE + 9), roads=roads)
    views = Forecaster(town.run, replace(town.city, stream=stream), device="cpu").windows().views
    ahead = np.full((1, HORIZON), 1)
    layout = Layout.of(roads_of_windows(np.zeros((1, PAST), np.int64), ahead), stream.networks, views)
    rerouted = views.view(stream.networks[1]).rerouted
    assert layout.tables is not None and rerouted is not None
    twice = torch.full((1, PAST + HORIZON, stream.num_nodes), 2.0)
    made = layout._but_on_new_roads(twice, torch.tensor([0]))[0]
    assert (made[:PAST] == 2).all()
    change = np.abs(np.log(np.maximum(rerouted.node_change, 1e-4)))
    assert (change > 0.1).any() and (made[PAST:, change > 0.11] == 1).all() and (made[PAST:, change == 0] == 2).all()
