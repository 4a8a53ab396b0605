"""`python -m frigate.bench`: what `frigate bench` does, with nothing installed but the compute path."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from frigate.bench.measure import bench
from frigate.bench.output import json_of, notes_of, require_place, rows_of
from frigate.errors import FrigateError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m frigate.bench", description="How fast it is here, beside the usual way.")
    parser.add_argument("file", nargs="?", metavar="FILE", type=Path, help="with --json: write the JSON there")
    parser.add_argument("--size", default="chengdu", help="chengdu, beijing or a number of nodes; chengdu if not said")
    parser.add_argument("--device", help="cpu or cuda; what there is if not said")
    parser.add_argument("--preset", default="both", help="paper, default or both; both if not said")
    parser.add_argument("--windows", type=int, help="windows in a training step; chosen by size and device if not said")
    parser.add_argument("--seed", type=int, default=0, help="of the invented network, readings and weights")
    parser.add_argument("--json", action="store_true", help="print JSON, or write it to FILE")
    said = parser.parse_args(arguments)
    try:
        require_place(said.file, as_json=said.json)
        result = bench(
            size=said.size, device=said.device, presets=said.preset, windows=said.windows, seed=said.seed,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
        if said.file is not None:
            said.file.write_text(json_of(result) + "\n", encoding="utf-8")
    except FrigateError as error:
        print(f"frigate: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"frigate: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 2
    if said.json and said.file is None:
        print(json_of(result))
        return 0
    for row in rows_of(result):
        print("; ".join(f"{name} {cell}".strip() for name, cell in row.items()))
    for note in notes_of(result):
        print(note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
