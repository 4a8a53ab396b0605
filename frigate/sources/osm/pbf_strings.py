"""The strings of an OSM PBF file, looked at before osmium sees them.

libosmium keeps tags as strings that end at a zero byte. A string with a zero byte inside, which only a damaged file
has, makes it read tags beyond their end, and the process crashes. So the table of strings of every block is
unpacked here first and searched for one, which is quick; nothing else is. What is not understood is left to osmium.
"""

from __future__ import annotations

import mmap
import zlib
from pathlib import Path

from frigate.errors import CityError

MAX_HEADER = 64 << 10  # the format's own limits
MAX_BLOCK = 32 << 20
BEGINNING = 4 << 10  # unpacked first, to learn how long the table is


def check_pbf_strings(path: Path) -> None:
    """Refuse a file with a zero byte in a string."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            _check(path, held)
    except (OSError, ValueError, IndexError, zlib.error):
        return  # osmium will say what is wrong with it


def _check(path: Path, held: mmap.mmap) -> None:
    at = 0
    while at + 4 <= len(held):
        size = int.from_bytes(held[at : at + 4], "big")
        header = held[at + 4 : at + 4 + size]
        if not 0 < size <= MAX_HEADER or len(header) < size:
            return
        length = _varint_field(header, 3)  # BlobHeader.datasize
        begin = at + 4 + size
        at = begin + length
        if length > MAX_BLOCK or at > len(held):
            return
        if b"OSMData" in header and _zero_inside(_string_table(held[begin:at])):
            raise CityError(
                f"{path.name} is damaged: a text in the block at byte {begin:,} has a zero byte. Fetch it again"
            )


def _string_table(blob: bytes) -> bytes:
    """The bytes of PrimitiveBlock.stringtable, of which a block is made first; b"" where it is not."""
    at = 0
    while at < len(blob):
        key, at = _varint(blob, at)
        if key & 7 == 0:
            _, at = _varint(blob, at)
            continue
        if key & 7 != 2:
            return b""
        length, at = _varint(blob, at)
        if key >> 3 == 1:
            return _first_field(blob[at : at + length])  # Blob.raw
        if key >> 3 == 3:
            unpack = zlib.decompressobj()  # Blob.zlib_data
            begins = unpack.decompress(blob[at : at + length], BEGINNING)
            key, start = _varint(begins, 0)
            size, start = _varint(begins, start)
            needed = min(start + size, MAX_BLOCK) - len(begins)
            more = unpack.decompress(unpack.unconsumed_tail, needed) if needed > 0 else b""
            return _first_field(begins + more)
        at += length
    return b""


def _first_field(block: bytes) -> bytes:
    key, at = _varint(block, 0)
    length, at = _varint(block, at)
    return block[at : at + length] if key == 0x0A else b""


def _zero_inside(table: bytes) -> bool:
    # The first string is empty: its length is the one zero that belongs there. A table with another is gone through.
    if table.count(0) == table.startswith(b"\x0a\0"):
        return False
    at = 0
    while at < len(table):
        _, at = _varint(table, at)
        length, at = _varint(table, at)
        if 0 in table[at : at + length]:
            return True
        at += length
    return False


def _varint(held: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        part = held[at]
        at += 1
        value |= (part & 0x7F) << shift
        if part < 0x80:
            return value, at
    raise ValueError


def _varint_field(message: bytes, wanted: int) -> int:
    """A number in a message of numbers and bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 2:
            at += value
        elif key >> 3 == wanted:
            return value
    raise ValueError
