"""Backends: the implementations of the operations behind the equations of `nn/model.py` and `nn/layers.py`.

A backend is a handful of operations: `embed`, `gated_layers` (one or several in a row), `normalise`, `encode` (the
LSTM over T snapshots), `decode` (H steps), `sparse_sum`, `take_nodes`. `reference.py` defines each in plain torch
operations; read it first. `cpu/` and `cuda/` compute the same faster, with their own memory layout, fused kernels and
hand-written backward passes, all invisible to the model.

One backend is chosen per forward pass and passed down as an argument. The gates are not a backend operation: they are
computed once per topology, in `layers.py`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from frigate.demand.tables import DemandTables
from frigate.errors import SettingsError
from frigate.nn.ops.cpu import CpuBackend
from frigate.nn.ops.reference import Backend

__all__ = ["KERNELS", "Backend", "choose_backend", "describe_kernels", "follow_readings", "has_triton"]

KERNELS = ("auto", "reference")
REFERENCE = Backend()
CPU = CpuBackend()


def choose_backend(device: torch.device, dtype: torch.dtype, width: int, kernels: str = "auto") -> Backend:
    """The backend for a forward pass.

    Parameters
    ----------
    device : torch.device
        Where the inputs are.
    dtype : torch.dtype
        Type of the encodings: autocast's if it is enabled.
    width : int
        D, the width of the encodings.
    kernels : "auto" or "reference"
        The fastest backend available, or the reference, for comparison.
    """
    if kernels not in KERNELS:
        raise SettingsError(f'kernels "{kernels}" is not known. Use {" or ".join(KERNELS)}')
    if kernels == "reference" or torch.compiler.is_compiling():  # an exported program may only use standard operations
        return REFERENCE
    if device.type == "cpu" and dtype in (torch.float32, torch.float64):
        return CPU
    if device.type == "cuda" and has_triton():
        from frigate.nn.ops.cuda import CudaBackend

        return CudaBackend.for_encodings(device, dtype, width)
    return REFERENCE


def follow_readings(
    tables: DemandTables,
    values: Tensor,
    observed: Tensor,
    clock: Tensor,
    which: Tensor,
    past_on: Tensor | None,
    ahead_on: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`DemandTables.follow`, on a GPU in far fewer kernel launches."""
    if values.is_cuda and has_triton() and not torch.compiler.is_compiling():
        from frigate.nn.ops.cuda.demand_kernels import follow

        return follow(tables, values, observed, clock, which, past_on, ahead_on)
    return tables.follow(values, observed, clock, which, past_on, ahead_on)


def describe_kernels(device: torch.device, kernels: str = "auto") -> str:
    """The name of the backend used on a device."""
    default = torch.bfloat16 if device.type == "cuda" else torch.float32
    return choose_backend(device, default, 64, kernels).name


@cache
def has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
