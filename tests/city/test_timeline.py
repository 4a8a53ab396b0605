"""Roads over time: one rule for when a change begins to hold, whoever asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.city.network import Road, RoadNetwork
from frigate.city.stream import make_stream
from frigate.city.timeline import ClosedRoads, Timeline
from tests.support.grids import grid_network

STEP_S = 300


def ends(network: RoadNetwork) -> list[Road]:
    ids = network.node_ids.tolist()
    return [(ids[a], ids[b]) for a, b in zip(network.senders.tolist(), network.receivers.tolist(), strict=True)]


def open_roads(network: RoadNetwork) -> set[Road]:
    return set(ends(network))


def test_a_change_holds_from_the_first_snapshot_that_begins_at_its_time() -> None:
    network = grid_network(2)
    (road, *_) = ends(network)
    closed = network.close([road])
    timeline = Timeline.of(network, (600, closed), (900, network))
    assert [timeline.network_at(t) is closed for t in (599, 600, 601, 899, 900)] == [False, True, True, True, False]
    assert [timeline.network_at(t) for t in (0, 10**9)] == [network, network]
    same = Timeline.closing(network, [ClosedRoads((road,), 600, 900)])
    for time_s in (599, 600, 899, 900):
        assert same.network_at(time_s).fingerprint == timeline.network_at(time_s).fingerprint


def test_of_changes_at_one_time_the_last_holds() -> None:
    network = grid_network(2)
    first, second = ends(network)[:2]
    both = network.close([first]), network.close([second])
    timeline = Timeline.of(network, (300, both[0]), (300, both[1]))
    networks, network_of, later = timeline.course(np.array([0]))
    assert networks[later[0][1]] is both[1] and len(later) == 1
    networks, network_of, later = timeline.course(np.array([0, 300]))
    assert [networks[k] for k in network_of.tolist()] == [network, both[1]] and later == []


def test_a_later_change_is_replaced_and_the_past_can_be_forgotten() -> None:
    network = grid_network(2)
    a, b = (network.close([road]) for road in ends(network)[:2])
    planned = Timeline.of(network, (300, a), (600, b))
    changed = planned.changed(600, network)
    assert [changed.network_at(t) for t in (299, 300, 600)] == [network, a, network]
    assert len(planned.changed(0, b).networks) == 2
    assert planned.since(300).networks == (a, b) and planned.since(299).networks == planned.networks


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(-2000, 4000), st.one_of(st.none(), st.integers(-2000, 4000))),
        max_size=6,
    ),
    st.tuples(st.integers(-1000, 3000), st.integers(1, 2000)),
)
@settings(max_examples=60, deadline=None)
def test_a_record_a_plan_and_closures_agree_on_what_is_open(
    periods: list[tuple[int, int, int | None]], span: tuple[int, int]
) -> None:
    """Roads by the closures one by one, by their timeline, by a part of it, and by a stream that it is made of."""
    network = grid_network(2)
    names = ends(network)
    closures = [ClosedRoads((names[k],), from_s, until_s) for k, from_s, until_s in periods]
    first_s, length_s = span

    def expected(begin_s: int) -> set[Road]:
        shut = {
            names[k] for k, from_s, until_s in periods if from_s <= begin_s and (until_s is None or begin_s < until_s)
        }
        return set(names) - shut

    whole = Timeline.closing(network, closures)
    part = Timeline.closing(network, closures, span_s=(first_s, first_s + length_s))
    for begin_s in range(first_s, first_s + length_s, 97):
        assert open_roads(whole.network_at(begin_s)) == open_roads(part.network_at(begin_s)) == expected(begin_s)
    networks, network_of, later = whole.course(np.arange(3) * STEP_S)
    stream = make_stream(
        np.zeros((3, 4)), networks, network_of=network_of, start_s=0, step_s=STEP_S, later=later, timezone="UTC"
    )
    for snapshot, row in enumerate(stream.network_at(np.arange(15)).tolist()):
        assert open_roads(stream.networks[row]) == expected(snapshot * STEP_S)
    assert stream.slice(0, 1).network_at(np.arange(15)).tolist() == stream.network_at(np.arange(15)).tolist()


def test_roads_that_are_not_there_are_left_out() -> None:
    network = grid_network(2)
    road, other = ends(network)[:2]
    shut = network.close([road])
    again = shut.close([road, other, ("no such", "road"), (str(road[0]), "nowhere")], missing_ok=True)
    assert open_roads(again) == set(ends(network)) - {road, other}
    assert shut.close([road], missing_ok=True) is shut
    closed_nodes = replace(network, passable=np.zeros(4, bool))
    assert not open_roads(closed_nodes.close([road], missing_ok=True))
