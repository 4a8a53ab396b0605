"""A live forecast is the full forward pass over the same history, and encodes what it must and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.network import RoadNetwork
from frigate.city.split import Split
from frigate.city.stream import make_stream
from frigate.config import BASELINES, Settings, Task, change, preset
from frigate.errors import CityError, SettingsError
from frigate.forecasting.edits import forecast_nodes
from frigate.forecasting.forecast import forecast
from frigate.forecasting.live import Live
from frigate.nn.model import Frigate
from frigate.nn.scaling import Description, build_topology, describe
from frigate.roads.features import road_features
from frigate.roads.positions import Anchors, locate_anchors
from frigate.training.run import RunOnCity, build_model
from tests.support.errors import raises
from tests.support.towns import (
    PRESETS,
    START_S,
    TIMEZONE,
    Town,
    edited,
    make_town,
    random_town,
    small_settings,
    windows_on,
)
from tests.support.towns import build_model as noisy_model

T = 4
H = 3
N = 13
STEP_S = 3600
TOLERANCE = 1e-5  # of the largest forecast, or of the unit: stated in frigate.forecasting.live
BOTH = pytest.mark.parametrize("name", PRESETS)


@cache
def live_run(name: str, quantity: str = "count") -> RunOnCity:
    return untrained(random_town(name, num_nodes=N, quantity=quantity))


def untrained(town: Town) -> RunOnCity:
    none = np.zeros(N, bool)
    all_ = (0, town.stream.num_snapshots)
    split = Split(town.stream.sensors, none, none, all_, all_, all_)
    model = noisy_model(town.settings, town.scaling)
    chosen = Settings(Task(T, H), town.settings)
    return RunOnCity.untrained(City("Town", town.stream), split, chosen, town.scaling, model)


@cache
def networks() -> tuple[RoadNetwork, ...]:
    """The town's, one with roads closed and one added, and one without some nodes."""
    town = live_run("paper").city.stream.network
    return town, edited(town, seed=5), town.remove_nodes(town.node_ids[[1, 4]].tolist())


@cache
def described(name: str, quantity: str, which: int) -> tuple[Description, Anchors | None]:
    """A network's places, by the town's own map and what the network has besides."""
    run = live_run(name, quantity)
    network = networks()[0].map_with(networks()[which])
    anchors = None if run.scaling.anchors is None else locate_anchors(networks()[0], run.scaling.anchors)[0]
    return describe(network, run.scaling, sensors=run.split.seen, features=road_features(network)), anchors


def start(name: str, *, quantity: str = "count", which: int = 0) -> Live:
    run = live_run(name, quantity)
    return Live(run.run, networks()[which], sensors=run.split.seen, device="cpu")


