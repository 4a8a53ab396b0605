"""A stand-in for `frigate serve` that answers the page from a few arrays: quick to start, and of any size."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import cached_property
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import frigate.serve
from frigate.data.network import Edges, RoadNetwork
from frigate.data.stream import make_stream
from frigate.serve.map_data import network_container, road_flows
from frigate.serve.wire import decode, encode

STATIC = Path(frigate.serve.__file__).parent / "static"
STEPS, STEP_S = 12, 300
ISSUED = datetime(2024, 3, 4, 16, 0, tzinfo=UTC)


def grid_city(side: int, *, two_way: float = 1.0, seed: int = 0, metres: float = 120.0) -> RoadNetwork:
    """Streets with names that cross, not quite at right angles; a share of them has both directions."""
    rng = np.random.default_rng(seed)
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(side), np.arange(side)))
    degree = metres / 111_195
    lon = 6.1 + (x + rng.normal(0, 0.15, side**2)) * degree / np.cos(np.radians(49.6))
    lat = 49.6 + (y + rng.normal(0, 0.15, side**2)) * degree
    node = np.arange(side**2).reshape(side, side)
    pairs = np.concatenate(
        [np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], 1), np.stack([node[:-1].ravel(), node[1:].ravel()], 1)]
    )
    names = [f"Row {a}" for a in range(side) for _ in range(side - 1)]
    names += [f"Column {b}" for _ in range(side - 1) for b in range(side)]
    back = np.flatnonzero(rng.random(len(pairs)) < two_way)
    ends, name = np.concatenate([pairs, pairs[back, ::-1]]), np.array([*names, *(names[i] for i in back)])
    return RoadNetwork(np.arange(side**2) + 1000, lon, lat, Edges.of(*ends.T, np.full(len(ends), metres), name=name))


class Town:
    """A network with made-up values: busy in the middle, and rising."""

    def __init__(self, network: RoadNetwork, *, name: str = "Gridford", seed: int = 0) -> None:
        self.network = network
        rng = np.random.default_rng(seed)
        away = np.hypot(network.lon - network.lon.mean(), (network.lat - network.lat.mean()) * 1.5)
        self.level = 60 * np.exp(-3 * away / away.max()) * rng.lognormal(0, 0.5, network.num_nodes)
        self.sensors = rng.random(network.num_nodes) < 0.3
        self.closures: list[dict[str, Any]] = []
        self.issued = ISSUED
        values = np.zeros((1, network.num_nodes), np.float32)
        stream = make_stream(
            values,
            network,
            start_s=int(ISSUED.timestamp()),
            step_s=STEP_S,
            timezone="Europe/Luxembourg",
            unit="vehicles",
        )
        self.container = network_container(network, stream, self.sensors, name=name, horizon=STEPS, has_demand=True)

    @cached_property
    def version(self) -> str:
        return str(decode(self.container)[0]["version"])

    def values(self) -> NDArray[np.float32]:
        """[24,N] an hour back and an hour ahead."""
        course = 1 + 0.25 * np.sin(np.linspace(-1, 1.2, 2 * STEPS) + self.issued.minute / 30)
        return (course[:, None] * self.level).astype(np.float32)

    def times(self) -> list[str]:
        return [_iso(self.issued + timedelta(seconds=STEP_S * k)) for k in range(-STEPS, STEPS)]

    def forecast(self) -> bytes:
        values, times = self.values(), self.times()
        roads = road_flows(values, self.network)
        for closure in self.closures:
            roads[STEPS:, self.road(closure["source"], closure["target"])] = 0
        past = np.where(self.sensors, values[:STEPS], np.nan).astype(np.float32)
        meta = {
            "issued_at": _iso(self.issued), "past_times": times[:STEPS], "times": times[STEPS:], "stale": False,
            "version": self.version, "closures": self.closures, "notices": ["2 sensors are silent."],
        }  # fmt: skip
        arrays = {
            "past": past, "forecast": values[STEPS:], "lower": values[STEPS:] * np.float32(0.8),
            "upper": values[STEPS:] * np.float32(1.25), "road_past": roads[:STEPS], "road_forecast": roads[STEPS:],
            "absent": np.zeros(len(self.level), np.uint8),
        }  # fmt: skip
        return encode(meta, arrays)

    def what_if(self, close: list[list[Any]]) -> bytes:
        """Traffic of the closed roads goes to the nodes around."""
        before = self.values()[STEPS:]
        road = [self.road(*ends) for ends in close]
        at = np.unique([self.network.senders[road], self.network.receivers[road]])
        near = np.hypot(self.network.lon - self.network.lon[at].mean(), self.network.lat - self.network.lat[at].mean())
        factor = 1 + 0.8 * np.exp(-near / np.quantile(near, 0.1))
        factor[at] = 0.3
        after = (before * factor).astype(np.float32)
        roads = road_flows(before, self.network), road_flows(after, self.network)
        roads[1][:, road] = 0
        change = (after - before).mean(0)
        largest = [
            {
                "node": int(self.network.node_ids[n]),
                "street": "Row 1",
                "before": float(before[:, n].mean()),
                "after": float(after[:, n].mean()),
            }
            for n in np.argsort(-np.abs(change))[:10]
        ]
        meta = {"issued_at": _iso(self.issued), "times": self.times()[STEPS:], "notices": [], "largest": largest}
        return encode(meta, {"before": before, "after": after, "road_before": roads[0], "road_after": roads[1]})

    def road(self, source: Any, target: Any) -> int:
        ids = self.network.node_ids
        return int(
            np.flatnonzero((ids[self.network.senders] == int(source)) & (ids[self.network.receivers] == int(target)))[0]
        )

    def node(self, node_id: str) -> dict[str, Any]:
        n = int(np.flatnonzero(self.network.node_ids == int(node_id))[0])
        values, times = self.values()[:, n].tolist(), self.times()
        rows = [{"time": time_, "value": round(value, 2)} for time_, value in zip(times, values, strict=True)]
        nearest = np.flatnonzero(self.sensors)[:3]
        return {
            "node": int(node_id), "street": "", "lon": self.network.lon[n], "lat": self.network.lat[n],
            "sensor": bool(self.sensors[n]), "history": rows[:STEPS] if self.sensors[n] else [],
            "forecast": [row | {"lower": 0.8 * row["value"], "upper": 1.25 * row["value"]} for row in rows[STEPS:]],
            "issued": rows[:STEPS],
            "leans_on": [{"node": int(self.network.node_ids[i]), "distance_m": 400.0 + i} for i in nearest],
        }  # fmt: skip

    def trips(self) -> dict[str, Any]:
        some = np.linspace(0, len(self.level) - 1, 8).astype(int)
        ends = [
            {
                "node": int(self.network.node_ids[i]),
                "lon": self.network.lon[i],
                "lat": self.network.lat[i],
                "share": 0.3 / (k + 1),
            }
            for k, i in enumerate(some)
        ]
        return {"vehicles_per_hour": 312.4, "from": ends[:4], "to": ends[4:]}

    def accuracy(self) -> dict[str, Any]:
        hours = [_iso(self.issued + timedelta(hours=k)) for k in range(-6, 1)]
        return {
            "overall": {"mae": 2.31, "count": 51234, "mae_persistence": 3.02},
            "by_hour": [{"time": hour, "mae": 2 + 0.1 * k, "count": 900} for k, hour in enumerate(hours)],
            "by_step": [{"step": k, "mae": 2 + 0.05 * k, "count": 900} for k in range(1, STEPS + 1)],
            "worst": [{"node": int(i), "mae": 9.5, "count": 100} for i in self.network.node_ids[:5]],
        }

    def sensor_states(self) -> dict[str, Any]:
        ids = self.network.node_ids[self.sensors].tolist()
        rows = [
            {
                "node": int(i),
                "last_time": _iso(self.issued),
                "last_value": 12.0,
                "state": "ok",
                "readings_last_day": 288,
            }
            for i in ids
        ]
        for row, state in zip(rows, ("stuck", "silent", "late"), strict=False):
            row["state"] = state
        return {"sensors": rows, "counts": {}}


def _iso(time_: datetime) -> str:
    return time_.strftime("%Y-%m-%dT%H:%M:%SZ")


class MapServer:
    """Serves the page and a town on loopback."""

    def __init__(self, town: Town, *, port: int = 0, token: str = "") -> None:
        self.town = town
        self.heard = threading.Condition()
        self.events: list[str] = []
        self.stopped = False
        server = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(STATIC))

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                if not self.path.startswith("/v1/"):
                    super().do_GET()
                elif token and self.headers.get("Authorization") != f"Bearer {token}":
                    self.answer({"error": "a token is needed", "code": "no_token"}, HTTPStatus.UNAUTHORIZED)
                else:
                    self.get(self.path.removeprefix("/v1/"))

            def get(self, path: str) -> None:
                town = server.town
                match path.split("/"):
                    case ["network.bin"]:
                        self.answer(town.container)
                    case ["forecast.bin"]:
                        self.answer(town.forecast())
                    case ["nodes", node_id]:
                        self.answer(town.node(node_id))
                    case ["roads", _, _, "trips"]:
                        self.answer(town.trips())
                    case ["closures"]:
                        self.answer({"closures": town.closures})
                    case ["accuracy"]:
                        self.answer(town.accuracy())
                    case ["sensors"]:
                        self.answer(town.sensor_states())
                    case ["events"]:
                        self.stream()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/v1/what-if":
                    self.answer(server.town.what_if(body["close"]))
                else:
                    made = body | {"id": len(server.town.closures) + 1, "begin": _iso(ISSUED), "state": "active"}
                    server.town.closures.append(made)
                    self.answer({"closures": [made]}, HTTPStatus.CREATED)
                    server.publish("closures")

            def do_DELETE(self) -> None:
                ended = int(self.path.rpartition("/")[2])
                server.town.closures = [each for each in server.town.closures if each["id"] != ended]
                self.answer({})
                server.publish("closures")

            def answer(self, body: bytes | dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self) -> None:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                seen = len(server.events)
                self.wfile.write(b": hello\n\n")
                while not server.stopped:
                    with server.heard:
                        server.heard.wait(0.2)
                    for event in server.events[seen:]:
                        self.wfile.write(f"event: {event}\ndata: {{}}\n\n".encode())
                    seen = len(server.events)
                    self.wfile.flush()

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """A browser that goes away is no error."""

        self.http = Server(("127.0.0.1", port), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def port(self) -> int:
        return int(self.http.server_address[1])

    def publish(self, event: str) -> None:
        with self.heard:
            self.events.append(event)
            self.heard.notify_all()

    def stop(self) -> None:
        self.stopped = True
        self.http.shutdown()
        self.http.server_close()
        time.sleep(0.3)  # the streams end

    def __enter__(self) -> MapServer:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.stopped:
            self.stop()
