"""Settings of the whole suite."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # which Triton reads when a kernel is defined

# The same examples in every run, and no limit on time: a run depends neither on luck nor on how fast the machine is.
# `pytest --hypothesis-profile=explore` draws new examples, and prints how to repeat one that fails.
# `too_slow` is left out because it measures seconds.
settings.register_profile("repeat", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("repeat"), derandomize=False, print_blob=True)
settings.load_profile("repeat")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make test` gives whole files to three processes: the largest first, so that none is left with one at the end."""
    if hasattr(config, "workerinput"):  # one of several processes
        size = {path: path.stat().st_size for path in {item.path for item in items}}
        items.sort(key=lambda item: -size[item.path])
