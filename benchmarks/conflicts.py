"""Whether a check finds sensors whose counts were multiplied: how many of them are among the most suspect.

    python benchmarks/conflicts.py CITY [--times 3] [--sensors 20] [--listed 40] [--results FILE]

In a copy of the city, with every sensor as input, the counts of some sensors are multiplied. With three seeds of which.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from frigate.check.conflicts import find_conflicts
from frigate.city.city import City
from frigate.city.folder import open_city
from frigate.training.environment import environment

SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("city", type=Path)
    parser.add_argument("--times", type=float, default=3.0)
    parser.add_argument("--sensors", type=int, default=20)
    parser.add_argument("--listed", type=int, default=40)
    parser.add_argument("--results", type=Path, help="write JSON there")
    args = parser.parse_args()
    city = open_city(args.city)
    as_is = find_conflicts(city)
    assert as_is is not None, "the city has no counts"
    found = {
        "command": f"python benchmarks/conflicts.py {args.city.name}",
        **environment("cpu"),
        "city": city.name,
        "sensors": len(as_is.sensors),
        "multiplied": args.sensors,
        "times": args.times,
        "most_suspect": args.listed,
        "left_out_as_it_is": sum(each.contradicted for each in as_is.sensors),
        "pairs_in_conflict_as_it_is": len(as_is.pairs),
        "seeds": [multiplied(city, seed, args.sensors, args.times, args.listed) for seed in SEEDS],
    }
    print(json.dumps(found))
    if args.results is not None:
        args.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def multiplied(city: City, seed: int, count: int, times: float, listed: int) -> dict[str, Any]:
    """The check of a copy of the city."""
    rows = np.random.default_rng(seed).choice(np.flatnonzero(city.stream.sensors), count, replace=False)
    values = np.array(city.stream.values)
    values[:, rows] *= np.float32(times)
    found = find_conflicts(replace(city, stream=replace(city.stream, values=values)))
    assert found is not None
    chosen = set(city.stream.node_ids[rows].tolist())
    place = [k for k, each in enumerate(found.sensors) if each.node_id in chosen]
    return {
        "seed": seed,
        "among_the_most_suspect": sum(k < listed for k in place),
        "places": [k + 1 for k in place],
        "left_out": sum(each.contradicted for each in found.sensors),
        "left_out_and_multiplied": sum(each.contradicted and each.node_id in chosen for each in found.sensors),
    }


if __name__ == "__main__":
    main()
