"""Settings of the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # which Triton reads when a kernel is defined

TESTS = Path(__file__).parent
# The files that take longest, the longest first. `make test` gives whole files to two processes in this order, so that
# neither is left with a long one at the end.
LONGEST = (
    "experiments/test_experiments.py",
    "cli/test_commands.py",
    "training/test_train.py",
    "training/test_distributed.py",
    "sources/test_fuzz.py",
    "forecasting/test_export.py",
    "baselines/test_baselines.py",
    "data/test_sandbox.py",
    "test_examples.py",
    "baselines/test_baseline_runs.py",
    "nn/ops/test_cuda_decoder.py",
    "evaluation/test_evaluate.py",
    "bench/test_bench.py",
    "nn/ops/test_cuda_layers.py",
    "training/test_checkpoint.py",
    "sources/test_traces.py",
    "baselines/test_boosted_trees.py",
    "nn/test_model.py",
    "forecasting/test_live.py",
)

# The same examples in every run, and no limit on time: a run depends neither on luck nor on how fast the machine is.
# `pytest --hypothesis-profile=explore` draws new examples, and prints how to repeat one that fails.
# `too_slow` is left out because it measures seconds.
settings.register_profile("repeat", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("repeat"), derandomize=False, print_blob=True)
settings.load_profile("repeat")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        place = {TESTS / name: number for number, name in enumerate(LONGEST)}
        assert all(path.exists() for path in place)
        items.sort(key=lambda item: place.get(item.path, len(LONGEST)))
