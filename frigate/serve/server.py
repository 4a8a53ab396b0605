"""Runs the app under uvicorn, with a graceful shutdown."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

import uvicorn

from frigate.errors import ServiceError
from frigate.serve.app import make_app
from frigate.serve.connections import Connection, most_connections
from frigate.serve.limits import Limits
from frigate.serve.mqtt import Broker
from frigate.serve.proxies import Proxies
from frigate.serve.service import Service

BACKLOG = 2048
SWITCH_S = 0.0005  # a tenth of Python's default
SHUTDOWN_S = 10  # for requests in progress when the service is told to stop


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off where the protocol is named; it delays answers by 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host.strip("[]"), port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise ServiceError(f"--host {host} --port {port}: {error.strerror or error}. Choose another") from None
    return found


def listen_at(path: Path) -> socket.socket:
    """A listening Unix socket, for the user of this process and the group of its file. Replaces one left by a crash."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o117)  # before it can be connected to, not after
    try:
        if path.is_socket() and found.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()
        found.close()
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.bind(str(path))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise ServiceError(f"--socket {path}: {error.strerror or error}. Choose another") from None
    finally:
        os.umask(umask)
    return found


class Server(uvicorn.Server):
    """Serves until SIGTERM or SIGINT. Event streams never end by themselves, so shutdown ends them first.

    Parameters
    ----------
    service
        Not started yet.
    host, port
        Where to listen; port 0 is any free port.
    path
        Of a Unix socket to listen at, instead of host and port.
    limits
        Limits on requests.
    broker
        MQTT broker to read from, if any.
    proxies
        That are trusted, if any.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: Path | None = None,
        limits: Limits | None = None,
        broker: Broker | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self.frigate = make_app(service, limits, broker, proxies)
        self.path = path
        self._socket = listen(host, port) if path is None else listen_at(path)
        config = uvicorn.Config(
            self.frigate,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_S,
            http=Connection,
            ws="none",  # an upgrade would leave our connection, and its limits, for a protocol that no endpoint speaks
            lifespan="on",
            proxy_headers=False,
        )
        super().__init__(config)
        Connection.most = most_connections()

    @property
    def url(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve with a short switch interval: requests wait less for the GIL while a forecast is computed."""
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            super().run([self._socket] if sockets is None else sockets)
        finally:
            sys.setswitchinterval(before_s)
            if self.path is not None:
                self.path.unlink(missing_ok=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second Ctrl-C forces the exit. Unlike uvicorn, do not re-raise the signal: stopping is not an error."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.frigate.state.frigate.events.end()
        await super().shutdown(sockets)
