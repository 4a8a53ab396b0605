"""Shared by all endpoints: access to the service, tables and compression."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fastapi import Depends, HTTPException, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, AwareDatetime, StringConstraints

from frigate.serve.city import ServedCity
from frigate.serve.events import Events
from frigate.serve.limits import Limits, Quota, Rate
from frigate.serve.metrics import Metrics
from frigate.serve.mqtt import Subscriber
from frigate.serve.proxies import Proxies
from frigate.serve.service import Service
from frigate.serve.store import LAST_S
from frigate.text import quoted, without_formulas

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
Form = Literal["json", "csv", "arrow"]
CSV, ARROW = "text/csv; charset=utf-8", "application/vnd.apache.arrow.stream"
MIN_GZIP_BYTES = 1024

FIRST, LAST = (datetime.fromtimestamp(time_s, UTC) for time_s in (0, LAST_S))


def _known_to_calendars(time: datetime) -> datetime:
    if not FIRST <= time <= LAST:
        raise ValueError(f"give a time between {FIRST.year} and {LAST.year}")
    return time


Moment = Annotated[AwareDatetime, AfterValidator(_known_to_calendars)]  # every time that a request may name
NodeText = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Level = Annotated[
    float | None,
    Query(ge=1, lt=100, description="Also give intervals that hold at this percentage of places and hours, such as 90"),
]
NodeInPath = Annotated[NodeText, Path(examples=["41"])]


class Kept:
    """Caches the last response of each kind, so that one that many clients request at once is built once."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._last: dict[str, tuple[Hashable, Any]] = {}

    def get(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """The cached value of this kind, rebuilt with `make` when the key changes."""
        with self._locks[kind]:
            if kind not in self._last or self._last[kind][0] != key:
                self._last[kind] = key, make()
            kept: T = self._last[kind][1]
            return kept


class State:
    """The state that all endpoints of an app share."""

    def __init__(
        self, service: Service, limits: Limits, mqtt: Subscriber | None = None, proxies: Proxies | None = None
    ) -> None:
        self.service = service
        self.limits = limits
        self.mqtt = mqtt
        self.proxies = proxies or Proxies()
        self.events = Events(service.store, service.gate, service.latest.get)
        self.metrics = Metrics(service, self.events, mqtt)
        self.rate = Rate(limits.rate)
        self.quota = Quota()
        self.kept = Kept()
        self._what_if_slots = threading.BoundedSemaphore(limits.what_ifs)

    @contextmanager
    def waiting_questions(self) -> Iterator[None]:
        """Take one of the what-if slots, or answer 503 at once: a long queue would only time out."""
        if not self._what_if_slots.acquire(blocking=False):
            raise HTTPException(503, "too many what-if requests. Try again in a moment", {"Retry-After": "5"})
        try:
            yield
        finally:
            self._what_if_slots.release()


def state_of(request: Request) -> State:
    state: State = request.app.state.frigate
    return state


async def _state(request: Request) -> State:
    return state_of(request)


async def _service(request: Request) -> Service:
    return state_of(request).service


# async, because FastAPI runs plain functions in a thread pool, where they may have to wait.
ServiceOf = Annotated[Service, Depends(_service)]
StateOf = Annotated[State, Depends(_state)]


def node_row(city: ServedCity, node: str, status: int = 404) -> int:
    """The row of a node by its name."""
    row = city.row_of.get(node)
    if row is None:
        raise HTTPException(status, f"no node {quoted(node)}.{city.like(node)}")
    return row


def road_row(city: ServedCity, source: str, target: str, status: int = 404) -> int:
    """The row of a road by the names of its ends."""
    for node in (source, target):
        node_row(city, node, status)
    row = city.road_of.get((source, target))
    if row is None:
        targets = [b for a, b in city.road_of if a == source][:8]
        roads = f"Roads from {source} go to {', '.join(targets)}" if targets else f"No road leaves {source}"
        raise HTTPException(status, f"no road from {source} to {target}. {roads}")
    return row


def sent(request: Request, body: bytes, media_type: str) -> Response:
    """A response of bytes, gzipped if the client accepts it."""
    headers = _headers("")
    if takes_gzip(request) and len(body) >= MIN_GZIP_BYTES:
        body = gzip.compress(body, 1)
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type=media_type, headers=headers)


