"""`frigate bench`: speed and memory on this machine, compared with plain PyTorch Geometric."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from frigate.cli.console import log, print_json, print_table, say, to_json
from frigate.cli.parser import DEVICE, Argument, Command
from frigate.config import PRESETS

DROPPED_FIRST = ("memory, baseline", "memory")  # columns, in a narrow terminal


def run(args: Namespace) -> None:
    from frigate.bench import bench
    from frigate.bench.output import notes_of, require_place, rows_of
    from frigate.reading.files import write_file

    require_place(args.file, as_json=args.json)
    result = bench(
        size=args.size,
        device=args.device,
        presets=args.preset,
        windows=args.windows,
        seed=args.seed,
        say=lambda text: log(f"Measuring {text}"),  # no progress bar: drawing it would slow down what is measured
    )
    if args.json and args.file is None:
        print_json(result)
        return
    if args.file is not None:
        write_file(args.file, to_json(result) + "\n")
    print_table(rows_of(result), drop=DROPPED_FIRST)
    for note in notes_of(result):
        say(note)
    if args.file is not None:
        say(f"JSON: {args.file}")


BENCH = Command(
    "bench",
    "Measure speed and memory, compared with plain PyTorch Geometric.",
    run,
    (
        Argument("[FILE]", "with --json: write the JSON to this file", Path),
        Argument("--size SIZE", "chengdu, beijing, or a number of nodes", default="chengdu"),
        DEVICE,
        Argument("--preset", "model to measure", default="both", choices=(*PRESETS, "both")),
        Argument("--windows N", "windows per training step (default: depends on size and device)", int),
        Argument("--seed N", "seed for the random network, readings and weights", int, default=0),
        Argument("--json", "print JSON, or write it to FILE"),
    ),
    details="Takes minutes on two cores.",
)
