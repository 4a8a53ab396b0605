"""The scripts in examples/ run as they are and do what they say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def run_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that runs an example in an empty folder: its variables, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> tuple[dict[str, Any], str]:
        variables = runpy.run_path(str(EXAMPLES / name))
        return variables, capsys.readouterr().out

    return run


def test_a_bridge_is_closed(run_example: Any) -> None:
    seen, printed = run_example("close_a_road.py")
    assert len(seen["bridge"]) == 2 and seen["bridge"][0] == seen["bridge"][1][::-1]
    assert seen["score"].model.share_of_sensor.value > 0
    assert np.abs(seen["change_per_hour"]).max() > 1
    assert printed.count("when closed") == 5
    points = json.loads(Path("closed.geojson").read_text())["features"]
    assert len(points) == seen["city"].network.num_nodes * 12  # one for each time


def test_a_city_of_your_own_is_forecast_live(run_example: Any) -> None:
    seen, printed = run_example("live_city.py")
    live = seen["live"]
    ahead = seen["ahead"]
    network = seen["network"]
    assert live.left_out == 0 and int(ahead.sensor.sum()) == len(seen["detectors"])
    values, truth = (
        np.array([[f(step, node) for step in (0, 1)] for node in (23, 9)])
        for f in (
            lambda step, node: ahead.values[step, network.row_of(node)],
            lambda step, node: seen["count"](node, seen["time"] + step * seen["STEP"]),
        )
    )
    assert not ahead.sensor[network.rows_of([23, 9])].any()
    assert np.abs(values / truth - 1).max() < 0.4  # the main street and the side street are told apart
    assert printed.count("in truth") == 4
