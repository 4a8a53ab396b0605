"""Offsets from UTC and clock changes: a reading stays in the hour, and a day in the day, in which it was made."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frigate.calendar import Steps
from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.city.stream import make_stream
from frigate.errors import CityError
from frigate.sources.tables.importer import import_tables
from tests.support.errors import names, raises
from tests.support.grids import grid_network
from tests.support.table_files import small_files

BERLIN, PACIFIC, HOWE = "Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe"


def city_of(folder: Path, readings: str | pl.DataFrame, **options: Any) -> City:
    files = small_files(folder / "in")
    path = folder / ("r.csv" if isinstance(readings, str) else "r.parquet")
    if isinstance(readings, str):
        path.write_text(readings, encoding="utf-8")
    else:
        readings.write_parquet(path)
    return import_tables(nodes=files["nodes.csv"], edges=files["edges.csv"], readings=path, **options)


def told(city: City, word: str) -> bool:
    return any(names(notice, word) for notice in city.notices)


def read_at(city: City, node: int = 0) -> dict[str, float]:
    """Local time -> value of the snapshots with a reading at a node."""
    stream = city.stream
    return {
        stream.local_time(int(stream.times_s[s])): float(stream.values[s, node])
        for s in np.flatnonzero(stream.observed[:, node])
    }


# Offsets


@pytest.mark.parametrize(
    "form", ["T{0}:00:00-08:00", " {0}:00:00-08:00", "T{0}:00-08:00", "T{0}:00-0800", "T{0}:00-08", " {0}:00:00 -0800"]
)
def test_an_offset_behind_utc_is_kept(tmp_path: Path, form: str) -> None:
    rows = [f"2024-01-01{form.format(f'{hour:02}')},{node},{hour}" for hour in (8, 9, 10) for node in "AC"]
    city = city_of(tmp_path, "time,node_id,value\n" + "\n".join(rows), step="1h", timezone="UTC")
    assert city.stream.start_s == int(datetime(2024, 1, 1, 16, tzinfo=UTC).timestamp())
    assert city.stream.values[:, 0].tolist() == [8, 9, 10]


def test_times_of_a_parquet_file_keep_their_zone(tmp_path: Path) -> None:
    local = [datetime(2024, 1, 1, 8 + h, tzinfo=ZoneInfo(PACIFIC)) for h in range(3)]
    aware = pl.DataFrame({"time": local, "node_id": ["A"] * 3, "value": [1, 2, 3]})
    words = aware.with_columns(pl.Series("time", [str(when) for when in local]))  # 2024-01-01 08:00:00-08:00
    for table in (aware, words):
        city = city_of(tmp_path, table, step="1h")
        assert city.stream.times_s.tolist() == [int(when.timestamp()) for when in local]


def test_a_range_of_times_is_its_start(tmp_path: Path) -> None:
    for times in (("08:00-08:15", "08:15-08:30"), ("08:00 - 09:00", "09:00 - 10:00")):
        rows = [f"2024-01-01 {time},A,{i}" for i, time in enumerate(times)]
        city = city_of(tmp_path, "time,node_id,value\n" + "\n".join(rows), step="15min", timezone="UTC")
        assert city.stream.start_s == int(datetime(2024, 1, 1, 8, tzinfo=UTC).timestamp())


def test_ambiguous_ranges_and_offsets_are_refused_unless_the_column_decides(tmp_path: Path) -> None:
    text = "time,node_id,value\n" + "\n".join(f"2024-01-01 0{h}:00-08:00,A,{h}" for h in (5, 6, 7))
    with raises(CityError, "r.csv line 2", '"2024-01-01 05:00-08:00"'):
        city_of(tmp_path, text, timezone="UTC")
    hourly = "date,time,node_id,value\n" + "\n".join(f"2024-01-01,0{h}:00-0{h + 1}:00,A,{h}" for h in (5, 6, 7))
    assert city_of(tmp_path, hourly, timezone="UTC").stream.start_s == 1_704_067_200 + 5 * 3600


# Steps of more than an hour


CHANGES = [
    (BERLIN, (2024, 3, 25)),
    (BERLIN, (2024, 10, 21)),
    (PACIFIC, (2024, 3, 4)),
    (PACIFIC, (2024, 10, 28)),
    (HOWE, (2024, 4, 1)),
    (HOWE, (2024, 9, 30)),
]


@pytest.mark.parametrize(("zone", "first"), CHANGES)
@pytest.mark.parametrize("hours", [2, 3, 6, 24])
def test_steps_are_those_of_the_local_day(tmp_path: Path, zone: str, first: tuple[int, int, int], hours: int) -> None:
    """A reading at each whole step of the wall clock, as a logger writes them."""
    wall = [datetime(*first) + timedelta(hours=hours * i) for i in range(14 * 24 // hours)]
    rows = [f"{t.isoformat()},A,{i}" for i, t in enumerate(wall)]
    city = city_of(tmp_path, "time,node_id,value\n" + "\n".join(rows), timezone=zone, quantity="count")
    stream = city.stream
    assert stream.step_s == hours * 3600
    assert stream.values[:, 0].tolist() == list(range(len(wall)))
    local = stream.times_s + stream.utc_offset_s
    assert local.tolist() == [int(t.replace(tzinfo=UTC).timestamp()) for t in wall]
    assert (np.diff(stream.times_s) > 0).all() and len(set(np.diff(stream.times_s))) > 1
    write_city(city, tmp_path / "city")
    again = read_city(tmp_path / "city").stream
    assert again.times_s.tolist() == stream.times_s.tolist()
    np.testing.assert_array_equal(again.values, stream.values)


def test_an_hour_is_an_hour_where_the_clock_changes_by_one() -> None:
    start_s = int(datetime(2024, 10, 26, 22, tzinfo=UTC).timestamp())
    stream = make_stream(np.ones((25, 4)), grid_network(2), start_s=start_s, step_s=3600, timezone=BERLIN)
    assert (np.diff(stream.times_s) == 3600).all()


def test_an_hour_in_which_the_clock_goes_back_by_half_of_one_is_longer() -> None:
    start_s = int(datetime(2024, 4, 6, 13, tzinfo=UTC).timestamp())  # midnight in summer; back from 02:00 to 01:30
    stream = make_stream(np.ones((25, 4)), grid_network(2), start_s=start_s, step_s=3600, timezone=HOWE)
    assert (np.diff(stream.times_s) - 3600).tolist() == [0, 1800, *[0] * 22]


ANY_STEP = st.sampled_from([s for s in range(60, 86401) if 86400 % s == 0])


@given(ANY_STEP, st.sampled_from([BERLIN, PACIFIC, HOWE, "UTC"]), st.integers(0, 500), st.integers(1, 400))
def test_a_time_lies_in_the_snapshot_that_begins_before_it(step_s: int, zone: str, days: int, count: int) -> None:
    start_s = int((datetime(2024, 1, 1) + timedelta(days=days)).replace(tzinfo=ZoneInfo(zone)).timestamp())
    steps = Steps(start_s, step_s, zone)
    starts = steps.times_s(-3, count)
    assert starts[3] == start_s and (np.diff(starts) >= 0).all()
    lasting = np.flatnonzero(np.diff(starts) > 0)
    for time_s in (starts[:-1][lasting], starts[1:][lasting] - 1):
        assert steps.snapshot_at(time_s).tolist() == (lasting - 3).tolist()
    stream = make_stream(np.ones((count, 4)), grid_network(2), start_s=start_s, step_s=step_s, timezone=zone)
    assert stream.times_s.tolist() == starts[3:].tolist()
    assert stream.slice(count // 2, count).times_s.tolist() == starts[3 + count // 2 :].tolist()


# The hour that autumn repeats


def autumn(zone: str, every_min: int, hours: int) -> list[datetime]:
    day = {BERLIN: (2024, 10, 27), PACIFIC: (2024, 11, 3), HOWE: (2024, 4, 7)}[zone]
    start = datetime(*day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    times = (start + timedelta(minutes=every_min * i) for i in range(hours * 60 // every_min))
    return [t.astimezone(ZoneInfo(zone)) for t in times]


@pytest.mark.parametrize("zone", [BERLIN, PACIFIC, HOWE])
@pytest.mark.parametrize("order", ["by time", "by sensor", "newest first"])
def test_the_order_of_rows_tells_the_repeated_hour_apart(tmp_path: Path, zone: str, order: str) -> None:
    when = autumn(zone, 15, 6)
    rows = [(i, node) for i in range(len(when)) for node in "AC"]
    if order == "by sensor":
        rows.sort(key=lambda row: row[1])
    elif order == "newest first":
        rows.reverse()
    text = "time,node_id,value\n" + "\n".join(f"{when[i]:%Y-%m-%d %H:%M},{node},{i}" for i, node in rows)
    city = city_of(tmp_path, text, timezone=zone)
    assert city.stream.times_s.tolist() == [int(t.timestamp()) for t in when]
    for node in (0, 2):
        assert city.stream.values[:, node].tolist() == list(range(len(when)))
    assert told(city, "twice")


def test_the_order_is_remembered_from_one_run_of_rows_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frigate.sources.tables import readings

    when = autumn(BERLIN, 15, 6)
    text = "time,A\n" + "\n".join(f"{t:%Y-%m-%d %H:%M},{i}" for i, t in enumerate(when))
    monkeypatch.setattr(readings, "BATCH_ROWS", 5)
    city = city_of(tmp_path, text, timezone=BERLIN)
    assert city.stream.values[:, 0].tolist() == list(range(len(when)))


def test_a_repeated_hour_that_is_there_once_is_said(tmp_path: Path) -> None:
    text = "time,node_id,value\n2024-10-27 01:45,A,1\n2024-10-27 02:15,A,24.5\n2024-10-27 03:00,A,3\n"
    city = city_of(tmp_path, text, timezone=BERLIN, step="15min")
    assert read_at(city)["2024-10-27T02:15:00+02:00"] == 24.5
    assert told(city, "first")


def test_a_city_folder_tells_the_repeated_hour_apart_too(tmp_path: Path) -> None:
    small = small_files(tmp_path / "in")
    city = tmp_path / "city"
    city.mkdir()
    (city / "city.toml").write_text(f'step = "15min"\ntimezone = "{BERLIN}"\n')
    (city / "nodes.csv").write_text(small["nodes.csv"].read_text())
    (city / "edges.csv").write_text("source,target,length_m\nA,B,730\nB,A,730\n")
    when = autumn(BERLIN, 15, 6)
    rows = [f"{t:%Y-%m-%d %H:%M},{node},{i}" for i, t in enumerate(when) for node in "AC"]
    (city / "readings.csv").write_text("time,node_id,value\n" + "\n".join(rows))
    stream = read_city(city).stream
    assert stream.values[:, 0].tolist() == stream.values[:, 2].tolist() == list(range(len(when)))
