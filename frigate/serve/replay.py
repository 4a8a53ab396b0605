"""Sends a stored city to a service as if it were live, at any speed.

The service takes its time from the replay (`frigate serve RUN --replay`): after sending a snapshot's readings, the
replay tells the service that the snapshot has ended. So the service never runs ahead of its readings, whatever the
speed, and either side may be interrupted for any length of time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from frigate.calendar import utc_iso
from frigate.city.network import RoadNetwork
from frigate.city.periods import parse_moment, snapshots_in
from frigate.city.stream import RoadNetworkStream
from frigate.errors import ServiceError, SettingsError
from frigate.progress import print_line
from frigate.serve.client import ServiceClient, ServiceGoneError

BATCH_ROWS = 5_000
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts
Road = tuple[str, str]


@dataclass(frozen=True)
class Sent:
    """A snapshot that has been sent."""

    snapshot: int
    time_s: int  # the service's time after it: the end of the snapshot
    readings: int
    refused: int


class Replay:
    """Sends the snapshots of a stream to a service.

    Parameters
    ----------
    stream
        The readings and the road closures.
    service
        Where to send them.
    speed
        1 is real time; 60 is an hour in a minute.
    say
        Called with a message when the service stops or resumes responding.
    clock, wait
        A monotonic clock in seconds, and a function that sleeps.
    """

    def __init__(
        self,
        stream: RoadNetworkStream,
        service: ServiceClient,
        *,
        speed: float = 1.0,
        say: Callable[[str], None] = print_line,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], Any] = time.sleep,
    ) -> None:
        if not 0 < speed < float("inf"):
            raise SettingsError(f"--speed {speed:g}: give a number above 0, such as 60 for an hour in a minute")
        self._stream = stream
        self._service = service
        self._speed = speed
        self._say = say
        self._clock = clock
        self._wait = wait
        self._names = [str(node_id) for node_id in stream.node_ids.tolist()]
        self._closed: dict[Road, str] = {}  # by road: id of the closure that this replay created
        self._roads = _roads(stream.networks, self._names)
        (self._usual,) = _roads([stream.usual_network()], self._names)

    def run(self, first: int, stop: int) -> Iterator[Sent]:
        """Send the snapshots [first, stop), each when it ends, after the readings that the first forecast needs."""
        status = self._send("GET", "/v1/time")
        if not status["replay"]:
            raise ServiceError(
                f"{self._service.url} runs in real time. Start it with `frigate serve RUN --replay`, on its own store"
            )
        for snapshot in range(max(0, first - int(status["past_steps"])), first):
            self._send_readings(snapshot)
        self._tell_time(first)
        due_s = self._clock()
        for snapshot in range(first, stop):
            self._close_roads(self._usual - self._roads[int(self._stream.network_of[snapshot])])
            due_s = max(due_s + self._stream.step_s / self._speed, self._clock())  # a pause is not made up for
            self._wait(max(0.0, due_s - self._clock()))
            readings, refused = self._send_readings(snapshot)
            yield Sent(snapshot, self._tell_time(snapshot + 1), readings, refused)

    def _tell_time(self, snapshot: int) -> int:
        """Set the service's time to the start of this snapshot."""
        time_s = self._stream.steps.time_s(snapshot)
        self._send("PUT", "/v1/time", {"time": utc_iso(time_s)})
        return time_s

    def _send_readings(self, snapshot: int) -> tuple[int, int]:
        """Send a snapshot's readings. Returns how many there are and how many were refused."""
        stream = self._stream
        at = utc_iso(int(stream.times_s[snapshot]))
        rows = [
            {"node": self._names[n], "time": at, "value": float(stream.values[snapshot, n])}
            for n in stream.observed[snapshot].nonzero()[0]
        ]
        refused = 0
        for k in range(0, len(rows), BATCH_ROWS):
            answer = self._send("POST", "/v1/readings", {"readings": rows[k : k + BATCH_ROWS]})
            refused += int(answer["refused"])
        return len(rows), refused

    def _close_roads(self, wanted: frozenset[Road]) -> None:
        """Close and reopen roads as in the record. Closures created by others stay."""
        for road in sorted(wanted - set(self._closed)):
            made = self._send("POST", "/v1/closures", {"source": road[0], "target": road[1]})
            self._closed[road] = made["id"]
        for road in sorted(set(self._closed) - wanted):
            self._send("DELETE", f"/v1/closures/{self._closed.pop(road)}")

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and retry until it is answered. That is safe: sending any of them twice changes nothing."""
        for tries in count():
            try:
                answer = self._service.send(method, path, body)
                break
            except ServiceGoneError as error:
                if tries == 0:
                    self._say(f"{error}; retrying")
                self._wait(error.retry_after_s or PAUSES_S[min(tries, len(PAUSES_S) - 1)])
        if tries:
            self._say(f"{self._service.url} responds again")
        return answer


def snapshots_between(stream: RoadNetworkStream, first: str | None, until: str | None) -> tuple[int, int]:
    """The snapshots [first, stop) between the times that a user gave; all if none."""
    start_s = stream.start_s if first is None else parse_moment(first, stream.timezone, where="--from")
    end_s = stream.end_s if until is None else parse_moment(until, stream.timezone, where="--until", end=True)
    begin, stop = snapshots_in(stream, (start_s, end_s))
    if begin >= stop:
        wanted = " and ".join(f'{name} "{text}"' for name, text in (("--from", first), ("--until", until)) if text)
        raise SettingsError(
            f"{wanted}: the data has no snapshot in this period. It covers {stream.local_time(stream.start_s)} to "
            f"{stream.local_time(stream.end_s)}"
        )
    return begin, stop


def _roads(networks: Sequence[RoadNetwork], names: list[str]) -> list[frozenset[Road]]:
    """The roads of each network, as pairs of node names."""
    pairs = [zip(each.senders.tolist(), each.receivers.tolist(), strict=True) for each in networks]
    return [frozenset((names[a], names[b]) for a, b in each) for each in pairs]
