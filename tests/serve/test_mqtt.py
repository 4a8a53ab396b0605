"""Readings over MQTT: what was published at QoS 1 is not lost. The broker is Mosquitto, else amqtt."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiomqtt
import numpy as np
import pytest

from frigate.city.outliers import Ranges
from frigate.errors import ServiceError
from frigate.serve.batches import BatchError, ReadingRow
from frigate.serve.city import ServedCity
from frigate.serve.ingest import Ingest, Judge
from frigate.serve.mqtt import EXAMPLE, MAX_BYTES, Broker, Subscriber, rows_of_message
from frigate.serve.store import Reading, StoreGoneError
from frigate.serve.store.sqlite import SqliteStore
from frigate.training.run import TrainedOn
from tests.support.errors import raises
from tests.support.forecast_runs import small_city
from tests.support.mqtt import KIND, PASSWORD, USER, MqttBroker
from tests.support.service import FakeTime

TOPIC, NOW_S = "traffic/counts", 1_700_000_000


def served_city() -> ServedCity:
    city = small_city()
    return ServedCity(
        name=city.name,
        source=city,
        network=city.network,
        sensors=np.ones(city.network.num_nodes, bool),
        steps=city.stream.steps,
        past=12,
        horizon=12,
        trained_on=TrainedOn.of(city, (0, city.stream.num_snapshots)),
        ranges=Ranges.unknown(city.network.num_nodes),
        has_demand=False,
    )


class MendableStore(SqliteStore):
    """Its disk is full until it is mended."""

    full, tries = False, 0

    def add_readings(self, readings: Sequence[Reading], received_s: float, **more: Any) -> list[str]:
        if self.full:
            self.tries += 1
            raise StoreGoneError("the disk is full")
        return super().add_readings(readings, received_s, **more)

    def values(self) -> list[float]:
        return sorted(self.readings(0, NOW_S * 2_000_000)[2].tolist())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttBroker]:
    made = MqttBroker(tmp_path_factory.mktemp("broker"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MendableStore]:
    made = MendableStore(tmp_path / "store.db").prepared()
    yield made
    made.close()


@pytest.fixture
def ingest(store: MendableStore) -> Iterator[Ingest]:
    made = Ingest(store, Judge(served_city(), FakeTime(NOW_S)))
    made.start()
    yield made
    made.stop()


@asynccontextmanager
async def subscribed(broker: MqttBroker, ingest: Ingest, client: str) -> AsyncIterator[Subscriber]:
    """A subscriber at work; what it has not acknowledged at the end, it never does."""
    subscriber = Subscriber(Broker.parse(broker.url(TOPIC, client), client=""), ingest)
    task = asyncio.create_task(subscriber.run())
    await until(lambda: subscriber.state.connected)
    yield subscriber
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def publish(broker: MqttBroker, *payloads: bytes) -> None:
    async with aiomqtt.Client("127.0.0.1", broker.port, username=USER, password=PASSWORD) as client:
        for payload in payloads:
            await client.publish(TOPIC, payload, qos=1)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not holds():
            await asyncio.sleep(0.01)


def message(value: int) -> bytes:
    """One reading, told by its value."""
    return json.dumps({"node": 0, "time": NOW_S - value, "value": value}).encode()


def test_readings_are_stored_and_wrong_ones_do_not_hold_up_the_rest(
    broker: MqttBroker, store: MendableStore, ingest: Ingest
) -> None:
    batch = json.dumps({"readings": [{"node": 0, "time": NOW_S - k, "value": k} for k in (2, 3)]}).encode()
    table = f"node,time,value\n0,{NOW_S - 4},4\nnowhere,{NOW_S},1\n".encode()

    async def story() -> None:
        async with subscribed(broker, ingest, "stored") as subscriber:
            await publish(broker, message(1), b"{ no JSON", batch, table, b"", message(5))
            await until(lambda: subscriber.state.messages == 6)
            assert subscriber.state.refused == 3

    asyncio.run(story())
    assert store.values() == [1, 2, 3, 4, 5]


def test_messages_published_meanwhile_wait(broker: MqttBroker, store: MendableStore, ingest: Ingest) -> None:
    async def story() -> None:
        async with subscribed(broker, ingest, "away"):
            pass
        await publish(broker, *(message(k) for k in range(1, 8)))
        async with subscribed(broker, ingest, "away") as back:
            await until(lambda: back.state.messages == 7)

    asyncio.run(story())
    assert store.values() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.skipif(KIND != "Mosquitto", reason="no Mosquitto, and amqtt forgets what was not acknowledged at once")
def test_nothing_is_acknowledged_that_is_not_stored(broker: MqttBroker, store: MendableStore, ingest: Ingest) -> None:
    """The disk is full, the service is killed: the broker delivers again what was not acknowledged, and only that."""

    async def story() -> None:
        async with subscribed(broker, ingest, "full") as subscriber:
            await publish(broker, message(1))
            await until(lambda: subscriber.state.messages == 1)
            store.full = True
            await publish(broker, message(2), message(3))
            await until(lambda: store.tries > 0 and subscriber.state.waiting)  # it is told after it was tried
            assert subscriber.state.messages == 1
        store.full = False
        async with subscribed(broker, ingest, "full") as subscriber:
            await until(lambda: len(store.values()) == 3)
            await publish(broker, message(4))
            await until(lambda: len(store.values()) == 4)
            assert subscriber.state.messages == 3

    asyncio.run(story())
    assert store.values() == [1, 2, 3, 4]


def test_a_full_disk_is_waited_for(broker: MqttBroker, store: MendableStore, ingest: Ingest) -> None:
    async def story() -> None:
        store.full = True
        async with subscribed(broker, ingest, "waits") as subscriber:
            await publish(broker, message(1))
            await until(lambda: store.tries > 1)
            assert subscriber.state.messages == 0
            store.full = False
            await until(lambda: subscriber.state.messages == 1)
            assert not subscriber.state.waiting

    asyncio.run(story())
    assert store.values() == [1]


def test_a_backlog_of_any_size_drains_and_does_not_stall_the_service(
    broker: MqttBroker, store: MendableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came meanwhile is more than may wait for the store at once."""
    monkeypatch.setattr("frigate.serve.ingest.WAITING_ROWS", 10)
    monkeypatch.setattr("frigate.serve.mqtt.TRANSACTION_ROWS", 4)
    judged_by: set[threading.Thread] = set()

    def now() -> float:
        judged_by.add(threading.current_thread())
        return NOW_S

    batches = [
        json.dumps({"readings": [{"node": 0, "time": NOW_S - k, "value": k} for k in range(6 * n, 6 * n + 6)]})
        for n in range(5)
    ]

    async def story(ingest: Ingest) -> None:
        async with subscribed(broker, ingest, "backlog"):
            pass
        await publish(broker, *(batch.encode() for batch in batches))
        judged_by.clear()
        async with subscribed(broker, ingest, "backlog") as back:
            await until(lambda: back.state.messages == 5)
            assert judged_by and threading.current_thread() not in judged_by

    ingest = Ingest(store, Judge(served_city(), now))
    ingest.start()
    asyncio.run(story(ingest))
    ingest.stop()
    assert store.values() == list(range(30))


