"""LightGBM with and without demand among its features, on the split of a run, scored as `frigate evaluate` does.

    python benchmarks/trees.py RESULTS --city CITY --seen SPLIT.txt --seed 0 [--demand] [--region]

CITY is a city folder or its cache; the split file lists the seen nodes; with `--region`, `--seen` is a share and the
unseen nodes are those of one area. The file written is RESULTS/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from frigate.baselines.boosted_trees import fit_trees
from frigate.config import change, preset
from frigate.data.city import open_city
from frigate.evaluation.evaluate import evaluate_forecaster
from frigate.nn.batch import Windows
from frigate.training.environment import environment
from frigate.training.hidden_sensors import training_masks, training_windows
from frigate.training.train import new_run, seen_from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--city", type=Path, required=True)
    parser.add_argument("--seen", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demand", action="store_true")
    parser.add_argument("--region", action="store_true")
    parser.add_argument("--stride", type=int, default=1)
    args = parser.parse_args()
    city, began = open_city(args.city), time.perf_counter()
    # Some seen nodes are held out, to stop at: demand must not know them.
    settings = change(preset("default"), {"train": {"seed": args.seed, "validation": "seen"}})
    settings = change(settings, {"model": {"demand": args.demand}})
    mode = "region" if args.region else "random"
    here = new_run(city, settings=settings, seen=seen_from(args.seen, city), mode=mode)
    windows: Windows = training_windows(here, "cpu") if args.demand else here.windows("cpu")
    masks = training_masks(here) if args.demand else None
    trees = fit_trees(windows, here.split, settings.task, seed=args.seed, masks=masks)
    fit_s = time.perf_counter() - began
    label = "LightGBM with demand" if args.demand else "LightGBM"
    evaluation = evaluate_forecaster(
        trees, here.city, here.split, here.windows("cpu"), settings.task, name=label, stride=args.stride, seed=args.seed
    )
    name = f"{Path(args.seen).stem}{'-region' * args.region}-seed{args.seed}-lightgbm{'-demand' * args.demand}"
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    result = {
        "name": name,
        "command": " ".join(["python benchmarks/trees.py", *words]),
        **environment("cpu"),
        "seed": args.seed,
        "objective": trees.objective,
        "trees": trees.booster.num_trees(),
        "fit_seconds": round(fit_s, 1),
        "threads": torch.get_num_threads(),
        "evaluation": {k: v for k, v in evaluation.to_json().items() if k != "nodes"},
    }
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    model = evaluation.model
    assert model.unseen is not None
    assert model.at_sensors is not None
    print(f"{name}: unseen {model.unseen.mae.value:.4f}, of zero {model.relative_to_zero:.4f}, "
          f"at sensors {model.at_sensors.mae.value:.4f}, fit {fit_s:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
