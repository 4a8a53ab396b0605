"""GPS traces to counts: a town whose vehicles' ways are known, bad input of every kind, and the shared day."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.city.stream import make_stream
from frigate.coordinates import EARTH_RADIUS_M
from frigate.errors import CityError
from frigate.roads.geometry import read_line, write_line
from frigate.sources.traces import matching
from frigate.sources.traces.importer import MatchedTraces, count_passages, import_traces, match_traces
from frigate.sources.traces.matching import MatchOptions
from tests.support.errors import raises
from tests.support.shared_data import shared_data

BLOCK_M = 150.0
SIDE = 8
START_S = 1_704_096_000  # Monday 2024-01-01 08:00 UTC
LON, LAT = 6.1, 49.6
SHARED_NAMES = {"cab": "vehicle", "t_unix": "time", "lon_e5": "lon", "lat_e5": "lat"}


def degrees(x_m: NDArray[np.float64], y_m: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    scale = np.degrees(1 / EARTH_RADIUS_M)
    return LON + x_m * scale / np.cos(np.radians(LAT)), LAT + y_m * scale


def grid_town() -> RoadNetwork:
    """Streets a block apart, all both ways but two of those that run north; node ids are no rows."""
    node = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    lon, lat = degrees(TOWN_X, TOWN_Y)
    west = node[:, :-1]
    east = node[:, 1:]
    south = node[:-1]
    north = node[1:]
    up = np.arange(SIDE) != 2  # column 2 runs south only
    down = np.arange(SIDE) != 4  # column 4 north only
    senders = [west, east, south[:, up], north[:, down]]
    receivers = [east, west, north[:, up], south[:, down]]
    ends = (np.concatenate([part.ravel() for part in parts]) for parts in (senders, receivers))
    edges = Edges.of(next(ends), next(ends), np.full(sum(part.size for part in senders), BLOCK_M))
    return RoadNetwork(1000 + 7 * node.ravel(), lon, lat, edges)


TOWN_X = np.tile(np.arange(SIDE) * BLOCK_M, SIDE)
TOWN_Y = np.repeat(np.arange(SIDE) * BLOCK_M, SIDE)
TOWN = grid_town()


def drive(seed: int, *, vehicles: int = 12, noise_m: float = 3.0) -> tuple[pl.DataFrame, list[tuple[int, int, float]]]:
    """Positions, and (vehicle, row, second) of nodes passed. Ways begin and end in mid-block, and do not turn about."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, float, float, float]] = []
    passed: list[tuple[int, int, float]] = []
    for vehicle in range(vehicles):
        nodes = [int(rng.integers(TOWN.num_nodes))]
        for _ in range(30):
            out = TOWN.receivers[TOWN.senders == nodes[-1]]
            nodes.append(int(rng.choice(out[out != nodes[max(0, len(nodes) - 2)]])))
        speed_mps = rng.uniform(6, 10)
        start_s = START_S + 3600 * rng.random()
        node_s = start_s + BLOCK_M / speed_mps * np.arange(len(nodes))
        first_s = node_s[:2].mean()
        last_s = node_s[-2:].mean()
        at_s = np.append(np.arange(first_s, last_s - 12.0, 14.0), last_s)
        rows += [
            (vehicle, a + rng.normal(0, noise_m), b + rng.normal(0, noise_m), t)
            for a, b, t in zip(*(np.interp(at_s, node_s, at[nodes]) for at in (TOWN_X, TOWN_Y)), at_s, strict=True)
        ]
        passed += [(vehicle, n, t) for n, t in zip(nodes, node_s, strict=True) if first_s < t < last_s]
    vehicle_, x_m, y_m, time_s = (np.array(c) for c in zip(*rows, strict=True))
    lon, lat = degrees(x_m, y_m)
    frame = pl.DataFrame({"vehicle": vehicle_, "time": time_s, "lon": lon, "lat": lat})
    return frame, passed


