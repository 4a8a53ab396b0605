"""A town large enough that searches, levels and drivers' answer are chosen for it: nothing of them comes from unseen
nodes, validation nodes or times after training.

Sensors have gaps, so that hours are filled in. A road opens within the training period; another is closed after it,
which nobody minds, so that a look at it would show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.network import Road, RoadNetwork
from frigate.city.split import make_split
from frigate.city.stream import make_stream
from frigate.demand import settings as demand_settings
from frigate.demand import tuning
from frigate.demand.count_profiles import usual_counts
from frigate.demand.settings import ClosureResponse, DemandSettings
from frigate.nn.batch import Batch
from frigate.nn.scaling import fit_scaling
from frigate.roads.feature_cache import features_of
from frigate.roads.line_graph import line_graph
from frigate.training.hidden_sensors import kept_out_sensors, training_masks, training_windows
from frigate.training.run import RunOnCity
from frigate.training.train import new_run
from tests.support.grids import START_S, grid_network
from tests.support.training_runs import tiny

SIDE, DAYS = 10, 10
PAST, HORIZON = 4, 4
OPENS = 110  # snapshot: in most of the training period the road is closed, in most of the record it is open
SETTINGS = tiny(hide=(0.3, 0.5), epochs=1)


def opened(network: RoadNetwork) -> list[Road]:
    a, b = network.node_ids[[44, 45]].tolist()
    return [(a, b), (b, a)]


@cache
def town() -> City:
    rng = np.random.default_rng(11)
    full = grid_network(SIDE)
    N = full.num_nodes
    east, north = np.arange(N) % SIDE, np.arange(N) // SIDE
    before = full.close(opened(full))
    before = before.with_roads(before.edges)  # a map that does not know of the road
    ids = full.node_ids
    across = [(ids[v].item(), ids[v + SIDE].item()) for v in range(4 * SIDE + 3, 4 * SIDE + 6)]
    shut = full.close([*across, *((b, a) for a, b in across)])
    S = 24 * DAYS
    network_of = np.where(np.arange(S) < OPENS, 0, 1)
    network_of[S * 7 // 10 + 10 :] = 2
    level = 20 + 60 * np.exp(-((east - 4.5) ** 2 + (north - 4.5) ** 2) / 20) + rng.gamma(2, 5, N)
    hour = np.arange(S) % 24
    tide = 0.3 + np.exp(-((hour - 8) ** 2) / 8) + np.exp(-((hour - 17) ** 2) / 8)
    values = rng.poisson(level * tide[:, None]).astype(np.float64)
    observed = rng.random(values.shape) > 0.1
    observed[np.ix_(np.isin(hour, (8, 9, 10)), np.arange(N) % 3 == 0)] = False  # hours that are filled in
    observed[:, rng.permutation(N)[:8]] = False
    stream = make_stream(
        values,
        [before, full, shut],
        observed=observed,
        network_of=network_of,
        start_s=START_S,
        step_s=3600,
        timezone="Europe/Luxembourg",
    )
    return City("Grid", stream)


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Few searches, so that a test takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "TRIED", 5)
        patch.setattr(tuning, "TRIED_IN_LARGE", 5)
        patch.setattr(demand_settings, "SEARCHES", 30)
        yield


def trained_on(nodes: NDArray[np.bool_] | None = None, times: slice = slice(None)) -> RunOnCity:
    """The run where these nodes count a thousand times what they do at these times, and more in every other hour."""
    stream = town().stream
    split = make_split(stream, seen=0.85, past=PAST, horizon=HORIZON)
    values = stream.values.copy()
    if nodes is not None:
        values[times, nodes] = 1000 * values[times, nodes] + 1e5 * (np.arange(len(values))[times] % 2)[:, None]
    city = replace(town(), stream=replace(stream, values=np.where(stream.observed, values, 0).astype(np.float32)))
    return new_run(city, settings=SETTINGS, seen=stream.node_ids[split.seen].tolist())


@pytest.fixture(scope="module")
def run(small: None) -> RunOnCity:
    return trained_on()


@pytest.fixture(scope="module")
def clean(run: RunOnCity) -> list[Batch]:
    return batches(run)


def batches(run: RunOnCity) -> list[Batch]:
    """Of the training period, one for each demand: every mask, what is kept out, and all that trains."""
    windows = training_windows(run, "cpu")
    hidden = [*training_masks(run), kept_out_sensors(run), np.zeros(SIDE * SIDE, bool)]
    inputs = torch.from_numpy(run.split.training)
    return [
        windows.batch(
            np.array([run.split.train[1] - HORIZON - 1]),
            past=PAST,
            horizon=HORIZON,
            inputs=inputs,
            hidden=torch.from_numpy(mask)[None],
            demand=torch.tensor([k]),
        )
        for k, mask in enumerate(hidden)
    ]


def test_the_town_has_what_could_leak(run: RunOnCity) -> None:
    split = run.split
    chosen = run.scaling.demand
    assert chosen is not None and split.training.sum() >= 60 and split.unseen.sum() >= 10
    assert set(chosen.searches) == set(tuning.searches_to_try(5))
    assert chosen.levels is not None
    assert run.run.usual_counts is not None
    gaps = np.isnan(run.run.usual_counts) & run.run.nodes.present
    assert gaps[8].any() and not gaps[12, : split.seen.sum()].any()


def test_trips_are_those_of_the_roads_that_are_usual_in_training(run: RunOnCity) -> None:
    stream = town().stream
    before, full, shut = stream.networks
    assert stream.usual_network().fingerprint == full.fingerprint
    assert stream.network.fingerprint == shut.fingerprint
    windows = training_windows(run, "cpu")
    assert windows.views.trips is not None
    for network in (run.usual_roads, windows.views.trips.network, run.run.usual_roads(stream)):
        assert network.fingerprint == before.fingerprint
    assert run.scaling.demand is not None and run.scaling.demand.closures == ClosureResponse()
    hourly = usual_counts(stream, run.split.training, run.split.train)
    graph = line_graph(before)
    tried = tuning.searches_to_try(tuning.TRIED)
    errors = [tuning.hidden_error(graph, hourly, search, DemandSettings(), seed=0) for search in tried]
    assert run.scaling.demand.searches == tuple(tried[k] for k in np.argsort(errors))
    features = features_of([before.map], None)[0]
    scaling = fit_scaling(stream, run.split, run.settings.model, features=features, seed=0)
    assert run.scaling.to_json() == replace(scaling, demand=run.scaling.demand).to_json()
    # Where that time is not on the record, they are those of the whole record.
    assert run.run.usual_roads(stream.slice(OPENS, stream.num_snapshots)).fingerprint == full.fingerprint


@pytest.mark.parametrize("what", ["unseen nodes", "validation nodes", "later times"])
def test_readings_that_training_must_not_see_have_no_influence(run: RunOnCity, clean: list[Batch], what: str) -> None:
    split = run.split
    every = np.ones(SIDE * SIDE, bool)
    dirty = {
        "unseen nodes": lambda: trained_on(split.unseen),
        "validation nodes": lambda: trained_on(split.validation),
        "later times": lambda: trained_on(every, slice(split.validate[0], split.test[1])),
    }[what]()
    assert dirty.scaling.demand == run.scaling.demand  # the searches, the levels and the answer to closures
    ids = run.run.nodes.node_ids
    same = np.ones(len(ids), bool)
    if what == "validation nodes":
        same = ~np.isin(ids, town().stream.node_ids[split.validation])
    for name in ("usual_counts", "usual_medians"):
        found, expected = (getattr(each.run, name) for each in (dirty, run))
        np.testing.assert_array_equal(found[:, same], expected[:, same])
        assert np.isnan(found[:, split.seen.sum() :]).all()
    for batch, other in zip(batches(dirty), clean, strict=True):
        for name in ("values", "observed", "usual_past", "demand", "demand_node"):
            assert torch.equal(getattr(batch, name), getattr(other, name)), name


def test_readings_that_training_sees_have_influence(run: RunOnCity) -> None:
    """So the test above can fail."""
    some = run.split.training & (np.arange(SIDE * SIDE) % 4 == 0)
    other = trained_on(some, slice(*run.split.train))
    assert other.scaling.demand is not None and run.scaling.demand is not None
    assert other.scaling.demand.searches != run.scaling.demand.searches
    assert other.scaling.demand.levels != run.scaling.demand.levels


def test_another_seed_is_another_choice(run: RunOnCity) -> None:
    """Of the trips and of the sensors that are hidden in turn."""
    seeds = replace(SETTINGS, train=replace(SETTINGS.train, seed=1))
    stream = town().stream
    other = new_run(town(), settings=seeds, seen=stream.node_ids[run.split.seen].tolist())
    chosen = tuning.choose_settings(stream, other.split.training, period=other.split.train, seed=1)
    assert other.scaling.demand is not None and other.scaling.demand.searches == chosen.searches
    assert chosen.searches != tuning.choose_settings(stream, other.split.training, period=other.split.train).searches
    assert other.run.trips_on(other.usual_roads, town()).seed == 1
