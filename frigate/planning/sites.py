"""Which places may be chosen: candidates, forced and forbidden sites, by id or street, and what each costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.city.network import NodeId, RoadNetwork, joined_nodes
from frigate.errors import CityError, SettingsError, did_you_mean
from frigate.planning.uncertainty import Floats, Rows

Names = Sequence[NodeId] | NodeId

NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Sites:
    """The places to choose from. C candidates, as rows of nodes."""

    candidates: Rows  # [C] with the forced ones
    forced: Rows
    costs: Floats  # [N] of each node; 1 where sites have no costs
    budget: float

    @property
    def in_money(self) -> bool:
        return bool((self.costs != 1).any())


def find_sites(
    network: RoadNetwork,
    sensors: NDArray[np.bool_],
    *,
    budget: float,
    candidates: Names | None = None,
    force: Names = (),
    forbid: Names = (),
    costs: Mapping[NodeId, float] | None = None,
) -> Sites:
    """Check what was asked for against the network and its sensors [N]; parameters as in `frigate.planning.place`."""
    forced = _rows(network, force, "force")
    _refuse_sensors(network, sensors, forced, "force")
    forbidden = _rows(network, forbid, "forbid", streets=True)
    both = np.intersect1d(forced, forbidden)
    if len(both):
        raise SettingsError(f'"{network.node_ids[both[0]]}" is both forced and forbidden. Leave out one of the two')
    free = network.present & network.passable & joined_nodes(network) & ~sensors
    free[forbidden] = False
    price = np.ones(network.num_nodes)
    if costs is not None:
        price[:] = np.nan
        rows = _rows(network, list(costs), "costs")
        price[rows] = list(costs.values())
        free &= np.isfinite(price)
    if candidates is not None:
        listed = _rows(network, candidates, "candidates")
        _refuse_sensors(network, sensors, listed, "candidates")
        _refuse_unpriced(network, price, listed, "candidates")
        chosen = np.zeros(len(free), bool)
        chosen[listed] = True
        free &= chosen
    _refuse_unpriced(network, price, forced, "force")
    free[forced] = True
    rows = np.flatnonzero(free)
    _check_budget(budget, rows, forced, price, in_money=costs is not None)
    return Sites(rows, forced, price, budget)


def _check_budget(budget: float, rows: Rows, forced: Rows, price: Floats, *, in_money: bool) -> None:
    if not np.isfinite(budget) or budget <= 0:
        raise SettingsError(f"budget {budget:g}: give at least {'the cost of one site' if in_money else '1'}")
    if not len(rows):
        raise SettingsError("no place is left to choose from: every candidate is forbidden, closed or has a sensor")
    needed = float(price[forced].sum())
    if needed > budget * (1 + 1e-9):
        what = f"cost {needed:,.10g}" if in_money else f"are {len(forced)}"
        raise SettingsError(f"the forced sites {what}, more than the budget of {budget:,.10g}. Raise the budget")
    if in_money:
        least = float(price[rows].min())
        if least > budget:
            raise SettingsError(f"budget {budget:,.10g}: the cheapest candidate costs {least:,.10g}. Raise the budget")
    elif budget != int(budget):
        raise SettingsError(f"budget {budget:g}: give a whole number of sites, or costs in money")
    elif budget > len(rows):
        raise SettingsError(f"budget {budget:,.10g}: there are only {len(rows):,} candidates. Lower the budget")


def _refuse_sensors(network: RoadNetwork, sensors: NDArray[np.bool_], rows: Rows, option: str) -> None:
    known = rows[sensors[rows]]
    if len(known):
        raise SettingsError(f'{option}: "{network.node_ids[known[0]]}" has a sensor already. Leave it out')


def _refuse_unpriced(network: RoadNetwork, price: Floats, rows: Rows, option: str) -> None:
    unknown = rows[~np.isfinite(price[rows])]
    if len(unknown):
        raise SettingsError(f'{option}: "{network.node_ids[unknown[0]]}" has no cost. Add it to the costs')


def _rows(network: RoadNetwork, names: Names, option: str, *, streets: bool = False) -> Rows:
    """Rows of nodes by their ids or, where that is asked for, of all nodes on a street."""
    listed = [names] if isinstance(names, str | int | np.integer) else list(names)
    found = [
        _on_street(network, name, option) if streets else np.array([_row(network, name, option)]) for name in listed
    ]
    return np.unique(np.concatenate([NO_ROWS, *found]))


def _row(network: RoadNetwork, name: NodeId, option: str) -> int:
    try:
        return network.row_of(name)
    except CityError as error:
        hint = did_you_mean(str(name), network.node_ids.astype(str).tolist())
        raise SettingsError(f"{option}: {error}{hint}") from None


def _on_street(network: RoadNetwork, name: NodeId, option: str) -> Rows:
    """The rows of one node or, if there is no such node, of those on the street of that name."""
    wanted = str(name).strip().casefold()
    try:
        return np.array([network.row_of(name)])
    except CityError:
        pass
    edges = network.roads
    named = np.array([each.strip().casefold() == wanted for each in edges.name.tolist()], bool)
    at = (
        edges.receivers[named] if len(network.lines) else np.concatenate([edges.senders[named], edges.receivers[named]])
    )
    own = [row for row, each in enumerate(network.names.tolist()) if each.strip().casefold() == wanted]
    rows = np.unique(np.concatenate([at, np.array(own, np.int64)]))
    if not wanted or not len(rows):
        names = sorted({each for each in [*edges.name.tolist(), *network.names.tolist()] if each})
        hint = did_you_mean(str(name).strip(), names)
        raise SettingsError(f'{option}: "{name}" is neither a node nor a street of this city{hint}')
    return rows


def read_costs(path: Path, network: RoadNetwork) -> dict[NodeId, float]:
    """The cost of each site, from a table with the columns node_id and cost."""
    from frigate.city.network_tables import known_rows
    from frigate.reading.columns import NodeIndex, numbers
    from frigate.reading.notices import Notices
    from frigate.reading.tables import city_table

    table = city_table(path, ("node_id", "cost"), notices=Notices()).read()
    rows = known_rows(table, "node_id", NodeIndex(network.node_ids))
    costs, _ = numbers(table, "cost")
    table.refuse_where(~(np.isfinite(costs) & (costs > 0)), lambda row: "cost must be a number above 0")
    again = np.ones(len(rows), bool)
    again[np.unique(rows, return_index=True)[1]] = False
    table.refuse_where(
        again, lambda row: f'node "{network.node_ids[rows[row]]}" is listed twice. Delete one of the rows'
    )
    ids: list[NodeId] = network.node_ids[rows].tolist()
    return dict(zip(ids, costs.tolist(), strict=True))
