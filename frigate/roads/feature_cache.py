"""The road features of a city's networks, computed once and stored in its cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.city.cache import cache_folder, derived_prefix
from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.reading.files import replacing_file, write_file
from frigate.roads.features import FEATURES, METHOD, class_notice, features_and_notice


def ensure_road_features(city: City, *more: RoadNetwork) -> City:
    """The city with the road features of its maps, from its cache, or computed and stored there.

    A map has all roads, open or closed; `more` are the usual roads of a period, whose maps are wanted as well.
    """
    networks = {network.fingerprint: network for network in maps(city, *more)}
    missing = {key: network for key, network in networks.items() if key not in city.road_features}
    if not missing:
        return city
    cache = cache_folder(city.folder)
    found = {key: _features(network, cache) for key, network in missing.items()}
    said = [*(notice for _, notice in found.values()), class_notice(city.network)]
    notices = dict.fromkeys([*city.notices, *filter(None, said)])
    known = {**city.road_features, **{key: features for key, (features, _) in found.items()}}
    return replace(city, road_features=known, notices=tuple(notices))


def features_of(networks: Sequence[RoadNetwork], city: City | Path | None = None) -> list[NDArray[np.float32]]:
    """The raw road features [N,R] of each network.

    Those of the city's own maps come from the city or its cache, and are stored there. `city` may also be a folder,
    whose cache is only read. All others are computed.
    """
    known: Mapping[str, NDArray[np.float32]] = {}
    own: set[str] = set()
    if isinstance(city, City):
        known = city.road_features
        own = {network.fingerprint for network in maps(city)}
    cache = cache_folder(city.folder if isinstance(city, City) else city)
    found = []
    for network in networks:
        features = known.get(network.fingerprint)
        if features is None:
            features, _ = _features(network, cache, keep=network.fingerprint in own)
        found.append(features)
    return found


def maps(city: City, *more: RoadNetwork) -> list[RoadNetwork]:
    """The maps that models may be told of: of the usual roads, with what each of the city's networks has besides."""
    usual = [city.stream.usual_network(), *more]
    return [each.map_with(network) for each in usual for network in city.stream.networks]


def _features(network: RoadNetwork, cache: Path | None, *, keep: bool = True) -> tuple[NDArray[np.float32], str]:
    """The features of a network, and a notice about them or ""."""
    if cache is None:
        return features_and_notice(network)
    key = hashlib.sha256("\n".join([*FEATURES, METHOD]).encode()).hexdigest()[:16]
    path = cache / f"{derived_prefix(network)}road_features-{key}.npy"
    notice_file = path.with_suffix(".txt")
    stored = _stored(path, (network.num_nodes, len(FEATURES)))
    if stored is not None:
        return stored, notice_file.read_text(encoding="utf-8") if notice_file.is_file() else ""
    computed, notice = features_and_notice(network)
    if not keep:
        return computed, notice
    try:
        if notice:
            write_file(notice_file, notice)
        with replacing_file(path) as new, new.open("wb") as file:
            np.save(file, computed, allow_pickle=False)
    except OSError:
        pass  # without a cache they are computed again next time
    return computed, notice


def _stored(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    try:
        stored = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return np.asarray(stored) if stored.shape == shape and stored.dtype == np.float32 else None
