"""Who closed what, who sent what, and from where: written with the act, read by administrators, and forgotten late."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frigate.serve.auth import make_token
from frigate.serve.batches import ReadingRow
from frigate.serve.mqtt import Broker, Subscriber
from frigate.serve.retention import EVEN_S, EVERY_S, Retention
from frigate.serve.store import Actor, Delivery, Reading, Store, open_store
from tests.support.command_line import frigate
from tests.support.service import STEP_S, FakeTime, Served, Town, serve_town

DAY_S = 86_400


@pytest.fixture
def served(town: Town, tmp_path: Path) -> Iterator[Served]:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store) as served:
        yield served
    store.close()


def entries(served: Served, **asked: Any) -> list[dict[str, Any]]:
    answer = served.client.get("/v1/audit", params=asked)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["entries"])


def test_who_closed_and_opened_a_road_is_told(served: Served) -> None:
    tokens = {name: make_token(served.service.store, name, "operate", 0) for name in ("Anna", "Bob")}
    served.service.gate.refresh()
    headers = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
    source, target = served.roads()[0]
    body = {"source": source, "target": target}
    made = served.stranger.post("/v1/closures", json=body, headers=headers["Anna"]).json()
    served.stranger.post("/v1/closures", json=body, headers=headers["Bob"])  # it is closed already
    for _ in range(2):  # it ends once
        served.stranger.delete(f"/v1/closures/{made['id']}", headers=headers["Bob"])
    served.stranger.delete("/v1/closures/abcdef", headers=headers["Bob"])
    end, begin = entries(served)
    told = f"{made['id']}: from {source} to {target}, {made['begin']}"
    assert (begin["action"], begin["name"], begin["role"], begin["subject"]) == (
        "closure.begin",
        "Anna",
        "operate",
        told,
    )
    assert end["action"] == "closure.end" and end["name"] == "Bob" and end["subject"].startswith(told)
    assert begin["token"] == tokens["Anna"].split("_")[1] and begin["client"] == "testclient" and begin["count"] == 1
    assert abs(time.time() - served.service.store.audit(most=1)[0].time_s) < 600


def test_what_was_sent_is_counted_by_sender_status_and_minute(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    now = FakeTime(1_700_000_000.0)
    monkeypatch.setattr("frigate.serve.store.audit.time.time", now)
    tokens = [make_token(served.service.store, name, "write", 0) for name in ("North", "South")]
    served.service.gate.refresh()

    def send(token: str, *values: float | str) -> None:
        at = served.time() - STEP_S + 10
        rows = [{"node": served.service.city.node_names[k], "time": at, "value": v} for k, v in enumerate(values)]
        headers = {"Authorization": f"Bearer {token}"}
        assert served.stranger.post("/v1/readings", json={"readings": rows}, headers=headers).status_code == 200

    send(tokens[0], 1, 2, 3)
    send(tokens[0], 1, 9, "many")
    send(tokens[1], "many")
    found = {(each["name"], each["subject"]): each["count"] for each in entries(served, action="readings")}
    assert found == {
        ("North", "accepted"): 3,
        ("North", "duplicate"): 1,
        ("North", "corrected"): 1,
        ("North", "refused"): 1,
        ("North", "batches"): 2,
        ("South", "refused"): 1,
        ("South", "batches"): 1,
    }
    now.now_s += 60
    send(tokens[0], 4)
    assert len(entries(served, action="readings")) == 9
    assert {each["time"][-4:] for each in entries(served)} == {":00Z"}


def test_what_comes_over_mqtt_has_its_broker_for_a_sender(served: Served) -> None:
    subscriber = Subscriber(Broker.parse("mqtt://user:secret@host/topic", client="x"), served.service.ingest)
    asyncio.run(subscriber._store([ReadingRow(served.service.city.node_names[0], served.time(), 1)]))
    assert {(each["name"], each["client"]) for each in entries(served)} == {("MQTT", "mqtt://host:1883/topic")}


def test_only_administrators_read_it_and_page_by_page(served: Served) -> None:
    for role in ("read", "write", "operate", "replay"):
        token = make_token(served.service.store, role, role, 0)
        served.service.gate._read_at = float("-inf")
        answer = served.stranger.get("/v1/audit", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 403, role
    assert served.stranger.get("/v1/audit").status_code == 401
    actor = Actor("", "a test", "admin", "")
    for k in range(5):
        served.service.store.note(actor, "test", str(k))
    first = served.client.get("/v1/audit?limit=3")
    rest = served.client.get(first.url.join(first.links["next"]["url"]))
    assert [each["subject"] for each in [*first.json()["entries"], *rest.json()["entries"]]] == list("43210")
    assert "next" not in rest.links
    for wrong in ("action=DROP TABLE", "action=%00", "cursor=WyJcdTAwMDAiXQ=="):
        assert served.client.get(f"/v1/audit?{wrong}").status_code == 422


def test_signing_in_and_releasing_are_told(served: Served) -> None:
    store = served.service.store
    token = make_token(store, "Anna", "operate", 0)
    served.service.gate.refresh()
    assert served.stranger.post("/v1/session", json={"token": token}).status_code == 200
    node = served.service.city.node_names[0]
    store.add_readings([Reading(node, 0, 1.0), Reading(node, 1, 1.0)], 0.0, implausible=[0, 1])
    for _ in range(2):  # the second time there is nothing to release
        served.client.post("/v1/quarantine/release", json={"node": node})
    release, session = entries(served)
    assert (release["action"], release["subject"], release["count"]) == ("quarantine.release", node, 2)
    assert (session["action"], session["name"]) == ("session.begin", "Anna")


def test_an_act_that_fails_leaves_no_entry_and_no_act_comes_without_one(store: Store) -> None:
    actor = Actor("t", "a test", "admin", "")
    with pytest.raises(Exception):  # noqa: B017, PT011  # the entry cannot be written, whatever the driver says of it
        store.add_closure("A", "B", begin_s=0, end_s=None, now_s=0, by=Actor(None, "", "", ""))  # type: ignore[arg-type]
    assert store.closures() == [] == store.audit(most=9)
    good = [Reading("A", 0, 1.0), Reading(None, 1, 1.0)]  # type: ignore[arg-type]
    with pytest.raises(Exception):  # noqa: B017, PT011
        store.add_readings(good, 0.0, deliveries=[Delivery(actor, 2, 0)])
    assert store.audit(most=9) == []


def test_several_senders_of_one_transaction_are_told_apart(store: Store) -> None:
    one, other = (Actor("", name, "write", "") for name in ("one", "other"))
    readings = [Reading("A", k, 1.0) for k in (0, 1, 1)]
    store.add_readings(readings, 0.0, deliveries=[Delivery(one, 2, 0), Delivery(other, 1, 5)])
    found = {(each.name, each.subject): each.number for each in store.audit(most=99)}
    assert found == {
        ("one", "accepted"): 2,
        ("one", "batches"): 1,
        ("other", "duplicate"): 1,
        ("other", "refused"): 5,
        ("other", "batches"): 1,
    }


def test_it_is_forgotten_after_a_year_and_a_wrong_clock_deletes_little(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = FakeTime(1_700_000_000.0)
    steady = FakeTime(0.0)
    monkeypatch.setattr("frigate.serve.store.audit.time.time", wall)
    for _ in range(10):
        store.note(Actor("", "a test", "admin", ""), "test", "")
        wall.now_s += 50 * DAY_S
    wall.now_s -= 50 * DAY_S
    for days, left in ((None, 10), (365, 8)):
        retention = Retention(store, now=wall, keep_days=30, audit_days=days, steady=steady)
        retention.run_if_due()
        assert len(store.audit(most=99)) == 10
        for clock in (wall, steady):
            clock.now_s += EVEN_S
        retention.run_if_due()
        assert len(store.audit(most=99)) == left
    wall.now_s += 4000 * DAY_S  # and somebody does something then
    store.note(Actor("", "a test", "admin", ""), "test", "")
    retention = Retention(store, now=wall, keep_days=30, audit_days=365, steady=steady)
    for left in (5, 3):
        for clock in (wall, steady):
            clock.now_s += EVERY_S
        retention.run_if_due()
        assert len(store.audit(most=99)) == left


def test_the_command_shows_it_and_tokens_are_in_it(town: Town, tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    done = frigate("token", "create", path, "--name", "Anna")
    token_id = done.out.strip().split("_")[1]
    frigate("token", "revoke", path, token_id)
    shown = frigate("audit", path)
    assert "token.revoke" in shown.out and f"{token_id}: Anna (read)" in shown.out and "command line" in shown.out
    rows = json.loads(frigate("audit", path, "--json", "--limit", "1").out)
    assert [row["action"] for row in rows] == ["token.revoke"] and rows[0]["count"] == 1
    assert "Nothing yet" in frigate("audit", path, "--action", "closure.begin").out
    assert frigate("audit", path, "--limit", "0").status == 2
