"""Roads closed and added by name: "41,42" for a road, a node with all its roads, or a street by its name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import Road, RoadNetwork, shut_nodes
from frigate.errors import CityError, did_you_mean

Roads = Sequence[str | Road]


def edit_network(network: RoadNetwork, *, close: Roads = (), add: Roads = ()) -> RoadNetwork:
    """The network with roads closed and added.

    Parameters
    ----------
    network
        Nodes are intersections, or roads joined by turns.
    close
        One-way roads, each "A,B" or (A, B); a node, which closes all its roads; or a street, which closes every open
        road of that name. In a city on roads a node is a road, and "A,B" also names it.
    add
        One-way roads, each "A,B", (A, B) or "A,B,metres".
    """
    roads, nodes = _to_close(network, close)
    new = [_new_road(road) for road in listed(add)]
    network = network.close(roads)
    for node in nodes:
        row = network.row_of(node)
        if network.passable[row] and not ((network.senders == row) | (network.receivers == row)).any():
            raise CityError(f'node "{node}" has no open road to close')
    network = network.close_nodes(nodes)
    return network.add(roads=[road for road, _ in new], length_m=[length_m for _, length_m in new])


def forecast_nodes(network: RoadNetwork, usual: RoadNetwork, quantity: str) -> NDArray[np.bool_]:
    """[N] the nodes that have a forecast: those that are present and, of a gauge, that vehicles can still pass."""
    return network.present if quantity == "count" else network.present & ~shut_nodes(usual, network)


def about_closed(network: RoadNetwork, close: Roads) -> list[str]:
    """Notices about closing whole nodes, which are roads in a city on roads."""
    known = _ids(network)
    streets = [item for item in listed(close) if isinstance(item, str) and _is_street(network, item, known)]
    notices = []
    for street in streets:
        count = sum(len(part) for part in _street(network, street))
        notices.append(f"closed {street.strip()}: {count} road{'s' * (count != 1)} of that name.")
    for node in _to_close(network, [item for item in listed(close) if item not in streets])[1]:
        at = network.row_of(node)
        of_roads = len(network.lines) > 0
        count = int(((network.senders == at) | (network.receivers == at)).sum())
        parts = f"{count} turn{'s' * (count != 1)} into and out of it" if of_roads else f"{count} roads at it"
        notices.append(f"closed {'road' if of_roads else 'node'} {node}, with the {parts}.")
    return notices


def listed(roads: Roads) -> Roads:
    """One road, or several."""
    return [roads] if isinstance(roads, str) else roads


def _to_close(network: RoadNetwork, close: Roads) -> tuple[list[Road], list[str]]:
    """The edges to close, and the nodes to close with all their edges."""
    known = _ids(network)
    of_roads = len(network.lines) > 0
    roads: list[Road] = []
    nodes: list[str] = []
    for item in listed(close):
        text = item.strip() if isinstance(item, str) else ",".join(map(str, item))
        by_ends = ">".join(part.strip() for part in text.split(","))
        if text in known:
            nodes.append(text)
        elif of_roads and by_ends in known:
            nodes.append(by_ends)
        elif isinstance(item, str) and _is_street(network, item, known):
            of_street, at_street = _street(network, item)
            roads += of_street
            nodes += at_street
        else:
            names = network.names if of_roads else network.edges.name
            roads.append(_ends(item, "--close", of_roads=of_roads, streets=names))
    return roads, nodes


def _ids(network: RoadNetwork) -> set[str]:
    return {str(node_id) for node_id in network.node_ids.tolist()}


def _is_street(network: RoadNetwork, text: str, known: set[str]) -> bool:
    """Whether a text is the name of a street with an open road, and no id."""
    return text.strip() not in known and any(_street(network, text))


def _street(network: RoadNetwork, name: str) -> tuple[list[Road], list[str]]:
    """The open roads of a street as edges or, in a city on roads, as nodes. Capitals do not matter."""
    wanted = name.strip().casefold()
    ids = network.node_ids.tolist()
    if len(network.lines):
        named = zip(ids, network.names.tolist(), network.passable.tolist(), strict=bool(len(network.names)))
        return [], [str(node) for node, street, is_open in named if is_open and street and street.casefold() == wanted]
    e = network.edges
    every = zip(e.senders.tolist(), e.receivers.tolist(), e.name.tolist(), strict=True)
    return [(ids[a], ids[b]) for a, b, street in every if street and street.casefold() == wanted], []


def _ends(road: str | Road, option: str, *, of_roads: bool = False, streets: Iterable[str] = ()) -> Road:
    if not isinstance(road, str):
        return road  # the network checks it
    parts = [part.strip() for part in road.split(",")]
    if len(parts) != 2 or not all(parts):
        way = "its id, or a turn by its two roads, as" if of_roads else "its two end nodes, as"
        example = f'{option} "41>42", {option} "41>42,42>43"' if of_roads else f"{option} 41,42"
        hint = did_you_mean(road.strip(), sorted({str(name) for name in streets} - {""}))
        by_name = ", or an open street by its name" if option == "--close" else ""
        raise CityError(f'{option} "{road}"{hint}: name a one-way road by {way} {example}{by_name}')
    return parts[0], parts[1]


def _new_road(road: str | Road) -> tuple[Road, float | None]:
    if not isinstance(road, str):
        return road, None
    ends, _, last = road.rpartition(",")
    if "," not in ends:
        return _ends(road, "--add"), None
    try:
        length_m = float(last)
    except ValueError:
        raise CityError(
            f'--add "{road}": "{last.strip()}" is not a length in metres. Give --add A,B or --add A,B,120'
        ) from None
    return _ends(ends, "--add"), length_m
