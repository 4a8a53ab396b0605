"""The operations behind the equations of `nn/model.py` and `nn/layers.py`, each computed in the fastest way there is.

A handful of operations: `embed`, `gated_layers` (one or several in a row), `normalise`, `encode` (the LSTM over T
snapshots), `decode` (H steps), `sparse_sum`, `take_nodes`, `follow_readings`. `reference.py` defines them in plain
torch; read it first. `cpu/` and `cuda/` compute the same faster, with their own memory layout, fused kernels and
hand-written backward passes, all invisible to whoever calls.

This module alone decides which backend computes: by the device, type and width of what an operation is given, and by
`use_kernels`. The gates are not an operation: they are computed once per topology, in `layers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor, nn

from frigate.demand.tables import DemandTables
from frigate.errors import SettingsError
from frigate.nn.ops.cpu import CpuBackend
from frigate.nn.ops.reference import Backend, State, Tensors
from frigate.nn.ops.sparse import SparseMatrix
from frigate.nn.topology import Topology

__all__ = [
    "KERNELS",
    "Backend",
    "choose_backend",
    "decode",
    "describe_kernels",
    "embed",
    "encode",
    "follow_readings",
    "gated_layers",
    "has_triton",
    "normalise",
    "records_cuda_graphs",
    "sparse_sum",
    "take_nodes",
    "use_kernels",
]

KERNELS = ("auto", "reference")
REFERENCE = Backend()
CPU = CpuBackend()

_kernels: ContextVar[str | Backend] = ContextVar("_kernels", default="auto")


@contextmanager
def use_kernels(kernels: str | Backend) -> Iterator[None]:
    """Decide which kernels compute what is called within this context.

    Parameters
    ----------
    kernels : "auto", "reference" or Backend
        The fastest for the device, which is the default; or the equations in plain torch operations, for comparison.
        A backend computes everything: Triton's interpreter runs the GPU's kernels on a CPU.
    """
    if not isinstance(kernels, Backend) and kernels not in KERNELS:
        raise SettingsError(f'kernels "{kernels}" is not known. Use {" or ".join(KERNELS)}')
    before = _kernels.set(kernels)
    try:
        yield
    finally:
        _kernels.reset(before)


def choose_backend(device: torch.device, dtype: torch.dtype, width: int) -> Backend:
    """The backend for encodings on this device, of this type and width (D)."""
    if torch.compiler.is_compiling():  # an exported program may only use standard operations
        return REFERENCE
    kernels = _kernels.get()
    if isinstance(kernels, Backend):
        return kernels
    if kernels == "reference":
        return REFERENCE
    return _fastest(device, dtype, width)


@cache
def _fastest(device: torch.device, dtype: torch.dtype, width: int) -> Backend:
    if device.type == "cpu" and dtype in (torch.float32, torch.float64):
        return CPU
    if device.type == "cuda" and has_triton():
        from frigate.nn.ops.cuda import CudaBackend

        return CudaBackend.for_encodings(device, dtype, width)
    return REFERENCE


def describe_kernels(device: torch.device) -> str:
    """The name of the backend used on a device."""
    return _usual(device).name


def records_cuda_graphs(device: torch.device) -> bool:
    """Whether operations on a device can be captured as a CUDA graph."""
    return _usual(device).records_cuda_graphs


def _usual(device: torch.device) -> Backend:
    return choose_backend(device, torch.bfloat16 if device.type == "cuda" else torch.float32, 64)


def _backend(x: Tensor, width: int) -> Backend:
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return choose_backend(x.device, dtype, width)


def embed(readings: Tensor, weights: Tensor, *beside: Tensor) -> Tensor:
    """`Backend.embed`."""
    return _backend(readings, weights.shape[1]).embed(readings, weights, *beside)


def gated_layers(h: Tensor, gates: Tensors, weights: Tensors, topology: Topology, biases: Tensors = ()) -> Tensor:
    """`Backend.gated_layers`."""
    return _backend(h, h.shape[-1]).gated_layers(h, gates, weights, topology, biases)


def normalise(h: Tensor, norm: nn.LayerNorm) -> Tensor:
    """`Backend.normalise`."""
    return _backend(h, h.shape[-1]).normalise(h, norm)


def encode(lstm: nn.LSTM, z: Tensor, state: State) -> State:
    """`Backend.encode`."""
    return _backend(z, lstm.hidden_size).encode(lstm, z, state)


def decode(lstm: nn.LSTMCell, readout: nn.Module, state: State, prior: Tensor, y: Tensor, known: Tensor) -> Tensor:
    """`Backend.decode`."""
    return _backend(state[0], lstm.hidden_size).decode(lstm, readout, state, prior, y, known)


def sparse_sum(matrix: SparseMatrix, features: Tensor) -> Tensor:
    """`Backend.sparse_sum`."""
    return _backend(features, features.shape[-1]).sparse_sum(matrix, features)


def take_nodes(z: Tensor, nodes: Tensor | slice) -> Tensor:
    """`Backend.take_nodes`."""
    return _backend(z, z.shape[-1]).take_nodes(z, nodes)


def follow_readings(
    tables: DemandTables,
    values: Tensor,
    observed: Tensor,
    clock: Tensor,
    which: Tensor,
    past_on: Tensor | None,
    ahead_on: Tensor | None,
    recent: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`DemandTables.follow`, on a GPU in far fewer kernel launches."""
    if values.is_cuda and _kernels.get() != "reference" and has_triton() and not torch.compiler.is_compiling():
        from frigate.nn.ops.cuda.demand_kernels import follow

        return follow(tables, values, observed, clock, which, past_on, ahead_on, recent)
    return tables.follow(values, observed, clock, which, past_on, ahead_on, recent)


@cache
def has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