def streamed(request: Request, parts: Iterator[bytes], media_type: str, *, name: str = "") -> Response:
    """A response of any length, made while it is sent, and gzipped if the client accepts it.

    The first part is made before the response begins, so that what fails there is answered as an error.
    """
    headers = _headers(name)
    body: Iterable[bytes] = chain([next(parts, b"")], parts)
    if takes_gzip(request):
        body = _gzipped(body)
        headers["Content-Encoding"] = "gzip"
    return StreamingResponse(body, media_type=media_type, headers=headers)


def _gzipped(parts: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(1, wbits=31)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()


def sent_to_many(
    request: Request,
    kind: str,
    key: str,
    make: Callable[[], bytes],
    media_type: str,
    *,
    keep: bool = True,
    name: str = "",
) -> Response:
    """A response that is the same until its key changes: 304 for clients that have it.

    Parameters
    ----------
    kind
        The last response of each kind is kept: built and gzipped once for all clients.
    key
        Says what the response depends on.
    make
        Builds the body.
    media_type
        Of the body.
    keep
        Whether to keep it. If not, it is built for every client that does not have it.
    name
        Of the file that a browser saves it as.
    """
    tag = f'"{hashlib.sha256(f"{kind} {key}".encode()).hexdigest()[:20]}"'
    headers = {**_headers(name), "ETag": f"W/{tag}"}  # weak: gzipped or not, it has the same
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    kept = state_of(request).kept if keep else Kept()
    body = kept.get(kind, key, make)
    if takes_gzip(request) and len(body) >= MIN_GZIP_BYTES:
        body = kept.get(f"{kind} gz", key, lambda: gzip.compress(body, 1))
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type=media_type, headers=headers)


def _headers(name: str) -> dict[str, str]:
    headers = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding, Authorization, Cookie"}
    if name:
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return headers


def takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def table(
    request: Request,
    name: str,
    form: Form,
    key: str,
    *,
    frame: Callable[[], pl.DataFrame],
    document: Callable[[], Any],
    keep: bool,
) -> Response:
    """A table as CSV or Arrow, or as JSON a document. See `sent_to_many`."""
    file = f"{name}.{form}"
    if form == "json":

        def make() -> bytes:
            return json.dumps(document(), allow_nan=False, separators=(",", ":")).encode()

        return sent_to_many(request, file, key, make, "application/json", keep=keep)
    if form == "csv":
        return sent_to_many(request, file, key, lambda: _csv(frame()), CSV, keep=keep, name=file)
    return sent_to_many(request, file, key, lambda: _arrow(frame()), ARROW, keep=keep, name=file)


def streamed_table(request: Request, frames: Iterable[pl.DataFrame], form: Form, name: str) -> Response:
    """A table of any length as CSV or Arrow, made and sent part by part."""
    parts, media_type = (_csv_parts(frames), CSV) if form == "csv" else (_arrow_parts(frames), ARROW)
    return streamed(request, parts, media_type, name=f"{name}.{form}")


def _csv_parts(frames: Iterable[pl.DataFrame]) -> Iterator[bytes]:
    for k, frame in enumerate(frames):
        yield _csv(frame, header=k == 0)


def _arrow_parts(frames: Iterable[pl.DataFrame]) -> Iterator[bytes]:
    """One Arrow stream. Each part begins with its schema and ends with a mark: only the first and the last are kept."""
    end = b""
    for frame in frames:
        if end and frame.is_empty():  # polars does not read an empty batch after others
            continue
        part = _arrow(frame)
        batches = 8 + int.from_bytes(part[4:8], "little") if end else 0  # where those of this part begin
        end = part[-8:]
        yield part[batches:-8]
    yield end


def _csv(frame: pl.DataFrame, *, header: bool = True) -> bytes:
    file = io.BytesIO()
    without_formulas(frame).write_csv(file, include_header=header, datetime_format="%Y-%m-%dT%H:%M:%SZ")
    return file.getvalue()


def _arrow(frame: pl.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.write_ipc_stream(file)
    return file.getvalue()


TABLES: dict[str, Any] = {
    "text/csv": {"schema": {"type": "string"}},
    ARROW: {"schema": {"type": "string", "format": "binary"}},
}
BINARY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
