"""The public names, and that they are what their names say."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import frigate as fg

PUBLIC = {
    "CheckpointError", "City", "CityError", "Evaluation", "Forecast", "FrigateError", "MissingExtraError",
    "RoadNetwork", "RoadNetworkStream", "Run", "Settings", "SettingsError", "evaluate", "forecast", "load_run",
    "make_stream", "preset", "read_city", "simulate", "train", "write_city",
}  # fmt: skip


def test_the_public_names() -> None:
    assert set(fg.__all__) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_no_module_hides_a_public_name(name: str) -> None:
    # `frigate.train` is a module too; whoever imports it must not lose the function.
    assert not isinstance(getattr(fg, name), types.ModuleType)


def test_the_modules_run_without_a_warning() -> None:
    for module in ("frigate.train", "frigate.evaluate"):
        done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
        assert done.stderr == ""


def test_every_error_is_a_frigate_error() -> None:
    errors = [getattr(fg, name) for name in PUBLIC if name.endswith("Error")]
    assert all(issubclass(error, fg.FrigateError) for error in errors)
