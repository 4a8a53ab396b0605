"""What a service of a large network bears: readings, open event streams and forecasts at once, over loopback.

    python benchmarks/serve_load.py [--minutes 5] [--step 60] [--rate 2000] [--batch 50] [--streams 50] [--size beijing]
                                    [--folder build/serve-load] [--results FILE]

Makes a city of that size with such steps and an untrained run of the preset `default` (once: they stay in the
folder), starts `frigate serve` with a new SQLite store, opens the event streams, and posts readings for so many
minutes. Requests leave on a schedule, whatever became of those before; the time of one counts from when it was due. It
talks to the service that it has started, on this machine, and to nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from frigate.bench.synthetic import Size, parse_size, synthetic_network
from frigate.city.city import City
from frigate.city.folder import open_city, write_city
from frigate.city.stream import make_stream
from frigate.config import change, preset
from frigate.serve.auth import make_token
from frigate.serve.store import open_store
from frigate.training.environment import environment
from frigate.training.train import train

SNAPSHOTS, SENSORS, SEED = 300, 0.1, 0
CONNECTIONS = 8
MEMORY_EVERY_S = 5.0
# This is a measurement, not an attack
BOUNDS = {"minutes": 30.0, "step": 3_600, "rate": 10_000, "streams": 200, "batch": 5_000}


def prepare(folder: Path, size: Size, step_s: int) -> None:
    """A city of random counts and a run that has learnt next to nothing: speed depends on neither."""
    if (folder / "run").exists():
        return
    rng = np.random.default_rng(SEED)
    network = synthetic_network(rng, nodes=size.nodes, roads=size.roads)
    values = np.full((SNAPSHOTS, size.nodes), np.nan)
    sensors = rng.permutation(size.nodes)[: int(SENSORS * size.nodes)]
    values[:, sensors] = rng.poisson(20, (SNAPSHOTS, len(sensors)))
    stream = make_stream(values, network, start_s=1_700_000_040 // step_s * step_s, step_s=step_s)
    write_city(City("Load", stream), folder / "city", overwrite=True)
    small = {"epochs": 1, "steps_per_epoch": 1, "batch_size": 1, "masks": 1, "validation_windows": 1, "parts": 64}
    train(
        open_city(folder / "city"),
        seen="all",
        settings=change(preset("default"), {"train": small}),
        folder=folder / "run",
        device="cpu",
        progress=True,
    )


class Load:
    """Everything that is measured while it runs."""

    def __init__(self, port: int, pid: int, token: str, nodes: list[str], args: argparse.Namespace) -> None:
        self.port = port
        self.head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        self.pid = pid
        self.nodes = nodes
        self.args = args
        self.took_s: list[float] = []
        self.answers: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.memory: list[dict[str, float]] = []
        self.sent = 0

    async def run(self) -> None:
        """For so many minutes."""
        self.began = time.monotonic()
        self.end = self.began + self.args.minutes * 60
        streams = [asyncio.create_task(self.listen()) for _ in range(self.args.streams)]
        memory = asyncio.create_task(self.watch_memory())
        await asyncio.gather(*(self.post(k) for k in range(CONNECTIONS)))
        for task in (memory, *streams):
            task.cancel()
        await asyncio.gather(memory, *streams, return_exceptions=True)

    async def post(self, first: int) -> None:
        """Every n-th batch, on one connection."""
        every_s = self.args.batch / self.args.rate
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for k in range(first, int(self.args.minutes * 60 / every_s), CONNECTIONS):
            due = self.began + k * every_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(self.request(k))
            status, body = await answer(reader)
            self.took_s.append(time.monotonic() - due)
            self.answers[str(status)] += 1
            if status == 200:
                found = json.loads(body)
                self.sent += self.args.batch
                for name in ("accepted", "duplicate", "corrected", "refused"):
                    self.answers[name] += found[name]
        writer.close()

    def request(self, k: int) -> bytes:
        at = f"{time.time():.6f}"
        count = self.args.batch
        nodes = (self.nodes[(k * count + n) % len(self.nodes)] for n in range(count))
        lines = "".join(f"{node},{at},{(k + n) % 40}\n" for n, node in enumerate(nodes))
        body = f"node,time,value\n{lines}".encode()
        head = f"POST /v1/readings HTTP/1.1\r\n{self.head}Content-Type: text/csv\r\nContent-Length: {len(body)}"
        return head.encode() + b"\r\n\r\n" + body

    async def listen(self) -> None:
        """One event stream: which events it heard."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET /v1/events HTTP/1.1\r\n{self.head}\r\n".encode())
        try:
            while line := await reader.readline():
                if line.startswith(b"event: "):
                    self.events[line[7:].strip().decode()] += 1
            self.events["cut off"] += 1
        finally:
            writer.close()

    async def watch_memory(self) -> None:
        while True:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
            kb = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
            second = round(time.monotonic() - self.began, 1)
            self.memory.append({"second": second, "mib": round(kb / 1024, 1), "load_1min": os.getloadavg()[0]})
            await asyncio.sleep(MEMORY_EVERY_S)


