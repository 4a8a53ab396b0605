"""The service for one city: the engine, the clock in its thread, the ingest, and what requests share."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from frigate.calendar import DAY_S
from frigate.city.city import City
from frigate.errors import FrigateError
from frigate.serve.auth import TokenCheck
from frigate.serve.city import ServedCity
from frigate.serve.clock import ForecastClock
from frigate.serve.engine import Engine
from frigate.serve.ingest import Ingest, Judge
from frigate.serve.latest import Latest
from frigate.serve.lease import BEAT_S
from frigate.serve.memory import give_back_memory
from frigate.serve.quarantine import Quarantine
from frigate.serve.replay_time import ReplayTime
from frigate.serve.retention import Retention
from frigate.serve.scoring import drift
from frigate.serve.steady_time import SteadyTime, since_boot_s
from frigate.serve.store import Store
from frigate.training.promise import Drift
from frigate.training.run import Run

LOG = logging.getLogger("frigate.serve")
LONGEST_WAIT_S = 5.0  # the system's clock may jump meanwhile
ANY_TIME_S = 1e10
DRIFT_S = DAY_S  # before the latest forecast: a whole day, so that no hour counts more than another
GIVE_BACK_S = 60.0  # between hints to the system that memory is free again
PROBE_S = 5.0  # between looks at the store
REPLAY_WAIT_S = 0.25  # another process may have been told the time


class Service:
    """Serves a trained run from a store.

    Parameters
    ----------
    run, city
        The trained model and the city to forecast.
    store
        A store of this city, or a new one. The caller closes it.
    now
        Returns the time in seconds since 1970 UTC. Default: the system's, without its jumps.
    replay
        Use the time that `frigate replay` sets instead of `now`, without a grace time.
    grace_s
        As in `frigate.serve.clock.ForecastClock`.
    keep_days, audit_days
        As in `frigate.serve.retention.Retention`.
    device
        "cpu" or "cuda". Default: cuda if available.
    basemap, basemap_attribution
        URL of map tiles, such as `https://tiles.example/{z}/{x}/{y}.png`, and their attribution.
    """

    def __init__(
        self,
        run: Run,
        city: City,
        store: Store,
        *,
        now: Callable[[], float] | None = None,
        replay: bool = False,
        grace_s: float = 20.0,
        keep_days: float | None = 30.0,
        audit_days: float | None = 365.0,
        device: str | None = None,
        basemap: str = "",
        basemap_attribution: str = "",
    ) -> None:
        tiles = {"basemap": basemap, "basemap_attribution": basemap_attribution} if basemap else {}
        self.city = ServedCity.of(run, city, tiles)
        store.claim(f"{self.city.about}, replayed" if replay else self.city.about)
        self.replay = ReplayTime(store, self.city.steps.start_s) if replay else None
        steady = since_boot_s
        if self.replay is not None:
            now = steady = self.replay
            grace_s = 0.0
        now = SteadyTime() if now is None else now
        self.store = store
        self.now = now
        self.basemap = basemap
        self.engine = Engine(run, self.city, store, device=device)
        retention = Retention(store, now=now, keep_days=keep_days, audit_days=audit_days, steady=steady)
        self.clock = ForecastClock(self.engine, now=now, grace_s=grace_s, retention=retention)
        self.quarantine = Quarantine(store)
        judge = Judge(self.city, now, keep_days=keep_days, released=self.quarantine.released)
        if replay:  # a snapshot's readings arrive before the time is set to its end, and may be from any year
            judge = replace(judge, keep_days=None, future_s=ANY_TIME_S)
        self.ingest = Ingest(store, judge)
        self.latest = Latest(self.engine)
        self.gate = TokenCheck(store)
        self.store_fault = ""  # why nothing can be written to the store
        self._drift: tuple[int | None, Drift | None] | None = None  # and the forecast after which it was found
        self._comparing = threading.Lock()
        self._ended = threading.Event()
        self._awake = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the clock and the ingest."""
        self._ended.clear()
        self.ingest.start()
        self._threads = [
            threading.Thread(target=call, name=name, daemon=True)
            for name, call in (("clock", self._turn), ("heartbeat", self._beat))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the forecast in progress, store waiting readings, and release the clock."""
        self._ended.set()
        self._awake.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self.ingest.stop()
        self.clock.give_back(aside_s=0)  # it may be started again

    def is_stale(self, issued_s: int) -> bool:
        """Whether a forecast issued then should have been superseded by now."""
        return self.now() - issued_s > 2 * self.city.step_s + self.clock.grace_s

    def drift(self) -> Drift | None:
        """Whether forecasts of the last day were as promised at sensors; None if that is not known."""
        issued_s = self.store.state()[0]
        with self._comparing:
            if self._drift is None or self._drift[0] != issued_s:
                promise = None if self.engine.run.intervals is None else self.engine.run.intervals.promise
                since_s = (issued_s or 0) - DRIFT_S
                found = drift(self.store, self.city, promise, since_s=since_s)
                if found is not None and found.told and not (self._drift and self._drift[1] and self._drift[1].told):
                    LOG.warning("forecasts are no longer as promised", extra={"told": " ".join(found.told)})
                self._drift = issued_s, found
            return self._drift[1]

    @property
    def known_drift(self) -> Drift | None:
        """What `drift` said last, without a look into the store."""
        return None if self._drift is None else self._drift[1]

    def probe_store(self) -> None:
        """Find out whether the store can be written, and what other processes have put into quarantine."""
        try:
            self.store.check_writable()
            self.quarantine.refresh()
            self.store_fault = ""
        except FrigateError as error:
            if not self.store_fault:
                LOG.warning("the store cannot be written", extra={"error": str(error)})
            self.store_fault = str(error)

    def set_replay_time(self, time_s: float) -> None:
        """Set the time of a replay."""
        assert self.replay is not None
        self.replay.set(time_s)
        self._awake.set()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                self.clock.beat()
            except FrigateError:
                LOG.debug("the clock's lease cannot be kept")  # whatever writes to the store logs the reason

    def _compare(self) -> None:
        """Keep what is known of drift up to date, for the metrics of every process."""
        try:
            self.drift()
        except Exception as error:  # the clock goes on
            LOG.debug("drift cannot be found", extra={"error": repr(error)})

    def _turn(self) -> None:
        # Leave a core free for requests. Without it, the slowest 1 % of requests take three times as long during a
        # forecast, and the forecast is no faster.
        torch.set_num_threads(min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) - 1)))
        gave_back = probed = time.monotonic()
        while not self._ended.is_set():
            self._awake.clear()
            if time.monotonic() - gave_back >= GIVE_BACK_S:  # what large answers took; every process gives them
                gave_back = time.monotonic()
                give_back_memory()
            if time.monotonic() - probed >= PROBE_S:
                probed = time.monotonic()
                self.probe_store()
            try:
                if self.replay is not None:
                    self.replay.refresh()
                if self.replay is None or self.replay.known:
                    self.clock.turn()
            except Exception as error:  # a failed forecast must not stop the clock
                last_error = self.clock.state.error
                self.clock.state.error = f"{type(error).__name__}: {error}"
                if last_error != self.clock.state.error:  # log it once, not at every attempt
                    own = isinstance(error, FrigateError)
                    LOG.error("forecast failed", extra={"error": str(error)}, exc_info=None if own else error)
            self._compare()
            longest_s = LONGEST_WAIT_S if self.replay is None else REPLAY_WAIT_S
            self._awake.wait(min(self.clock.wait_s(), longest_s))
