"""Trips depend only on the map, so they are stored in the city's cache and need not be sampled again elsewhere."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict, fields
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from frigate.city.cache import cache_folder, derived_prefix
from frigate.city.network import RoadNetwork
from frigate.demand.calibration import RouteSet, route_set
from frigate.demand.estimate import sample_routes
from frigate.demand.rerouting import Detours, find_detours
from frigate.demand.route_search import Routes
from frigate.demand.settings import DemandSettings, num_searches, set_searches
from frigate.reading.files import replacing_file
from frigate.roads.line_graph import LineGraph, line_graph

METHOD = "7"  # increase with every change that alters the trips
KEPT = 2  # networks whose trips stay in memory: training, scoring and forecasting use the same one in turn

MAX_DETOURED = 5_000_000  # roads on all detours kept in memory: about 100 MB

_detours: dict[str, Detours] = {}  # least recently used first
_kept: dict[str, tuple[RouteSet, ...]] = {}  # least recently used first


def cached_trips(
    network: RoadNetwork,
    settings: DemandSettings,
    *,
    forbidden_turns: NDArray[np.int64] | None = None,
    seed: int = 0,
    folder: Path | None = None,
) -> tuple[LineGraph, tuple[RouteSet, ...]]:
    """The line graph and route sets of a network; `folder` is the city folder whose cache is used."""
    graph = line_graph(network, forbidden_turns)
    # Not the network's fingerprint, which ignores the order of the roads: trips refer to roads by index.
    facts = [METHOD, graph.digest, [asdict(search) for search in set_searches(settings)], num_searches(graph), seed]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    cache = cache_folder(folder)
    path = None if cache is None else cache / f"{derived_prefix(network)}trips-{key}.npz"
    sets = _kept.pop(key, None)
    if sets is None:
        found = None if path is None else _stored(path, settings.sets)
        routes = found or sample_routes(graph, settings, seed=seed)
        sets = tuple(route_set(graph, each) for each in routes)
        if path is not None and found is None:
            _store(path, routes)
    elif path is not None and not path.exists():
        _store(path, [trips.routes for trips in sets])
    _kept[key] = sets
    for old in list(_kept)[:-KEPT]:
        _kept.pop(old, None)
    return graph, sets


def cached_detours(
    old: RoadNetwork,
    new: RoadNetwork,
    sets: tuple[RouteSet, ...],
    settings: DemandSettings,
    *,
    seed: int,
    forbidden_turns: NDArray[np.int64] | None = None,
) -> Detours:
    """`find_detours` for `cached_trips`, cached because training, scoring and forecasting reuse the result."""
    graphs = [line_graph(network, forbidden_turns).digest for network in (old, new)]
    searches = [asdict(search) for search in set_searches(settings)]
    key = json.dumps([graphs, searches, settings.detour_sets, seed])
    found = _detours.pop(key, None)
    if found is None:
        found = find_detours(old, new, sets, settings, seed=seed, forbidden_turns=forbidden_turns)
    _detours[key] = found
    while sum(len(trips.routes.roads) for each in list(_detours.values()) for trips in each.routes) > MAX_DETOURED:
        _detours.pop(next(iter(_detours)), None)
    return found


def _store(path: Path, sets: list[Routes]) -> None:
    try:
        with replacing_file(path) as new, new.open("wb") as file:
            arrays = {f"{k}_{f.name}": getattr(routes, f.name) for k, routes in enumerate(sets) for f in fields(routes)}
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError:
        pass  # an unwritable cache only costs time


def _stored(path: Path, sets: int) -> list[Routes] | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            return [Routes(**{f.name: data[f"{k}_{f.name}"] for f in fields(Routes)}) for k in range(sets)]
    except (OSError, ValueError, EOFError, KeyError, BadZipFile, zlib.error):
        return None  # missing or damaged
