"""Which implementation computes: the fastest that the device has, or the reference, for checks and comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch

from frigate.errors import SettingsError

CHOICES = ("auto", "reference")
_chosen: ContextVar[str] = ContextVar("kernels", default="auto")


@contextmanager
def kernels(choice: str) -> Iterator[None]:
    """Compute in here with `reference`, the equations in plain torch operations, or as is fastest (`auto`)."""
    if choice not in CHOICES:
        raise SettingsError(f'kernels "{choice}": there are {" and ".join(CHOICES)}')
    token = _chosen.set(choice)
    try:
        yield
    finally:
        _chosen.reset(token)


def plain() -> bool:
    """Whether the reference is wanted: also wherever torch traces a model, since every runtime has its operations."""
    return torch.compiler.is_compiling() or _chosen.get() == "reference"


def on_gpu(device: torch.device) -> bool:
    """Whether to use the Triton kernels."""
    return device.type == "cuda" and not plain() and has_triton()


def described(device: torch.device) -> str:
    """The choice for a device, for a person to read."""
    if plain():
        return "reference"
    if device.type == "cpu":
        return "CSR on the CPU"
    return "Triton kernels" if on_gpu(device) else "reference"


@cache
def has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
