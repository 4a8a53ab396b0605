"""Which roads hold when: a network, and the changes to it.

There is one rule: a snapshot, and a step ahead, has the roads that are open when it begins. So a change holds from the
first of them that begins at its time or later, and a closure until the last that begins before its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import Road, RoadNetwork

Ints = NDArray[np.int64]


def changes_begun(change_s: Ints, begin_s: Ints | float) -> Ints:
    """How many of these changes, in time order, hold in snapshots or steps that begin then."""
    begun: Ints = np.searchsorted(change_s, begin_s, side="right")
    return begun


@dataclass(frozen=True)
class ClosedRoads:
    """One-way roads that are closed from `from_s` until `until_s`; None: for good."""

    roads: tuple[Road, ...]
    from_s: int
    until_s: int | None = None

    def hold(self, begin_s: float) -> bool:
        """Whether they are closed in a snapshot or step that begins then."""
        return self.from_s <= begin_s and (self.until_s is None or begin_s < self.until_s)


@dataclass(frozen=True)
class Timeline:
    """A network over time."""

    networks: tuple[RoadNetwork, ...]  # [C+1] before any change, and after each of C
    change_s: Ints  # [C] times of the changes in seconds since 1970 UTC, in order

    @classmethod
    def of(cls, network: RoadNetwork, *changes: tuple[int, RoadNetwork]) -> Timeline:
        """This network, and the networks that follow it, each from a time on."""
        return cls((network, *(each for _, each in changes)), np.array([time_s for time_s, _ in changes], np.int64))

    @classmethod
    def closing(
        cls, network: RoadNetwork, closures: Iterable[ClosedRoads], *, span_s: tuple[int, int] | None = None
    ) -> Timeline:
        """A network in which roads close and open again.

        Parameters
        ----------
        network
            With all roads open. Closed roads that it does not have are left out.
        closures
            Several may close one road.
        span_s
            Only what snapshots and steps that begin in [first, stop) need. Default: all changes.
        """
        closures = list(closures)
        turns = {time_s for each in closures for time_s in (each.from_s, each.until_s) if time_s is not None}
        if span_s is not None:
            first_s, stop_s = span_s
            turns = {max(first_s, time_s) for time_s in turns if time_s < stop_s}
        without: dict[frozenset[Road], RoadNetwork] = {frozenset(): network}  # what is open again is the same network

        def at(time_s: int) -> RoadNetwork:
            shut = frozenset(road for each in closures if each.hold(time_s) for road in each.roads)
            if shut not in without:
                without[shut] = network.close(shut, missing_ok=True)
            return without[shut]

        return cls.of(network, *((time_s, at(time_s)) for time_s in sorted(turns)))

    def network_at(self, begin_s: float) -> RoadNetwork:
        """The network of a snapshot or step that begins then."""
        return self.networks[int(changes_begun(self.change_s, begin_s))]

    def changed(self, since_s: int, network: RoadNetwork) -> Timeline:
        """The timeline with another network from a time on; later changes are dropped."""
        kept = int(np.searchsorted(self.change_s, since_s, side="left"))
        return Timeline((*self.networks[: kept + 1], network), np.append(self.change_s[:kept], since_s))

    def since(self, begin_s: int) -> Timeline:
        """The part that holds in snapshots and steps that begin then or later."""
        begun = int(changes_begun(self.change_s, begin_s))
        return Timeline(self.networks[begun:], self.change_s[begun:])

    def course(self, begin_s: Ints) -> tuple[list[RoadNetwork], Ints, list[tuple[int, int]]]:
        """The distinct networks, which of them each snapshot has, and the changes after the last one begins.

        `begin_s` is when each snapshot begins. A change after the last one is (its time, index of a network).
        """
        state = changes_begun(self.change_s, begin_s)
        last = int(state[-1]) if len(state) else 0
        ahead = range(last + 1, len(self.networks))
        distinct: list[RoadNetwork] = []
        index_of: dict[str, int] = {}
        of_state = np.zeros(len(self.networks), np.int64)
        for i in np.unique([*state.tolist(), last, *ahead]).tolist():
            network = self.networks[i]
            if network.fingerprint not in index_of:  # closing and reopening a road gives the same network again
                index_of[network.fingerprint] = len(distinct)
                distinct.append(network)
            of_state[i] = index_of[network.fingerprint]
        later = {int(self.change_s[i - 1]): int(of_state[i]) for i in ahead}  # of several at one time, the last
        return distinct, of_state[state], list(later.items())
