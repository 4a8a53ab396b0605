"""Demand as input to a model: the usual flow at every node, adjusted to each window's readings.

A window must not learn anything about the sensors hidden in it, and a demand has seen every sensor it was calibrated
with. So each set of visible sensors has a demand of its own, and a window names the one it uses. The change relative
to usual is computed here from the window's readings, after hiding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.demand.count_profiles import TINY
from frigate.demand.estimate import Demand
from frigate.demand.sensor_shares import SensorShares, propagate
from frigate.nn.batch import Batch
from frigate.nn.clock import between_bins
from frigate.nn.ops import has_triton

PRIOR_VEHICLES = 16.0  # pseudo-count that shrinks a sensor's ratio to the network's: 3 instead of 1 says little
PRIOR_VEHICLES_EVERYWHERE = 50.0
MAX_RATIO = 8.0  # of today's count to the usual one at a sensor: beyond this a broken sensor is likelier than a crowd
NEW_ROADS = 0.1  # log change of flow from which a node's roads count as new; not sensitive between 0.05 and 0.2


@dataclass(frozen=True)
class DemandTables:
    """C demands of one network on one device, each from a different set of sensors. K hourly bins, G topologies."""

    usual: Tensor  # [C,K,N] usual flow; at a sensor, its own usual count
    is_sensor: Tensor  # [C,N] bool
    spread: Tensor  # [C,N] uncertainty of the flow: standard deviation of its logarithm
    sensor: Tensor  # [C,L,N,M] as in `SensorShares`; L is 1, or G if the shares follow the coming hour's topology
    share: Tensor  # [C,L,N,M]
    rest: Tensor  # [C,L,N]
    roads: Tensor | None  # [C,G,N] flow multiplier on each topology of the stream; None: no change
    below: Tensor  # [C,K,N] vehicles subtracted from the mean to forecast the median
    power: float  # exponent of the window's change, where the roads are as usual
    step_s: int  # length of a snapshot

    @classmethod
    def of(
        cls,
        demands: Sequence[Demand],
        device: torch.device | str,
        *,
        step_s: int,
        roads: Tensor | None = None,
        shares: Sequence[Sequence[SensorShares]] | None = None,
    ) -> DemandTables:
        """`roads` is [C,G,N]; `shares` has C lists of L (default: each demand's own `sensor_shares`)."""

        def stacked(*arrays: np.ndarray) -> Tensor:
            return torch.from_numpy(np.stack(arrays)).to(device)

        shares = shares or [[demand.sensor_shares] for demand in demands]
        settings = demands[0].settings
        return cls(
            usual=stacked(*(np.where(d.sensors, d.usual_counts, d.node_flow) for d in demands)),
            is_sensor=stacked(*(d.sensors for d in demands)),
            spread=stacked(*(np.where(d.sensors, 0, d.node_spread) for d in demands)),
            sensor=stacked(*(np.stack([on.sensor for on in each]) for each in shares)),
            share=stacked(*(np.stack([on.share for on in each]) for each in shares)),
            rest=stacked(*(np.stack([on.rest for on in each]) for each in shares)),
            roads=None if roads is None else roads.to(device),
            below=stacked(*(_below(d) for d in demands)),
            power=settings.power,
            step_s=step_s,
        )

    def apply(
        self, batch: Batch, which: Tensor, past_on: Tensor | None = None, ahead_on: Tensor | None = None
    ) -> Batch:
        """The batch with its demand fields filled in.

        Parameters
        ----------
        batch
            Readings of visible sensors only.
        which
            [B] index of each window's demand, which must be calibrated with no other sensors.
        past_on, ahead_on
            [B,T] the topology that each snapshot was measured on, and [B] that of the coming hour, as indices into
            `roads` (required if `roads` is set).
        """
        by_kernels = batch.values.is_cuda and has_triton() and not torch.compiler.is_compiling()
        follow = self.follow_by_kernels if by_kernels else self.follow
        past, forecast, node = follow(batch, which, past_on, ahead_on)
        return replace(batch, usual_past=past, demand=forecast, demand_node=node)

    def follow(
        self, batch: Batch, which: Tensor, past_on: Tensor | None = None, ahead_on: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`usual_past`, `demand` and `demand_node` of a batch."""
        T = batch.calendar_past.shape[1]
        hours = between_bins(torch.cat([batch.calendar_past, batch.calendar_future], dim=1), self.step_s)
        past, ahead = _at(self.usual, which, hours).split([T, hours[0].shape[1] - T], dim=1)  # [B,T,N], [B,H,N]
        below = _at(self.below, which, [each[:, T:] for each in hours])
        rerouted = torch.ones_like(past[:, 0])  # [B,N]
        power = self.power * rerouted
        if self.roads is not None:
            assert past_on is not None and ahead_on is not None
            measured_on = self.roads[which[:, None], past_on]  # [B,T,N]
            past = past * measured_on
            rerouted = self.roads[which, ahead_on]
            # What readings on new roads reveal about detours persists; what they reveal about the day fades.
            new = (measured_on.clamp(min=TINY).log().abs().mean(1) / NEW_ROADS).clamp(max=1)
            power = power + (1 - self.power) * new
        counted = batch.values.where(batch.observed, 0.0).sum(1)  # [B,N]
        expected = past.where(batch.observed, 0.0).sum(1)
        sensors = self.is_sensor[which]
        known = batch.observed.any(1) & sensors
        whole, usually = (x.where(known, 0.0).sum(1, keepdim=True) for x in (counted, expected))
        everywhere = (whole + PRIOR_VEHICLES_EVERYWHERE) / (usually + PRIOR_VEHICLES_EVERYWHERE)
        ratio = (counted + PRIOR_VEHICLES * everywhere) / (expected + PRIOR_VEHICLES)
        shares_on = torch.zeros_like(which) if self.sensor.shape[1] == 1 or ahead_on is None else ahead_on
        change, _ = propagate(
            ratio.clamp(1 / MAX_RATIO, MAX_RATIO),
            known,
            sensor=self.sensor[which, shares_on],
            share=self.share[which, shares_on],
            rest=self.rest[which, shares_on],
            everywhere=everywhere,
        )
        change = change.clamp(1 / MAX_RATIO, MAX_RATIO)
        forecast = (ahead * (change**power)[:, None] - below).clamp(min=0) * rerouted[:, None]
        node = torch.stack([change.log(), self.spread[which], sensors.to(change.dtype), rerouted], dim=-1)
        return past, forecast, node

    def follow_by_kernels(
        self, batch: Batch, which: Tensor, past_on: Tensor | None = None, ahead_on: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`follow` on a GPU, in far fewer kernel launches."""
        from frigate.nn.ops.cuda.demand_kernels import Prior, follow

        return follow(
            batch.values, batch.observed, batch.calendar_past, batch.calendar_future, which, past_on, ahead_on,
            **{field.name: getattr(self, field.name) for field in fields(self)},
            prior=Prior(PRIOR_VEHICLES, PRIOR_VEHICLES_EVERYWHERE, MAX_RATIO, NEW_ROADS),
        )  # fmt: skip


def _at(table: Tensor, which: Tensor, hours: Sequence[Tensor]) -> Tensor:
    """[B,S,N] a table [C,K,N] at the snapshots, interpolated between hours so that it has no jump on the hour."""
    first, second, share = hours
    row = which[:, None]
    return torch.lerp(table[row, first], table[row, second], share[..., None].to(table.dtype))


def _below(demand: Demand) -> NDArray[np.float32]:
    """[K,N] vehicles by which a count's median lies below its mean."""
    settings = demand.settings
    own = np.nan_to_num(demand.usual_counts - demand.usual_medians, nan=settings.below_mean)
    own = settings.own_median * own + (1 - settings.own_median) * settings.below_mean
    elsewhere = settings.below_mean + settings.below_share * demand.node_flow
    below: NDArray[np.float32] = np.where(demand.sensors, own, elsewhere).astype(np.float32)
    return below