@dataclass
class History:
    """Everything that was said to a live forecast, and the forecast made of it from the beginning."""

    name: str
    quantity: str
    values: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # by time; NaN is no reading
    network_of: dict[int, int] = field(default_factory=dict)
    changes: list[tuple[float, int]] = field(default_factory=lambda: [(-np.inf, 0)])
    encoded_as: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    count: int = 0

    @property
    def times_s(self) -> list[int]:
        return sorted(self.values)[-T:]

    def change(self, since: float, which: int) -> None:
        self.changes = [c for c in self.changes if c[0] < since] + [(since, which)]

    def at(self, time_s: int) -> int:
        return [which for since, which in self.changes if since <= time_s][-1]

    def forecast(self, every: int | None = None) -> NDArray[np.float64]:
        """[H,N] of the whole forward pass; it counts the encodings that are not among the last three windows' worth."""
        run = live_run(self.name, self.quantity)
        times_s = self.times_s
        ahead_s = [times_s[-1] + k * STEP_S for k in range(1, H + 1)]
        past = [self.at(t) for t in times_s]
        ahead = [self.at(t) if every is None else every for t in ahead_s]
        used = sorted({*past, *ahead})
        rows = np.stack([self.values[time_s] for time_s in times_s] + [np.full(N, np.nan)] * H)
        stream = make_stream(
            rows,
            [networks()[i] for i in used],
            start_s=times_s[0],
            step_s=STEP_S,
            timezone=TIMEZONE,
            quantity=self.quantity,
            network_of=np.array([used.index(i) for i in past + ahead]),
        )
        topologies = []
        usual = networks()[0]
        knows_detours = self.quantity == "count" or self.name == "paper"
        for i in used:
            places, anchors = described(self.name, self.quantity, i)
            told = networks()[i] if knows_detours else usual.despite_closures(networks()[i])
            topologies.append(build_topology(told, run.scaling, places, anchors=anchors))
        inputs = torch.from_numpy(run.split.seen)
        batch = windows_on(stream, topologies).batch(
            np.array([len(times_s) - 1]), past=len(times_s), horizon=H, inputs=inputs
        )
        # Messages pass on the roads of each snapshot, or on those ahead where these are others than the last ones.
        for on in sorted(set(ahead), key=used.index):
            for k, time_s in enumerate(times_s):
                key = (time_s, past[k] if on == past[-1] else on, past[k])
                seen_as = batch.values[0, k].numpy().tobytes() + batch.observed[0, k].numpy().tobytes()
                self.count += self.encoded_as.pop(key, b"") != seen_as
                self.encoded_as[key] = seen_as
        for old in list(self.encoded_as)[: -3 * T]:
            del self.encoded_as[old]
        with torch.inference_mode():
            made = batch.join(run.model(batch))[0].double().numpy()
        made = np.maximum(made, 0) if self.quantity == "count" else made
        return np.where([forecast_nodes(networks()[which], usual, self.quantity) for which in ahead], made, np.nan)


def assert_same(found: NDArray[np.floating], expected: NDArray[np.floating]) -> None:
    largest = max(1.0, float(np.nanmax(np.abs(expected))))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * largest, equal_nan=True)


def readings(rng: np.random.Generator, size: tuple[int, ...] = (N,)) -> NDArray[np.float64]:
    values = rng.poisson(4.0, size).astype(np.float64)
    return np.where(rng.random(size) < 0.3, np.nan, values)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "late", "late", "change", "since", "what_if", "again"]),
        st.integers(0, 7),
        st.integers(0, 2**16),
    ),
    max_size=9,
)


@BOTH
@settings(max_examples=25)
@given(steps=STEPS, lazy=st.booleans(), quantity=st.sampled_from(["count", "speed"]))
def test_it_is_the_full_forward_pass_and_encodes_no_more_than_it_must(
    name: str, steps: list[tuple[str, int, int]], lazy: bool, quantity: str
) -> None:
    live = start(name, quantity=quantity)
    history = History(name, quantity)
    for action, choice, seed in [("push", 0, 1), *steps, ("again", 0, 0)]:
        rng = np.random.default_rng(seed)
        last_s = max(history.values, default=START_S - STEP_S)
        window = history.times_s
        which = choice % 3
        match action:
            case "push":
                first_s = last_s + STEP_S * (1 + (choice if choice > 4 else 0))
                rows = readings(rng, (1 + choice % 2, N))
                history.values |= {t: np.full(N, np.nan) for t in range(last_s + STEP_S, first_s, STEP_S)}
                history.values |= {first_s + k * STEP_S: row.copy() for k, row in enumerate(rows)}
                live.push(first_s, rows if choice else rows[0])
            case "late":
                time_s = window[choice % len(window)]
                nodes = rng.choice(N, choice, replace=False)
                values = readings(rng, (choice,))
                history.values[time_s][nodes] = values
                live.late(time_s, networks()[0].node_ids[nodes].tolist(), values)
            case "change":
                history.change(last_s + STEP_S, which)
                live.change(networks()[which])
            case "since":
                since_s = window[0] + (choice - 1) * STEP_S + 1
                history.change(since_s, which)
                live.change(networks()[which], since_s=since_s)
            case "what_if":
                assert_same(live.what_if(networks()[which]).values, history.forecast(every=which))
                assert live.encoded == history.count
        if not lazy or action == "again":
            assert_same(live.forecast().values, history.forecast())
            assert live.encoded == history.count


