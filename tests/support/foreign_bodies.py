"""Bodies of readings as foreign senders write them: in every form, and after what happens to bytes."""

from __future__ import annotations

import io
import json
import random
import struct
from datetime import UTC, datetime
from typing import Any

import polars as pl

from frigate.serve.batches import ARROW, CSV, JSON

TIME = datetime(2024, 3, 4, 8, tzinfo=UTC)


def arrow(frame: pl.DataFrame, *, file: bool = False, **options: Any) -> bytes:
    out = io.BytesIO()
    (frame.write_ipc if file else frame.write_ipc_stream)(out, **options)
    return out.getvalue()


def table(rows: int = 3, **columns: Any) -> pl.DataFrame:
    return pl.DataFrame({"node": ["1"] * rows, "time": [TIME] * rows, "value": [2.5] * rows} | columns)


def with_number(body: bytes, old: int, new: int) -> bytes:
    """Every length `old` in the bytes says `new`."""
    return body.replace(struct.pack("<q", old), struct.pack("<q", new))


def good_bodies(node: str, now_s: float) -> list[tuple[str, bytes]]:
    """Batches in every form, with their media types; most are Arrow, and the compressed and nested ones are refused."""
    now = datetime.fromtimestamp(now_s, UTC)
    frame = table(node=[node] * 3, time=[now] * 3)
    frames = [
        frame,
        frame.with_columns(node=pl.lit(node).cast(pl.Categorical), time=now_s),
        frame.with_columns(node=None, time=None, value=None),
        frame.with_columns(more=pl.lit("longer than what is stored in place"), lists=[[1, 2]] * 3),
    ]
    found = [
        (ARROW[file], arrow(each, file=file, compression=compression))
        for each in frames
        for file in (False, True)
        for compression in ("uncompressed", "zstd")
    ]
    rows = [{"node": node, "time": now.isoformat(), "value": value} for value in (1, 2.5, "3")]
    return [*found, (JSON, json.dumps({"readings": rows}).encode()), (CSV, frame.write_csv().encode())]


def mutated(body: bytes, draws: random.Random) -> bytes:
    """The body after one to four of the things that happen to bytes."""
    found = bytearray(body)
    for _ in range(draws.randint(1, 4)):
        at = draws.randrange(len(found) or 1)
        kind = draws.randrange(7)
        if kind == 0:
            found[at : at + 1] = draws.randbytes(1)
        elif kind == 1:
            found[at : at + 4] = struct.pack("<i", draws.choice([0, 1, -1, 2**31 - 1, -(2**31), 300]))
        elif kind == 2:
            found[at & ~7 : (at & ~7) + 8] = struct.pack("<q", draws.choice([0, -1, 2**62, -(2**63), 2**40, 300]))
        elif kind == 3:
            del found[at : at + draws.randrange(1, 50)]
        elif kind == 4:
            found[at:at] = draws.randbytes(draws.randrange(1, 20))
        elif kind == 5:
            del found[max(1, at) :]
        else:
            other = draws.randrange(len(found) or 1)
            found[at : at + 16] = found[other : other + 16]
    return bytes(found)
