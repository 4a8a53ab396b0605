"""A zero byte in a text of a PBF file, on which libosmium would crash, is found before it reads the file."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from frigate.errors import CityError
from frigate.sources.osm.importer import import_osm
from frigate.sources.osm.pbf_strings import check_pbf_strings
from tests.support.osm_files import small_files
from tests.support.shared_data import shared_data


def number(value: int) -> bytes:
    """A varint."""
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def pbf(*blocks: tuple[bytes, bytes], packed: bool) -> bytes:
    """Blocks, each with its type, as a PBF file frames them."""
    out = b""
    for kind, block in blocks:
        held = zlib.compress(block)
        blob = b"\x10" + number(len(block)) + b"\x1a" + number(len(held)) + held
        blob = blob if packed else b"\x0a" + number(len(block)) + block
        header = b"\x0a" + number(len(kind)) + kind + b"\x18" + number(len(blob))
        out += len(header).to_bytes(4, "big") + header + blob
    return out


def strings(*texts: bytes) -> bytes:
    """A block with this table of strings, and something after it."""
    table = b"".join(b"\x0a" + number(len(text)) + text for text in texts)
    return b"\x0a" + number(len(table)) + table + b"\x12\x02\0\0"


HEADER = (b"OSMHeader", b"\x22\x0eOsmSchema-V0.6")


@pytest.mark.parametrize("packed", [True, False])
def test_a_zero_byte_is_found_in_any_block(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "t.osm.pbf"
    good = strings(b"", b"highway", b"primary", "Rue à l'Eau".encode(), b"x" * 9000)
    path.write_bytes(pbf(HEADER, (b"OSMData", good), (b"OSMData", good), packed=packed))
    check_pbf_strings(path)
    for bad in (strings(b"", b"high\0way"), strings(b"", b"x" * 9000, b"\0"), strings(b"a\0", b"")):
        path.write_bytes(pbf(HEADER, (b"OSMData", good), (b"OSMData", bad), packed=packed))
        with pytest.raises(
            CityError, match=r"t.osm.pbf is damaged: a text in the block at byte [\d,]+ has a zero byte"
        ):
            check_pbf_strings(path)
    path.write_bytes(pbf(HEADER, (b"OSMData", strings(b"", b"a", b"", b"b")), packed=packed))
    check_pbf_strings(path)  # an empty text has no zero byte in it


def test_files_of_osmium_pass_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    files = small_files(tmp_path)
    for kind in ("osm.pbf", "plain.osm.pbf"):
        check_pbf_strings(files[kind])
    whole = files["plain.osm.pbf"].read_bytes()
    assert whole.count(b"residential")
    files["plain.osm.pbf"].write_bytes(whole.replace(b"residential", b"resi\0ential"))
    with pytest.raises(CityError, match="zero byte"):
        import_osm(files["plain.osm.pbf"])


def test_what_is_not_understood_is_left_to_osmium(tmp_path: Path) -> None:
    path = tmp_path / "t.osm.pbf"
    whole = pbf(HEADER, (b"OSMData", strings(b"", b"a\0")), packed=True)
    for at in range(len(whole)):
        path.write_bytes(whole[:at])
        check_pbf_strings(path)
    path.write_bytes(b"")
    check_pbf_strings(path)


@pytest.mark.shared
def test_real_extracts_pass() -> None:
    files = sorted(shared_data("osm-extracts").rglob("*.pbf"))
    assert files
    for path in files:
        check_pbf_strings(path)
