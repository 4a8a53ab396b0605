"""Evaluation: the right cells, groups and yardsticks, streamed, and a report a machine can read."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from frigate.baselines.naive import Baseline, Constant, naive_baselines
from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork
from frigate.city.split import Split, make_split, read_seen_file, windows_in
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.config import Task, change, preset
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import (
    HOPS,
    MAX_WINDOWS,
    NONE,
    OWN,
    TERCILES,
    evaluate,
    evaluate_forecaster,
    forecaster_of,
    hop_groups,
    lightgbm_seconds,
    score,
    terciles,
    windows_at_once,
)
from frigate.evaluation.metrics import Measure, Scores
from frigate.evaluation.results import Evaluation
from frigate.nn.batch import Batch
from frigate.nn.predictor import Predictor
from frigate.training.run import RunOnCity, build_model
from frigate.training.train import train
from tests.support.errors import raises
from tests.support.grids import tidal_grid, windows_of
from tests.support.shared_data import shared_data

PAST, HORIZON = 6, 4


def small_split(stream: RoadNetworkStream, seen: object = 0.4) -> Split:
    return make_split(stream, seen=seen, past=PAST, horizon=HORIZON, seed=1)  # type: ignore[arg-type]


def judged(
    model: Baseline, stream: RoadNetworkStream, split: Split, *, stride: int = 1, batch_size: int = 16
) -> Evaluation:
    return evaluate_forecaster(
        model,
        City("town", stream),
        split,
        windows_of(stream, split.seen),
        Task(PAST, HORIZON),
        name="model",
        stride=stride,
        batch_size=batch_size,
    )


def truth(batch: Batch) -> Tensor:
    assert batch.target is not None
    return batch.target


def test_rows_and_their_yardsticks() -> None:
    stream = tidal_grid()
    split = small_split(stream)
    result = judged(truth, stream, split)
    assert [row.kind for row in result.rows] == ["model", *["baseline"] * 5, "yardstick"]
    assert [row.name for row in result.rows[:3]] == ["model", "zero", "constant median"]
    perfect, zero, none, own = (result.row(name) for name in ("model", "zero", NONE, OWN))
    assert perfect.unseen is not None
    assert none.unseen is not None
    assert own.unseen is not None
    assert perfect.unseen.mae.value == perfect.unseen.rmse.value == perfect.unseen.smape.value == 0
    assert perfect.relative_to_zero == 0
    assert zero.relative_to_zero == 1
    # All draw the same nodes, so that what is compared with itself leaves no doubt.
    assert none.share_of_sensor == Measure(0, 0, 0)
    assert own.share_of_sensor == Measure(1, 1, 1)
    share = perfect.share_of_sensor
    assert share is not None
    e_none = none.unseen.mae.value
    e_own = own.unseen.mae.value
    assert share.value == pytest.approx(e_none / (e_none - e_own))
    assert share.low < share.value < share.high
    with raises(SettingsError, "row"):
        result.row("oracle")


def test_cells_are_those_with_truth_in_test_windows() -> None:
    stream = tidal_grid()
    split = small_split(stream)
    result = judged(Constant(3.0), stream, split, stride=3)
    current = windows_in(split.test, past=PAST, horizon=HORIZON, stride=3)
    errors = {"unseen": [], "at_sensors": []}  # type: dict[str, list[float]]
    for c in current:
        for step in range(1, HORIZON + 1):
            for n in np.flatnonzero(stream.observed[c + step]):
                errors["unseen" if split.unseen[n] else "at_sensors"].append(abs(float(stream.values[c + step, n]) - 3))
    assert result.windows == len(current)
    for where, wrong in errors.items():
        summary = getattr(result.model, where)
        assert summary.cells == len(wrong)
        assert summary.mae.value == pytest.approx(np.mean(wrong))


def test_forecasters_see_all_seen_nodes_and_no_other() -> None:
    stream = tidal_grid()
    split = small_split(stream)
    batches: list[Batch] = []

    def spy(batch: Batch) -> Tensor:
        batches.append(batch)
        assert torch.is_inference_mode_enabled()
        return Constant(0.0)(batch)

    judged(spy, stream, split)
    observed = torch.cat([batch.observed for batch in batches])
    np.testing.assert_array_equal(observed.any(0).any(0), split.seen)  # validation nodes too
    assert all((batch.values[~batch.observed] == 0).all() for batch in batches)


def test_batch_size_changes_nothing_and_progress_is_told() -> None:
    stream = tidal_grid()
    split = small_split(stream)
    current = windows_in(split.test, past=PAST, horizon=HORIZON)
    windows = windows_of(stream, split.seen)
    ticks: list[tuple[int, int]] = []

    def scores(size: int) -> Scores:
        return score(
            {"three": Constant(3.0)},
            windows,
            split,
            Task(PAST, HORIZON),
            batch_size=size,
            progress=lambda done, total, _: ticks.append((done, total)),
        )["three"]

    whole = scores(1000)
    assert ticks == [(len(current), len(current))]
    np.testing.assert_allclose(whole.cell_sums, scores(7).cell_sums, rtol=1e-13)
    assert ticks[-1] == (len(current), len(current))
    mae = [judged(truth, stream, split, batch_size=size).row("label propagation").unseen for size in (5, 64)]
    assert mae[0] is not None
    assert mae[1] is not None
    assert mae[0].mae.value == pytest.approx(mae[1].mae.value, rel=1e-6)


def small_run(*, quantity: str = "count", **training: object) -> RunOnCity:
    settings = change(
        preset("default"),
        {
            "task": {"past": PAST, "horizon": HORIZON},
            "model": {"width": 8, "layers": 1, "hidden": 8},
            "train": {
                "epochs": 1,
                "steps_per_epoch": 1,
                "masks": 3,
                "batch_size": 4,
                "validation_windows": 4,
                **training,
            },
        },
    )
    city = City("town", replace(tidal_grid(), quantity=quantity))
    return train(city, seen=0.4, settings=settings, device="cpu").on(city)


def test_memory_decides_how_many_windows_are_scored_at_once() -> None:
    run = small_run()
    ticks: list[list[int]] = []
    for memory_gb in (None, 1e-6):
        ticks.append([])
        limited = replace(run.run, settings=change(run.settings, {"train": {"memory_gb": memory_gb}}))
        result = evaluate(limited, run.city, device="cpu", progress=lambda done, total, _: ticks[-1].append(done))
        assert ticks[-1][-1] == result.windows
    assert np.diff(ticks[0])[0] == MAX_WINDOWS
    assert set(np.diff(ticks[1])) == {1}


def test_a_large_network_is_scored_in_small_batches() -> None:
    run = small_run()
    cpu = torch.device("cpu")
    wide = change(run.settings, {"model": {"width": 64}, "task": {"past": 12, "horizon": 12}})
    model = build_model(wide, run.scaling)

    def at_once(N: int) -> int:
        network = RoadNetwork(np.arange(N), np.zeros(N), np.zeros(N), Edges.none())
        nothing = make_stream(np.zeros((1, N), np.float32), network, start_s=0, step_s=300)
        return windows_at_once(nothing, wide.task, Predictor(model, network, cpu))

    assert at_once(2_000) == MAX_WINDOWS
    assert 2 <= at_once(30_826) <= 6  # 16 of them would take 13 GB
    assert at_once(1_000_000) == 1


def test_the_runs_own_model_is_not_touched() -> None:
    run = small_run()
    run.model.train()
    inputs = torch.from_numpy(run.split.seen)
    batch = run.windows().batch(np.array([50]), past=PAST, horizon=HORIZON, inputs=inputs)
    forecast = forecaster_of(run, "cpu").predictor
    one = forecast(batch)
    evaluate(run.run, run.city, stride=20, device="cpu")
    assert run.model.training
    with torch.no_grad():
        next(run.model.parameters()).fill_(9.0)  # nor does what is done to it later reach the predictor
    assert torch.equal(one, forecast(batch))


@pytest.mark.parametrize("quantity", ["count", "speed"])
def test_counts_are_scored_as_they_are_forecast_not_below_0(quantity: str) -> None:
    run = small_run(quantity=quantity)
    run.model.trust_correction(1.0)
    with torch.no_grad():
        for parameter in run.model.get_submodule("readout").parameters():
            parameter.fill_(-100.0)
    result = evaluate(run.run, run.city, stride=20, device="cpu")
    assert result.model.unseen is not None and result.row("zero").unseen is not None
    assert (result.model.unseen == result.row("zero").unseen) == (quantity == "count")


def test_details_have_every_group_and_forecaster() -> None:
    stream = tidal_grid()
    stream = replace(stream, values=1.3 * stream.values)
    result = judged(Constant(5.0), stream, small_split(stream))
    tables = result.detail_tables()
    by_step, by_tercile, by_hops = tables.values()
    assert [row["step ahead"] for row in by_step] == ["1 (30 min)", "2 (60 min)", "3 (90 min)", "4 (120 min)"]
    assert [row["reading"] for row in by_tercile] == ["low", "medium", "high"]
    assert [row["roads"] for row in by_hops] == list(result.model.by_hops)
    for row in (*by_step, *by_tercile, *by_hops):
        assert list(row)[1:-1] == [scored.label for scored in result.rows]
    first = result.model.by_step[0]
    zero = result.row("zero").by_step[0]
    assert first is not None
    assert zero is not None
    assert by_step[0]["model"] == f"{first.mae.value:.3f} [{first.mae.low:.3f}, {first.mae.high:.3f}]"
    assert first.mae.value < 10 < zero.mae.value and by_step[0]["zero"] == f"{zero.mae.value:.1f}"
    assert sum(int(row["nodes"]) for row in by_hops) == 22
    at_sensors = judged(Constant(1.0), stream, small_split(stream, "all"))
    assert list(at_sensors.detail_tables()) == list(tables)[:2]  # a sensor is no road away from itself


def test_terciles_partition_by_mean_training_reading() -> None:
    stream = tidal_grid()
    stream.observed[:, 3] = False
    stream.observed[800:, 3] = True
    split = replace(small_split(stream, "all"), unseen=np.arange(36) < 20)
    group = terciles(stream, split, split.unseen)
    assert (group[20:] == -1).all()
    assert group[3] == TERCILES.index("no training reading")
    part = slice(*split.train)
    mean = np.array([stream.values[part, n][stream.observed[part, n]].mean() for n in range(20) if n != 3])
    rank = np.delete(group[:20], 3)
    assert [int((rank == g).sum()) for g in range(3)] == [7, 6, 6]
    assert mean[rank == 0].max() <= mean[rank == 1].min() <= mean[rank == 1].max() <= mean[rank == 2].min()
    # A later reading does not move a node to another third.
    stream.values[split.train[1] :] *= 100
    np.testing.assert_array_equal(terciles(stream, split, split.unseen), group)


def test_equal_means_share_a_tercile() -> None:
    stream = tidal_grid()
    stream.values[:] = 2
    split = small_split(stream)
    assert (terciles(stream, split, split.unseen)[split.unseen] == 0).all()


def test_hop_groups_partition() -> None:
    stream = tidal_grid()
    network = stream.networks[0]
    stream = stream.on(network.close([(100, 101), (101, 100), (100, 106), (106, 100)]))  # node 0 is cut off
    split = replace(small_split(stream), seen=np.arange(36) == 35, unseen=np.arange(36) < 35)
    group = hop_groups(stream, split, split.unseen)
    north, east = np.divmod(np.arange(36), 6)
    hops = (5 - north) + (5 - east)
    label = [HOPS[g] if g >= 0 else "" for g in group]
    expected = ["1" if h == 1 else "2" if h == 2 else "3" if h == 3 else "4-5" if h <= 5 else "6-10" for h in hops]
    assert label[1:35] == expected[1:35]
    assert label[0] == "no road to a sensor"
    assert label[35] == ""
    result = judged(Constant(1.0), stream, split)
    unseen = result.model.unseen
    assert unseen is not None
    for groups in (result.model.by_hops, result.model.by_tercile):
        assert sum(summary.cells for summary in groups.values()) == unseen.cells
        assert sum(summary.nodes for summary in groups.values()) == 35
    assert len(result.model.by_step) == HORIZON


def test_all_seen_reports_at_sensors_and_says_so() -> None:
    stream = tidal_grid()
    result = judged(Constant(1.0), stream, small_split(stream, "all"))
    assert "at sensors" in result.note
    assert result.model.unseen is None
    assert result.model.at_sensors is not None
    assert result.model.share_of_sensor is None
    assert result.model.by_step[0] is not None
    assert result.model.by_hops == {}
    assert result.row("zero").relative_to_zero == 1
    table = result.table_rows()
    assert table[0]["MAE"].startswith(f"{result.model.at_sensors.mae.value:.3f}"[:4])
    assert "share of a sensor" not in table[0]
    json.dumps(result.to_json(), allow_nan=False)


def test_unseen_nodes_without_truth_are_noted() -> None:
    stream = tidal_grid()
    split = small_split(stream)
    stream.observed[split.test[0] :, split.unseen] = False
    result = judged(Constant(1.0), stream, split)
    assert result.note.startswith("None of the 22 unseen nodes has a reading to score")
    json.dumps(result.to_json(), allow_nan=False)


def test_share_is_undefined_where_a_sensor_would_not_have_helped() -> None:
    stream = tidal_grid()
    split = small_split(stream)
    stream.values[:] = 5
    stream.values[: split.train[1], split.unseen] = 9  # what they were is no guide to what they are
    result = judged(Constant(5.0), stream, split)
    assert all(row.share_of_sensor is None for row in result.rows)
    assert result.table_rows()[0]["share of a sensor"] == "undefined"


def test_no_share_is_less_than_nothing() -> None:
    stream = tidal_grid()
    result = judged(Constant(1.0), stream, small_split(stream))
    model = replace(result.model, share_of_sensor=Measure(-0.004, -0.014, 0.002))
    assert replace(result, rows=(model, *result.rows[1:])).table_rows()[0]["share of a sensor"] == "0 % [-1, 0]"


def test_one_node_is_shown_without_an_interval() -> None:
    stream = tidal_grid()
    split = small_split(stream)
    one = replace(split, unseen=np.arange(stream.num_nodes) == np.flatnonzero(split.unseen)[0])
    result = judged(truth, stream, one)
    assert result.model.unseen is not None and result.model.unseen.nodes == 1
    for row in result.table_rows():
        assert not any("[" in row[column] or "nan" in row[column] for column in ("MAE", "share of a sensor"))


def test_the_yardstick_is_marked_and_explained() -> None:
    stream = tidal_grid()
    result = judged(Constant(1.0), stream, small_split(stream))
    assert [row["forecaster"] for row in result.table_rows() if row["forecaster"].endswith(" *")] == [f"{OWN} *"]
    assert "no forecaster has" in result.footnote
    at_sensors = judged(Constant(1.0), stream, small_split(stream, "all"))
    assert "each sensor's own median" in at_sensors.footnote


def test_report_says_what_was_scored() -> None:
    stream = replace(tidal_grid(), timezone="Etc/GMT-2", utc_offset_s=np.full(900, 7200), unit="vehicles")
    split = small_split(stream)
    data = json.loads(json.dumps(judged(Constant(1.0), stream, split, stride=2).to_json(), allow_nan=False))
    assert data["test"]["start"] == "2024-01-17T23:00:00+02:00"  # snapshot 810 of half an hour
    assert data["test"]["end"] == "2024-01-19T20:00:00+02:00"
    assert (data["test"]["windows"], data["test"]["stride"]) == (41, 2)
    assert data["nodes"]["unseen"] == stream.node_ids[split.unseen].tolist()
    assert data["nodes"]["seen"] == stream.node_ids[split.seen].tolist()
    model = data["rows"][0]
    assert model["unseen"]["mae"]["low"] < model["unseen"]["mae"]["value"] < model["unseen"]["mae"]["high"]
    assert model["unseen"]["geh_share"]["value"] is not None
    assert set(data["rows"][1]["by_tercile"]) == {"low", "medium", "high"}


def test_impossible_requests_are_refused() -> None:
    stream = tidal_grid()
    split = small_split(stream)
    windows = windows_of(stream, split.seen)
    with raises(SettingsError, "test period", "90 snapshots"):
        evaluate_forecaster(truth, City("town", stream), split, windows, Task(80, 12), name="m")
    with raises(SettingsError, '"zero"'):
        evaluate_forecaster(truth, City("town", stream), split, windows, Task(6, 4), name="zero")


@pytest.mark.shared
def test_published_split_is_read() -> None:
    stream = tidal_grid()
    big = np.arange(2464)
    network = RoadNetwork(big, big / 1e4, big / 1e4, stream.network.edges)
    ids = read_seen_file(shared_data("splits") / "sf-taxi-core-30-0.txt", network)
    assert len(ids) == len(set(ids)) == 739


# The best baseline, the sensors' own past, the period


def test_the_difference_to_the_best_baseline_is_drawn_over_the_same_nodes() -> None:
    stream = tidal_grid()
    split = small_split(stream)
    best = min(judged(Constant(1.0), stream, split).rows[1:-1], key=lambda row: row.unseen.mae.value)  # type: ignore[union-attr]
    result = judged(Constant(1.0), stream, split)
    assert result.minus_best is not None and result.minus_best.baseline == best.name
    scored = score(
        {"model": Constant(1.0), "best": naive_baselines(stream, split)[best.name]},
        windows_of(stream, split.seen),
        split,
        Task(PAST, HORIZON),
    )
    (ours, drawn), (theirs, drawn_too) = (scored[name].mae_draws(split.unseen) for name in ("model", "best"))
    low, high = np.quantile(drawn - drawn_too, [0.025, 0.975])
    assert result.minus_best.mae == Measure(ours - theirs, low, high)
    # The nodes vary far more than the difference between two forecasts that are nearly one.
    alike = judged(lambda batch: naive_baselines(stream, split)[best.name](batch) + 0.01, stream, split)
    assert alike.minus_best is not None and alike.model.unseen is not None
    apart = alike.minus_best.mae
    assert apart.high - apart.low < 0.1 * (alike.model.unseen.mae.high - alike.model.unseen.mae.low)
    assert "+" in alike.comparison_line() or "-" in alike.comparison_line()


def test_a_sensors_own_past_is_scored_at_sensors_alone() -> None:
    stream = tidal_grid()
    result = judged(truth, stream, small_split(stream))
    names = ["persistence", "last hour", "last week"]
    assert [row.name for row in result.own_past] == names
    assert not set(names) & {row.name for row in result.rows}
    for row in result.own_past:
        assert row.unseen is None and row.share_of_sensor is None and row.at_sensors is not None
        assert row.at_sensors.mae.value > 0
    table = result.sensor_table()
    assert [row["forecaster"] for row in table] == [
        *(row.name for row in result.rows[:-1]),
        *names,
        OWN,
    ]
    assert json.loads(json.dumps(result.to_json()))["own_past"][0]["name"] == "persistence"
    assert "model" in repr(result) and "\n" in repr(result)
    # Where every sensor is seen, they are baselines like the others, and there is no second table.
    alone = judged(truth, stream, small_split(stream, "all"))
    assert alone.own_past == () and alone.sensor_table() == []
    assert [row.name for row in alone.rows if row.name in names] == names


def test_a_period_is_chosen_and_what_it_misses_is_said() -> None:
    run = small_run()  # from Monday 2024-01-01, 900 half hours; tested from Wednesday evening to Friday night

    def at(test: str | None) -> Evaluation:
        return evaluate(run.run, run.city, test=test, stride=5, device="cpu")

    assert "no weekend" in at(None).note and "no weekday" not in at(None).note
    assert "no weekday" in (weekend := at("2024-01-13/2024-01-14")).note
    assert (weekend.start, weekend.end) == ("2024-01-13T00:00:00+00:00", "2024-01-15T00:00:00+00:00")
    both = at("2024-01-15T06:00/2024-01-19")  # the record ends that evening
    assert "no weekend" in both.note and "trained on" not in both.note
    assert (both.start, both.end) == ("2024-01-15T06:00:00+00:00", "2024-01-19T18:00:00+00:00")
    whole = at("2024-01-05/2024-01-08")
    assert "no week" not in whole.note and "trained on" in whole.note
    for wrong, named in (
        ("2023-12-30/2023-12-31", "2024-01-01T00:00:00+00:00"),
        ("2024-01-12/2024-01-11", "2024-01-11"),
        ("Monday", "Monday"),
        ("2024-01-18T00:00/2024-01-18T02:00", "4 snapshots"),
    ):
        with raises(SettingsError, named):
            at(wrong)


def test_lightgbm_stands_in_the_table_when_asked() -> None:
    pytest.importorskip("lightgbm")
    run = small_run(quantity="speed")  # no count: fitted with one objective
    result = evaluate(run.run, run.city, stride=40, lightgbm=True, device="cpu")
    row = result.row("LightGBM")
    assert row.kind == "baseline" and row.unseen is not None and row.unseen.mae.value > 0
    assert [each.name for each in result.rows[:2]] == [result.model.name, "LightGBM"]
    assert row.unseen.cells == result.model.unseen.cells  # type: ignore[union-attr]
    # Neither more windows nor more nodes take less time.
    assert 0 < lightgbm_seconds(run, stride=40) < lightgbm_seconds(run)


def test_how_much_of_the_error_comes_from_broken_periods_is_said() -> None:
    stream = tidal_grid(silent=0.0)
    split = small_split(stream)
    assert judged(Constant(10.0), stream, split).broken is None
    values = np.array(stream.values)
    row = int(np.flatnonzero(split.unseen)[0])
    first, stop = split.test
    values[first:stop, row] = 1000.0  # stuck
    found = judged(Constant(10.0), replace(stream, values=values), split)
    assert found.broken is not None
    assert found.broken.nodes == 1
    assert found.broken.of_readings == pytest.approx(1 / split.unseen.sum())
    rest = judged(Constant(10.0), stream, split)
    others = np.flatnonzero(split.unseen)[1:]
    assert found.broken.mae_without == pytest.approx(np.nanmean(rest.node_mae[others]), rel=1e-6)
    total = found.broken.mae_without * len(others)
    assert found.broken.of_error == pytest.approx(990 / (990 + total), rel=1e-6)
    assert "1 sensor looks broken" in found.broken.line()
    assert found.to_json()["broken"]["nodes"] == 1
