"""Nobody's files are lost: what others wrote stays, and what is replaced stays until the new is in place."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from frigate.city.city import City
from frigate.city.folder import open_cache, read_city, write_city
from frigate.errors import CityError, SettingsError
from frigate.forecasting.result import Forecast
from frigate.reading.files import replacing_folder, write_file
from frigate.reading.tables import open_table
from frigate.roads.feature_cache import ensure_road_features
from frigate.sources.tables.import_log import HEADER, ImportLog
from tests.support.crash_points import at_file_event
from tests.support.errors import raises
from tests.support.towns import START_S, random_network, random_stream
from tests.support.training_runs import town

BY_HAND = {
    "city.toml": 'step = "5min"\n',
    "nodes.csv": "node_id,lon,lat\n1,6.1,49.6\n2,6.2,49.6\n",
    "edges.csv": "source,target\n1,2\n",
    "readings.csv": "time,node_id,value\n2024-01-01T00:00Z,1,4\n",
    "turns.csv": "source,via,target\n1,2,1\n",
}


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def by_hand(folder: Path) -> Path:
    folder.mkdir()
    for name, text in BY_HAND.items():
        (folder / name).write_text(text)
    return folder


def named(name: str) -> City:
    return City(name, random_stream([random_network(8, seed=1)], seed=1, snapshots=3))


# What Frigate did not write


def test_a_city_made_by_hand_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "mine")
    with raises(CityError, str(folder), "readings.csv", "--overwrite"):
        write_city(town(), folder)
    assert contents(folder) == BY_HAND
    write_city(town(), folder, overwrite=True)
    assert read_city(folder).name == "Town"
    assert not (folder / "readings.csv").exists()


@pytest.mark.parametrize("name", ["edges.csv", "city.toml", "changes.csv"])
def test_an_edited_city_is_replaced_only_with_overwrite(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "city"
    write_city(town(), folder, csv=True)
    read_city(folder)
    write_city(named("other"), folder, csv=True)  # written by Frigate and not touched
    edited = (folder / name).read_text() + "\n" if (folder / name).exists() else "time,action\n"
    (folder / name).write_text(edited)
    with raises(CityError, name, "--overwrite"):
        write_city(town(), folder)
    assert (folder / name).read_text() == edited
    write_city(town(), folder, overwrite=True)
    assert read_city(folder).name == "Town"


@pytest.mark.parametrize("place", ["notes.txt", "readings", "cache/thesis.tex"])
def test_files_that_are_no_part_of_a_city_are_never_replaced(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "city"
    write_city(town(), folder)
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text("years of work")
    for overwrite in (False, True):
        with raises(CityError, Path(place).parts[0]):
            write_city(town(), folder, overwrite=overwrite)
    assert (folder / place).read_text() == "years of work"


@pytest.mark.parametrize("name", ["thesis.tex", "values.npy"])
def test_a_folder_named_cache_that_is_none_stays_as_it_is(name: str, tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "mine")
    (folder / "cache").mkdir()
    (folder / "cache" / name).write_text("years of work")
    city = ensure_road_features(read_city(folder))
    assert city.stream.values[0, 0] == 4
    assert any("cache" in notice for notice in city.notices)
    assert contents(folder / "cache") == {name: "years of work"}


def test_a_file_beside_a_cache_stays_when_the_cache_is_out_of_date(tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "mine")
    ensure_road_features(read_city(folder))
    (folder / "cache" / "notes.txt").write_text("years of work")
    (folder / "readings.csv").write_text(BY_HAND["readings.csv"].replace(",4", ",5"))
    assert read_city(folder).stream.values[0, 0] == 5
    assert (folder / "cache" / "notes.txt").read_text() == "years of work"
    (folder / "cache" / "notes.txt").unlink()
    read_city(folder)
    assert open_cache(folder).stream.values[0, 0] == 5


# Interrupted


class Interrupted(BaseException):
    """As Ctrl-C, at an exact moment."""


def interrupted_at(count: int, folder: Path, work: Callable[[], None]) -> bool:
    """Do the work, interrupted just before its file event number `count`; whether it came so far."""

    def stop() -> None:
        raise Interrupted

    disarm = at_file_event(str(folder), count, stop)
    try:
        work()
    except Interrupted:
        return True
    finally:
        disarm()
    return False


def test_an_interrupt_at_any_moment_leaves_a_whole_city(tmp_path: Path) -> None:
    folder = tmp_path / "city"
    write_city(named("old"), folder)
    found: list[str] = []
    while interrupted_at(len(found) + 1, tmp_path, lambda: write_city(named("new"), folder)):
        found.append(read_city(folder, cache=False).name)
        write_city(named("old"), folder)
    assert set(found) == {"old", "new"}  # "new" where only the old one was still to be removed
    assert os.listdir(tmp_path) == ["city"]


KILLED_AT_A_RENAME = """
import os, signal, sys
from frigate.city.folder import write_city
from tests.reading.test_files import named
left = int(sys.argv[2])
def hook(event, args):
    global left
    if event == "os.rename":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
