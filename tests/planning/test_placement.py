"""`place` on a small town: what it may know, what it says, and that its options do what they say."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import frigate as fg
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.stream import make_stream
from frigate.demand.settings import DemandSettings
from frigate.errors import CityError, SettingsError
from frigate.planning import placement as module
from frigate.planning.placement import Placement, place
from frigate.planning.uncertainty import Traffic
from frigate.roads.on_roads import on_roads
from frigate.simulate.demo_city import demo_city
from tests.support.errors import raises

FEW = DemandSettings(sets=3)


@pytest.fixture(scope="module")
def whole() -> City:
    return demo_city(seed=3, intersections=100, days=2, step_s=3600, closures=0)


def measured(city: City, share: float, *, name: str = "town") -> City:
    """The town with readings at some of its nodes."""
    observed = city.stream.observed & (np.random.default_rng(0).random(city.stream.num_nodes) < share)
    return City(name, replace(city.stream, observed=observed))


@pytest.fixture(scope="module")
def town(whole: City) -> City:
    return measured(whole, 0.2)


@pytest.fixture(scope="module")
def bare(whole: City) -> City:
    return measured(whole, 0, name="bare")


@pytest.fixture(scope="module")
def found(town: City) -> Placement:
    return place(town, budget=6, remove=3, settings=FEW)


def rows(placement: Placement) -> list[int]:
    return [site.row for site in placement.sites]


def test_sites_are_places_without_a_sensor_and_lower_the_error(found: Placement, town: City) -> None:
    assert len(set(rows(found))) == 6 and not town.stream.sensors[rows(found)].any()
    assert found.candidates == int((~town.stream.sensors).sum())
    curve = np.array(found.curve)
    assert curve[0] == 1 and (np.diff(curve) < 0).all()
    np.testing.assert_allclose(-np.diff(curve), [site.gain for site in found.sites], rtol=1e-3)
    assert (found.error_after <= found.error + 1e-9).all()
    assert (found.error_after[rows(found)] < 0.1 * found.error[rows(found)]).all()
    assert (found.error[town.stream.sensors] < 0.1 * np.median(found.error[~town.stream.sensors])).all()


def test_the_facts_of_a_site_are_those_of_the_demand(found: Placement, town: City) -> None:
    demand = fg.estimate_demand(town, settings=FEW)
    daily = Traffic.of_demand(demand).levels * 24
    for site in found.sites:
        assert site.vehicles_per_day == pytest.approx(daily[site.row], rel=1e-5)
        assert 0 <= site.unseen <= 1 and site.hops >= 1
        assert str(site.node) not in site.reason and "vehicles a day pass" in site.reason
        assert all(0 < pinned.narrowed < 1 and pinned.row != site.row for pinned in site.pins)


def test_readings_of_other_nodes_cannot_matter(found: Placement, town: City) -> None:
    values = np.where(town.stream.observed, town.stream.values, 1e4)
    poisoned = place(replace(town, stream=replace(town.stream, values=values)), budget=6, remove=3, settings=FEW)
    assert poisoned.to_json() == found.to_json()


def test_the_order_of_the_nodes_does_not_matter(whole: City, bare: City) -> None:
    order = np.random.default_rng(1).permutation(100)
    network = whole.network
    row_of = np.argsort(order)
    edges = replace(network.edges, senders=row_of[network.senders], receivers=row_of[network.receivers])
    shuffled = RoadNetwork(network.node_ids[order], network.lon[order], network.lat[order], edges)
    stream = replace(
        bare.stream,
        networks=(shuffled,),
        values=bare.stream.values[:, order],
        observed=bare.stream.observed[:, order],
    )
    ids = [[site.node for site in place(city, budget=8, settings=FEW).sites] for city in (bare, City("bare", stream))]
    assert ids[0] == ids[1]


def test_without_readings_the_map_decides(bare: City) -> None:
    found = place(bare, budget=4, settings=FEW)
    assert len(found.sites) == 4 and found.sensors.sum() == 0 and "no readings" in " ".join(found.notices)
    assert found.sites[0].hops == -1 and found.sites[1].hops > 0
    assert all(site.vehicles_per_day is None and "On the map, busier than" in site.reason for site in found.sites)


def test_what_is_forced_forbidden_or_listed_is_heeded(bare: City, found: Placement, town: City) -> None:
    ids = town.network.node_ids
    free = place(bare, budget=3, settings=FEW)
    first = free.sites[0]
    street = str(bare.network.edges.name[bare.network.edges.name != ""][0])
    without = place(bare, budget=3, forbid=[first.node, street], settings=FEW)
    assert first.row not in rows(without) and not any(street in site.street for site in without.sites)
    forced = place(bare, budget=2, force=[int(ids[7])], settings=FEW)
    assert rows(forced)[0] == 7 and forced.sites[0].forced and forced.sites[0].reason.startswith("Required.")
    listed = place(bare, budget=2, candidates=ids[[3, 5, 8]].tolist(), settings=FEW)
    assert set(rows(listed)) <= {3, 5, 8} and listed.candidates == 3


def test_only_targets_count(bare: City) -> None:
    network = bare.network
    west = network.lon < np.quantile(network.lon, 0.3)
    found = place(bare, budget=3, targets=network.node_ids[west].tolist(), settings=FEW)
    assert (network.lon[rows(found)] < np.median(network.lon)).all()


def test_weights_change_the_choice(bare: City) -> None:
    by_traffic, even = (place(bare, budget=8, weight=weight, settings=FEW) for weight in ("traffic", "even"))
    assert rows(by_traffic) != rows(even)
    busy = [np.mean([site.busier_than for site in each.sites]) for each in (by_traffic, even)]
    assert busy[0] > busy[1]


def test_portable_counters_tell_less(bare: City) -> None:
    lasting, days = (place(bare, budget=4, days=each, settings=FEW) for each in (None, 1))
    assert lasting.days is None and days.days is not None and days.days.days == 1
    assert days.curve[-1] > lasting.curve[-1]


def test_money_is_spent_and_no_more(bare: City) -> None:
    ids = bare.network.node_ids.tolist()
    costs = {node: 100.0 + k for k, node in enumerate(ids[:30])}
    found = place(bare, budget=350, costs=costs, settings=FEW)
    assert found.in_money and 1 <= len(found.sites) <= 3
    assert sum(site.cost for site in found.sites) <= 350 and all(site.cost == costs[site.node] for site in found.sites)


def test_sensors_missed_least_are_seen_by_others(found: Placement, town: City) -> None:
    assert len(found.redundant) == 3
    losses = [sensor.loss for sensor in found.redundant]
    assert losses == sorted(losses) and losses[0] > 0
    assert all(town.stream.sensors[sensor.row] and "Without it" in sensor.reason for sensor in found.redundant)
    assert all(0 < sensor.elsewhere < 1 for sensor in found.redundant)  # by others, without itself
    alone = place(town, remove=3, settings=FEW)
    assert alone.sites == () and alone.redundant == found.redundant


def test_a_large_city_is_sampled_and_says_so(town: City, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_TARGETS", "MAX_CANDIDATES", "MAX_SENSORS"):
        monkeypatch.setattr(module, name, 12)
    found = place(town, budget=3, force=[int(town.network.node_ids[~town.stream.sensors][0])], settings=FEW)
    assert len(found.sites) == 3 and found.sites[0].forced and len(found.notices) == 3
    assert np.isfinite(found.error).sum() <= 36
    assert all(site.busier_than > 0.5 for site in found.sites[1:])  # candidates are those with the most traffic


def test_roads_are_places_too(bare: City) -> None:
    line = on_roads(bare)
    nothing = np.full((len(bare.stream.values), line.num_nodes), np.nan)
    stream = make_stream(nothing, line, start_s=bare.stream.start_s, step_s=3600, quantity="count")
    found = place(City("roads", stream), budget=3, settings=FEW)
    assert len(found.sites) == 3 and len(found.network.lines)


def test_it_shows_itself(found: Placement) -> None:
    assert repr(found).startswith("<Placement: city town, sensors") and "6 of" in repr(found)
    assert "<svg" in found._repr_html_()
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [site["node"] for site in said["sites"]] == [site.node for site in found.sites]


def test_what_cannot_be_asked_is_refused(town: City) -> None:
    speeds = replace(town, stream=replace(town.stream, quantity="speed"))
    with raises(CityError, "speed"):
        place(speeds, budget=1)
    for asked, named in (
        ({}, "budget"),
        ({"budget": 1, "weight": "most"}, '"most"'),
        ({"budget": 1, "days": 0}, "days 0"),
        ({"remove": -1}, "remove -1"),
        ({"remove": 1000}, "remove 1000"),
    ):
        with raises(SettingsError, named):
            place(town, **asked)
    with raises(CityError, '"nowhere"'):
        place(town, budget=1, targets=["nowhere"])
