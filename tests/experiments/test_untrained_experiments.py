"""The experiments that need no training: data, profile, distortion, expressivity, parameters, times."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.config import BASELINES, PRESETS, preset
from frigate.experiments import city_data, model_costs, plots, theory
from frigate.experiments.plan import LABELS, Effort, Plan
from frigate.experiments.table import ResultTable, as_json
from frigate.nn.batch import Batch
from frigate.roads.positions import choose_anchors, two_way_m
from frigate.training.train import new_run
from tests.support.towns import START_S, edited, random_network

N = 30
S = 24 * 14
TIMEZONE = "America/New_York"  # five hours off, so that a mistaken hour or day shows


def town_stream(*, quantity: str = "count", silent: int = 2) -> RoadNetworkStream:
    """Two weeks of hours at 30 nodes; some never read, some gaps, zeros, and a road network that changes once."""
    rng = np.random.default_rng(3)
    first = random_network(N, seed=1, roads_per_node=4.0)
    values = rng.poisson(rng.gamma(1, 3, N), (S, N)).astype(float)
    observed = (rng.random((S, N)) > 0.1) & (np.arange(N) >= silent)
    return make_stream(
        values,
        [first, edited(first, seed=1)],
        observed=observed,
        network_of=(np.arange(S) > 100).astype(int),
        start_s=START_S,
        step_s=3600,
        timezone=TIMEZONE,
        quantity=quantity,
        unit="vehicles",
    )


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    effort = Effort(anchors=(1, 4), timings=2)
    return Plan(City("town", town_stream()), tmp_path_factory.mktemp("results"), seen=0.5, effort=effort, device="cpu")


def assert_whole(table: ResultTable, draw: Callable[[ResultTable], Figure]) -> None:
    """Every row has every column, the table survives JSON, and the figure made of that has words on its axes."""
    assert all(set(row) == set(table.columns) for row in table.rows)
    assert table.rows and table.notes and all(table.columns.values())
    back = ResultTable.from_json(json.loads(as_json(table.to_json())))
    assert back == replace(back, rows=[dict(row) for row in table.rows], notes=list(table.notes))
    assert as_json(back.to_json()) == as_json(table.to_json())
    with plots.style():
        figure = draw(back)
    shown = [ax for ax in figure.axes if ax.axison]
    assert shown
    for ax in shown:
        assert ax.get_xlabel() or ax.get_ylabel()
    assert back.title and back.title in back.caption  # which stands above it
    figure.savefig(io.BytesIO(), format="png", dpi=40)


def test_datasets(plan: Plan) -> None:
    stream = plan.city.stream
    table = city_data.measure_datasets(plan)
    ours, *theirs = table.rows
    readings = [float(stream.values[s, n]) for s in range(S) for n in range(N) if stream.observed[s, n]]
    assert ours["nodes"] == N and ours["roads"] == stream.networks[1].num_edges
    assert ours["sensors"] == N - 2 and ours["snapshots"] == S and ours["step_min"] == 60
    assert ours["mean"] == pytest.approx(sum(readings) / len(readings))
    assert ours["std"] == pytest.approx(np.std(readings))
    assert ours["total"] == sum(readings) and ours["trips"] is None
    assert ours["zero_percent"] == pytest.approx(100 * sum(x == 0 for x in readings) / len(readings))
    assert ours["missing_percent"] == pytest.approx(100 * (1 - len(readings) / ((N - 2) * S)))
    assert ours["start"] == "2024-01-01T03:00:00-05:00" and ours["end"] == "2024-01-15T03:00:00-05:00"
    assert [(row["city"], row["kind"]) for row in theirs] == [
        (name, "paper") for name in ("Beijing", "Chengdu", "Harbin")
    ]
    assert_whole(table, city_data.draw_datasets)


def test_a_gauge_has_no_total(plan: Plan) -> None:
    gauge = replace(plan, city=City("town", town_stream(quantity="speed")))
    table = city_data.measure_datasets(gauge)
    assert table.rows[0]["total"] is None
    assert_whole(table, city_data.draw_datasets)
    assert_whole(city_data.measure_profile(gauge), city_data.draw_profile)


def test_area() -> None:
    """A square of 0.1 degrees at the equator, and one at 60 degrees, where degrees of longitude are half as long."""
    side = np.radians(0.1) * 6371.0088
    lon = np.array([0, 0.1, 0.1, 0, 0.05])
    lat = np.array([-0.05, -0.05, 0.05, 0.05, 0.0])
    assert city_data.area_km2(lon, lat) == pytest.approx(side**2, rel=1e-4)
    assert city_data.area_km2(lon, lat + 60) == pytest.approx(side**2 / 2, rel=1e-4)
    assert city_data.area_km2(lon, lon) == 0
    assert city_data.area_km2(lon[:2], lat[:2]) == 0


def test_profile(plan: Plan) -> None:
    stream = plan.city.stream
    table = city_data.measure_profile(plan)
    means = {
        str(stream.node_ids[n]): float(stream.values[stream.observed[:, n], n].mean(dtype=float))
        for n in range(N)
        if stream.observed[:, n].any()
    }
    assert [row["percentile"] for row in table.rows] == list(city_data.PERCENTILES)
    for row in table.rows:
        mean = means[str(row["node"])]
        assert row["mean"] == pytest.approx(mean)
        rank = sum(other < mean for other in means.values())
        assert 100 * rank / (len(means) - 1) == pytest.approx(float(str(row["percentile"])), abs=51 / (len(means) - 1))
        busier = sum(other for other in means.values() if other >= mean)
        assert row["share_percent"] == pytest.approx(100 * busier / sum(means.values()))
    curve = table.more["curve"]
    assert len(curve["mean"]) == len(means)  # so few nodes that each is a point
    for mean, share in zip(curve["mean"], curve["share"], strict=True):
        assert share == pytest.approx(sum(other >= mean for other in means.values()) / len(means))
    assert [tide["percentile"] for tide in table.more["tides"]] == [99, 90, 50]
    assert_whole(table, city_data.draw_profile)


def test_tide_by_local_hours(plan: Plan) -> None:
    stream = plan.city.stream
    node = int(np.flatnonzero(stream.sensors)[4])
    groups: dict[tuple[str, int], list[float]] = {}
    for s in range(S):
        local = datetime.fromtimestamp(START_S + 3600 * s, ZoneInfo(TIMEZONE))
        if stream.observed[s, node]:
            days = "weekends" if local.weekday() >= 5 else "weekdays"
            groups.setdefault((days, local.hour), []).append(float(stream.values[s, node]))
    tide = city_data.tide(stream, node)
    for (days, hour), values in groups.items():
        assert tide[days]["mean"][hour] == pytest.approx(np.mean(values))
        assert tide[days]["low"][hour] == pytest.approx(np.quantile(values, 0.25))
        assert tide[days]["high"][hour] == pytest.approx(np.quantile(values, 0.75))
    assert sum(tide[days]["mean"][hour] is not None for days in city_data.DAYS for hour in range(24)) == len(groups)


def test_profile_of_weekdays_alone(plan: Plan) -> None:
    """A record without a weekend has no weekend's tide, and is drawn."""
    short = replace(plan, city=City("town", plan.city.stream.slice(0, 48)))
    table = city_data.measure_profile(short)
    assert all(row["weekend_peak"] is None and row["weekend_peak_hour"] is None for row in table.rows)
    assert_whole(table, city_data.draw_profile)


