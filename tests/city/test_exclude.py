"""Readings that a person leaves out: by city.toml and by --exclude, everywhere that a city is read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frigate.city.city import City
from frigate.city.folder import open_city, read_city, write_city
from frigate.cli.main import main
from frigate.errors import CityError
from frigate.training.checkpoint import load_run
from tests.support.errors import raises
from tests.support.towns import random_network, random_stream

CITY = City("town", random_stream([random_network(12, seed=3)], seed=3, snapshots=72, silent=0.5, missing=0.0))  # hours
IDS = CITY.stream.node_ids[CITY.stream.sensors].tolist()
DAY = slice(20, 44)  # 2 January in St John's; the record begins there at 04:00 on the first, once it was read
HOURS = slice(20, 25)  # those that have a part of 00:30 to 04:30


def excluded(folder: Path, *entries: str, **options: Any) -> np.ndarray:
    """[S,N] the readings that are gone with these entries in city.toml."""
    write_city(CITY, folder, overwrite=True)
    lines = ", ".join(f'"{entry}"' for entry in entries)
    with (folder / "city.toml").open("a") as file:
        file.write(f"\n[exclude]\nreadings = [{lines}]\n")
    city = read_city(folder, **options)
    gone = CITY.stream.observed & ~city.stream.observed
    np.testing.assert_array_equal(city.stream.values, np.where(gone, 0, CITY.stream.values))
    assert any(f"{int(gone.sum())}" in notice and "[exclude]" in notice for notice in city.notices)
    return gone


def at(rows: slice, node: int | None = None) -> np.ndarray:
    """[S,N] the readings of these snapshots, of a node or of all."""
    cells = np.zeros_like(CITY.stream.observed)
    cells[rows, slice(None) if node is None else CITY.stream.node_ids == node] = True
    return cells & CITY.stream.observed


@pytest.mark.parametrize(
    ("entry", "gone"),
    [
        (f"{IDS[0]}", at(slice(None), IDS[0])),
        ("2024-01-02", at(DAY)),
        ("2024-01-02T00:30/2024-01-02T04:30", at(HOURS)),
        (f"{IDS[1]}@2024-01-02", at(DAY, IDS[1])),
    ],
)
def test_city_toml_leaves_out_a_sensor_a_period_or_both(entry: str, gone: np.ndarray, tmp_path: Path) -> None:
    assert gone.any()
    np.testing.assert_array_equal(excluded(tmp_path / "town", entry), gone)
    np.testing.assert_array_equal(excluded(tmp_path / "other", entry, cache=False), gone)
    typed = CITY.stream.observed & ~open_city(_written(tmp_path), exclude=[entry]).stream.observed
    np.testing.assert_array_equal(typed, gone)


def _written(folder: Path) -> Path:
    write_city(CITY, folder / "plain")
    return folder / "plain"


def test_entries_add_up_and_a_cache_alone_takes_them_too(tmp_path: Path) -> None:
    excluded(tmp_path / "town", f"{IDS[0]}")
    cache = open_city(tmp_path / "town" / "cache", exclude=["2024-01-02"])
    np.testing.assert_array_equal(CITY.stream.observed & ~cache.stream.observed, at(slice(None), IDS[0]) | at(DAY))
    assert cache.excluded == ("2024-01-02",)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("nowhere", ("neither a node", "nor a period")),
        ("nowhere@2024-01-02", ('node "nowhere" is not in the network',)),
        (f"{IDS[0]}@2024-01-02/later", ("not a period",)),
        ("2024-01-05/2024-01-02", ("the end is not after the start",)),
    ],
)
def test_an_entry_of_another_kind_is_refused(entry: str, words: tuple[str, ...], tmp_path: Path) -> None:
    with raises(CityError, "city.toml [exclude]", entry.rpartition("@")[2], *words):
        excluded(tmp_path / "town", entry)


def test_an_entry_that_leaves_nothing_out_is_said(tmp_path: Path) -> None:
    silent = CITY.stream.node_ids[~CITY.stream.sensors][0]
    city = open_city(_written(tmp_path), exclude=[str(silent)])
    assert f"Entries of --exclude that match no reading ({silent}): 1." in city.notices


@pytest.mark.parametrize(
    ("text", "word"), [("[exclude]\nsensors = []", "sensors"), ("[exclude]\nreadings = [1]", "not a list")]
)
def test_an_exclude_table_of_another_form_is_refused(text: str, word: str, tmp_path: Path) -> None:
    write_city(CITY, tmp_path / "town")
    with (tmp_path / "town" / "city.toml").open("a") as file:
        file.write(text)
    with raises(CityError, "city.toml [exclude]", word, 'readings = ["4411"'):
        read_city(tmp_path / "town")


def test_check_train_and_forecast_leave_out_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    town = _written(tmp_path)
    run = tmp_path / "run"
    (tmp_path / "small.toml").write_text("[model]\nlayers = 1\nwidth = 8\nanchors = 2\n")
    small = [
        "--preset",
        "paper",
        "--settings",
        str(tmp_path / "small.toml"),
        "--epochs",
        "1",
        "--past",
        "2",
        "--horizon",
        "2",
    ]
    assert main(["check", str(town), "--exclude", str(IDS[0])]) == 0
    assert f"Sensors: {len(IDS) - 1}" in capsys.readouterr().out
    assert main(["train", str(town), "-o", str(run), "--exclude", str(IDS[0]), *small]) == 0
    trained = load_run(run)
    assert IDS[0] not in trained.nodes.node_ids
    again = trained.open_city().stream
    np.testing.assert_array_equal(CITY.stream.observed & ~again.observed, at(slice(None), IDS[0]))
    capsys.readouterr()
    assert main(["forecast", str(run), "--exclude", str(IDS[1]), "--csv", str(tmp_path / "f.csv")]) == 0
    with (tmp_path / "f.csv").open(newline="") as file:
        used = {int(row["node_id"]) for row in csv.DictReader(file) if row["sensor"] == "true"}
    assert used and not used & {IDS[0], IDS[1]}
    with raises(CityError, "--exclude"):
        trained.open_city(exclude=["nowhere"])
    assert main(["train", str(town), "-o", str(run), "--resume", "--epochs", "2"]) == 2
    assert "has changed since (excluded)" in capsys.readouterr().err
