"""Changes to the roads ahead, each from a time until another: what a what-if asks, and what works are planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import local_iso
from frigate.city.network import Road, RoadNetwork
from frigate.city.periods import When, time_from
from frigate.errors import CityError, SettingsError
from frigate.forecasting.edits import Roads, about_closed, edit_network, listed

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RoadChange:
    """Roads that are closed or added, from a time until another.

    Parameters
    ----------
    close, add
        As in `frigate.forecast`.
    begin, end
        When it begins and ends: ISO-8601, "08:00" (the first from the forecast's time, or from `begin`, on), "tomorrow
        08:00" or "monday 08:00". It holds in the steps that begin in between. Default: in all steps.
    """

    close: Sequence[str | Road] = ()
    add: Sequence[str | Road] = ()
    begin: When | None = None
    end: When | None = None


@dataclass(frozen=True)
class _Dated:
    change: RoadChange
    from_s: float
    until_s: float

    def holds(self, begin_s: Ints) -> NDArray[np.bool_]:
        return np.asarray((self.from_s <= begin_s) & (begin_s < self.until_s))


@dataclass(frozen=True)
class RoadPlan:
    """Changes to the roads ahead, with their times."""

    changes: tuple[_Dated, ...]
    timezone: str
    notices: tuple[str, ...]

    @classmethod
    def of(cls, changes: Sequence[RoadChange], *, now_s: int, timezone: str) -> RoadPlan:
        """`now_s`: when the forecast is made, for times of day."""
        dated = []
        notices = []
        for change in changes:
            if not len(change.close) and not len(change.add):
                if change.begin is not None or change.end is not None:
                    raise SettingsError("a change has a begin or an end, but closes and adds no road. Name one")
                continue
            from_s = -np.inf
            until_s = np.inf
            if change.begin is not None:
                from_s, told = time_from(change.begin, timezone, now_s=now_s, where="begin")
                notices += told
            if change.end is not None:
                after_s = now_s if change.begin is None else int(from_s)
                until_s, told = time_from(change.end, timezone, now_s=after_s, where="end")
                notices += told
            if until_s <= from_s:
                raise SettingsError(
                    f"end {local_iso(int(until_s), timezone)}: it must be after begin, "
                    f"{local_iso(int(from_s), timezone)}"
                )
            dated.append(_Dated(change, from_s, until_s))
        return cls(tuple(dated), timezone, tuple(notices))

    def __bool__(self) -> bool:
        return bool(self.changes)

    def roads(self, planned: Sequence[RoadNetwork], begin_s: Ints) -> list[RoadNetwork]:
        """[H] the networks with the changes; each change must change at least one.

        A network that has one of them already is left so.

        Parameters
        ----------
        planned
            [H] the network of each step without them.
        begin_s
            [H] when each step begins.
        """
        holds = np.array([dated.holds(begin_s) for dated in self.changes]).reshape(len(self.changes), len(planned))
        self._refuse_outside(holds, begin_s)
        refused: dict[tuple[int, int], list[CityError | None]] = {}
        made: dict[tuple[str, bytes], RoadNetwork] = {}
        found = []
        for step, network in enumerate(planned):
            key = network.fingerprint, holds[:, step].tobytes()
            if key not in made:
                made[key] = self._edited(network, holds[:, step], refused)
            found.append(made[key])
        for errors in refused.values():
            if errors[0] is not None and None not in errors:
                raise errors[0]
        return found

    def _edited(
        self, network: RoadNetwork, holds: NDArray[np.bool_], refused: dict[tuple[int, int], list[CityError | None]]
    ) -> RoadNetwork:
        for k in np.flatnonzero(holds).tolist():
            for i, edit in enumerate(_single_edits(self.changes[k].change)):
                error = None
                try:
                    network = edit_network(network, **edit)
                except CityError as failed:
                    error = failed
                refused.setdefault((k, i), []).append(error)
        return network

    def _refuse_outside(self, holds: NDArray[np.bool_], begin_s: Ints) -> None:
        for dated, steps in zip(self.changes, holds, strict=True):
            if not steps.any():
                first, last = (local_iso(int(time_s), self.timezone) for time_s in begin_s[[0, -1]])
                times = [
                    f"{word} {local_iso(int(time_s), self.timezone)}"
                    for word, time_s in (("from", dated.from_s), ("until", dated.until_s))
                    if np.isfinite(time_s)
                ]
                raise SettingsError(
                    f"a change of roads {' '.join(times)}: none of the steps ahead begins then. The first begins at "
                    f"{first}, the last at {last}. Forecast at another time, or more steps"
                )

    def about(self, planned: Sequence[RoadNetwork], begin_s: Ints) -> list[str]:
        """Notices about whole nodes and streets that are closed; parameters as in `roads`."""
        notices = []
        for dated in self.changes:
            first = int(dated.holds(begin_s).argmax())
            notices += about_closed(planned[first], dated.change.close)
        return notices


def _single_edits(change: RoadChange) -> Iterator[dict[str, Roads]]:
    for road in listed(change.close):
        yield {"close": [road]}
    for road in listed(change.add):
        yield {"add": [road]}
