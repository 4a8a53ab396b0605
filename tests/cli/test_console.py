"""What commands print in a terminal: as wide as it is, and no wider."""

from __future__ import annotations

import io

import pytest

from frigate.cli import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [80, 120])
def test_a_note_uses_the_width_whatever_its_colour(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    console.notice("word " * 60)
    lines = terminal.getvalue().splitlines()
    assert lines[0].startswith("\x1b[33mnote:\x1b[0m word word")
    plain = [line.replace("\x1b[33m", "").replace("\x1b[0m", "") for line in lines]
    assert max(map(len, plain)) <= columns
    assert min(map(len, plain[:-1])) > columns - len("word ")
