"""Predictor: the only code that runs a model on windows without training it.

It holds a copy of the model on the device and sees to inference mode, bf16 on a GPU, blocks of nodes where memory is
short, counts that are not negative, and nodes that are absent.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.data.network import RoadNetwork
from frigate.nn.batch import Batch
from frigate.nn.device import autocast, memory_limit
from frigate.nn.forecaster import ForecastModel
from frigate.nn.partition import Part, forecast_bytes, in_blocks, in_parts


class Predictor:
    """A copy of a model, ready to forecast on one table of nodes. Changes of the original do not reach it.

    Parameters
    ----------
    model : ForecastModel
        Copied to the device; the original stays where and as it is.
    network : RoadNetwork
        The nodes: their places divide them into blocks.
    device : torch.device
        Where to compute.
    quantity : str, optional
        "count": forecasts are not below 0. Default: forecasts are left as they are.
    memory_gb : float, optional
        What activations may take. Where they would take more, the network is forecast in blocks of nodes, with the
        same result up to rounding. Default: 4 on a CPU, most of what is free on a GPU.
    must_fit : bool
        Refuse a block that does not fit even at its smallest, instead of trying it.
    parts : sequence of Part
        Parts to use in place of blocks. Nodes that are in none of them are forecast as 0.
    kernels : "auto" or "reference"
        The fastest for the device, or the equations in plain torch operations, to compare with.
    """

    def __init__(
        self,
        model: ForecastModel,
        network: RoadNetwork,
        device: torch.device,
        *,
        quantity: str = "",
        memory_gb: float | None = None,
        must_fit: bool = False,
        parts: Sequence[Part] = (),
        kernels: str = "auto",
    ) -> None:
        self.model = copy.deepcopy(model).to(device).eval()
        self.network, self.device, self.parts, self.kernels = network, device, parts, kernels
        self.limit, self.must_fit = memory_limit(memory_gb, device), must_fit
        self.least = 0.0 if quantity == "count" else -torch.inf

    @contextmanager
    def inference(self) -> Iterator[None]:
        """What every forward pass runs in."""
        with torch.inference_mode(), autocast(self.device):
            yield

    def __call__(self, batch: Batch, nodes: Tensor | slice | None = None) -> Tensor:
        """[B,H,N] in the user's unit, or [B,H,n] at these nodes alone."""
        with self.inference():
            if self.parts:
                made = in_parts(self.model, batch, self.parts, kernels=self.kernels)
                made = made if nodes is None else made[..., nodes]
            elif nodes is not None:
                made = self.model.forecast_at(batch, nodes, kernels=self.kernels)
            else:
                lon, lat = self.network.lon, self.network.lat
                made = in_blocks(
                    self.model, batch, lon=lon, lat=lat, limit=self.limit, must_fit=self.must_fit, kernels=self.kernels
                )
            return made.clamp(min=self.least)

    def to_array(self, made: Tensor, network: RoadNetwork) -> NDArray[np.float64]:
        """One window's forecast [H,N] on the host: counts not below 0, NaN at nodes absent from `network`."""
        return np.where(network.present, made.clamp(min=self.least).double().cpu().numpy(), np.nan)

    def windows_at_once(self, *, edges: int, past: int, horizon: int, beside: int = 0) -> int:
        """How many windows fit into memory, when `beside` more bytes are needed for each."""
        N = self.network.num_nodes
        window = forecast_bytes(self.model, nodes=N, edges=edges, past=past, horizon=horizon) + beside
        return max(1, self.limit // window)
