"""How well closed roads are foreseen: against simulated days with closures and their twins without.

    python benchmarks/closures.py CITY CLOSURES RUN ... [--results FILE]

Each RUN was trained on CITY (lux-sim) with other sensors; scores are their mean, and those of each. CLOSURES has
counts.npz (counts_open and counts_closed [scenario, 288, node]) and closures.csv (scenario, name, src, dst,
close_minute, open_minute).

Two questions. What is left of the change of the nine-hour means when the predicted change is subtracted: as foreseen
before any reading, from the rerouted trips alone; and as forecast through the day, when the sensors' readings see the
diversion? Both predict a factor for each node, which the flow before is multiplied by: how busy a node is without any
closure is another question. (The change in vehicles, without that, is given too.) And how much better is the next hour
where the change is large if the forecast is told of the closure?
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from frigate.calendar import KIND, KINDS_OF_DAY
from frigate.city.city import City
from frigate.city.folder import open_city
from frigate.city.network import RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.demand.rerouting import LITTLE_FLOW
from frigate.evaluation.closures import left_of_change
from frigate.evaluation.evaluate import forecaster_of
from frigate.training.checkpoint import load_run
from frigate.training.environment import environment
from frigate.training.run import Run

FORECASTS = 9 * 12 + 6, 17 * 12 + 1, 6  # steps of the day: 09:30 to 17:00, when the last one ends with the closure
DAY = 288  # steps
STEPS_PER_HOUR = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("city", type=Path)
    parser.add_argument("closures", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--results", type=Path, help="write JSON there")
    args = parser.parse_args()
    city = open_city(args.city)
    by_seed = {}
    for folder in args.runs:
        run = load_run(folder)
        by_seed[run.settings.train.seed] = of_run(run, city, args.closures)
    scenarios = [mean_of(each) for each in zip(*by_seed.values(), strict=True)]
    left = [{key: x for key, x in each.items() if key.startswith("left_of_change")} for each in scenarios]
    mean = mean_of(left)
    print(json.dumps(mean))
    if args.results is not None:
        command = "python benchmarks/closures.py lux-sim lux-closures RUN ..."
        result = {"command": command, **environment(), "seeds": list(by_seed), "mean": mean, "scenarios": scenarios}
        result["by_seed"] = by_seed
        args.results.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def mean_of(several: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each number's mean; what is the same in all, such as a name, stays as it is."""

    def mean(values: list[Any]) -> Any:
        return values[0] if all(value == values[0] for value in values) else float(np.mean(values))

    return {key: mean([each[key] for each in several]) for key in several[0]}


