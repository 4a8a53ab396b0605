"""LightGBM with and without demand among its features, on the split of a run, scored as `frigate evaluate` does.

    python benchmarks/trees.py RESULTS --city CITY --seen SPLIT.txt --seed 0 [--demand] [--region]

CITY is a city folder; the split file lists the seen nodes; with `--region`, `--seen` is a share and the unseen nodes
are those of one area. RESULTS is a JSON file, to which a row of this split is added.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from frigate.baselines.boosted_trees import fit_trees
from frigate.city.folder import open_city
from frigate.config import change, preset
from frigate.evaluation.evaluate import evaluate_forecaster
from frigate.nn.windows import Windows
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
    city = open_city(args.city)
    began = time.perf_counter()
    # Some seen nodes are held out, to stop at: demand must not know them.
    settings = change(preset("default"), {"train": {"seed": args.seed, "validation": "seen"}})
    settings = change(settings, {"model": {"demand": args.demand}})
    mode = "region" if args.region else "random"
    run_on_city = new_run(city, settings=settings, seen=seen_from(args.seen, city), mode=mode)
    windows: Windows = training_windows(run_on_city, "cpu") if args.demand else run_on_city.windows("cpu")
    masks = training_masks(run_on_city) if args.demand else None
    trees = fit_trees(windows, run_on_city.split, settings.task, seed=args.seed, masks=masks)
    fit_s = time.perf_counter() - began
    label = "LightGBM with demand" if args.demand else "LightGBM"
    evaluation = evaluate_forecaster(
        trees,
        run_on_city.city,
        run_on_city.split,
        run_on_city.windows("cpu"),
        settings.task,
        name=label,
        stride=args.stride,
        seed=args.seed,
    )
    model = evaluation.model
    assert model.unseen is not None
    assert model.at_sensors is not None
    found = {
        "unseen": asdict(model.unseen.mae),
        "at_sensors": asdict(model.at_sensors.mae),
        "of_zero": model.relative_to_zero,
        "objective": trees.objective,
        "trees": trees.booster.num_trees(),
        "fit_seconds": round(fit_s, 1),
    }
    share = args.seen.strip("%")
    split = f"{args.city.name}-region-{share}-{args.seed}" if args.region else Path(args.seen).stem
    print(split, label, json.dumps(found), flush=True)
    results = json.loads(args.results.read_text(encoding="utf-8")) if args.results.exists() else {"rows": {}}
    command = "python benchmarks/trees.py RESULTS --city CITY --seen SPLIT --seed SEED [--demand] [--region]"
    rows = results["rows"]
    rows.setdefault(split, {})[label] = found
    results = {"command": command, **environment("cpu"), "rows": dict(sorted(rows.items()))}
    args.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
