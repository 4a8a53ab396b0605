"""Road features come from the city that has them, or its cache, and only its own networks are kept there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.city.network import RoadNetwork
from frigate.roads import feature_cache
from frigate.roads.feature_cache import ensure_road_features, features_of
from frigate.roads.features import features_and_notice, road_features
from tests.support.towns import edited, random_network, random_stream


def test_features_are_computed_once_and_only_a_citys_own_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_network(12, seed=0)
    write_city(City("Town", random_stream([network], seed=0)), tmp_path / "town")
    city = read_city(tmp_path / "town")
    other = edited(city.network, seed=1)
    expected = [road_features(each) for each in (city.network, other)]
    computed: list[str] = []

    def counted(network: RoadNetwork) -> object:
        computed.append(network.fingerprint)
        return features_and_notice(network)

    monkeypatch.setattr(feature_cache, "features_and_notice", counted)
    asked = [city.network, other]
    # The city's own are kept; those of another network are computed each time, wherever they are asked for.
    for where in (city, city, read_city(tmp_path / "town"), tmp_path / "town", tmp_path / "town" / "cache"):
        for found, wanted in zip(features_of(asked, where), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert computed.count(city.network.fingerprint) == 1 and computed.count(other.fingerprint) == 5
    assert len(list((tmp_path / "town" / "cache").glob("*road_features*.npy"))) == 1
    # What a city holds in memory is used as it is; without any city everything is computed.
    (held,) = features_of([city.network], replace(city, road_features={city.network.fingerprint: expected[0] + 1}))
    np.testing.assert_array_equal(held, expected[0] + 1)
    for nowhere in (None, tmp_path / "gone"):
        np.testing.assert_array_equal(features_of([city.network], nowhere)[0], expected[0])


def test_a_city_has_the_features_of_its_map_and_of_each_new_road_also_from_the_cache(tmp_path: Path) -> None:
    """A record of many closures costs no more than one without: what is closed is no matter of the map."""
    network = random_network(12, seed=0)
    ids = network.node_ids.tolist()
    roads = list(zip(network.senders[:6].tolist(), network.receivers[:6].tolist(), strict=True))
    closed = [network, *(network.close([(ids[a], ids[b])]) for a, b in roads), network.close_nodes(ids[:1])]
    longer = edited(network, seed=1)
    write_city(City("Town", random_stream([*closed, longer], seed=0)), tmp_path / "town")
    for _ in ("computed", "kept"):
        city = ensure_road_features(read_city(tmp_path / "town"))
        assert len(city.stream.networks) == len(closed) + 1
        both = network, network.map_with(longer)
        assert set(city.road_features) == {each.fingerprint for each in both}
        assert not np.array_equal(road_features(both[0]), road_features(both[1]))
        for each in both:
            np.testing.assert_array_equal(city.road_features[each.fingerprint], road_features(each))