def of_run(run: Run, city: City, folder: Path) -> list[dict[str, Any]]:
    """What one run makes of every scenario."""
    counts = np.load(folder / "counts.npz")
    roads = pl.read_csv(folder / "closures.csv")
    run_on_city = run.on(city)
    forecaster = forecaster_of(run_on_city, "cpu")
    scenarios = []
    for number in range(len(counts["counts_closed"])):
        closed = roads.filter(pl.col("scenario") == number)
        first, stop = (int(closed[f"{name}_minute"][0]) // 5 for name in ("close", "open"))
        network = city.network.close(list(zip(closed["src"].to_list(), closed["dst"].to_list(), strict=True)))
        days = {name: counts[f"counts_{name}"][number].astype(np.float32) for name in ("open", "closed")}
        means = {name: STEPS_PER_HOUR * day[first:stop].mean(0, dtype=np.float64) for name, day in days.items()}
        rerouted = forecaster.rerouted(network)
        assert rerouted is not None
        forecast = means["open"] * (rerouted.node_change - 1)
        left = left_of_change(means["open"], means["closed"], forecast, run_on_city.split.unseen)
        found: dict[str, Any] = {
            "name": closed["name"][0],
            "roads": len(closed),
            "affected_nodes": int(left.affected.sum()),
            "left_of_change": left.everywhere,
            "left_of_change_at_affected": left.at_affected,
        }
        found |= next_hour(run, city, network, days, first, stop, run_on_city.split.unseen, left.affected)
        print(json.dumps(found), flush=True)
        scenarios.append(found)
    return scenarios


def next_hour(
    run: Run,
    city: City,
    network: RoadNetwork,
    days: dict[str, NDArray[np.float32]],
    first: int,
    stop: int,
    unseen: NDArray[np.bool_],
    affected: NDArray[np.bool_],
) -> dict[str, Any]:
    """MAE of the next hour at affected nodes: told of the closure, not told, a node's last value, and its profile.

    Beside it the same nodes' on the day without closures: what they have of error without any change.
    And what is left of the change from the open to the closed day when that between their forecasts is subtracted.
    """
    stream = city.stream
    task = run.settings.task
    before = stream.num_snapshots

    def with_day(day: NDArray[np.float32], *, closed: bool) -> RoadNetworkStream:
        values = np.concatenate([stream.values, day])
        network_of = np.zeros(len(values), np.int64)
        network_of[before + first : before + stop] = closed
        return replace(
            stream,
            values=values,
            observed=np.ones(values.shape, bool),
            networks=(city.network, network),
            network_of=network_of,
            utc_offset_s=np.concatenate([stream.utc_offset_s, np.repeat(stream.utc_offset_s[-1:], len(day))]),
        )

    values = np.concatenate([stream.values, days["closed"]])
    current = before + np.arange(*FORECASTS) - 1  # the last complete snapshot of each
    ahead = current[:, None] + np.arange(1, task.horizon + 1)
    truth = values[ahead][..., affected]
    first_of_day = stream.wall_clock[::DAY]
    weekdays = values[:before].reshape(-1, DAY, values.shape[1])[first_of_day[:, KIND] == KINDS_OF_DAY.index("weekday")]
    made = {
        "told": forecasts(run, city, with_day(days["closed"], closed=True), current),
        "not_told": forecasts(run, city, with_day(days["closed"], closed=False), current),
        "last_value": np.repeat(values[current][:, None], task.horizon, axis=1),
        "weekday_profile": weekdays.mean(0)[(ahead - before) % DAY],
    }
    usual = forecasts(run, city, with_day(days["open"], closed=False), current)
    was, is_now = (per_hour(days[name][ahead - before]) for name in ("open", "closed"))
    forecast_was = per_hour(usual)
    forecast_is = per_hour(made["told"])
    little = LITTLE_FLOW * was.mean()
    factor = (forecast_is + little) / (forecast_was + little)
    left = left_of_change(was, is_now, was * (factor - 1), unseen)
    in_vehicles = left_of_change(was, is_now, forecast_is - forecast_was, unseen)
    late = slice(5, None)  # half an hour ahead and more
    error = {name: np.abs(forecast[..., affected] - truth) for name, forecast in made.items()}
    error["on_the_open_day"] = np.abs(usual - days["open"][ahead - before])[..., affected]
    found = {
        "left_of_change_with_readings": left.everywhere,
        "left_of_change_with_readings_at_affected": left.at_affected,
        "left_of_change_in_vehicles_with_readings": in_vehicles.everywhere,
        "left_of_change_in_vehicles_with_readings_at_affected": in_vehicles.at_affected,
    }
    found |= {f"mae_{name}": float(e.mean()) for name, e in error.items()}
    found |= {f"mae_{name}_half_an_hour_ahead": float(e[:, late].mean()) for name, e in error.items()}
    return found


def per_hour(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """[N] vehicles an hour, as the mean of [W,H,N]."""
    mean: NDArray[np.float64] = STEPS_PER_HOUR * values.mean((0, 1), dtype=np.float64)
    return mean


def forecasts(run: Run, city: City, stream: RoadNetworkStream, current: NDArray[np.int64]) -> NDArray[np.float32]:
    """[W,H,N] of the windows whose last snapshots these are."""
    forecaster = forecaster_of(run.on(replace(city, stream=stream)), "cpu")
    return np.concatenate([forecaster.values(np.array([at])) for at in current.tolist()])


if __name__ == "__main__":
    main()
