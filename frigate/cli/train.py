"""`frigate train`: train a model on a city, or resume a run."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frigate.cli.console import log, notice, print_json, progress, say, status
from frigate.cli.parser import Command, Parser, add_city, add_device, add_json, add_kernels, add_output
from frigate.config import BASELINES, PRESETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from frigate.data.city import City
    from frigate.training.trainer import StepReport

STOPPED = 130


def add_arguments(parser: Parser) -> None:
    add_city(parser)
    add_output(parser, "RUN", "the run folder to write")
    parser.add_argument(
        "--seen", metavar="SENSORS",
        help="sensors to use: a share such as 30%% or 0.3, a file of node ids, or all (default: 80%%)",
    )  # fmt: skip
    parser.add_argument(
        "--split", choices=("random", "region"), default="random",
        help="hold out random nodes, or a contiguous region (default: random)",
    )  # fmt: skip
    parser.add_argument(
        "--preset", choices=(*PRESETS, *BASELINES), metavar="NAME",
        help=f"the model: {', '.join((*PRESETS, *BASELINES))} (default: default)",
    )  # fmt: skip
    parser.add_argument("--settings", metavar="FILE", type=Path, help="a TOML file with [task], [model] and [train]")
    parser.add_argument("--past", type=int, metavar="N", help="past snapshots in a window (default: 12)")
    parser.add_argument("--horizon", type=int, metavar="N", help="steps to forecast (default: 12)")
    parser.add_argument("--epochs", type=int, metavar="N", help="maximum number of epochs")
    parser.add_argument("--batch-size", type=int, metavar="N", help="windows in one optimiser step")
    parser.add_argument(
        "--parts",
        type=int,
        metavar="N",
        help="split the network into this many parts and train on one per step; for large networks",
    )
    parser.add_argument(
        "--validation", choices=("seen", "unseen"),
        help="nodes that choose the checkpoint: some of the seen, or the unseen as in the paper (default: seen)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, metavar="N", help="fixes validation nodes, anchors, initial weights and order"
    )
    parser.add_argument("--resume", action="store_true", help="resume the run in the folder")
    add_device(parser)
    add_kernels(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    from frigate.nn.device import best_device
    from frigate.nn.ops import describe_kernels
    from frigate.training.distributed import current
    from frigate.training.train import seen_from, settings_from, summary_line, train

    typed = {
        "task": {"past": args.past, "horizon": args.horizon},
        "train": {name: getattr(args, name) for name in ("epochs", "batch_size", "parts", "validation", "seed")},
    }
    group = current()
    resumed = args.output if args.resume else None
    settings = group.agree(
        lambda: settings_from(preset_name=args.preset, file=args.settings, said=typed, resume=resumed)
    )
    city = group.leader_first(lambda: read(args.city))  # which writes a cache
    sensors = group.agree(lambda: seen_from(args.seen, city))
    if settings.train.validation == "unseen":
        notice("validation = unseen: the checkpoint is chosen at the test nodes, as in the paper. Scores are flattered")
    with training_progress("Training") as on_step:
        device = best_device(group.device_name(args.device))
        computed_with = describe_kernels(device, args.kernels)
        trained = train(
            city, seen=sensors, mode=args.split, settings=settings, folder=args.output, resume=args.resume,
            device=args.device, on_step=on_step, kernels=args.kernels,
        )  # fmt: skip
    log(f"trained on {device.type}: {computed_with}")
    if args.json:
        facts: dict[str, Any] = {"run": str(args.output), **vars(trained.progress)}
        if not math.isfinite(trained.progress.best_mae):
            facts["best_mae"] = None
        parameters = sum(p.numel() for p in trained.model.parameters())
        print_json({**facts, "parameters": parameters, "kernels": computed_with})
    else:
        say(summary_line(trained))
    return 0 if trained.progress.finished else STOPPED


def read(folder: Path) -> City:
    """A city folder or its cache, opened, with its notices printed."""
    from frigate.data.city import open_city

    with status(f"Reading {folder}"):
        city = open_city(folder)
    notice(*city.notices)
    return city


@contextmanager
def training_progress(title: str) -> Iterator[Callable[[StepReport], None]]:
    """Progress over all epochs, and a line for each."""
    from frigate.training.trainer import epoch_line

    with progress(title) as update:

        def on_step(step: StepReport) -> None:
            words = f"epoch {step.epoch + 1}/{step.epochs} loss {step.loss:.4f}"
            update(step.epoch * step.steps + step.step, step.epochs * step.steps, words)
            if step.metrics is not None:
                log(epoch_line(step.metrics))

        yield on_step


TRAIN = Command(
    "train", "Train a model on a city.", add_arguments, run,
    details="Ctrl-C keeps the finished epochs; --resume continues from the last one.",
    if_stopped="no new epoch was finished",
)  # fmt: skip
