"""`frigate train`: train a model on a city, or resume a run."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frigate.cli.console import log, notice, print_json, progress, say, status
from frigate.cli.parser import CITY, DEVICE, EXCLUDE, JSON, KERNELS, TRUST_ALL, Argument, Command
from frigate.config import BASELINES, PRESETS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frigate.city.city import City
    from frigate.training.trainer import StepReport

STOPPED = 130


def run(args: Namespace) -> int:
    from frigate.check.sensors import check_sensors, fault_lines
    from frigate.nn.ops import describe_kernels, use_kernels
    from frigate.training.distributed import current
    from frigate.training.run import has_demand
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
    city = group.leader_first(lambda: read(args.city, args.exclude))  # it writes a cache
    names, _ = city.detectors.at_nodes(city.stream.node_ids, city.stream.node_ids)
    notice(*fault_lines(check_sensors(city.stream, names)))
    sensors = group.agree(lambda: seen_from(args.seen, city))
    if settings.train.validation == "unseen":
        notice(
            "validation = unseen: the test nodes choose the checkpoint, as in the paper, so test scores are too good"
        )
    title = "Estimating demand, training" if has_demand(settings, city.stream) else "Training"
    with training_progress(title) as on_step, use_kernels(args.kernels):
        device = group.device(args.device)
        computed_with = describe_kernels(device)
        trained = train(
            city,
            seen=sensors,
            mode=args.split,
            settings=settings,
            folder=args.output,
            resume=args.resume,
            device=args.device,
            on_step=on_step,
            trust_all=args.trust_all,
            on_notice=notice,
        )
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


def read(folder: Path, exclude: Sequence[str] = ()) -> City:
    """Open a city folder or its cache, and print its notices."""
    from frigate.city.folder import open_city

    with status(f"Reading {folder}"):
        city = open_city(folder, exclude=exclude)
    notice(*city.notices)
    return city


@contextmanager
def training_progress(title: str) -> Iterator[Callable[[StepReport], None]]:
    """Show progress over all epochs, and print a line for each."""
    from frigate.training.trainer import report_steps

    with progress(title) as update:
        yield report_steps(update, log)


MODELS = (*PRESETS, *BASELINES)
TRAIN = Command(
    "train",
    "Train a model on a city.",
    run,
    (
        CITY,
        Argument("-o --output RUN", "the run folder to write", Path, required=True),
        Argument("--seen SENSORS", "sensors to use: 30%, 0.3, a file of node ids, or all (default: 80%)"),
        EXCLUDE,
        TRUST_ALL,
        Argument(
            "--split",
            "which nodes to hold out: random ones, or a contiguous region",
            default="random",
            choices=("random", "region"),
        ),
        Argument("--preset MODEL", f"{', '.join(MODELS)} (default: default)", choices=MODELS),
        Argument("--settings FILE", "a TOML file with [task], [model] and [train]", Path),
        Argument("--past N", "past snapshots in a window (default: 12)", int),
        Argument("--horizon N", "steps to forecast (default: 12)", int),
        Argument(
            "--epochs N",
            "number of epochs; 0: use the demand estimate alone; with --resume, a larger number extends the run",
            int,
        ),
        Argument("--batch-size N", "windows per optimiser step", int),
        Argument("--parts N", "split the network into N parts and train on one per step; for large networks", int),
        Argument(
            "--validation",
            "nodes to choose the best epoch by: none (keep the last), some of the seen nodes, "
            "or the unseen nodes as in the paper (default: the preset's)",
            choices=("none", "seen", "unseen"),
        ),
        Argument("--seed N", "seed for validation nodes, anchors, initial weights and order (default: 0)", int),
        Argument("--resume", "resume the run in the folder"),
        DEVICE,
        KERNELS,
        JSON,
    ),
    details="Ctrl-C keeps the finished epochs; --resume continues from the last one.",
    if_stopped="no new epoch was finished",
)
