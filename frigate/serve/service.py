"""A city in service: the engine, the clock in its thread, the way in for readings, and what requests share."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

import torch

from frigate.data.city import City
from frigate.errors import FrigateError
from frigate.serve.auth import Gate
from frigate.serve.city import ServedCity
from frigate.serve.clock import Clock
from frigate.serve.engine import Engine
from frigate.serve.ingest import Ingest, Judge
from frigate.serve.latest import Latest
from frigate.serve.map_data import network_container
from frigate.serve.replay_time import ReplayTime
from frigate.serve.store import Store
from frigate.serve.wire import decode
from frigate.training.run import Run

LOG = logging.getLogger("frigate.serve")
LONGEST_WAIT_S = 5.0  # the machine's clock may be set meanwhile
ANY_TIME_S = 1e10
REPLAY_WAIT_S = 0.25  # the time may have been told to another process


class Service:
    """A trained run at work on a store.

    Parameters
    ----------
    run, city
        What forecasts, and for which roads.
    store
        Of this city, or new. It is closed by whoever opened it.
    now
        Seconds since 1970 UTC.
    replay
        Go by the time that `frigate replay` tells, without a grace time, in place of `now`.
    grace_s, keep_days
        As in `frigate.serve.clock.Clock`.
    device
        "cpu" or "cuda". Default: cuda if available.
    basemap, basemap_attribution
        Tiles below the roads, as `https://tiles.example/{z}/{x}/{y}.png`, and whose they are.
    """

    def __init__(
        self,
        run: Run,
        city: City,
        store: Store,
        *,
        now: Callable[[], float] = time.time,
        replay: bool = False,
        grace_s: float = 20.0,
        keep_days: float | None = 30.0,
        device: str | None = None,
        basemap: str = "",
        basemap_attribution: str = "",
    ) -> None:
        self.city = ServedCity.of(run, city)
        store.claim(f"{self.city.about}, replayed" if replay else self.city.about)
        self.replay = ReplayTime(store, self.city.steps.start_s) if replay else None
        if self.replay is not None:
            now, grace_s = self.replay, 0.0
        self.store, self.now, self.basemap = store, now, basemap
        self.engine = Engine(run, self.city, store, device=device)
        self.clock = Clock(self.engine, now=now, grace_s=grace_s, keep_days=keep_days)
        judge = Judge(self.city, now, keep_days=keep_days)
        if replay:  # readings come before the time of which they are, and may be of any year
            judge = Judge(self.city, now, future_s=ANY_TIME_S)
        self.ingest = Ingest(store, judge)
        self.latest = Latest(self.engine)
        self.gate = Gate(store)
        about_tiles = {"basemap": basemap, "basemap_attribution": basemap_attribution} if basemap else {}
        self.network_bytes = network_container(
            self.city.network,
            self.city.source.stream,
            self.city.sensors,
            name=self.city.name,
            horizon=self.city.horizon,
            has_demand=self.engine.has_demand,
            detectors=city.detectors,
            **about_tiles,
        )
        self.version = str(decode(self.network_bytes)[0]["version"])
        self._ended, self._awake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Let the clock turn and readings come in."""
        self._ended.clear()
        self.ingest.start()
        self._thread = threading.Thread(target=self._turn, name="clock", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Store what waits, finish the forecast that is under way, and hand over the clock."""
        self._ended.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.ingest.stop()
        self.store.release_clock()

    def is_stale(self, issued_s: int) -> bool:
        """Whether a forecast should have had a successor by now."""
        return self.now() - issued_s > 2 * self.city.step_s + self.clock.grace_s

    def set_replay_time(self, time_s: float) -> None:
        """Of a replay: it is this time now."""
        assert self.replay is not None
        self.replay.set(time_s)
        self._awake.set()

    def _turn(self) -> None:
        # A core stays free for requests: without it the slowest hundredth waits three times as long while a forecast is
        # made, and the forecast is no faster.
        torch.set_num_threads(min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) - 1)))
        while not self._ended.is_set():
            self._awake.clear()
            try:
                if self.replay is not None:
                    self.replay.refresh()
                if self.replay is None or self.replay.known:
                    self.clock.turn()
            except Exception as error:  # a forecast that fails must not be the last
                known, self.clock.state.error = self.clock.state.error, f"{type(error).__name__}: {error}"
                if known != self.clock.state.error:  # once, not at every try
                    own = isinstance(error, FrigateError)
                    LOG.error("the clock could not turn", extra={"error": str(error)}, exc_info=None if own else error)
            longest_s = LONGEST_WAIT_S if self.replay is None else REPLAY_WAIT_S
            self._awake.wait(min(self.clock.wait_s(), longest_s))
