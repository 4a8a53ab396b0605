"""Predictor: the model's forecast, from a copy, at some nodes or all, in blocks or at once, counts not negative."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from frigate.errors import SettingsError
from frigate.nn import predictor
from frigate.nn.predictor import Predictor
from tests.support.errors import raises
from tests.support.towns import PRESETS, build_model, random_town, windows_on

BOTH = pytest.mark.parametrize("name", PRESETS)
CPU = torch.device("cpu")


@BOTH
def test_it_is_the_models_forecast_from_a_copy(name: str) -> None:
    town = random_town(name)
    model = build_model(town.settings, town.scaling)
    batch = town.batch([9, 12])
    with torch.inference_mode():
        expected = model(batch)
    model.train()
    predict = Predictor(model, town.stream.network, CPU)
    torch.testing.assert_close(predict(batch), expected, rtol=0, atol=0)
    assert model.training and not predict.model.training
    assert not predict(batch).requires_grad
    nodes = torch.tensor([7, 2, 3])
    torch.testing.assert_close(predict(batch, nodes), expected[..., nodes], rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(predict(batch), expected, rtol=0, atol=0)


@BOTH
def test_counts_are_not_negative_and_an_absent_node_has_no_value(name: str) -> None:
    town = random_town(name)
    network = town.stream.network
    model = build_model(town.settings, town.scaling)
    batch = town.batch([9])
    with torch.no_grad():
        model.value_offset.fill_(-5.0)
    gauge, count = (Predictor(model, network, CPU, quantity=quantity) for quantity in ("speed", "count"))
    assert (gauge(batch) < 0).any()
    torch.testing.assert_close(count(batch), gauge(batch).clamp(min=0))
    absent = network.remove_nodes([network.node_ids[4]])
    values = count.to_array(gauge(batch)[0], absent.present)
    assert values.dtype == np.float64 and np.isnan(values[:, 4]).all()
    np.testing.assert_array_equal(np.delete(values, 4, axis=1), np.delete(count(batch)[0].double().numpy(), 4, axis=1))


@BOTH
def test_little_memory_makes_blocks_and_too_little_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "MIN_BLOCK", 3)
    town = random_town(name, num_nodes=40)
    network = town.stream.network
    batch = town.batch([9, 12])
    model = build_model(town.settings, town.scaling)
    whole = Predictor(model, network, CPU)
    tight = Predictor(model, network, CPU, memory_gb=1e-9)
    torch.testing.assert_close(tight(batch), whole(batch), rtol=1e-4, atol=1e-4)
    with raises(SettingsError, "memory_gb"):
        tight(batch, must_fit=True)
    sizes = {"edges": network.num_edges, "past": batch.past, "horizon": batch.horizon}
    assert tight.windows_at_once(**sizes) == 1 < whole.windows_at_once(**sizes)
    assert whole.windows_at_once(**sizes, beside=2**31) == 1


def test_a_window_at_the_end_of_the_record_has_a_calendar_and_no_target() -> None:
    town = random_town("default")
    stream = town.stream
    S = stream.num_snapshots
    read = torch.ones(stream.num_nodes, dtype=torch.bool)
    inside = windows_on(stream, town.topologies).batch(np.array([S - 6]), past=4, horizon=5, inputs=read)
    short = windows_on(stream.slice(0, S - 5), town.topologies)
    at_end = short.batch(np.array([S - 6]), past=4, horizon=5, inputs=read)
    assert at_end.target is None and at_end.target_observed is None
    assert inside.target is not None
    for name in ("values", "observed", "time_past", "time_future", "topology_of"):
        assert torch.equal(getattr(at_end, name), getattr(inside, name))
