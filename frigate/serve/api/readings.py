"""Readings: send new ones, fetch stored ones."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field

from frigate.calendar import DAY_S, utc_iso
from frigate.serve.api.admission import GuardedRoute, actor_of, allow, media_type_of
from frigate.serve.api.common import (
    TABLES,
    Form,
    Moment,
    NodeText,
    ServiceOf,
    State,
    StateOf,
    node_row,
    streamed,
    streamed_table,
)
from frigate.serve.auth import Caller
from frigate.serve.batches import MEDIA_TYPES
from frigate.serve.ingest import STATUSES
from frigate.serve.problems import problems
from frigate.serve.store import ReadingPart

if TYPE_CHECKING:
    import polars as pl

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["readings"])
VALUES_AT_ONCE = 10_000  # of an answer
ANSWERS = {status: {"status": status} for status in STATUSES}
HISTORY_DAYS = 31


class RowAnswer(BaseModel):
    """The outcome for one row."""

    status: str = Field(description="accepted, duplicate, corrected, quarantined or refused", examples=["accepted"])
    reason: str | None = Field(None, description="Why it was refused or quarantined")


class BatchAnswer(BaseModel):
    """The outcome for a batch. Every reading that was not refused is on disk."""

    accepted: int
    duplicate: int = Field(description="Already stored, with the same value")
    corrected: int = Field(description="Already stored, with another value, which was replaced")
    quarantined: int = Field(description="Far beyond what the sensor has read: kept, but no forecast uses it")
    refused: int
    rows: list[RowAnswer] = Field(description="In the order sent")
    notices: list[str]


_JSON_BODY: dict[str, Any] = {
    "schema": {
        "type": "object",
        "required": ["readings"],
        "properties": {
            "readings": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["node", "time", "value"],
                    "properties": {
                        "node": {"type": ["string", "integer"]},
                        "time": {
                            "type": ["string", "number"],
                            "description": "Start of the interval: ISO 8601 with an offset, or seconds since 1970",
                        },
                        "value": {"type": "number"},
                    },
                },
            }
        },
    },
    "example": {"readings": [{"node": "41", "time": "2024-03-04T08:00:00Z", "value": 12}]},
}
_CSV_BODY = {"schema": {"type": "string"}, "example": "node,time,value\n41,2024-03-04T08:00:00Z,12\n"}
_ARROW_BODY = {"schema": {"type": "string", "format": "binary", "description": "The columns of a CSV batch"}}
_BODIES = {name: _JSON_BODY if "json" in name else _CSV_BODY if "csv" in name else _ARROW_BODY for name in MEDIA_TYPES}


@router.post(
    "/readings",
    dependencies=[allow("write", large_body=True)],
    response_model=BatchAnswer,
    responses=problems(408, 413, 415),
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
)
async def add_readings(request: Request, state: StateOf) -> Response:
    """Send readings. Each row gets its own status; a refused row does not affect the others.

    A reading is identified by its node and time, so a batch can be resent safely after a lost connection.
    """
    media_type = media_type_of(request.headers)
    if media_type not in MEDIA_TYPES:
        raise HTTPException(415, f"unsupported Content-Type. Send one of {', '.join(MEDIA_TYPES)}")
    caller: Caller = request.state.caller
    _refuse_beyond_quota(state, caller, 1, take=False)  # before anything is read
    ingest = state.service.ingest
    batch = await ingest.judged(await request.body(), media_type, most=state.limits.rows, only=caller.sensors)
    _refuse_beyond_quota(state, caller, len(batch.answers), take=True)
    answers = await ingest.take(batch, actor_of(request))
    counts = Counter(answer.status for answer in answers)
    notice = f"{batch.unused} readings are from nodes that are not sensors in this run: stored, but not used"
    answer = {
        **{status: counts[status] for status in STATUSES},
        "rows": [
            {"status": each.status, "reason": each.reason} if each.reason else ANSWERS[each.status] for each in answers
        ],
        "notices": [notice] if batch.unused else [],
    }
    return Response(json.dumps(answer), media_type="application/json")


def _refuse_beyond_quota(state: State, caller: Caller, readings: int, *, take: bool) -> None:
    if caller.per_minute is None:
        return
    if readings > caller.per_minute:
        raise HTTPException(413, f"this token may send {caller.per_minute} readings per minute. Send fewer at a time")
    wait_s = state.quota.wait_s(caller.key, caller.per_minute, readings, take=take)
    if wait_s:
        said = f"this token may send {caller.per_minute} readings per minute. Nothing was stored; wait"
        raise HTTPException(429, said, {"Retry-After": str(math.ceil(wait_s))})


class NodeHistory(BaseModel):
    """The readings of a node."""

    node: str
    unit: str
    times: list[str] = Field(examples=[["2024-03-04T08:00:00Z"]])
    values: list[float]


@router.get(
    "/history.{form}",
    dependencies=[allow("read")],
    response_model=NodeHistory,
    responses={**problems(404), 200: {"content": TABLES}},
)
def history(
    request: Request,
    service: ServiceOf,
    form: Form,
    node: Annotated[NodeText, Query(examples=["41"])],
    begin: Annotated[Moment | None, Query(description="Default: a day before end")] = None,
    end: Annotated[Moment | None, Query(description="Default: now")] = None,
) -> Any:
    """The readings of a node, for at most 31 days."""
    node_row(service.city, node)
    end_s = service.now() if end is None else end.timestamp()
    begin_s = end_s - DAY_S if begin is None else begin.timestamp()
    if not 0 <= end_s - begin_s <= HISTORY_DAYS * DAY_S:
        raise HTTPException(422, f"begin must be before end, and at most {HISTORY_DAYS} days before it")
    parts = service.store.reading_parts(int(begin_s * 1e6), int(end_s * 1e6), node)
    if form == "json":
        return streamed(request, _json_parts(node, service.city.unit, parts), "application/json")
    frames = (_frame(node, part) for part in parts)
    return streamed_table(request, frames, form, "history")


def _frame(node: str, part: ReadingPart) -> pl.DataFrame:
    import polars as pl

    _, times_us, values = part
    time = pl.Series(times_us, dtype=pl.Datetime("us", "UTC"))
    return pl.DataFrame({"time": time, "node_id": [node] * len(time), "value": values})


def _json_parts(node: str, unit: str, parts: Iterable[ReadingPart]) -> Iterator[bytes]:
    """A `NodeHistory`. Its values come after all of its times: only they are held meanwhile, at eight bytes each."""
    before = f'{{"node":{json.dumps(node)},"unit":{json.dumps(unit)},"times":['
    values = array("d")
    for _, times_us, part in parts:
        if not values or len(part):
            yield (before + ",".join(f'"{utc_iso(time_us / 1e6)}"' for time_us in times_us.tolist())).encode()
        before = ","
        values.frombytes(part.tobytes())
    yield b'],"values":['
    for k in range(0, len(values), VALUES_AT_ONCE):
        yield f"{',' if k else ''}{json.dumps(values[k : k + VALUES_AT_ONCE].tolist())[1:-1]}".encode()
    yield b"]}"
