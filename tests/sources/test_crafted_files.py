"""Files made to crash, to hang, to fill the memory or to read other files: each is refused, and costs little.

Pickles have tests of their own (`test_unpickle`), and so has the process that reads (`tests.data.test_sandbox`).
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest

from frigate.city.folder import open_cache, read_city
from frigate.city.split import read_seen_file
from frigate.config import load_settings, preset
from frigate.errors import CityError, SettingsError
from frigate.reading import sandbox
from frigate.roads.geometry import NotALineError, read_line, road_lines, write_line
from frigate.sources.benchmarks.importer import import_benchmark, read_seen
from frigate.sources.matrix import import_matrix
from frigate.sources.osm.importer import import_osm, read_osm
from frigate.sources.sumo.importer import import_sumo
from frigate.sources.tables.importer import import_tables
from frigate.sources.traces.importer import import_traces
from tests.support import benchmark_files
from tests.support.errors import raises
from tests.support.fuzz_formats import FORMATS, city_csv, city_parquet, matrix_tables


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRIGATE_READ_MEMORY_GB", "0.4")
    monkeypatch.setenv("FRIGATE_READ_SECONDS", "5")


# Where files are read


class Reached:
    """In place of the child."""

    def call(self, *_: Any) -> Any:
        raise CityError("read in the child")


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "cache"])  # which only numpy reads
def test_every_format_is_read_in_the_child(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FORMATS[name].write(tmp_path)
    monkeypatch.setattr(sandbox, "_idle", [Reached()])
    with raises(CityError, "read in the child"):
        FORMATS[name].load(files)


def test_so_are_a_map_without_a_city_and_the_splits_of_the_authors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    city_csv(tmp_path)
    city = read_city(tmp_path)
    np.save(tmp_path / "seen.npy", np.array([0, 2]))
    assert read_seen(tmp_path / "seen.npy", city) == [0, 2]

    for read in (lambda: read_seen(tmp_path / "seen.npy", city), lambda: read_osm(tmp_path / "city.toml")):
        monkeypatch.setattr(sandbox, "_idle", [Reached()])
        with raises(CityError, "read in the child"):
            read()


# What has no end


def imports_of(path: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """Everything that takes a path, given this one."""
    city_csv(folder)
    city = read_city(folder)
    nodes = folder / "nodes.csv"
    edges = folder / "edges.csv"
    return {
        "osm": lambda: import_osm(path),
        "sumo": lambda: import_sumo(path),
        "edge data": lambda: import_sumo(nodes, edgedata=[path]),
        "nodes": lambda: import_tables(nodes=path, edges=edges),
        "readings": lambda: import_tables(nodes=nodes, edges=edges, readings=str(path)),
        "traces": lambda: import_traces([path], city),
        "seen": lambda: read_seen_file(path, city.network),
    }


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "held.csv"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    for name, act in imports_of(path, tmp_path).items():
        with pytest.raises(CityError, match=r"held\.csv is a pipe or a device") as caught:
            act()
        assert "file first" in str(caught.value), name
    with raises(SettingsError, "held.csv", "not a file"):
        load_settings(path, preset("default"))


@pytest.mark.parametrize("stem", ["nodes", "readings", "changes"])
def test_so_is_a_city_with_one_among_its_tables(stem: str, tmp_path: Path) -> None:
    (city_csv(tmp_path)[f"{stem}.csv"]).unlink()
    os.mkfifo(tmp_path / f"{stem}.csv")
    with raises(CityError, f"{stem}.csv", "pipe"):
        read_city(tmp_path)


# What unpacks to more


def npz_bomb(path: Path) -> Path:
    """1.2 GB of zeros in a megabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as whole, whole.open("v.npy", "w", force_zip64=True) as file:
        head = io.BytesIO()
        rows = 50_000_000
        np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (rows, 3)})
        file.write(head.getvalue() + bytes(1 << 20))  # the rest would not be read: there is no memory for it
    return path


def h5_bomb(path: Path) -> Path:
    """24 GB in two kilobytes."""
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (10**9, 3), "f8", chunks=(10**6, 3), compression="gzip", fillvalue=1.0)
    assert path.stat().st_size < 10_000
    return path


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(("bomb", "ending"), [(npz_bomb, "npz"), (h5_bomb, "h5")])
def test_an_array_that_unpacks_to_more_than_the_memory_is_refused(
    bomb: Callable[[Path], Path], ending: str, tmp_path: Path
) -> None:
    matrix_tables(tmp_path)
    with raises(CityError, f"bomb.{ending}", "0.4 GB"):
        import_matrix(
            bomb(tmp_path / f"bomb.{ending}"),
            nodes=tmp_path / "nodes.csv",
            edges=tmp_path / "edges.csv",
            values="v",
            start="2024-01-01T00:00Z",
            step="5min",
        )


