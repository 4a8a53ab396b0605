"""What a service of a large network bears: readings, open maps and forecasts at once, over loopback.

    python benchmarks/serve_load.py [--minutes 5] [--step 60] [--rate 2000] [--batch 50] [--pages 50] [--size beijing]
                                    [--folder build/serve-load] [--results FILE] [--note TEXT]

Makes a city of that size with such steps and an untrained run of the preset `default` (once: they stay in the
folder), starts `frigate serve` with a new SQLite store, opens the maps, and posts readings for so many minutes.
Requests leave on a schedule, whatever became of those before; the time of one counts from when it was due. A map signs
in, follows the events, and at each forecast fetches what the page does (`page/src/live.ts`). Results are written every
minute. It talks to the service that it has started, on this machine, and to nothing else.
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
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from frigate.bench.synthetic import Size, parse_size, synthetic_network
from frigate.city.city import City
from frigate.city.folder import open_city, write_city
from frigate.city.stream import make_stream
from frigate.config import change, preset
from frigate.reading.files import write_file
from frigate.serve.auth import make_token
from frigate.serve.store import open_store
from frigate.training.environment import environment
from frigate.training.train import train

SNAPSHOTS, SENSORS, SEED = 300, 0.1, 0
CONNECTIONS = 8
SAMPLE_EVERY_S, SAMPLES = 5.0, 300
WRITE_EVERY_S = 60.0
PAGES_PER_TOKEN = 10
TIMEOUT_S = 60.0
# This is a measurement, not an attack. What leaks at each forecast shows after hours only, so it may last for two.
BOUNDS = {"minutes": 120.0, "step": 3_600, "rate": 10_000, "pages": 200, "batch": 5_000}


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

    def __init__(self, service: Started, nodes: list[str], args: argparse.Namespace) -> None:
        self.service = service
        self.nodes = nodes
        self.args = args
        self.took_s: list[float] = []
        self.fetched_s: defaultdict[str, list[float]] = defaultdict(list)
        self.answers: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.samples: list[dict[str, float]] = []
        self.began = time.monotonic()

    async def run(self, write: Callable[[], Awaitable[None]]) -> None:
        """For so many minutes; `write` is called every minute."""
        self.began = time.monotonic()
        pages = [asyncio.create_task(Page(self, k).run()) for k in range(self.args.pages)]
        beside = [asyncio.create_task(self.sample()), asyncio.create_task(every(WRITE_EVERY_S, write)), *pages]
        await asyncio.gather(*(self.post(k) for k in range(CONNECTIONS)))
        for task in beside:
            task.cancel()
        for ended in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def post(self, first: int) -> None:
        """Every n-th batch, on one connection."""
        every_s = self.args.batch / self.args.rate
        connection = None
        for k in range(first, int(self.args.minutes * 60 / every_s), CONNECTIONS):
            due = self.began + k * every_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            try:
                connection = connection or await asyncio.open_connection("127.0.0.1", self.service.port)
                reader, writer = connection
                writer.write(self.request(k))
                status, body = await answer(reader)
            except (OSError, asyncio.IncompleteReadError) as error:
                self.answers[f"readings {type(error).__name__}"] += 1
                connection = None
                continue
            self.took_s.append(time.monotonic() - due)
            self.answers[f"readings {status}"] += 1
            if status == 200:
                found = json.loads(body)
                for name in ("accepted", "duplicate", "corrected", "refused"):
                    self.answers[name] += found[name]

    def request(self, k: int) -> bytes:
        at = f"{time.time():.6f}"
        count = self.args.batch
        nodes = (self.nodes[(k * count + n) % len(self.nodes)] for n in range(count))
        lines = "".join(f"{node},{at},{(k + n) % 40}\n" for n, node in enumerate(nodes))
        body = f"node,time,value\n{lines}".encode()
        head = f"POST /v1/readings HTTP/1.1\r\n{self.service.head}Content-Type: text/csv\r\nContent-Length: {len(body)}"
        return head.encode() + b"\r\n\r\n" + body

    async def sample(self) -> None:
        """What the process has, now and then."""
        process = Path(f"/proc/{self.service.process.pid}")
        while True:
            lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            self.samples.append(
                {
                    "second": round(time.monotonic() - self.began, 1),
                    "mib": round(int(lines["VmRSS"].split()[0]) / 1024, 1),
                    "threads": int(lines["Threads"]),
                    "descriptors": len(os.listdir(process / "fd")),
                    "load_1min": round(os.getloadavg()[0], 2),
                }
            )
            await asyncio.sleep(max(SAMPLE_EVERY_S, self.args.minutes * 60 / SAMPLES))


class Page:
    """An open map: what `page/src/live.ts` asks for, and now and then what a script beside it does."""

    def __init__(self, load: Load, number: int) -> None:
        self._load, self._number, self._turn = load, number, 0
        self._tags: dict[str, str] = {}  # as a browser keeps them
        self._http = httpx2.AsyncClient(base_url=load.service.url, timeout=TIMEOUT_S, verify=False)

    async def run(self) -> None:
        """Until it is cancelled. A stream that ends is opened again after a second."""
        token = self._load.service.readers[self._number // PAGES_PER_TOKEN]
        async with self._http:
            await self._http.post("/v1/session", json={"token": token})
            await self._fetch("network.bin")
            await self._read_forecast()
            while True:
                with suppress(httpx2.HTTPError):
                    await self._follow()
                self._load.events["cut off"] += 1
                await asyncio.sleep(1)

    async def _follow(self) -> None:
        async with self._http.stream("GET", "/v1/events") as stream:
            self._load.answers[f"events {stream.status_code}"] += 1
            async for line in stream.aiter_lines():
                if line.startswith("event: "):
                    self._load.events[line[7:]] += 1
                if line == "event: forecast":
                    await self._read_forecast()

    async def _read_forecast(self) -> None:
        """What each page reads at a new forecast; one in five shows a table, one in ten a history."""
        nodes = self._load.nodes
        turn = self._turn = self._turn + 1
        node = nodes[(self._number * 7 + turn) % len(nodes)]
        await self._fetch("forecast.bin")
        await self._fetch("nodes", f"nodes/{node}")
        await self._fetch("closures")
        if (self._number + turn) % 5 == 0:
            await self._fetch("network.bin")
            for name in ("forecast.json", "flows.json", "sensors", "accuracy"):
                await self._fetch(name)
        if (self._number + turn) % 10 == 0:
            await self._fetch("history.csv", f"history.csv?node={node}")

    async def _fetch(self, kind: str, path: str = "") -> None:
        began = time.monotonic()
        headers = {"If-None-Match": self._tags[kind]} if kind in self._tags else {}
        try:
            found = await self._http.get(f"/v1/{path or kind}", headers=headers)
        except httpx2.HTTPError as error:
            self._load.answers[f"{kind} {type(error).__name__}"] += 1
            return
        self._load.fetched_s[kind].append(time.monotonic() - began)
        self._load.answers[f"{kind} {found.status_code}"] += 1
        if "etag" in found.headers:
            self._tags[kind] = found.headers["etag"]


async def every(seconds: float, call: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await call()
        except (OSError, asyncio.IncompleteReadError, sqlite3.Error) as error:  # the next one may work
            print(repr(error), file=sys.stderr)


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


@dataclass(frozen=True)
class Started:
    """A service that answers, and tokens for it."""

    process: subprocess.Popen[bytes]
    port: int
    token: str
    readers: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def head(self) -> str:
        return f"Host: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n"


def serve(folder: Path, pages: int) -> Started:
    """A service on a new store, once it has a forecast."""
    for old in folder.glob("load.db*"):
        old.unlink()
    with closing(open_store(str(folder / "load.db"))) as store:
        now_s = int(time.time())
        token = make_token(store, "load", "admin", now_s)
        readers = [make_token(store, "pages", "read", now_s) for _ in range(0, pages, PAGES_PER_TOKEN)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    words = ["serve", folder / "run", "--store", folder / "load.db", "--port", port, "--device", "cpu", "--grace", "5"]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "frigate", *map(str, words)], stdout=log, stderr=log)
    while True:
        if process.poll() is not None:
            sys.exit(f"the service did not start: {folder / 'serve.log'}")
        with suppress(httpx2.HTTPError):
            if httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=TIMEOUT_S).status_code == 200:
                return Started(process, port, token, readers)
        time.sleep(0.2)


async def metrics(service: Started) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(f"GET /metrics HTTP/1.1\r\n{service.head}\r\n".encode())
    _, body = await answer(reader)
    writer.close()
    pairs = (line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs if "{" not in name and name}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run it. Returns what the file has at the end."""
    size = parse_size(args.size)
    folder = args.folder / f"{size.name}-{args.step}s"
    prepare(folder, size, args.step)
    city = open_city(folder / "city")
    nodes = [str(node) for node in city.stream.node_ids[city.stream.sensors].tolist()]
    idle = os.getloadavg()[0]
    service = serve(folder, args.pages)
    load = Load(service, nodes, args)
    probe = DiskProbe(folder)

    async def write() -> None:
        found = result(args, load, probe, folder, await metrics(service))
        found["size"] = {"nodes": size.nodes, "roads": size.roads, "sensors": len(nodes), "step_s": args.step}
        found |= {"load_average_before": round(idle, 2), "machine_was_idle": idle < 0.5}
        write_file(args.results, json.dumps(found, indent=1) + "\n")
        written.update(found)

    async def run() -> None:
        await load.run(write)
        await write()

    written: dict[str, Any] = {}
    try:
        probe.start()
        asyncio.run(run())
        probe.ended.set()
        probe.join()
    finally:
        service.process.terminate()
        service.process.wait()
    return written


