"""Trips depend on the map alone: those of a city's network are kept in its cache, where a bare machine finds them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.data.cache import cache_folder, derived_prefix
from frigate.data.files import replacing_file
from frigate.data.network import RoadNetwork
from frigate.demand.calibration import RouteSet, route_set
from frigate.demand.estimate import DemandSettings, num_searches, sample_routes, set_searches
from frigate.demand.route_search import LineGraph, Routes, line_graph

METHOD = "2"  # another one for every change that finds other trips


def cached_trips(
    network: RoadNetwork,
    settings: DemandSettings,
    *,
    forbidden_turns: NDArray[np.int64] | None = None,
    seed: int = 0,
    folder: Path | None = None,
) -> tuple[LineGraph, tuple[RouteSet, ...]]:
    """The route sets of a network; `folder` is that of a city, whose cache is used."""
    graph = line_graph(network, forbidden_turns)
    cache = cache_folder(folder)
    if cache is None:
        return graph, tuple(route_set(graph, routes) for routes in sample_routes(graph, settings, seed=seed))
    turns = b"" if forbidden_turns is None else np.ascontiguousarray(forbidden_turns).tobytes()
    facts = [METHOD, [asdict(search) for search in set_searches(settings)], num_searches(graph), seed]
    key = hashlib.sha256(json.dumps(facts).encode() + turns).hexdigest()[:16]
    path = cache / f"{derived_prefix(network)}trips-{key}.npz"
    sets = _stored(path, settings.sets)
    if sets is None:
        sets = sample_routes(graph, settings, seed=seed)
        try:
            with replacing_file(path) as new, new.open("wb") as file:
                arrays = {
                    f"{k}_{f.name}": getattr(routes, f.name) for k, routes in enumerate(sets) for f in fields(routes)
                }
                np.savez_compressed(file, allow_pickle=False, **arrays)
        except OSError:
            pass  # a cache that cannot be written costs time, nothing else
    return graph, tuple(route_set(graph, routes) for routes in sets)


def _stored(path: Path, sets: int) -> list[Routes] | None:
    try:
        with np.load(path, allow_pickle=False) as data:
            return [Routes(**{f.name: data[f"{k}_{f.name}"] for f in fields(Routes)}) for k in range(sets)]
    except (OSError, ValueError, EOFError, KeyError):
        return None
