"""Windows: cuts batches out of a stream, with the roads that each snapshot was measured on and each step will have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.calendar import utc_offsets_s, wall_clock
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.demand.count_profiles import TINY
from frigate.demand.recent_days import RecentFactor
from frigate.demand.tables import NEW_ROADS, DemandTables
from frigate.nn.batch import Batch
from frigate.nn.network_views import NetworkViews
from frigate.nn.ops import follow_readings
from frigate.nn.topology import Topology

Ints = NDArray[np.int64]
Edit = Callable[[RoadNetwork, int], RoadNetwork]  # the roads of a step that begins then, given those on record
Thinning = Callable[[int, int], Tensor]  # the past snapshots [B,T'] that B windows of T keep, in order


@dataclass(frozen=True)
class RoadsOfWindows:
    """The networks of a batch's rows: a window has one row for each network ahead."""

    window_of: Ints  # [B] the window of each row
    ahead_on: Ints  # [B] its network ahead
    measured_on: Ints  # [B,T] the network that each past snapshot was measured on
    encoded_on: Ints  # [B,T] the network that messages pass on
    holds: NDArray[np.bool_]  # [B,H] the steps that have the row's network ahead


def roads_of_windows(measured_on: Ints, ahead_on: Ints) -> RoadsOfWindows:
    """Rows of windows from the networks of their past snapshots [B,T] and steps ahead [B,H]; indices of one list.

    Messages pass on the roads of each snapshot (paper, Definition 2). Where the roads ahead are not those of the last
    snapshot, they replace the roads of every snapshot, as in the paper's experiment with changed roads: then a planned
    closure, a what-if and a change at the moment of the forecast are the same.
    """
    B, H = ahead_on.shape
    span = int(max(measured_on.max(initial=0), ahead_on.max(initial=0))) + 1
    if not H:
        return RoadsOfWindows(np.arange(B), measured_on[:, -1], measured_on, measured_on, np.ones((B, 0), bool))
    window_of, on = np.divmod(np.unique(np.arange(B)[:, None] * span + ahead_on), span)
    measured = measured_on[window_of]
    as_last = on == measured[:, -1]
    return RoadsOfWindows(
        window_of, on, measured, np.where(as_last[:, None], measured, on[:, None]), ahead_on[window_of] == on[:, None]
    )


@dataclass(frozen=True)
class Layout:
    """The roads of a batch's rows on the device: all of a batch that does not depend on readings and times."""

    topologies: tuple[Topology, ...]
    topology_of: Tensor  # [B,T] on the CPU
    window_of: Tensor | None
    holds: Tensor | None
    tables: DemandTables | None
    past_on: Tensor | None  # [B,T] and
    ahead_on: Tensor | None  # [B] indices into the topologies of `tables`

    @classmethod
    def of(cls, roads: RoadsOfWindows, networks: Sequence[RoadNetwork], views: NetworkViews) -> Layout:
        """`roads` are indices into `networks`."""
        encoded, topology_of = np.unique(roads.encoded_on, return_inverse=True)
        several = int(roads.window_of.max(initial=-1)) + 1 < len(roads.window_of) or not roads.holds.all()
        used = np.unique(np.concatenate([roads.measured_on.ravel(), roads.ahead_on]))
        tables = views.tables([views.view(networks[k]) for k in used.tolist()]) if views.demands else None
        past_on = None
        ahead_on = None
        if tables is not None and tables.roads is not None:
            past_on, ahead_on = (
                torch.from_numpy(np.searchsorted(used, on)).to(views.device)
                for on in (roads.measured_on, roads.ahead_on)
            )
        return cls(
            topologies=tuple(views.view(networks[k]).topology for k in encoded.tolist()),
            topology_of=torch.from_numpy(topology_of.reshape(roads.encoded_on.shape)),
            window_of=torch.from_numpy(roads.window_of) if several else None,
            holds=torch.from_numpy(roads.holds).to(views.device) if several else None,
            tables=tables,
            past_on=past_on,
            ahead_on=ahead_on,
        )

    def batch(
        self,
        values: Tensor,
        observed: Tensor,
        clock: Tensor,
        demand: Tensor | None = None,
        recent: Tensor | None = None,
    ) -> Batch:
        """The batch with these readings [B,T,N] and local times [B,T+H,3], the past and those ahead.

        `demand` [B] is the index of each row's demand (default: the last one), which must not be calibrated with
        hidden sensors. `recent` [B,T+H,N] is as `now_usual` makes it (default: days as usual).
        """
        T = values.shape[1]
        batch = Batch(
            values=values,
            observed=observed,
            time_past=clock[:, :T],
            time_future=clock[:, T:],
            topologies=self.topologies,
            topology_of=self.topology_of,
            window_of=self.window_of,
            holds=self.holds,
        )
        if self.tables is None:
            return batch
        if demand is None:
            demand = self._last(len(values))
        if recent is not None:
            recent = self._but_on_new_roads(recent, demand)
        usual, ahead, node = follow_readings(
            self.tables, values, observed, clock, demand, self.past_on, self.ahead_on, recent
        )
        return replace(batch, usual_past=usual, demand=ahead, demand_node=node)

    def now_usual(self, recent: RecentFactor | None, demand: Tensor | None = None) -> Tensor | None:
        """[B,S,N] as `DemandTables.now_usual`; None without demand, or if nothing is known of the days before."""
        if self.tables is None or recent is None:
            return None
        return self.tables.now_usual(recent, self._last(recent.between.shape[1]) if demand is None else demand)

    def _but_on_new_roads(self, recent: Tensor, demand: Tensor) -> Tensor:
        """[B,S,N] 1 where roads change the flow: the days before may have been on the same roads, and counted that."""
        tables = self.tables
        if tables is None or tables.roads is None or self.past_on is None or self.ahead_on is None:
            return recent
        ahead = self.ahead_on[:, None].expand(-1, recent.shape[1] - self.past_on.shape[1])
        flow = tables.roads[demand[:, None], torch.cat([self.past_on, ahead], dim=1)]  # [B,S,N]
        as_usual = 1 - (flow.clamp(min=TINY).log().abs() / NEW_ROADS).clamp(max=1)
        changed: Tensor = recent**as_usual
        return changed

    def _last(self, windows: int) -> Tensor:
        """[B] the last demand."""
        assert self.tables is not None
        return torch.full((windows,), len(self.tables.usual) - 1, device=self.tables.usual.device)


