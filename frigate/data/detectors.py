"""The table of sensors: which detector reads at which node, under the user's own name, and how far it was moved there.

    sensors    sensor_id, node_id [, lon, lat, moved_m]

An import writes it where detectors have names or places of their own; nothing is computed from it. A node may have
several detectors, and a detector that measures both directions of a road has two nodes. D rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from frigate.data.notices import Notices

if TYPE_CHECKING:
    import polars as pl

    from frigate.data.network import RoadNetwork

COLUMNS, PLACE = ("sensor_id", "node_id"), ("lon", "lat", "moved_m")


def _no_numbers() -> NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True)
class Detectors:
    """Detectors by their names, and the nodes that they read at."""

    names: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, np.str_))  # [D]
    nodes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # [D] rows
    lon: NDArray[np.float64] = field(default_factory=_no_numbers)  # [D] where it stands; NaN: not known
    lat: NDArray[np.float64] = field(default_factory=_no_numbers)  # [D]
    moved_m: NDArray[np.float64] = field(default_factory=_no_numbers)  # [D] from there to its node or road; NaN

    def __len__(self) -> int:
        return len(self.names)

    def rows(self) -> list[list[Any]]:
        """The table as JSON has it; None: not known."""
        columns = [self.names.tolist(), self.nodes.tolist()]
        columns += [[None if np.isnan(x) else x for x in each.tolist()] for each in (self.lon, self.lat, self.moved_m)]
        return [list(row) for row in zip(*columns, strict=True)]

    @classmethod
    def of_rows(cls, rows: list[list[Any]]) -> Detectors:
        """The opposite of `rows`."""
        names, nodes, *numbers = zip(*rows, strict=True) if rows else ((), (), (), (), ())
        places = [np.array([np.nan if x is None else x for x in each], np.float64) for each in numbers]
        return cls(np.array(names, np.str_), np.array(nodes, np.int64), *places)

    def at_nodes(
        self, own: NDArray[np.generic], node_ids: NDArray[np.generic]
    ) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
        """The detectors of each node, "A17; A18" or "", and how far the farthest was moved, NaN where not known.

        Parameters
        ----------
        own
            Ids of the city's nodes.
        node_ids
            [N] the nodes to name them at.
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

    def alone(self) -> dict[str, int]:
        """The node's row of every detector that is the only one at its only node."""
        names, count = np.unique(self.names, return_counts=True)
        nodes, there = np.unique(self.nodes, return_counts=True)
        once, single = set(names[count == 1].tolist()), set(nodes[there == 1].tolist())
        pairs = zip(self.names.tolist(), self.nodes.tolist(), strict=True)
        return {name: node for name, node in pairs if name in once and node in single}


def read_detectors(path: Path, network: RoadNetwork, *, notices: Notices) -> Detectors:
    """The table of a city folder."""
    from frigate.data.columns import NodeIndex, numbers, text
    from frigate.data.network_tables import known_rows
    from frigate.data.tables import city_table

    table = city_table(path, COLUMNS, PLACE, notices=notices).read()
    names = text(table, "sensor_id").fill_null("").to_numpy().astype(np.str_)
    nodes = known_rows(table, "node_id", NodeIndex(network.node_ids))
    unknown = np.full(len(table), np.nan)
    return Detectors(names, nodes, *(numbers(table, c)[0] if c in table else unknown for c in PLACE))


def detector_frame(detectors: Detectors, node_ids: NDArray[np.generic]) -> pl.DataFrame:
    """The detectors as a table."""
    import polars as pl

    own = {"sensor_id": detectors.names, "node_id": node_ids[detectors.nodes]}
    numbers = {c: pl.Series(getattr(detectors, c), nan_to_null=True) for c in PLACE}
    return pl.DataFrame(own | numbers)