def test_power_law_is_told() -> None:
    """Means of a power law give its power twice; of a bent curve two powers."""
    share = (np.arange(4000)[::-1] + 0.5) / 4000
    slopes = city_data._slopes(share ** (-1 / 1.7))
    assert slopes == pytest.approx([1.7, 1.7], rel=0.02)
    bent = city_data._slopes(-np.log(share))
    assert bent is not None and bent[1] > 2 * bent[0]
    assert city_data._slopes(np.ones(4000)) is None


def test_distortion(plan: Plan) -> None:
    """All pairs of so small a network, by the definition."""
    connected = replace(plan, city=City("town", plan.city.stream.slice(0, 100)))  # before roads are closed
    table = theory.measure_distortion(connected)
    network = connected.city.network
    d_x = two_way_m(network, np.arange(N))
    found = []
    for seed in range(theory.DRAWS):
        anchors = choose_anchors(network, count=4, choice="random", seed=seed)
        position = d_x[:, network.rows_of(members[0] for members in anchors.sets)]
        pairs = [(u, v) for u in range(N) for v in range(u)]
        ratios = [np.abs(position[u] - position[v]).mean() / d_x[u, v] for u, v in pairs]
        found.append(max(ratios) / min(ratios) if min(ratios) > 0 else np.inf)
    (row,) = (row for row in table.rows if (row["choice"], row["anchors"]) == ("random", 4))
    assert 0 < sum(np.isinf(found)) < theory.DRAWS / 2  # two nodes at one position in some draws: no maximum
    assert row["distortion"] == pytest.approx(np.median(found))
    assert row["low"] == pytest.approx(min(found))
    assert row["high"] is None and row["infinite"] == sum(np.isinf(found))
    assert row["pairs"] == len(pairs)
    assert [(row["choice"], row["anchors"]) for row in table.rows] == [
        *((choice, count) for choice in ("random", "farthest", "bourgain") for count in (1, 4)),
        ("full", 25),
    ]
    assert_whole(table, theory.draw_distortion)
    assert_whole(theory.measure_distortion(plan), theory.draw_distortion)  # parts of the network are cut off