class Windows:
    """A stream's arrays on one device, to cut batches from.

    Parameters
    ----------
    stream
        Readings and roads.
    views
        Its networks as the model sees them.
    """

    def __init__(self, stream: RoadNetworkStream, views: NetworkViews) -> None:
        self.stream = stream
        self.views = views
        self.device = views.device
        self.thinning: Thinning | None = None
        self.masked = False
        self.roads_ahead: RoadNetwork | None = None
        self.values = _on(stream.values, self.device)
        self.observed = _on(stream.observed, self.device)
        self.clock = _on(stream.wall_clock, self.device)
        views.pin(stream.networks)
        self.days = views.past_days(stream)
        self._recent = views.recent_days(self.days)

    @property
    def topologies(self) -> tuple[Topology, ...]:
        """Those of the stream's networks, in its order."""
        return tuple(self.views.view(network).topology for network in self.stream.networks)

    def thinned(self, thinning: Thinning, *, masked: bool) -> Windows:
        """The same windows with only some of their past snapshots; the others are left out, or have no readings."""
        other = copy.copy(self)
        other.thinning = thinning
        other.masked = masked
        return other

    def edited(self, roads_ahead: RoadNetwork) -> Windows:
        """The same windows with other roads ahead."""
        other = copy.copy(self)
        other.roads_ahead = roads_ahead
        return other

    def batch(
        self,
        current: Ints,
        *,
        past: int,
        horizon: int,
        inputs: Tensor,
        hidden: Tensor | None = None,
        demand: Tensor | None = None,
        edit: Edit | None = None,
        one_of: NDArray[np.float64] | None = None,
    ) -> Batch:
        """The windows whose last past snapshot is `current`. No targets if any horizon runs past the stream's end.

        Parameters
        ----------
        current
            [B] index of each window's last past snapshot.
        past, horizon
            Number of snapshots to read and to forecast.
        inputs
            [N] bool, the nodes whose readings are used.
        hidden
            [B,N] bool, input nodes to hide in each window (default: none).
        demand
            [B] index of each window's demand (default: the last one). It must not be calibrated with hidden sensors.
        edit
            Changes the networks ahead, for a what-if. Default: the roads as recorded.
        one_of
            [B] draws from [0, 1): keep one row of each window whose roads change ahead, each as likely as it has steps.
            Default: all rows.
        """
        last = np.asarray(current, np.int64)
        before = torch.from_numpy(last[:, None] + np.arange(1 - past, 1))
        after = last[:, None] + np.arange(1, horizon + 1)
        kept = None if self.thinning is None else self.thinning(len(last), past)
        if kept is not None and not self.masked:
            before = before.gather(1, kept)
            kept = None
        networks, ahead_on = self._ahead(after, edit)
        roads = roads_of_windows(self.stream.network_of[before.numpy()], ahead_on)
        if one_of is not None:
            roads = _one_row_each(roads, one_of)
        window_of = torch.from_numpy(roads.window_of)
        before = before.to(self.device)
        clock = torch.cat([self.clock[before], self._clock_at(after)], dim=1)
        rows: Tensor | slice = slice(None)
        if len(window_of) > len(last):
            rows = window_of.to(self.device)
        observed = self.observed[before] & (inputs if hidden is None else inputs & ~hidden[:, None])
        if kept is not None:
            readable = torch.zeros(observed.shape[:2], dtype=torch.bool).scatter(1, kept, True)
            observed = observed & readable.to(self.device)[:, :, None]
        values = self.values[before].where(observed, 0.0)
        which = None if demand is None else demand[rows]
        layout = Layout.of(roads, networks, self.views)
        asked = self._recent_factor(np.concatenate([before.cpu().numpy(), after], axis=1), past, horizon)
        recent = layout.now_usual(asked, demand)
        of_rows = None if recent is None else recent[rows]
        batch = layout.batch(values[rows], observed[rows], clock[rows], which, of_rows)
        if len(last) and int(last.max()) + horizon >= len(self.values):
            return batch
        there = torch.from_numpy(after).to(self.device)
        target = self.values[there][rows]
        known = self.observed[there][rows]
        if batch.holds is not None:
            known = known & batch.holds[:, :, None]
        return replace(batch, target=target, target_observed=known)

    def networks_ahead(self, current: int, horizon: int, edit: Edit | None = None) -> list[RoadNetwork]:
        """[H] the network at each step after a snapshot."""
        networks, on = self._ahead(np.array([current])[:, None] + np.arange(1, horizon + 1), edit)
        return [networks[k] for k in on[0].tolist()]

    def _ahead(self, after: Ints, edit: Edit | None) -> tuple[list[RoadNetwork], Ints]:
        """All networks, the stream's own first; and which of them holds at these snapshots [B,H]."""
        networks = list(self.stream.networks)
        on = self.stream.network_at(after)
        if edit is None and self.roads_ahead is None:
            return networks, on
        row_of = {network.fingerprint: row for row, network in reversed(list(enumerate(networks)))}
        snapshots, place = np.unique(after, return_inverse=True)
        edited = np.zeros(len(snapshots), np.int64)
        begin_s = self._begin_s(snapshots)
        for i, k in enumerate(self.stream.network_at(snapshots).tolist()):
            network = self.stream.networks[k] if self.roads_ahead is None else self.roads_ahead
            network = network if edit is None else edit(network, int(begin_s[i]))
            row = row_of.setdefault(network.fingerprint, len(networks))
            networks[row:] = [network, *networks[row + 1 :]]  # it may have other names
            edited[i] = row
        return networks, edited[place.reshape(after.shape)]

    def _begin_s(self, snapshots: Ints) -> Ints:
        """When these snapshots begin, also beyond the record."""
        if not len(snapshots):
            return snapshots
        first = int(snapshots[0])
        times_s: Ints = self.stream.steps.times_s(first, int(snapshots[-1]) + 1)[snapshots - first]
        return times_s

    def _recent_factor(self, snapshots: Ints, past: int, horizon: int) -> RecentFactor | None:
        """Of the snapshots [B,S] of windows, those ahead last; None if nothing is known of the days before."""
        if self._recent is None:
            return None
        local_s = self._local_s(snapshots)
        last = snapshots.shape[1] - horizon
        return self._recent.asked(local_s, local_s[:, last - 1 : last], reach_s=(past - 1) * self.stream.step_s)

    def _clock_at(self, after: Ints) -> Tensor:
        """[B,H,3] the local time at the start of these snapshots, also beyond the record."""
        if not after.size or int(after.max()) < len(self.clock):
            return self.clock[torch.from_numpy(after).to(self.device)]
        return _on(wall_clock(self._local_s(after)), self.device)

    def _local_s(self, snapshots: Ints) -> Ints:
        """The local time at the start of these snapshots, also beyond the record."""
        stream = self.stream
        S = stream.num_snapshots
        first = int(snapshots.min(initial=S))
        stop = int(snapshots.max(initial=first)) + 1
        offset_s = stream.utc_offset_s[first:stop]  # the record needs no time-zone database
        times_s = stream.steps.times_s(first, stop)
        if stop > S:
            offset_s = np.concatenate([offset_s, utc_offsets_s(times_s[len(offset_s) :], stream.timezone)])
        local_s: Ints = (times_s + offset_s)[snapshots - first]
        return local_s


def _one_row_each(roads: RoadsOfWindows, draws: NDArray[np.float64]) -> RoadsOfWindows:
    if roads.holds.all():
        return roads
    until = np.cumsum(roads.holds.sum(1)).astype(np.float64)
    first = np.searchsorted(roads.window_of, np.arange(len(draws)))
    before = np.concatenate([[0.0], until])[first]
    total = roads.holds.shape[1]
    row = np.searchsorted(until, before + draws * total, side="right")
    return RoadsOfWindows(
        roads.window_of[row], roads.ahead_on[row], roads.measured_on[row], roads.encoded_on[row], roads.holds[row]
    )


def _on(array: NDArray[np.generic], device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.tensor(array, device=device)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
