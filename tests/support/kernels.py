"""Where a kernel can be tested, and random numbers for it."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from frigate.nn.ops import has_triton


def device_for(name: str) -> str:
    if name != "triton":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if has_triton() and os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    pytest.skip("no GPU")


def seeded(seed: int, *shapes: tuple[int, ...], device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(device) for shape in shapes]
