"""Make a city folder from the hourly loop counts of Paris and the closures that the city recorded.

    python benchmarks/paris.py DATA FOLDER [--no-classes] [--no-changes | --turns]

DATA has counts.npz, nodes.parquet, edges.parquet and closures.parquet, as its README describes. The city is on roads:
its nodes are roads, its edges are turns. --no-classes leaves out the road classes, which were read off the names;
--no-changes leaves out the closures; --turns closes every turn into and out of a road by a row of its own.
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
    parser.add_argument("--turns", action="store_true")
    args = parser.parse_args()
    city = paris(args.data, classes=args.classes)
    write_city(city, args.folder)
    print(f"{args.folder}: {city.stream.summary()}")
    if args.changes:
        changes = closures_as_changes(city, pl.read_parquet(args.data / "closures.parquet"), turns=args.turns)
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


def closures_as_changes(city: City, closures: pl.DataFrame, *, turns: bool = False) -> pl.DataFrame:
    """The roads that close and open; or, with `turns`, the turns into and out of each."""
    stream = city.stream
    network = city.network
    closed = np.zeros((stream.num_snapshots + 1, stream.num_nodes), bool)  # before the record nothing is closed
    for road, begin_s, end_s in closures.select("edge_id", "begin_unix", "end_unix").iter_rows():
        first, stop = (stream.snapshot_at(time_s) for time_s in (begin_s, end_s))
        closed[1 + first : 1 + stop, road] = True
    shut = closed[:, network.senders] | closed[:, network.receivers] if turns else closed
    at, which = np.nonzero(shut[1:] != shut[:-1])
    ids = stream.node_ids
    named = {"node_id": ids[which]}
    if turns:
        named = {"source": ids[network.senders[which]], "target": ids[network.receivers[which]]}
    return pl.DataFrame(
        {
            "time": pl.Series(stream.times_s[at] * 1_000_000).cast(pl.Datetime("us", "UTC")),
            "action": np.where(shut[1:][at, which], "close", "open"),
            **named,
        }
    )


if __name__ == "__main__":
    main()
