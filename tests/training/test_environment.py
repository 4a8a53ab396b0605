"""The one description of machine and versions."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import torch

import frigate
from frigate.training.environment import environment


def test_it_names_the_machine_and_what_computes_on_it() -> None:
    found = environment("cpu")
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["device"], found["gpu"], found["driver"]) == ("cpu", None, None)
    assert found["hardware"] == found["cpu"] and found["cores"] >= 1 and found["memory_gb"] > 0
    assert found["versions"]["frigate"] == frigate.__version__
    assert found["versions"]["torch"] == torch.__version__
    found["versions"].clear()
    assert environment("cpu")["versions"]  # nobody can spoil it for the next


def test_a_processor_is_named_by_its_model() -> None:
    told = Path("/proc/cpuinfo")
    if not told.exists() or "model name" not in told.read_text():
        pytest.skip("this system does not say")
    assert environment("cpu")["cpu"] not in ("", platform.machine())
