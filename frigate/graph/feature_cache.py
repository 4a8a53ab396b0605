"""The road features of a city's networks, computed once and kept in its cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.data.cache import derived_prefix
from frigate.data.folder import City
from frigate.data.network import RoadNetwork
from frigate.graph.road_features import FEATURES, METHOD, features_and_notice


def ensure_road_features(city: City) -> City:
    """The city with the road features of every topology: from its cache, or computed and kept there."""
    if len(city.road_features) == len(city.stream.topologies):
        return city
    cache = None
    if city.folder is not None:
        cache = city.folder if (city.folder / "cache.json").is_file() else city.folder / "cache"
    found = [_features(network, cache) for network in city.stream.topologies]
    notices = dict.fromkeys([*city.notices, *(notice for _, notice in found if notice)])
    return replace(city, road_features=tuple(features for features, _ in found), notices=tuple(notices))


def _features(network: RoadNetwork, cache: Path | None) -> tuple[NDArray[np.float32], str]:
    """The features of a network, and what has to be said of them, "" where nothing."""
    if cache is None or not cache.is_dir():
        return features_and_notice(network)
    key = hashlib.sha256("\n".join([*FEATURES, METHOD]).encode()).hexdigest()[:16]
    path = cache / f"{derived_prefix(network)}road_features-{key}.npy"
    beside = path.with_suffix(".txt")
    stored = _stored(path, (network.num_nodes, len(FEATURES)))
    if stored is not None:
        return stored, beside.read_text(encoding="utf-8") if beside.is_file() else ""
    computed, notice = features_and_notice(network)
    try:
        if notice:
            beside.write_text(notice, encoding="utf-8")
        with tempfile.NamedTemporaryFile(dir=cache, suffix=".partial", delete=False) as file:
            np.save(file, computed, allow_pickle=False)
        os.replace(file.name, path)
    except OSError:
        pass  # a cache that cannot be written costs time, nothing else
    return computed, notice


def _stored(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    try:
        stored = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return np.asarray(stored) if stored.shape == shape and stored.dtype == np.float32 else None
