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
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([str(word) for word in words])
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Output(status, out.getvalue(), err.getvalue())


def assert_refused(said: Output, *named: str) -> None:
    """A mistake of the user's: status 2, no result, and one line that names the place and the values."""
    assert (said.status, said.out) == (2, ""), said.err
    assert said.err.startswith("frigate: ") and said.err.count("\n") == 1, said.err
    assert [word for word in named if not names(said.err, word)] == [], said.err
