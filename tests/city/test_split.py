"""Seen and unseen nodes, and periods: a partition, fixed by its seed, with errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from frigate.city.detectors import Detectors
from frigate.city.split import Split, make_split, parse_seen, read_seen_file, windows_in
from frigate.city.stream import make_stream
from frigate.errors import CityError, SettingsError
from tests.support.errors import raises
from tests.support.grids import grid_network, grid_stream


@given(share=st.floats(0.1, 0.95), seed=st.integers(0, 2**31), mode=st.sampled_from(["random", "region"]))
@settings(max_examples=40)
def test_nodes_are_partitioned(share: float, seed: int, mode: str) -> None:
    stream = grid_stream(silent=4)
    split = make_split(stream, seen=share, seed=seed, mode=mode)
    assert not (split.seen & split.unseen).any()
    np.testing.assert_array_equal(split.seen | split.unseen, stream.sensors)
    assert split.seen.sum() == min(round(share * 32), 31)
    assert split.validation.any()
    assert split.training.sum() >= 2
    assert not (split.validation & ~split.seen).any()
    again = make_split(stream, seen=share, seed=seed, mode=mode)
    np.testing.assert_array_equal(split.seen, again.seen)
    np.testing.assert_array_equal(split.validation, again.validation)


def detectors_at(*nodes: tuple[int, ...]) -> Detectors:
    """One detector for each of these tuples of rows."""
    names = np.repeat([f"D{k}" for k in range(len(nodes))], [len(each) for each in nodes])
    rows = np.array([row for each in nodes for row in each])
    unknown = np.full(len(rows), np.nan)
    return Detectors(names, rows, unknown, unknown, unknown)


def test_nodes_that_share_a_detector_are_together() -> None:
    shared = detectors_at((1, 4), (7,), (8, 2), (2, 9))  # 8, 2 and 9 by two detectors
    assert shared.together(11).tolist() == [0, 1, 2, 3, 1, 5, 6, 7, 2, 2, 10]
    assert Detectors().together(3).tolist() == [0, 1, 2]


@given(share=st.floats(0.15, 0.95), seed=st.integers(0, 2**31), mode=st.sampled_from(["random", "region"]))
@settings(max_examples=40)
def test_a_detector_of_both_directions_is_never_split(share: float, seed: int, mode: str) -> None:
    stream = grid_stream(silent=4)  # 36 nodes, 32 sensors
    pairs = [(0, 1), (4, 20), (5, 21), (8, 9), (12, 30), (13, 31)]
    split = make_split(stream, seen=share, seed=seed, mode=mode, detectors=detectors_at(*pairs, (3,)))
    for one, other in pairs:
        for part in (split.seen, split.unseen, split.validation):
            assert part[one] == part[other]
    np.testing.assert_array_equal(split.seen | split.unseen, stream.sensors)
    assert 0 <= split.seen.sum() - min(round(share * 32), 31) <= 1 or split.seen.sum() == 30
    assert split.validation.any() and split.training.sum() >= 2 and split.unseen.any()
    alone = make_split(stream, seen=share, seed=seed, mode=mode, detectors=detectors_at((0,), (1,)))
    np.testing.assert_array_equal(alone.seen, make_split(stream, seen=share, seed=seed, mode=mode).seen)


def test_the_other_half_of_a_listed_detector_is_not_scored() -> None:
    stream = grid_stream()
    listed = make_split(stream, seen=[100, 103, 107], detectors=detectors_at((0, 1), (3, 9), (20, 21)))
    np.testing.assert_array_equal(np.flatnonzero(listed.seen), [0, 3, 7])
    assert not listed.unseen[[1, 9]].any() and listed.unseen[[20, 21]].all()
    assert listed.unseen.sum() == 36 - 3 - 2


def test_too_few_detectors_to_validate_with() -> None:
    stream = grid_stream()
    with raises(CityError, "3 seen nodes", "Use more sensors"):
        make_split(stream, seen=[100, 101, 102], detectors=detectors_at((0, 1, 2)))


def test_seed_changes_the_split() -> None:
    stream = grid_stream()
    assert len({make_split(stream, seen=0.5, seed=seed).seen.tobytes() for seed in range(8)}) == 8


def test_periods_follow_each_other() -> None:
    split = make_split(grid_stream(snapshots=401))
    assert (split.train, split.validate, split.test) == ((0, 280), (280, 360), (360, 401))


def test_default_all_and_ids() -> None:
    stream = grid_stream(silent=6)  # 30 sensors
    assert make_split(stream).seen.sum() == 24
    assert make_split(stream).validation.sum() == round(0.2 * 24)
    everything = make_split(stream, seen="all")
    assert everything.seen.sum() == 30
    assert not everything.unseen.any()
    listed = make_split(stream, seen=[100, 103, 107, 135])  # 135 is silent
    np.testing.assert_array_equal(np.flatnonzero(listed.seen), [0, 3, 7])
    assert listed.unseen.sum() == 27


def test_region_is_one_area_without_a_sensor() -> None:
    stream = grid_stream(8)
    network = stream.network
    roads = csr_array((np.ones(network.num_edges), (network.senders, network.receivers)), shape=(64, 64))
    for seed in range(10):
        hidden = make_split(stream, seen=0.6, mode="region", seed=seed).unseen
        parts, _ = connected_components(roads[hidden][:, hidden], directed=False)
        assert parts == 1
    scattered = make_split(stream, seen=0.6, mode="random", seed=0).unseen
    assert connected_components(roads[scattered][:, scattered], directed=False)[0] > 1


def test_validation_nodes_have_something_to_validate() -> None:
    stream = grid_stream()
    stream.observed[:, 5:] &= (np.arange(300) < 210)[:, None]  # only nodes 0 to 4 go on
    for seed in range(5):
        split = make_split(stream, seen="all", seed=seed)
        assert stream.observed[slice(*split.validate)][:, split.validation].any(axis=0).all()


@given(
    first=st.integers(0, 50),
    length=st.integers(0, 60),
    past=st.integers(1, 15),
    horizon=st.integers(1, 15),
    stride=st.integers(1, 7),
)
def test_windows_stay_in_their_period(first: int, length: int, past: int, horizon: int, stride: int) -> None:
    current = windows_in((first, first + length), past=past, horizon=horizon, stride=stride)
    inside = [c for c in range(first, first + length) if c - past + 1 >= first and c + horizon <= first + length - 1]
    np.testing.assert_array_equal(current, inside[::stride])


@pytest.mark.parametrize("ids", ["int", "text"])
def test_json_round_trip(ids: str) -> None:
    stream = make_stream(np.ones((300, 25)), grid_network(5, ids=ids), start_s=0, step_s=300)
    split = make_split(stream, seen=0.4, seed=3)
    back = Split.from_json(split.to_json(stream.node_ids), stream.node_ids)
    for name in ("seen", "validation", "unseen", "train", "validate", "test"):
        np.testing.assert_array_equal(getattr(split, name), getattr(back, name))
    with raises(CityError, "not in the city"):
        Split.from_json(split.to_json(stream.node_ids), stream.node_ids[:3])


def test_seen_file(tmp_path: Path) -> None:
    network = grid_network(4)
    file = tmp_path / "seen.txt"
    file.write_text("107\n\n 101 \n115\n")
    assert read_seen_file(file, network) == [107, 101, 115]
    for text, named in (
        ("101\n999\n", ("line 2", '"999"')),
        ("101\nA\n", ("line 2", '"A"')),
        ("101\n102\n\n101\n", ("line 4", '"101"', "line 1")),
        ("\n", ("seen.txt", "no node id")),
    ):
        file.write_text(text)
        with raises(CityError, *named):
            read_seen_file(file, network)
    file.write_bytes(b"\xff\xfe\x00")
    with raises(CityError, "text file"):
        read_seen_file(file, network)
    with raises(CityError, "No such file"):
        read_seen_file(tmp_path / "none.txt", network)


def test_parse_seen(tmp_path: Path) -> None:
    file = tmp_path / "30%"  # a file that exists is a file, whatever it is called
    file.write_text("1\n")
    assert parse_seen("30%") == pytest.approx(0.3)
    assert parse_seen("0.3") == 0.3
    assert parse_seen(" ALL ") == "all"
    assert parse_seen(str(file)) == file
    with raises(SettingsError, "Did you mean 30%?"):
        parse_seen("30")
    for text in ("0", "-5%", "101%", "300%", "1e4%", "300", "nan"):
        with raises(SettingsError, "share", "0") as refused:
            parse_seen(text)
        assert "Did you mean" not in str(refused.value)
    with raises(SettingsError, "share", "file"):
        parse_seen("sensors.txt")


def test_too_little_is_refused_with_a_remedy() -> None:
    stream = grid_stream(3)
    for seen, silent, named in (
        (None, 9, ("no node", "reading")),
        (None, 7, ("2 sensors", "1 seen")),
        (None, 6, ("3 sensors", "2 seen", "--seen all")),
        (0.2, 0, ("9 sensors", "2 seen", "share")),
        ([100, 101], 0, ("2 of the 2",)),
        (1.5, 0, ("1.5", "0", "1")),
        ("most", 0, ("share", "0.3", '"all"')),
    ):
        with raises((CityError, SettingsError), *named):
            make_split(grid_stream(3, silent=silent), seen=seen)
    with raises(SettingsError, "mode"):
        make_split(stream, seen=[100, 101, 102], mode="region")
    with raises(SettingsError, "share", "1"):
        make_split(stream, seen="all", mode="region")
    with raises(SettingsError, '"random" or "region"'):
        make_split(stream, mode="circle")
    with raises(CityError, '"7"'):
        make_split(stream, seen=[7])


def test_smallest_city_that_can_train() -> None:
    split = make_split(grid_stream(3, silent=6), seen="all")
    assert (split.seen.sum(), split.validation.sum()) == (3, 1)


def test_short_record_is_refused() -> None:
    with raises(SettingsError, "test period", "20", "200", "12 past + 12 ahead = 24", "240"):
        make_split(grid_stream(snapshots=200))
    assert make_split(grid_stream(snapshots=240)).test == (216, 240)
    assert make_split(grid_stream(snapshots=200), past=8).test == (180, 200)


def test_silent_periods_are_refused() -> None:
    stream = grid_stream()
    stream.observed[:210] = False
    with raises(CityError, "training period"):
        make_split(stream)
    stream = grid_stream()
    stream.observed[210:270] = False
    with raises(CityError, "validation period"):
        make_split(stream)


def test_no_validation_share_leaves_every_seen_node_to_training() -> None:
    # --validation unseen, the paper's setting: its validation nodes are the unseen ones.
    split = make_split(grid_stream(), seen=0.5, validation_share=0.0)
    assert not split.validation.any()
    assert np.array_equal(split.training, split.seen)
