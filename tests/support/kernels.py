"""Where a kernel can be tested, and random numbers for it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor


def device_for(name: str) -> str:
    """A GPU for Triton's kernels, or the CPU, where Triton interprets them."""
    if name != "triton":
        return "cpu"
    if sys.platform != "linux":
        pytest.skip("Triton is made for Linux alone")
    return "cuda" if torch.cuda.is_available() else "cpu"


def seeded(seed: int, *shapes: tuple[int, ...], device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(device) for shape in shapes]
