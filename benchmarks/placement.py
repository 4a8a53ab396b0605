"""Where sensors are worth most: sites chosen by `frigate place` against four other rules, with the same forecast.

    python benchmarks/placement.py CITY --seeds 0 1 2 --results benchmarks/results/placement/CITY.json

A seed sets aside a third of the nodes with readings: there the error is measured, and no rule may choose them. Each
rule chooses as many of the others as are a tenth of the nodes with readings: once from nothing but the map, once when
half of these sensors stand already, at random. Then demand is calibrated to the counts of the training period at the
chosen nodes, with the usual searches and with levels, and nothing is learned. "level" is the mean absolute error of the
mean count, vehicles a step; "hour" is that of the forecast of demand alone over the next hour, in the test period.

random: the mean of several draws. farthest: each site is the candidate farthest by road from the sites so far.
busiest: the candidates that most of the trips pass that the map suggests. even: the candidates that bring all nodes
with readings nearest to a site by road (greedy k-median). FILE is written
after every seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra

from frigate.calendar import HOUR_S
from frigate.city.city import City
from frigate.city.folder import open_city
from frigate.city.split import windows_in
from frigate.demand.count_profiles import fill_empty_hours, usual_counts, usual_medians, usual_week, week_mean
from frigate.demand.settings import DemandSettings
from frigate.demand.tables import DemandTables
from frigate.demand.trip_model import TripModel
from frigate.planning.placement import place
from frigate.planning.uncertainty import Traffic
from frigate.roads.feature_cache import ensure_road_features, features_of
from frigate.roads.positions import road_matrix
from frigate.training.environment import environment

SHARE = 0.1  # of the nodes with readings, that are sensors at the end
SCORED = 1 / 3
RANDOM_DRAWS = 2
WINDOWS = 24
PAST = 12
FAR_M = 1e5  # between places that no road joins
STARTS = ("from the map", "from half of the sensors")

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """One seed's nodes. C candidates, V scored nodes."""

    candidates: Rows
    scored: Rows
    start: Rows  # sensors that stand already
    budget: int


