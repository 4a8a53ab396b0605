"""How a network becomes model input: what its roads change about the demand of each set of sensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from frigate.city.network import RoadNetwork
from frigate.nn.network_views import NetworkViews
from frigate.training.run import RunOnCity
from tests.support.forecast_runs import small_city, small_run


@pytest.fixture(scope="module")
def run() -> RunOnCity:
    return small_run().on(small_city())


def without(network: RoadNetwork, *roads: tuple[int, int]) -> RoadNetwork:
    return network.close([*roads, *((b, a) for a, b in roads)])


@pytest.fixture(scope="module")
def closed() -> list[RoadNetwork]:
    usual = small_city().network
    return [without(usual, (6, 7), (11, 12)), without(usual, (12, 17))]


def of_one_demand(views: NetworkViews, network: RoadNetwork) -> None:
    flows = views.view(network).flows
    assert flows is not None and flows.shares is not None and views.trips is not None
    (demand,) = views.demands
    expected = views.trips.sensor_shares(demand, network)
    for found, array in zip(flows.shares, (expected.sensor, expected.share, expected.rest), strict=True):
        np.testing.assert_array_equal(found[0].numpy(), array)
    (rerouted,) = views.trips.rerouted([demand], network)
    np.testing.assert_array_equal(flows.change[0].numpy(), rerouted.node_change)


def test_other_roads_have_other_flows_and_other_sensors_to_lean_on(run: RunOnCity, closed: list[RoadNetwork]) -> None:
    views = run.windows().views
    for network in closed:
        of_one_demand(views, network)
    shares = [views.view(network).flows.shares for network in closed]  # type: ignore[union-attr]
    usual = views.demands[0].sensor_shares
    assert all(each is not None and not np.array_equal(each[1][0].numpy(), usual.share) for each in shares)
    flows = views.view(run.usual_roads).flows
    assert flows is not None and flows.shares is None and bool((flows.change == 1).all())


def test_tables_are_those_of_the_networks_asked_for(run: RunOnCity, closed: list[RoadNetwork]) -> None:
    views = run.windows().views
    usual, one, other = (views.view(network) for network in (run.usual_roads, *closed))
    assert views.tables([usual]) is views.tables([usual, usual])
    for asked in ([usual, one], [usual, other], [one, usual], [usual, one]):
        tables = views.tables(asked)
        assert tables is not None and tables.roads is not None
        for k, view in enumerate(asked):
            assert view.flows is not None
            assert torch.equal(tables.roads[:, k], view.flows.change)
            shares = view.flows.shares
            share = torch.from_numpy(views.demands[0].sensor_shares.share) if shares is None else shares[1][0]
            assert torch.equal(tables.share[0, k], share)


def test_a_window_has_the_last_demand_unless_another_is_named(run: RunOnCity) -> None:
    """In training the last is that of all sensors that train."""
    seen = run.split.seen
    some = seen & (np.cumsum(seen) % 2 == 0)
    windows = run.windows(sensors=[some, seen])

    def made(demand: list[int] | None) -> torch.Tensor:
        which = None if demand is None else torch.tensor(demand)
        batch = windows.batch(np.array([40]), past=4, horizon=3, inputs=torch.from_numpy(some), demand=which)
        assert batch.demand is not None
        return batch.demand

    assert torch.equal(made(None), made([1]))
    assert not torch.equal(made(None), made([0]))
    # Of several demands only the flow is rerouted: shares of all would take too much memory.
    closed = without(run.usual_roads, (6, 7))
    flows = windows.views.view(closed).flows
    assert flows is not None and flows.shares is None and flows.change.shape == (2, run.usual_roads.num_nodes)
