"""Health: live accuracy, sensors, events, probes and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field

from frigate.calendar import utc_iso
from frigate.serve.api.admission import GuardedRoute, allow
from frigate.serve.api.common import ServiceOf, StateOf
from frigate.serve.limits import run_quickly
from frigate.serve.metrics import MEDIA_TYPE
from frigate.serve.problems import problems
from frigate.serve.scoring import accuracy
from frigate.serve.sensors import sensor_health
from frigate.serve.store import StoreGoneError
from frigate.training.promise import Drift

SENSORS_CACHED_S = 5
router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["health"], dependencies=[allow("read")])
open_router = APIRouter(route_class=GuardedRoute, tags=["health"])  # its probes reveal nothing about the city


class Score(BaseModel):
    mae: float | None = Field(description="Mean absolute error")
    mae_persistence: float | None = Field(description="MAE of persistence: the last reading taken as the forecast")
    count: int = Field(description="Number of forecast-reading pairs")


class HourScore(Score):
    time: str = Field(examples=["2024-03-04T08:00:00Z"])


class StepScore(Score):
    step: int


class NodeScore(BaseModel):
    node: str
    mae: float
    count: int


class DriftState(BaseModel):
    """The last day's forecasts at sensors against what was promised when training ended."""

    error: float = Field(description="Error relative to that when training ended, in such traffic")
    error_limit: float = Field(description="More is told")
    coverage: float = Field(description="Percent of the 90 % intervals that held")
    coverage_promised: float
    coverage_limit: float = Field(description="Less is told")
    bias: float | None = Field(description="Share of the error that has one sign at each sensor")
    sensors: int
    count: int = Field(description="Number of forecast-reading pairs")
    told: list[str] = Field(description="What is no longer as promised, in sentences; empty if all is")
    retraining_pays: bool


class Accuracy(BaseModel):
    """Issued forecasts compared with the readings that followed."""

    overall: Score
    by_hour: list[HourScore]
    by_step: list[StepScore]
    worst: list[NodeScore]
    drift: DriftState | None = Field(description="null: nothing was promised, or there is too little to compare")


@router.get("/accuracy", responses=problems())
def live_accuracy(
    state: StateOf,
    hours: Annotated[int, Query(ge=1, le=24 * 31, description="Hours before the latest forecast to include")] = 24,
) -> Accuracy:
    """Live forecast accuracy: overall, by hour, by steps ahead, and the worst nodes."""
    store = state.service.store
    city = state.service.city
    issued_s = store.state()[0] or 0

    def score() -> Accuracy:
        found = accuracy(store, city, since_s=issued_s - hours * 3600)
        return Accuracy(**found, drift=_drift_state(state.service.drift()))

    return state.kept.get("accuracy", (issued_s, hours), score)


def _drift_state(found: Drift | None) -> DriftState | None:
    return None if found is None else DriftState(**found.to_json())


class SensorState(BaseModel):
    node: str
    used: bool = Field(description="Whether forecasts use its readings")
    last_time: str | None
    last_value: float | None
    state: str = Field(description="ok, late, silent or stuck", examples=["ok"])
    readings_last_day: int
    quarantined: int = Field(description="Readings that no forecast uses because they are implausible")


class Sensors(BaseModel):
    sensors: list[SensorState]
    counts: dict[str, int] = Field(examples=[{"ok": 40, "late": 1, "silent": 0, "stuck": 0}])


@router.get("/sensors", responses=problems())
def sensors(state: StateOf) -> Sensors:
    """The state of every sensor: ok, late, silent or stuck. Refreshed at most every five seconds."""
    service = state.service
    now_s = state.service.now()

    def health() -> Sensors:
        return Sensors(**sensor_health(service.store, service.city, now_s=now_s))

    return state.kept.get("sensors", now_s // SENSORS_CACHED_S, health)


async def _free_stream(request: Request, state: StateOf) -> AsyncIterator[None]:
    """Take one of the event streams, for as long as it is sent."""
    events = state.events
    limits = state.limits
    caller = request.state.caller
    retry = {"Retry-After": "10"}
    if events.listeners >= limits.streams:
        raise HTTPException(503, f"all {limits.streams} event streams are in use", retry)
    if events.listeners_of(caller) >= limits.streams_each:
        raise HTTPException(429, f"this token has {limits.streams_each} event streams open, its share", retry)
    with events.listener(caller):
        yield


@router.get(
    "/events",
    response_class=EventSourceResponse,
    dependencies=[Depends(_free_stream)],
    responses={
        **problems(),
        200: {
            "content": {
                "text/event-stream": {
                    "example": 'event: forecast\ndata: {"issued_at": "2024-03-04T08:00:00Z"}\nid: 1709539200.4\n\n'
                }
            }
        },
    },
)
async def events(
    request: Request,
    state: StateOf,
    last_event_id: Annotated[str, Header(max_length=100, examples=["1709539200.4"])] = "",
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: `forecast` when a new one is issued, `closures` when a road is closed or reopened.

    A client that connects again with the id of the last event it received, as browsers do by themselves, is told what
    it missed. A comment every 15 seconds keeps the connection alive.
    """
    async for event in state.events.stream(request.state.caller, last_event_id):
        yield event


class Alive(BaseModel):
    status: str = Field(examples=["ok"])


@open_router.get("/healthz")
async def healthz() -> Alive:
    """Liveness probe: the process is running."""
    return Alive(status="ok")


class Ready(BaseModel):
    ready: bool
    store: bool = Field(description="Whether the store can be reached")
    writable: bool = Field(description="Whether it can be written: its disk is not full, and it is not read-only")
    issued_at: str | None = Field(description="Issue time of the latest forecast")
    stale: bool = Field(description="Whether a newer forecast is overdue")
    network: bool = Field(description="Whether the latest forecast is of the network that is served")


@open_router.get("/readyz", responses={503: {"model": Ready, "description": "Not ready"}})
async def readyz(service: ServiceOf, response: Response) -> Ready:
    """Readiness probe: the store can be written, and there is a forecast of this network that is not stale."""

    def look() -> tuple[int | None, str | None]:
        return service.store.state()[0], service.store.latest_network()

    try:
        issued_s, network = await run_quickly(look)
        store = True
    except StoreGoneError:
        issued_s = None
        network = None
        store = False
    stale = issued_s is None or service.is_stale(issued_s)
    current = network == service.city.version
    writable = store and not service.store_fault
    ready = writable and current and not stale
    if not ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return Ready(
        ready=ready,
        store=store,
        writable=writable,
        issued_at=None if issued_s is None else utc_iso(issued_s),
        stale=stale,
        network=current,
    )


@open_router.get(
    "/metrics",
    dependencies=[allow("read")],
    response_class=Response,
    responses={**problems(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(state: StateOf) -> Response:
    """Prometheus metrics."""
    return Response(state.metrics.text(), media_type=MEDIA_TYPE)