class DiskProbe(threading.Thread):
    """How long the disk itself takes to keep a page, ten times a second while the service is measured."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.path = folder / "probe.tmp"
        self.ended = threading.Event()
        self.took_s: list[float] = []

    def run(self) -> None:
        with self.path.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
                began = time.monotonic()
                os.fsync(file.fileno())
                self.took_s.append(time.monotonic() - began)
                if self.ended.wait(0.1):
                    break
        self.path.unlink()


def percentiles(took_s: list[float]) -> dict[str, float]:
    """In milliseconds."""
    return {f"p{q}": round(float(np.percentile(took_s, q)) * 1000, 1) for q in (50, 90, 99, 100)}


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of an answer with a length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    lengths = [line.partition(":")[2] for line in head if line.startswith("content-length:")]
    return int(head[0].split()[1]), await reader.readexactly(int(lengths[0]))


def serve(folder: Path, port: int) -> tuple[subprocess.Popen[bytes], str]:
    """A service on a new store, once it answers, and a token for it."""
    for old in folder.glob("load.db*"):
        old.unlink()
    with closing(open_store(str(folder / "load.db"))) as store:
        token = make_token(store, "load", "admin", int(time.time()))
    words = ["serve", folder / "run", "--store", folder / "load.db", "--port", port, "--device", "cpu", "--grace", "5"]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "frigate", *map(str, words)], stdout=log, stderr=log)
    while True:
        if process.poll() is not None:
            sys.exit(f"the service did not start: {folder / 'serve.log'}")
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return process, token
        time.sleep(0.2)


async def metrics(load: Load) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", load.port)
    writer.write(f"GET /metrics HTTP/1.1\r\n{load.head}\r\n".encode())
    _, body = await answer(reader)
    writer.close()
    pairs = (line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs if "{" not in name and name}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    size = parse_size(args.size)
    folder = args.folder / f"{size.name}-{args.step}s"
    prepare(folder, size, args.step)
    city = open_city(folder / "city")
    nodes = [str(node) for node in city.stream.node_ids[city.stream.sensors].tolist()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    idle = os.getloadavg()[0]
    process, token = serve(folder, port)
    try:
        load = Load(port, process.pid, token, nodes, args)
        probe = DiskProbe(folder)
        probe.start()
        asyncio.run(load.run())
        probe.ended.set()
        probe.join()
        service = asyncio.run(metrics(load))
    finally:
        process.terminate()
        process.wait()
    with sqlite3.connect(folder / "load.db") as database:
        (stored,) = database.execute("SELECT COUNT(*) FROM readings").fetchone()
        issued = [row[0] for row in database.execute("SELECT issued_s FROM forecasts ORDER BY issued_s")]
    task = preset("default").task
    return {
        "command": " ".join(["python", "benchmarks/serve_load.py", *sys.argv[1:]]),
        "environment": environment("cpu"),
        "load_average_before": round(idle, 2),
        "machine_was_idle": idle < 0.5,
        "niceness": os.nice(0),
        "size": {"nodes": size.nodes, "roads": size.roads, "sensors": len(nodes), "step_s": args.step},
        "asked": {name: getattr(args, name) for name in ("minutes", "step", "rate", "batch", "streams")},
        "requests": int(sum(load.answers[status] for status in load.answers if status.isdigit())),
        "answers": dict(load.answers),
        "stored_rows": stored,
        "ingest_ms": percentiles(load.took_s),
        "disk_ms": percentiles(probe.took_s),
        "forecasts": len(issued),
        "missed_ticks": sum((b - a) // args.step - 1 for a, b in pairwise(issued)),
        "forecast_s": round(service["frigate_forecast_seconds"], 2),
        "events": dict(load.events),
        "window_full_s": (task.past + task.horizon) * args.step,  # until then every snapshot adds to what is kept
        "memory_mib": load.memory,
        "store_mib": round((folder / "load.db").stat().st_size / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a service on this machine and measure it.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--step", type=int, default=60, help="seconds of a snapshot")
    parser.add_argument("--rate", type=int, default=2_000, help="readings a second")
    parser.add_argument("--batch", type=int, default=50, help="readings in a request")
    parser.add_argument("--streams", type=int, default=50, help="open event streams")
    parser.add_argument("--size", default="beijing", help="beijing, chengdu or a number of nodes")
    parser.add_argument("--folder", type=Path, default=Path("build/serve-load"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/serve-load.json"))
    args = parser.parse_args()
    for name, most in BOUNDS.items():
        if not 0 < getattr(args, name) <= most:
            parser.error(f"--{name} must be above 0 and at most {most:g}")
    if shutil.disk_usage(args.folder.absolute().parents[1]).free < 4 * 2**30:
        parser.error("less than 4 GiB are free on the disk")
    result = measure(args)
    args.results.write_text(json.dumps(result, indent=1) + "\n")
    shown = (
        "requests",
        "answers",
        "stored_rows",
        "ingest_ms",
        "disk_ms",
        "forecasts",
        "missed_ticks",
        "forecast_s",
        "events",
    )
    print(json.dumps({name: result[name] for name in shown}, indent=1))


if __name__ == "__main__":
    main()
