"""The binary container of the API and of offline reports: a JSON header and named arrays, readable without a copy.

    4 bytes   "FRG1"
    4 bytes   uint32: length of the header in bytes; 8 + length is a multiple of 8
    header    UTF-8 JSON, padded with spaces: {"arrays": {name: {"dtype", "shape", "offset"}}, ...meta}
    arrays    little-endian, C order, each padded to 8 bytes; offsets count from the end of the header

The page's decoder is `page/src/wire.ts`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.errors import ServiceError

MAGIC = b"FRG1"
MEDIA_TYPE = "application/octet-stream"
DTYPES = {"f32": "<f4", "f64": "<f8", "u32": "<u4", "i32": "<i4", "u8": "u1"}
DROPPED_BITS = 11  # of the 23 bits of a float32 mantissa
NAME_OF = {np.dtype(stored): name for name, stored in DTYPES.items()}


def encode(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Encode a container.

    Parameters
    ----------
    meta
        JSON-serializable header fields; the name "arrays" is reserved.
    arrays
        float32, float64, uint32, int32, uint8 or bool (sent as uint8).
    """
    table: dict[str, dict[str, Any]] = {}
    parts: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        plain = array.astype(np.uint8) if array.dtype == bool else array
        dtype = plain.dtype.newbyteorder("<")
        if dtype not in NAME_OF:
            raise ServiceError(f'array "{name}" is {array.dtype}. Send one of {", ".join(DTYPES)}')
        data = np.ascontiguousarray(plain, dtype).tobytes()
        table[name] = {"dtype": NAME_OF[dtype], "shape": list(plain.shape), "offset": offset}
        parts.append(_padded(data, b"\0"))
        offset += len(parts[-1])
    header = json.dumps({**meta, "arrays": table}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    padded = _padded(header.encode(errors="replace"), b" ")  # a lone surrogate in a name becomes "?"
    return b"".join([MAGIC, struct.pack("<I", len(padded)), padded, *parts])


def decode(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The metadata and arrays of a container. The arrays are read-only views of the bytes."""
    if data[:4] != MAGIC or len(data) < 8:
        raise ServiceError(
            f"{len(data)} bytes starting with {data[:4]!r} are not a container, which starts with {MAGIC!r}"
        )
    start = 8 + int(struct.unpack_from("<I", data, 4)[0])
    try:
        meta = json.loads(data[8:start])
        table = meta.pop("arrays")
        arrays = {name: _view(data, start, **about) for name, about in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServiceError(f"a container of {len(data)} bytes is truncated or damaged: {error}") from None
    return meta, arrays


def _view(data: bytes, start: int, *, dtype: str, shape: list[int], offset: int) -> NDArray[Any]:
    return np.frombuffer(data, DTYPES[dtype], math.prod(shape), start + offset).reshape(shape)


def _padded(data: bytes, filler: bytes) -> bytes:
    return data + filler * (-len(data) % 8)


def rounded(values: NDArray[np.floating], dropped_bits: int = DROPPED_BITS) -> NDArray[np.float32]:
    """Values rounded as in issued forecasts, or to fewer bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    half = np.uint32(1 << (dropped_bits - 1))
    keep = np.uint32(~((1 << dropped_bits) - 1) & 0xFFFFFFFF)
    return np.where(np.isfinite(values), ((bits + half) & keep).view(np.float32), np.float32(np.nan))