class Trial:
    """A city whose sensors can be chosen."""

    def __init__(self, folder: Path) -> None:
        self.city = ensure_road_features(open_city(folder))
        stream = self.city.stream
        self.period = (0, stream.num_snapshots * 7 // 10)
        self.network = stream.usual_network(self.period)
        usual = usual_counts(stream, stream.sensors, self.period)
        self.level = week_mean(fill_empty_hours(usual))
        self.known = np.flatnonzero(np.isfinite(self.level))
        self.trips = TripModel.of(
            self.network,
            DemandSettings(),
            step_s=stream.step_s,
            usual_counts=usual,
            usual_medians=usual_medians(stream, stream.sensors, self.period),
            usual_week=usual_week(stream, stream.sensors, usual, self.period),
            seed=0,
            forbidden_turns=self.city.forbidden_turns,
            folder=self.city.folder,
            features=features_of([self.network.map], self.city)[0],
        )
        away_m = dijkstra(road_matrix(self.network), directed=False)
        self.away_m = np.where(np.isfinite(away_m), away_m, FAR_M)

    def case(self, seed: int, start: str) -> Case:
        rng = np.random.default_rng([seed, 26])
        rows = rng.permutation(self.known)
        count = round(len(rows) * SCORED)
        total = round(SHARE * len(rows))
        half = total // 2 if start == STARTS[1] else 0
        return Case(rows[count + half :], rows[:count], rows[count : count + half], total - half)

    def seen_city(self, sensors: Rows) -> City:
        """What a planner has: the readings of these sensors in the training period."""
        stream = self.city.stream.slice(*self.period)
        observed = np.zeros_like(stream.observed)
        observed[:, sensors] = stream.observed[:, sensors]
        return replace(
            self.city, stream=replace(stream, observed=observed, values=np.where(observed, stream.values, 0))
        )

    def score(self, sensors: Rows, scored: Rows) -> dict[str, float]:
        mask = np.zeros(len(self.level), bool)
        mask[sensors] = True
        demand = self.trips.with_fitted_levels(mask).demand(mask)
        off = np.abs(week_mean(demand.node_flow)[scored] - self.level[scored])
        tables = DemandTables.of([demand], "cpu", step_s=self.city.stream.step_s)
        return {"level": float(off.mean()), "hour": self.hour_error(tables, mask, scored)}

    def hour_error(self, tables: DemandTables, sensors: NDArray[np.bool_], scored: Rows) -> float:
        stream = self.city.stream
        steps = max(1, HOUR_S // stream.step_s)
        current = windows_in((stream.num_snapshots * 9 // 10, stream.num_snapshots), past=PAST, horizon=steps)
        error = cells = 0.0
        for now in current[:: max(1, len(current) // WINDOWS)].tolist():
            past, ahead = slice(now - PAST + 1, now + 1), slice(now + 1, now + 1 + steps)
            seen = stream.observed[past] & sensors
            values = np.where(seen, stream.values[past], 0).astype(np.float32)
            clock = torch.from_numpy(stream.wall_clock[past.start : ahead.stop])[None]
            which = torch.zeros(1, dtype=torch.int64)
            _, made, _ = tables.follow(torch.from_numpy(values)[None], torch.from_numpy(seen)[None], clock, which)
            there = stream.observed[ahead][:, scored]
            off = np.abs(made[0].numpy()[:, scored] - stream.values[ahead][:, scored])
            error += float(off[there].sum())
            cells += float(there.sum())
        return error / cells


def by_place(trial: Trial, case: Case, seed: int) -> Rows:
    ids = trial.network.node_ids
    found = place(
        trial.seen_city(case.start),
        budget=case.budget,
        candidates=ids[case.candidates].tolist(),
        targets=ids[trial.known].tolist(),
        settings=DemandSettings(),
    )
    return np.array([site.row for site in found.sites], np.int64)


def by_chance(trial: Trial, case: Case, seed: int) -> Rows:
    return np.random.default_rng([seed, 62]).choice(case.candidates, case.budget, replace=False)


def by_distance(trial: Trial, case: Case, seed: int) -> Rows:
    """Farthest first. From nothing, the first is a candidate in the middle."""
    away_m = trial.away_m[:, case.candidates]
    first = int(case.candidates[np.argmin(away_m[case.candidates].sum(0))])
    near_m = away_m[case.start if len(case.start) else [first]].min(0)
    chosen = [] if len(case.start) else [first]
    while len(chosen) < case.budget:
        chosen.append(int(case.candidates[np.argmax(near_m)]))
        near_m = np.minimum(near_m, away_m[chosen[-1]])
    return np.array(chosen, np.int64)


def by_traffic(trial: Trial, case: Case, seed: int) -> Rows:
    levels = Traffic.of_map(trial.trips.sets).levels[case.candidates]
    return case.candidates[np.argsort(-levels, kind="stable")[: case.budget]]


def by_coverage(trial: Trial, case: Case, seed: int) -> Rows:
    away_m = trial.away_m[case.candidates][:, trial.known]
    near_m = np.full(len(trial.known), FAR_M)
    if len(case.start):
        near_m = trial.away_m[case.start][:, trial.known].min(0)
    chosen: list[int] = []
    for _ in range(case.budget):
        nearer = np.maximum(near_m - away_m, 0).sum(1)
        nearer[chosen] = -1
        chosen.append(int(np.argmax(nearer)))
        near_m = np.minimum(near_m, away_m[chosen[-1]])
    return case.candidates[chosen]


RULES: dict[str, Callable[[Trial, Case, int], Rows]] = {
    "place": by_place,
    "random": by_chance,
    "farthest": by_distance,
    "busiest": by_traffic,
    "even": by_coverage,
}


def measure(trial: Trial, start: str, seed: int) -> dict[str, dict[str, float]]:
    """The errors of every rule."""
    case = trial.case(seed, start)
    found = {}
    for rule, choose in RULES.items():
        scores = []
        for draw in range(RANDOM_DRAWS if rule == "random" else 1):
            chosen = choose(trial, case, 1000 * seed + draw)
            scores.append(trial.score(np.concatenate([case.start, chosen]), case.scored))
        found[rule] = {name: float(np.mean([each[name] for each in scores])) for name in scores[0]}
        print(trial.city.name, start, seed, rule, json.dumps(found[rule]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("city", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS)
    parser.add_argument("--results", type=Path, help="write JSON there")
    args = parser.parse_args()
    trial = Trial(args.city)
    about = {
        "command": "python benchmarks/placement.py "
        + " ".join(Path(word).name if "/" in word else word for word in sys.argv[1:]),
        **environment("cpu"),
        "seeds": args.seeds,
        "nodes": trial.network.num_nodes,
        "with_readings": len(trial.known),
        "sensors": round(SHARE * len(trial.known)),
        "scored": round(len(trial.known) * SCORED),
        "random_draws": RANDOM_DRAWS,
    }
    mae: dict[str, dict[str, Any]] = {}
    for start in args.starts:
        for seed in args.seeds:
            mae.setdefault(start, {})[str(seed)] = measure(trial, start, seed)
            if args.results is not None:
                args.results.write_text(json.dumps({**about, "mae": mae}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
