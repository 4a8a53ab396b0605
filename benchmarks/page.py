"""How fast the map page draws a large city in a browser without a graphics card.

    python benchmarks/page.py NETWORK [RESULTS]

NETWORK has nodes.parquet (node_id, lon, lat) and edges.parquet (src, dst, length_m), as bayarea-osm-network: 30,826
nodes, 65,524 roads. Values are made up. The page of the service and a report of the same city are opened a few times in
Debian's Chromium, which draws in software. The file written is RESULTS/page.json: seconds from opening to the first
drawing, seconds from a key on the slider to the next drawing, and the size of the report. On a shared machine the best
of several says most.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page, sync_playwright

from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.city.stream import make_stream
from frigate.forecasting.road_flow import road_flows
from frigate.pages.layers import Colours, Layer, Unit, Values
from frigate.pages.map_data import network_container
from frigate.pages.map_page import FORM, History, HistoryLine, MapPage, Place, write_map_page
from frigate.pages.panels import Panel
from frigate.pages.run_page import DROPPED_BITS
from frigate.pages.wire import decode, encode, rounded
from frigate.training.environment import environment

BEGIN = datetime(2024, 3, 4, 16, 0, tzinfo=UTC)
PAST, AHEAD = 12, 12
OPENED, STEPS = 5, 12
TIMES = 24  # of a report of so large a city
WIDTH_PX, HEIGHT_PX = 1280, 800
ARGUMENTS = ["--enable-unsafe-swiftshader", "--disable-background-networking", "--no-first-run"]


def main() -> None:
    folder = Path(sys.argv[1])
    results = Path(sys.argv[2] if len(sys.argv) > 2 else "benchmarks/results")
    city = MadeUpCity(read_network(folder))
    with tempfile.TemporaryDirectory() as kept, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        report = city.write_report(Path(kept) / "report.html")
        with serving(city) as url:
            live = measure(browser, url)
        offline = measure(browser, report.as_uri())
        found = {
            "command": f"python benchmarks/page.py {folder.name}",
            "what": "seconds to the first drawing of a city and from one time to the next, in software rendering",
            **environment("cpu"),
            "load_average": round(os.getloadavg()[0], 1),
            "chromium": browser.version,
            "nodes": city.network.num_nodes,
            "roads": city.network.num_edges,
            "live": live,
            "report": {"file_mb": round(report.stat().st_size / 1e6, 1), "times": TIMES, **offline},
        }
        browser.close()
    path = results / "page.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in ("load_average", "live", "report")}, indent=1))


def read_network(folder: Path) -> RoadNetwork:
    """Without the loops and parallel roads that the files may have."""
    nodes, edges = (pl.read_parquet(folder / f"{name}.parquet") for name in ("nodes", "edges"))
    ids = nodes["node_id"].to_numpy()
    row = np.zeros(int(ids.max()) + 1, np.int64)
    row[ids] = np.arange(len(ids))
    ends = (row[edges[name].to_numpy()] for name in ("src", "dst"))
    kept, _ = clean_edges(Edges.of(next(ends), next(ends), edges["length_m"].to_numpy().astype(np.float64)))
    return RoadNetwork(ids, nodes["lon"].to_numpy(), nodes["lat"].to_numpy(), kept)


class MadeUpCity:
    """Busy in the middle, and rising; noise makes the values as hard to pack as real ones."""

    def __init__(self, network: RoadNetwork) -> None:
        self.network = network
        self.rng = np.random.default_rng(0)
        away = np.hypot(network.lon - network.lon.mean(), network.lat - network.lat.mean())
        self.level = 60 * np.exp(-3 * away / away.max()) * self.rng.lognormal(0, 0.5, network.num_nodes)
        self.sensors = self.rng.random(network.num_nodes) < 0.05
        empty = np.zeros((1, network.num_nodes), np.float32)
        stream = make_stream(
            empty, network, start_s=int(BEGIN.timestamp()), step_s=300, quantity="count", unit="vehicles"
        )
        self.container = network_container(
            network, stream, self.sensors, name="A large city", horizon=AHEAD, has_demand=False
        )

    def values(self, count: int) -> NDArray[np.float32]:
        course = 1 + 0.25 * np.sin(np.linspace(-1, 1.2, count))
        noise = self.rng.lognormal(0, 0.1, (count, len(self.level)))
        return rounded(course[:, None] * self.level * noise)

    def forecast(self) -> bytes:
        values = self.values(PAST + AHEAD)
        roads = rounded(road_flows(values, [self.network] * len(values), self.network))
        times = [_iso(300 * k) for k in range(-PAST, AHEAD)]
        past = np.where(self.sensors, values[:PAST], np.float32(np.nan))
        meta = {
            "issued_at": _iso(0),
            "past_times": times[:PAST],
            "times": times[PAST:],
            "stale": False,
            "closures": [],
            "version": decode(self.container)[0]["version"],
            "notices": [],
        }
        arrays = {"past": past, "forecast": values[PAST:], "road_past": roads[:PAST], "road_forecast": roads[PAST:]}
        return encode(meta, arrays)

    def write_report(self, path: Path) -> Path:
        values = rounded(self.values(TIMES), DROPPED_BITS)
        baseline = rounded(self.values(TIMES), DROPPED_BITS)
        observed = np.where(self.sensors, values, np.float32(np.nan))
        roads = rounded(road_flows(values, [self.network] * len(values), self.network), DROPPED_BITS)
        times = [_iso(3600 * k) for k in range(TIMES)]
        unit = Unit("vehicles", 300)
        flow = Colours("flow", group="day")
        lines = [HistoryLine("forecast", "forecast", values), HistoryLine("none", "other", baseline)]
        layers = (
            Layer("forecast", "Forecast", Values(roads, unit, flow), Values(values, unit, flow), times),
            Layer("truth", "Observed", None, Values(observed, unit, flow), times),
        )
        history = History("History and forecast", unit, tuple(lines), times)
        panel = Panel("trust", "How accurate is it?", ())
        return write_map_page(path, MapPage("report", self.container, layers, (panel,), Place((), history)))


def _iso(seconds: int) -> str:
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def serving(city: MadeUpCity) -> Iterator[str]:
    """The page with the two answers that it draws from."""
    answers = {"/v1/network.bin": city.container, "/v1/forecast.bin": city.forecast()}

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(FORM.parent))

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path not in answers:
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answers[self.path])))
            self.end_headers()
            self.wfile.write(answers[self.path])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


def measure(browser: Browser, url: str) -> dict[str, Any]:
    first, steps = [], []
    for _ in range(OPENED):
        page = browser.new_page(viewport={"width": WIDTH_PX, "height": HEIGHT_PX})
        began = time.perf_counter()
        page.goto(url, wait_until="commit")
        page.locator("body[data-drawn]").wait_for(timeout=120_000)
        first.append(time.perf_counter() - began)
        steps += [_step(page) for _ in range(STEPS)]
        page.close()
    return {"first_draw_s": _spread(first), "step_s": _spread(steps)}


def _step(page: Page) -> float:
    """From a key on the slider until the next time is drawn, as the page itself measures it."""
    taken: float = page.evaluate(
        """() => new Promise((done) => {
            const slider = document.querySelector("input[type=range]");
            const begin = performance.now();
            const drawn = () => requestAnimationFrame(() => done(performance.now() - begin));
            new MutationObserver((_, watch) => { watch.disconnect(); drawn(); })
                .observe(document.body, { attributes: true, attributeFilter: ["data-drawn"] });
            slider.value = String((Number(slider.value) + 1) % (Number(slider.max) + 1));
            slider.dispatchEvent(new Event("input"));
        })"""
    )
    return taken / 1000


def _spread(seconds: list[float]) -> dict[str, float]:
    return {
        "best": round(min(seconds), 3),
        "median": round(statistics.median(seconds), 3),
        "worst": round(max(seconds), 3),
        "count": len(seconds),
    }


if __name__ == "__main__":
    main()
