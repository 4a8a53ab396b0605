"""Predictor: all inference goes through here.

It holds a copy of the model on the device and takes care of inference mode, bf16 on a GPU, blocks of nodes when memory
is short, non-negative counts, and absent nodes.
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

from frigate.city.network import RoadNetwork
from frigate.errors import SettingsError
from frigate.nn.batch import Batch
from frigate.nn.device import autocast, memory_limit
from frigate.nn.forecast_model import ForecastModel, Reach
from frigate.nn.partition import Part, cut_parts, forecast_bytes, in_parts
from frigate.roads.areas import split_into_areas

MIN_BLOCK = 256  # nodes: smaller blocks are nearly all halo


class Predictor:
    """A copy of a model, ready to forecast on one table of nodes. Later changes to the original do not affect it.

    Parameters
    ----------
    model : ForecastModel
        Copied to the device; the original is left untouched.
    network : RoadNetwork
        The nodes; blocks are formed by location.
    device : torch.device
        Where to compute.
    quantity : str, optional
        "count": forecasts are clamped at 0. Default: no clamping.
    memory_gb : float, optional
        Memory limit for activations. If they need more, the network is forecast in blocks of nodes, with the same
        result up to rounding. Default: 4 on a CPU, most of the free memory on a GPU.
    parts : sequence of Part
        Parts to use instead of blocks. Nodes outside every part's core are forecast as 0.
    """

    def __init__(
        self,
        model: ForecastModel,
        network: RoadNetwork,
        device: torch.device,
        *,
        quantity: str = "",
        memory_gb: float | None = None,
        parts: Sequence[Part] = (),
    ) -> None:
        self.model = copy.deepcopy(model).to(device).eval()
        self._demand_alone = self.model.is_demand_alone  # then the network need not run
        self.network = network
        self.device = device
        self.parts = parts
        self.limit = memory_limit(memory_gb, device)
        self.least = 0.0 if quantity == "count" else -torch.inf

    @contextmanager
    def inference(self) -> Iterator[None]:
        """The context of every forward pass: inference mode and autocast."""
        with torch.inference_mode(), autocast(self.device):
            yield

    def __call__(self, batch: Batch, nodes: Tensor | slice | None = None, *, must_fit: bool = False) -> Tensor:
        """[B,H,N] in the user's unit, or [B,H,n] at these nodes only.

        `must_fit`: raise an error if even the smallest block of nodes does not fit into memory, instead of trying it.
        """
        with self.inference():
            if self._demand_alone and batch.demand is not None:
                made = batch.demand if nodes is None else batch.demand[..., nodes]
            elif self.parts:
                made = in_parts(self.model, batch, self.parts)
                made = made if nodes is None else made[..., nodes]
            elif nodes is not None:
                made = self.model.forecast_at(batch, nodes)
            else:
                made = self._within_memory(batch, must_fit)
            return made.clamp(min=self.least)

    def _within_memory(self, batch: Batch, must_fit: bool) -> Tensor:
        """[B,H,N] in one pass if it fits or the model's reach is unknown, otherwise in blocks of nodes."""
        reach = self.model.reach
        edges = max(topology.num_edges for topology in batch.topologies)
        needed = self._bytes(batch, batch.num_nodes, edges)
        if reach is None or needed <= self.limit:
            forecast: Tensor = self.model(batch)
            return forecast
        return in_parts(self.model, batch, self._blocks(batch, reach, needed, must_fit))

    def _blocks(self, batch: Batch, reach: Reach, needed: int, must_fit: bool) -> Iterator[Part]:
        """The network, `needed` bytes in all, in blocks; those that do not fit are halved, down to MIN_BLOCK nodes."""
        lon = self.network.lon
        lat = self.network.lat
        wanted = min(math.ceil(needed / self.limit), math.ceil(batch.num_nodes / MIN_BLOCK))
        todo = split_into_areas(lon, lat, wanted)
        while todo:
            core = todo.pop()
            (part,) = cut_parts(batch.topologies, [core], reach)
            needed = self._bytes(batch, part.num_nodes, part.num_edges)
            if needed > self.limit and len(core) > MIN_BLOCK:
                todo += [core[half] for half in split_into_areas(lon[core], lat[core], 2)]
                continue
            if needed > self.limit and must_fit:
                raise SettingsError(
                    f"memory: {len(core)} nodes with all that their forecast reads ({part.num_nodes} nodes) take about "
                    f"{needed / 2**30:.2g} GB, and {self.limit / 2**30:.2g} GB are allowed. Raise memory_gb"
                )
            yield part

    def _bytes(self, batch: Batch, nodes: int, edges: int) -> int:
        """Approximate bytes of activations for a forecast of the batch."""
        each = forecast_bytes(self.model, nodes=nodes, edges=edges, past=batch.past, horizon=batch.horizon)
        return batch.num_windows * each

    def to_array(self, made: Tensor, present: NDArray[np.bool_]) -> NDArray[np.float64]:
        """One window's forecast [H,N] on the host: counts clamped at 0, NaN where no node is present [N] or [H,N]."""
        array = made.clamp(min=self.least).cpu().numpy().astype(np.float64)
        return np.where(present, array, np.nan)

    def windows_at_once(self, *, edges: int, past: int, horizon: int, beside: int = 0) -> int:
        """How many windows fit in memory if each needs `beside` extra bytes."""
        N = self.network.num_nodes
        window = forecast_bytes(self.model, nodes=N, edges=edges, past=past, horizon=horizon) + beside
        return max(1, self.limit // window)
