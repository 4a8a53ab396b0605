"""Predictor: the only code that runs a model on windows without training it.

It holds a copy of the model on the device and sees to inference mode, bf16 on a GPU, blocks of nodes where memory is
short, counts that are not negative, and nodes that are absent.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.data.network import RoadNetwork
from frigate.errors import SettingsError
from frigate.graph.areas import split_into_areas
from frigate.nn.batch import Batch
from frigate.nn.device import autocast, memory_limit
from frigate.nn.forecaster import ForecastModel, Reach
from frigate.nn.partition import Part, cut_parts, forecast_bytes, in_parts

MIN_BLOCK = 256  # nodes: with fewer, nearly all of a block is halo


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
                made = self._within_memory(batch)
            return made.clamp(min=self.least)

    def _within_memory(self, batch: Batch) -> Tensor:
        """[B,H,N] at once where that fits, or where the model's reach is not known; else in blocks of nodes."""
        reach = self.model.reach
        edges = max(topology.num_edges for topology in batch.topologies)
        needed = self._bytes(batch, batch.num_nodes, edges)
        if reach is None or needed <= self.limit:
            forecast: Tensor = self.model(batch, kernels=self.kernels)
            return forecast
        return in_parts(self.model, batch, self._blocks(batch, reach, needed), kernels=self.kernels)

    def _blocks(self, batch: Batch, reach: Reach, needed: int) -> Iterator[Part]:
        """The network, which needs so many bytes, in blocks; what does not fit is divided, down to MIN_BLOCK nodes."""
        lon, lat = self.network.lon, self.network.lat
        wanted = min(math.ceil(needed / self.limit), math.ceil(batch.num_nodes / MIN_BLOCK))
        todo = split_into_areas(lon, lat, wanted)
        while todo:
            core = todo.pop()
            (part,) = cut_parts(batch.topologies, [core], reach)
            needed = self._bytes(batch, part.num_nodes, part.num_edges)
            if needed > self.limit and len(core) > MIN_BLOCK:
                todo += [core[half] for half in split_into_areas(lon[core], lat[core], 2)]
                continue
            if needed > self.limit and self.must_fit:
                raise SettingsError(
                    f"memory: {len(core)} nodes with all that their forecast reads ({part.num_nodes} nodes) take about "
                    f"{needed / 2**30:.2g} GB, and {self.limit / 2**30:.2g} GB are allowed. Raise memory_gb"
                )
            yield part

    def _bytes(self, batch: Batch, nodes: int, edges: int) -> int:
        """About what the activations of a forecast take."""
        each = forecast_bytes(self.model, nodes=nodes, edges=edges, past=batch.past, horizon=batch.horizon)
        return batch.num_windows * each

    def to_array(self, made: Tensor, network: RoadNetwork) -> NDArray[np.float64]:
        """One window's forecast [H,N] on the host: counts not below 0, NaN at nodes absent from `network`."""
        array = made.clamp(min=self.least).cpu().numpy().astype(np.float64)
        array[:, ~network.present] = np.nan
        return array

    def windows_at_once(self, *, edges: int, past: int, horizon: int, beside: int = 0) -> int:
        """How many windows fit into memory, when `beside` more bytes are needed for each."""
        N = self.network.num_nodes
        window = forecast_bytes(self.model, nodes=N, edges=edges, past=past, horizon=horizon) + beside
        return max(1, self.limit // window)
