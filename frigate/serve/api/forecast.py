"""Forecasts: everything for the map, tables of nodes and of road flows, details of one node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, HTTPException, Query, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from frigate.calendar import utc_iso
from frigate.forecasting.result import Forecast
from frigate.pages import wire
from frigate.serve.api.admission import GuardedRoute, allow
from frigate.serve.api.closures import closure_answer
from frigate.serve.api.common import (
    BINARY,
    TABLES,
    Form,
    Level,
    Moment,
    NodeInPath,
    NodeText,
    ServiceOf,
    node_row,
    sent_to_many,
    table,
)
from frigate.serve.city import ServedCity
from frigate.serve.issued import IssuedForecast, read_issued
from frigate.serve.problems import problems
from frigate.serve.service import Service

if TYPE_CHECKING:
    import polars as pl

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["forecast"], dependencies=[allow("read")])

Box = Annotated[
    str | None,
    Query(
        description="west,south,east,north in degrees",
        pattern=r"^-?\d+(\.\d+)?(,-?\d+(\.\d+)?){3}$",
        max_length=100,
        examples=["6.10,49.59,6.14,49.62"],
    ),
]
IssuedAt = Annotated[
    Moment | None, Query(description="Issue time of an earlier forecast. Default: the latest forecast")
]


@router.get("/forecast.bin", response_class=Response, responses={**problems(), 200: {"content": BINARY}})
def forecast_binary(request: Request, service: ServiceOf, level: Level = None) -> Response:
    """The latest forecast for the whole network, as a binary container (format: `frigate.pages.wire`).

    Header: issued_at, past_times, times, version (of the network), closures, stale, notices, level. Arrays: past [T,N]
    (readings), forecast [H,N], road_past [T,E], road_forecast [H,E], absent [N]; with a level, lower and upper [H,N].
    NaN means unknown.
    """
    if level is not None:
        service.engine.run.require_intervals(level)
    latest = service.latest.get()
    drift = service.drift()
    now_s = service.now()
    closures = [closure_answer(each, now_s).model_dump() for each in service.store.closures(int(now_s))]
    meta = {
        "issued_at": utc_iso(latest.issued.issued_s),
        "past_times": [utc_iso(time_s) for time_s in latest.past_times_s.tolist()],
        "times": [utc_iso(time_s) for time_s in latest.issued.forecast.times_s.tolist()],
        "version": service.city.version,
        "closures": closures,
        "stale": service.is_stale(latest.issued.issued_s),
        "notices": [*latest.issued.forecast.notices, *(() if drift is None else drift.told)],
        "level": level,
    }

    def body() -> bytes:
        arrays: dict[str, NDArray[Any]] = {
            "past": latest.past,
            "forecast": latest.issued.forecast.values,
            "road_past": latest.road_past,
            "road_forecast": latest.road_forecast,
            "absent": np.asarray(np.isnan(latest.issued.forecast.values).all(axis=0)),
        }
        if level is not None:
            sure = service.engine.with_intervals(latest.issued, level)
            assert sure.lower is not None and sure.upper is not None
            arrays |= {"lower": sure.lower.astype(np.float32), "upper": sure.upper.astype(np.float32)}
        return wire.encode(meta, arrays)

    usual = level in (None, service.city.level)
    kind = "forecast.bin" if level is None else "forecast.bin with intervals"
    return sent_to_many(request, kind, json.dumps(meta), body, wire.MEDIA_TYPE, keep=usual)


class NodeForecast(BaseModel):
    """The forecast for a node; null while the node is absent from the network."""

    node_id: str | int
    lon: float
    lat: float
    street: str
    detectors: str = Field(description="Names of its detectors, such as A17; A18")
    moved_m: float | None = Field(description="How far the farthest detector was moved to this node")
    sensor: bool = Field(description="Whether forecasts use its readings")
    values: list[float | None]
    lower: list[float | None] | None = Field(default=None, description="With a level: the lower ends of its intervals")
    upper: list[float | None] | None = Field(default=None, description="The upper ends")


class ForecastDocument(BaseModel):
    """The document that `frigate forecast --json` writes."""

    issued_at: str = Field(examples=["2024-03-04T08:00:00Z"])
    stale: bool = Field(description="Whether a newer forecast is overdue")
    at: str = Field(description="issued_at in the city's time zone", examples=["2024-03-04T09:00:00+01:00"])
    times: list[str] = Field(description="Start of each step, in the city's time zone")
    step_s: int
    timezone: str
    quantity: str
    unit: str
    level: float | None = Field(default=None, description="Of the intervals, in percent; absent if not asked for")
    notices: list[str]
    nodes: list[NodeForecast]


@router.get(
    "/forecast.{form}",
    response_model=ForecastDocument,
    responses={**problems(404), 200: {"content": TABLES}},
)
def forecast_table(
    request: Request,
    service: ServiceOf,
    form: Form,
    node: Annotated[list[NodeText] | None, Query(max_length=1000, description="Repeat for several nodes")] = None,
    box: Box = None,
    issued_at: IssuedAt = None,
    level: Level = None,
) -> Any:
    """The forecast for some nodes, for those in a box, or for all: the table that `frigate forecast` writes."""
    if level is not None:
        service.engine.run.require_intervals(level)
    issued = _issued(service, issued_at)
    rows = _rows(service.city, node, box)

    def result() -> Forecast:
        if level is None:
            return issued.forecast.at(rows)
        return service.engine.with_intervals(issued, level, rows=rows)

    stale = service.is_stale(issued.issued_s)

    def document() -> dict[str, Any]:
        return {"issued_at": utc_iso(issued.issued_s), "stale": stale, **result().to_json()}

    key = json.dumps([service.city.version, issued.issued_s, issued.made_s, stale, node, box, level])
    latest = node is None and box is None and issued_at is None and level is None
    return table(request, "forecast", form, key, frame=lambda: result().to_frame(), document=document, keep=latest)


class RoadFlow(BaseModel):
    """The flow on a one-way road; null where unknown."""

    source: str
    target: str
    name: str
    values: list[float | None]


class FlowDocument(BaseModel):
    """Forecast road flows."""

    issued_at: str = Field(examples=["2024-03-04T08:00:00Z"])
    stale: bool
    times: list[str] = Field(examples=[["2024-03-04T08:00:00Z"]])
    step_s: int
    quantity: str
    unit: str
    roads: list[RoadFlow]


@router.get("/flows.{form}", response_model=FlowDocument, responses={**problems(), 200: {"content": TABLES}})
def road_flows(request: Request, service: ServiceOf, form: Form, box: Box = None) -> Any:
    """The forecast flow on roads that start or end in a box, or on all roads."""
    latest = service.latest.get()
    city = service.city
    network = service.city.network
    inside = np.ones(network.num_nodes, bool) if box is None else _inside(city, box)
    roads = np.flatnonzero(inside[network.senders] | inside[network.receivers])
    flows = latest.road_forecast[:, roads].T
    times_s = latest.issued.forecast.times_s
    source, target = (np.array(city.node_names)[ends[roads]] for ends in (network.senders, network.receivers))
    issued_s = latest.issued.issued_s
    stale = service.is_stale(issued_s)

    def document() -> dict[str, Any]:
        columns = zip(source, target, network.edges.name[roads], flows.tolist(), strict=True)
        found = FlowDocument(
            issued_at=utc_iso(issued_s),
            stale=stale,
            times=[utc_iso(time_s) for time_s in times_s.tolist()],
            step_s=city.step_s,
            quantity=city.quantity,
            unit=city.unit,
            roads=[
                RoadFlow(source=a, target=b, name=str(name), values=[_number(x) for x in values])
                for a, b, name, values in columns
            ],
        )
        return found.model_dump()

    def frame() -> pl.DataFrame:
        import polars as pl

        H = len(times_s)
        E = len(roads)
        return pl.DataFrame(
            {
                "source": np.repeat(source, H),
                "target": np.repeat(target, H),
                "time": pl.Series(np.tile(times_s * 1_000_000, E), dtype=pl.Datetime("us", "UTC")),
                "step_ahead": np.tile(np.arange(1, H + 1), E),
                "value": pl.Series(flows.ravel(), nan_to_null=True),
            }
        )

    key = json.dumps([city.version, issued_s, latest.issued.made_s, stale, box])
    return table(request, "flows", form, key, frame=frame, document=document, keep=box is None)


class Value(BaseModel):
    time: str = Field(examples=["2024-03-04T08:00:00Z"])
    value: float | None


class ForecastValue(Value):
    lower: float | None = Field(default=None, description="With a level: the lower end of its interval")
    upper: float | None = Field(default=None, description="The upper end")


class Support(BaseModel):
    """A sensor that a node's forecast relies on."""

    node: str
    distance_m: float | None = Field(description="By road; null where there is no route")


