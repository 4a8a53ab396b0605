"""`frigate serve` as it is typed, with mistakes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import assert_refused, frigate
from tests.support.service import Town, train_town


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return train_town(tmp_path_factory.mktemp("town"))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield int(other.getsockname()[1])


@pytest.mark.slow
def test_mistakes_are_said_in_a_line(town: Town, tmp_path: Path, taken: int) -> None:
    run = town.folder / "run"
    assert_refused(frigate("serve", tmp_path / "nowhere"), "nowhere", "frigate train")
    assert_refused(frigate("serve", run, "--port", taken), str(taken), "Address already in use")
    assert_refused(frigate("serve", run, "--store", "mysql://x"), "mysql", "postgresql://")
    assert_refused(frigate("serve", run, "--store", "postgresql://nobody@127.0.0.1:1/x"), "port 1", "fix the URL")
    assert_refused(frigate("serve", run, "--store", tmp_path / "no" / "x.db"), "x.db", "writable")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--grace", "-3"),
        ("--grace", "soon"),
        ("--port", "99999"),
        ("--rate", "0"),
        ("--streams", "0"),
        ("--max-mb", "nan"),
    ],
)
def test_a_value_that_cannot_be_is_refused(tmp_path: Path, option: str, value: str) -> None:
    assert_refused(frigate("serve", tmp_path, option, value), option)


@pytest.mark.slow
def test_a_service_ends_in_good_order(town: Town, tmp_path: Path) -> None:
    words = ["serve", str(town.folder / "run"), "--store", str(tmp_path / "s.db"), "--port", "0"]
    command = [sys.executable, "-m", "frigate", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith("Brackwater: http://127.0.0.1:") and "Ctrl-C" in said
        assert "#token=frg_" in process.stderr.readline()
        assert '"event": "forecast"' in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
