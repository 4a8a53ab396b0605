"""The real service behind a socket, of a small town, at a time that tests set."""

from __future__ import annotations

import threading
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from frigate.serve.auth import link, make_token
from frigate.serve.server import Server
from frigate.serve.service import Service
from frigate.serve.store import Store, open_store
from tests.support.service import STEP_S, FakeTime, Town

FIRST = 60  # snapshot of the record that is the last complete one: an afternoon
SCORED = 4  # forecasts before it


class LiveService:
    """Starts with a few forecasts made and scored; `step` makes the next."""

    def __init__(self, town: Town, folder: Path, *, basemap: str = "") -> None:
        self.town = town
        self.snapshot = FIRST - SCORED
        self.store: Store = open_store(str(folder / "store.db"))
        self.time = FakeTime(0.0)
        self.service = Service(
            town.run,
            town.city,
            self.store,
            now=self.time,
            device="cpu",
            basemap=basemap,
            basemap_attribution="A mapper",
        )
        self.token = make_token(self.store, "a test", "admin", 0)
        self._read(FIRST - SCORED - 8, FIRST - SCORED)
        for _ in range(SCORED + 1):
            self.step()
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def link(self) -> str:
        """Opens the map with a token that may do everything."""
        return link(self.url, self.token)

    @property
    def issued_text(self) -> str:
        """When the latest forecast was made, as the page says it."""
        issued_s = self.store.state()[0]
        assert issued_s is not None
        local = datetime.fromtimestamp(issued_s, ZoneInfo(self.town.city.stream.timezone))
        return f"{local:%a} {local.day} {local:%b, %H:%M}"

    def step(self, *, readings: bool = True) -> None:
        """The readings of the next snapshot come in, and a forecast is made."""
        if readings:
            self._read(self.snapshot, self.snapshot + 1)
        self.time.now_s = int(self.town.city.stream.times_s[self.snapshot]) + STEP_S + 20
        self.snapshot += 1
        self.service.clock.turn()

    def _read(self, first: int, stop: int) -> None:
        city = self.service.city
        rows = self.town.reading_rows(first, stop)
        self.store.add_readings([row for row in rows if city.sensors[city.row_of[row.node]]], 0)

    def start(self) -> None:
        """On the port that it had before, if any."""
        self.server = Server(self.service, host="127.0.0.1", port=self.port)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive(), "the service did not start"
            self.thread.join(0.01)
        self.port = int(self.server.url.rstrip("/").rpartition(":")[2])

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    def close(self) -> None:
        self.stop()
        self.store.close()
