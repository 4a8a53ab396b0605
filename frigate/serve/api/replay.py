"""The service's time, which a replay sets."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from frigate.calendar import utc_iso
from frigate.serve.api.admission import GuardedRoute, allow
from frigate.serve.api.common import Moment, ServiceOf
from frigate.serve.problems import problems
from frigate.serve.service import Service

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["time"])


class TimeAnswer(BaseModel):
    time: str = Field(description="The service's current time", examples=["2024-03-04T08:00:00Z"])
    replay: bool = Field(description="Whether a replay sets the time; it then stands still between steps")
    past_steps: int = Field(description="Past steps that a forecast reads", examples=[12])


class NewTime(BaseModel):
    model_config = ConfigDict(extra="forbid")
    time: Moment = Field(examples=["2024-03-04T08:05:00Z"])


@router.get("/time", dependencies=[allow("read")], responses=problems())
def time(service: ServiceOf) -> TimeAnswer:
    """The service's current time."""
    return _answer(service)


@router.put("/time", dependencies=[allow("operate")], responses=problems(408, 409, 413, 415))
def set_time(service: ServiceOf, body: NewTime) -> TimeAnswer:
    """Set the time of a service started with --replay. Forecasts issued after that time are deleted."""
    if service.replay is None:
        raise HTTPException(409, "the service runs in real time. Start it with --replay, on a separate store")
    service.set_replay_time(body.time.timestamp())
    return _answer(service)


def _answer(service: Service) -> TimeAnswer:
    return TimeAnswer(time=utc_iso(service.now()), replay=service.replay is not None, past_steps=service.city.past)