class NodeDetails(BaseModel):
    """A node as the map shows it."""

    node: str
    street: str
    lon: float
    lat: float
    sensor: bool
    history: list[Value] = Field(description="Its readings by step; empty if it has none")
    forecast: list[ForecastValue]
    level: float | None = Field(default=None, description="Of the intervals, in percent")
    issued: list[Value] = Field(description="The one-step-ahead forecasts for the steps of the history")
    main_sensors: list[Support]


@router.get("/nodes/{node:path}", responses=problems(404))
def node_details(service: ServiceOf, node: NodeInPath, level: Level = None) -> NodeDetails:
    """One node: its recent readings, its forecast, and the sensors that the forecast relies on."""
    city = service.city
    if level is not None:
        service.engine.run.require_intervals(level)
    latest = service.latest.get()
    row = node_row(city, node)
    past = latest.past[:, row]
    here = np.array([row])
    forecast = latest.issued.forecast.at(here)
    if level is not None:
        forecast = service.engine.with_intervals(latest.issued, level, rows=here)
    return NodeDetails(
        node=node,
        street=city.street(row),
        lon=float(city.network.lon[row]),
        lat=float(city.network.lat[row]),
        sensor=bool(city.sensors[row]),
        history=_values(latest.past_times_s, past) if np.isfinite(past).any() else [],
        forecast=_forecast_values(forecast),
        level=level,
        issued=_values(latest.past_times_s, latest.past_forecast[:, row]),
        main_sensors=[
            Support(node=city.node_names[sensor], distance_m=_number(distance_m))
            for sensor, distance_m in service.engine.main_sensors(row)
        ],
    )


