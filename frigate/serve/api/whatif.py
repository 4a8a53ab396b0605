"""Questions: what if roads were closed or added, and which trips use a road."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from frigate.calendar import utc_iso
from frigate.errors import SettingsError
from frigate.forecasting.plan import RoadChange
from frigate.forecasting.summary import largest_changes
from frigate.pages import wire
from frigate.pages.trips import trips_meta
from frigate.serve.api.admission import GuardedRoute, allow
from frigate.serve.api.closures import NodeName
from frigate.serve.api.common import BINARY, Level, Moment, NodeText, ServiceOf, StateOf, node_row, road_row, sent
from frigate.serve.city import ServedCity
from frigate.serve.engine import SelectLink, WhatIf
from frigate.serve.problems import problems

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["questions"], dependencies=[allow("read")])
CHANGES_LISTED = 10
MAX_ROADS = 50
TRIP_ENDS = 40  # origins, and destinations, that are listed

Road = tuple[NodeName, NodeName]


class Question(BaseModel):
    """Roads to close and to add, one way each: [source, target], from a time until another."""

    model_config = ConfigDict(extra="forbid")
    close: list[Road] = Field(default=[], max_length=MAX_ROADS, examples=[[["41", "42"]]])
    add: list[Road] = Field(default=[], max_length=MAX_ROADS, examples=[[]])
    begin: Moment | None = Field(None, description="Default: with the first step ahead", examples=[None])
    end: Moment | None = Field(None, description="Default: with the last step ahead", examples=[None])


class NodeChange(BaseModel):
    """A node whose traffic changes: means over the forecast steps."""

    node: str
    street: str
    before: float
    after: float
    lower: float | None = Field(default=None, description="With a level: mean of the lower ends after the change")
    upper: float | None = Field(default=None, description="Mean of the upper ends")


class WhatIfAnswer(BaseModel):
    """Summary of the forecast before and after the change to the roads."""

    issued_at: str = Field(examples=["2024-03-04T08:00:00Z"])
    times: list[str]
    notices: list[str]
    level: float | None = Field(default=None, description="Of the intervals, in percent")
    largest: list[NodeChange] = Field(description="The ten nodes that change most")


@router.post("/what-if", response_model=WhatIfAnswer, responses={**problems(408, 413, 415), 200: {"content": BINARY}})
def what_if(request: Request, state: StateOf, body: Question, level: Level = None) -> Any:
    """Forecast as if roads were closed or added. The live state does not change.

    The response is a binary container (format: `frigate.pages.wire`) with the arrays before and after [H,N],
    road_before and road_after [H,E]; with a level, lower_before, upper_before, lower_after and upper_after [H,N]. Its
    header is the JSON document, which `Accept: application/json` returns alone.
    """
    service = state.service
    city = service.city
    if level is not None:
        service.engine.run.require_intervals(level)
    if not body.close and not body.add:
        raise HTTPException(422, "name a road to close or to add")
    for road in body.close:
        road_row(city, *road, 422)
    for road in body.add:
        for node in road:
            node_row(city, node, 422)
        if road in city.road_of or road[0] == road[1]:
            raise HTTPException(422, f"the road from {road[0]} to {road[1]} already exists, or its ends are the same")
    issued_s = service.latest.get().issued.issued_s
    change = RoadChange(body.close, body.add, body.begin, body.end)
    with state.waiting_questions():
        try:
            result = service.engine.what_if(issued_s, change, level=level)
        except SettingsError as error:  # of its times
            raise HTTPException(422, str(error)) from None
    meta = {
        "issued_at": utc_iso(issued_s),
        "times": [utc_iso(time_s) for time_s in result.times_s.tolist()],
        "notices": list(result.notices),
        "level": level,
        "largest": _changes(city, result),
    }
    if "application/json" in request.headers.get("accept", ""):
        return meta
    names = ("before", "after", "road_before", "road_after")
    arrays = {name: getattr(result, name) for name in names} | result.bands
    return sent(request, wire.encode(meta, arrays), wire.MEDIA_TYPE)


def _changes(city: ServedCity, result: WhatIf) -> list[dict[str, Any]]:
    before = result.before.mean(0)
    after = result.after.mean(0)  # NaN, and so not listed, where there is no forecast
    ends = {name: result.bands[f"{name}_after"].mean(0) if result.bands else None for name in ("lower", "upper")}
    return [
        {
            "node": city.node_names[row],
            "street": city.street(row),
            "before": round(float(before[row]), 4),
            "after": round(float(after[row]), 4),
            **{name: round(float(end[row]), 4) if end is not None else None for name, end in ends.items()},
        }
        for row in largest_changes(before, after, count=CHANGES_LISTED)
    ]


def _select_link(
    service: ServiceOf,
    source: Annotated[NodeText | None, Query(examples=["34"])] = None,
    target: Annotated[NodeText | None, Query(examples=["41"])] = None,
    node: Annotated[NodeText | None, Query(description="In a city on roads: the id of a road")] = None,
) -> SelectLink:
    """The trips that the caller asks for."""
    city = service.city
    if node is not None and source is None and target is None:
        if not len(city.network.lines):
            raise HTTPException(422, "node: only in a city on roads is a node a road. Name source and target")
        node_row(city, node)
        asked: tuple[str, str] | str = node
    elif source is not None and target is not None and node is None:
        road_row(city, source, target)
        asked = (source, target)
    else:
        raise HTTPException(422, "name a road by source and target, or in a city on roads by node")
    found = service.engine.select_link(asked, now_s=int(service.now()))
    if found is None:
        raise HTTPException(404, "this run was trained without demand, so trips are unknown")
    return found


TripsOf = Annotated[SelectLink, Depends(_select_link)]


class TripEnd(BaseModel):
    node: str
    lon: float
    lat: float
    share: float = Field(description="Share of the trips on the road")


class RoadName(BaseModel):
    source: str
    target: str


class MovementThrough(BaseModel):
    """The trips from one road to another that use the road between."""

    origin: RoadName
    destination: RoadName
    vehicles_per_day: float


class Trips(BaseModel):
    """The trips on a road, from the estimated demand."""

    vehicles_per_hour: float = Field(description="At this hour of this kind of day")
    vehicles_per_day: float = Field(description="Averaged over the week")
    origins: list[TripEnd] = Field(alias="from", description="Where they start, most frequent first")
    destinations: list[TripEnd] = Field(alias="to", description="Where they end, most frequent first")
    movements: list[MovementThrough] = Field(description="The largest, from the first road to the last")
    movements_in_all: int


@router.get("/trips", response_model_by_alias=True, responses=problems(404))
def trips(found: TripsOf, service: ServiceOf) -> Trips:
    """The trips that use a road: where they start and end."""
    return Trips.model_validate(_trips_meta(found, service.city))


@router.get("/trips.bin", response_class=Response, responses={**problems(404), 200: {"content": BINARY}})
def trips_binary(request: Request, found: TripsOf, service: ServiceOf) -> Response:
    """The trips that use a road, and which roads they take, as a binary container (format: `frigate.pages.wire`).

    Its header is the JSON document of `/v1/trips`. Arrays: road_flow [E] and node_flow [N], the vehicles of these trips
    per hour.
    """
    flows = {"road_flow": found.through.road_flow, "node_flow": found.through.node_flow}
    arrays = {name: wire.rounded(flow[found.hour]) for name, flow in flows.items()}
    return sent(request, wire.encode(_trips_meta(found, service.city), arrays), wire.MEDIA_TYPE)


def _trips_meta(found: SelectLink, city: ServedCity) -> dict[str, Any]:
    return trips_meta(found.through, city.network, hour=found.hour, ends=TRIP_ENDS)
