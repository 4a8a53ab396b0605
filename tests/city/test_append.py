"""Every day's file is added to the city that is there: the same as one import of all, twice or once."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from frigate.city.append import append_readings
from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.errors import CityError
from frigate.sources.tables.importer import import_tables
from tests.support.command_line import frigate
from tests.support.errors import raises
from tests.support.towns import random_network, random_stream

MAP = City("map", random_stream([random_network(6, seed=1)], seed=1, snapshots=8))
IDS = MAP.network.node_ids[:2].tolist()


def day(folder: Path, number: int, *, more: int = 0) -> Path:
    """Counts of a day in January 2024 at two nodes, hourly."""
    rows = [f"2024-01-{number:02d}T{h:02d}:00Z,{node},{h + number + more}" for h in range(24) for node in IDS]
    path = folder / f"day{number}-{more}.csv"
    path.write_text("\n".join(["time,node_id,value", *rows]) + "\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_city(MAP, tmp_path / "map")
    write_city(counted(tmp_path, 1), tmp_path / "town")
    return tmp_path


def counted(folder: Path, number: int, *, more: int = 0, network: City = MAP) -> City:
    return import_tables(network=network, readings=day(folder, number, more=more), step="1h", name="town")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_days_added_one_by_one_are_those_imported_together(folder: Path) -> None:
    town = folder / "town"
    for number in (4, 2):  # a gap, and one that comes late
        append_readings(counted(folder, number), town)
    rows = [line for n in (1, 2, 4) for line in day(folder, n).read_text().splitlines()[1:]]
    (folder / "all.csv").write_text("\n".join(["time,node_id,value", *rows]) + "\n")
    whole = import_tables(network=MAP, readings=folder / "all.csv", step="1h")
    write_city(whole, folder / "whole")
    got = read_city(town).stream
    want = read_city(folder / "whole").stream
    np.testing.assert_array_equal(got.values, want.values)
    np.testing.assert_array_equal(got.observed, want.observed)
    assert (got.start_s, got.num_snapshots) == (want.start_s, 96)


def test_the_next_file_is_read_as_the_first_was(folder: Path) -> None:
    """Names of columns, encoding, order of dates, bearing and --snap are those of the first import."""

    def file(number: int) -> Path:
        rows = [f"{number:02d}/03/2024 {h:02d}:00;Zähler {k};{h};{k}" for h in range(24) for k in (1, 2)]
        path = folder / f"d{number}.csv"
        path.write_bytes("\n".join(["Wann;Gerät;Stück;Rest", *rows]).encode("latin-1"))
        return path

    network = MAP.network
    off = 60 / 111_195  # metres
    places = [f"Zähler {k};{network.lon[k - 1]};{network.lat[k - 1] + off}" for k in (1, 2)]
    (folder / "places.csv").write_text("\n".join(["Gerät;lon;lat", *places]), encoding="utf-8")
    town = folder / "german"
    options = ("--map", "Wann=time,Gerät=sensor_id,Stück=value", "--encoding", "latin-1", "--date-order", "dmy")
    first = ("--network", folder / "map", "--sensors", folder / "places.csv", "--snap", 70, "--on", "nodes")
    made = frigate("import", "tables", "--readings", file(5), *first, *options, "-o", town, "--append")
    assert made.status == 0, made.err
    kept = read_city(town).read_as
    assert kept.encoding == "latin-1" and kept.snap_m == 70 and kept.date_order == "dmy"
    for city in (read_city(town), read_city(town, cache=False)):
        assert city.read_as == kept and dict(kept.rename)["Gerät"] == "sensor_id"
    added = frigate("import", "tables", "--readings", file(6), "-o", town, "--append")
    assert added.status == 0, added.err
    assert read_city(town).stream.observed.sum() == 96 and read_city(town).read_as == kept
    more = frigate("import", "tables", "--readings", file(7), "--map", "Rest=value", "-o", town, "--append")
    assert more.status == 0, more.err
    assert sorted(set(read_city(town).stream.values[48:].ravel())) == [0, 1, 2]  # what is given replaces what is known
    write_city(read_city(town), folder / "copy")
    assert read_city(folder / "copy").read_as == kept


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("encodng = 'latin-1'", ("encodng",)),
        ("snap_m = 'far'", ("snap_m", "far")),
        ("rename = ['a']", ("rename",)),
        ("date_order = 3", ("date_order", "3")),
    ],
)
def test_options_of_the_import_that_are_no_options_are_refused(
    written: str, named: tuple[str, ...], folder: Path
) -> None:
    with (folder / "town" / "city.toml").open("a") as file:
        file.write(f"\n[import]\n{written}\n")
    with raises(CityError, "city.toml [import]", *named):
        read_city(folder / "town")


def test_adding_the_same_again_changes_nothing(folder: Path) -> None:
    town = folder / "town"
    append_readings(counted(folder, 2), town)
    before = contents(town)
    assert append_readings(counted(folder, 2), town) == ("Nothing to add: the city already has every reading.",)
    assert contents(town) == before


def test_a_corrected_file_replaces_what_was_there_and_says_so(folder: Path) -> None:
    (said, *_) = append_readings(counted(folder, 1, more=5), folder / "town")
    assert "Readings that replace other values: 48" in said
    assert f'node "{IDS[0]}" at 2023-12-31T23:30:00Z, 1 becomes 6' in said  # in St John's a snapshot begins then
    assert read_city(folder / "town").stream.values.max() == 29


def test_another_network_step_or_quantity_is_refused_and_nothing_changes(folder: Path) -> None:
    town = folder / "town"
    before = contents(folder / "town")
    other = City("other", random_stream([MAP.network.close([_road()])], seed=1, snapshots=8))
    with raises(CityError, "town", "its network", "--network town"):
        append_readings(counted(folder, 2, network=other), town)
    with raises(CityError, "town", "1h", "2h", "--step"):
        append_readings(import_tables(network=MAP, readings=day(folder, 2), step="2h"), town)
    with raises(CityError, "town", '"count"', '"speed"', "--quantity"):
        append_readings(import_tables(network=MAP, readings=day(folder, 2), step="1h", quantity="speed"), town)
    assert contents(town) == before


def _road() -> tuple[int, int]:
    network = MAP.network
    return network.node_ids[network.senders[0]].item(), network.node_ids[network.receivers[0]].item()


def test_settings_exclusions_and_the_cache_stay(folder: Path) -> None:
    town = folder / "town"
    text = (town / "city.toml").read_text() + f'\n# by hand\n[exclude]\nreadings = ["{IDS[0]}"]\n'
    (town / "city.toml").write_text(text)
    read_city(town)
    (town / "cache" / f"{read_city(town).network.fingerprint[:16]}-derived.npy").write_bytes(b"took long")
    append_readings(counted(folder, 2), town)
    assert (town / "city.toml").read_text() == text
    city = read_city(town)
    assert city.stream.node_ids[city.stream.sensors].tolist() == IDS[1:]
    assert len(list((town / "cache").glob("*-derived.npy"))) == 1
    assert pl.read_parquet(town / "readings.parquet").height == 96  # of the excluded sensor as well


def test_a_full_disk_leaves_the_city_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    town = folder / "town"
    before = contents(folder / "town")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("frigate.city.append.write_rows", full)
    with raises(CityError, "town", "No space left"):
        append_readings(counted(folder, 2), town)
    assert contents(town) == before
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_two_at_once_lose_nothing(folder: Path) -> None:
    cities = [counted(folder, number) for number in (2, 3, 4, 5)]
    threads = [threading.Thread(target=append_readings, args=(city, folder / "town")) for city in cities]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_city(folder / "town").stream.observed.sum() == 5 * 48


def test_a_folder_replaced_while_waiting_is_locked_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    town = folder / "town"
    flock = fcntl.flock
    locked: list[int] = []
    replaced = []

    def another_was_first(handle: int, kind: int) -> None:
        if not locked:
            copy = shutil.copytree(town, folder / "copy")
            town.rename(folder / "old")
            copy.rename(town)
            replaced.append(town.stat().st_ino)
        locked.append(os.fstat(handle).st_ino)
        flock(handle, kind)

    city = counted(folder, 2)
    monkeypatch.setattr("frigate.city.append.fcntl.flock", another_was_first)
    append_readings(city, town)
    assert locked[0] not in replaced and locked[1] in replaced
    assert read_city(town).stream.observed.sum() == 96


def test_readings_within_a_step_are_not_mixed_with_new_ones(folder: Path) -> None:
    town = folder / "town"
    frame = pl.read_parquet(town / "readings.parquet")
    frame.with_columns(pl.col("time").dt.offset_by("7m")).write_parquet(town / "readings.parquet")
    with raises(CityError, "town", "not at the start of a step"):
        append_readings(counted(folder, 2), town)


def test_the_command_makes_the_city_and_then_adds_to_it(folder: Path) -> None:
    new = folder / "new"
    where = folder / "where.csv"
    network = MAP.network
    where.write_text(f"sensor_id,lon,lat\nA17,{network.lon[0]},{network.lat[0]}\n")
    for number in (1, 2, 3):
        rows = [f"2024-01-0{number}T{h:02d}:00Z,A17,{h}" for h in range(24)]
        (folder / f"{number}.csv").write_text("\n".join(["time,sensor_id,count", *rows]) + "\n")
    first = ["import", "tables", "--network", folder / "map", "--sensors", where, "-o", new, "--append"]
    assert frigate(*first, "--readings", folder / "1.csv").status == 0
    # Later the readings alone: the city knows its detectors, step, time zone and network.
    said = frigate("import", "tables", "--readings", folder / "2.csv", "-o", new, "--append")
    assert said.status == 0
    assert "Readings added to the 24 in new: 24." in said.err
    assert "48 snapshots, sensors at 1" in said.out
    assert read_city(new).detectors.names.tolist() == ["A17"]
    kept = json.loads((new / "notices.json").read_text())
    assert any("1.csv" in notice for notice in kept["imported"])
    for word, group in (("2.csv", "appended"), ("1.csv", "imported")):
        assert any(word in notice for notice in kept[group])
    assert set(read_city(new).imported) == {*kept["imported"], *kept["appended"]}
    assert frigate("import", "tables", "--readings", folder / "3.csv", "-o", new, "--append").status == 0
    told = " ".join(read_city(new).imported)  # of the first and the last, so that they do not grow day by day
    assert ("1.csv" in told, "2.csv" in told, "3.csv" in told) == (True, False, True)
    shutil.rmtree(new / "cache")
    again = frigate("import", "tables", "--readings", folder / "2.csv", "-o", new, "--append", "--step", "2h")
    assert again.status == 2 and "Pass --step" in again.err
