"""`frigate bench`: how fast it is here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from frigate.bench import bench
from frigate.bench.output import json_of, notes_of, require_place, rows_of
from frigate.cli.console import err, out, say


def bench_command(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="With --json: write the JSON there.")] = None,
    size: Annotated[str, typer.Option(help="chengdu, beijing, or a number of nodes.")] = "chengdu",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; what there is if not said.")] = None,
    preset: Annotated[str, typer.Option(help="paper, default or both.")] = "both",
    windows: Annotated[
        int | None, typer.Option(help="Windows in a training step; chosen by size and device if not said.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the invented network, readings and weights.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines, or write it to FILE.")] = False,
) -> None:
    """How fast it is here, beside the same equations written in the usual way: minutes on two cores."""
    require_place(file, as_json=as_json)
    result = bench(
        size=size, device=device, presets=preset, windows=windows, seed=seed,
        say=lambda text: err.print(f"Measuring: {escape(text)}"),  # nothing that turns: on two cores it is measured too
    )  # fmt: skip
    if file is not None:
        file.write_text(json_of(result) + "\n", encoding="utf-8")
    elif as_json:
        typer.echo(json_of(result))
        return
    rows = rows_of(result)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(*map(escape, row.values()))
    (out if out.is_terminal else Console(width=120)).print(table)
    for note in notes_of(result):
        say(note)
    if file is not None:
        say(f"JSON: {file}")