def _issued(service: Service, issued_at: Any) -> IssuedForecast:
    if issued_at is None:
        return service.latest.get().issued
    issued = read_issued(service.store, service.city, int(issued_at.timestamp()))
    if issued is None:
        raise HTTPException(404, f"no forecast issued at {utc_iso(int(issued_at.timestamp()))} is stored")
    return issued


def _rows(city: ServedCity, nodes: list[str] | None, box: str | None) -> NDArray[np.int64] | slice:
    if nodes is not None and box is not None:
        raise HTTPException(422, "give either node or box, not both")
    if nodes is not None:
        return np.array([node_row(city, node) for node in dict.fromkeys(nodes)], np.int64)
    return slice(None) if box is None else np.flatnonzero(_inside(city, box))


def _inside(city: ServedCity, box: str) -> NDArray[np.bool_]:
    """[N] nodes in a box; if west > east, the box crosses the 180th meridian."""
    west, south, east, north = map(float, box.split(","))
    if south > north:
        raise HTTPException(422, "box: south is greater than north. Give west,south,east,north")
    lon = city.network.lon
    lat = city.network.lat
    across = (west <= lon) & (lon <= east) if west <= east else (west <= lon) | (lon <= east)
    inside: NDArray[np.bool_] = across & (south <= lat) & (lat <= north)
    return inside


def _values(times_s: NDArray[np.int64], values: NDArray[np.floating]) -> list[Value]:
    return [Value(time=utc_iso(t), value=_number(x)) for t, x in zip(times_s.tolist(), values.tolist(), strict=True)]


def _forecast_values(of_node: Forecast) -> list[ForecastValue]:
    """Of a forecast of one node."""
    found = [
        ForecastValue(time=utc_iso(t), value=_number(x))
        for t, x in zip(of_node.times_s.tolist(), of_node.values[:, 0].tolist(), strict=True)
    ]
    if of_node.lower is not None and of_node.upper is not None:
        for each, lower, upper in zip(found, of_node.lower[:, 0].tolist(), of_node.upper[:, 0].tolist(), strict=True):
            each.lower, each.upper = _number(lower), _number(upper)
    return found


def _number(value: float) -> float | None:
    """With the seven digits that a float32 holds; None for NaN."""
    return float(f"{value:.7g}") if np.isfinite(value) else None
