"""ForecastModel: the interface shared by Frigate and the deep baselines; other packages use nothing else of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frigate.nn.batch import Batch
from frigate.nn.ops import records_cuda_graphs
from frigate.nn.topology import Topology


@dataclass(frozen=True)
class Reach:
    """The model's receptive field for one node."""

    hops: int  # reads nodes up to this many roads away, in either direction
    sensors: bool  # also reads the nearest sensors of all those nodes


@dataclass(frozen=True)
class RoadWeights:
    """What a model makes of a topology alone: valid for every snapshot until the model's weights change."""

    gates: tuple[Tensor, ...]  # [E] of each layer
    sensor_weights: Tensor | None  # [N,M,G] of the kernel mean; None if the model has none


class ForecastModel(nn.Module):
    """Forecasts every node of a batch: model(batch) is [B,H,N] in the user's unit, not clamped.

    Subclasses implement `forward` and `training_activations`, and override other methods where they can do better.
    """

    value_offset: Tensor
    value_scale: Tensor
    supports_recording = False  # a training step can be captured as a CUDA graph
    corrects_demand = False  # forecasts demand plus a learned correction
    encodes_snapshots = False  # implements `fixed`, `encode_snapshots` and `forecast_from`

    def __init__(self, *, width: int, value_offset: float, value_scale: float) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("value_offset", torch.tensor(float(value_offset)))
        self.register_buffer("value_scale", torch.tensor(float(value_scale)))

    def forward(self, batch: Batch) -> Tensor:
        """[B,H,N]."""
        raise NotImplementedError

    def forecast_at(self, batch: Batch, nodes: Tensor | slice) -> Tensor:
        """[B,H,n] at these nodes."""
        forecast: Tensor = self(batch)
        return forecast[..., nodes]

    def road_weights(self, topology: Topology) -> RoadWeights:
        """The part of `encode_snapshots` that depends on neither readings nor time."""
        raise NotImplementedError

    def encode_snapshots(self, batch: Batch, *, weights: Sequence[RoadWeights] | None = None) -> Tensor:
        """[N,B,T,D]: each snapshot's encoding, computed only from its own readings, topology and calendar.

        `weights` has one entry per topology of the batch; computed here if None.
        """
        raise NotImplementedError

    def forecast_from(self, batch: Batch, encodings: Tensor, nodes: Tensor | slice = slice(None)) -> Tensor:
        """[B,H,n] at these nodes, from the encodings [N,B,T,D] of all snapshots."""
        raise NotImplementedError

    def trust_correction(self, share: float) -> None:
        """Let this share of the learned correction of demand count; without one, all is learned."""

    @property
    def is_demand_alone(self) -> bool:
        """Whether nothing is added to demand's forecast: what was learned has no trust, or nothing was learned."""
        return False

    @property
    def reach(self) -> Reach | None:
        """The model's receptive field; None if unknown."""
        return None

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        """Approximate count of activations saved for backward per window: sets how many windows fit in memory."""
        raise NotImplementedError

    def forecast_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        """Approximate peak count of activations when forecasting one window."""
        return self.training_activations(nodes=nodes, edges=edges, past=past, horizon=horizon)

    def can_record(self, device: torch.device) -> bool:
        """Whether this model can be captured as a CUDA graph on this device."""
        return self.supports_recording and records_cuda_graphs(device)

    def scaled(self, values: Tensor) -> Tensor:
        """Convert from the user's unit to the model's."""
        return (values - self.value_offset) / self.value_scale

    def unscaled(self, values: Tensor) -> Tensor:
        """Convert from the model's unit to the user's."""
        return values.to(self.value_scale.dtype) * self.value_scale + self.value_offset
