"""Typing a command: its exit status, what it printed, what it complained about."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from frigate.cli.main import main


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