def result(
    args: argparse.Namespace, load: Load, probe: DiskProbe, folder: Path, service: dict[str, float]
) -> dict[str, Any]:
    """What has been measured so far."""
    with closing(sqlite3.connect(f"file:{folder / 'load.db'}?mode=ro", uri=True)) as database:
        (stored,) = database.execute("SELECT COUNT(*) FROM readings").fetchone()
        issued = [row[0] for row in database.execute("SELECT issued_s FROM forecasts ORDER BY issued_s")]
    task = preset("default").task
    ingest_ms, disk_ms = percentiles(load.took_s), percentiles(probe.took_s)
    return {
        "command": " ".join(["python", "benchmarks/serve_load.py", *sys.argv[1:]]),
        "note": args.note,
        "environment": environment("cpu"),
        "niceness": os.nice(0),
        "asked": {name: getattr(args, name) for name in BOUNDS},
        "minutes": round((time.monotonic() - load.began) / 60, 1),
        "requests": len(load.took_s),
        "answers": dict(sorted(load.answers.items())),
        "stored_rows": stored,
        "ingest_ms": ingest_ms,
        "disk_ms": disk_ms,
        "ingest_to_disk": {key: round(ingest_ms[key] / disk_ms[key], 1) for key in ingest_ms if disk_ms[key]},
        "fetched_ms": {kind: percentiles(took_s) for kind, took_s in sorted(load.fetched_s.items())},
        "forecasts": len(issued),
        "missed_ticks": sum((b - a) // args.step - 1 for a, b in pairwise(issued)),
        "forecast_s": round(service["frigate_forecast_seconds"], 2),
        "events": dict(load.events),
        "tracebacks": (folder / "serve.log").read_text(errors="replace").count("Traceback"),
        "window_full_s": (task.past + task.horizon) * args.step,  # until then every snapshot adds to what is kept
        "samples": load.samples,
        "store_mib": round((folder / "load.db").stat().st_size / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a service on this machine and measure it.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--step", type=int, default=60, help="seconds of a snapshot")
    parser.add_argument("--rate", type=int, default=2_000, help="readings a second")
    parser.add_argument("--batch", type=int, default=50, help="readings in a request")
    parser.add_argument("--pages", type=int, default=50, help="open maps, each with an event stream")
    parser.add_argument("--size", default="beijing", help="beijing, chengdu or a number of nodes")
    parser.add_argument("--folder", type=Path, default=Path("build/serve-load"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/serve-load.json"))
    parser.add_argument("--note", default="", help="what else ran on the machine, for the file")
    args = parser.parse_args()
    for name, most in BOUNDS.items():
        if not 0 < getattr(args, name) <= most:
            parser.error(f"--{name} must be above 0 and at most {most:g}")
    if shutil.disk_usage(args.folder.absolute().parents[1]).free < 4 * 2**30:
        parser.error("less than 4 GiB are free on the disk")
    found = measure(args)
    left_out = ("command", "note", "environment", "samples")
    print(json.dumps({name: value for name, value in found.items() if name not in left_out}, indent=1))


if __name__ == "__main__":
    main()