@BOTH
def test_cost_of_each_event(name: str) -> None:
    live = start(name)
    rng = np.random.default_rng(0)
    sensor = networks()[0].node_ids[np.flatnonzero(live_run(name).split.seen)[0]]
    now_s = START_S + T * STEP_S
    live.push(START_S, rng.poisson(4.0, (T, N)).astype(np.float32))

    def cost(event: Callable[[], object]) -> int:
        before = live.encoded
        event()
        live.forecast()
        return live.encoded - before

    assert cost(lambda: None) == T
    assert cost(lambda: None) == 0
    assert cost(lambda: live.push(now_s, readings(rng))) == 1
    assert cost(lambda: live.late(now_s - STEP_S, [sensor], [50.0])) == 1
    assert cost(lambda: live.late(now_s - STEP_S, [sensor], [50.0])) == 0  # said twice
    assert cost(lambda: live.late(now_s - STEP_S, [sensor], [np.nan])) == 1
    assert cost(lambda: live.late(now_s - STEP_S, [sensor], [0.0])) == 1  # a true 0 is not nothing
    assert cost(lambda: live.change(networks()[1])) == T  # ahead of the whole window
    assert cost(lambda: live.push(now_s + STEP_S, readings(rng))) == 1  # the others are as they were before
    assert cost(lambda: live.change(networks()[2], since_s=now_s)) == 2
    assert cost(lambda: live.change(networks()[0], since_s=now_s)) == 1  # one of them was encoded before the change
    live.change(networks()[1], since_s=0)
    assert cost(lambda: live.change(networks()[0], since_s=0)) == 0  # shut and open again
    assert cost(lambda: live.what_if(networks()[2])) == T
    assert cost(lambda: live.what_if(networks()[2])) == 0
    assert cost(lambda: live.push(now_s + 3 * STEP_S, readings(rng))) == 2  # one was skipped
    assert cost(lambda: live.push(now_s + 90 * STEP_S, readings(rng))) == T


@BOTH
def test_it_is_the_forecast_of_the_stream(name: str) -> None:
    run = live_run(name)
    stream = run.city.stream
    live = Live(run.run, stream.network, sensors=stream.node_ids[run.split.seen].tolist(), device="cpu")
    for k in range(5, 12):
        live.push(int(stream.times_s[k]), stream.values[k], stream.observed[k])
        made = live.forecast()
    expected = forecast(run.run, stream=stream, at=START_S + 12 * STEP_S, device="cpu")
    assert_same(made.values, expected.values)
    for part in ("node_ids", "times_s", "sensor"):
        np.testing.assert_array_equal(getattr(made, part), getattr(expected, part))
    same = {"at_s", "step_s", "timezone", "quantity", "unit"}
    assert {part: getattr(made, part) for part in same} == {part: getattr(expected, part) for part in same}
    closed = networks()[1]
    expected = forecast(run.run, closed, stream, at=START_S + 12 * STEP_S, device="cpu")
    assert_same(live.what_if(closed).values, expected.values)


def test_days_begin_at_local_midnight_before_and_after_a_change_of_the_clocks() -> None:
    days = make_stream(
        np.ones((9, N)), networks()[0], start_s=1_709_782_200, step_s=86_400, timezone=TIMEZONE
    )  # from Thursday 2024-03-07; the clocks change on Sunday
    assert set(np.diff(days.times_s)) == {23 * 3600, 24 * 3600}
    run = untrained(make_town(days, small_settings("paper")))
    live = Live(run.run, days.network, device="cpu")
    live.push(int(days.times_s[0]), days.values[:6])
    assert live.times_s.tolist() == days.times_s[2:6].tolist()
    assert live.forecast().times_s.tolist() == days.times_s[6:].tolist()


