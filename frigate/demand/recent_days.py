"""What each sensor counted in the last four weeks, against what is usual: seasons, holidays, works, a closed bridge.

Usual counts are means over a record of months. The same hour of the days before tells more of today: those of the same
kind, weekday or weekend, the later the more, and above all those of the same day of the week. A few noisy counts say
little, so they count beside some days and some vehicles as usual.

Only days that were over when a window began are asked, so that a window and its days never share a reading. What is
asked of a snapshot of the past does not depend on the window that it is in.

A day is divided into slots of a quarter of an hour, or of a step if that is longer, numbered by the wall clock from
1970-01-01 00:00. A slot is compared together with those around it, more than an hour in all. Usual counts are known by
the hour and interpolated, so that this also tells how steep the day is. Q slots, V sensors, N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.calendar import DAY_S, HOUR_S, KIND, QUARTER_S, between_bins, wall_clock, week_parts
from frigate.city.network import RoadNetwork, shut_nodes
from frigate.city.stream import RoadNetworkStream

DAYS = 28  # that are asked
KEPT_DAYS = DAYS + 4  # of a live record: a window and the hours ahead of it may be as long as some days
FADES_DAYS = 10.0  # after which a day counts a third
SAME_WEEKDAY = 3.0  # how much more a day counts that is of the same day of the week
DAYS_AS_USUAL = 3.0
VEHICLES_AS_USUAL = 64.0
MAX_FACTOR = 8.0
CHUNK = 4096  # snapshots at a time
MONDAY_S = 4 * DAY_S  # 1970-01-05 00:00

Ints = NDArray[np.int64]
Floats = NDArray[np.floating]


def slot_length_s(step_s: int) -> int | None:
    """How long the slots of a city are; None if no snapshot comes again at the same time of the next day."""
    whole_s = step_s * max(1, -(-QUARTER_S // step_s))
    if DAY_S % whole_s == 0:
        return whole_s
    return HOUR_S if step_s <= HOUR_S else None


@dataclass(frozen=True)
class PastDays:
    """What sensors counted in each slot. Arrays are never modified."""

    step_s: int
    slot_s: int | None  # None: no day is like another, and nothing is kept
    sensors: Ints  # [V] rows of nodes
    first: int  # number of the first slot
    counted: NDArray[np.float32]  # [Q,V]
    read: NDArray[np.float32]  # [Q,V] how many snapshots of each slot were read

    @classmethod
    def none(cls, step_s: int, sensors: Ints) -> PastDays:
        nothing = np.zeros((0, len(sensors)), np.float32)
        return cls(step_s, slot_length_s(step_s), sensors, 0, nothing, nothing)

    @classmethod
    def of(cls, stream: RoadNetworkStream, sensors: Ints, usual: RoadNetwork) -> PastDays:
        """Those of a record, without readings of nodes that were shut, against the usual roads."""
        days = cls.none(stream.step_s, sensors)
        slots = days.slots_of(stream.times_s + stream.utc_offset_s)
        if not len(slots) or not len(sensors):
            return days
        first = int(slots.min())
        counted, read = np.zeros((2, int(slots.max()) + 1 - first, len(sensors)), np.float32)
        for begin in range(0, len(slots), CHUNK):
            some = slice(begin, min(begin + CHUNK, len(slots)))
            there = open_readings(stream, usual, some.start, some.stop)[:, sensors]
            _add(counted, read, slots[some] - first, stream.values[some][:, sensors], there)
        return replace(days, first=first, counted=counted, read=read)

    def asked_by(self, local_s: Ints) -> Ints:
        """The slots that a window with these snapshots, and those ahead, may ask."""
        if self.slot_s is None:
            return np.zeros(0, np.int64)
        around = HOUR_S // (2 * self.slot_s) + 1
        today = np.unique(self.slots_of(local_s)[:, None] + np.arange(-around, around + 1))
        return np.unique(today[:, None] - DAY_S // self.slot_s * np.arange(1, DAYS + 1))

    def slots_of(self, local_s: Ints) -> Ints:
        """The slots that snapshots are in, by their midpoints; none if nothing is kept."""
        if self.slot_s is None:
            return np.zeros(0, np.int64)
        return (local_s + min(self.step_s, HOUR_S) // 2) // self.slot_s

    def at(self, sensors: Ints) -> PastDays:
        """Those of some sensors, in this order; nothing of sensors that it does not have."""
        column = np.searchsorted(self.sensors, sensors).clip(max=max(len(self.sensors) - 1, 0))
        known = self.sensors[column] == sensors if len(self.sensors) else np.zeros(len(sensors), bool)
        counted, read = np.zeros((2, len(self.counted), len(sensors)), np.float32)
        counted[:, known], read[:, known] = self.counted[:, column[known]], self.read[:, column[known]]
        return replace(self, sensors=sensors, counted=counted, read=read)

    def of_slots(self, first: int, stop: int) -> PastDays:
        """Those of slots [first, stop), with nothing where nothing is known."""
        counted, read = np.zeros((2, stop - first, len(self.sensors)), np.float32)
        some = slice(max(first, self.first), min(stop, self.stop))
        if some.start < some.stop:
            from_here, to_there = (slice(some.start - k, some.stop - k) for k in (self.first, first))
            counted[to_there], read[to_there] = self.counted[from_here], self.read[from_here]
        return replace(self, first=first, counted=counted, read=read)

    def adding(self, local_s: Ints, values: Floats, observed: NDArray[np.bool_]) -> PastDays:
        """With more snapshots [S,V], and without the slots that are too old to be asked after them."""
        slots = self.slots_of(local_s)
        if self.slot_s is None or not len(slots):
            return self
        newest = max(int(slots.max()), self.stop - 1)
        oldest = newest - KEPT_DAYS * DAY_S // self.slot_s
        first = max(oldest, min(int(slots.min()), self.first if len(self.counted) else newest))
        days = self.of_slots(first, newest + 1)
        young = slots >= first
        _add(days.counted, days.read, slots[young] - first, values[young], observed[young])
        return days

    @property
    def stop(self) -> int:
        """The number of the slot after the last one."""
        return self.first + len(self.counted)


def open_readings(stream: RoadNetworkStream, usual: RoadNetwork, first: int, stop: int) -> NDArray[np.bool_]:
    """[S,N] the readings of snapshots [first, stop) of nodes that were not shut, against the usual roads."""
    observed = stream.observed[first:stop]
    if all(network is usual for network in stream.networks):
        return observed
    shut = np.stack([shut_nodes(usual, network) for network in stream.networks])
    return observed & ~shut[stream.network_of[first:stop]] if shut.any() else observed


def _add(
    counted: NDArray[np.float32], read: NDArray[np.float32], row: Ints, values: Floats, there: NDArray[np.bool_]
) -> None:
    np.add.at(counted, row, np.where(there, values, 0))
    np.add.at(read, row, there)


@dataclass(frozen=True)
class RecentFactor:
    """What is usual now over what is usual, at the sensors: of U slots, and between which of them each snapshot is."""

    slots: Tensor  # [U,N] 1 where nothing is known
    between: Ints  # [2,B,S]
    share: Floats  # [B,S] of the second

    def at(self, slots: Tensor, between: Ints) -> Tensor:
        """[B,S,N] the factor of each snapshot, from that of each slot [U',N]."""
        low, high = torch.from_numpy(between).to(slots.device)
        return torch.lerp(slots[low], slots[high], torch.from_numpy(self.share[..., None]).to(slots))


@dataclass(frozen=True)
class RecentDays:
    """Past days beside the usual counts, on one device."""

    step_s: int
    slot_s: int
    first: int
    around: int  # slots before and after that a slot is compared with
    num_nodes: int
    sensors: Tensor  # [V]
    counted: Tensor  # [Q,V] around each slot, where a usual count is known
    expected: Tensor  # [Q,V] the usual count of the same snapshots
    usual: Tensor  # [P,V] the usual count around each slot of the week; 0 where unknown

    @classmethod
    def of(
        cls, days: PastDays, usual_counts: Floats, usual_week: Floats | None, device: torch.device | str = "cpu"
    ) -> RecentDays | None:
        """`usual_counts` [K,N] by kind of day and hour, and `usual_week` [W,N], NaN where unknown.

        None if no day is like another, or nothing was read.
        """
        if days.slot_s is None or not len(days.counted):
            return None
        around = HOUR_S // (2 * days.slot_s)
        usual = np.nan_to_num(_usual_slots(days, usual_counts, usual_week), nan=0.0)
        of_slot = usual[(np.arange(days.first, days.stop) - MONDAY_S // days.slot_s) % len(usual)]
        counted = _around(np.where(of_slot > 0, days.counted, 0), around)
        expected = _around(days.read * of_slot, around)
        whole = max(1, days.slot_s // days.step_s)
        cycle = _around(np.concatenate([usual[len(usual) - around :], usual, usual[:around]]), around)
        a_week = whole * cycle[around : around + len(usual)]
        tensors = (torch.from_numpy(x.astype(np.float32)).to(device) for x in (counted, expected, a_week))
        sensors = torch.from_numpy(days.sensors).to(device)
        return cls(days.step_s, days.slot_s, days.first, around, usual_counts.shape[1], sensors, *tensors)

    def asked(self, local_s: Ints, current_s: Ints, *, reach_s: int) -> RecentFactor:
        """What is usual now at the snapshots of B windows, over what is usual.

        Parameters
        ----------
        local_s
            [B,S] the local time at which each snapshot begins.
        current_s
            [B,1] the same of each window's last snapshot.
        reach_s
            How long before that the first one of a window begins.
        """
        begin_s = np.minimum(local_s, current_s) - reach_s
        low, high, share = self._between(local_s)
        asked = np.stack([low, high])  # [2,B,S]
        over = begin_s // self.slot_s - self.around - 1  # the last slot that may be asked
        after = np.maximum(1, -((over - asked) // self._a_day))
        pairs, which = np.unique(np.stack([asked.ravel(), after.ravel()]), axis=1, return_inverse=True)
        each = self._of_slots(pairs[0], pairs[1])  # [U,V]
        factor = each.new_ones(len(each), self.num_nodes)
        factor[:, self.sensors] = each
        return RecentFactor(factor, which.reshape(asked.shape), share)

    def _between(self, local_s: Ints) -> tuple[Ints, Ints, Floats]:
        """The slots whose midpoints bracket the midpoint of each snapshot, and the weight of the second."""
        if self.step_s >= self.slot_s:
            slots = (local_s + min(self.step_s, HOUR_S) // 2) // self.slot_s
            return slots, slots, np.zeros(local_s.shape)
        low, rest_s = np.divmod(local_s + self.step_s // 2 - self.slot_s // 2, self.slot_s)
        return low, low + (rest_s > 0), rest_s / self.slot_s

    def _of_slots(self, slots: Ints, after: Ints) -> Tensor:
        """[U,V] the factor of each slot, from days that are at least `after` [U] days before."""
        usual = self.usual[torch.from_numpy((slots - MONDAY_S // self.slot_s) % len(self.usual)).to(self.usual.device)]
        counted = torch.zeros_like(usual)
        expected = torch.zeros_like(usual)
        kind = wall_clock(slots // self._a_day * DAY_S)[:, KIND]
        for day in range(int(after.min(initial=DAYS)), DAYS + 1):
            before = slots - day * self._a_day
            row = before - self.first
            asked = (day >= after) & (row >= 0) & (row < len(self.counted))
            asked &= wall_clock(before // self._a_day * DAY_S)[:, KIND] == kind
            weight = np.exp(-day / FADES_DAYS) * (SAME_WEEKDAY if day % 7 == 0 else 1.0)
            some = torch.from_numpy(np.flatnonzero(asked)).to(usual.device)
            rows = torch.from_numpy(row[asked]).to(usual.device)
            counted.index_add_(0, some, weight * self.counted[rows])
            expected.index_add_(0, some, weight * self.expected[rows])
        as_usual = DAYS_AS_USUAL * usual + VEHICLES_AS_USUAL
        return ((counted + as_usual) / (expected + as_usual)).clamp(max=MAX_FACTOR)

    @property
    def _a_day(self) -> int:
        return DAY_S // self.slot_s


def _around(slots: Floats, around: int) -> Floats:
    """[Q,V] the sum of each slot and those around it."""
    whole = np.concatenate([np.zeros((1, slots.shape[1])), np.cumsum(slots, axis=0, dtype=np.float64)])
    Q = len(slots)
    last = np.minimum(np.arange(Q) + around + 1, Q)
    summed: Floats = whole[last] - whole[np.maximum(np.arange(Q) - around, 0)]
    return summed


def _usual_slots(days: PastDays, usual_counts: Floats, usual_week: Floats | None) -> Floats:
    """[P,V] the usual count of a snapshot in each slot of a week that begins on Monday."""
    assert days.slot_s is not None
    starts_s = MONDAY_S + days.slot_s * np.arange(7 * DAY_S // days.slot_s)
    each = range(0, days.slot_s, min(days.step_s, days.slot_s))
    of_slots: Floats = np.mean([_usual_at(wall_clock(starts_s + s), days, usual_counts, usual_week) for s in each], 0)
    return of_slots


def _usual_at(clock: Ints, days: PastDays, usual_counts: Floats, usual_week: Floats | None) -> Floats:
    """[P,V] the usual counts of snapshots at these local times [P,3], as `DemandTables.follow` has them."""
    low, high, share = between_bins(clock, days.step_s)
    table = usual_counts[:, days.sensors]
    usual: Floats = table[low] + share[:, None] * np.where(share[:, None] > 0, table[high] - table[low], 0)
    if usual_week is None:
        return usual
    factor: Floats = np.nan_to_num(usual_week[week_parts(clock, days.step_s)][:, days.sensors], nan=1.0)
    return usual * factor
