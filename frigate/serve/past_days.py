"""What the sensors of a served city counted in the days before a window, from the store; before that, from the record.

Only the slots that a forecast asks are read, and only those whose readings have changed are read again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import DAY_S, utc_offsets_s
from frigate.city.network import shut_nodes
from frigate.city.timeline import Timeline
from frigate.demand.recent_days import DAYS, KEPT_DAYS, PastDays
from frigate.serve.city import ServedCity
from frigate.serve.store import PERIOD_US, Store

Slot = tuple[tuple[int, ...], NDArray[np.float32], NDArray[np.float32]]  # stamp, counted [V] and read [V]


class StoredDays:
    """The past days of a store. Not thread-safe.

    Parameters
    ----------
    city, store
        The served city and its readings.
    sensors
        [V] rows of the sensors.
    roads
        Returns the roads of snapshots that begin in [first, stop), seconds since 1970 UTC.
    """

    def __init__(
        self,
        city: ServedCity,
        store: Store,
        sensors: NDArray[np.int64],
        roads: Callable[[int, int], Timeline],
    ) -> None:
        self._city, self._store, self._roads = city, store, roads
        self._record = city.past_days(sensors)
        self._slots: dict[int, Slot] = {}
        self._made: tuple[tuple[int, ...], PastDays] | None = None  # and the slots that it is made of

    def before(self, begin_s: int, times_s: NDArray[np.int64]) -> PastDays:
        """The days before a window that begins at `begin_s`, as its snapshots and those ahead ask them."""
        record = self._record
        if record.slot_s is None or not len(record.sensors):
            return record
        city = self._city
        count = (DAYS + 1) * DAY_S // city.step_s
        earlier_s = city.boundaries(begin_s, -count, 1)
        slots = record.slots_of(earlier_s + utc_offsets_s(earlier_s, city.timezone))
        asked = record.asked_by(times_s + utc_offsets_s(times_s, city.timezone))
        wanted = asked[(asked >= slots[0]) & (asked < slots[-1])]
        changes = self._store.reading_changes(int(earlier_s[0]) * 1_000_000, begin_s * 1_000_000)
        first = int(slots[-1]) - KEPT_DAYS * DAY_S // record.slot_s
        known = {}
        fresh = False
        for slot in wanted.tolist() if changes else []:
            row = np.flatnonzero(slots[:-1] == slot)
            if not len(row):
                continue
            begin, end = int(earlier_s[row[0]]), int(earlier_s[row[-1] + 1])
            periods = range(begin * 1_000_000 // PERIOD_US, (end * 1_000_000 - 1) // PERIOD_US + 1)
            stamp = tuple(changes.get(period, 0) for period in periods)
            if not any(stamp):
                continue
            if self._slots.get(slot, ((),))[0] != stamp:
                self._slots[slot] = (stamp, *self._read(earlier_s[row[0] : row[-1] + 2]))
                fresh = True
            known[slot] = self._slots[slot]
        self._slots = {slot: kept for slot, kept in self._slots.items() if slot >= first}
        key = (first, *known)
        if fresh or self._made is None or self._made[0] != key:
            days = record.of_slots(first, int(slots[-1]))
            for slot, (_, counted, read) in known.items():
                row = slot - first
                days.counted[row] = np.where(read > 0, counted, days.counted[row])
                days.read[row] = np.where(read > 0, read, days.read[row])
            self._made = key, days
        return self._made[1]

    def _read(self, times_s: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Counted [V] and read [V] in the snapshots that begin at all but the last of these times."""
        city = self._city
        roads = self._roads(int(times_s[0]), int(times_s[-1]))
        sensors = self._record.sensors
        counted, read = np.zeros((2, len(sensors)), np.float32)
        for begin_s, end_s in zip(times_s[:-1].tolist(), times_s[1:].tolist(), strict=True):
            snapshot = city.snapshot(begin_s, self._store.reading_parts(begin_s * 1_000_000, end_s * 1_000_000))
            there = (np.isfinite(snapshot) & ~shut_nodes(city.network, roads.network_at(begin_s)))[sensors]
            counted += np.where(there, snapshot[sensors], 0)
            read += there
        return counted, read
