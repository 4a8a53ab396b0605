"""What a model forecasts, and how two forecasts are compared."""

from __future__ import annotations

import torch
from torch import Tensor

from frigate.nn.batch import Batch
from frigate.nn.forecast_model import ForecastModel
from tests.support.towns import in_float64


def forecasts(model: ForecastModel, batch: Batch) -> Tensor:
    with torch.inference_mode():
        found: Tensor = batch.join(model(batch))
    return found


def exactly(model: ForecastModel, batch: Batch) -> Tensor:
    """In float64, so that only a real difference shows."""
    return forecasts(model.double(), in_float64(batch))


def assert_same(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)