def test_infinite_distortion_is_none(plan: Plan) -> None:
    """On a ring two nodes are equally far from a single anchor: nothing tells them apart."""
    at = np.arange(12)
    ends = np.concatenate([at, (at + 1) % 12]), np.concatenate([(at + 1) % 12, at])
    ring = RoadNetwork(at, at.astype(float), at.astype(float), Edges.of(*ends, np.full(24, 100)))
    stream = make_stream(np.ones((3, 12)), ring, start_s=START_S, step_s=300)
    table = theory.measure_distortion(replace(plan, city=City("ring", stream)))
    (row,) = (row for row in table.rows if (row["choice"], row["anchors"]) == ("random", 1))
    assert row["distortion"] is None and row["high"] is None and row["infinite"] == theory.DRAWS
    assert_whole(table, theory.draw_distortion)


@pytest.fixture(scope="module")
def told_apart(plan: Plan) -> ResultTable:
    return theory.measure_expressivity(plan)


def test_expressivity(told_apart: ResultTable) -> None:
    """Lemma 2 and its corollary hold, and each model does see a difference where there is one."""
    for row in told_apart.rows:
        expected = "no" if row["positions"] == "on" else "yes"
        assert row["equal"] == expected, row
        assert row["lemma"] in (None, "different" if expected == "no" else "equal")
        assert float(str(row["control"])) > 100 * theory.ROUNDING, row
    spoken = {row["model"] for row in told_apart.rows if row["lemma"] is not None}
    assert spoken == {"Frigate (paper)", "DCRNN", "STGCN", "STGODE"}
    assert {row["model"] for row in told_apart.rows} == {LABELS[name] for name in (*PRESETS, *BASELINES)}
    kinds = {(row["positions"], row["compared"]) for row in told_apart.rows if row["model"] == "Frigate (paper)"}
    assert kinds == {(p, c) for p in ("on", "off") for c in ("embeddings", "forecasts")}
    assert_whole(told_apart, theory.draw_expressivity)


def test_the_ring_is_that_of_the_proof() -> None:
    """v1 at [2, 2] and v2 at [5, 5]; two windows alike at all nodes, and one with another reading beside v1 alone."""
    kept, batch = theory.ring_batch(preset("paper"))
    (topology,) = batch.topologies
    metres = kept.position_scale_m / topology.positions - kept.position_scale_m
    torch.testing.assert_close(metres[[theory.V1, theory.V2]], torch.tensor([[2.0, 2.0], [5.0, 5.0]]))
    assert not batch.observed[0].any() and batch.observed[1:].all()
    assert (batch.values[1] == theory.READING).all()
    other = batch.values[2] != theory.READING
    assert other[:, theory.BESIDE_V1].all() and int(other.sum()) == batch.past
    beside = topology.neighbour[topology.neighbour_of == theory.V1].tolist()
    assert theory.BESIDE_V1 in beside and len(beside) == 2


