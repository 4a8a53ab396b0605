"""ForecastModel: what Frigate and the deep baselines have in common, and all that other packages may ask of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frigate.nn.batch import Batch
from frigate.nn.ops import Backend, choose_backend
from frigate.nn.topology import Topology


@dataclass(frozen=True)
class Reach:
    """What a model reads to forecast one node."""

    hops: int  # nodes up to so many roads away, in either direction
    sensors: bool  # and the nearest sensors of all these nodes


@dataclass(frozen=True)
class Fixed:
    """What a model computes from a topology alone: valid for all snapshots until a weight changes."""

    gates: tuple[Tensor, ...]  # [E] of each layer
    sensor_weights: Tensor | None  # [N,M,G] of the kernel mean, where the model has one


class ForecastModel(nn.Module):
    """Forecasts every node of a batch: model(batch) is [B,H,N] in the user's unit, not clamped.

    A subclass has `forward` and `training_activations`, and the other methods as far as it can do better than here.
    """

    value_offset: Tensor
    value_scale: Tensor
    supports_recording = False  # whether a training step can be recorded as a CUDA graph
    encodes_snapshots = False  # whether it has `fixed`, `encode_snapshots` and `forecast_from`

    def __init__(self, *, width: int, value_offset: float, value_scale: float) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("value_offset", torch.tensor(float(value_offset)))
        self.register_buffer("value_scale", torch.tensor(float(value_scale)))

    def forward(self, batch: Batch, *, kernels: str = "auto") -> Tensor:
        """[B,H,N]; `kernels` is "auto" or "reference", the equations in plain torch operations."""
        raise NotImplementedError

    def forecast_at(self, batch: Batch, nodes: Tensor | slice, *, kernels: str = "auto") -> Tensor:
        """[B,H,n] at these nodes."""
        forecast: Tensor = self(batch, kernels=kernels)
        return forecast[..., nodes]

    def fixed(self, topology: Topology) -> Fixed:
        """What of `encode_snapshots` depends on neither readings nor time."""
        raise NotImplementedError

    def encode_snapshots(self, batch: Batch, *, fixed: Sequence[Fixed] | None = None, kernels: str = "auto") -> Tensor:
        """[N,B,T,D]: each snapshot's encoding, from its own readings, topology and calendar alone.

        `fixed` has one entry for each topology of the batch; without it, it is computed.
        """
        raise NotImplementedError

    def forecast_from(
        self, batch: Batch, encodings: Tensor, nodes: Tensor | slice = slice(None), *, kernels: str = "auto"
    ) -> Tensor:
        """[B,H,n] at these nodes, from the encodings [N,B,T,D] of all snapshots."""
        raise NotImplementedError

    @property
    def reach(self) -> Reach | None:
        """How far the model looks; None where that is not known."""
        return None

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        """About how many numbers backward keeps of one window: this decides how many windows fit into memory."""
        raise NotImplementedError

    def forecast_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        """About how many numbers a forecast of one window holds at once."""
        return self.training_activations(nodes=nodes, edges=edges, past=past, horizon=horizon)

    def can_record(self, device: torch.device, kernels: str = "auto") -> bool:
        """Whether what this model computes there can be recorded as a CUDA graph."""
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        return self.supports_recording and choose_backend(device, dtype, self.width, kernels).records_cuda_graphs

    def scaled(self, values: Tensor) -> Tensor:
        """From the user's unit to the model's."""
        return (values - self.value_offset) / self.value_scale

    def unscaled(self, values: Tensor) -> Tensor:
        """From the model's unit to the user's."""
        return values.to(self.value_scale.dtype) * self.value_scale + self.value_offset

    def backend(self, batch: Batch, kernels: str) -> Backend:
        """Who computes a forward pass on this batch."""
        device, dtype = batch.values.device, batch.values.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        return choose_backend(device, dtype, self.width, kernels)
