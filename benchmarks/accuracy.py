"""Train and evaluate runs on one machine and write what came of each as JSON.

    python benchmarks/accuracy.py RESULTS --city CITY --seen SPLIT.txt --preset paper --seed 0 [--set train.epochs=20]
    python benchmarks/accuracy.py RESULTS --city CITY --seen 75% --region --name NAME [--run FOLDER]

CITY is a city folder or its cache; the split file lists the seen nodes, and with `--region` a share of them is given
and the unseen ones are those of one area. The file written is RESULTS/NAME.json; `--run` keeps the run itself too.
With `--kernels reference` nothing is fused: the equations in plain torch operations.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from frigate.city.folder import open_city
from frigate.config import change, preset
from frigate.evaluation.evaluate import evaluate
from frigate.nn.ops import KERNELS, describe_kernels, use_kernels
from frigate.training.environment import environment
from frigate.training.train import seen_from, train
from frigate.training.trainer import StepReport


def command() -> str:
    """The command line with the names of files and folders alone: where they lie is nobody's business."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return " ".join(["python benchmarks/accuracy.py", *words])


def parse_changes(pairs: list[str]) -> dict[str, dict[str, Any]]:
    changes: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        name, value = pair.split("=", 1)
        part, setting = name.split(".", 1)
        changes.setdefault(part, {})[setting] = json.loads(value)
    return changes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--city", type=Path, required=True)
    parser.add_argument("--seen", required=True)
    parser.add_argument("--region", action="store_true")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="PART.NAME=JSON")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--kernels", choices=KERNELS, default="auto")
    parser.add_argument("--name")
    parser.add_argument("--run", type=Path)
    args = parser.parse_args()
    with use_kernels(args.kernels):
        measure(args)


def measure(args: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    city = open_city(args.city)
    settings = change(preset(args.preset), {"train": {"seed": args.seed}})
    settings = change(settings, parse_changes(args.set))
    name = args.name or f"{Path(args.seen).stem}-{args.preset}{'-reference' * (args.kernels != 'auto')}-seed{args.seed}"
    began = time.perf_counter()
    history: list[dict[str, Any]] = []

    def on_step(tick: StepReport) -> None:
        if tick.metrics is not None:
            history.append(tick.metrics)
            print(name, tick.metrics, flush=True)

    run = train(
        city,
        seen=seen_from(args.seen, city),
        mode="region" if args.region else "random",
        settings=settings,
        folder=args.run,
        device=device,
        on_step=on_step,
    )
    train_s = time.perf_counter() - began
    evaluation = evaluate(run, city, stride=args.stride, device=device)
    result = {
        "name": name,
        "command": command(),
        **environment(device),
        "kernels": describe_kernels(torch.device(device)),
        "seed": args.seed,
        "settings": settings.to_json(),
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "train_seconds": round(train_s, 1),
        "peak_gpu_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if device == "cuda" else None,
        "progress": vars(run.progress),
        "history": history,
        "evaluation": {k: v for k, v in evaluation.to_json().items() if k != "nodes"},
    }
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / f"{name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    model = evaluation.model
    zero = evaluation.row("zero")
    assert model.unseen is not None
    assert zero.unseen is not None
    share = model.share_of_sensor
    print(
        f"RESULT {name}: MAE {model.unseen.mae.value:.4f} of zero {model.relative_to_zero:.4f} "
        f"share {share.value if share else float('nan'):.3f} best epoch {run.progress.best_epoch}/{run.progress.epoch} "
        f"train {train_s:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
