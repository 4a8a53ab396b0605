"""The table of forbidden turns: from the road source -> via into the road via -> target. K turns.

Only a city on roads (`--on roads`) uses it: there the edges are turns. Forecasts on intersections ignore it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.city.network_tables import known_rows
from frigate.reading.columns import NodeIndex
from frigate.reading.notices import Notices
from frigate.reading.tables import city_table

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("source", "via", "target")


def read_turns(path: Path, networks: Sequence[RoadNetwork], *, notices: Notices) -> NDArray[np.int64]:
    """[K,3] rows of the nodes, each turn once. Both roads of a turn must be in one of the networks over time."""
    table = city_table(path, COLUMNS, notices=notices).read()
    index = NodeIndex(networks[0].node_ids)
    turns = np.stack([known_rows(table, column, index) for column in COLUMNS], axis=1)
    there = np.zeros((len(turns), 2), bool)  # the road left and the road entered
    for network in networks:
        known = network.roads.senders * network.num_nodes + network.roads.receivers
        there |= np.isin(turns[:, :2] * network.num_nodes + turns[:, 1:], known)
    place = table.place_of(*COLUMNS)
    lost = ~(there[:, 0] & there[:, 1])
    notices.add_rows("Forbidden turns left out, one of their roads is not in the network", lost, place)
    again = np.ones(len(turns), bool)
    again[np.unique(turns, axis=0, return_index=True)[1]] = False
    notices.add_rows("Forbidden turns named again, taken once", again & ~lost, place)
    return turns[~lost & ~again]


def turn_frame(turns: NDArray[np.int64], node_ids: NDArray[np.generic]) -> pl.DataFrame:
    """Forbidden turns as a table."""
    import polars as pl

    return pl.DataFrame({column: node_ids[turns[:, i]] for i, column in enumerate(COLUMNS)})
