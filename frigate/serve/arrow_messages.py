"""What Arrow IPC bytes say of themselves, read before their data: how many rows there are, and how they are packed.

A reader that believes them may be made to build a table of any size from a few hundred bytes. The headers are
FlatBuffers: tables of fields at offsets, which are checked by reading them (`struct` refuses what lies outside).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

FILE_MARK = b"ARROW1"  # at both ends of a file; a stream has none
CONTINUES = 0xFFFFFFFF  # before every message
DICTIONARY = 2  # kind of message
RECORDS = 3  # kind of message
NODE_BYTES = 16
BUFFER_BYTES = 16
BLOCK_BYTES = 24
MAX_MESSAGES = 10_000


class NotArrowError(ValueError):
    """Not Arrow, or nothing that we read."""


def count_rows(body: bytes) -> int:
    """How many rows a stream or a file has. NotArrowError if its data are compressed, nested or not all there."""
    rows = 0
    try:
        for count, (message, body_length) in enumerate(_in_file(body) if is_file(body) else _in_stream(body)):
            if count == MAX_MESSAGES:
                raise NotArrowError(f"it has more than {MAX_MESSAGES} messages")
            kind = message.number(1, "<B")
            if kind == RECORDS:
                rows += _rows(message.table(2), body_length)
            elif kind == DICTIONARY and _rows(message.table(2).table(1), body_length) > len(body):
                raise NotArrowError("a dictionary has more entries than the body has bytes")
    except struct.error:
        raise NotArrowError("a header is damaged") from None
    return rows


def is_file(body: bytes) -> bool:
    return body.startswith(FILE_MARK)


def _in_stream(body: bytes) -> Iterator[tuple[_FlatTable, int]]:
    """The messages of a stream, one after the other, each with the length of its data."""
    at = 0
    while at < len(body):  # the mark at the end may be missing
        found = _message(body, at)
        if found is None:
            return
        message, data = found
        body_length = message.number(3, "<q")
        if not 0 <= body_length <= len(body) - data:
            raise NotArrowError("a message is longer than the body")
        yield message, body_length
        at = data + body_length


def _in_file(body: bytes) -> Iterator[tuple[_FlatTable, int]]:
    """The messages that a file's index, at its end, points to."""
    end = len(body) - len(FILE_MARK) - 4
    if not body.endswith(FILE_MARK) or end < 0:
        raise NotArrowError("the end of the file is missing")
    (length,) = struct.unpack_from("<i", body, end)
    if not 0 < length <= end:
        raise NotArrowError("its index is longer than the file")
    index = _FlatTable.root(body[end - length : end])
    for block in [*index.vector(2, BLOCK_BYTES), *index.vector(3, BLOCK_BYTES)]:
        at, _, body_length = struct.unpack("<qi4xq", block)
        found = _message(body, at) if 0 <= at <= end else None
        if found is None or not 0 <= body_length <= end - found[1]:
            raise NotArrowError("its index points outside the file")
        yield found[0], body_length


def _message(body: bytes, at: int) -> tuple[_FlatTable, int] | None:
    """The header of the message there, and where its data begin; None at the end of a stream."""
    mark, length = struct.unpack_from("<Ii", body, at)
    if mark != CONTINUES:
        raise NotArrowError("it has no messages, or is older than Arrow 0.15")
    if length == 0:
        return None
    data = at + 8 + length
    if not 0 < length <= len(body) - at - 8:
        raise NotArrowError("a header is longer than the body")
    return _FlatTable.root(body[at + 8 : data]), data


def _rows(batch: _FlatTable, body_length: int) -> int:
    rows = batch.number(0, "<q")
    if batch.has(3):
        raise NotArrowError("its data are compressed. Send them uncompressed")
    if rows < 0:
        raise NotArrowError("a batch has fewer than 0 rows")
    nodes = batch.vector(1, NODE_BYTES)
    if any(struct.unpack_from("<q", node)[0] != rows for node in nodes):
        raise NotArrowError("its columns are nested, or of different lengths")
    for buffer in batch.vector(2, BUFFER_BYTES):
        begin, length = struct.unpack("<qq", buffer)
        if begin < 0 or length < 0 or begin + length > body_length:
            raise NotArrowError("a column lies outside the body")
    return rows


@dataclass(frozen=True)
class _FlatTable:
    """A FlatBuffers table: its fields are found by an index, its vtable."""

    data: bytes
    at: int

    @classmethod
    def root(cls, data: bytes) -> _FlatTable:
        return cls(data, struct.unpack_from("<I", data)[0])

    def _field(self, k: int) -> int:
        """Where a field is; 0 if it is absent."""
        vtable = self.at - struct.unpack_from("<i", self.data, self.at)[0]
        if vtable < 0:  # `struct` counts from the end
            raise NotArrowError("a header is damaged")
        (size,) = struct.unpack_from("<H", self.data, vtable)
        if 4 + 2 * k >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self.data, vtable + 4 + 2 * k)
        return self.at + offset if offset else 0

    def has(self, k: int) -> bool:
        return self._field(k) != 0

    def number(self, k: int, form: str) -> int:
        at = self._field(k)
        return int(struct.unpack_from(form, self.data, at)[0]) if at else 0

    def _target(self, k: int) -> int:
        at = self._field(k)
        if not at:
            raise NotArrowError("a header is damaged")
        return int(at + struct.unpack_from("<I", self.data, at)[0])

    def table(self, k: int) -> _FlatTable:
        return _FlatTable(self.data, self._target(k))

    def vector(self, k: int, item_bytes: int) -> list[bytes]:
        if not self.has(k):
            return []
        at = self._target(k)
        (count,) = struct.unpack_from("<I", self.data, at)
        items = self.data[at + 4 : at + 4 + count * item_bytes]
        if len(items) != count * item_bytes:
            raise NotArrowError("a header is damaged")
        return [items[n : n + item_bytes] for n in range(0, len(items), item_bytes)]
