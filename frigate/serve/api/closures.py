"""Closed roads: list, close, reopen."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from frigate.calendar import DAY_S, utc_iso
from frigate.serve.api.admission import GuardedRoute, actor_of, allow
from frigate.serve.api.common import Moment, NodeText, ServiceOf, road_row
from frigate.serve.api.paging import Page, paged
from frigate.serve.problems import problems
from frigate.serve.store import Closure

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["closures"])
MAX_BACKDATE_S = DAY_S  # how far in the past a closure may begin


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else value


NodeName = Annotated[NodeText, BeforeValidator(_as_text, json_schema_input_type=str | int), Field(examples=["41"])]


class NewClosure(BaseModel):
    """A one-way road to close, from source to target."""

    model_config = ConfigDict(extra="forbid")
    source: NodeName
    target: NodeName
    begin: Moment | None = Field(None, description="Default: now", examples=["2024-03-04T08:00:00Z"])
    end: Moment | None = Field(None, description="Default: until reopened", examples=[None])


class ClosureAnswer(BaseModel):
    """A closure of a one-way road."""

    id: str = Field(examples=["5f0c1a2b3c4d"])
    source: str
    target: str
    begin: str = Field(examples=["2024-03-04T08:00:00Z"])
    end: str | None
    state: Literal["planned", "active", "ended"]


class ClosureList(BaseModel):
    closures: list[ClosureAnswer]


def closure_answer(closure: Closure, now_s: float) -> ClosureAnswer:
    ended = closure.end_s is not None and closure.end_s <= max(now_s, closure.begin_s)
    state: Literal["planned", "active", "ended"] = (
        "ended" if ended else "active" if closure.active(now_s) else "planned"
    )
    return ClosureAnswer(
        id=closure.id,
        source=closure.source,
        target=closure.target,
        begin=utc_iso(closure.begin_s),
        end=None if closure.end_s is None else utc_iso(closure.end_s),
        state=state,
    )


@router.get("/closures", dependencies=[allow("read")], responses=problems())
def list_closures(
    service: ServiceOf,
    page: Annotated[Page, paged(int, str)],
    ended: Annotated[bool, Query(description="Include closures that have ended")] = False,
) -> ClosureList:
    """Active and planned closures, earliest begin first."""
    now_s = service.now()
    found = service.store.closures(None if ended else int(now_s), after=page.after, most=page.limit + 1)
    closures = page.cut(found, lambda closure: (closure.begin_s, closure.id))
    return ClosureList(closures=[closure_answer(each, now_s) for each in closures])


@router.post(
    "/closures",
    status_code=201,
    dependencies=[allow("operate")],
    responses={
        **problems(408, 413, 415),
        200: {"model": ClosureAnswer, "description": "The road was already closed for that time"},
    },
)
def close_road(request: Request, service: ServiceOf, body: NewClosure, response: Response) -> ClosureAnswer:
    """Close a road. Every process applies it from the next forecast on.

    If an existing closure already covers that time, it is returned and nothing is added.
    """
    road_row(service.city, body.source, body.target, 422)
    now_s = int(service.now())
    begin_s = now_s if body.begin is None else int(body.begin.timestamp())
    end_s = None if body.end is None else int(body.end.timestamp())
    if begin_s < now_s - MAX_BACKDATE_S:
        raise HTTPException(422, f"begin {utc_iso(begin_s)} is more than a day ago. Give a later time")
    if end_s is not None and end_s <= max(begin_s, now_s):
        raise HTTPException(422, f"end {utc_iso(end_s)} must be after begin and in the future (now: {utc_iso(now_s)})")
    # The answer is made first: what cannot be told must not be stored.
    answer = closure_answer(Closure("", body.source, body.target, begin_s, end_s, now_s), now_s)
    closure, new = service.store.add_closure(
        body.source, body.target, begin_s=begin_s, end_s=end_s, now_s=now_s, by=actor_of(request)
    )
    if new:
        return answer.model_copy(update={"id": closure.id})
    response.status_code = 200
    return closure_answer(closure, now_s)


@router.delete("/closures/{closure_id}", dependencies=[allow("operate")], responses=problems(404))
def open_road(
    request: Request,
    service: ServiceOf,
    closure_id: Annotated[str, Path(pattern="^[0-9a-f]{1,40}$", examples=["5f0c1a2b3c4d"])],
) -> ClosureAnswer:
    """End a closure now. A closure that has already ended is returned unchanged."""
    now_s = int(service.now())
    closure = service.store.end_closure(closure_id, now_s, actor_of(request))
    if closure is None:
        raise HTTPException(404, "no such closure. GET /v1/closures lists them")
    return closure_answer(closure, now_s)
