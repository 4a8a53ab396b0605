"""Output of the commands: results go to standard output; notes, progress and errors to standard error.

In a terminal with rich installed, progress is a bar with the time left; otherwise an occasional line.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from frigate.progress import Progress, plain_progress
from frigate.text import printable, printable_json, table_lines

if TYPE_CHECKING:
    from rich.console import Console

RED, YELLOW = "31", "33"


def say(text: str) -> None:
    """Print a result."""
    print(_fitted(printable(text), sys.stdout), flush=True)


def log(text: str) -> None:
    """Print a progress message."""
    print(_fitted(printable(text), sys.stderr), file=sys.stderr, flush=True)


def notice(*texts: str) -> None:
    """Print notes for the user."""
    for text in texts:
        _log_as("note:", YELLOW, text)


def complain(text: str) -> None:
    """Print why the command failed."""
    _log_as("frigate:", RED, text)


def _log_as(word: str, colour: str, text: str) -> None:
    """Print a line that starts with a coloured word. It is wrapped first, because colour codes take no room."""
    fitted = _fitted(f"{word} {printable(text)}", sys.stderr)
    print(_coloured(word, colour) + fitted.removeprefix(word), file=sys.stderr, flush=True)


def to_json(data: Any) -> str:
    return printable_json(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))


def print_json(data: Any) -> None:
    print(to_json(data))


def _fitted(text: str, stream: TextIO) -> str:
    """The text wrapped at word boundaries, if it goes to a terminal."""
    return textwrap.fill(text, _columns(), break_long_words=False, break_on_hyphens=False) if stream.isatty() else text


def _columns() -> int:
    """Width of the terminal; unlimited if piped."""
    return shutil.get_terminal_size(fallback=(10_000, 24)).columns


def _coloured(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if sys.stderr.isatty() and "NO_COLOR" not in os.environ else text


def _terminal() -> Console | None:
    """A rich console, if rich is installed and stderr is a terminal."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(stderr=True)


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show a message while the block runs."""
    terminal = _terminal()
    if terminal is None:
        if sys.stderr.isatty():
            log(f"{text} ...")
        yield
        return
    from rich.text import Text  # verbatim: rich would interpret [red] and :bomb: in a str

    with terminal.status(Text(printable(text))):
        yield


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """Show progress. Yields a function to call with done, total and a short text."""
    terminal = _terminal()
    if terminal is None:
        yield plain_progress(title, log)
        return
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.TextColumn("{task.percentage:>3.0f}%"),
        rich.TimeRemainingColumn(),
    )
    # Twice a second only: on two cores, drawing slows down the work.
    with rich.Progress(*columns, console=terminal, transient=True, refresh_per_second=2) as bar:
        task = bar.add_task(printable(title), total=None)

        def update(done: int, total: int, words: str) -> None:
            bar.update(task, completed=done, total=total, description=printable(f"{title} {words}".strip()))

        yield update


def print_table(rows: Sequence[dict[str, str]], *, drop: Sequence[str] = (), left: Sequence[str] = ()) -> list[str]:
    """Print a table that fits the terminal (see `table_lines`). Returns the columns that were dropped."""
    shown = [{name: printable(cell) for name, cell in row.items()} for row in rows]
    lines, dropped = table_lines(shown, width=_columns(), drop=drop, left=left)
    print("\n".join(lines))
    return dropped