write_city(named("new"), sys.argv[1])
"""


@pytest.mark.parametrize("rename", [1, 2])
def test_a_killed_import_loses_nothing_and_its_leftovers_go(rename: int, tmp_path: Path) -> None:
    folder = tmp_path / "city"
    write_city(named("old"), folder)
    command = [sys.executable, "-c", KILLED_AT_A_RENAME, str(folder), str(rename)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    assert read_city(folder, cache=False).name == "old"
    write_city(named("newer"), folder)
    assert read_city(folder, cache=False).name == "newer"
    assert os.listdir(tmp_path) == ["city"]


def test_a_file_being_written_is_not_removed(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "city") as new:
        (new / "theirs").write_text("")
        write_city(named("ours"), tmp_path / "city2")
        with replacing_folder(tmp_path / "city") as other:
            (other / "ours").write_text("")
        assert (new / "theirs").exists()
        assert (tmp_path / "city" / "ours").exists()


# Files


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can be longer than 400 bytes."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def a_forecast(nodes: int) -> Forecast:
    network = random_network(nodes, seed=0)
    times_s = START_S + 300 * np.arange(2)
    return Forecast(
        network.node_ids,
        network.lon,
        network.lat,
        times_s,
        np.ones((2, nodes)),
        np.ones(nodes, bool),
        START_S,
        300,
        "UTC",
        "count",
        "",
    )


def test_a_full_disk_leaves_the_old_forecast_and_the_old_report(tmp_path: Path) -> None:
    forecast = tmp_path / "forecast.csv"
    report = tmp_path / "rejected.csv"
    write_file(forecast, "old")
    write_file(report, ",".join(HEADER))
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node_id,lon,lat\n" + "".join(f"{i},6,{'x' * 20}\n" for i in range(50)))
    log = ImportLog(report)
    log.reject_rows(open_table(nodes), np.arange(50), "lat", pl.Series(["x" * 20] * 50), "is no number")
    new = a_forecast(60)
    with full_disk():
        with raises(SettingsError, str(forecast)):
            new.write(forecast)
        with raises(CityError, str(report)):
            log.finish()
    assert contents(tmp_path) == {
        "forecast.csv": "old",
        "rejected.csv": ",".join(HEADER),
        "nodes.csv": nodes.read_text(),
    }
    assert len(os.listdir(tmp_path)) == 3
    new.write(forecast)
    log.finish()
    assert len(forecast.read_text()) > 400 < len(report.read_text())


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    left = tmp_path / ".forecast.csv.frigate-abc" / "new"
    left.mkdir(parents=True)
    (left / "forecast.csv").write_text("half a fo")
    write_file(tmp_path / "forecast.csv", "whole")
    assert os.listdir(tmp_path) == ["forecast.csv"]


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "disk" / "real.csv")
    write_file(tmp_path / "link.csv", "new")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "disk" / "real.csv").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", "forecast")
    assert os.read(reader, 100) == b"forecast"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
