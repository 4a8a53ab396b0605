"""The table of sensors, `sensor_id, node_id [, lon, lat, moved_m]`: the detectors' own names and places."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from frigate.city.detectors import Detectors
from frigate.city.network import RoadNetwork
from frigate.city.network_tables import known_rows
from frigate.reading.columns import NodeIndex, numbers, text
from frigate.reading.notices import Notices
from frigate.reading.tables import city_table

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("sensor_id", "node_id")
PLACE = ("lon", "lat", "moved_m")


def read_detectors(path: Path, network: RoadNetwork, *, notices: Notices) -> Detectors:
    """Read the sensor table of a city folder."""
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
