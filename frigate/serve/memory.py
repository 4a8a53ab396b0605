"""Memory of a process that stays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def _find_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library than glibc
        return None
    return trim


_trim = _find_trim()


def give_back_memory() -> None:
    """Give what was freed back to the system.

    glibc keeps it, in pieces that the next forecast may not fit into: 450 MB of a service of 28,000 nodes.
    """
    if _trim is not None:
        _trim(0)
