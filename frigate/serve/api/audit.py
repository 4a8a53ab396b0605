"""The audit trail: who did what, when and from where."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from frigate.calendar import utc_iso
from frigate.serve.api.admission import GuardedRoute, allow
from frigate.serve.api.common import ServiceOf
from frigate.serve.api.paging import Page, paged
from frigate.serve.problems import problems
from frigate.serve.store import AuditEntry

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["audit"])


class AuditAnswer(BaseModel):
    """What somebody did."""

    time: str = Field(description="Of readings: the minute in which they came", examples=["2024-03-04T08:00:00Z"])
    token: str = Field(description="Its id; empty without one", examples=["1c0fab18"])
    name: str = Field(description="Of the token, or of the user", examples=["Control room"])
    role: str = Field(examples=["operate"])
    client: str = Field(description="The address that it came from", examples=["10.1.2.3"])
    action: str = Field(examples=["closure.begin"])
    subject: str = Field(description="What it was done to", examples=["5f0c1a2b3c4d: from 34 to 41"])
    count: int = Field(description="How many: of readings, those of this sender, minute and status")


class AuditList(BaseModel):
    entries: list[AuditAnswer]


def audit_answer(entry: AuditEntry) -> AuditAnswer:
    return AuditAnswer(
        time=utc_iso(int(entry.time_s)),
        token=entry.token,
        name=entry.name,
        role=entry.role,
        client=entry.client,
        action=entry.action,
        subject=entry.subject,
        count=entry.number,
    )


@router.get("/audit", dependencies=[allow("admin")], responses=problems())
def list_audit(
    service: ServiceOf,
    page: Annotated[Page, paged(str)],
    action: Annotated[str | None, Query(pattern="^[a-z.]{1,40}$", examples=["closure.begin"])] = None,
) -> AuditList:
    """Who did what, newest first."""
    before = None if page.after is None else page.after[0]
    found = service.store.audit(before=before, most=page.limit + 1, action=action)
    return AuditList(entries=[audit_answer(entry) for entry in page.cut(found, lambda entry: (entry.id,))])
