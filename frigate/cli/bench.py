"""`frigate bench`: speed and memory on this machine, beside a plain PyTorch Geometric baseline."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from frigate.cli.console import log, print_json, print_table, say, to_json
from frigate.cli.parser import Command, Parser, add_device
from frigate.config import PRESETS

LEAST_IMPORTANT = ("memory, baseline", "memory")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="with --json: write the JSON to this file")
    parser.add_argument("--size", default="chengdu", help="chengdu, beijing, or a number of nodes (default: chengdu)")
    add_device(parser)
    parser.add_argument("--preset", choices=(*PRESETS, "both"), default="both", help="which model (default: both)")
    parser.add_argument(
        "--windows", type=int, metavar="N", help="windows in a training step (default: by size and device)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", default=0, help="of the random network, readings and weights (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, or write it to FILE")


def run(args: Namespace) -> None:
    from frigate.bench import bench
    from frigate.bench.output import notes_of, require_place, rows_of

    require_place(args.file, as_json=args.json)
    result = bench(
        size=args.size, device=args.device, presets=args.preset, windows=args.windows, seed=args.seed,
        say=lambda text: log(f"Measuring {text}"),  # no progress bar: on two cores drawing one would be measured too
    )  # fmt: skip
    if args.json and args.file is None:
        print_json(result)
        return
    if args.file is not None:
        args.file.write_text(to_json(result) + "\n", encoding="utf-8")
    print_table(rows_of(result), drop=LEAST_IMPORTANT)
    for note in notes_of(result):
        say(note)
    if args.file is not None:
        say(f"JSON: {args.file}")


BENCH = Command(
    "bench", "Measure speed and memory, beside plain PyTorch Geometric.", add_arguments, run,
    details="Takes minutes on two cores.",
)  # fmt: skip
