"""Hostile clients: many at once, that leave, that do not read, that never end (`make test-hostile`).

All attack one service, and after each it must be as before: `tests.support.siege`.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack

import httpx2
import pytest

from frigate.serve.auth import make_token
from frigate.serve.batches import CSV
from frigate.serve.store import open_store
from tests.support.foreign_bodies import good_bodies, mutated
from tests.support.service_process import until
from tests.support.siege import PATIENCE_S, RawSocket, Siege, at_once, head

pytestmark = [pytest.mark.slow, pytest.mark.hostile]
PAGES = 50
MB = 2**20


def test_fifty_maps_that_refetch_at_every_forecast(siege: Siege) -> None:
    """Two hours of them, at a forecast every five minutes."""

    async def page(number: int) -> None:
        async with (
            httpx2.AsyncClient(
                limits=httpx2.Limits(keepalive_expiry=2),
                base_url=siege.service.url,
                timeout=PATIENCE_S,
                headers=siege.headers("read"),
                verify=False,
            ) as http,
            http.stream("GET", "/v1/events") as events,
        ):
            assert events.status_code == 200
            heard = 0
            async for line in events.aiter_lines():
                if line != "event: forecast":
                    continue
                node = siege.sensors[number % len(siege.sensors)]
                paths = ["forecast.bin", f"nodes/{node}", "closures", "sensors"]
                paths += ["forecast.json", "flows.json", f"history.csv?node={siege.node()}"] if number % 5 == 0 else []
                for path in paths:
                    assert siege.allowed(await http.get(f"/v1/{path}")).status_code == 200
                heard += 1
                if heard == 24:
                    return

    async def pages() -> None:
        await asyncio.gather(*(page(k) for k in range(PAGES)))

    asyncio.run(pages())


def test_bursts_of_long_histories(siege: Siege) -> None:
    def read() -> None:
        for form in ("csv", "json", "arrow"):
            answer = siege.ask("GET", f"/v1/history.{form}?{_long(siege)}")
            assert answer.status_code == 503 or (answer.status_code == 200 and len(answer.content) > MB // 2)

    for _ in range(2):
        at_once([read] * 60)


def _long(siege: Siege) -> str:
    """The whole of a long history."""
    begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 20 * 86_400))
    return f"node={siege.node()}&begin={begin}"


def test_connections_that_are_left_open_or_torn_off(siege: Siege, draws: random.Random) -> None:
    """Hundreds that say nothing, half a head, a whole request without reading the answer, or half of a body."""
    kinds = [
        "",
        "GET /v1/forecast.bin HT",
        head(siege, "GET /v1/forecast.json"),
        head(siege, "POST /v1/readings", f"Content-Type: {CSV}", "Content-Length: 1000") + "node,time",
        head(siege, "POST /v1/readings", f"Content-Type: {CSV}", "Transfer-Encoding: chunked") + "5\r\nnode",
        head(siege, "GET /v1/events", role="read"),
    ]
    with ExitStack() as stack:
        for k in range(900):
            raw = RawSocket(siege).send(kinds[k % len(kinds)])
            if draws.random() < 0.4:
                raw.reset()
            else:
                stack.enter_context(raw)
        assert siege.ask("GET", "/healthz").status_code == 200


def test_answers_that_nobody_reads(siege: Siege) -> None:
    """They ask for megabytes again and again, and read nothing or a byte now and then."""
    asked = head(siege, f"GET /v1/history.json?{_long(siege)}")
    with ExitStack() as stack:
        slow = [stack.enter_context(RawSocket(siege)) for _ in range(40)]
        for each in slow:
            each.send(asked * 5)
        for each in slow[:10]:
            assert each.status() in (200, 503)
        siege.await_forecast()  # meanwhile


def test_all_streams_by_one_token(siege: Siege) -> None:
    """It gets its share; others still get one."""
    asked = head(siege, "GET /v1/events", role="read")
    with ExitStack() as stack:
        raws = [stack.enter_context(RawSocket(siege)).send(asked) for _ in range(300)]
        statuses = Counter(raw.status() for raw in raws)
        assert statuses == {200: 50, 429: 250}, statuses
        with RawSocket(siege) as other:
            assert other.send(head(siege, "GET /v1/events", role="operate")).status() == 200
    until(lambda: siege.service_metric("frigate_event_streams") == 0, "all streams have ended")


def test_tokens_that_are_revoked_while_their_streams_are_open(siege: Siege) -> None:
    with ExitStack() as stack:
        store = open_store(str(siege.store))
        stack.callback(store.close)
        tokens = [make_token(store, f"guest {k}", "read", int(time.time())) for k in range(10)]
        words = [head(siege, "GET /v1/events", f"Authorization: Bearer {token}", role=None) for token in tokens]
        raws = [stack.enter_context(RawSocket(siege)).send(each) for each in words * 5]
        assert [raw.status() for raw in raws] == [200] * 50
        for token in tokens:
            assert store.revoke_token(token.split("_")[1], int(time.time()))
        until(lambda: siege.service_metric("frigate_event_streams") == 0, "their streams have ended")
        for token in tokens:
            found = siege.ask("GET", "/v1/closures", role=None, headers={"Authorization": f"Bearer {token}"})
            assert found.status_code == 401


def test_all_of_it_at_once(siege: Siege, draws: random.Random) -> None:
    """For half a minute."""
    ended = threading.Event()
    threading.Timer(30, ended.set).start()
    source, target = next(iter(siege.city.road_of))
    bodies = good_bodies(siege.node(), time.time())

    def histories() -> None:
        while not ended.is_set():
            siege.ask("GET", f"/v1/history.json?{_long(siege)}")

    def maps() -> None:
        while not ended.is_set():
            for path in ("forecast.bin", "network.bin", "flows.csv", "accuracy", "sensors"):
                siege.ask("GET", f"/v1/{path}", role="read")

    def bytes_of_all_kinds() -> None:
        while not ended.is_set():
            media_type, body = draws.choice(bodies)
            siege.ask("POST", "/v1/readings", content=mutated(body, draws), headers={"Content-Type": media_type})

    def roads() -> None:
        while not ended.is_set():
            siege.ask("POST", "/v1/what-if", json={"close": [[source, target]]})
            closed = siege.ask("POST", "/v1/closures", json={"source": source, "target": target})
            if closed.status_code in (200, 201):
                siege.ask("DELETE", f"/v1/closures/{closed.json()['id']}")

    def connections() -> None:
        while not ended.wait(0.5):  # without a pause, it would be the only one who is served
            raws = [RawSocket(siege).send("GET / HTTP/1.1\r\n") for _ in range(50)]
            for raw in raws:
                raw.reset()

    kinds = {histories: 6, maps: 10, bytes_of_all_kinds: 4, roads: 3, connections: 2}
    at_once([kind for kind, count in kinds.items() for _ in range(count)])
