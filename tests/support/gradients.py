"""Gradients of two writings of one model."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def assert_same_gradients(model: nn.Module, left: Tensor, right: Tensor, *, rtol: float = 1e-8) -> None:
    """Of a random linear function of the forecasts, for every weight."""
    weights = torch.randn(left.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    named = list(model.named_parameters())
    parameters = [parameter for _, parameter in named]
    found = torch.autograd.grad((left * weights).sum(), parameters, materialize_grads=True)
    expected = torch.autograd.grad((right * weights).sum(), parameters, materialize_grads=True)
    for (name, _), a, b in zip(named, found, expected, strict=True):
        scale = max(1.0, float(b.abs().max()))
        torch.testing.assert_close(a, b, rtol=rtol, atol=0.1 * rtol * scale, msg=f"{name}: {a} is not {b}")
