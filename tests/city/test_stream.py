"""A road network stream: snapshots, views into them, and the local calendar."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frigate.calendar import DAY_S, utc_offsets_s, wall_clock, zone
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.errors import CityError
from tests.support.errors import raises

MONDAY_S = 1_704_067_200  # 2024-01-01T00:00Z


def line(*ids: int) -> RoadNetwork:
    """Nodes in a row, a road from each to the next."""
    N = len(ids)
    edges = Edges.of(np.arange(N - 1), np.arange(1, N), np.full(N - 1, 100.0))
    return RoadNetwork(np.array(ids), 6 + 0.01 * np.arange(float(N)), np.full(N, 49.6), edges)


def small_stream(S: int = 6, **options: Any) -> RoadNetworkStream:
    values = np.arange(1.0, 3 * S + 1).reshape(S, 3)
    return make_stream(values, line(10, 20, 30), start_s=MONDAY_S, step_s=300, **options)


# Making


def test_missing_readings_are_zero() -> None:
    values = np.array([[1, np.nan, 0], [np.inf, 5, 6]])
    mask = np.array([[True, True, True], [True, False, True]])
    stream = make_stream(values, line(1, 2, 3), start_s=0, step_s=60, observed=mask)
    assert stream.observed.tolist() == [[True, False, True], [False, False, True]]  # a true 0 is observed
    assert stream.values.tolist() == [[1, 0, 0], [0, 0, 6]]
    assert stream.values.dtype == np.float32
    assert stream.sensors.tolist() == [True, False, True]
    assert stream.times_s.tolist() == [0, 60]
    assert (stream.num_snapshots, stream.num_nodes) == (2, 3)


def test_an_absent_node_is_not_observed() -> None:
    whole = line(1, 2, 3)
    without = whole.remove_nodes([2])
    stream = make_stream(np.ones((3, 3)), (whole, without), start_s=0, step_s=60, network_of=np.array([0, 1, 1]))
    assert stream.observed.tolist() == [[True, True, True], [True, False, True], [True, False, True]]
    assert stream.network is without  # as it is at the last snapshot
    assert stream.slice(0, 1).network is whole


def test_shapes_that_do_not_fit_are_refused() -> None:
    stream = small_stream()
    with raises(CityError, "6 x 3", "(5, 3)"):
        replace(stream, observed=stream.observed[:5])
    for name in ("network_of", "utc_offset_s"):
        with raises(CityError, "6 snapshots"):
            replace(stream, **{name: getattr(stream, name)[:5]})
    with raises(CityError, "network", "3 nodes"):
        replace(stream, networks=(line(1, 2),))


# Views


def test_windows_are_views() -> None:
    stream = small_stream()
    part = stream.slice(2, 5)
    assert np.shares_memory(part.values, stream.values)
    assert np.shares_memory(part.observed, stream.observed)
    assert part.num_snapshots == 3
    assert part.times_s.tolist() == stream.times_s[2:5].tolist()
    np.testing.assert_array_equal(part.values, stream.values[2:5])
    np.testing.assert_array_equal(part.wall_clock, stream.wall_clock[2:5])


def test_another_network_holds_in_every_snapshot() -> None:
    stream = small_stream()
    shut = stream.network.close([(10, 20)])
    what_if = stream.on(shut)
    assert what_if.networks == (shut,)
    assert what_if.network_of.tolist() == [0] * 6
    assert np.shares_memory(what_if.values, stream.values)
    assert what_if.observed.all()
    without = stream.on(stream.network.remove_nodes([20]))
    assert without.observed.any(axis=0).tolist() == [True, False, True]
    assert not without.values[~without.observed].any()
    assert stream.values.all()
    assert stream.networks[0].num_edges == 2  # and the stream itself is as it was


def moved(network: RoadNetwork, ids: list[int], metres: list[float]) -> RoadNetwork:
    """These nodes of the network, or unknown ones, in this order and so far north of where they were."""
    row_of = {int(x): row for row, x in enumerate(network.node_ids)}
    rows = np.array([row_of.get(x, 0) for x in ids], np.int64)
    return RoadNetwork(
        np.array(ids, np.int64), network.lon[rows], network.lat[rows] + np.array(metres) / 111_195, Edges.none()
    )


def test_on_another_node_table_readings_go_by_id_and_place() -> None:
    stream = small_stream(2)
    other = stream.on(moved(stream.network, [30, 99, 10], [0, 0, 0]))
    assert other.observed.tolist() == [[True, False, True]] * 2  # nobody was at 99
    assert other.values.tolist() == [[3, 0, 1], [6, 0, 4]]
    assert other.node_ids.tolist() == [30, 99, 10]
    near = stream.on(moved(stream.network, [30, 20, 10], [49, 51, -49]))
    assert near.observed.tolist() == [[True, False, True]] * 2
    assert near.values.tolist() == [[3, 0, 1], [6, 0, 4]]
    elsewhere = stream.on(moved(stream.network, [10, 20, 30], [0, 600, 600]))  # another town, with the same ids
    assert elsewhere.observed.tolist() == [[True, False, False]] * 2
    assert stream.on(moved(stream.network, [], [])).values.shape == (2, 0)
    as_text = stream.on(replace(stream.network, node_ids=np.array(["10", "20", "30"])))
    np.testing.assert_array_equal(as_text.values, stream.values)


def test_the_digest_knows_every_reading() -> None:
    stream = small_stream(600)
    assert replace(stream, values=stream.values.copy()).digest == stream.digest
    assert replace(stream, values=np.asfortranarray(stream.values)).digest == stream.digest
    for t, n in ((0, 0), (599, 2), (255, 1), (256, 0)):
        values = stream.values.copy()
        observed = stream.observed.copy()
        values[t, n] += 1
        observed[t, n] = False
        assert replace(stream, values=values).digest != stream.digest
        assert replace(stream, observed=observed).digest != stream.digest


# Time


@given(st.integers(-2_000_000_000, 4_000_000_000))
def test_the_wall_clock_is_the_second_the_weekday_and_the_kind_of_day(time_s: int) -> None:
    when = datetime.fromtimestamp(time_s, UTC)
    second = 3600 * when.hour + 60 * when.minute + when.second
    assert wall_clock(np.array(time_s)).tolist() == [second, when.weekday(), when.weekday() >= 5]


def test_the_wall_clock_follows_local_time() -> None:
    # Friday 23:00 UTC is Saturday in Luxembourg.
    friday_s = MONDAY_S + 4 * DAY_S + 23 * 3600
    for timezone, clock in (("UTC", [23 * 3600, 4, 0]), ("Europe/Luxembourg", [0, 5, 1])):
        stream = make_stream(np.ones((1, 3)), line(1, 2, 3), start_s=friday_s, step_s=3600, timezone=timezone)
        assert stream.wall_clock[0].tolist() == clock
    assert stream.local_time(friday_s) == "2024-01-06T00:00:00+01:00"


def test_offsets_follow_the_clock_changes() -> None:
    spring_s = int(datetime(2024, 3, 31, 1, tzinfo=UTC).timestamp())  # 02:00 becomes 03:00 in Paris
    autumn_s = int(datetime(2024, 10, 27, 1, tzinfo=UTC).timestamp())
    times_s = np.array([spring_s - 1, spring_s, autumn_s - 1, autumn_s])
    assert utc_offsets_s(times_s, "Europe/Paris").tolist() == [3600, 7200, 7200, 3600]
    assert utc_offsets_s(times_s, "UTC").tolist() == [0, 0, 0, 0]
    assert utc_offsets_s(times_s[:1], "Asia/Kathmandu").tolist() == [20_700]  # a quarter to six
    lord_howe_s = int(datetime(2024, 4, 6, 15, tzinfo=UTC).timestamp())  # half an hour
    assert utc_offsets_s(lord_howe_s + np.array([-1, 0]), "Australia/Lord_Howe").tolist() == [39_600, 37_800]
    assert utc_offsets_s(times_s.reshape(2, 2), "Europe/Paris").shape == (2, 2)
    assert utc_offsets_s(times_s[:0], "Europe/Paris").shape == (0,)


@given(
    st.lists(st.integers(0, 4_000_000_000), max_size=8),
    st.sampled_from(["America/Los_Angeles", "Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns"]),
)
def test_offsets_are_those_of_the_time_zone_database(times_s: list[int], timezone: str) -> None:
    tz = zone(timezone)
    offsets = [datetime.fromtimestamp(t, tz).utcoffset() for t in times_s]
    expected = [offset.total_seconds() for offset in offsets if offset is not None]
    assert utc_offsets_s(np.array(times_s, np.int64), timezone).tolist() == expected


def test_a_day_of_a_clock_change_has_its_hour_twice() -> None:
    start_s = int(datetime(2024, 10, 26, 22, tzinfo=UTC).timestamp())  # midnight in Paris
    stream = make_stream(np.ones((25, 3)), line(1, 2, 3), start_s=start_s, step_s=3600, timezone="Europe/Paris")
    hours = [stream.local_time(int(t))[11:13] for t in stream.times_s]
    assert hours == ["00", "01", "02", "02", *(f"{h:02d}" for h in range(3, 24))]
    np.testing.assert_array_equal(stream.wall_clock[2], stream.wall_clock[3])


def test_local_time_inside_the_record_needs_no_time_zone_database() -> None:
    stream = replace(small_stream(timezone="Europe/Paris"), timezone="Not/Installed")
    assert stream.local_time(MONDAY_S) == "2024-01-01T01:00:00+01:00"
    assert stream.local_time(MONDAY_S + 6 * 300) == "2024-01-01T01:30:00+01:00"  # its end
    for outside_s in (MONDAY_S - 1, MONDAY_S + 7 * 300):
        with raises(CityError, "not known"):
            stream.local_time(outside_s)


def test_an_unknown_time_zone_is_refused() -> None:
    for name in ("Mars/Base", "", "../etc"):
        with raises(CityError, "IANA"):
            zone(name)
