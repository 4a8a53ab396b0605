"""Typing a command: its exit status, what it printed, what it complained about."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from frigate.cli.main import main
from tests.support.errors import names


@dataclass(frozen=True)
class Output:
    status: int
    out: str
    err: str


def frigate(*words: object) -> Output:
    out = io.StringIO()
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([str(word) for word in words])
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Output(status, out.getvalue(), err.getvalue())


def assert_refused(said: Output, *named: str) -> None:
    """A mistake of the user's: status 2, no result, and after any notes one line that names place and values."""
    assert (said.status, said.out) == (2, ""), said.err
    *notes, line = said.err.splitlines()
    assert line.startswith("frigate: ") and all(note.startswith("note: ") for note in notes), said.err
    assert [word for word in named if not names(line, word)] == [], said.err
