"""The [exclude] block that a check writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frigate.check.city import check_city
from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.errors import SettingsError
from tests.support.chains import city_of
from tests.support.command_line import frigate


def broken() -> City:
    rng = np.random.default_rng(0)
    values = rng.poisson(200, (24 * 14, 5)).astype(float)
    values[30:60, 1] = 0
    values[100:140, 1] = 17
    values[:, 2] = 0
    values[:, 3] = np.cumsum(values[:, 3])
    return city_of(values, quantity="count", step_s=3600)


def test_the_block_leaves_out_exactly_what_is_broken(tmp_path: Path) -> None:
    write_city(broken(), tmp_path / "town")
    report = check_city(read_city(tmp_path / "town"))
    with (tmp_path / "town" / "city.toml").open("a", encoding="utf-8") as file:
        file.write("\n" + report.exclude_block())
    after = read_city(tmp_path / "town")
    observed = after.stream.observed
    assert observed[:, 0].all()
    assert np.flatnonzero(~observed[:, 1]).tolist() == [*range(30, 60), *range(100, 140)]
    assert not observed[:, 2:4].any()
    assert observed[:, 4].all()
    assert not any("match no reading" in notice for notice in after.notices)
    assert check_city(after).exclusions == ()


def test_a_second_block_keeps_what_is_excluded_already(tmp_path: Path) -> None:
    write_city(broken(), tmp_path / "town")
    toml = tmp_path / "town" / "city.toml"
    before = toml.read_text(encoding="utf-8")
    toml.write_text(before + '\n[exclude]\nreadings = ["n4"]\n', encoding="utf-8")
    report = check_city(read_city(tmp_path / "town"))
    assert any("in place of the [exclude] block" in line for line in report.lines())
    toml.write_text(before + "\n" + report.exclude_block(), encoding="utf-8")
    observed = read_city(tmp_path / "town").stream.observed
    assert not observed[:, 2:].any()


def test_the_command_writes_the_block_and_no_other_file(tmp_path: Path) -> None:
    write_city(broken(), tmp_path / "town")
    file = tmp_path / "exclude.toml"
    done = frigate("check", tmp_path / "town", "--write-exclude", file)
    assert done.status == 0
    assert "[exclude] block for city.toml, 4 entries" in done.out
    assert file.read_text(encoding="utf-8") == check_city(read_city(tmp_path / "town")).exclude_block()
    again = frigate("check", tmp_path / "town", "--write-exclude", file)
    assert again.status != 0
    assert "exists already" in again.err


def test_a_healthy_city_has_no_block() -> None:
    values = np.random.default_rng(0).poisson(200, (24 * 14, 3)).astype(float)
    report = check_city(city_of(values, quantity="count", step_s=3600))
    assert report.exclusions == ()
    assert not any("[exclude]" in line for line in report.lines())


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    from frigate.check.exclusions import write_exclusions

    with pytest.raises(SettingsError, match="Name another file"):
        write_exclusions(tmp_path / "no" / "exclude.toml", ())
