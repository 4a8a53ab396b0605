"""The store, in SQL that SQLite and PostgreSQL share. The two differ in how they open a transaction.

Calls block and are thread-safe. When a call returns, its changes are on disk. If the store cannot be reached or
written, the call raises StoreGoneError; the next call tries again.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Self

import numpy as np

from frigate.errors import ServiceError
from frigate.serve.store import audit, quarantine
from frigate.serve.store.rows import (
    LAST_S,
    Actor,
    AuditEntry,
    Closure,
    Delivery,
    LeaseState,
    Reading,
    ReadingPart,
    SensorFacts,
    Sql,
    StoreGoneError,
    Token,
)
from frigate.serve.store.schema import MIGRATIONS

PERIOD_US = 300 * 1_000_000  # changes to readings are counted per period of this length
PART_ROWS = 10_000  # of readings, read at once: a few megabytes
NEXT_PART_ATTEMPTS = 10  # each as long as a store waits for a connection
PROBE_CHARACTERS = 4_096  # written to see whether there is room
FORGET_ROWS = 20_000  # per transaction: a long one would keep new readings waiting


class Store(ABC):
    """Readings, closures, forecasts and tokens of one city."""

    @abstractmethod
    def transaction(self, *, write: bool = False) -> AbstractContextManager[Sql]:
        """Committed to disk when the block ends; rolled back if it raises."""

    @abstractmethod
    def hold_clock(self) -> bool:
        """Take the clock's lock if no living process has it. Returns whether this one does. It ends with the process.

        A process that has it may be frozen, or fail all the time: see `frigate.serve.lease`.
        """

    @abstractmethod
    def release_clock(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def prepared(self) -> Self:
        """Bring the tables up to date and return self."""
        try:
            with self.transaction(write=True) as sql:
                sql.lock()
                sql.run("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
                found = sql.rows("SELECT version FROM schema_version")
                version = found[0][0] if found else 0
                if version > len(MIGRATIONS):
                    raise ServiceError(
                        f"the store has schema version {version}, but this version of Frigate supports up to "
                        f"{len(MIGRATIONS)}. Upgrade Frigate"
                    )
                if not found:
                    sql.run("INSERT INTO schema_version VALUES (0)")
                for statements in MIGRATIONS[version:]:
                    for statement in statements:
                        sql.run(statement)
                sql.run("UPDATE schema_version SET version = ?", len(MIGRATIONS))
        except BaseException:
            self.close()
            raise
        return self

    # Readings

    def add_readings(
        self,
        readings: Sequence[Reading],
        received_s: float,
        *,
        implausible: Iterable[int] = (),
        deliveries: Iterable[Delivery] = (),
    ) -> list[str]:
        """Store readings. Returns for each "accepted", "duplicate", or "corrected" if it replaced another value.

        A reading is identified by its node and time. The last value received wins. Of the `implausible`, named by their
        places in the list, those that are not stored already go to the quarantine: "quarantined". The `deliveries` say
        who sent them, in the same order.
        """
        doubtful = set(implausible)
        with self.transaction(write=True) as sql:
            stored = sql.known(readings)
            changed: dict[tuple[str, int], Reading] = {}
            held: dict[tuple[str, int], Reading] = {}
            answers = []
            for place, reading in enumerate(readings):
                key = (reading.node, reading.time_us)
                before = stored.get(key)
                if before == reading.value:
                    answers.append("duplicate")
                elif place in doubtful:
                    answers.append("quarantined")
                    held[key] = reading
                else:
                    answers.append("accepted" if before is None else "corrected")
                    stored[key] = reading.value
                    changed[key] = reading
                    held.pop(key, None)
            quarantine.settle(sql, changed)
            if held:
                sql.put(list(held.values()), received_s, table="quarantine")
            _put(sql, list(changed.values()), received_s)
            audit.note_deliveries(sql, deliveries, answers)
        return answers

    def quarantined(self, *, after: tuple[str, int] = ("", 0), most: int, node: str | None = None) -> list[Reading]:
        """The readings in quarantine, by node and time, after this one."""
        with self.transaction() as sql:
            return quarantine.held(sql, after=after, most=most, node=node)

    def count_quarantined(self) -> dict[str, int]:
        """How many readings are in quarantine, by node."""
        with self.transaction() as sql:
            return quarantine.count(sql)

    def released(self) -> dict[str, tuple[float, float]]:
        """The lowest and highest reading that was released, by node."""
        with self.transaction() as sql:
            return quarantine.released(sql)

    def release(self, node: str, received_s: float, by: Actor | None = None) -> int:
        """Let forecasts use what is in quarantine of a node. Returns how many readings that are."""
        with self.transaction(write=True) as sql:
            sql.lock()
            found = quarantine.take_out(sql, node)
            _put(sql, found, received_s)
            if found:
                audit.note(sql, by, "quarantine.release", node, len(found))
        return len(found)

    def reading_changes(self, begin_us: int, end_us: int) -> dict[int, int]:
        """How often the readings of each period of `PERIOD_US` have changed, so that callers can cache them."""
        with self.transaction() as sql:
            return dict(
                sql.rows(
                    "SELECT period, changes FROM reading_changes WHERE period >= ? AND period <= ?",
                    begin_us // PERIOD_US,
                    end_us // PERIOD_US,
                )
            )

    def readings(self, begin_us: int, end_us: int, node: str | None = None) -> ReadingPart:
        """Nodes, times and values of the readings from `begin_us` up to `end_us`, in chronological order."""
        parts = list(self.reading_parts(begin_us, end_us, node))
        nodes = [name for part in parts for name in part[0]]
        return nodes, np.concatenate([part[1] for part in parts]), np.concatenate([part[2] for part in parts])

    def reading_parts(self, begin_us: int, end_us: int, node: str | None = None) -> Iterator[ReadingPart]:
        """The same, at most `PART_ROWS` at a time, so that no period is too long for memory. At least one part.

        Nothing is held between the parts: the caller may take as long as it likes. Whoever has been given one waits
        longer for the next, because half of an answer may have been sent by then.
        """
        where = (
            "(time_us, node) > (?, ?) AND time_us < ?" if node is None else "node = ? AND time_us > ? AND time_us < ?"
        )
        text = f"SELECT node, time_us, value FROM readings WHERE {where} ORDER BY time_us, node LIMIT {PART_ROWS}"
        last: tuple[int, str] = (begin_us, "") if node is None else (begin_us - 1, node)
        attempts = 1
        while True:
            values = (*last, end_us) if node is None else (node, last[0], end_us)
            rows = self._rows(text, *values, attempts=attempts)
            attempts = NEXT_PART_ATTEMPTS
            yield (
                [row[0] for row in rows],
                np.array([row[1] for row in rows], np.int64),
                np.array([row[2] for row in rows], np.float64),
            )
            if len(rows) < PART_ROWS:
                return
            last = rows[-1][1], rows[-1][0]

    def _rows(self, text: str, *values: object, attempts: int) -> list[tuple[Any, ...]]:
        """The rows of a query that is asked again while the store is too busy, so many times in all."""
        for _ in range(attempts - 1):
            with suppress(StoreGoneError), self.transaction() as sql:
                return sql.rows(text, *values)
        with self.transaction() as sql:
            return sql.rows(text, *values)

    def sensor_facts(self, since_us: int, lately_us: int) -> list[SensorFacts]:
        """Summary of each node with readings since `since_us`; lately, least and most count from `lately_us`."""
        with self.transaction() as sql:
            rows = sql.rows(
                "SELECT each.node, each.last_us, r.value, each.readings, each.lately, each.least, each.most FROM ("
                "SELECT node, MAX(time_us) AS last_us, COUNT(*) AS readings, COUNT(CASE WHEN time_us >= ? THEN 1 END) "
                "AS lately, MIN(CASE WHEN time_us >= ? THEN value END) AS least, "
                "MAX(CASE WHEN time_us >= ? THEN value END) AS most FROM readings WHERE time_us >= ? AND time_us < ? "
                "GROUP BY node"
                ") AS each JOIN readings AS r ON r.time_us = each.last_us AND r.node = each.node ORDER BY each.node",
                lately_us,
                lately_us,
                lately_us,
                since_us,
                LAST_S * 1_000_000,
            )
        return [SensorFacts(*row) for row in rows]

    # Closures

    def add_closure(
        self, source: str, target: str, *, begin_s: int, end_s: int | None, now_s: int, by: Actor | None = None
    ) -> tuple[Closure, bool]:
        """Close a road, unless a closure already covers that time. Returns the closure and whether it is new."""
        with self.transaction(write=True) as sql:
            sql.lock()
            for closure in _closures(sql, "source = ? AND target = ? AND begin_s <= ?", source, target, begin_s):
                until_s = closure.end_s
                if until_s is None or (end_s is not None and until_s >= end_s):
                    return closure, False
            new = Closure(secrets.token_hex(6), source, target, begin_s, end_s, now_s)
            sql.run("INSERT INTO closures VALUES (?, ?, ?, ?, ?, ?)", new.id, source, target, begin_s, end_s, now_s)
            _count_up(sql, "closures")
            audit.note(sql, by, "closure.begin", f"{new.id}: {new.told}")
        return new, True

    def end_closure(self, closure_id: str, now_s: int, by: Actor | None = None) -> Closure | None:
        """End a closure now. A planned one is cancelled; one that has already ended is unchanged."""
        with self.transaction(write=True) as sql:
            sql.lock()
            changed = sql.run(
                "UPDATE closures SET end_s = CASE WHEN begin_s > ? THEN begin_s ELSE ? END "
                "WHERE id = ? AND (end_s IS NULL OR end_s > ?) AND (end_s IS NULL OR end_s > begin_s)",
                now_s,
                now_s,
                closure_id,
                now_s,
            )
            found = _closures(sql, "id = ?", closure_id)
            if changed:
                _count_up(sql, "closures")
                audit.note(sql, by, "closure.end", f"{closure_id}: {found[0].told}")
        return found[0] if found else None

    def closures(
        self, begin_s: int | None = None, *, after: tuple[int, str] | None = None, most: int | None = None
    ) -> list[Closure]:
        """All closures, or those active at `begin_s` or later, earliest begin first.

        Parameters
        ----------
        begin_s
            None: all.
        after
            Begin and id of a closure; only those that follow it.
        most
            How many, if not all.
        """
        where = "1 = 1" if begin_s is None else _ACTIVE
        values: list[object] = [] if begin_s is None else [begin_s]
        if after is not None:
            where = f"({where}) AND (begin_s, id) > (?, ?)"
            values += after
        with self.transaction() as sql:
            return _closures(sql, where, *values, most=most)

    # The lease of the clock

    def lease(self) -> LeaseState:
        with self.transaction() as sql:
            ((term, beats, holder),) = sql.rows("SELECT term, beats, holder FROM lease")
        return LeaseState(term, beats, holder)

    def take_lease(self, found: LeaseState, holder: str) -> int | None:
        """Begin a new term, if the lease is still as it was found. Returns the term."""
        with self.transaction(write=True) as sql:
            sql.lock()
            text = "UPDATE lease SET term = term + 1, beats = 0, holder = ? WHERE term = ? AND beats = ? AND holder = ?"
            taken = sql.run(text, holder, found.term, found.beats, found.holder)
        return found.term + 1 if taken else None

    def beat(self, term: int) -> bool:
        """Say that the holder in this term is alive. Returns False if the term is over."""
        with self.transaction(write=True) as sql:
            return bool(sql.run("UPDATE lease SET beats = beats + 1 WHERE term = ? AND holder <> ''", term))

    def end_lease(self, term: int) -> None:
        """Leave the lease to whoever wants it."""
        with self.transaction(write=True) as sql:
            sql.run("UPDATE lease SET holder = '' WHERE term = ?", term)

    # Forecasts and their scores

    def add_forecast(self, issued_s: int, *, made_s: float, network: str, body: bytes, term: int | None = None) -> bool:
        """Store a forecast. Returns False, and changes nothing, if there is one of this network for that time.

        Nor does it change anything if it was made in a `term` of the lease that is over.
        """
        text = (
            "INSERT INTO forecasts VALUES (?, ?, ?, ?) ON CONFLICT (issued_s) DO UPDATE SET made_s = excluded.made_s, "
            "network = excluded.network, body = excluded.body WHERE forecasts.network <> excluded.network"
        )
        with self.transaction(write=True) as sql:
            sql.lock()  # nobody takes the lease meanwhile
            if term is not None and not sql.rows("SELECT 1 FROM lease WHERE term = ? AND holder <> ''", term):
                return False
            return bool(sql.run(text, issued_s, made_s, network, body))

    def forecast(self, network: str, issued_s: int | None = None) -> tuple[int, float, bytes] | None:
        """The forecast issued then, or the latest: when it was issued and made, its body. None if not of `network`."""
        which = "(SELECT MAX(issued_s) FROM forecasts)" if issued_s is None else "?"
        text = f"SELECT issued_s, made_s, body FROM forecasts WHERE network = ? AND issued_s = {which}"
        with self.transaction() as sql:
            rows = sql.rows(text, network, *([] if issued_s is None else [issued_s]))
        return next(((at_s, made_s, bytes(body)) for at_s, made_s, body in rows), None)

    def latest_network(self) -> str | None:
        """The network that the latest forecast is of."""
        with self.transaction() as sql:
            found = sql.rows("SELECT network FROM forecasts ORDER BY issued_s DESC LIMIT 1")
        return str(found[0][0]) if found else None

    def withdraw_forecasts(self, after_s: float) -> int:
        """Delete forecasts issued after this time, which happens if the clock goes back. Returns how many."""
        with self.transaction(write=True) as sql:
            return sql.run("DELETE FROM forecasts WHERE issued_s > ?", after_s)

    def state(self) -> tuple[int | None, int]:
        """When the latest forecast was issued, and how often closures have changed. Cheap enough to poll."""
        with self.transaction() as sql:
            (latest,) = sql.rows("SELECT MAX(issued_s) FROM forecasts")
            changes = sql.rows("SELECT value FROM facts WHERE name = ?", "closures")
        return latest[0], int(changes[0][0]) if changes else 0

    def add_scores(self, time_s: int, network: str, body: bytes) -> None:
        """Store the scores of a snapshot, replacing earlier ones."""
        with self.transaction(write=True) as sql:
            sql.run(
                "INSERT INTO scores VALUES (?, ?, ?) ON CONFLICT (time_s) "
                "DO UPDATE SET network = excluded.network, body = excluded.body",
                time_s,
                network,
                body,
            )

    def scores(self, begin_s: int, network: str) -> list[tuple[int, bytes]]:
        """The scores of the snapshots since `begin_s`, in chronological order."""
        with self.transaction() as sql:
            rows = sql.rows(
                "SELECT time_s, body FROM scores WHERE time_s >= ? AND network = ? ORDER BY time_s", begin_s, network
            )
        return [(time_s, bytes(body)) for time_s, body in rows]

    # Tokens

    def add_token(self, token: Token, *, first: bool = False, by: Actor | None = None) -> bool:
        """Store a token. `first`: only if there has never been one. Returns whether it was stored."""
        with self.transaction(write=True) as sql:
            sql.lock()
            if first and sql.rows("SELECT 1 FROM tokens LIMIT 1"):
                return False
            sql.run(
                f"INSERT INTO tokens ({_TOKEN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                token.id,
                token.name,
                token.role,
                token.hash,
                token.created_s,
                token.revoked_s,
                token.expires_s,
                "\n".join(token.sensors),
                token.per_minute,
            )
            audit.note(sql, by, "token.create", f"{token.id}: {token.name} ({token.role})")
            return True

    def tokens(self) -> list[Token]:
        with self.transaction() as sql:
            rows = sql.rows(f"SELECT {_TOKEN} FROM tokens ORDER BY created_s, id")
        return [
            Token(token_id, name, role, bytes(hashed), created, revoked, expires, tuple(sensors.splitlines()), most)
            for token_id, name, role, hashed, created, revoked, expires, sensors, most in rows
        ]

    def revoke_token(self, token_id: str, now_s: int, by: Actor | None = None) -> bool:
        """Returns False if there is no such valid token."""
        with self.transaction(write=True) as sql:
            text = "UPDATE tokens SET revoked_s = ? WHERE id = ? AND revoked_s IS NULL"
            revoked = bool(sql.run(text, now_s, token_id))
            if revoked:
                audit.note(sql, by, "token.revoke", token_id)
            return revoked

    # The audit trail

    def note(self, by: Actor, action: str, subject: str) -> None:
        """Write that somebody did something that changes no table of the store."""
        with self.transaction(write=True) as sql:
            audit.note(sql, by, action, subject)

    def audit(self, *, before: str | None = None, most: int, action: str | None = None) -> list[AuditEntry]:
        """Who did what, newest first.

        Parameters
        ----------
        before
            The id of an entry; only those before it.
        most
            How many.
        action
            Only those, such as "closure.begin".
        """
        with self.transaction() as sql:
            return audit.entries(sql, before=before, most=most, action=action)

    def audit_span_s(self) -> tuple[float, float] | None:
        """The times of the newest entry and of that in the middle."""
        with self.transaction() as sql:
            return audit.span(sql)

    def forget_audit(self, before_s: float) -> int:
        """Delete older entries. Returns the number of rows."""
        with self.transaction(write=True) as sql:
            return audit.forget(sql, before_s)

    # The whole store

    def claim(self, city: str) -> None:
        """Record which city the store belongs to; refuse a store of another city."""
        with self.transaction(write=True) as sql:
            sql.lock()
            found = sql.rows("SELECT value FROM facts WHERE name = ?", "city")
            if not found:
                sql.run("INSERT INTO facts VALUES (?, ?)", "city", city)
            elif found[0][0] != city:
                raise ServiceError(f"the store belongs to {found[0][0]}, not to {city}. Choose another --store")

    def identity(self) -> str:
        """A name of this store that no other has."""
        with self.transaction(write=True) as sql:
            sql.lock()
            found = sql.rows("SELECT value FROM facts WHERE name = ?", "identity")
            if not found:
                sql.run("INSERT INTO facts VALUES (?, ?)", "identity", secrets.token_hex(4))
                found = sql.rows("SELECT value FROM facts WHERE name = ?", "identity")
        return str(found[0][0])

    def check_writable(self) -> None:
        """Write something. StoreGoneError if that is not possible, or soon will not be."""
        self.set_fact("written", "." * PROBE_CHARACTERS)

    def fact(self, name: str) -> str | None:
        """The text stored under a name."""
        with self.transaction() as sql:
            found = sql.rows("SELECT value FROM facts WHERE name = ?", name)
        return str(found[0][0]) if found else None

    def set_fact(self, name: str, value: str) -> None:
        with self.transaction(write=True) as sql:
            sql.run(
                "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value
            )

    # What is old

    def newest_reading_s(self, until_s: float) -> float | None:
        """The time of the newest reading that is not after `until_s`."""
        with self.transaction() as sql:
            ((newest_us,),) = sql.rows("SELECT MAX(time_us) FROM readings WHERE time_us <= ?", int(until_s * 1_000_000))
        return None if newest_us is None else newest_us / 1e6

    def middle_reading_s(self) -> int | None:
        """A time before which are half of the periods that have readings."""
        with self.transaction() as sql:
            found = sql.rows(f"SELECT period FROM reading_changes ORDER BY period {_MIDDLE.format('reading_changes')}")
        return found[0][0] * PERIOD_US // 1_000_000 if found else None

    def middle_forecast_s(self) -> int | None:
        """A time before which half of the forecasts were issued."""
        with self.transaction() as sql:
            found = sql.rows(f"SELECT issued_s FROM forecasts ORDER BY issued_s {_MIDDLE.format('forecasts')}")
        return found[0][0] if found else None

    def forget_readings(self, before_s: int) -> int:
        """Delete older readings. Returns the number of rows."""
        gone = 0
        readings = "DELETE FROM readings WHERE time_us < ? AND time_us <= (SELECT MAX(time_us) FROM (SELECT time_us "
        readings += f"FROM readings WHERE time_us < ? ORDER BY time_us LIMIT {FORGET_ROWS}) AS oldest)"
        while True:
            with self.transaction(write=True) as sql:
                deleted = sql.run(readings, before_s * 1_000_000, before_s * 1_000_000)
            gone += deleted
            if deleted < FORGET_ROWS:
                break
        with self.transaction(write=True) as sql:
            sql.run("DELETE FROM reading_changes WHERE period < ?", before_s * 1_000_000 // PERIOD_US)
            gone += quarantine.forget(sql, before_s * 1_000_000)
        return gone

    def forget_forecasts(self, before_s: int) -> int:
        """Delete older forecasts and scores. Returns the number of rows."""
        with self.transaction(write=True) as sql:
            gone = sql.run("DELETE FROM forecasts WHERE issued_s < ?", before_s)
            return gone + sql.run("DELETE FROM scores WHERE time_s < ?", before_s)

    def forget_closures(self, before_s: int) -> int:
        """Delete closures that ended earlier. Returns the number of rows."""
        with self.transaction(write=True) as sql:
            return sql.run("DELETE FROM closures WHERE end_s IS NOT NULL AND end_s < ?", before_s)


_TOKEN = "id, name, role, hash, created_s, revoked_s, expires_s, sensors, per_minute"
_ACTIVE = "end_s IS NULL OR (end_s > ? AND end_s > begin_s)"
_MIDDLE = "LIMIT 1 OFFSET (SELECT COUNT(*) / 2 FROM {})"


def _closures(sql: Sql, where: str, *values: object, most: int | None = None) -> list[Closure]:
    """`where` must be a constant, never user input. A time that no calendar has is cut: such a row breaks no read."""
    text = f"SELECT id, source, target, begin_s, end_s, created_s FROM closures WHERE {where} ORDER BY begin_s, id"
    if most is not None:
        text = f"{text} LIMIT ?"
        values = (*values, most)
    return [
        Closure(closure_id, source, target, _within(begin_s), None if end_s is None else _within(end_s), created_s)
        for closure_id, source, target, begin_s, end_s, created_s in sql.rows(text, *values)
    ]


def _put(sql: Sql, changed: Sequence[Reading], received_s: float) -> None:
    """Store readings, and count the change for those who cache them."""
    if not changed:
        return
    sql.put(changed, received_s)
    for period in sorted({reading.time_us // PERIOD_US for reading in changed}):
        sql.run(
            "INSERT INTO reading_changes VALUES (?, 1) ON CONFLICT (period) "
            "DO UPDATE SET changes = reading_changes.changes + 1",
            period,
        )


def _within(time_s: int) -> int:
    return min(max(time_s, 0), LAST_S)


def _count_up(sql: Sql, name: str) -> None:
    if not sql.run("UPDATE facts SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = ?", name):
        sql.run("INSERT INTO facts VALUES (?, ?)", name, "1")