@BOTH
def test_weights_of_the_roads_made_beforehand_change_nothing(name: str) -> None:
    town = random_town(name, num_nodes=N, topologies=2)
    model = noisy_model(town.settings, town.scaling)
    batch = town.batch([12, 15, 18])
    assert len(batch.topologies) == 2
    with torch.inference_mode():
        weights = [model.road_weights(topology) for topology in batch.topologies]
        torch.testing.assert_close(model(batch, weights=weights), model(batch), rtol=0, atol=0)
        shut = [replace(part, gates=tuple(gate * 0 for gate in part.gates if gate is not None)) for part in weights]
        assert not torch.equal(model(batch, weights=shut), model(batch))


@BOTH
def test_the_decoder_is_the_same_with_and_without_a_gradient(name: str) -> None:
    town = random_town(name, num_nodes=N)
    model = noisy_model(town.settings, town.scaling)
    batch = town.batch([12, 15, 18])
    expected = model(batch).detach()
    with torch.inference_mode():
        torch.testing.assert_close(model(batch), expected, rtol=1e-5, atol=1e-5)


def test_training_on_does_not_reach_it() -> None:
    run = live_run("paper")
    model = noisy_model(random_town("paper").settings, run.scaling)
    live = Live(replace(run.run, model=model), networks()[0], sensors=run.split.seen, device="cpu")
    live.push(START_S, np.ones(N))
    before = live.forecast().values
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    live.push(START_S + STEP_S, np.ones(N))
    live.late(START_S + STEP_S, [networks()[0].node_ids[0]], [2.0])
    assert not np.array_equal(live.forecast().values, before)
    assert np.ptp(live.forecast().values) > 0


def test_short_windows_and_empty_ones_are_said() -> None:
    live = start("paper")
    with raises(CityError, "snapshot"):
        live.forecast()
    live.push(START_S, np.full(N, np.nan))
    said = " ".join(live.forecast().notices)
    assert f"1 snapshots are complete by then, not {T}" in said and "no reading can be used" in said
    live.push(START_S + STEP_S, np.ones((T, N)))
    assert live.forecast().notices == ()


def test_readings_of_other_nodes_are_left_out_and_counted() -> None:
    run = live_run("paper")
    seen = run.split.seen
    one = start("paper")
    other = start("paper")
    one.push(START_S, np.where(seen, 3.0, 900.0))
    other.push(START_S, np.where(seen, 3.0, np.nan))
    one.late(START_S, networks()[0].node_ids.tolist(), np.where(seen, 3.0, 700.0))
    np.testing.assert_array_equal(one.forecast().values, other.forecast().values)
    assert (one.left_out, other.left_out) == (2 * int((~seen).sum()), 0)
    assert (~seen).any()


def test_only_what_the_window_needs_is_kept() -> None:
    live = start("default")
    rng = np.random.default_rng(0)
    for k in range(40):
        live.change(networks()[k % 3])
        live.push(START_S + k * STEP_S, readings(rng))
        live.forecast()
        assert len(live._encodings) <= 3 * T and len(live._roads.networks) <= T + 1
        assert (np.diff(live._roads.change_s) > 0).all()
    assert live.encoded == 40
    assert live.times_s.tolist() == [START_S + k * STEP_S for k in range(36, 40)]