def test_a_broker_that_comes_back_is_found_again(broker: MqttBroker, store: MendableStore, ingest: Ingest) -> None:
    async def story() -> None:
        async with subscribed(broker, ingest, "again") as subscriber:
            broker.stop()
            await until(lambda: not subscriber.state.connected)
            broker.start()
            await until(lambda: subscriber.state.connected)
            await publish(broker, message(1))
            await until(lambda: subscriber.state.messages == 1)

    asyncio.run(story())
    assert store.values() == [1]


def test_an_address_is_read() -> None:
    plain = Broker.parse("mqtt://host/a/+/b/#", client="town:8350")
    assert (plain.host, plain.port, plain.topic, plain.client, plain.tls) == (
        "host",
        1883,
        "a/+/b/#",
        "town-8350",
        False,
    )
    full = Broker.parse("mqtts://me:p%40ss@host:9/t?client=here", client="x")
    assert (full.port, full.topic, full.client, full.tls) == (9, "t", "here", True)
    assert (full.username, full.password) == ("me", "p@ss") and "p@ss" not in full.name


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://host/topic", "http://host/topic"),
        ("mqtt://host", "mqtt://host"),
        ("mqtt://host:port/topic", EXAMPLE),
        ("mqtt:///topic", EXAMPLE),
        ("mqtt://host/topic?qos=2", '"qos"'),
    ],
)
def test_a_wrong_address_is_refused(url: str, named: str) -> None:
    with raises(ServiceError, "--mqtt", named):
        Broker.parse(url, client="x")


def test_a_refusal_keeps_the_password() -> None:
    with pytest.raises(ServiceError) as refused:
        Broker.parse("mqtt://me:hidden@host", client="x")
    assert "hidden" not in str(refused.value)


