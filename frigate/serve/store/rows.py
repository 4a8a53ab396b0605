"""What is in the store, and how its parts ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import utc_iso
from frigate.city.timeline import ClosedRoads
from frigate.errors import ServiceError

LAST_S = 7_258_118_400  # the year 2200; later times are refused where they enter

ReadingPart = tuple[list[str], NDArray[np.int64], NDArray[np.float64]]  # nodes, times and values


class StoreGoneError(ServiceError):
    """The store cannot be reached, read or written at the moment."""


class Reading(NamedTuple):
    """A measurement of a sensor."""

    node: str
    time_us: int
    value: float


class SensorFacts(NamedTuple):
    """Summary of a node's readings."""

    node: str
    last_us: int
    last_value: float
    readings: int
    lately: int  # readings in the recent past, to which least and most refer too
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Closure:
    """A one-way road, closed from `begin_s` up to `end_s`; None: until reopened."""

    id: str
    source: str
    target: str
    begin_s: int
    end_s: int | None
    created_s: int

    @property
    def closed_roads(self) -> ClosedRoads:
        return ClosedRoads(((self.source, self.target),), self.begin_s, self.end_s)

    @property
    def told(self) -> str:
        """In words, for the audit trail."""
        until = "" if self.end_s is None else f" until {utc_iso(self.end_s)}"
        return f"from {self.source} to {self.target}, {utc_iso(self.begin_s)}{until}"

    def active(self, time_s: float) -> bool:
        """Whether the road is closed at a time, and so in a snapshot or step that begins then."""
        return self.closed_roads.hold(time_s)


@dataclass(frozen=True)
class Token:
    """An access token. The secret itself is not stored."""

    id: str
    name: str
    role: str
    hash: bytes
    created_s: int
    revoked_s: int | None
    expires_s: int | None = None
    sensors: tuple[str, ...] = ()  # that it may send readings of; none: all
    per_minute: int | None = None  # readings that it may send

    def valid(self, now_s: float) -> bool:
        return self.revoked_s is None and (self.expires_s is None or now_s < self.expires_s)


@dataclass(frozen=True)
class LeaseState:
    """What the store says of the clock's lease."""

    term: int  # how often it has been taken
    beats: int  # of its holder, in this term
    holder: str  # "": nobody


class Actor(NamedTuple):
    """Who does something, for the audit trail."""

    token: str  # its id; "" for who has none
    name: str  # of the token, or of the user
    role: str
    client: str  # the address that they do it from


class AuditEntry(NamedTuple):
    """What somebody did."""

    id: str  # sorts by time
    time_s: float
    token: str
    name: str
    role: str
    client: str
    action: str
    subject: str
    number: int  # of what was done


class Delivery(NamedTuple):
    """A batch of readings that somebody sent."""

    by: Actor
    rows: int  # that are to be stored
    refused: int


class Sql(Protocol):
    """An open transaction. `?` in the text is a placeholder for a value."""

    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]: ...
    def run(self, text: str, *values: object) -> int: ...  # number of rows changed
    def known(self, readings: Iterable[Reading]) -> dict[tuple[str, int], float]: ...
    def put(self, readings: Sequence[Reading], received_s: float, *, table: str = "readings") -> None: ...
    def lock(self) -> None: ...  # excludes other transactions that lock, until this one ends
