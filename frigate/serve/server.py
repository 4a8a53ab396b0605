"""The app behind a socket: uvicorn, with an end that waits for what is under way."""

from __future__ import annotations

import signal
import socket
from types import FrameType

import uvicorn

from frigate.serve.app import make_app
from frigate.serve.connections import Connection
from frigate.serve.limits import Limits
from frigate.serve.mqtt import Broker
from frigate.serve.service import Service

END_S = 10  # for requests that are under way when the service is told to stop


class Server(uvicorn.Server):
    """Serves until SIGTERM or SIGINT. Event streams, which never end by themselves, are ended first."""

    def __init__(
        self, service: Service, *, host: str, port: int, limits: Limits | None = None, broker: Broker | None = None
    ) -> None:
        self.frigate = make_app(service, limits, broker)
        config = uvicorn.Config(
            self.frigate, host=host, port=port, log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=END_S, http=Connection, lifespan="on", proxy_headers=False,
        )  # fmt: skip
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second Ctrl-C waits for nothing. The signal is not raised again: this is how a service ends."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.frigate.state.frigate.events.end()
        await super().shutdown(sockets)

    @property
    def bound_port(self) -> int:
        """Of a server that has started: of port 0, the one it was given."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port