def test_a_message_is_one_reading_or_a_batch() -> None:
    assert rows_of_message(b' {"node": 1, "time": 2, "value": 3}') == [ReadingRow(1, 2, 3)]
    assert rows_of_message(b'{"readings": []}') == []
    assert rows_of_message(b"value,time,node_id\n3,2,1\n") == [ReadingRow("1", "2", "3")]
    assert rows_of_message(b'{"readings": []}'.ljust(MAX_BYTES)) == []
    for wrong in (None, b"", b"x" * (MAX_BYTES + 1)):
        with pytest.raises(BatchError):
            rows_of_message(wrong)
    with pytest.raises(BatchError, match="The limit is"):
        rows_of_message(b'{"readings": []}'.ljust(MAX_BYTES + 1))


def make_certificate(folder: Path, name: str, *more: str) -> Path:
    """A certificate and its key in one file, signed by itself or as `more` says."""
    words = ["openssl", "req", "-x509", "-nodes", "-subj", f"/CN={name}", "-newkey", "ec"]
    curve = ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")]
    subprocess.run([*words, *curve, *files, *more], check=True, capture_output=True)
    path = folder / f"{name}.pem"
    path.write_text((folder / f"{name}.crt").read_text() + (folder / f"{name}.key").read_text())
    return path


def test_a_broker_may_want_our_certificate(ingest: Ingest, tmp_path: Path) -> None:
    authority = make_certificate(tmp_path, "authority")
    signed = ["-CA", str(tmp_path / "authority.crt"), "-CAkey", str(tmp_path / "authority.key")]
    host = make_certificate(tmp_path, "host", *signed, "-addext", "subjectAltName=IP:127.0.0.1")
    gate = make_certificate(tmp_path, "gate", *signed)
    wanting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    wanting.load_cert_chain(host)
    wanting.verify_mode = ssl.CERT_REQUIRED
    came: list[tuple[str, int]] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As a broker as far as CONNECT and CONNACK go."""
        who = writer.get_extra_info("peercert")["subject"][0][0][1]
        came.append((who, (await reader.readexactly(1))[0]))
        writer.write(b"\x20\x02\x00\x00")
        await reader.read()
        writer.close()

    async def answer(port: int, context: ssl.SSLContext | None) -> bytes:
        got = b""
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            with suppress(OSError):
                writer.write(b"\x10")
                got = await reader.read(4)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        return got

    async def story() -> None:
        async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=wanting) as server:
            port = server.sockets[0].getsockname()[1]
            url = f"mqtts://127.0.0.1:{port}/{TOPIC}"
            strangers: list[dict[str, Path]] = [{}, {"ca": authority}]  # we to the broker, or it to us
            contexts = [Broker.parse(url, client="x", **each).tls_context() for each in strangers]
            assert [await answer(port, context) for context in contexts] == [b"", b""]
            assert came == []
            for each in ({"certificate": gate}, {"certificate": tmp_path / "gate.crt", "key": tmp_path / "gate.key"}):
                async with Subscriber(Broker.parse(url, client="x", ca=authority, **each), ingest)._client():
                    pass

    asyncio.run(story())
    assert came == [("gate", 0x10)] * 2


def test_a_certificate_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    own = make_certificate(tmp_path, "own")
    other = make_certificate(tmp_path, "other")
    locked = ["-in", str(own), "-out", str(tmp_path / "locked.key"), "-aes256", "-passout", "pass:secret"]
    subprocess.run(["openssl", "pkey", *locked], check=True, capture_output=True)
    (tmp_path / "noise.pem").write_text("nothing")
    secure = "mqtts://host/topic"
    with raises(ServiceError, "--mqtt-ca", "nowhere.pem"):
        Broker.parse(secure, client="x", ca=tmp_path / "nowhere.pem")
    with raises(ServiceError, "--mqtt-ca", "noise.pem", "PEM"):
        Broker.parse(secure, client="x", ca=tmp_path / "noise.pem")
    with raises(ServiceError, "--mqtt-cert", "own.pem", "--mqtt-key", "other.pem"):
        Broker.parse(secure, client="x", certificate=own, key=other)
    with raises(ServiceError, "--mqtt-key", "locked.key", "without a password"):
        Broker.parse(secure, client="x", certificate=own, key=tmp_path / "locked.key")
    with raises(ServiceError, "--mqtt-key", "--mqtt-cert"):
        Broker.parse(secure, client="x", key=own)
    with raises(ServiceError, "mqtts://"):
        Broker.parse("mqtt://host/topic", client="x", certificate=own)
