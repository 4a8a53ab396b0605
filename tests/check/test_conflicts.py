"""Which counts contradict each other."""

from __future__ import annotations

import numpy as np
import pytest

from frigate.check.city import check_city
from frigate.check.conflicts import contained, find_conflicts, geh
from frigate.city.network import Edges, RoadNetwork
from tests.support.broken_sensors import busiest, own, town, with_values


def network_of(pairs: list[tuple[int, int]]) -> RoadNetwork:
    N = 1 + max(max(pair) for pair in pairs)
    a, b = np.array(pairs).T
    lon = np.linspace(6.1, 6.2, N)
    return RoadNetwork(np.arange(N), lon, np.full(N, 49.6), Edges.of(a, b, np.full(len(pairs), 700.0)))


def test_geh_is_that_of_hourly_volumes() -> None:
    assert geh(100, 100) == 0
    assert geh(0, 0) == 0
    assert geh(1000, 800) == pytest.approx((2 * 200**2 / 1800) ** 0.5)


def test_on_a_road_without_an_exit_all_pass_the_next_sensor() -> None:
    one_way = network_of([(0, 1), (1, 2), (2, 3), (3, 4)])
    assert contained(one_way, np.array([1, 3])) == {(1, 3), (3, 1)}  # over node 2, which has no sensor
    joins = network_of([(0, 1), (1, 2), (2, 3), (3, 4), (5, 2)])
    assert contained(joins, np.array([1, 3])) == {(1, 3)}  # more join at node 2
    leaves = network_of([(0, 1), (1, 2), (2, 3), (3, 4), (2, 5)])
    assert contained(leaves, np.array([1, 3])) == {(3, 1)}
    both = network_of([(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3)])
    assert contained(both, np.array([1, 2, 3])) == {(1, 2), (2, 1), (2, 3), (3, 2)}
    dead_end = network_of([(0, 1), (1, 0), (1, 2), (2, 1)])
    assert (1, 0) not in contained(dead_end, np.array([0, 1]))  # trips begin and end there


def test_the_multiplied_sensor_leads_the_list_and_the_text_has_80_columns() -> None:
    row = busiest(30)
    city = with_values(**{f"n{row}": own(row) * 10})
    report = check_city(city, conflicts=True)
    assert report.conflicts is not None
    worst = report.conflicts.sensors[0]
    assert worst.node_id == town().stream.node_ids[row]
    assert worst.contradicted
    assert worst.geh is not None
    assert worst.geh > 10
    assert worst.counted == pytest.approx(10 * 4 * own(row).mean(), rel=0.1)  # vehicles an hour, of 15 minutes
    text = report.conflicts.lines()
    assert all(len(line) <= 80 for line in text)
    assert any(line.split()[:1] == [str(worst.node_id)] and "yes" in line for line in text)
    assert report.to_json()["conflicts"]["sensors"][0]["node_id"] == worst.node_id


def test_gauges_do_not_contradict_each_other() -> None:
    from tests.support.chains import city_of, noise

    assert find_conflicts(city_of(noise(300, 20))) is None
    assert check_city(city_of(noise(300, 20)), conflicts=True).conflicts is None
