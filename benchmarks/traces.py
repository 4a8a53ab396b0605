"""Match a day of taxi traces to the streets of San Francisco and compare the counts with the published ones.

    python benchmarks/traces.py sf-streets-traces sf-taxi [RESULTS]

The first folder has streets.parquet and the traces, the second nodes.parquet and counts.npz. The file written is
RESULTS/traces-sf.json. Compiling is timed apart, on a few vehicles and with nothing kept from earlier runs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

WORKERS, REPEATS, FEW = 2, 3, 5
TRACES = "traces_2008-05-28.parquet"
NAMES = {"cab": "vehicle", "t_unix": "time", "lon_e5": "lon", "lat_e5": "lat"}
STEPS = 288  # of five minutes: the day


def main() -> None:
    streets = Path(sys.argv[1])
    taxi = Path(sys.argv[2])
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(__file__).parent / "results"
    with tempfile.TemporaryDirectory() as bare:
        os.environ["NUMBA_CACHE_DIR"] = bare  # before numba is imported
        result = measure(streets, taxi, Path(bare))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "traces-sf.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: result[k] for k in ("positions_a_second", "matched_share", "mean_distance_m", "correlation")}))


def measure(streets: Path, taxi: Path, scratch: Path) -> dict[str, Any]:
    import numpy as np
    import polars as pl

    from frigate.sources.tables.importer import import_tables
    from frigate.sources.traces.importer import import_traces, match_traces
    from frigate.sources.traces.matching import MatchOptions
    from frigate.training.environment import environment

    city = import_tables(edges=streets / "streets.parquet", timezone="America/Los_Angeles")
    frame = pl.read_parquet(streets / TRACES)
    frame.filter(pl.col("cab") < FEW).write_parquet(scratch / "few.parquet")

    def seconds(path: Path) -> tuple[float, float]:
        """Of the clock, and of all cores together: another's load lengthens the first, and hardly the second."""
        began = time.perf_counter()
        busy = time.process_time()
        import_traces(path, city, rename=NAMES, workers=WORKERS)
        return time.perf_counter() - began, time.process_time() - busy

    (_, cold_s), (_, warm_s) = seconds(scratch / "few.parquet"), seconds(scratch / "few.parquet")
    taken_s, cpu_s = zip(*(seconds(streets / TRACES) for _ in range(REPEATS)), strict=True)
    report = match_traces(streets / TRACES, city, MatchOptions(workers=WORKERS), rename=NAMES).report
    ours = import_traces(streets / TRACES, city, rename=NAMES, workers=WORKERS)
    with np.load(taxi / "counts.npz") as held:
        first = int(np.searchsorted(held["t_unix"], ours.stream.start_s))
        busy = held["counts"][held["valid"]].mean(axis=0) > 1
        theirs = held["counts"][first : first + STEPS][:, busy].astype(np.float64)
    ids = pl.read_parquet(taxi / "nodes.parquet")["source_id"].to_numpy()[busy].tolist()
    counts = ours.stream.values[:STEPS, city.network.rows_of(ids)]
    hourly = [x.reshape(STEPS // 12, 12, -1).sum(axis=1).ravel() for x in (counts, theirs)]
    return {
        "command": " ".join(["python benchmarks/traces.py", *(Path(word).name for word in sys.argv[1:])]),
        "what": "reading, matching and counting a day of traces; median seconds; hourly sums on nodes of mean above 1",
        **environment("cpu"),
        "load_average": round(os.getloadavg()[0], 1),
        "seed": None,  # nothing is drawn
        "workers": WORKERS,
        "repeats": REPEATS,
        "positions": len(frame),
        "seconds": round(statistics.median(taken_s), 2),
        "seconds_each": [round(s, 2) for s in taken_s],
        "cpu_seconds_each": [round(s, 2) for s in cpu_s],
        "positions_a_second": round(len(frame) / statistics.median(taken_s)),
        "compile_cpu_s": round(cold_s - warm_s, 1),
        "matched_share": round(report.matched_share, 4),
        "mean_distance_m": round(report.mean_distance_m, 2),
        "correlation": round(float(np.corrcoef(*hourly)[0, 1]), 4),
        "correlation_5min": round(float(np.corrcoef(counts.ravel(), theirs.ravel())[0, 1]), 4),
        "busy_nodes": int(busy.sum()),
        "report": asdict(report),
    }


if __name__ == "__main__":
    main()