REFUSED: dict[str, tuple[tuple[str, ...], Callable[[Live], object]]] = {
    "unknown node": (('"5"', "13 nodes"), lambda live: live.late(START_S, [5], [1.0])),
    "older than the window": (
        ("2024-01-01T03:30:00-03:30", "window"),
        lambda live: live.late(START_S - STEP_S, [1000], [1.0]),
    ),
    "not yet there": (
        ("2024-01-01T13:30:00-03:30", "`push`"),
        lambda live: live.late(START_S + 9 * STEP_S, [1000], [1.0]),
    ),
    "another step": (
        ("2024-01-01T12:35:00-03:30", "3600 s"),
        lambda live: live.push(START_S + 8 * STEP_S + 300, np.ones(N)),
    ),
    "late at another step": (
        ("2024-01-01T04:35:00-03:30", "3600 s"),
        lambda live: live.late(START_S + 300, [1000], [1.0]),
    ),
    "backwards": (("not after",), lambda live: live.push(START_S, np.ones(N))),
    "the same again": (("not after",), lambda live: live.push(START_S + STEP_S, np.ones(N))),
    "milliseconds": ((str(START_S * 1000), "seconds"), lambda live: live.push(START_S * 1000, np.ones(N))),
    "another number of nodes": (("N = 13",), lambda live: live.push(START_S + 2 * STEP_S, np.ones(N + 1))),
    "a mask of another shape": (
        ("N = 13",),
        lambda live: live.push(START_S + 2 * STEP_S, np.ones(N), np.ones((2, N), bool)),
    ),
    "no numbers": (("numbers",), lambda live: live.late(START_S, [1000], ["many"])),  # type: ignore[list-item]
    "too few values": (("each node",), lambda live: live.late(START_S, [1000, 1007], [1.0])),
    "a node twice": (("each node",), lambda live: live.late(START_S, [1000, 1000], [1.0, 2.0])),
    "other nodes": (("13",), lambda live: live.change(live.network.add(nodes=[(5, 6.1, 49.6)]))),
    "a what-if of other nodes": (
        ("13",),
        lambda live: live.what_if(live.network.add(nodes=[(5, 6.1, 49.6)])),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_changes_leave_everything_as_it_was(case: str) -> None:
    live = start("paper")
    live.push(START_S, np.ones((2, N)))
    before = live.forecast()
    named, call = REFUSED[case]
    with raises(CityError, *named):
        call(live)
    np.testing.assert_array_equal(live.forecast().values, before.values)
    assert live.forecast().at_s == before.at_s
    assert live.encoded == 2


def test_late_before_the_first_snapshot_is_refused() -> None:
    with raises(CityError, "none yet"):
        start("paper").late(START_S, [1000], [1.0])


def test_sensors_that_are_no_nodes_are_refused() -> None:
    with raises(CityError, "not in the network"):
        Live(live_run("paper").run, networks()[0], sensors=[5], device="cpu")
    with raises(CityError, "13 nodes"):
        Live(live_run("paper").run, networks()[0], sensors=np.ones(N + 1, bool), device="cpu")


def test_by_default_it_begins_with_the_citys_roads_and_the_seen_nodes() -> None:
    run = live_run("default", "speed")
    ready = replace(run.city, road_features={run.city.network.fingerprint: road_features(networks()[0]) + 1})
    given, city, other = (Live(run.run, on, device="cpu") for on in (run.city.network, run.city, ready))
    for live in (given, city, other):
        live.push(START_S, np.ones(N))
        assert live.left_out == int((~run.split.seen).sum())
    np.testing.assert_array_equal(given.forecast().values, city.forecast().values)
    assert not np.array_equal(city.forecast().values, other.forecast().values)  # the city's features are used


def test_a_baseline_is_refused() -> None:
    run = live_run("paper")
    baseline = change(preset(next(iter(BASELINES))), {"task": {"past": 12, "horizon": 12}})
    scaling = replace(run.scaling, anchors=None)
    model = build_model(baseline, scaling)
    assert not isinstance(model, Frigate)
    with raises(SettingsError, f'"{next(iter(BASELINES))}"', "frigate.Forecaster"):
        Live(replace(run.run, model=model, settings=baseline, scaling=scaling), networks()[0], device="cpu")
