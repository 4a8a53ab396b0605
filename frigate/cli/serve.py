"""`frigate serve`: serve the API and the map of a run."""

from __future__ import annotations

import os
import socket
import time
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import log, notice, status
from frigate.cli.parser import DEVICE, OTHER_CITY, RUN, Argument, Command
from frigate.errors import ServiceError

if TYPE_CHECKING:
    from frigate.serve.server import Server
    from frigate.serve.service import Service

MQTT_VARIABLE = "FRIGATE_MQTT"


def run(args: Namespace) -> None:
    from frigate.city.folder import open_city
    from frigate.serve.limits import Limits
    from frigate.serve.logs import log_to
    from frigate.serve.mqtt import Broker
    from frigate.serve.proxies import Proxies
    from frigate.serve.server import Server
    from frigate.serve.service import Service
    from frigate.serve.store import DEFAULT_FILE, REPLAY_FILE, open_store
    from frigate.training.checkpoint import load_run

    url = args.mqtt or os.environ.get(MQTT_VARIABLE)
    files = {"ca": args.mqtt_ca, "certificate": args.mqtt_cert, "key": args.mqtt_key}
    if not url and any(files.values()):
        raise ServiceError(f"certificates for MQTT, but no broker. Give one with --mqtt or {MQTT_VARIABLE}")
    broker = Broker.parse(url, client=f"frigate-{socket.gethostname()}-{args.port}", **files) if url else None
    proxies = Proxies.parse(args.proxy, args.sso)
    if proxies.socket and args.socket is None:
        raise ServiceError("--proxy unix: give the --socket that it connects to")
    with status(f"Opening {args.run}"):
        run = load_run(args.run)
        city = run.open_city() if args.city is None else open_city(args.city)
        store = open_store(args.store or str(args.run / (REPLAY_FILE if args.replay else DEFAULT_FILE)))
    try:
        with status("Getting ready"):
            service = Service(
                run,
                city,
                store,
                replay=args.replay,
                grace_s=args.grace,
                keep_days=args.keep_days or None,
                audit_days=args.audit_days or None,
                device=args.device,
                basemap=args.basemap,
                basemap_attribution=args.basemap_attribution,
            )
        notice(*city.notices)
        limits = Limits(
            body_mb=args.max_mb,
            rows=args.max_rows,
            rate=args.rate,
            streams=args.streams,
            streams_each=args.streams_per_token or max(1, args.streams // 4),
        )
        server = Server(
            service, host=args.host, port=args.port, path=args.socket, limits=limits, broker=broker, proxies=proxies
        )
        log_to()
        for line in welcome(service, server):
            log(line)
        server.run()
    finally:
        store.close()


def welcome(service: Service, server: Server) -> list[str]:
    """What is said at the start: the address, and at the first start of a store a link that signs a browser in."""
    from frigate.serve.auth import first_token, link

    where = f"{service.city.name}: {server.url} (Ctrl-C to stop)"
    token = first_token(service.store, int(time.time()))
    if token is None:
        return [where]
    if server.path is not None:
        return [where, f"Its first token, with the role admin, which is shown only once: {token}"]
    return [where, f"To open the map, with every right; this link is shown only once: {link(server.url, token)}"]


def _non_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f'"{text}" is not a number >= 0')
    return value


def _positive(text: str) -> float:
    value = _non_negative(text)
    if value == 0:
        raise ArgumentTypeError("0 would refuse every request")
    return value


def _positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f'"{text}" is not an integer > 0')
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f'"{text}" is not a port. Give 1 to 65535, or 0 for any free port')
    return int(text)


STORE = Argument("--store PATH|URL", "an SQLite file, or postgresql://user@host/database (default: RUN/service.db)")
PORT = Argument("--port PORT", "port to listen on", _port, default=8350)
SERVE = Command(
    "serve",
    "Receive readings and forecast every step, with an API and a map.",
    run,
    (
        RUN,
        OTHER_CITY,
        STORE,
        Argument("--host ADDRESS", "address to listen on", default="127.0.0.1"),
        PORT,
        Argument("--socket PATH", "listen on a Unix socket instead; your own user needs no token there", Path),
        Argument(
            "--proxy ADDRESS",
            "proxy whose X-Forwarded-For names the client: an address, a network, or unix for who uses --socket; "
            "may be repeated",
            repeated=True,
        ),
        Argument(
            "--sso GROUP=ROLE",
            "role of users whom the proxy signs in, by their group (X-Forwarded-Groups), * for all; may be repeated",
            repeated=True,
        ),
        Argument("--grace SECONDS", "how long to wait for late readings after each step", _non_negative, default=20.0),
        Argument(
            "--keep-days DAYS",
            "delete readings and forecasts after this many days; 0: never",
            _non_negative,
            default=30.0,
        ),
        Argument(
            "--audit-days DAYS",
            "delete entries of the audit trail after this many days; 0: never",
            _non_negative,
            default=365.0,
        ),
        Argument(
            "--mqtt URL",
            "also read from an MQTT broker, such as mqtt://user:password@host:1883/topic "
            f"(default: the environment variable {MQTT_VARIABLE})",
        ),
        Argument("--mqtt-ca FILE", "certificates to trust for mqtts:// (default: those of the system)", Path),
        Argument("--mqtt-cert FILE", "our certificate, if the broker wants one", Path),
        Argument("--mqtt-key FILE", "its private key (default: in the same file)", Path),
        Argument("--replay", "let `frigate replay` set the time; uses a separate store"),
        Argument("--max-mb MB", "maximum size of a request body", _positive, default=8.0),
        Argument("--max-rows ROWS", "maximum readings per batch", _positive_int, default=50_000),
        Argument("--rate REQUESTS", "maximum requests per second and token", _positive, default=200.0),
        Argument("--streams N", "maximum open event streams", _positive_int, default=200),
        Argument(
            "--streams-per-token N",
            "maximum open event streams of one token (default: a quarter of all)",
            _positive_int,
        ),
        Argument("--basemap URL", "URL of map tiles, such as https://tiles.example/{z}/{x}/{y}.png", default=""),
        Argument("--basemap-attribution TEXT", "attribution of the map tiles", default=""),
        DEVICE,
    ),
    details="Needs no other service. Its first start makes a token and prints a link that opens the map with it. Post "
    "readings to /v1/readings; /v1/openapi.json describes the API.",
    if_stopped="all acknowledged readings are stored",
)
