"""Readings on their way into the store, over HTTP or MQTT: parsed, judged row by row, written together.

Rows that cannot be are refused one by one, with the reason; the others are stored. One thread writes for all: batches
that wait at the same time share a transaction, and with it the wait for the disk. An answer means that it is on disk.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from frigate.data.outliers import CODES, FAR_FOR_A_CODE
from frigate.data.stream import DAY_S
from frigate.errors import ServiceError
from frigate.serve.city import ServedCity, utc
from frigate.serve.store import Reading, Store

FUTURE_S = 60.0  # by which a sensor's clock may be ahead of ours
TOGETHER_ROWS = 20_000  # in one transaction: longer ones would keep readers and the clock waiting
WAITING_ROWS = 200_000
HINTS = 3  # "did you mean" in one batch: a search through all names each
SHOWN = 80  # characters of a user's word that an answer repeats
MAX_VALUE = 3e38  # a snapshot is float32
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?", re.ASCII)
STATUSES = ("accepted", "duplicate", "corrected", "refused")


class BatchError(ServiceError):
    """A batch that holds no rows at all: it cannot be read, or is of another shape."""


class BusyError(ServiceError):
    """More is waiting to be stored than there should be."""


class Row(NamedTuple):
    """A reading as it was sent."""

    node: object
    time: object
    value: object


class Answer(NamedTuple):
    """What became of a row."""

    status: str  # one of STATUSES
    reason: str = ""


@dataclass(frozen=True)
class Judged:
    """A batch before it is stored: refused rows have their answer, the others are readings."""

    answers: list[Answer | None]
    readings: list[Reading]
    unused: int = 0  # readings of nodes whose readings no forecast uses

    def with_stored(self, stored: Sequence[str]) -> list[Answer]:
        """The answers to all rows, in order."""
        waiting = iter(stored)
        return [Answer(next(waiting)) if answer is None else answer for answer in self.answers]


def rows_of_json(body: bytes) -> list[Row]:
    """`{"readings": [{"node": ..., "time": ..., "value": ...}, ...]}`; `node_id`, as tables have it, will do."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BatchError(f"the body is not JSON: {what}") from None
    readings = data.get("readings") if isinstance(data, dict) else None
    if not isinstance(readings, list):
        raise BatchError('no list "readings". Send {"readings": [{"node": "41", "time": "...Z", "value": 12}]}')
    none: dict[str, Any] = {}
    found = (each if isinstance(each, dict) else none for each in readings)
    return [Row(each.get("node", each.get("node_id")), each.get("time"), each.get("value")) for each in found]


