"""What `frigate check` says of a city."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.check.city import check_city
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.text import duration, percent
from tests.support.chains import city_of, noise
from tests.support.towns import random_network, random_stream

# Sensor by sensor


@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([2, 30, 255, 300]))
@settings(max_examples=25)
def test_gaps_are_those_of_a_plain_count(seed: int, forms: int, snapshots: int) -> None:
    networks = [random_network(6, seed=seed)]
    for n in range(1, forms):
        networks.append(networks[0].remove_nodes([networks[0].node_ids[n].item()]))
    stream = random_stream(networks, seed=seed, snapshots=snapshots, missing=0.6)
    present = np.stack([n.present for n in networks])[stream.network_of]
    stream = replace(stream, observed=stream.observed & present, values=stream.values * (stream.observed & present))
    report = check_city(City("c", stream))
    found = {s.node_id: s for s in report.by_sensor}
    assert set(found) == set(stream.node_ids[stream.observed.any(axis=0)].tolist())
    for n, node_id in enumerate(stream.node_ids.tolist()):
        if node_id in found:
            state = [
                "absent" if not p else "read" if o else "gap"
                for p, o in zip(present[:, n], stream.observed[:, n], strict=True)
            ]
            runs = [(word, len(list(run))) for word, run in groupby(state)]
            assert found[node_id].longest_gap == max([length for word, length in runs if word == "gap"], default=0)
            due = sum(word != "absent" for word in state)
            assert found[node_id].missing_share == pytest.approx(state.count("gap") / due)
    shares = [s.missing_share for s in report.by_sensor]
    assert shares == sorted(shares, reverse=True)


def test_the_longest_gap_has_its_time() -> None:
    values = noise(600)
    values[250:270, 1] = np.nan  # across two of the parts that are walked through
    values[10:15, 1] = np.nan
    worst, fine = check_city(city_of(values)).by_sensor
    assert (worst.node_id, worst.longest_gap, worst.gap_from) == ("n1", 20, "2024-01-02T04:50:00+00:00")
    assert worst.missing_share == pytest.approx(25 / 600)
    assert (fine.longest_gap, fine.gap_from, fine.faults) == (0, None, ())


@pytest.mark.parametrize(
    ("quantity", "step_s", "needed"), [("speed", 300, 72), ("count", 300, 72), ("speed", 3600, 12), ("count", 3600, 24)]
)
def test_a_value_for_hours_is_stuck(quantity: str, step_s: int, needed: int) -> None:
    for length, stuck in ((needed, ("n1",)), (needed - 1, ())):
        values = noise(700, quantity=quantity)
        values[230 : 230 + length + 3, 1] = 41
        values[240:243, 1] = np.nan  # readings that are missing do not end it
        report = check_city(city_of(values, quantity=quantity, step_s=step_s))
        assert report.stuck == stuck
    whole = check_city(city_of(np.where(np.arange(2) == 1, 41.0, noise(20, quantity=quantity)), quantity=quantity))
    assert whole.stuck == ("n1",)  # nothing else was ever read


def test_a_stuck_sensor_is_listed_with_its_times() -> None:
    values = noise(400)
    values[100:200, 1] = 61.5
    report = check_city(city_of(values))
    (sensor,) = [s for s in report.by_sensor if s.faults]
    assert sensor.stuck_snapshots == (100, 199)
    assert sensor.faults == (
        "read 61.5 100 times in a row, from 2024-01-01T16:20:00+00:00 to 2024-01-02T00:35:00+00:00",
    )
    assert any("n1: read 61.5 100 times" in line for line in report.lines())


def test_an_empty_road_is_no_stuck_sensor() -> None:
    day = 288
    values = noise(7 * day, 4, quantity="count")
    values[day : 2 * day - 1, 0] = 0  # all but a day
    values[day : 2 * day, 1] = 0  # a day, on a busy road
    values[:, 2] = np.arange(7 * day) % 400 == 0  # hardly anyone ever comes here
    values[:, 3] = 0
    report = check_city(city_of(values, quantity="count"))
    assert report.stuck == ("n1",)
    assert report.dead == ("n3",)
    gauge = check_city(city_of(values, quantity="speed"))
    assert set(gauge.stuck) == {"n0", "n1", "n2"}  # no traffic has no speed: a gauge at 0 is not told by its mean


def test_a_sensor_that_is_heard_no_more_is_silent() -> None:
    values = noise(400, 3)
    values[360:, 1] = np.nan
    values[361:, 2] = np.nan
    report = check_city(city_of(values))
    assert report.silent == ("n1",)
    assert report.by_sensor[0].faults == ("nothing since 2024-01-02T13:55:00+00:00",)
    short = noise(20)
    short[-11:, 1] = np.nan  # more than a tenth, but not long
    assert check_city(city_of(short)).silent == ()


# The network


def test_the_share_of_nodes_with_a_sensor_so_near() -> None:
    values = np.full((30, 16), np.nan)
    values[:, 0] = np.arange(30)
    city = city_of(values)
    cut = replace(city.stream, networks=(city.network.close([("n12", "n13"), ("n13", "n12")]),))
    report = check_city(replace(city, stream=cut))
    assert report.unseen == 15
    assert {h: round(15 * share) for h, share in report.unseen_within.items()} == {1: 1, 2: 2, 3: 3, 5: 5, 10: 10}
    assert report.unseen_apart == 3
    assert report.parts == 2
    line = next(line for line in report.lines() if line.startswith("Nodes without a sensor: 15"))
    assert "1: 6.7%, 2: 13.3%" in line
    assert line.endswith("not connected to any: 3")
    every = check_city(city_of(noise(30, 4)))
    assert (every.unseen, every.unseen_within) == (0, {})


def test_the_order_of_the_nodes_does_not_matter() -> None:
    network = random_network(12, seed=3)
    stream = random_stream([network], seed=3, snapshots=300)
    order = np.random.default_rng(1).permutation(12)
    back = np.argsort(order)
    edges = replace(network.edges, senders=back[network.senders], receivers=back[network.receivers])
    turned = RoadNetwork(network.node_ids[order], network.lon[order], network.lat[order], edges)
    other = replace(stream, values=stream.values[:, order], observed=stream.observed[:, order], networks=(turned,))
    a, b = (check_city(City("c", s)) for s in (stream, other))
    assert set(a.by_sensor) == set(b.by_sensor)
    assert (a.unseen_within, a.road_km, a.parts) == (b.unseen_within, b.road_km, b.parts)


def test_obstacles_to_training_are_named() -> None:
    assert any("learning the week" in words.lower() for words in check_city(city_of(noise(300))).advice)
    assert any("has 10 snapshots" in words for words in check_city(city_of(noise(100))).advice)
    assert check_city(city_of(noise(8 * 288))).advice == ()
    none = check_city(city_of(np.zeros((0, 3))))
    assert none.advice == ("there is nothing to learn from. Import readings",)
    assert "Before training: there is nothing to learn from. Import readings" in none.lines()


def test_times_and_shares_are_said_in_words() -> None:
    assert [duration(s) for s in (0, 300, 5400, 90_000, 86_460, 1_000_000_000)] == [
        "0 s",
        "5 min",
        "1 h 30 min",
        "1 day 1 h",
        "1 day",
        "11,574 days 1 h",
    ]
    assert [percent(x) for x in (0, 1e-5, 0.034, 0.5, 0.994, 0.99999, 1)] == [
        "0 %",
        "under 0.1 %",
        "3.4 %",
        "50 %",
        "99.4 %",
        "over 99.9 %",
        "100 %",
    ]
