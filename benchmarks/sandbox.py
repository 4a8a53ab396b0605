"""What reading in a child process costs: each import and read, in this process and in the sandbox, in turns.

    python benchmarks/sandbox.py DATA [RESULTS]

DATA holds osm-extracts, sf-taxi, sf-taxi-core and sf-streets-traces. The file written is RESULTS/sandbox.json.
Times are seconds of CPU, of both processes together and the best of several, so that a busy machine does not matter.
The start of the child is timed apart.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from frigate.city.folder import read_city, write_city
from frigate.city.network import RoadNetwork
from frigate.reading.notices import Notices
from frigate.reading.sandbox import in_sandbox
from frigate.reading.times import Clock
from frigate.sources.matrix import import_matrix
from frigate.sources.osm.importer import import_osm
from frigate.sources.traces.files import read_traces
from frigate.training.environment import environment

REPEATS = 3
MAPS = ("helsinki_small.osm.pbf", "helsinki_centre.osm.pbf", "luxembourg_city_lust.osm.gz")
TRACE_NAMES = {"cab": "vehicle", "t_unix": "time", "lon_e5": "lon", "lat_e5": "lat"}


def cpu_s() -> float:
    """Of this process and, where there is one, of the child."""
    return time.process_time() + (in_sandbox(time.process_time) if os.environ["FRIGATE_SANDBOX"] == "on" else 0.0)


def seconds(act: Callable[[], Any]) -> float:
    begun = cpu_s()
    act()
    return cpu_s() - begun


def taxi(folder: Path) -> Any:
    return import_matrix(
        folder / "counts.npz",
        nodes=folder / "nodes.parquet",
        edges=folder / "edges.parquet",
        values="counts",
        time="t_unix",
        valid="valid",
        rename={"src": "source", "dst": "target"},
    )


def fresh_read(folder: Path) -> Any:
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return read_city(folder)


def positions(file: Path, network: RoadNetwork) -> Any:
    return read_traces([file], network, names=TRACE_NAMES, clock=Clock(None), notices=Notices())


def cases(data: Path, scratch: Path) -> dict[str, Callable[[], Any]]:
    core = taxi(data / "sf-taxi-core")
    write_city(core, scratch / "core")
    write_city(import_osm(data / "osm-extracts" / MAPS[0]), scratch / "tiny")
    found: dict[str, Callable[[], Any]] = {"100 calls of nothing": lambda: [in_sandbox(os.getpid) for _ in range(100)]}
    found |= {f"import osm {name}": partial(import_osm, data / "osm-extracts" / name) for name in MAPS}
    found |= {f"import matrix {name}": partial(taxi, data / name) for name in ("sf-taxi-core", "sf-taxi")}
    traces = data / "sf-streets-traces" / "traces_2008-05-28.parquet"
    found["read traces sf-streets-traces"] = lambda: positions(traces, core.network)
    found["read city, 229 nodes, no readings"] = lambda: fresh_read(scratch / "tiny")
    found["read city sf-taxi-core, 16 million readings"] = lambda: fresh_read(scratch / "core")
    return found


def main() -> None:
    data = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent / "results"
    begun = time.perf_counter()
    in_sandbox(os.getpid)
    start_s = time.perf_counter() - begun
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, act in cases(data, Path(scratch)).items():
            best = {"off": float("inf"), "on": float("inf")}
            for _ in range(REPEATS):
                for how in ("off", "on"):
                    os.environ["FRIGATE_SANDBOX"] = how
                    best[how] = min(best[how], seconds(act))
            row = {"what": name, "in_process_cpu_s": round(best["off"], 5), "sandbox_cpu_s": round(best["on"], 5)}
            rows.append(row | {"ratio": round(best["on"] / best["off"], 3)})
            print(rows[-1], flush=True)
    result = {
        "command": "python benchmarks/sandbox.py DATA",
        "what": "seconds of CPU of both processes together, the best of three; first_call_s is of the clock",
        **environment("cpu"),
        "first_call_s": round(start_s, 3),
        "rows": rows,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sandbox.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"first call: {start_s:.2f} s")


if __name__ == "__main__":
    main()