def zstd(first: bytes, blocks: int) -> bytes:
    """Text, then blocks of 128 kB of line breaks in four bytes each."""
    whole = b"\x28\xb5\x2f\xfd\x00\x58" + struct.pack("<I", len(first) << 3)[:3] + first
    return whole + b"".join(struct.pack("<I", 1 << 20 | 2 | (n == blocks - 1))[:3] + b"\n" for n in range(blocks))


@pytest.mark.parametrize("before", [b"", b"\x50\x2a\x4d\x18\x04\0\0\0abcd"])  # also after a frame that is skipped
def test_a_packed_csv_is_not_unpacked(before: bytes, tmp_path: Path) -> None:
    city_csv(tmp_path)
    path = tmp_path / "readings.csv"
    path.write_bytes(before + zstd(path.read_bytes(), 40_000))  # 5 GB
    with raises(CityError, "readings.csv"):
        read_city(tmp_path)


@pytest.mark.usefixtures("limited")
def test_a_long_name_is_cut_and_does_not_widen_the_others(tmp_path: Path) -> None:
    """An array of text has the width of its longest in every row: 1,000 roads and one such name took 15.9 GB."""
    n = 1000
    tables = city_parquet(tmp_path, compression="zstd")
    (tmp_path / "changes.csv").unlink()
    pl.DataFrame({"node_id": range(n), "lon": np.linspace(6, 7, n), "lat": [49.6] * n}).write_parquet(
        tables["nodes.parquet"]
    )
    names = ["n" * 1_000_000] + ["Rue"] * (n - 1)
    edges = pl.DataFrame({"source": range(n), "target": [*range(1, n), 0], "name": names})
    edges.write_parquet(tables["edges.parquet"])
    city = read_city(tmp_path)
    assert city.network.edges.name[0] == "n" * 255
    assert [said for said in city.notices if "name cut to 255 characters: 1 (first: edges.parquet row 1)" in said]
    made = import_tables(nodes=tables["nodes.parquet"], edges=tables["edges.parquet"])
    assert made.network.edges.name[0] == "n" * 255 and any("cut to 255" in said for said in made.notices)


def test_a_long_id_is_refused(tmp_path: Path) -> None:
    files = city_csv(tmp_path)
    files["nodes.csv"].write_text(f"node_id,lon,lat\n{'n' * 300},6.1,49.6\nB,6.1,49.6\n")
    with raises(CityError, '"nnnnnnnnnnnnnnnnnnnn..."', "300", "255"):
        read_city(tmp_path)
    nodes = "".join(f"{n},6.1,49.6\n" for n in "AB")
    files["nodes.csv"].write_text("node_id,lon,lat\n" + nodes)
    files["edges.csv"].write_text("source,target\nA,B\nB,A\n")
    files["readings.csv"].write_text("time,node_id,value\n2024-01-01T00:00Z,A,1\n")
    files["changes.csv"].write_text(f"time,action,node_id,lon,lat\n2024-01-01T00:00Z,add_node,{'n' * 300},6.1,49.6\n")
    with raises(CityError, "changes.csv line 2", "300", "255"):
        read_city(tmp_path)


