"""Which detector reads at which node, by the user's own names, and how far it is from that node. D rows.

A node may have several detectors, and a detector that measures both directions of a road has two nodes. The table is
for display, and keeps the two halves of a detector together in a split. `sensor_table` reads and writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components


def _no_numbers() -> NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True)
class Detectors:
    """Detectors by name, and the nodes they read at."""

    names: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, np.str_))  # [D]
    nodes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # [D] rows
    lon: NDArray[np.float64] = field(default_factory=_no_numbers)  # [D] of the detector itself; NaN: unknown
    lat: NDArray[np.float64] = field(default_factory=_no_numbers)  # [D]
    moved_m: NDArray[np.float64] = field(default_factory=_no_numbers)  # [D] to its node or road; NaN: unknown

    def __len__(self) -> int:
        return len(self.names)

    def rows(self) -> list[list[Any]]:
        """The rows as JSON; None: unknown."""
        columns = [self.names.tolist(), self.nodes.tolist()]
        columns += [[None if np.isnan(x) else x for x in each.tolist()] for each in (self.lon, self.lat, self.moved_m)]
        return [list(row) for row in zip(*columns, strict=True)]

    @classmethod
    def of_rows(cls, rows: list[list[Any]]) -> Detectors:
        """The inverse of `rows`."""
        names, nodes, *numbers = zip(*rows, strict=True) if rows else ((), (), (), (), ())
        places = [np.array([np.nan if x is None else x for x in each], np.float64) for each in numbers]
        return cls(np.array(names, np.str_), np.array(nodes, np.int64), *places)

    def at_nodes(
        self, own: NDArray[np.generic], node_ids: NDArray[np.generic]
    ) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
        """The detectors at each node ("A17; A18", or ""), and the distance of the farthest from it (NaN if unknown).

        Parameters
        ----------
        own
            Ids of all nodes of the city.
        node_ids
            [N] the nodes to look up.
        """
        row_of = {node_id: row for row, node_id in enumerate(node_ids.tolist())}
        texts: list[list[str]] = [[] for _ in row_of]
        moved_m = np.full(len(texts), np.nan)
        for name, node_id, metres in zip(
            self.names.tolist(), own[self.nodes].tolist(), self.moved_m.tolist(), strict=True
        ):
            if (row := row_of.get(node_id)) is not None:
                texts[row].append(name)
                moved_m[row] = np.fmax(moved_m[row], metres)
        return np.array(["; ".join(text) for text in texts], np.str_), moved_m

    def together(self, num_nodes: int) -> NDArray[np.int64]:
        """[N] for each node the first row of those with the same readings: they share a detector."""
        name = np.unique(self.names, return_inverse=True)[1]
        ends = (self.nodes, num_nodes + name)
        size = num_nodes + len(self)
        shared = csr_array((np.ones(len(self)), ends), shape=(size, size))
        group = connected_components(shared, directed=False)[1][:num_nodes]
        _, first, which = np.unique(group, return_index=True, return_inverse=True)
        rows: NDArray[np.int64] = first[which]
        return rows

    def alone(self) -> dict[str, int]:
        """Detectors that have one node and share it with no other -> the row of that node."""
        names, count = np.unique(self.names, return_counts=True)
        nodes, there = np.unique(self.nodes, return_counts=True)
        once = set(names[count == 1].tolist())
        single = set(nodes[there == 1].tolist())
        pairs = zip(self.names.tolist(), self.nodes.tolist(), strict=True)
        return {name: node for name, node in pairs if name in once and node in single}
