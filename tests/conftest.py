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
# The files that take longest, the longest first. `make test` gives whole files to three processes in this order, so
# that none is left with a long one at the end: three on two cores, because some tests mostly wait for other processes.
LONGEST = (
    "cli/test_commands.py",
    "experiments/test_experiments.py",
    "training/test_train.py",
    "page/test_map.py",
    "sources/test_fuzz.py",
    "training/test_distributed.py",
    "forecasting/test_export.py",
    "baselines/test_baselines.py",
    "data/test_sandbox.py",
    "page/test_report.py",
    "serve/test_app_server.py",
    "bench/test_bench.py",
    "test_examples.py",
    "serve/test_holds_processes.py",
    "training/test_checkpoint.py",
    "forecasting/test_forecast.py",
    "nn/test_partition.py",
    "nn/ops/test_cuda_decoder.py",
    "nn/ops/test_cuda_demand.py",
    "evaluation/test_evaluate.py",
    "baselines/test_baseline_runs.py",
    "sources/test_unpickle.py",
    "data/test_city.py",
    "baselines/test_boosted_trees.py",
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
