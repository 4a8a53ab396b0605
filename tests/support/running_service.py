"""A service that runs by itself, behind a socket of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from frigate.serve.auth import make_token
from frigate.serve.limits import Limits
from frigate.serve.server import Server
from frigate.serve.service import Service
from frigate.serve.store import Store
from tests.support.service import STEP_S, FakeTime, Town

FIRST = 36  # snapshot of the record whose forecast is the first: that of 9 in the morning
WAIT_S = 600  # for what comes at once; a test that waits so long has failed


class Running:
    """A service that runs by itself; its time stands still until a test moves it."""

    def __init__(
        self,
        town: Town,
        store: Store,
        *,
        limits: Limits | None = None,
        time: FakeTime | None = None,
        path: Path | None = None,
    ) -> None:
        store.add_readings(town.reading_rows(FIRST, FIRST + 1), 0)
        self.token = make_token(store, "a test", "admin", 0)
        self.time = time or FakeTime(float(town.city.stream.times_s[FIRST]) + STEP_S + 20)
        self.service = Service(town.run, town.city, store, now=self.time, device="cpu")
        self.server = Server(self.service, path=path, limits=limits)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        wait_for(lambda: self.server.started)
        self.port = 0 if path else int(self.server.url.strip("/").rpartition(":")[2])
        self.authorization = f"Authorization: Bearer {self.token}\r\n"
        headers = {"Authorization": f"Bearer {self.token}"}
        transport = httpx2.HTTPTransport(uds=str(path)) if path else None
        url = "http://localhost" if path else self.server.url
        self.client = httpx2.Client(base_url=url, timeout=WAIT_S, headers=headers, transport=transport)
        wait_for(lambda: self.client.get("/readyz").status_code == 200)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self.client.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def raw(self, words: str) -> int:
        """The status of the answer to these words, which need not be a whole request."""
        with self.connect() as connection:
            connection.sendall(words.encode())
            head = connection.recv(4096)
        assert head.startswith(b"HTTP/1.1 "), head
        return int(head.split()[1])


def wait_for(there: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(WAIT_S * 50):
        if there():
            return
        pause.wait(0.02)
    raise AssertionError("waited in vain")


@contextmanager
def running(town: Town, store: Store, **options: object) -> Iterator[Running]:
    started = Running(town, store, **options)  # type: ignore[arg-type]
    try:
        yield started
    finally:
        started.stop()
