"""`frigate export ...`: a city, or a run's forecast, for other programs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from frigate.cli.console import notice, say, status
from frigate.cli.parser import Command, Group, Parser, add_city, add_other_city, add_output, add_run


def _add_program(parser: Parser) -> None:
    _add_model(parser, "FILE.pt2")


def _add_onnx(parser: Parser) -> None:
    _add_model(parser, "FILE.onnx")


def _add_model(parser: Parser, metavar: str) -> None:
    add_run(parser)
    add_output(parser, metavar, "the file to write")
    parser.add_argument("--sample", metavar="FILE.npz", type=Path, help="also write sample inputs with their forecast")
    add_other_city(parser)


def _export_model(args: Namespace) -> None:
    from frigate.data.city import open_city
    from frigate.forecasting.export import export_onnx, export_program, write_sample
    from frigate.training.checkpoint import load_run

    run = load_run(args.run)
    with status(f"Exporting {args.output} and comparing it with the model"):
        other = None if args.city is None else open_city(args.city)
        exported = (export_onnx if args.command == "onnx" else export_program)(run, args.output, other)
        sample = None if args.sample is None else write_sample(run, args.sample, other)
    say(exported.summary())
    if sample is not None:
        say(f"Inputs at the end of {(other or run.trained_on).name}, and their forecast: {sample}")


def _add_libcity(parser: Parser) -> None:
    add_city(parser, "a city folder")
    add_output(parser, "FOLDER", "the folder to write")


def _export_libcity(args: Namespace) -> None:
    from frigate.data.city import read_city
    from frigate.sources.benchmarks.libcity_export import export_libcity

    with status(f"Writing {args.output}"):
        lost = export_libcity(read_city(args.city), args.output)
    notice(*lost)
    say(f"Atomic files: {args.output}")


ANY_NETWORK = "It takes networks of any size."
EXPORT = Group(
    "export", "Write a city, or a run's forecast, for other programs.",
    (
        Command("program", "A run as a torch.export program.", _add_program, _export_model, details=ANY_NETWORK),
        Command("onnx", "A run as an ONNX model.", _add_onnx, _export_model,
                details=f"{ANY_NETWORK} Needs the extra `export`."),
        Command("libcity", "A city as LibCity's atomic files.", _add_libcity, _export_libcity),
    ),
)  # fmt: skip
