"""The labelled equations are the ones that run: every labelled line of the model executes on every backend."""

from __future__ import annotations

import re
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from frigate.nn import layers, model, moments
from frigate.nn.batch import Batch
from frigate.nn.model import Frigate, absolute_error
from frigate.nn.ops import KERNELS, use_kernels
from frigate.nn.ops.cuda import CudaBackend
from frigate.training.train import train
from tests.support.towns import build_model, make_town, random_network, random_stream, small_settings, windows_on
from tests.support.training_runs import tiny, town

FILES = {Path(module.__file__ or ""): module.__name__ for module in (model, layers, moments)}
LABEL = re.compile(r"eq:\w+|Alg\. lines? \d+")
EQUATIONS = {
    "eq:h0",
    "eq:edgeposition",
    "eq:edgescalar",
    "eq:sigmoid",
    "eq:aggregation_out",
    "eq:aggregation_in",
    "eq:hl",
    "eq:lstm",
    "eq:decoder",
    "eq:mae",
}


def labels(path: Path) -> dict[int, list[str]]:
    """The labels in the comments beside code, by line."""
    found: dict[int, list[str]] = {}
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            beside_code = not token.line.lstrip().startswith("#")
            if token.type == tokenize.COMMENT and beside_code and (here := LABEL.findall(token.string)):
                found[token.start[0]] = here
    return found


def lines_run(function: Callable[[], object]) -> dict[Path, set[int]]:
    """The lines of FILES that a call executes, on this thread."""
    run: dict[Path, set[int]] = {path: set() for path in FILES}
    by_name = {str(path): lines for path, lines in run.items()}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        here = by_name.get(frame.f_code.co_filename)
        if here is None:
            return None
        if event == "line":
            here.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return run


def missing(run: dict[Path, set[int]], *, training: bool) -> dict[str, list[str]]:
    """The labelled lines that did not run; eq:mae is the loss, which only training has."""
    return {
        f"{FILES[path]}:{line}": here
        for path in FILES
        for line, here in labels(path).items()
        if line not in run[path] and (training or here != ["eq:mae"])
    }


def test_every_equation_has_a_label() -> None:
    found = {label for path in FILES for here in labels(path).values() for label in here}
    assert found >= EQUATIONS
    steps = {int(number) for label in found for number in re.findall(r"Alg\. lines? (\d+)", label)}
    assert steps >= {1, 3, 5, 7, 8, 9, 13}


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_labelled_line_runs_in_a_forward_pass(kernels: str) -> None:
    net, batch = small_model("cpu")
    with use_kernels(kernels):
        assert missing(lines_run(lambda: net(batch)), training=False) == {}


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_labelled_line_runs_in_training(kernels: str) -> None:
    settings = tiny("paper", epochs=1, steps_per_epoch=1)
    city = town()
    with use_kernels(kernels):
        assert missing(lines_run(lambda: train(city, settings=settings, device="cpu")), training=True) == {}


def test_every_labelled_line_runs_on_a_gpu(device: str) -> None:
    """Or under Triton's interpreter: forward, loss and gradients."""
    net, batch = small_model(device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            forecast = net(batch)
        assert batch.target is not None
        absolute_error(forecast, batch.target, torch.ones_like(forecast), 1.0).backward()

    with use_kernels(CudaBackend(matrix_units=True, state_on_chip=True)):
        assert missing(lines_run(step), training=True) == {}
    assert all(weight.grad is not None for weight in net.parameters())


def small_model(device: str) -> tuple[Frigate, Batch]:
    stream = random_stream([random_network(5, seed=1)], seed=1)
    place = make_town(stream, small_settings("paper", layers=2, width=16))
    inputs = torch.ones(5, dtype=torch.bool, device=device)
    batch = windows_on(stream, place.topologies, device).batch(np.array([9]), past=2, horizon=2, inputs=inputs)
    return build_model(place.settings, place.scaling).to(device), batch
