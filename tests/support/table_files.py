"""Small tables of nodes, edges and readings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from frigate.roads.geometry import write_line

START = datetime(2024, 1, 15, tzinfo=UTC)  # a day that no month can be mistaken for


NODES = "node_id,lon,lat\nA,6.10,49.60\nB,6.11,49.60\nC,6.12,49.60\nD,6.11,49.61\n"


EDGES = "source,target,length_m,direction\nA,B,730,both\nB,C,725,both\nB,D,1112,both\nD,A,1350,forward\n"


def steps(count: int, every_min: int = 5) -> list[datetime]:
    return [START + timedelta(minutes=every_min * i) for i in range(count)]


def long_readings(node: str = "node_id", *, count: int = 6) -> str:
    rows = [f"{t:%Y-%m-%dT%H:%MZ},{who},{i + k}" for i, t in enumerate(steps(count)) for k, who in enumerate("AC")]
    return "\n".join([f"time,{node},value", *rows]) + "\n"


def small_files(folder: Path) -> dict[str, Path]:
    """Tiny valid inputs, one of each kind, for whoever wants to break them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = {
        "nodes.csv": NODES,
        "edges.csv": EDGES,
        "readings.csv": long_readings(),
        "sensors.csv": "sensor_id;lon;lat\ns1;6,1001;49,6001\ns2;6,1199;49,6\n",
        "lines.csv": 'from;to;wkt;oneway\nA;B;"LINESTRING(6.1 49.6, 6.105 49.601, 6.11 49.6)";no\n'
        "B;C;LINESTRING(6.11 49.6, 6.12 49.6);yes\nC;A;LINESTRING(6.12 49.6, 6.11 49.59, 6.1 49.6);-1\n",
        "wide.csv": "\n".join(["time,A,C", *(f"{t:%d.%m.%Y %H:%M}+00:00,{i},{i + 1}" for i, t in enumerate(steps(6)))]),
    }
    found = {}
    for name, text in lines.items():
        found[name] = folder / name
        found[name].write_text(text, encoding="utf-8")
    wkb = [write_line(np.array([[6.1, 49.6], [6.11, 49.6]])), write_line(np.array([[6.11, 49.6], [6.12, 49.6]]))]
    found["streets.parquet"] = folder / "streets.parquet"
    pl.DataFrame({"u": [1, 2], "v": [2, 3], "geom": wkb, "direction": ["both", "backward"]}).write_parquet(
        found["streets.parquet"]
    )
    return found
