"""A small town to serve, a time that tests set, and readings of the town as a sensor would send them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

import frigate as fg
from frigate.city.city import City
from frigate.config import change, preset
from frigate.serve.app import make_app
from frigate.serve.auth import make_token
from frigate.serve.city import ServedCity
from frigate.serve.clock import ForecastClock
from frigate.serve.engine import Engine
from frigate.serve.limits import Limits
from frigate.serve.service import Service
from frigate.serve.store import Reading, Store
from frigate.training.checkpoint import load_run
from frigate.training.run import Run

STEP_S, PAST, HORIZON = 900, 4, 3


@dataclass
class FakeTime:
    """Seconds since 1970 UTC, which stand still until a test moves them."""

    now_s: float

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class Town:
    """A trained run and the city that it was trained on."""

    folder: Path  # with `city` and `run`
    run: Run
    city: City

    @property
    def served(self) -> ServedCity:
        return ServedCity.of(self.run, self.city)

    def reading_rows(self, first: int, stop: int) -> list[Reading]:
        """The recorded readings of some snapshots, counted from the start of the record."""
        stream = self.city.stream
        names = self.served.node_names
        return [
            Reading(names[n], int(stream.times_s[s]) * 1_000_000, float(stream.values[s, n]))
            for s, n in zip(*np.nonzero(stream.observed[first:stop]), strict=True)
            for s in [s + first]
        ]


def train_town(folder: Path) -> Town:
    """In FRIGATE_TEST_TOWN, if set, the town is kept for processes that ask again: those of `make mutants`."""
    kept = Path(os.environ["FRIGATE_TEST_TOWN"]) if "FRIGATE_TEST_TOWN" in os.environ else None
    if kept is not None and kept.exists():
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        return Town(folder, load_run(folder / "run"), fg.read_city(folder / "city"))
    fg.write_city(fg.demo_city(intersections=100, days=2, step_s=STEP_S, closures=0), folder / "city")
    city = fg.read_city(folder / "city")
    sizes: dict[str, dict[str, Any]] = {
        "task": {"past": PAST, "horizon": HORIZON},
        "model": {"width": 8, "layers": 2, "hidden": 8},
        "train": {"epochs": 1, "steps_per_epoch": 2, "batch_size": 2, "masks": 2, "validation_windows": 2},
    }
    run = fg.train(city, seen=0.25, settings=change(preset("default"), sizes), folder=folder / "run", device="cpu")
    if kept is not None:
        shutil.copytree(folder, kept)
    return Town(folder, run, city)


def start_clock(town: Town, store: Store, time: FakeTime, **options: Any) -> ForecastClock:
    """A new process, as it were."""
    return ForecastClock(Engine(town.run, town.served, store, device="cpu"), now=time, grace_s=20, **options)


@dataclass(frozen=True)
class Served:
    """A service with a client, whose clock turns when a test says so."""

    town: Town
    service: Service
    time: FakeTime
    client: TestClient  # with a token that may do everything
    stranger: TestClient  # without any

    def step(self, snapshot: int, *, readings: bool = True) -> None:
        """The readings of a snapshot of the record come in, and its forecast is made."""
        if readings:
            self.service.store.add_readings(self.town.reading_rows(snapshot, snapshot + 1), 0)
        self.time.now_s = int(self.town.city.stream.times_s[snapshot]) + STEP_S + 20
        assert self.service.clock.turn()

    def roads(self) -> list[tuple[str, str]]:
        return list(self.service.city.road_of)


@contextmanager
def serve_town(town: Town, store: Store, *, limits: Limits | None = None, first: int | None = 36) -> Iterator[Served]:
    """Without threads but that of the readings. Its first forecast is that of snapshot `first` of the record."""
    time = FakeTime(float(town.city.stream.times_s[first or 0]))
    service = Service(town.run, town.city, store, now=time, device="cpu")
    service.ingest.start()
    app = make_app(service, limits)
    allowed = {"Authorization": f"Bearer {make_token(store, 'a test', 'admin', 0)}"}
    client, stranger = (
        TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False, headers=headers)
        for headers in (allowed, {})
    )
    served = Served(town, service, time, client, stranger)
    if first is not None:
        served.step(first)
    try:
        yield served
    finally:
        client.close()
        stranger.close()
        service.ingest.stop()
