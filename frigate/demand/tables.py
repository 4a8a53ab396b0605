"""Demand as input to a model: the usual flow at every node, adjusted to each window's readings.

A window must not learn anything about the sensors hidden in it, and a demand has seen every sensor it was calibrated
with. So each set of visible sensors has a demand of its own, and a window names the one it uses. The change relative
to usual is computed here from the window's readings, after hiding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.calendar import HOUR_S, between_bins, week_parts
from frigate.demand.count_profiles import TINY
from frigate.demand.estimate import Demand
from frigate.demand.recent_days import MAX_FACTOR, RecentFactor
from frigate.demand.sensor_shares import propagate

PRIOR_VEHICLES = 16.0  # pseudo-count that shrinks a sensor's ratio to the network's: 3 instead of 1 says little
PRIOR_VEHICLES_EVERYWHERE = 50.0
MAX_RATIO = 8.0  # of today's count to the usual one at a sensor: beyond this a broken sensor is likelier than a crowd
DEMAND_NODE = ("log_change", "spread", "is_sensor", "rerouted")  # rerouted: flow on the roads ahead / usual flow
FADES_S = 4 * HOUR_S  # in which the change of the last hours fades to a third
RECENT_ELSEWHERE = 0.5  # exponent of what the sensors' recent days say of places without a sensor
NEW_ROADS = 0.1  # log change of flow from which a node's roads count as new; not sensitive between 0.05 and 0.2


@dataclass(frozen=True)
class FlowsOn:
    """What a network's roads change about C demands."""

    change: Tensor  # [C,N] flow multiplier; 1 on the usual roads
    shares: tuple[Tensor, Tensor, Tensor] | None  # sensor, share and rest as in `DemandTables`, without L; None: usual


