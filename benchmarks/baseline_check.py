"""Is a baseline crippled? GraphWaveNet (or another) on a week of METR-LA at sensors, as its own paper uses it.

    python benchmarks/baseline_check.py CITY [--preset graph-wavenet] [--steps 600]

CITY is the week as a city (207 loops, speeds). Everything is as in the baseline's own world: all sensors are input and
loss, 70/10/20 in time, one hour in and one out, MAE at 15, 30 and 60 minutes. Beside it: the last reading, and each
sensor's own mean by hour and kind of day. With four months the paper of GraphWaveNet has 2.69, 3.07 and 3.53 mph.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from frigate.baselines.naive import Baseline, fit_own_median
from frigate.city.folder import open_city
from frigate.city.split import Split, windows_in
from frigate.city.stream import RoadNetworkStream
from frigate.config import BASELINES, preset
from frigate.nn.network_views import NetworkViews
from frigate.nn.scaling import fit_scaling
from frigate.nn.windows import Windows
from frigate.training.environment import environment
from frigate.training.run import build_model

AHEAD = {"15 min": 3, "30 min": 6, "60 min": 12}
PUBLISHED = {"graph-wavenet": {"15 min": 2.69, "30 min": 3.07, "60 min": 3.53}}  # four months, its own paper
BATCH, RATE, SEED = 16, 2e-3, 0


def whole_split(stream: RoadNetworkStream) -> Split:
    """Every sensor seen; 70/10/20 in time."""
    S = stream.num_snapshots
    none = np.zeros(stream.num_nodes, bool)
    ends = (0, S * 7 // 10, S * 8 // 10, S)
    train, validate, test = ((ends[i], ends[i + 1]) for i in range(3))
    return Split(stream.sensors, none, none, train, validate, test)


def maes(forecast: Baseline, windows: Windows, at: np.ndarray, inputs: torch.Tensor) -> dict[str, float]:
    error = torch.zeros(12, dtype=torch.float64)
    cells = torch.zeros(12, dtype=torch.float64)
    with torch.inference_mode():
        for first in range(0, len(at), 64):
            batch = windows.batch(at[first : first + 64], past=12, horizon=12, inputs=inputs)
            assert batch.target is not None and batch.target_observed is not None
            wrong = (forecast(batch) - batch.target).abs() * batch.target_observed
            error += wrong.sum((0, 2), dtype=torch.float64)
            cells += batch.target_observed.sum((0, 2))
    found = (error / cells).tolist()
    return {name: round(found[step - 1], 3) for name, step in AHEAD.items()} | {"all": round(sum(found) / 12, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("city", type=Path)
    parser.add_argument("--preset", default="graph-wavenet", choices=list(BASELINES))
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    stream = open_city(args.city).stream
    split = whole_split(stream)
    settings = preset(args.preset)
    scaling = fit_scaling(stream, split, settings.model, features=None, seed=SEED)
    views = NetworkViews.of_scaling(scaling, stream.network, sensors=split.seen)
    windows = Windows(stream, views)
    inputs = torch.from_numpy(split.seen)
    train, check, test = (windows_in(part, past=12, horizon=12) for part in (split.train, split.validate, split.test))
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    model = build_model(settings, scaling)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, args.steps)
    best = (np.inf, -1, model.state_dict())
    began = time.perf_counter()
    for step in range(args.steps):
        model.train()
        batch = windows.batch(rng.choice(train, BATCH), past=12, horizon=12, inputs=inputs)
        assert batch.target is not None and batch.target_observed is not None
        loss = ((model(batch) - batch.target).abs() * batch.target_observed).sum() / batch.target_observed.sum()
        optimiser.zero_grad()
        (loss / scaling.value_scale).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            mae = maes(model.eval(), windows, check[::4], inputs)["all"]
            if mae < best[0]:
                best = (mae, step + 1, {name: value.clone() for name, value in model.state_dict().items()})
            print(f"step {step + 1}: loss {loss.item():.3f} mph, validation {mae:.3f} mph", flush=True)
    model.load_state_dict(best[2])
    rows = {
        BASELINES[args.preset]: maes(model.eval(), windows, test, inputs),
        "last reading": maes(lambda batch: batch.values[:, -1:].expand(-1, 12, -1), windows, test, inputs),
        "own median": maes(fit_own_median(stream, split, otherwise=0.0), windows, test, inputs),
    }
    result = {
        "command": f"python benchmarks/baseline_check.py CITY --preset {args.preset} --steps {args.steps}",
        "what": "MAE in mph at sensors, one week of METR-LA, 70/10/20 in time; all sensors are input and loss",
        "mae": rows,
        "published on four months": PUBLISHED.get(args.preset),
        "best_step": best[1],
        "seed": SEED,
        "seconds": round(time.perf_counter() - began, 1),
        **environment("cpu"),
    }
    path = Path(__file__).parent / "results" / f"baseline-check-{args.preset}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