def rows_of_csv(body: bytes) -> list[Row]:
    """A header with node (or node_id), time and value in any order, and a line for each reading."""
    try:
        lines = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""))
        header = [name.strip() for name in next(lines, [])]
        places = _columns(header)
        return [Row(*(line[k] if k < len(line) else None for k in places)) for line in lines if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BatchError(f"the body is not CSV in UTF-8: {error}") from None


def rows_of_arrow(body: bytes) -> list[Row]:
    """An Arrow IPC file or stream with the columns of a CSV batch; time with a time zone."""
    import polars as pl

    file = io.BytesIO(body)
    try:
        frame = pl.read_ipc(file) if body.startswith(b"ARROW1") else pl.read_ipc_stream(file)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise BatchError(f"the body is not Arrow: {_shown(str(error))}") from None
    return [Row(*row) for row in frame.select(frame.columns[k] for k in _columns(frame.columns)).iter_rows()]


def _columns(header: Sequence[str]) -> list[int]:
    found = {name: k for k, name in enumerate(header)}
    found.setdefault("node", found.get("node_id", -1))
    missing = [name for name in ("node", "time", "value") if found.get(name, -1) < 0]
    if missing:
        raise BatchError(f"no column {_shown(missing[0])}; there are {_shown(', '.join(header))}. Name node,time,value")
    return [found["node"], found["time"], found["value"]]


@dataclass(frozen=True)
class Judge:
    """Which rows can be readings of a city."""

    city: ServedCity
    now: Callable[[], float]
    keep_days: float | None = None  # older readings are refused: they would be forgotten
    future_s: float = FUTURE_S

    @cached_property
    def _like(self) -> Callable[[str], str]:
        return lru_cache(maxsize=1000)(self.city.like)

    def __call__(self, rows: Sequence[Row]) -> Judged:
        now_s = self.now()
        latest_us = int((now_s + self.future_s) * 1e6)
        earliest_us = 0 if self.keep_days is None else int((now_s - self.keep_days * DAY_S) * 1e6)
        answers: list[Answer | None] = []
        readings: list[Reading] = []
        unused, unknown = 0, set[str]()
        for row in rows:
            try:
                node = self._node(row.node, unknown)
                time_us = _time_us(row.time)
                if time_us > latest_us:
                    raise _RefusedError(f"time {_utc_us(time_us)} is in the future: it is {utc(int(now_s))}")
                if time_us < earliest_us:
                    raise _RefusedError(f"time {_utc_us(time_us)} is too old: {self._kept()}")
                value = _number(row.value)
                if value < 0 and self.city.quantity == "count":
                    raise _RefusedError(f"value {value:g} is negative, and a count cannot be")
                if value in CODES and not self._plausible[0] <= value <= self._plausible[1]:
                    raise _RefusedError(f"value {value:g} looks like an error code: the record goes {self._goes()}")
            except _RefusedError as refused:
                answers.append(Answer("refused", str(refused)))
                continue
            answers.append(None)
            readings.append(Reading(node, time_us, value))
            unused += not self.city.sensors[self.city.row_of[node]]
        return Judged(answers, readings, unused)

    def _node(self, value: object, unknown: set[str]) -> str:
        if value is None or value == "":
            raise _RefusedError("no node")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise _RefusedError(f"node is {_kind(value)}. Give the id of a node, as text or a whole number")
        node = _text(value)
        node = node if node in self.city.row_of else self.city.node_of_detector.get(node, node)
        if node not in self.city.row_of:
            unknown.add(node[:SHOWN])
            hint = self._like(node[:SHOWN]) if len(unknown) <= HINTS else ""
            raise _RefusedError(f"node {_shown(node)} is not in the network.{hint}")
        return node

    @cached_property
    def _plausible(self) -> tuple[float, float]:
        """Where a number that may be an error code is a reading all the same."""
        least, most = self.city.record
        far = FAR_FOR_A_CODE * (most - least) if most > least else float("inf")
        return least - far, most + far

    def _goes(self) -> str:
        return f"from {self.city.record[0]:g} to {self.city.record[1]:g}"

    def _kept(self) -> str:
        return "before 1970" if self.keep_days is None else f"readings are kept for {self.keep_days:g} days"


class _RefusedError(Exception):
    """Why a row is no reading."""


def _text(value: str | int) -> str:
    try:
        return str(value)
    except ValueError:  # a whole number of thousands of digits
        raise _RefusedError("node is a number that is too long") from None


def _time_us(value: object) -> int:
    if value is None or value == "":
        raise _RefusedError("no time")
    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text) if NUMBER.fullmatch(text[:40]) else datetime.fromisoformat(text[:40])
        except ValueError:
            raise _RefusedError(f"time {_shown(text)} is not ISO 8601, such as 2024-03-04T08:00:00Z") from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise _RefusedError(f"time {_shown(value.isoformat())} has no offset from UTC. Append Z or +01:00")
        return (value - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RefusedError(f"time is {_kind(value)}. Give ISO 8601 or seconds since 1970")
    if not -1e12 < value < 1e12:
        raise _RefusedError(f"time {_shown(str(value))} is not in seconds since 1970")
    return round(value * 1_000_000)


def _number(value: object) -> float:
    if value is None or value == "":
        raise _RefusedError("no value")
    if isinstance(value, str):
        text = value
        try:
            value = float(text[:40])
        except ValueError:
            raise _RefusedError(f"value {_shown(text)} is not a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RefusedError(f"value is {_kind(value)}. Give a number")
    if not -MAX_VALUE < value < MAX_VALUE:
        raise _RefusedError("value is not a finite number that fits")
    return float(value)


def _kind(value: object) -> str:
    return {"bool": "true or false", "list": "a list", "dict": "an object"}.get(type(value).__name__, "of another kind")


def _shown(text: str) -> str:
    """A user's word, short and with nothing in it that a terminal or a log would obey."""
    return json.dumps(text if len(text) <= SHOWN else text[:SHOWN] + "…", ensure_ascii=True)


def _utc_us(time_us: int) -> str:
    try:
        return utc(time_us // 1_000_000)
    except (ValueError, OverflowError, OSError):
        return f"{time_us // 1_000_000} s"


@dataclass(frozen=True)
class _Waiting:
    readings: list[Reading]
    stored: Future[list[str]]


class Ingest:
    """The way into a store. `take` and `submit` may be called from any thread.

    Parameters
    ----------
    store, judge
        Where readings go, and which can.
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
        """Let readings come in; once is enough."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="ingest", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Write what waits, and end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    async def take(self, judged: Judged) -> list[Answer]:
        """Store a batch; the answers to its rows, in order."""
        stored = await asyncio.wrap_future(self.submit(judged.readings)) if judged.readings else []
        answers = judged.with_stored(stored)
        self.counts.update(answer.status for answer in answers)
        return answers

    def submit(self, readings: list[Reading]) -> Future[list[str]]:
        """The statuses of these readings once they are on disk; StoreGoneError where they are not."""
        with self._lock:
            if self._rows + len(readings) > WAITING_ROWS:
                raise BusyError(f"{self._rows} readings wait for the disk. Send again in a moment")
            self._rows += len(readings)
        waiting = _Waiting(readings, Future())
        waiting.stored.set_running_or_notify_cancel()  # a sender that goes away does not stop the others of its batch
        self._queue.put(waiting)
        return waiting.stored

    @property
    def waiting_rows(self) -> int:
        return self._rows

    def _write(self) -> None:
        for batch in self._together():
            rows = [reading for each in batch for reading in each.readings]
            try:
                statuses, failed = iter(self._store.add_readings(rows, self.judge.now())), None
            except Exception as error:
                statuses, failed = iter(()), error  # whoever waits is told
            with self._lock:
                self._rows -= len(rows)
            for each in batch:
                if failed is None:
                    each.stored.set_result([next(statuses) for _ in each.readings])
                else:
                    each.stored.set_exception(failed)

    def _together(self) -> Iterator[list[_Waiting]]:
        """What waits, at most so many rows at once, until the end."""
        while (first := self._queue.get()) is not None:
            batch, rows, ended = [first], len(first.readings), False
            while rows < TOGETHER_ROWS and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    ended = True
                    break
                batch.append(following)
                rows += len(following.readings)
            yield batch
            if ended:
                return
