"""The bodies in which readings come, over HTTP or MQTT: JSON, CSV and Arrow.

They are foreign. Arrow is read by native code, which damaged bytes can bring down or have fill the memory, and parsing
megabytes of JSON stops every thread of a process. So Arrow, and all that is large, is parsed in a child process with
limits on memory and time (`frigate.reading.sandbox`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from frigate.errors import CityError, FrigateError, ServiceError
from frigate.reading.sandbox import CallLimits, in_sandbox_with
from frigate.serve.arrow_messages import count_rows, is_file
from frigate.text import quoted

if TYPE_CHECKING:
    import polars as pl

SMALL_BYTES = 32_768  # parsed in our own process, in about a millisecond
CHILD_GB = 0.5
CHILD_GB_PER_MB = 0.04
CHILD_S = 5.0
CHILD_S_PER_MB = 1.0


class BatchError(ServiceError):
    """A batch that cannot be parsed into rows."""


class TooManyRowsError(BatchError):
    """A batch with more rows than allowed."""


class BusyError(ServiceError):
    """Too many readings are waiting to be read or stored."""


class ReadingRow(NamedTuple):
    """A reading as it was sent."""

    node: object
    time: object
    value: object


@dataclass(frozen=True)
class Columns:
    """The rows of a batch, as columns of equal length: how they travel from the child."""

    node: Sequence[object]
    time: Sequence[object]
    value: Sequence[object]

    def rows(self) -> list[ReadingRow]:
        return list(map(ReadingRow._make, zip(self.node, self.time, self.value, strict=True)))


JSON, CSV = "application/json", "text/csv"
ARROW = ("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file")
MEDIA_TYPES = (JSON, CSV, *ARROW)


def needs_child(body: bytes, media_type: str) -> bool:
    """Whether a batch is too large, or of a form too risky, for this process."""
    return media_type in ARROW or len(body) > SMALL_BYTES


def rows_of(body: bytes, media_type: str, *, most: int) -> list[ReadingRow]:
    """The rows of a batch. Blocks.

    Parameters
    ----------
    body
        As it was sent.
    media_type
        One of `MEDIA_TYPES`.
    most
        Rows that the batch may have.
    """
    if not needs_child(body, media_type):
        return parse(body, media_type, most).rows()
    mb = len(body) / 1e6
    limits = CallLimits(CHILD_GB + CHILD_GB_PER_MB * mb, CHILD_S + CHILD_S_PER_MB * mb)
    try:
        return in_sandbox_with(limits, parse, body, media_type, most).rows()
    except CityError:  # the child died, or had to be stopped
        reason = f"it is damaged, or takes more than {limits.memory_gb:.2g} GB of memory or {limits.seconds:.2g} s"
        raise BatchError(f"the body cannot be read: {reason}. Send a valid batch") from None
    except ServiceError:
        raise
    except FrigateError as error:
        raise BusyError(f"no batch can be read at the moment: {error}") from None


def parse(body: bytes, media_type: str, most: int) -> Columns:
    """The rows of a batch, parsed in this process."""
    if media_type == JSON:
        return _parse_json(body, most)
    return _parse_csv(body, most) if media_type == CSV else _parse_arrow(body, most)


def _parse_json(body: bytes, most: int) -> Columns:
    """`{"readings": [{"node": ..., "time": ..., "value": ...}, ...]}`; `node_id` is accepted for `node`."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BatchError(f"the body is not JSON: {what}") from None
    readings = data.get("readings") if isinstance(data, dict) else None
    if not isinstance(readings, list):
        raise BatchError(
            '"readings" is missing or not a list. Send {"readings": [{"node": "41", "time": "...Z", "value": 12}]}'
        )
    _refuse_more(len(readings), most)
    none: dict[str, Any] = {}
    found: list[Mapping[str, Any]] = [each if isinstance(each, dict) else none for each in readings]
    return Columns(
        [_plain(each.get("node", each.get("node_id"))) for each in found],
        [_plain(each.get("time")) for each in found],
        [_plain(each.get("value")) for each in found],
    )


def _plain(value: object) -> object:
    """The value, without what is in it: whatever a list or an object holds, it is no reading."""
    return type(value)() if isinstance(value, list | dict) else value


def _parse_csv(body: bytes, most: int) -> Columns:
    """CSV with the columns node (or node_id), time and value, in any order."""
    try:
        lines = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""))
        places = _places([name.strip() for name in next(lines, [])])
        rows = list(islice(_cells(lines, places), most + 1))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BatchError(f"the body is not CSV in UTF-8: {error}") from None
    if len(rows) > most:
        _refuse_more(len(rows) + sum(1 for line in lines if line), most)
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return Columns(*columns)


def _cells(lines: Iterator[list[str]], places: Sequence[int]) -> Iterator[tuple[str | None, ...]]:
    return (tuple(line[k] if k < len(line) else None for k in places) for line in lines if line)


def _parse_arrow(body: bytes, most: int) -> Columns:
    """An Arrow IPC file or stream with the columns of a CSV batch; time with a time zone."""
    import polars as pl

    try:
        _refuse_more(count_rows(body), most)
        frame = pl.read_ipc(io.BytesIO(body)) if is_file(body) else pl.read_ipc_stream(io.BytesIO(body))
        columns = [frame.to_series(k) for k in _places(frame.columns)]
        for name, column in zip(("node", "time", "value"), columns, strict=True):
            if not _readable(column.dtype, time=name == "time", number=name == "value"):
                raise BatchError(f"column {quoted(name)} is of type {quoted(str(column.dtype))}. Send text or numbers")
        return Columns(*(column.to_list() for column in columns))
    except BatchError:
        raise
    except Exception as error:  # of any kind: the bytes are foreign
        raise BatchError(f"the body is not Arrow: {quoted(str(error))}") from None


def _readable(dtype: pl.DataType, *, time: bool, number: bool) -> bool:
    import polars as pl

    text = isinstance(dtype, pl.String | pl.Categorical | pl.Enum | pl.Null)
    numeric = dtype.is_integer() or ((time or number) and dtype.is_float())
    return text or numeric or (time and isinstance(dtype, pl.Datetime))


def _places(header: Sequence[str]) -> list[int]:
    """Where the columns node, time and value stand."""
    found = {name: k for k, name in enumerate(header)}
    found.setdefault("node", found.get("node_id", -1))
    missing = [name for name in ("node", "time", "value") if found.get(name, -1) < 0]
    if missing:
        raise BatchError(f"no column {quoted(missing[0])}; found {quoted(', '.join(header))}. Send node,time,value")
    return [found["node"], found["time"], found["value"]]


def _refuse_more(rows: int, most: int) -> None:
    if rows > most:
        raise TooManyRowsError(f"{rows} rows in one batch. Send at most {most} at a time")
