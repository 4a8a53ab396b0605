"""Dropout of `default`: of features, of roads, and before the readouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from frigate.nn.ops import use_kernels
from tests.support.towns import build_model, random_town

SHARE = 0.25


@pytest.mark.parametrize("where", ["features", "roads", "readouts"])
def test_each_kind_drops_its_share_and_keeps_the_mean(where: str) -> None:
    town = random_town("default", num_nodes=40)
    of_roads = where == "roads"
    rates: dict[str, Any] = {"dropout": 0.0 if of_roads else SHARE, "edge_dropout": SHARE if of_roads else 0.0}
    model = build_model(replace(town.settings, layers=1, **rates), town.scaling).train()
    (layer,) = model.convolutions
    readouts = [model.first[2], model.readout[2]]
    every: dict[str, Any] = {"features": [layer.dropout], "roads": [layer.edge_dropout], "readouts": readouts}
    places = every[where]
    found: list[tuple[Tensor, Tensor]] = []
    for place in places:
        place.register_forward_hook(lambda module, inputs, made: found.append((inputs[0], made)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with use_kernels("reference"):
            model(town.batch(list(range(4, 24))))
    assert len(found) >= len(places)
    for before, after in found:
        some = before != 0
        assert (torch.isclose(after, before / (1 - SHARE)) | (after == 0)).all()
        gone = float((after[some] == 0).float().mean())
        count = int(some.sum())
        assert abs(gone - SHARE) < 5 * (SHARE * (1 - SHARE) / count) ** 0.5  # five deviations
