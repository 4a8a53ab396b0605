"""Arrays as the store keeps them: compressed containers of `frigate.pages.wire`."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.errors import ServiceError
from frigate.pages import wire

LOG = logging.getLogger("frigate.serve")
Arrays = dict[str, NDArray[Any]]


def pack(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return zlib.compress(wire.encode(meta, arrays), 1)


def unpack(
    body: bytes, what: str, *, header: Iterable[str] = (), **shapes: tuple[int, ...]
) -> tuple[dict[str, Any], Arrays] | None:
    """The header and the arrays of a stored body; None, and a line in the log, if it is damaged.

    Parameters
    ----------
    what
        Names the row in the log.
    header
        The names that the header must have.
    **shapes
        The shapes that arrays must have; -1 is any length.
    """
    try:
        meta, arrays = wire.decode(zlib.decompress(body))
        missing = set(header) - set(meta)
        if missing:
            raise ServiceError(f"the header lacks {', '.join(sorted(missing))}")
        for name, shape in shapes.items():
            if not _fits(arrays[name], shape):
                raise ServiceError(f"{name} has the shape {arrays[name].shape}, not {shape}")
    except Exception as error:  # whatever may be wrong with bytes
        LOG.warning("a stored row is damaged and left out", extra={"row": what, "error": repr(error)})
        return None
    return meta, arrays


def _fits(array: NDArray[np.generic], shape: tuple[int, ...]) -> bool:
    return array.ndim == len(shape) and all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))
