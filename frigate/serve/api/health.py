"""How the service does: its forecasts, its sensors, itself; and what is new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from frigate.serve.api.common import ServiceOf, State, StateOf, allow, problems
from frigate.serve.city import utc
from frigate.serve.limits import run_quickly
from frigate.serve.metrics import MEDIA_TYPE, family, labelled
from frigate.serve.scoring import accuracy
from frigate.serve.sensors import sensor_health
from frigate.serve.store import StoreGoneError

HEALTH_S = 5
router = APIRouter(tags=["health"], dependencies=[Depends(allow("read"))])
open_router = APIRouter(tags=["health"])  # for whoever looks after the process; says nothing of the city


class Score(BaseModel):
    mae: float | None = Field(description="Mean absolute error")
    mae_persistence: float | None = Field(description="That of the last reading, taken as the forecast")
    count: int = Field(description="Pairs of forecast and reading")


class HourScore(Score):
    time: str = Field(examples=["2024-03-04T08:00:00Z"])


class StepScore(Score):
    step: int


class NodeScore(BaseModel):
    node: str
    mae: float
    count: int


class Accuracy(BaseModel):
    """Issued forecasts against the readings that then came."""

    overall: Score
    by_hour: list[HourScore]
    by_step: list[StepScore]
    worst: list[NodeScore]


@router.get("/accuracy", responses=problems())
def live_accuracy(
    state: StateOf, hours: Annotated[int, Query(ge=1, le=24 * 31, description="Back from the latest forecast")] = 24
) -> Accuracy:
    """How good the forecasts have been, in all, by hour, by steps ahead and where they were worst."""
    store, city = state.service.store, state.service.city
    issued_s = store.state()[0] or 0

    def score() -> Accuracy:
        return Accuracy(**accuracy(store, city, since_s=issued_s - hours * 3600))

    return state.kept.get("accuracy", (issued_s, hours), score)


class SensorState(BaseModel):
    node: str
    used: bool = Field(description="Whether forecasts use its readings")
    last_time: str | None
    last_value: float | None
    state: str = Field(description="ok, late, silent or stuck", examples=["ok"])
    readings_last_day: int


class Sensors(BaseModel):
    sensors: list[SensorState]
    counts: dict[str, int] = Field(examples=[{"ok": 40, "late": 1, "silent": 0, "stuck": 0}])


@router.get("/sensors", responses=problems())
def sensors(state: StateOf) -> Sensors:
    """Every sensor and how it is: ok, late, silent or stuck. Looked up at most every five seconds."""
    service, now_s = state.service, state.service.now()

    def health() -> Sensors:
        return Sensors(**sensor_health(service.store, service.city, now_s=now_s))

    return state.kept.get("sensors", now_s // HEALTH_S, health)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        **problems(),
        200: {
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'event: forecast\ndata: {"issued_at": "2024-03-04T08:00:00Z"}\n\n',
                }
            }
        },
    },
)
async def events(state: StateOf) -> StreamingResponse:
    """Server-sent events, for as long as the connection holds: `forecast` when there is a new one, `closures` when a
    road was closed or opened. A comment every 15 seconds shows that the service is there."""
    if state.events.listeners >= state.limits.streams:
        raise HTTPException(503, f"{state.limits.streams} streams are open already", {"Retry-After": "10"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx: pass it on at once
    return StreamingResponse(state.events.stream(), media_type="text/event-stream", headers=headers)


class Alive(BaseModel):
    status: str = Field(examples=["ok"])


@open_router.get("/healthz")
async def healthz() -> Alive:
    """The process is there."""
    return Alive(status="ok")


class Ready(BaseModel):
    ready: bool
    store: bool = Field(description="Whether the store can be reached")
    issued_at: str | None = Field(description="Of the latest forecast")
    stale: bool


@open_router.get("/readyz", responses={503: {"model": Ready, "description": "Not yet, or not at the moment"}})
async def readyz(service: ServiceOf, response: Response) -> Ready:
    """Whether requests can be answered: the store is there, and a forecast."""
    try:
        issued_s, store = (await run_quickly(service.store.state))[0], True
    except StoreGoneError:
        issued_s, store = None, False
    ready = issued_s is not None
    if not ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return Ready(
        ready=ready,
        store=store,
        issued_at=None if issued_s is None else utc(issued_s),
        stale=issued_s is None or service.is_stale(issued_s),
    )


@open_router.get(
    "/metrics",
    dependencies=[Depends(allow("read"))],
    response_class=Response,
    responses={**problems(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(state: StateOf) -> Response:
    """Numbers for Prometheus."""
    return Response("\n".join([*_lines(state), ""]), media_type=MEDIA_TYPE)


def _lines(state: State) -> Iterator[str]:
    service, clock = state.service, state.service.clock.state
    yield from state.metrics.lines()
    counts: dict[str, float] = {name: service.ingest.counts[name] for name in ("accepted", "duplicate", "corrected",
                                                                              "refused")}  # fmt: skip
    yield from family("frigate_readings_total", "counter", "Rows that were sent", labelled("status", counts))
    ages: Any = None if clock.issued_s is None else round(service.now() - clock.issued_s, 3)
    for name, kind, words, value in (
        ("frigate_readings_waiting", "gauge", "Rows that wait for the disk", service.ingest.waiting_rows),
        ("frigate_clock_holder", "gauge", "Whether this process makes the forecasts", int(clock.holder)),
        ("frigate_forecasts_total", "counter", "Forecasts that this process made", clock.forecasts),
        ("frigate_ticks_skipped_total", "counter", "Steps without a forecast", clock.skipped),
        ("frigate_forecast_seconds", "gauge", "Time that the last forecast took", clock.seconds),
        ("frigate_forecast_age_seconds", "gauge", "Since the latest forecast was issued", ages),
        ("frigate_clock_error", "gauge", "Whether the last turn of the clock failed", int(bool(clock.error))),
        ("frigate_event_streams", "gauge", "Open event streams", state.events.listeners),
    ):
        yield from family(name, kind, words, value)
    if state.mqtt is not None:
        mqtt = state.mqtt.state
        yield from family("frigate_mqtt_connected", "gauge", "Whether the broker is there", int(mqtt.connected))
        yield from family("frigate_mqtt_messages_total", "counter", "Messages acknowledged", mqtt.messages)
        yield from family("frigate_mqtt_refused_total", "counter", "Rows and messages refused", mqtt.refused)
        yield from family("frigate_mqtt_waiting", "gauge", "Whether messages wait for the store", int(mqtt.waiting))
