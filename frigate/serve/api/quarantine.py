"""Readings in quarantine: list them, and let forecasts use them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from frigate.calendar import utc_iso
from frigate.serve.api.admission import GuardedRoute, actor_of, allow
from frigate.serve.api.closures import NodeName
from frigate.serve.api.common import NodeText, ServiceOf, node_row
from frigate.serve.api.paging import Page, paged
from frigate.serve.problems import problems

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["readings"])


class QuarantinedReading(BaseModel):
    node: str = Field(examples=["34"])
    time: str = Field(examples=["2024-03-04T08:00:00Z"])
    value: float


class QuarantineList(BaseModel):
    readings: list[QuarantinedReading]
    counts: dict[str, int] = Field(description="How many there are in all, by node", examples=[{"34": 2}])


class NodeToRelease(BaseModel):
    model_config = ConfigDict(extra="forbid")
    node: NodeName


class Released(BaseModel):
    node: str
    released: int = Field(description="Readings that were in quarantine and are used from the next forecast on")


@router.get("/quarantine", dependencies=[allow("read")], responses=problems(404))
def list_quarantine(
    service: ServiceOf,
    page: Annotated[Page, paged(str, int)],
    node: Annotated[NodeText | None, Query(description="Only of this node")] = None,
) -> QuarantineList:
    """Readings far beyond what their sensor has read, by node and time. They are kept, but no forecast uses them."""
    if node is not None:
        node_row(service.city, node)
    found = service.store.quarantined(after=page.after or ("", 0), most=page.limit + 1, node=node)
    return QuarantineList(
        readings=[
            QuarantinedReading(node=name, time=utc_iso(time_us / 1e6), value=value)
            for name, time_us, value in page.cut(found, lambda reading: (reading.node, reading.time_us))
        ],
        counts=service.store.count_quarantined(),
    )


@router.post("/quarantine/release", dependencies=[allow("operate")], responses=problems(404, 408, 413, 415))
def release(request: Request, service: ServiceOf, body: NodeToRelease) -> Released:
    """Let forecasts use what is in quarantine of a node, and later readings that are no larger."""
    node_row(service.city, body.node)
    return Released(node=body.node, released=service.quarantine.release(body.node, service.now(), actor_of(request)))
