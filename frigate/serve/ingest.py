"""Readings on their way into the store, over HTTP or MQTT: validated row by row, written in batches.

An invalid row is refused with the reason; the other rows of its batch are stored. A value far beyond what its sensor
has read goes to the quarantine, where no forecast uses it. One thread does all the writing:
batches waiting at the same time share a transaction, and so one wait for the disk. A reading is answered once it is on
disk.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import NamedTuple

from frigate.calendar import DAY_S, utc_iso
from frigate.city.outliers import CODES
from frigate.serve.batches import BusyError, ReadingRow, needs_child, rows_of
from frigate.serve.city import ServedCity
from frigate.serve.limits import run_quickly, run_with_child
from frigate.serve.store import LAST_S, Actor, Delivery, Reading, Store
from frigate.text import quoted

LOG = logging.getLogger("frigate.serve")
FUTURE_S = 60.0  # how far a sensor's clock may be ahead of ours
TRANSACTION_ROWS = 20_000  # longer transactions would keep readers and the clock waiting
WAITING_ROWS = 200_000
MAX_HINTS = 3  # "did you mean" searches per batch: they are slow
MAX_NUMBER = 80  # characters of a number or a time: nobody writes more
MAX_SHOWN = 80  # characters of user input repeated in a message
MAX_VALUE = 1e9  # no detector measures more
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?", re.ASCII)
STATUSES = ("accepted", "duplicate", "corrected", "quarantined", "refused")
Ranges = Mapping[str, tuple[float, float]]  # of readings, by node


class Answer(NamedTuple):
    """The outcome for a row."""

    status: str  # one of STATUSES
    reason: str = ""


@dataclass(frozen=True)
class Judged:
    """A validated batch, before it is stored: refused rows have their answer, the others are readings."""

    answers: list[Answer | None]  # by row; None until it is stored
    readings: list[Reading]
    unused: int = 0  # readings from nodes that are not sensors of the run
    implausible: Mapping[int, str] = field(default_factory=dict)  # why, by place among the readings

    @property
    def refused(self) -> int:
        return len(self.answers) - len(self.readings)

    def with_stored(self, stored: Sequence[str]) -> list[Answer]:
        """The answers to all rows, in order."""
        reasons = self.implausible
        told = (Answer(each, reasons[k]) if each == "quarantined" else Answer(each) for k, each in enumerate(stored))
        return [next(told) if answer is None else answer for answer in self.answers]


@dataclass(frozen=True)
class Judge:
    """Decides which rows are valid readings of a city."""

    city: ServedCity
    now: Callable[[], float]
    keep_days: float | None = None  # older readings are refused: they would be deleted at once
    future_s: float = FUTURE_S
    released: Callable[[], Ranges] = dict  # what operators have found plausible

    @cached_property
    def _like(self) -> Callable[[str], str]:
        return lru_cache(maxsize=1000)(self.city.like)

    def __call__(self, rows: Sequence[ReadingRow], only: Iterable[str] = ()) -> Judged:
        """Judge a batch.

        Parameters
        ----------
        rows
            As they were sent.
        only
            Nodes or detectors whose readings the sender may send; none: all.
        """
        allowed = {self.city.node_of_detector.get(name, name) for name in only}
        now_s = self.now()
        latest_us = int(min(now_s + self.future_s, LAST_S) * 1e6)
        earliest_us = 0 if self.keep_days is None else int((now_s - self.keep_days * DAY_S) * 1e6)
        answers: list[Answer | None] = []
        readings: list[Reading] = []
        implausible: dict[int, str] = {}
        released = self.released()
        unused = 0
        unknown = set[str]()
        for row in rows:
            try:
                node = self._node(row.node, unknown)
                if allowed and node not in allowed:
                    raise _RefusedError(f"this token may not send readings of node {quoted(node)}")
                time_us = _time_us(row.time)
                if time_us > latest_us:
                    raise _RefusedError(f"time {_utc_us(time_us)} is in the future (now: {utc_iso(int(now_s))})")
                if time_us < earliest_us:
                    raise _RefusedError(f"time {_utc_us(time_us)} is too old: {self._age_limit()}")
                value = _number(row.value)
                if value < 0 and self.city.quantity == "count":
                    raise _RefusedError(f"value {value:g} is negative, but the readings are counts")
                far = self._is_far(node, value, released)
                if far and value in CODES:
                    raise _RefusedError(f"value {value:g} looks like an error code: {self._past(node)}")
            except _RefusedError as refused:
                answers.append(Answer("refused", str(refused)))
                continue
            answers.append(None)
            if far:
                past = self._past(node)
                implausible[len(readings)] = f"value {value:g} is kept, but not used until it is released: {past}"
            readings.append(Reading(node, time_us, value))
            unused += not self.city.sensors[self.city.row_of[node]]
        return Judged(answers, readings, unused, implausible)

    def _node(self, value: object, unknown: set[str]) -> str:
        if value is None or value == "":
            raise _RefusedError("node is missing")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise _RefusedError(f"node is {_kind(value)}. Give a node id, as text or an integer")
        node = _text(value)
        node = node if node in self.city.row_of else self.city.node_of_detector.get(node, node)
        if node not in self.city.row_of:
            unknown.add(node[:MAX_SHOWN])
            hint = self._like(node[:MAX_SHOWN]) if len(unknown) <= MAX_HINTS else ""
            raise _RefusedError(f"node {quoted(node)} is not in the network.{hint}")
        return node

    def _is_far(self, node: str, value: float, released: Ranges) -> bool:
        """Whether a value is far beyond what its node has read, and no operator has released any like it."""
        row = self.city.row_of[node]
        low, high = self.city.ranges.limits
        least, most = released.get(node, (0.0, 0.0))
        return not min(low[row], least) <= value <= max(high[row], most)

    def _past(self, node: str) -> str:
        row = self.city.row_of[node]
        least = self.city.ranges.least[row]
        most = self.city.ranges.most[row]
        return f"node {quoted(node)} has read {least:g} to {most:g}" if most > least else "it has read nothing like it"

    def _age_limit(self) -> str:
        return "before 1970" if self.keep_days is None else f"readings are kept for {self.keep_days:g} days"


class _RefusedError(Exception):
    """Why a row is not a valid reading."""


def _text(value: str | int) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        raise _RefusedError("node is a number with too many digits") from None


def _time_us(value: object) -> int:
    if value is None or value == "":
        raise _RefusedError("time is missing")
    if isinstance(value, str):
        text = value.strip()
        try:
            if len(text) > MAX_NUMBER or not text.isascii():
                raise ValueError
            value = float(text) if NUMBER.fullmatch(text) else datetime.fromisoformat(text)
        except ValueError:
            raise _RefusedError(f"time {quoted(text)} is not ISO 8601, such as 2024-03-04T08:00:00Z") from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise _RefusedError(f"time {quoted(value.isoformat())} has no UTC offset. Append Z or +01:00")
        return (value - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RefusedError(f"time is {_kind(value)}. Give ISO 8601 or seconds since 1970")
    if not -1e12 < value < 1e12:
        raise _RefusedError(f"time {quoted(str(value))} is not in seconds since 1970")
    return round(value * 1_000_000)


def _number(value: object) -> float:
    if value is None or value == "":
        raise _RefusedError("value is missing")
    if isinstance(value, str):
        text = value.strip()
        try:
            if len(text) > MAX_NUMBER or "_" in text or not text.isascii():  # Python would read 1_2 as 12
                raise ValueError
            value = float(text)
        except ValueError:
            raise _RefusedError(f"value {quoted(text)} is not a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RefusedError(f"value is {_kind(value)}. Give a number")
    if not -MAX_VALUE < value < MAX_VALUE:
        raise _RefusedError("value is not finite, or too large")
    return float(value)


def _kind(value: object) -> str:
    return {"bool": "a boolean", "list": "a list", "dict": "an object"}.get(type(value).__name__, "of the wrong type")


def _utc_us(time_us: int) -> str:
    try:
        return utc_iso(time_us // 1_000_000)
    except (ValueError, OverflowError, OSError):
        return f"{time_us // 1_000_000} s"


@dataclass(frozen=True)
class _Waiting:
    judged: Judged
    by: Actor
    stored: Future[list[str]]


class Ingest:
    """Writes readings to a store. Thread-safe.

    Parameters
    ----------
    store
        Where the readings go.
    judge
        Decides which rows are valid.
    """

    def __init__(self, store: Store, judge: Judge) -> None:
        self.judge = judge
        self.counts: Counter[str] = Counter()  # rows by status, since the start
        self._store = store
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._rows = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the writing thread, unless it is running."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="ingest", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Write what is waiting, then end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    async def judged(self, body: bytes, media_type: str, *, most: int, only: Iterable[str] = ()) -> Judged:
        """The rows of a batch, parsed and validated; at most `most`. See `Judge` for `only`."""

        def judged() -> Judged:
            return self.judge(rows_of(body, media_type, most=most), only)

        return await (run_with_child(judged) if needs_child(body, media_type) else run_quickly(judged))

    async def take(self, judged: Judged, by: Actor) -> list[Answer]:
        """Store a batch that somebody has sent. Returns the answers to its rows, in order."""
        stored = await asyncio.wrap_future(self.submit(judged, by)) if judged.answers else []
        answers = judged.with_stored(stored)
        counts = Counter(answer.status for answer in answers)
        self.counts.update(counts)
        if counts["quarantined"]:
            first = next(answer.reason for answer in answers if answer.status == "quarantined")
            LOG.warning("readings quarantined", extra={"count": counts["quarantined"], "first": first})
        return answers

    def submit(self, judged: Judged, by: Actor) -> Future[list[str]]:
        """Queue a batch. The future gives the statuses of its readings once they are on disk, or StoreGoneError."""
        readings = len(judged.readings)
        with self._lock:
            if self._rows and self._rows + readings > WAITING_ROWS:  # a batch alone is never too large
                raise BusyError(f"{self._rows} readings are waiting to be written. Send this batch again in a moment")
            self._rows += readings
        waiting = _Waiting(judged, by, Future())
        # Not cancellable from here on: a sender that disconnects must not fail the others in its transaction.
        waiting.stored.set_running_or_notify_cancel()
        self._queue.put(waiting)
        return waiting.stored

    @property
    def waiting_rows(self) -> int:
        return self._rows

    def _write(self) -> None:
        for batch in self._transactions():
            rows: list[Reading] = []
            implausible: list[int] = []
            deliveries: list[Delivery] = []
            for each in batch:
                judged = each.judged
                implausible += [len(rows) + place for place in judged.implausible]
                rows += judged.readings
                deliveries.append(Delivery(each.by, len(judged.readings), judged.refused))
            try:
                stored = self._store.add_readings(
                    rows, self.judge.now(), implausible=implausible, deliveries=deliveries
                )
                statuses = iter(stored)
                failed = None
            except Exception as error:
                statuses = iter(())
                failed = error  # passed on to the senders
            with self._lock:
                self._rows -= len(rows)
            for each in batch:
                if failed is None:
                    each.stored.set_result([next(statuses) for _ in each.judged.readings])
                else:
                    each.stored.set_exception(failed)

    def _transactions(self) -> Iterator[list[_Waiting]]:
        """Waiting batches, grouped into transactions, until `stop`."""
        while (first := self._queue.get()) is not None:
            batch = [first]
            rows = len(first.judged.readings)
            ended = False
            while rows < TRANSACTION_ROWS and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    ended = True
                    break
                batch.append(following)
                rows += len(following.judged.readings)
            yield batch
            if ended:
                return
