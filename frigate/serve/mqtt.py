"""Readings from an MQTT broker, validated and stored like those over HTTP.

Nothing is lost at QoS 1: the broker keeps the session while we are disconnected, and a message is acknowledged only
when its readings are on disk. A message delivered twice is stored once. Refused rows are logged and acknowledged,
because they would be refused again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from frigate.errors import MissingExtraError, ServiceError
from frigate.serve.batches import (
    CSV,
    JSON,
    BatchError,
    BusyError,
    ReadingRow,
    TooManyRowsError,
    needs_child,
    rows_of,
)
from frigate.serve.ingest import TRANSACTION_ROWS, Answer, Ingest
from frigate.serve.limits import run_quickly, run_with_child
from frigate.serve.store import Actor, StoreGoneError

if TYPE_CHECKING:
    import aiomqtt

T = TypeVar("T")
LOG = logging.getLogger("frigate.serve")
PORTS = {"mqtt": 1883, "mqtts": 8883}
EXAMPLE = "mqtt://host:1883/traffic/readings"
BATCH_MESSAGES = 1_000
# aiomqtt drops messages beyond this. At QoS 1 they stay unacknowledged, and are resent on the next connection.
MAX_QUEUED = 20_000
MAX_BYTES = 2_000_000  # of one message
MAX_ROWS = 200_000  # of one message
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # between attempts to connect or to store


@dataclass(frozen=True)
class Broker:
    """An MQTT broker and topic, and the credentials to subscribe with."""

    host: str
    port: int
    topic: str
    client: str  # the broker keeps our session under this name, so each process needs its own
    tls: bool = False
    username: str | None = None
    password: str | None = None
    ca: Path | None = None  # certificates to trust; None: those of the system
    certificate: Path | None = None  # our own, where the broker wants one
    key: Path | None = None  # None: in the same file

    @classmethod
    def parse(
        cls, url: str, *, client: str, ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
    ) -> Broker:
        """Parse mqtt://user:password@host:port/topic?client=NAME, or mqtts:// for TLS.

        Parameters
        ----------
        url
            The topic may contain the wildcards + and #.
        client
            Default for the client name.
        ca, certificate, key
            Files in PEM format, for mqtts:// only.
        """
        where = urlsplit(url.replace("#", "%23"))
        topic = unquote(where.path.removeprefix("/"))
        try:
            host = where.hostname
            port = where.port
        except ValueError:
            host = None
            port = None
        if where.scheme not in PORTS or not host or not topic:
            raise ServiceError(f"--mqtt {_without_password(where)}: give broker and topic, such as {EXAMPLE}")
        options = parse_qs(where.query)
        unknown = sorted(set(options) - {"client"})
        if unknown:
            raise ServiceError(f'--mqtt: unknown option "{unknown[0]}". The only option is ?client=NAME')
        broker = cls(
            host=host,
            port=port or PORTS[where.scheme],
            topic=topic,
            client=options.get("client", [re.sub(r"[^\w.-]", "-", client)])[0],
            tls=where.scheme == "mqtts",
            username=None if where.username is None else unquote(where.username),
            password=None if where.password is None else unquote(where.password),
            ca=ca,
            certificate=certificate,
            key=key,
        )
        if key is not None and certificate is None:
            raise ServiceError(f"--mqtt-key {key}: give its certificate too, with --mqtt-cert")
        if (ca or certificate) is not None and not broker.tls:
            raise ServiceError(f"--mqtt {broker.name}: certificates need TLS. Give mqtts://")
        broker.tls_context()
        return broker

    def tls_context(self) -> ssl.SSLContext | None:
        """Read from its files anew each time, so that certificates can be renewed while the service runs."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ServiceError(f"--mqtt-ca {self.ca}: {error.strerror or error}. Give a PEM file") from None
        if self.certificate is not None:
            files = f"--mqtt-cert {self.certificate}" + (f" --mqtt-key {self.key}" if self.key else "")
            try:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
            except (OSError, ssl.SSLError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ServiceError(
                    f"{files}: {reason}. Give a certificate and its key as PEM, without a password"
                ) from None
        return context

    @property
    def name(self) -> str:
        """For logs and health."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}/{self.topic}"


@dataclass
class MqttState:
    """For health and metrics."""

    connected: bool = False
    messages: int = 0  # acknowledged
    refused: int = 0  # rows and unreadable messages
    waiting: bool = False  # whether readings are waiting for the store


class Subscriber:
    """Stores the readings published on a topic.

    Parameters
    ----------
    broker
        Where to subscribe.
    ingest
        Validates and stores the readings.
    """

    def __init__(self, broker: Broker, ingest: Ingest) -> None:
        try:
            import aiomqtt
        except ImportError:
            raise MissingExtraError("aiomqtt", "mqtt") from None
        self._mqtt = aiomqtt
        self._broker = broker
        self._ingest = ingest
        self.state = MqttState()

    async def run(self) -> None:
        """Run until cancelled; reconnect whenever the connection is lost."""
        failures = 0
        while True:
            try:
                async with self._client() as client:
                    await client.subscribe(self._broker.topic, qos=1)
                    LOG.info("subscribed", extra={"broker": self._broker.name})
                    self.state.connected = True
                    failures = 0
                    while True:
                        await self._take(client, await _waiting(client))
            except (self._mqtt.MqttError, ServiceError) as error:
                LOG.warning("MQTT connection lost", extra={"broker": self._broker.name, "reason": str(error)})
            finally:
                self.state.connected = False
            await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            failures += 1

    def _client(self) -> aiomqtt.Client:
        broker = self._broker
        client = self._mqtt.Client(
            broker.host,
            broker.port,
            username=broker.username,
            password=broker.password,
            identifier=broker.client,
            clean_session=False,
            max_queued_incoming_messages=MAX_QUEUED,
            keepalive=20,
            tls_context=broker.tls_context(),
        )
        client._client.manual_ack_set(True)  # aiomqtt has no public API for this
        return client

    async def _take(self, client: aiomqtt.Client, messages: Sequence[aiomqtt.Message]) -> None:
        """Store the readings of these messages, retrying until it works, then acknowledge them."""
        payloads = [message.payload for message in messages]
        large = any(isinstance(each, bytes) and needs_child(each, JSON) for each in payloads)
        run = run_with_child if large else run_quickly
        parsed = await self._until_it_works(lambda: run(lambda: list(map(_rows_or_reason, payloads))))
        rows: list[ReadingRow] = []
        for message, found in zip(messages, parsed, strict=True):
            if isinstance(found, str):
                self._refused(found, topic=str(message.topic))
            else:
                rows += found
        for k in range(0, len(rows), TRANSACTION_ROWS):  # all at once may be more than the store takes
            for answer in await self._until_it_works(partial(self._store, rows[k : k + TRANSACTION_ROWS])):
                if answer.status == "refused":
                    self._refused(answer.reason)
        for message in messages:
            client._client.ack(message.mid, message.qos)
        self.state.messages += len(messages)

    async def _store(self, rows: Sequence[ReadingRow]) -> list[Answer]:
        by = Actor("", "MQTT", "write", self._broker.name)
        return await self._ingest.take(await run_quickly(lambda: self._ingest.judge(rows)), by)

    async def _until_it_works(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the call returns, once the store is there and not too busy."""
        for failures in count():
            try:
                answer = await call()
            except (StoreGoneError, BusyError) as error:
                self.state.waiting = True
                LOG.warning("waiting for the store", extra={"reason": str(error)})
                await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            else:
                self.state.waiting = False
                break
        return answer

    def _refused(self, reason: str, **more: str) -> None:
        self.state.refused += 1
        LOG.warning("message refused", extra={"reason": reason, **more})


async def _waiting(client: aiomqtt.Client) -> list[aiomqtt.Message]:
    """The next message, and those that have already arrived after it, up to a size."""
    found = [await anext(client.messages)]
    size = _size(found[0])
    while len(client.messages) and len(found) < BATCH_MESSAGES and size < MAX_BYTES:
        found.append(await anext(client.messages))
        size += _size(found[-1])
    return found


def _size(message: aiomqtt.Message) -> int:
    return len(message.payload) if isinstance(message.payload, bytes) else 0


def _rows_or_reason(payload: object) -> list[ReadingRow] | str:
    """The readings in a message, or why there are none."""
    try:
        return rows_of_message(payload)
    except BatchError as error:
        return str(error)


def rows_of_message(payload: object) -> list[ReadingRow]:
    """The readings in a message: one as a JSON object, or a batch in JSON or CSV as over HTTP."""
    if not isinstance(payload, bytes):
        raise BatchError("the message is empty")
    if len(payload) > MAX_BYTES:
        raise BatchError(f"the message has {len(payload):,} bytes. The limit is {MAX_BYTES:,}")
    if not payload.lstrip().startswith(b"{"):
        return rows_of(payload, CSV, most=MAX_ROWS)
    try:
        return rows_of(payload, JSON, most=MAX_ROWS)
    except TooManyRowsError:
        raise
    except BatchError:
        return rows_of(b'{"readings":[' + payload + b"]}", JSON, most=MAX_ROWS)  # one reading


def _no_password() -> str:
    """Instead of OpenSSL's prompt, at which a service would wait forever."""
    return ""


def _without_password(where: SplitResult) -> str:
    return f'"{where._replace(netloc=where.netloc.rpartition("@")[2]).geturl()}"'
