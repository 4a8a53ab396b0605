"""The sizes that a Parquet file claims, looked at before it is read.

The reader takes memory for as many values as a page says it has, and aborts the whole process where there is no such
memory: a damaged byte, or a file of a few kilobytes made to expand a millionfold. So the footer and the pages' headers
are read here first. They are Thrift structs in its compact protocol; what is not understood is left to the reader.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frigate.errors import CityError

MAX_ROWS = 10_000_000_000
MAX_VALUES = 100_000_000  # of one page; writers put about a megabyte in one
DEEPEST = 20

# Field ids of parquet.thrift
ROW_GROUPS = 4
COLUMNS, NUM_ROWS = 1, 3
META_DATA = 3
NUM_VALUES, COMPRESSED_SIZE, DATA_OFFSET, DICTIONARY_OFFSET = 5, 7, 9, 11
PAGE_UNCOMPRESSED, PAGE_COMPRESSED = 2, 3
PAGE_KINDS = (5, 7, 8)  # data, dictionary, data of version 2: the first field of each is num_values

TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


class _NotUnderstoodError(Exception):
    pass


class _Thrift:
    """A place in bytes from which structs are read as {field id: value}."""

    def __init__(self, held: bytes | mmap.mmap, at: int, end: int) -> None:
        self.held, self.at, self.end = held, at, end

    def byte(self) -> int:
        if not 0 <= self.at < self.end:
            raise _NotUnderstoodError
        self.at += 1
        return self.held[self.at - 1]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            part = self.byte()
            value |= (part & 0x7F) << shift
            if part < 0x80:
                return value
        raise _NotUnderstoodError

    def value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self.byte()
        if kind in (4, 5, 6):
            number = self.varint()
            return (number >> 1) ^ -(number & 1)
        if kind in (DOUBLE, BINARY):
            length = 8 if kind == DOUBLE else self.varint()
            self.at += length  # passed over
            return None
        if kind in (LIST, SET):
            return self.items(depth)
        if kind == STRUCT:
            return self.struct(depth + 1)
        raise _NotUnderstoodError  # maps are nowhere in the format

    def items(self, depth: int) -> list[Any]:
        head = self.byte()
        count, kind = head >> 4, head & 15
        count = self.varint() if count == 15 else count
        if count > self.end - self.at:
            raise _NotUnderstoodError
        return [self.byte() if kind in (TRUE, FALSE) else self.value(kind, depth) for _ in range(count)]

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > DEEPEST:
            raise _NotUnderstoodError
        fields: dict[int, Any] = {}
        field = 0
        while head := self.byte():
            step = head >> 4
            field = field + step if step else self.value(5, depth)
            fields[field] = self.value(head & 15, depth)
        return fields


def check_parquet_sizes(path: Path) -> None:
    """Refuse a file that claims more values than it can have or than could be held."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            _check(path, held)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, _NotUnderstoodError):
        return  # the reader will say what is wrong with it


def _check(path: Path, held: mmap.mmap) -> None:
    end = len(held) - 8
    start = end - int.from_bytes(held[end : end + 4], "little")
    if end < 4 or start < 4 or held[-4:] != b"PAR1":
        return
    for group in _Thrift(held, start, end).struct()[ROW_GROUPS]:
        rows = group[NUM_ROWS]
        if not 0 <= rows <= MAX_ROWS:
            raise _claims(path, f"{rows:,} rows")
        for chunk in group[COLUMNS]:
            for count, size in _pages(held, chunk[META_DATA], start):
                if not 0 <= count <= MAX_VALUES:
                    raise _claims(path, f"{count:,} values in one page")
                if size < 0:
                    raise _claims(path, f"a page of {size:,} bytes")


def _claims(path: Path, what: str) -> CityError:
    return CityError(f"{path.name} is not a readable Parquet file: it claims {what}. It is damaged: write it again")


def _pages(held: mmap.mmap, column: dict[int, Any], end: int) -> Iterator[tuple[int, int]]:
    """The number of values and the size of each page of a column in a row group."""
    yield column[NUM_VALUES] // MAX_VALUES, 0  # a count below 0 shows; a column may have many pages
    at = column[DATA_OFFSET]
    if 0 < column.get(DICTIONARY_OFFSET, 0) < at:
        at = column[DICTIONARY_OFFSET]
    stop = min(end, at + column[COMPRESSED_SIZE])
    while at < stop:
        page = _Thrift(held, at, end)
        header = page.struct()
        counts = [header[kind][1] for kind in PAGE_KINDS if kind in header]
        yield (counts[0] if counts else 0), header[PAGE_UNCOMPRESSED]
        at = page.at + header[PAGE_COMPRESSED]
        if at < page.at:
            return