# What crashes


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def protobuf(field: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(field << 3) + varint(value)
    return varint(field << 3 | 2) + varint(len(value)) + value


def pbf(block: bytes) -> bytes:
    """A map file of one block of data."""
    whole = b""
    for kind, content in ((b"OSMHeader", protobuf(4, b"OsmSchema-V0.6")), (b"OSMData", block)):
        blob = protobuf(1, content)
        head = protobuf(1, kind) + protobuf(3, len(blob))
        whole += struct.pack(">I", len(head)) + head + blob
    return whole


@pytest.mark.parametrize("order", ["granularity, strings, roads", "granularity, roads, strings", "granularity, roads"])
def test_a_map_whose_fields_are_in_another_order_is_refused(order: str, tmp_path: Path) -> None:
    way = protobuf(1, 7) + protobuf(2, varint(1)) + protobuf(3, varint(2)) + protobuf(8, varint(2) + varint(2))
    part = {
        "strings": protobuf(1, b"".join(protobuf(1, text) for text in (b"", b"highway", b"residential"))),
        "roads": protobuf(2, protobuf(3, way)),
        "granularity": protobuf(17, 100),
    }
    path = tmp_path / "town.osm.pbf"
    path.write_bytes(pbf(b"".join(part[name] for name in order.split(", "))))
    with raises(CityError, "town.osm.pbf"):
        import_osm(path)


LINE = write_line(np.array([[6.1, 49.6], [6.2, 49.7]]))
DEEP = 300_000
NESTED: dict[str, Any] = {
    "a collection in WKB": struct.pack("<BII", 1, 7, 1) * DEEP,
    "lines of lines in WKB": struct.pack("<BII", 1, 5, 1) * DEEP,
    "a collection after a line": struct.pack("<BII", 1, 5, 2) + LINE + struct.pack("<BII", 1, 7, 1) * DEEP,
    "with heights": struct.pack(">BII", 0, 1005, 1) + struct.pack("<BII", 1, 1007, 1) * DEEP,
    "hexadecimal digits": (struct.pack("<BII", 1, 7, 1) * DEEP).hex(),
    "a collection in WKT": "GEOMETRYCOLLECTION(" * DEEP,
    "a curve in WKT": "compoundcurve(" * DEEP,
}


@pytest.mark.parametrize("name", NESTED)
def test_a_line_within_lines_without_end_is_refused_and_not_followed(name: str) -> None:
    """GEOS, which reads lines, overflows its stack."""
    with pytest.raises(NotALineError, match="line"):
        read_line(NESTED[name])


def test_a_coordinate_beyond_all_numbers_is_refused_without_a_warning() -> None:
    with pytest.raises(NotALineError, match="is not on earth"):
        read_line("LINESTRING (6.1 49.6, 3e400 49.7)")


@pytest.mark.parametrize("points", [2, 3])
@pytest.mark.parametrize("kind", ["plain", "iso", "ewkb", "big-endian", "hex"])
def test_lines_in_every_writing_of_wkb_are_read(kind: str, points: int) -> None:
    line = np.array([[6.1, 49.6, 300.0], [6.2, 49.7, 310.0], [6.3, 49.7, 320.0]])[:points]
    part = struct.pack("<BII", 1, 2, points) + line[:, :2].tobytes()
    many = struct.pack("<BII", 1, 5, 1) + part
    if kind == "iso":
        part = struct.pack("<BII", 1, 1002, points) + line.tobytes()
        many = struct.pack("<BII", 1, 1005, 1) + part
    elif kind == "ewkb":
        part = struct.pack("<BIII", 1, 0xA0000002, 4326, points) + line.tobytes()
        many = (
            struct.pack("<BIII", 1, 0xA0000005, 4326, 1) + struct.pack("<BII", 1, 0x80000002, points) + line.tobytes()
        )
    elif kind == "big-endian":
        part = struct.pack(">BII", 0, 2, points) + line[:, :2].astype(">f8").tobytes()
        many = struct.pack(">BII", 0, 5, 1) + part
    for wkb in (part, many):
        np.testing.assert_array_equal(read_line(wkb.hex() if kind == "hex" else wkb), line[:, :2])


def test_malformed_road_lines_are_safe_to_draw(tmp_path: Path) -> None:
    """They are read where a page is made, in the caller's process."""
    tables = city_parquet(tmp_path, compression="zstd")
    edges = pl.read_parquet(tables["edges.parquet"])
    nested = pl.Series("geometry", [NESTED["a collection in WKB"], LINE] + [b""] * (len(edges) - 2), dtype=pl.Binary)
    edges.with_columns(nested).write_parquet(tables["edges.parquet"])
    network = read_city(tmp_path).network
    _, unread = road_lines(network, network.edges)
    assert unread.sum() == 1


# What reads other files


def elsewhere(file: h5py.File, how: str, name: str, other: Path, shape: tuple[int, int]) -> None:
    """A dataset whose values are those of another file."""
    if how == "storage":
        file.create_dataset(name, shape, "f8", external=[(str(other.with_suffix(".bin")), 0, 8 * shape[0] * shape[1])])
    elif how == "link":
        file[name] = h5py.ExternalLink(str(other), "v")
    else:
        layout = h5py.VirtualLayout(shape, "f8")
        layout[:] = h5py.VirtualSource(str(other), "v", shape)
        file.create_virtual_dataset(name, layout)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.h5"
    values = np.ones((3, 4)) * 50
    with h5py.File(path, "w") as file:
        file["v"] = values
    path.with_suffix(".bin").write_bytes(values.tobytes())
    return path


@pytest.mark.parametrize("how", ["storage", "link", "virtual"])
def test_hdf5_does_not_read_other_files(how: str, other: Path, tmp_path: Path) -> None:
    folder = benchmark_files.write_metr_la(tmp_path / "la")
    with h5py.File(folder / "metr-la.h5", "a") as file:
        del file["df/block0_values"]
        elsewhere(file, how, "df/block0_values", other, (3, 4))
    with raises(CityError, "metr-la.h5", "another file"):
        import_benchmark("metr-la", files=folder)


@pytest.mark.parametrize("how", ["storage", "link", "virtual"])
def test_nor_does_a_matrix(how: str, other: Path, tmp_path: Path) -> None:
    matrix_tables(tmp_path)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        elsewhere(file, how, "v", other, (4, 3))
    with raises(CityError, "m.h5"):
        import_matrix(
            tmp_path / "m.h5",
            nodes=tmp_path / "nodes.csv",
            edges=tmp_path / "edges.csv",
            values="v",
            start="2024-01-01T00:00Z",
            step="5min",
        )


# Settings


@pytest.mark.parametrize("text", ["name = " + "[" * 100_000, "format = " + "9" * 5000, "a = '\udcff'"])
def test_settings_too_deep_or_too_long_are_refused(text: str, tmp_path: Path) -> None:
    path = city_csv(tmp_path)["city.toml"]
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with raises(CityError, "city.toml", "TOML"):
        read_city(tmp_path)
    with raises(SettingsError, "city.toml", "TOML"):
        load_settings(path, preset("default"))


# Numbers of other widths


IDS: dict[str, Any] = {
    "UInt64": ([2**64 - 1, 7], ["18446744073709551615", "7"]),
    "Int128": ([10**30, -5], [str(10**30), "-5"]),
    "Decimal": ([7, 8], [7, 8]),
    "small UInt64": ([9, 8], [9, 8]),
}


@pytest.mark.parametrize("name", IDS)
def test_ids_and_times_of_any_width_are_read(name: str, tmp_path: Path) -> None:
    """A number that an Int64 cannot hold is an id all the same, as text."""
    given, wanted = IDS[name]
    kinds: dict[str, Any] = {"Int128": pl.Int128, "Decimal": pl.Decimal(38, 0)}
    kind = kinds.get(name, pl.UInt64)
    ids = pl.Series(given, dtype=kind)
    (tmp_path / "city.toml").write_text('step = "5min"\n')
    places = {"lon": [6.1, 6.11], "lat": pl.Series(["49.6", "49.61"]).cast(pl.Decimal(10, 4))}
    pl.DataFrame({"node_id": ids, **places}).write_parquet(tmp_path / "nodes.parquet")
    pl.DataFrame({"source": ids, "target": ids.reverse()}).write_parquet(tmp_path / "edges.parquet")
    times = pl.Series([1_704_067_200, 1_704_067_500]).cast(pl.Decimal(20, 3))
    readings = pl.DataFrame({"time": times, "node_id": ids, "value": times - 1_704_067_199})
    readings.write_parquet(tmp_path / "readings.parquet")
    stream = read_city(tmp_path).stream
    assert stream.node_ids.tolist() == wanted
    assert stream.values.tolist() == [[1, 0], [0, 301]] and stream.start_s == 1_704_067_200


@pytest.mark.parametrize("unit", ["ms", "ns"])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_time_beyond_the_microseconds_is_refused_in_words(unit: str, zone: str | None, tmp_path: Path) -> None:
    tables = city_parquet(tmp_path, compression="zstd")
    time = pl.Series([0, 2**63 - 1], dtype=pl.Int64).cast(pl.Datetime(unit, zone))  # type: ignore[arg-type]
    pl.DataFrame({"time": time, "node_id": [1, 2], "value": [1, 2]}).write_parquet(tables["readings.parquet"])
    with raises(CityError, "readings.parquet row 2", "2200"):
        read_city(tmp_path)


@pytest.mark.parametrize("column", ["name", "road_class"])
def test_a_column_of_dates_is_no_text(column: str, tmp_path: Path) -> None:
    tables = city_parquet(tmp_path, compression="zstd")
    edges = pl.read_parquet(tables["edges.parquet"])
    edges.with_columns(pl.lit(2**62).cast(pl.Datetime("us")).alias(column)).write_parquet(tables["edges.parquet"])
    with raises(CityError, f"edges.parquet: column {column}", "Datetime"):
        read_city(tmp_path)


# The cache


@pytest.mark.parametrize("name", ["topology_of", "senders", "roads_end", "lon"])
def test_a_cache_with_a_turned_bit_is_made_again(name: str, tmp_path: Path) -> None:
    city_csv(tmp_path)
    city = read_city(tmp_path)
    path = tmp_path / "cache" / f"{name}.npy"
    for at in (20, -1):  # in its header, and in its data
        whole = bytearray(path.read_bytes())
        whole[at] ^= 64
        path.write_bytes(whole)
        with raises(CityError, "cache", f"{name}.npy"):
            open_cache(tmp_path / "cache")
        assert read_city(tmp_path).network.fingerprint == city.network.fingerprint
        open_cache(tmp_path / "cache")


def test_so_is_one_whose_description_has_changed(tmp_path: Path) -> None:
    city_csv(tmp_path)
    read_city(tmp_path)
    path = tmp_path / "cache" / "cache.json"
    whole = path.read_text()
    for text in (whole.replace('"step_s": 300', '"step_s": 0'), "[" * 100_000, whole[:-9]):
        path.write_text(text)
        with raises(CityError, "cache"):
            open_cache(tmp_path / "cache")
        assert read_city(tmp_path).stream.step_s == 300