@dataclass(frozen=True)
class DemandTables:
    """C demands of one network on one device, each from a different set of sensors. K hourly bins, G topologies."""

    usual: Tensor  # [C,K,N] usual flow; at a sensor, its own usual count
    week: Tensor  # [C,W,N] the factor of each part of the week
    is_sensor: Tensor  # [C,N] bool
    spread: Tensor  # [C,N] uncertainty of the flow: standard deviation of its logarithm
    sensor: Tensor  # [C,L,N,M] as in `SensorShares`; L is 1, or G if the shares follow the roads ahead
    share: Tensor  # [C,L,N,M]
    rest: Tensor  # [C,L,N]
    roads: Tensor | None  # [C,G,N] flow multiplier on each of G topologies; None: no change
    below: Tensor  # [C,K,N] vehicles subtracted from the mean to forecast the median
    power: float  # exponent of the window's change in the next step, where the roads are as usual
    step_s: int  # length of a snapshot

    @classmethod
    def of(cls, demands: Sequence[Demand], device: torch.device | str, *, step_s: int) -> DemandTables:
        """The tables on the usual roads; `on` gives those of other roads."""

        def stacked(*arrays: np.ndarray) -> Tensor:
            return torch.from_numpy(np.stack(arrays)).to(device)

        shares = [demand.sensor_shares for demand in demands]
        settings = demands[0].settings
        return cls(
            usual=stacked(*(usual_flow(d) for d in demands)),
            week=stacked(*(d.week for d in demands)),
            is_sensor=stacked(*(d.sensors for d in demands)),
            spread=stacked(*(np.where(d.sensors, 0, d.node_spread) for d in demands)),
            sensor=stacked(*(each.sensor[None] for each in shares)),
            share=stacked(*(each.share[None] for each in shares)),
            rest=stacked(*(each.rest[None] for each in shares)),
            roads=None,
            below=stacked(*(_below(d) for d in demands)),
            power=settings.power,
            step_s=step_s,
        )

    def on(self, networks: Sequence[FlowsOn]) -> DemandTables:
        """The tables for topologies 0, 1, ... with these flows."""
        tables = replace(self, roads=torch.stack([network.change for network in networks], dim=1))
        own = [network.shares for network in networks]
        if all(shares is None for shares in own):
            return tables
        usual = self.sensor[:, 0], self.share[:, 0], self.rest[:, 0]
        each = [usual if shares is None else shares for shares in own]
        sensor, share, rest = (torch.stack(of_networks, dim=1) for of_networks in zip(*each, strict=True))
        return replace(tables, sensor=sensor, share=share, rest=rest)

    def now_usual(self, recent: RecentFactor, which: Tensor) -> Tensor:
        """[B,S,N] what is usual now over what is usual: at a sensor its own, elsewhere that of the vehicles that pass.

        Only the sensors that each window's demand [B] knows are asked: others may be hidden.
        """
        slots, demands = recent.between, np.array(which.tolist(), np.int64)[:, None]
        pairs, between = np.unique(slots * len(self.usual) + demands, return_inverse=True)
        slot, row = (torch.from_numpy(x).to(which.device) for x in np.divmod(pairs, len(self.usual)))
        own = recent.slots[slot]  # [U',N]
        sensors = self.is_sensor[row]
        weight = self.usual.mean(1)[row].where(sensors, 0.0)
        everywhere = (own * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=TINY)
        everywhere = everywhere.where(sensors.any(1, keepdim=True), 1.0)
        made, _ = propagate(
            own,
            sensors,
            sensor=self.sensor[row, 0],
            share=self.share[row, 0],
            rest=self.rest[row, 0],
            everywhere=everywhere,
        )
        made = made.clamp(1 / MAX_FACTOR, MAX_FACTOR) ** RECENT_ELSEWHERE
        return recent.at(torch.where(sensors, own, made), between.reshape(slots.shape))

    def follow(
        self,
        values: Tensor,
        observed: Tensor,
        clock: Tensor,
        which: Tensor,
        past_on: Tensor | None = None,
        ahead_on: Tensor | None = None,
        recent: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Adjust the usual flow to the readings of B windows.

        Parameters
        ----------
        values, observed
            [B,T,N] readings of visible sensors only.
        clock
            [B,T+H,3] local time of each past snapshot and each step ahead, as `frigate.calendar.WALL_CLOCK`.
        which
            [B] index of each window's demand, which must be calibrated with no other sensors.
        past_on, ahead_on
            [B,T] the topology that each snapshot was measured on, and [B] that of the steps ahead, as indices into
            `roads` (required if `roads` is set).
        recent
            [B,T+H,N] what is usual now over what is usual, as `now_usual` makes it. Default: 1.

        Returns
        -------
        usual_past, demand, demand_node
            [B,T,N] the usual flow in each snapshot; [B,H,N] the flow forecast; [B,N,4] the columns of DEMAND_NODE.
        """
        T = values.shape[1]
        hours = between_bins(clock, self.step_s)
        H = clock.shape[1] - T
        usual = _at(self.usual, which, hours) * self.week[which[:, None], week_parts(clock, self.step_s)]
        usual = usual if recent is None else usual * recent
        past, ahead = usual.split([T, H], dim=1)  # [B,T,N], [B,H,N]
        below = _at(self.below, which, [each[:, T:] for each in hours])
        rerouted = torch.ones_like(past[:, 0])  # [B,N]
        after_s = self.step_s * torch.arange(1, H + 1, device=values.device, dtype=values.dtype)
        power = (self.power * torch.exp(-after_s / FADES_S))[:, None]  # [H,1]
        if self.roads is not None:
            assert past_on is not None and ahead_on is not None
            measured_on = self.roads[which[:, None], past_on]  # [B,T,N]
            past = past * measured_on
            rerouted = self.roads[which, ahead_on]
            # What readings on new roads reveal about detours persists; what they reveal about the day fades.
            new = (measured_on.clamp(min=TINY).log().abs().mean(1) / NEW_ROADS).clamp(max=1)
            power = power + (1 - power) * new[:, None]  # [B,H,N]
        counted = values.where(observed, 0.0).sum(1)  # [B,N]
        expected = past.where(observed, 0.0).sum(1)
        sensors = self.is_sensor[which]
        known = observed.any(1) & sensors
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
        forecast = (ahead * change[:, None] ** power - below).clamp(min=0) * rerouted[:, None]
        node = torch.stack([change.log(), self.spread[which], sensors.to(change.dtype), rerouted], dim=-1)
        return past, forecast, node


def _at(table: Tensor, which: Tensor, hours: Sequence[Tensor]) -> Tensor:
    """[B,S,N] a table [C,K,N] at the snapshots, interpolated between hours so that it has no jump on the hour."""
    first, second, share = hours
    row = which[:, None]
    return torch.lerp(table[row, first], table[row, second], share[..., None].to(table.dtype))


def usual_flow(demand: Demand) -> NDArray[np.float32]:
    """[K,N] usual flow; at a sensor, its own usual count."""
    least = np.outer(demand.other_factor, np.full(len(demand.sensors), demand.least_flow))
    usual: NDArray[np.float32] = np.where(demand.sensors, demand.usual_counts, np.maximum(demand.node_flow, least))
    return usual.astype(np.float32)


def _below(demand: Demand) -> NDArray[np.float32]:
    """[K,N] vehicles by which a count's median lies below its mean."""
    settings = demand.settings
    own = np.nan_to_num(demand.usual_counts - demand.usual_medians, nan=settings.median_gap)
    own = settings.own_median * own + (1 - settings.own_median) * settings.median_gap
    elsewhere = settings.median_gap + settings.median_gap_share * demand.node_flow
    below: NDArray[np.float32] = np.where(demand.sensors, own, elsewhere).astype(np.float32)
    return below
