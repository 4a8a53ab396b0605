"""What the commands share: how a result, a note, progress and JSON are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from frigate.data.city import City, read_city

PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None}  # square brackets in help are brackets

out = Console()
err = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def notice(*texts: str) -> None:
    for text in texts:
        err.print(f"note: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def read(folder: Path) -> City:
    """A city, with what has to be said about it."""
    with err.status(f"Reading {escape(str(folder))}"):
        city = read_city(folder)
    notice(*city.notices)
    return city


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar with the time left: call it with done, total and a word or two."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    # Twice a second: what draws it takes its time from what it shows.
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal, refresh_per_second=2) as progress:
        task = progress.add_task(title, total=None)

        def update(done: int, total: int, words: str) -> None:
            progress.update(task, completed=done, total=total, description=f"{title} {words}")

        yield update


def print_json(data: dict[str, Any]) -> None:
    typer.echo(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))