def written(frame: pl.DataFrame, folder: Path, name: str = "trace.parquet") -> Path:
    path = folder / name
    if path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)
    return path


def same_counts(one: City, other: City) -> None:
    np.testing.assert_array_equal(one.stream.values, other.stream.values)
    np.testing.assert_array_equal(one.stream.observed, other.stream.observed)
    assert one.stream.start_s == other.stream.start_s


def said(city: City | MatchedTraces, words: str) -> str:
    """The notice with these words."""
    notices = city.notices if isinstance(city, City) else tuple(city.notices.sentences())
    found = [notice for notice in notices if words in notice]
    assert len(found) == 1, notices
    return found[0]


# Ways that are known


@pytest.mark.parametrize("noise_m", [0.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_known_ways_are_recovered(tmp_path: Path, seed: int, noise_m: float) -> None:
    frame, passed = drive(seed, noise_m=noise_m)
    assert len(passed) > 100
    found = match_traces(written(frame, tmp_path), TOWN)
    assert found.node.tolist() == [node for _, node, _ in passed]
    late_s = found.time_us / 1e6 - np.array([t for *_, t in passed])
    assert np.abs(late_s).max() < 2.5
    assert found.report.matched == found.report.moving == found.report.inside
    np.testing.assert_array_equal(TOWN.receivers[found.road], found.node)


def test_much_noise_costs_few_passages(tmp_path: Path) -> None:
    frame, passed = drive(0, noise_m=10.0)
    found = match_traces(written(frame, tmp_path), TOWN)
    truth = np.bincount([node for _, node, _ in passed], minlength=TOWN.num_nodes)
    wrong = np.abs(np.bincount(found.node, minlength=TOWN.num_nodes) - truth).sum()
    assert wrong < 0.1 * truth.sum()
    assert 5 < found.report.sigma_m < 15
    assert 3 < found.report.mean_distance_m < 12


def test_counts_are_the_passages_by_step(tmp_path: Path) -> None:
    frame, _ = drive(1)
    path = written(frame, tmp_path)
    found = match_traces(path, TOWN)
    city = import_traces(path, TOWN, step="10min")
    expected = np.zeros_like(city.stream.values)
    for time_us, node in zip(found.time_us, found.node, strict=True):
        expected[int((time_us / 1e6 - city.stream.start_s) // 600), node] += 1
    np.testing.assert_array_equal(city.stream.values, expected)
    assert city.stream.values.sum() == found.report.passages == len(found.node)
    assert city.stream.start_s % 600 == 0
    assert city.name == tmp_path.name
    assert city.stream.quantity == "count"
    assert "100.0%" in said(city, "Matched to a road")


def test_roads_can_be_the_nodes(tmp_path: Path) -> None:
    frame, _ = drive(2)
    path = written(frame, tmp_path)
    by_node = import_traces(path, TOWN)
    by_road = import_traces(path, TOWN, on="roads")
    assert by_road.stream.num_nodes == TOWN.num_edges
    into = np.zeros_like(by_node.stream.values)
    np.add.at(into.T, TOWN.receivers, by_road.stream.values.T)
    np.testing.assert_array_equal(into, by_node.stream.values)
    with raises(CityError, "nodes or roads"):
        import_traces(path, TOWN, on="lanes")


def test_turns_that_the_city_forbids_are_no_edges(tmp_path: Path) -> None:
    path = written(drive(2)[0], tmp_path)
    nothing = make_stream(np.zeros((0, TOWN.num_nodes)), TOWN, start_s=0, step_s=300)
    turns = np.array([[0, 1, 2], [2, 1, 0]])
    write_city(City("town", nothing, forbidden_turns=turns), tmp_path / "town")
    town = read_city(tmp_path / "town")
    np.testing.assert_array_equal(import_traces(path, town).forbidden_turns, turns)
    free, bound = (import_traces(path, network, on="roads") for network in (TOWN, town))
    same_counts(free, bound)
    assert free.network.num_edges == bound.network.num_edges + len(turns)
    assert len(bound.forbidden_turns) == 0


def test_a_city_gives_its_network_name_and_time_zone_and_the_result_can_be_written(tmp_path: Path) -> None:
    nothing = make_stream(np.zeros((0, TOWN.num_nodes)), TOWN, start_s=0, step_s=300, timezone="Europe/Luxembourg")
    frame, _ = drive(3)
    utc = (pl.col("time") * 1e6).cast(pl.Int64).cast(pl.Datetime("us", "UTC"))
    naive = frame.with_columns(time=utc.dt.convert_time_zone("Europe/Luxembourg").dt.replace_time_zone(None))
    town = City("town", nothing)
    city = import_traces(written(naive, tmp_path), town)
    assert (city.name, city.stream.timezone) == ("town", "Europe/Luxembourg")
    assert str(len(frame)) in said(city, "read as local time")
    assert "(Europe/Luxembourg), as none was given" in said(city, "Time zones taken from the network's city")
    given = import_traces(written(naive, tmp_path), town, timezone="UTC")
    assert given.stream.timezone == "UTC" and not any("Time zones taken" in notice for notice in given.notices)
    same_counts(city, import_traces(written(frame, tmp_path, "utc.parquet"), town))
    write_city(city, tmp_path / "city")
    np.testing.assert_array_equal(
        read_city(tmp_path / "city").stream.values.sum(axis=0), city.stream.values.sum(axis=0)
    )


def test_workers_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "CHUNK", 100)
    path = written(drive(4)[0], tmp_path)
    one, two = (match_traces(path, TOWN, MatchOptions(workers=workers)) for workers in (1, 2))
    for a, b in ((one.time_us, two.time_us), (one.node, two.node), (one.road, two.road)):
        np.testing.assert_array_equal(a, b)
    assert one.report == two.report
    assert one.report.passages > 100


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_ray_cluster_changes_nothing(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="the extra cluster is not installed")
    path = written(drive(5)[0], tmp_path)
    here = match_traces(path, TOWN)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    try:
        there = match_traces(path, TOWN, MatchOptions(engine="ray"))
        assert ray.is_initialized()  # a cluster that was there is left running
    finally:
        ray.shutdown()
    np.testing.assert_array_equal(here.time_us, there.time_us)
    np.testing.assert_array_equal(here.node, there.node)
    assert here.report == there.report


# Standing and gaps


def test_a_standing_vehicle_is_not_counted_again(tmp_path: Path) -> None:
    frame, passed = drive(6, vehicles=1)
    middle = len(frame) // 2
    stand = frame[[middle] * 40].with_columns(
        time=pl.col("time") + 15.0 * np.arange(1, 41), lon=pl.col("lon") + 1e-4 * np.sin(np.arange(40))
    )
    after = frame[middle + 1 :].with_columns(time=pl.col("time") + 600.0)
    found = match_traces(written(pl.concat([frame[: middle + 1], stand, after]), tmp_path), TOWN)
    assert found.node.tolist() == [node for _, node, _ in passed]
    assert found.report.standing == 40
    assert found.report.cut == 0
    left_s = frame["time"][middle]
    back_s = frame["time"][middle] + 600
    assert not ((found.time_us / 1e6 > left_s + 1) & (found.time_us / 1e6 < back_s - 1)).any()


def test_a_trace_is_cut_at_a_long_gap(tmp_path: Path) -> None:
    frame, passed = drive(6, vehicles=1)
    time_s = frame["time"].to_numpy()
    # The gap is where a node is passed well between two positions: that passage is lost, and no other.
    after = next(i for i in range(8, len(frame)) if any(time_s[i - 1] + 4 < t < time_s[i] - 4 for *_, t in passed))
    path = written(frame.with_columns(time=time_s + 300.0 * (np.arange(len(frame)) >= after)), tmp_path)
    cut = match_traces(path, TOWN)
    whole = match_traces(path, TOWN, MatchOptions(max_gap_s=400))
    assert (cut.report.cut, whole.report.cut) == (1, 0)
    assert whole.node.tolist() == [node for _, node, _ in passed]
    assert cut.node.tolist() == [node for _, node, t in passed if not time_s[after - 1] < t < time_s[after]]


def test_a_trace_breaks_where_nobody_can_drive(tmp_path: Path) -> None:
    frame, _ = drive(6, vehicles=1)
    jump = frame.with_row_index().with_columns(
        lon=pl.when(pl.col("index") == 10).then(LON).otherwise("lon"),
        lat=pl.when(pl.col("index") == 10).then(LAT).otherwise("lat"),
        time=pl.col("time").first() + 2.0 * pl.col("index"),
    )
    found = match_traces(written(jump, tmp_path), TOWN, MatchOptions(beta_m=20))
    assert found.report.broken > 0
    assert "broken for lack of a route" in " ".join(found.report.sentences())


def test_a_step_in_which_no_vehicle_reported_is_not_observed(tmp_path: Path) -> None:
    frame, _ = drive(7, vehicles=1)
    late = frame.with_columns(time=pl.col("time") + 3600.0)
    city = import_traces(written(pl.concat([frame, late]), tmp_path), TOWN)
    empty = ~np.asarray(city.stream.observed.any(axis=1))
    assert 3 < empty.sum() < len(empty) - 2
    assert f": {empty.sum()}" in said(city, "no vehicle reported")
    assert city.stream.observed[~empty].all()


# Bad input


def spoilt(frame: pl.DataFrame, row: int, **cells: Any) -> pl.DataFrame:
    """The table with one more row, like this one but for some cells."""
    more = frame[[row]].with_columns(**{name: pl.lit(value) for name, value in cells.items()})
    return pl.concat([frame[: row + 1], more.cast(frame.schema), frame[row + 1 :]])


SPOILT: dict[str, tuple[Callable[[pl.DataFrame], pl.DataFrame], str]] = {
    "at (0, 0)": (lambda f: spoilt(f, 9, lon=0.0, lat=0.0, time=f["time"][9] + 1), "at (0, 0)"),
    "nan": (lambda f: spoilt(f, 9, lon=float("nan"), time=f["time"][9] + 1), "without coordinates"),
    "empty": (lambda f: spoilt(f, 9, lat=None, time=f["time"][9] + 1), "without coordinates"),
    "swapped": (lambda f: spoilt(f, 9, lon=f["lat"][9], lat=f["lon"][9], time=f["time"][9] + 1), "look swapped"),
    "off the earth": (lambda f: spoilt(f, 9, lon=6.1e5, time=f["time"][9] + 1), "not on earth"),
    "no vehicle": (lambda f: spoilt(f, 9, vehicle=None, time=f["time"][9] + 1), "without a vehicle"),
    "no time": (lambda f: spoilt(f, 9, time=None), "without a time"),
    "time nan": (lambda f: spoilt(f, 9, time=float("nan")), "without a time"),
    "repeated": (lambda f: spoilt(f, 9), "repeated"),
}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("fault", SPOILT)
def test_a_position_that_cannot_be_used_is_left_out_and_counted(tmp_path: Path, fault: str, ending: str) -> None:
    frame, _ = drive(8, vehicles=4)
    spoil, words = SPOILT[fault]
    if fault == "time nan" and ending == "csv":
        pytest.skip("in a CSV file a time is text")
    good = import_traces(written(frame, tmp_path, f"good.{ending}"), TOWN)
    path = written(spoil(frame), tmp_path, f"bad.{ending}")
    bad = import_traces(path, TOWN)
    same_counts(good, bad)
    assert f": 1 (first: bad.{ending} " in said(bad, words) or fault == "repeated"
    report = match_traces(path, TOWN).report
    assert report.read == len(frame) + 1
    assert sum(report.dropped.values()) == 1
    assert words in next(iter(report.dropped))


def test_clocks_that_run_backwards_are_sorted_and_counted(tmp_path: Path) -> None:
    frame, _ = drive(8, vehicles=4)
    good = import_traces(written(frame, tmp_path), TOWN)
    mixed = import_traces(written(frame.sample(fraction=1.0, shuffle=True, seed=0), tmp_path, "mixed.parquet"), TOWN)
    same_counts(good, mixed)
    said(mixed, "earlier than the one above of the same vehicle")


def test_a_vehicle_in_two_places_at_once_is_in_neither(tmp_path: Path) -> None:
    frame, _ = drive(8, vehicles=4)
    torn = spoilt(frame, 9, lon=frame["lon"][9] + 0.005)
    found = import_traces(written(torn, tmp_path), TOWN)
    same_counts(found, import_traces(written(pl.concat([frame[:9], frame[10:]]), tmp_path, "less.parquet"), TOWN))
    assert ": 2 (first: vehicle" in said(found, "in two places at once")


def test_a_vehicle_wholly_outside_is_counted_and_traces_wholly_outside_are_refused(tmp_path: Path) -> None:
    frame, _ = drive(9, vehicles=4)
    away = frame.with_columns(vehicle=pl.col("vehicle") + 100, lat=pl.col("lat") + 1)
    both = match_traces(written(pl.concat([frame, away]), tmp_path), TOWN)
    assert both.report.vehicles_outside == both.report.vehicles // 2
    assert both.report.outside == both.report.moving // 2
    assert both.report.matched_share == 1
    same = match_traces(written(frame, tmp_path, "alone.parquet"), TOWN)
    np.testing.assert_array_equal(both.node, same.node)
    with raises(CityError, "200 m"):
        import_traces(written(away, tmp_path, "away.parquet"), TOWN)


def test_columns_swapped_throughout_are_refused_with_the_remedy(tmp_path: Path) -> None:
    frame, _ = drive(9, vehicles=2)
    path = written(frame.rename({"lon": "lat", "lat": "lon"}), tmp_path)
    with raises(CityError, "swapped", "lon=lat", "lat=lon"):
        import_traces(path, TOWN)
    turned = import_traces(path, TOWN, rename={"lon": "lat", "lat": "lon"})
    same_counts(turned, import_traces(written(frame, tmp_path, "good.parquet"), TOWN))


def test_zones_may_be_mixed(tmp_path: Path) -> None:
    frame, _ = drive(10, vehicles=3)
    time = (pl.col("time") * 1e6).cast(pl.Int64).cast(pl.Datetime("us", "UTC"))
    utc = time.dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
    tokyo = time.dt.convert_time_zone("Asia/Tokyo").dt.strftime("%Y-%m-%dT%H:%M:%S%.6f+09:00")
    mixed = frame.with_row_index().with_columns(time=pl.when(pl.col("index") % 2 == 0).then(utc).otherwise(tokyo))
    city = import_traces(written(mixed.drop("index"), tmp_path, "mixed.csv"), TOWN)
    same_counts(city, import_traces(written(frame, tmp_path), TOWN))


def test_columns_are_mapped_and_scaled(tmp_path: Path) -> None:
    frame, _ = drive(11, vehicles=3)
    good = import_traces(written(frame, tmp_path), TOWN)
    for unit, factor in (("e5", 1e5), ("e6", 1e6), ("e7", 1e7)):
        own = frame.select(
            taxi="vehicle",
            when="time",
            **{f"x_{unit}": (pl.col("lon") * factor).round().cast(pl.Int64)},
            **{f"y_{unit}": (pl.col("lat") * factor).round().cast(pl.Int64)},
        )
        path = written(own, tmp_path, f"{unit}.parquet")
        named = import_traces(
            path, TOWN, rename={"taxi": "vehicle", "when": "time", f"x_{unit}": "lon", f"y_{unit}": "lat"}
        )
        names = {"taxi": "vehicle", "when": "time", f"x_{unit}": "lon", f"y_{unit}": "lat"}
        same_counts(named, import_traces(path, TOWN, rename=names))
        assert named.stream.values.sum() == good.stream.values.sum()


def test_several_files_are_one_set_of_vehicles(tmp_path: Path) -> None:
    frame, _ = drive(12, vehicles=3)
    half = len(frame) // 2
    parts = [written(frame[:half], tmp_path, "a.csv"), written(frame[half:], tmp_path, "b.parquet")]
    city = import_traces(parts, TOWN)
    same_counts(city, import_traces(written(frame, tmp_path), TOWN))


def refuse(path: Path | list[Path], *named: str, network: RoadNetwork = TOWN, **options: Any) -> None:
    with raises(CityError, *named):
        import_traces(path, network, **options)


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    frame, _ = drive(13, vehicles=1)
    refuse(tmp_path / "none.csv", "none.csv", "no such file")
    refuse([], "no trace file")
    refuse(tmp_path, tmp_path.name, '""')
    empty = tmp_path / "empty.csv"
    empty.touch()
    refuse(empty, "empty.csv", "empty")
    refuse(written(frame.head(0), tmp_path, "bare.csv"), "bare.csv", "no rows")
    refuse(written(frame.drop("vehicle"), tmp_path, "three.csv"), "three.csv", "column vehicle")
    refuse(written(frame.rename({"lon": "lon_e5"}), tmp_path, "e5.csv"), "e5.csv", "column lon", '"lon_e5"')
    whole = written(frame, tmp_path).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    refuse(tmp_path / "cut.parquet", "cut.parquet", "Parquet")
    (tmp_path / "latin.csv").write_bytes("vehicle,time,lon,lat\né,1704096000,6.1,49.6\n".encode("latin-1"))
    refuse(tmp_path / "latin.csv", "latin.csv line 2", "UTF-8")
    (tmp_path / "bomb.csv").write_bytes(gzip.compress(b"vehicle,time,lon,lat\n" * 100_000))
    refuse(tmp_path / "bomb.csv", "bomb.csv", "gzip")
    refuse(_touched(tmp_path / "track.gpx"), '".gpx"')
    words = frame.with_columns(lon=pl.lit("east"))
    refuse(written(words, tmp_path, "words.csv"), "words.csv line 2", 'lon "east"')
    noon = frame.with_columns(time=pl.lit("noon"))
    refuse(written(noon, tmp_path, "noon.csv"), "noon.csv line 2", 'time "noon"')
    long = frame.with_columns(time=pl.lit("9" * 5000))
    refuse(written(long, tmp_path, "long.csv"), "long.csv line 2", "time")
    for strange in (pl.duration(seconds=1), pl.lit(b"cab"), pl.concat_list("lon", "lat"), pl.date(2024, 1, 1)):
        refuse(written(frame.with_columns(vehicle=strange), tmp_path), "trace.parquet", "column vehicle")


def _touched(path: Path) -> Path:
    path.touch()
    return path


def test_nothing_usable_is_refused_with_the_reason(tmp_path: Path) -> None:
    frame, _ = drive(13, vehicles=1)
    scaled = frame.with_columns(pl.col("lon", "lat") * 1e5)
    refuse(written(scaled, tmp_path), "lon_e5=lon")
    refuse(written(frame.with_columns(lon=0.0, lat=0.0), tmp_path), "(0, 0)")


def test_options_are_checked(tmp_path: Path) -> None:
    path = written(drive(13, vehicles=1)[0], tmp_path)
    refuse(path, "sigma_m", "0", sigma_m=0)
    refuse(path, "beta_m", "-1", beta_m=-1)
    refuse(path, "max_gap_s", "nan", max_gap_s=float("nan"))
    refuse(path, "radius_m", "500", radius_m=500)
    refuse(path, "step", '"soon"', step="soon")
    refuse(path, "time zone", '"Mars"', timezone="Mars")
    refuse(path, '"speed"', rename={"speed": "speed"})
    refuse(path, '"speed"', rename={"lon": "speed"})
    refuse(path, '"lonn"', '"lon"', rename={"lonn": "lon"})
    refuse(path, "no roads", network=TOWN.with_roads(Edges.none()))


def test_a_mistaken_year_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    frame, _ = drive(13, vehicles=1)
    refuse(written(spoilt(frame, 9, time=6e9), tmp_path), "2160-02-18T10:40:00Z", "the last position", step="1s")


# The shared day


def shared_network() -> RoadNetwork:
    """The streets of San Francisco."""
    streets = pl.read_parquet(shared_data("sf-streets-traces") / "streets.parquet")
    ends = streets.select("from_node", "to_node").to_numpy()
    ids, rows = np.unique(ends, return_inverse=True)
    rows = rows.reshape(ends.shape)
    lines = [read_line(text) for text in streets["wkt"].to_list()]
    lon_lat = np.zeros((len(ids), 2))
    for k, at in ((0, 0), (1, -1)):
        lon_lat[rows[:, k]] = [line[at] for line in lines]
    direction = streets["direction"].to_numpy()
    length_m = streets["length_m"].to_numpy()
    forward = direction != "backward"
    backward = direction != "forward"
    geometry = np.array([write_line(line) for line in lines], np.object_)
    edges = Edges.of(
        np.concatenate([rows[forward, 0], rows[backward, 1]]),
        np.concatenate([rows[forward, 1], rows[backward, 0]]),
        np.concatenate([length_m[forward], length_m[backward]]),
        geometry=np.concatenate([geometry[forward], geometry[backward]]),
    )
    return RoadNetwork(ids, lon_lat[:, 0], lon_lat[:, 1], clean_edges(edges)[0])


def hourly_correlation(city: City, counts: NDArray[np.generic], columns: NDArray[np.int64]) -> float:
    ours = city.stream.values[:, columns].reshape(-1, 12, len(columns)).sum(axis=1)
    theirs = counts.astype(np.float64).reshape(ours.shape[0], 12, -1).sum(axis=1)
    return float(np.corrcoef(ours.ravel(), theirs.ravel())[0, 1])


@pytest.mark.shared
@pytest.mark.parametrize("hours", [(7, 10), pytest.param((3, 27), marks=pytest.mark.slow)])
def test_the_shared_day_comes_close_to_the_published_counts(hours: tuple[int, int], tmp_path: Path) -> None:
    folder = shared_data("sf-streets-traces")
    taxi = shared_data("sf-taxi")
    network = shared_network()
    day = pl.read_parquet(folder / "traces_2008-05-28.parquet")
    path = tmp_path / "traces.parquet"
    start_s, stop_s = (1_211_958_000 + 3600 * hour for hour in hours)  # from midnight in San Francisco
    day.filter(pl.col("t_unix").is_between(start_s, stop_s, closed="left")).write_parquet(path)
    matched = match_traces(path, network, MatchOptions(workers=2), rename=SHARED_NAMES, timezone="America/Los_Angeles")
    assert matched.report.matched_share >= 0.97, asdict(matched.report)
    assert matched.report.mean_distance_m < 8, asdict(matched.report)
    city = count_passages(matched, network, step_s=300, timezone="America/Los_Angeles", name="sf")
    steps = 12 * (hours[1] - hours[0])
    assert (city.stream.start_s, city.stream.num_snapshots) == (start_s, steps)
    with np.load(taxi / "counts.npz") as held:
        first = int(np.searchsorted(held["t_unix"], city.stream.start_s))
        busy = held["counts"][held["valid"]].mean(axis=0) > 1
        counts = held["counts"][first : first + steps][:, busy]
    columns = network.rows_of(pl.read_parquet(taxi / "nodes.parquet")["source_id"].to_numpy()[busy].tolist())
    assert hourly_correlation(city, counts, columns) >= 0.95
