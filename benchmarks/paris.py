"""Make a city folder from the hourly loop counts of Paris and the closures that the city recorded.

    python benchmarks/paris.py DATA FOLDER [--no-classes] [--no-changes]

DATA has counts.npz, nodes.parquet, edges.parquet and closures.parquet, as its README describes. The city is on roads:
its nodes are roads, its edges are turns. --no-classes leaves out the road classes, which were read off the names;
--no-changes leaves out the closures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from frigate.city.city import City
from frigate.city.folder import write_city
from frigate.sources.matrix import import_matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--changes", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    city = paris(args.data, classes=args.classes)
    write_city(city, args.folder)
    print(f"{args.folder}: {city.stream.summary()}")
    if args.changes:
        changes = closures_as_changes(city, pl.read_parquet(args.data / "closures.parquet"))
        changes.write_parquet(args.folder / "changes.parquet")
        print(f"{len(changes):,} changes")


def paris(data: Path, *, classes: bool) -> City:
    columns = {"src": "source", "dst": "target"} | ({"class_from_name": "road_class"} if classes else {})
    return import_matrix(
        data / "counts.npz",
        values="count",
        time="t_unix",
        timezone="Europe/Paris",
        nodes=data / "nodes.parquet",
        edges=data / "edges.parquet",
        rename=columns,
        quantity="count",
        on="roads",
        name="paris",
    )


def closures_as_changes(city: City, closures: pl.DataFrame) -> pl.DataFrame:
    """The turns that close and open: those into and out of a road, while it is closed."""
    stream = city.stream
    network = city.network
    closed = np.zeros((stream.num_snapshots + 1, stream.num_nodes), bool)  # before the record nothing is closed
    for road, begin_s, end_s in closures.select("edge_id", "begin_unix", "end_unix").iter_rows():
        first, stop = (stream.snapshot_at(time_s) for time_s in (begin_s, end_s))
        closed[1 + first : 1 + stop, road] = True
    shut = closed[:, network.senders] | closed[:, network.receivers]
    at, turn = np.nonzero(shut[1:] != shut[:-1])
    ends = stream.node_ids[np.stack([network.senders, network.receivers])]
    return pl.DataFrame(
        {
            "time": pl.Series(stream.times_s[at] * 1_000_000).cast(pl.Datetime("us", "UTC")),
            "action": np.where(shut[1:][at, turn], "close", "open"),
            "source": ends[0, turn],
            "target": ends[1, turn],
        }
    )


if __name__ == "__main__":
    main()
