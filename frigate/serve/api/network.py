"""The road network, which a client fetches once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from frigate.pages.wire import MEDIA_TYPE
from frigate.roads.geometry import road_lines
from frigate.serve.api.admission import GuardedRoute, allow
from frigate.serve.api.common import BINARY, ServiceOf, sent_to_many
from frigate.serve.city import ServedCity
from frigate.serve.problems import problems

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["network"], dependencies=[allow("read")])
GEOJSON = "application/geo+json"
DIGITS = 7  # decimals of a degree: about a centimetre


@router.get("/network.bin", response_class=Response, responses={**problems(), 200: {"content": BINARY}})
def network_binary(request: Request, service: ServiceOf) -> Response:
    """The network as a binary container (format: `frigate.pages.wire`).

    Header: version, name, quantity, unit, timezone, step_seconds, horizon, node_ids, street_names, has_demand, level
    (of the intervals that the map shows, in percent; null: the run has none). Arrays: lon, lat, sensor for each node;
    source, target, street for each road; line_start, line_lonlat for the road shapes.
    """
    city = service.city
    return sent_to_many(request, "network.bin", city.digest, lambda: city.container, MEDIA_TYPE)


@router.get(
    "/network.geojson",
    response_class=Response,
    responses={**problems(), 200: {"content": {GEOJSON: {"schema": {"type": "object"}}}}},
)
def network_geojson(request: Request, service: ServiceOf) -> Response:
    """The network as GeoJSON: a point for each intersection, a line for each road."""

    def body() -> bytes:
        return json.dumps(_geojson(service.city), separators=(",", ":")).encode()

    return sent_to_many(request, "network.geojson", service.city.digest, body, GEOJSON)


def _geojson(city: ServedCity) -> dict[str, Any]:
    network = city.network
    names = city.node_names
    places = np.round(np.stack([network.lon, network.lat], axis=1), DIGITS).tolist()
    nodes = [
        _feature("Point", place, {"node": name, "sensor": sensor})
        for place, name, sensor in zip(places, names, city.sensors.tolist(), strict=True)
    ]
    lines, _ = road_lines(network, network.edges)
    ends = zip(network.senders.tolist(), network.receivers.tolist(), network.edges.name.tolist(), strict=True)
    roads = [
        _feature("LineString", np.round(line, DIGITS).tolist(), {"source": names[a], "target": names[b], "name": name})
        for line, (a, b, name) in zip(lines, ends, strict=True)
    ]
    return {"type": "FeatureCollection", "name": city.name, "features": nodes + roads}


def _feature(kind: str, coordinates: Any, properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Feature", "geometry": {"type": kind, "coordinates": coordinates}, "properties": properties}
