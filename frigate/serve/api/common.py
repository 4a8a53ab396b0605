"""What the addresses share: the service behind them, who may call, how errors and tables are sent."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fastapi import Depends, HTTPException, Path, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field, StringConstraints

from frigate.data.foreign_text import without_formulas
from frigate.serve.auth import Caller
from frigate.serve.city import ServedCity
from frigate.serve.events import Events
from frigate.serve.limits import Limits, Rate, run_quickly
from frigate.serve.metrics import Metrics
from frigate.serve.mqtt import Subscriber
from frigate.serve.service import Service

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
Form = Literal["json", "csv", "arrow"]
CSV, ARROW = "text/csv; charset=utf-8", "application/vnd.apache.arrow.stream"
COMPRESSED_FROM = 1024  # bytes

NodeText = Annotated[str, StringConstraints(min_length=1, max_length=200)]
NodeInPath = Annotated[NodeText, Path(examples=["41"])]


class Problem(BaseModel):
    """Why a request was not answered as asked."""

    error: str = Field(description="What is wrong, and the remedy", examples=["the token is not known"])
    code: str = Field(description="For programs", examples=["unauthorized"])


CODES = {
    400: "malformed", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    408: "too_slow", 409: "conflict", 413: "too_large", 415: "media_type", 422: "invalid", 429: "too_many",
    503: "unavailable",
}  # fmt: skip

Shared = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Shared:
    """The errors that an address answers with, for its description."""
    words = {
        400: "The body cannot be read", 401: "A token is needed, or this one is not good",
        403: "The token has another role", 404: "There is no such thing", 408: "The body came too slowly",
        413: "The body is too large", 415: "The body is in no form that is understood",
        409: "This service does not do that", 422: "A value is not as it must be",
        429: "Too many requests: wait as long as Retry-After says",
        503: "The store or the engine is not available: try again after Retry-After",
    }  # fmt: skip
    both = sorted({400, 401, 403, 422, 429, 503, *statuses})
    return {status: {"model": Problem, "description": words[status]} for status in both}


class Kept:
    """The last answer of each kind, for as long as it is the same: what many clients ask for at once is made once."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._last: dict[str, tuple[Hashable, Any]] = {}

    def get(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned when it was last called for this kind with this key."""
        with self._locks[kind]:
            if kind not in self._last or self._last[kind][0] != key:
                self._last[kind] = key, make()
            kept: T = self._last[kind][1]
            return kept


class State:
    """What an app holds for its addresses."""

    def __init__(self, service: Service, limits: Limits, mqtt: Subscriber | None = None) -> None:
        self.service, self.limits, self.mqtt = service, limits, mqtt
        self.events = Events(service.store, service.latest.get)
        self.metrics = Metrics()
        self.rate = Rate(limits.rate)
        self.kept = Kept()
        self._questions = threading.BoundedSemaphore(limits.what_ifs)

    @contextmanager
    def waiting_questions(self) -> Iterator[None]:
        """Lets in as many as the engine can answer within a while."""
        if not self._questions.acquire(blocking=False):
            raise HTTPException(503, "others are asking what-if questions. Ask again in a moment", {"Retry-After": "5"})
        try:
            yield
        finally:
            self._questions.release()


def state_of(request: Request) -> State:
    state: State = request.app.state.frigate
    return state


async def _state(request: Request) -> State:
    return state_of(request)


async def _service(request: Request) -> Service:
    return state_of(request).service


# Not functions that block: those would wait for a thread.
ServiceOf = Annotated[Service, Depends(_service)]
StateOf = Annotated[State, Depends(_state)]

_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="From `frigate token create`.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def allow(right: str) -> Callable[..., Awaitable[Caller]]:
    """Let pass who has a right and does not ask too often."""

    async def caller(request: Request, _: Credentials) -> Caller:
        state = state_of(request)
        gate, headers = state.service.gate, request.headers
        if not gate.known:
            await run_quickly(gate.refresh)
        found = gate.caller(
            headers.get("authorization", ""),
            host=headers.get("host", ""),
            forwarded="x-forwarded-for" in headers or "forwarded" in headers,
        )
        address = request.client.host if request.client else ""
        request.state.caller = found.id if found else ""
        wait_s = state.rate.wait_s(found.id if found and found.id else f"at {address}")
        if wait_s:
            raise HTTPException(429, "too many requests", {"Retry-After": str(math.ceil(wait_s))})
        if found is None:
            words = "a token that is known is needed. Send it as Authorization: Bearer frg_..."
            raise HTTPException(401, words, {"WWW-Authenticate": "Bearer"})
        if right not in found.rights:
            raise HTTPException(403, f'this needs a token with the right to "{right}"')
        return found

    return caller


def node_row(city: ServedCity, node: str, status: int = 404) -> int:
    """The row of a node by its name."""
    row = city.row_of.get(node)
    if row is None:
        raise HTTPException(status, f"there is no node {quoted(node)}.{city.like(node)}")
    return row


def road_row(city: ServedCity, source: str, target: str, status: int = 404) -> int:
    """The row of a road by the names of its ends."""
    for node in (source, target):
        node_row(city, node, status)
    row = city.road_of.get((source, target))
    if row is None:
        ways = [b for a, b in city.road_of if a == source][:8]
        roads = f"Roads from {source} go to {', '.join(ways)}" if ways else f"No road leaves {source}"
        raise HTTPException(status, f"there is no road from {source} to {target}. {roads}")
    return row


def quoted(text: str) -> str:
    """A user's word: short, and nothing in it is obeyed by a terminal or a log."""
    return json.dumps(text[:80], ensure_ascii=True)


def sent(request: Request, body: bytes, media_type: str, *, name: str = "") -> Response:
    """An answer of bytes, compressed where the client takes that."""
    headers = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding, Authorization"}
    if name:
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    if takes_gzip(request) and len(body) >= COMPRESSED_FROM:
        body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
    return Response(body, media_type=media_type, headers=headers)


def sent_to_many(request: Request, kind: str, key: str, make: Callable[[], bytes], media_type: str) -> Response:
    """An answer that all clients get: made and compressed once for a key, and not sent again to who has it."""
    etag = f'"{hashlib.sha256(key.encode()).hexdigest()[:20]}"'
    headers = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding, Authorization", "ETag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    kept = state_of(request).kept
    body = kept.get(kind, key, make)
    if takes_gzip(request) and len(body) >= COMPRESSED_FROM:
        body, headers["Content-Encoding"] = kept.get(f"{kind} gz", key, lambda: gzip.compress(body, 1)), "gzip"
    return Response(body, media_type=media_type, headers=headers)


def takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def table(request: Request, frame: pl.DataFrame, form: Form, name: str) -> Response:
    """A table as CSV or Arrow."""
    file = io.BytesIO()
    if form == "csv":
        without_formulas(frame).write_csv(file, datetime_format="%Y-%m-%dT%H:%M:%SZ")
        return sent(request, file.getvalue(), CSV, name=f"{name}.csv")
    frame.write_ipc_stream(file)
    return sent(request, file.getvalue(), ARROW, name=f"{name}.arrow")


TABLES: dict[str, Any] = {
    "text/csv": {"schema": {"type": "string"}},
    ARROW: {"schema": {"type": "string", "format": "binary"}},
}
BINARY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
