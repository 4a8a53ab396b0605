"""The tables of nodes and roads, read into a network and written from one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from frigate.city.network import Edges, RoadNetwork, clean_edges, joined_nodes, no_lines, no_names
from frigate.coordinates import haversine_m
from frigate.errors import CityError
from frigate.reading.columns import NodeIndex, lines_wkb, lon_lat, new_ids, numbers, words
from frigate.reading.notices import Notices
from frigate.reading.tables import Table, city_table

if TYPE_CHECKING:
    import polars as pl

ATTRIBUTES = ("road_class", "lanes", "speed_kph", "name", "geometry")
NODE_COLUMNS = ("node_id", "lon", "lat")
EDGE_COLUMNS = ("source", "target", "length_m", *ATTRIBUTES)
APART_M = 50.0  # nodes this far apart, and
SHORT = 50  # a road this many times shorter: not in metres


def read_nodes(
    path: Path, *, notices: Notices, rename: Mapping[str, str] | None = None, as_text: bool = False
) -> RoadNetwork:
    """A network with the nodes of this table and no roads."""
    table = city_table(path, NODE_COLUMNS, ("name", "geometry"), rename=rename, notices=notices).read()
    if not len(table):
        raise CityError(f"{path.name} has no rows. A city needs nodes")
    ids = new_ids(table, "node_id", as_text=as_text)
    lon, lat = lon_lat(table)
    lines = lines_wkb(table, "geometry") if "geometry" in table else no_lines()
    return RoadNetwork(ids, lon, lat, Edges.none(), lines=lines, names=node_names(words(table, "name", notices)))


def node_names(given: NDArray[np.str_]) -> NDArray[np.str_]:
    """[N] the names of nodes as a network keeps them: an empty array if none has a name."""
    return given if (given != "").any() else no_names()


def read_edges(
    path: Path, network: RoadNetwork, *, notices: Notices, rename: Mapping[str, str] | None = None
) -> RoadNetwork:
    """The network with the roads of this table, cleaned. Notices say what was left out or repaired."""
    table = city_table(path, EDGE_COLUMNS[:2], EDGE_COLUMNS[2:], rename=rename, notices=notices).read()
    index = NodeIndex(network.node_ids)
    senders, receivers = (known_rows(table, column, index) for column in ("source", "target"))
    edges, cleaned = clean_edges(roads_of(table, network, senders, receivers, notices))
    cleaned.note(notices, table.place_of("source", "target", "length_m"))
    return network.with_roads(edges)


def known_rows(
    table: Table, column: str, index: NodeIndex, wanted: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """[rows of the table] rows of the nodes in a column. An unknown node is refused in all rows, or in those wanted."""
    rows = index.rows(table, column)
    unknown = rows < 0 if wanted is None else (rows < 0) & wanted

    def why(row: int) -> str:
        name = table.frame[column][row]
        if name is None:
            return f"{column} is empty. Name a node"
        hint = index.nearest(name)
        return f'{column} "{name}" is not in the network{hint}. Add it to the nodes, or delete the row'

    table.refuse_where(unknown, why)
    return rows


def roads_of(
    table: Table, network: RoadNetwork, senders: NDArray[np.int64], receivers: NDArray[np.int64], notices: Notices
) -> Edges:
    """The roads of a table, one per row, with their lengths and attributes."""
    length_m = haversine_m(network.lon[senders], network.lat[senders], network.lon[receivers], network.lat[receivers])
    if "length_m" in table:
        given_m, given = numbers(table, "length_m")
        wrong = given & ~(np.isfinite(given_m) & (given_m >= 0))
        remedy = "Give a length of 0 or more, or leave it empty for the straight-line distance"
        table.refuse_where(wrong, lambda row: f"length_m {given_m[row]:g} is no length. {remedy}")
        length_m = np.where(given, given_m, length_m)
    attributes: dict[str, NDArray[np.float64]] = {}
    for column in ("lanes", "speed_kph"):
        if column in table:
            number, _ = numbers(table, column)
            wrong = ~np.isnan(number) & ~(np.isfinite(number) & (number > 0))
            notices.add_rows(f"Values of {column} not above 0 were taken as unknown", wrong, table.place_of(column))
            attributes[column] = np.where(wrong, np.nan, number)
    return Edges.of(
        senders,
        receivers,
        length_m,
        road_class=words(table, "road_class", notices),
        name=words(table, "name", notices),
        geometry=lines_wkb(table, "geometry"),
        **attributes,
    )


def connected_parts(network: RoadNetwork) -> NDArray[np.int64]:
    """Sizes of the strongly connected parts of the network, largest first; absent nodes do not count."""
    shape = (network.num_nodes, network.num_nodes)
    ones = np.ones(network.num_edges, np.int8)
    graph = coo_array((ones, (network.senders, network.receivers)), shape=shape).tocsr()
    _, part = connected_components(graph, directed=True, connection="strong")
    return np.sort(np.unique(part[network.present], return_counts=True)[1])[::-1].astype(np.int64)


def note_lengths(network: RoadNetwork, notices: Notices, *, refuse: bool = False) -> None:
    """Report roads far shorter than the distance between their ends: their lengths may not be in metres.

    With `refuse`, raise an error if most roads are like that.
    """
    a = network.senders
    b = network.receivers
    apart_m = haversine_m(network.lon[a], network.lat[a], network.lon[b], network.lat[b])
    short = (apart_m > APART_M) & (network.length_m < apart_m / SHORT)

    def place(row: int) -> str:
        ids = f'"{network.node_ids[a[row]]}" to "{network.node_ids[b[row]]}"'
        return f"{ids}, {network.length_m[row]:g} m long between nodes {apart_m[row]:,.0f} m apart"

    if refuse and short.sum() * 2 > len(short):
        raise CityError(
            f"{place(int(np.argmax(short)))}, and so are most roads. Are their lengths in kilometres or miles? "
            "Give metres, or name the column length_km or length_mi"
        )
    notices.add_rows("Roads far shorter than their ends are apart; are their lengths in metres?", short, place)


def note_network(network: RoadNetwork, notices: Notices) -> None:
    """Report oddities of a network that are not errors."""
    alone = np.zeros(network.num_nodes, bool)
    alone[network.present & ~joined_nodes(network)] = True
    notices.add_rows("Nodes without any road", alone, lambda row: f'node "{network.node_ids[row]}"')
    parts = connected_parts(network)
    if len(parts) > 1:
        largest = f"the largest has {int(parts[0]):,} of {int(parts.sum()):,} nodes"
        notices.add(f"Strongly connected parts of the network; {largest}", len(parts))


# Writing


def edge_frame(edges: Edges, node_ids: NDArray[np.generic]) -> pl.DataFrame:
    """Roads as a table of edges."""
    import polars as pl

    columns: dict[str, Any] = {
        "source": node_ids[edges.senders],
        "target": node_ids[edges.receivers],
        "length_m": edges.length_m,
    }
    for column in ATTRIBUTES:
        values = getattr(edges, column)
        known = ~np.isnan(values) if values.dtype.kind == "f" else values.astype(bool)
        if known.any():  # leave out attributes that no road has
            kept = [v if k else None for v, k in zip(values.tolist(), known.tolist(), strict=True)]
            kind = {"f": pl.Float64(), "U": pl.String(), "O": pl.Binary()}[values.dtype.kind]
            columns[column] = pl.Series(kept, dtype=kind)
    return pl.DataFrame(columns)
