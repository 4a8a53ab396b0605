"""`frigate serve` as processes of their own, which tests kill and start again.

One process imports everything and forks the others: a start then takes a fraction of a second.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from frigate.cli.main import main
from frigate.serve import lease
from frigate.serve.client import ServiceClient, ServiceGoneError
from frigate.training.checkpoint import load_run

OLD_S = 6.0  # after which a service takes the clock from a frozen one: less than otherwise, so that tests wait less
PATIENCE_S = 600.0  # only for what never happens: far more than it takes, on any machine


@dataclass(frozen=True)
class ServiceProcess:
    """A service under an address of its own."""

    pid: int
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The one that the first start of the store printed; "" if it had some already."""
        printed = re.findall(r"frg_\w{8}_[\w-]+", self.log.read_text() if self.log.exists() else "")
        return printed[-1] if printed else ""

    def client(self) -> ServiceClient:
        return ServiceClient(self.url, self.token)

    def kill(self) -> None:
        """As a power cut would."""
        os.kill(self.pid, signal.SIGKILL)
        until(self.is_gone, "the process is gone")

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        until(self.is_gone, "the process has ended")

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        os.kill(self.pid, signal.SIGINT)
        until(self.is_gone, "the process has ended")

    def is_gone(self) -> bool:
        return not Path(f"/proc/{self.pid}").exists()

    def metric(self, name: str) -> float:
        client = self.client()
        try:
            lines = client.text("/metrics").splitlines()
        finally:
            client.close()
        return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")))


class Nursery:
    """Starts services. Close it, and all of them are gone.

    Parameters
    ----------
    run
        What they serve.
    clock
        The file of a `tests.support.wall_clock.WallClock` that they ask for the time, if any.
    """

    def __init__(self, run: Path, *, clock: Path | None = None) -> None:
        code = "from tests.support.service_process import fork_services; fork_services()"
        if clock is not None:
            code = f"from tests.support.wall_clock import ask; ask({str(clock)!r}); {code}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._run = run
        self._services: list[ServiceProcess] = []

    def serve(self, log: Path, *words: str, port: int | None = None) -> ServiceProcess:
        """A service that answers."""
        service = self.start(log, *words, port=port)
        until(lambda: answers(service), f"it answers: {log}")
        return service

    def start(self, log: Path, *words: str, port: int | None = None) -> ServiceProcess:
        return self.run(log, "serve", str(self._run), "--device", "cpu", "--rate", "100000", *words, port=port)

    def run(self, log: Path, *words: str, port: int | None = None) -> ServiceProcess:
        """A command that serves."""
        port = port or free_port()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"words": [*words, "--port", str(port)], "log": str(log)}) + "\n")
        self._process.stdin.flush()
        service = ServiceProcess(int(self._process.stdout.readline()), port, log)
        self._services.append(service)
        return service

    def close(self) -> None:
        for service in self._services:
            if not service.is_gone():
                service.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()


def fork_services() -> None:
    """For each line of standard input, run the command in a child and print its id."""
    for module in ("frigate.serve.server", "frigate.serve.store.postgres", "polars"):
        import_module(module)
    load_run(sys.argv[1])  # for what it imports

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(log, stream)
            lease.OLD_S = OLD_S
            os._exit(main(asked["words"]))
        print(child, flush=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(service: ServiceProcess) -> bool:
    assert not service.is_gone(), service.log.read_text()
    client = service.client()
    try:
        return bool(client.get("/healthz"))
    except ServiceGoneError:
        return False
    finally:
        client.close()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.01)
