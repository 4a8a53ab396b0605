"""The order in which a topology's nodes are visited."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.towns import bare_topology, random_roads


@given(st.integers(1, 30), st.integers(0, 60), st.integers(0, 10**6))
def test_every_node_is_visited_once(num_nodes: int, num_edges: int, seed: int) -> None:
    topology = random_roads(num_nodes, min(num_edges, num_nodes * (num_nodes - 1)), seed)
    assert sorted(topology.visit_order.tolist()) == list(range(num_nodes))


def test_neighbours_are_visited_soon_after_each_other() -> None:
    place = np.random.default_rng(0).permutation(200)  # a street whose nodes have any numbers
    topology = bare_topology(200, place[:-1].tolist(), place[1:].tolist())
    turn = np.argsort(topology.visit_order.numpy())
    assert np.abs(turn[place[:-1]] - turn[place[1:]]).max() == 1
