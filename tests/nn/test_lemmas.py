"""Lemma 2 (lem:position: positions tell isomorphic neighbourhoods apart), Lemma 3 (lem:1wl: as powerful as 1-WL).

Lemma 1 is about distances: test_positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import make_stream
from frigate.nn.batch import Batch
from frigate.nn.layers import GatedConv, ResidualGatedConv
from frigate.nn.model import Frigate
from frigate.nn.scaling import Scaling
from frigate.roads.features import fit_feature_scaling, road_features
from frigate.roads.positions import Anchors, distances_m
from tests.support.towns import PRESETS, START_S, build_model, in_float64, seen_by, small_settings

Roads = Sequence[tuple[int, int]]


def plain_network(num_nodes: int, roads: Roads) -> RoadNetwork:
    """Roads of one metre."""
    senders = [u for u, _ in roads]
    receivers = [v for _, v in roads]
    place = np.linspace(0, 1e-5 * (num_nodes - 1), num_nodes)
    return RoadNetwork(np.arange(num_nodes), place, place, Edges.of(senders, receivers, np.ones(len(roads))))


def both_ways(streets: Roads) -> list[tuple[int, int]]:
    return [*streets, *((v, u) for u, v in streets)]


def ring(num_nodes: int, *, first: int = 0) -> list[tuple[int, int]]:
    return [(first + i, first + (i + 1) % num_nodes) for i in range(num_nodes)]


def one_snapshot(
    name: str,
    network: RoadNetwork,
    readings: Sequence[float | None] | None,
    anchors: Sequence[int],
    *,
    layers: int,
) -> tuple[Frigate, Batch]:
    """A model of this many layers, and one snapshot of the network as it sees it."""
    N = network.num_nodes
    values = np.full((2, N), np.nan)
    if readings is not None:
        values[:] = [np.nan if x is None else x for x in readings]
    settings = small_settings(name, layers=layers, width=32, anchors=2)
    place = [(float(network.lon[a]), float(network.lat[a])) for a in anchors]
    scaling = Scaling(
        value_offset=0.0,
        value_scale=1.0,
        length_scale_m=1.0,
        position_scale_m=3.0,
        anchors=Anchors(
            "random",
            0,
            tuple((a,) for a in anchors),
            tuple((x,) for x, _ in place),
            tuple((y,) for _, y in place),
        ),
        roads=fit_feature_scaling(road_features(network), network.present) if name == "default" else None,
    )
    town = seen_by(make_stream(values, network, start_s=START_S, step_s=300), settings, scaling)
    return build_model(settings, scaling).double(), in_float64(town.batch([0], past=1, horizon=1))


def without_positions(batch: Batch) -> Batch:
    return replace(
        batch, topologies=tuple(replace(t, positions=torch.zeros_like(t.positions)) for t in batch.topologies)
    )


def embeddings(model: Frigate, batch: Batch) -> Tensor:
    """z [N,D] of the first snapshot."""
    with torch.inference_mode():
        return model.encode_snapshots(batch)[:, 0, 0]


@pytest.mark.parametrize("name", PRESETS)
def test_lemma_2(name: str) -> None:
    """On a ring every 1-hop neighbourhood is alike. v1 is 2 from both anchors, v2 is 5 from both.

    a1 = 0, v1 = 2, a2 = 4, v2 = 9 of 14: the figure of the paper is not in its source.
    """
    network = plain_network(14, both_ways(ring(14)))
    v1, v2 = 2, 9
    model, batch = one_snapshot(name, network, None, [0, 4], layers=1)
    anchors = Anchors("random", 0, ((0,), (4,)), ((0.0,), (4e-5,)), ((0.0,), (4e-5,)))
    assert distances_m(network, anchors)[[v1, v2]].tolist() == [[2, 2], [5, 5]]
    z = embeddings(model, batch)
    assert (z[v1] - z[v2]).abs().max() > 1e-3
    z = embeddings(model, without_positions(batch))
    torch.testing.assert_close(z[v1], z[v2], rtol=0, atol=1e-12)
    assert z[v1].any()


def with_constant_gates(model: Frigate, omega: float) -> Frigate:
    """Lemma 3: w is zero, so that every gate is sigmoid(b)."""
    with torch.no_grad():
        for convolution in model.convolutions:
            assert isinstance(convolution, GatedConv | ResidualGatedConv)
            convolution.gate.weight.weight.zero_()
            convolution.gate.weight.bias.fill_(omega)
    return model


def colours(num_nodes: int, roads: Roads, start: Sequence[object], rounds: int) -> list[int]:
    """1-WL on a directed graph: a node's next colour is its own, and those of its out- and of its in-neighbours.

    Colours are hashes of what a node has seen, so that they compare across graphs.
    """
    colour = [hash(x) for x in start]
    for _ in range(rounds):
        out: list[list[int]] = [[] for _ in range(num_nodes)]
        in_: list[list[int]] = [[] for _ in range(num_nodes)]
        for u, v in roads:
            out[u].append(colour[v])
            in_[v].append(colour[u])
        colour = [hash((colour[v], tuple(sorted(out[v])), tuple(sorted(in_[v])))) for v in range(num_nodes)]
    return colour


LAYERS = 3


def coloured(num_nodes: int, roads: Roads, readings: Sequence[float | None] | None = None) -> tuple[list[int], Tensor]:
    """1-WL's colours after a round for each layer, and the embeddings of the paper's model without positions."""
    network = plain_network(num_nodes, roads)
    model, batch = one_snapshot("paper", network, readings, [0, 1], layers=LAYERS)
    z = embeddings(with_constant_gates(model, 0.4), without_positions(batch))
    return colours(num_nodes, roads, readings or [None] * num_nodes, LAYERS), z


def same_multiset(left: Tensor, right: Tensor) -> bool:
    """Whether the rows of one are the rows of the other, in any order."""
    first, second = (torch.tensor(sorted(z.round(decimals=6).tolist())) for z in (left, right))
    return torch.allclose(first, second, rtol=0, atol=1e-5)


def assert_same_partition(colour: Sequence[int], z: Tensor) -> None:
    """Two nodes have the same embedding where, and only where, 1-WL gives them the same colour."""
    apart = (z[:, None] - z[None]).abs().amax(dim=-1)
    for u in range(len(colour)):
        for v in range(u):
            if colour[u] == colour[v]:
                assert apart[u, v] < 1e-9
            else:
                assert apart[u, v] > 1e-6


def star(arms: int) -> list[tuple[int, int]]:
    return [(0, i + 1) for i in range(arms)]


DIFFERENT = {
    # the number of neighbours: a mean cannot tell
    "ring and complete graph of 4": (
        (4, both_ways(ring(4)), None),
        (4, both_ways([*ring(4), (0, 2), (1, 3)]), None),
    ),
    "path and star of 4": ((4, both_ways([(0, 1), (1, 2), (2, 3)]), None), (4, both_ways(star(3)), None)),
    # the shares are equal, the numbers are not: a mean cannot tell, a sum can
    "one of each and two of each": (
        (5, [(0, 1), (0, 2)], [None, 1.0, 2.0, 1.0, 2.0]),
        (5, star(4), [None, 1.0, 2.0, 1.0, 2.0]),
    ),
    # the kinds are equal: neither a mean of kinds nor a maximum can tell
    "two low one high and one low two high": (
        (4, star(3), [None, 1.0, 1.0, 2.0]),
        (4, star(3), [None, 1.0, 2.0, 2.0]),
    ),
    # the direction alone
    "one-way ring and its detour": ((3, [(0, 1), (1, 2), (2, 0)], None), (3, [(0, 1), (1, 2), (0, 2)], None)),
    "into and out of": ((3, [(1, 0), (2, 0)], None), (3, [(0, 1), (0, 2)], None)),
    # two rounds are needed
    "trees with equal degrees": (
        (7, both_ways([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (2, 6)]), None),
        (7, both_ways([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (1, 6)]), None),
    ),
}


@pytest.mark.parametrize("pair", DIFFERENT)
def test_lemma_3_graphs_that_1wl_tells_apart(pair: str) -> None:
    (left, z_left), (right, z_right) = (coloured(*graph) for graph in DIFFERENT[pair])
    assert sorted(left) != sorted(right)
    assert not same_multiset(z_left, z_right)
    assert_same_partition([*left, *right], torch.cat([z_left, z_right]))


ALIKE = {
    "ring of 6 and two triangles": (
        (6, both_ways(ring(6)), None),
        (6, both_ways([*ring(3), *ring(3, first=3)]), None),
    ),
    "one-way rings": ((6, ring(6), None), (6, [*ring(3), *ring(3, first=3)], None)),
    "the same with other names": (
        (5, [(0, 1), (1, 2), (2, 0), (3, 1), (2, 4)], [1.0, None, 2.0, 1.0, None]),
        (5, [(4, 3), (3, 2), (2, 4), (1, 3), (2, 0)], [None, 1.0, 2.0, None, 1.0]),
    ),
}


@pytest.mark.parametrize("pair", ALIKE)
def test_graphs_that_1wl_cannot_tell_apart(pair: str) -> None:
    """Without positions neither can the model: the test above would fail if it told everything apart."""
    (left, z_left), (right, z_right) = (coloured(*graph) for graph in ALIKE[pair])
    assert sorted(left) == sorted(right)
    assert same_multiset(z_left, z_right)
    assert_same_partition([*left, *right], torch.cat([z_left, z_right]))


@pytest.mark.parametrize("seed", range(6))
def test_lemma_3_node_by_node_on_random_graphs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    N = 12
    pairs = [(u, v) for u in range(N) for v in range(N) if u != v]
    roads = [pairs[i] for i in rng.permutation(len(pairs))[: int(rng.integers(5, 11))]]
    colour, z = coloured(N, roads)
    assert_same_partition(colour, z)
    assert 1 < len(set(colour)) < N  # some alike, some not


def test_positions_tell_apart_what_1wl_cannot() -> None:
    """The corollary: strictly more than 1-WL."""
    found = []
    for _, roads, _ in ALIKE["ring of 6 and two triangles"]:
        model, batch = one_snapshot("paper", plain_network(6, roads), None, [0, 1], layers=LAYERS)
        found.append(embeddings(with_constant_gates(model, 0.4), batch))
    assert not same_multiset(*found)
