"""Sizes that a Parquet file claims are looked at before its reader, which would abort the process, sees them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.data import parquet_pages
from frigate.data.city import read_city
from frigate.data.parquet_pages import check_parquet_sizes
from frigate.errors import CityError

FRAME = pl.DataFrame(
    {
        "node_id": [*range(40)] * 3,
        "name": [f"n{i % 7}" for i in range(120)],
        "value": [None if i % 5 == 0 else i / 3 for i in range(120)],
        "shut": [i % 3 == 0 for i in range(120)],
        "parts": [[i] * (i % 3) for i in range(120)],
    }
)


def written(folder: Path, **options: object) -> Path:
    FRAME.write_parquet(folder / "t.parquet", **options)  # type: ignore[arg-type]
    return folder / "t.parquet"


@pytest.mark.parametrize("compression", ["uncompressed", "zstd", "snappy", "gzip", "lz4", "brotli"])
@pytest.mark.parametrize("statistics", [True, False])
def test_whole_files_pass(compression: str, statistics: bool, tmp_path: Path) -> None:
    path = written(tmp_path, compression=compression, statistics=statistics, row_group_size=50, data_page_size=64)
    check_parquet_sizes(path)


def test_every_page_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, row_group_size=50)
    monkeypatch.setattr(parquet_pages, "MAX_VALUES", 40)
    with pytest.raises(CityError, match=r"t.parquet is not a readable Parquet file: it claims \d+ values in one page"):
        check_parquet_sizes(path)
    monkeypatch.setattr(parquet_pages, "MAX_ROWS", 30)
    with pytest.raises(CityError, match="it claims 50 rows"):
        check_parquet_sizes(path)


def test_a_count_below_zero_is_refused(tmp_path: Path) -> None:
    """Of all files with one byte of the first page's header turned, those that claim less than nothing."""
    whole = written(tmp_path, compression="uncompressed").read_bytes()
    refused = []
    for at in range(4, 40):
        path = tmp_path / "turned.parquet"
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])  # the sign of a zigzag number
        try:
            check_parquet_sizes(path)
        except CityError as error:
            refused.append(str(error))
    assert any("it claims -" in words for words in refused)


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=60)
def test_what_is_not_understood_is_left_to_the_reader(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("p") / "t.parquet"
    path.write_bytes(b"PAR1" + noise + (len(noise).to_bytes(4, "little") + b"PAR1" if ends else b""))
    with suppress(CityError):
        check_parquet_sizes(path)


@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_time_that_python_cannot_hold_is_refused_in_words(zone: str | None, tmp_path: Path) -> None:
    (tmp_path / "city.toml").write_text('step = "5min"\ntimezone = "UTC"\n')
    (tmp_path / "nodes.csv").write_text("node_id,lon,lat\n1,6.1,49.6\n2,6.2,49.6\n")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n2,1\n")
    for us, year in ((-(10**18), "-29719"), (2**63 - 1, "294247")):
        time = pl.Series([0, us], dtype=pl.Int64).cast(pl.Datetime("us", zone))
        pl.DataFrame({"time": time, "node_id": [1, 2], "value": [1, 2]}).write_parquet(tmp_path / "readings.parquet")
        with pytest.raises(CityError, match=rf'row 2: time "{year}-.*" is not between the years 1900 and 2200'):
            read_city(tmp_path)
