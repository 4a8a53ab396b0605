"""Memory and descriptors of a long-running process."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable

DESCRIPTORS = 65_536  # that a service asks for: systems give a process 1,024, but let it have more


def _find_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return None
    return trim


_trim = _find_trim()


def give_back_memory() -> None:
    """Return freed memory to the operating system.

    glibc keeps it in fragments that the next forecast may not fit into: 450 MB for a service with 28,000 nodes.
    """
    if _trim is not None:
        _trim(0)


def raise_descriptor_limit() -> int:
    """Have the system allow as many descriptors as a service needs, or as many as it may. Returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else DESCRIPTORS
