"""`frigate export ...`: write a trained model or a city for other programs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from frigate.cli.console import notice, say, status
from frigate.cli.parser import CITY_FOLDER, OTHER_CITY, RUN, Argument, Command, CommandGroup


def _export_model(args: Namespace) -> None:
    from frigate.city.folder import open_city
    from frigate.forecasting.export import export_onnx, export_program, write_sample
    from frigate.training.checkpoint import load_run

    run = load_run(args.run)
    with status(f"Exporting {args.output} and comparing it with the model"):
        other = None if args.city is None else open_city(args.city)
        exported = (export_onnx if args.command == "onnx" else export_program)(run, args.output, other)
        sample = None if args.sample is None else write_sample(run, args.sample, other)
    say(exported.summary())
    if sample is not None:
        say(f"Sample inputs (the end of {(other or run.trained_on).name}) with their forecast: {sample}")


def _export_libcity(args: Namespace) -> None:
    from frigate.city.folder import read_city
    from frigate.sources.benchmarks.libcity_export import export_libcity

    with status(f"Writing {args.output}"):
        lost = export_libcity(read_city(args.city), args.output, overwrite=args.overwrite)
    notice(*lost)
    say(f"Atomic files: {args.output}")


SAMPLE = Argument("--sample FILE.npz", "also write sample inputs with their forecast", Path)
ANY_NETWORK = "The exported model accepts networks of any size."
EXPORT = CommandGroup(
    "export",
    "Write a trained model or a city for other programs.",
    (
        Command(
            "program",
            "Export a run as a torch.export program.",
            _export_model,
            (RUN, Argument("-o --output FILE.pt2", "the file to write", Path, required=True), SAMPLE, OTHER_CITY),
            details=ANY_NETWORK,
        ),
        Command(
            "onnx",
            "Export a run as an ONNX model.",
            _export_model,
            (RUN, Argument("-o --output FILE.onnx", "the file to write", Path, required=True), SAMPLE, OTHER_CITY),
            details=f"{ANY_NETWORK} Needs the extra `export`.",
        ),
        Command(
            "libcity",
            "Export a city as LibCity's atomic files.",
            _export_libcity,
            (
                CITY_FOLDER,
                Argument("-o --output FOLDER", "the folder to write", Path, required=True),
                Argument("--overwrite", "replace files even if Frigate did not write them or they have changed"),
            ),
        ),
    ),
)