def test_difference_is_relative() -> None:
    numbers = torch.zeros(2, theory.NODES, 3)
    numbers[0, theory.V1, 1], numbers[0, theory.V2, 1] = 10.0, 8.0
    assert theory.difference(numbers).tolist() == pytest.approx([0.2, 0.0])


def test_parameters(plan: Plan) -> None:
    table = model_costs.measure_parameters(plan)
    assert [row["model"] for row in table.rows] == [LABELS[name] for name in (*PRESETS, *BASELINES)]
    for name, row in zip((*PRESETS, *BASELINES), table.rows, strict=True):
        run = new_run(plan.city, seen=0.5, settings=preset(name))
        assert row["parameters"] == row["parameters_half"] == sum(weight.numel() for weight in run.model.parameters())
        assert row["paper"] == model_costs.PAPER_PARAMETERS.get(name)
    assert float(str(table.rows[0]["of_paper_percent"])) == pytest.approx(100, abs=1)
    assert_whole(table, model_costs.draw_parameters)


def named_roads(network: RoadNetwork) -> set[tuple[int, int]]:
    ids = network.node_ids.tolist()
    return {(ids[u], ids[v]) for u, v in zip(network.senders, network.receivers, strict=True)}


def test_western_half(plan: Plan) -> None:
    stream = plan.city.stream
    half = model_costs.western_half(stream)
    assert half.num_nodes == N // 2 and half.network.lon.max() < np.sort(stream.network.lon)[N // 2]
    whole = named_roads(stream.network)
    kept = set(half.node_ids.tolist())
    assert named_roads(half.network) == {(u, v) for u, v in whole if u in kept and v in kept}


def test_inference_time(plan: Plan) -> None:
    table = model_costs.measure_time(plan)
    assert [row["model"] for row in table.rows] == [LABELS[name] for name in (*PRESETS, *BASELINES)]
    for name, row in zip((*PRESETS, *BASELINES), table.rows, strict=True):
        low, median, high = (float(str(row[key])) for key in ("low_s", "median_s", "high_s"))
        assert 0 < low <= median <= high
        assert row["timings"] == 2 and row["paper_s"] == model_costs.PAPER_S.get(name)
    assert table.more["environment"]["device"] == "cpu"
    assert_whole(table, model_costs.draw_time)


def test_the_timed_window(plan: Plan) -> None:
    """The last of the test period, read at the plan's sensors alone, on the roads of its time."""
    run = model_costs.untrained(plan, "dcrnn")
    batch = model_costs.last_batch(run, torch.device("cpu"))
    stream = plan.city.stream
    T = 12
    H = 12
    past = slice(S - H - T, S - H)
    observed = stream.observed[past] & run.split.seen
    assert int(run.split.seen.sum()) == 14
    assert np.array_equal(batch.observed[0].numpy(), observed)
    assert np.array_equal(batch.values[0].numpy(), np.where(observed, stream.values[past], 0))
    assert batch.num_windows == 1 and batch.horizon == H
    assert [t.num_edges for t in batch.topologies] == [stream.networks[1].num_edges]


def test_warm_up_is_not_counted(plan: Plan) -> None:
    batch = model_costs.last_batch(model_costs.untrained(plan, "stgcn"), torch.device("cpu"))
    asked: list[bool] = []

    def forecast(given: Batch) -> torch.Tensor:
        asked.append(given is batch and torch.is_inference_mode_enabled())
        return given.values

    assert len(model_costs.timed(forecast, batch, times=6)) == 6
    assert asked == [True] * 8


def test_only_wanted_models(plan: Plan, tmp_path: Path) -> None:
    only = replace(plan, models=("stgcn",), results=tmp_path)
    for measure in (model_costs.measure_parameters, model_costs.measure_time, theory.measure_expressivity):
        assert {row["model"] for row in measure(only).rows} == {"STGCN"}
