"""The audit trail: who did what, when and from where. Nothing but age deletes an entry.

An action is written in the transaction that does it. Readings are counted, by sender, status and minute: an entry for
each batch could be larger than its readings.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from frigate.serve.store.rows import Actor, AuditEntry, Delivery, Sql

MINUTE_S = 60
READINGS = "readings"  # the action of sending them
BATCHES = "batches"  # what is counted of a sender beside the readings of each status
_COLUMNS = "id, time_s, token, name, role, client, action, subject, number"


def note(sql: Sql, by: Actor | None, action: str, subject: str, count: int = 1) -> None:
    """Write that somebody did something just now; nothing if there is nobody to name."""
    if by is not None:
        now_s = time.time()
        _write(sql, AuditEntry(f"{_sortable(now_s)}-{secrets.token_hex(6)}", now_s, *by, action, subject, count))


def note_deliveries(sql: Sql, deliveries: Iterable[Delivery], statuses: Sequence[str]) -> None:
    """Count what was sent, by sender and status: `statuses` are those of all stored rows, in order."""
    begin = 0
    counts = Counter[tuple[Actor, str]]()
    for by, rows, refused in deliveries:
        for status, count in Counter(statuses[begin : begin + rows]).items():
            counts[by, status] += count
        begin += rows
        counts[by, "refused"] += refused
        counts[by, BATCHES] += 1
    minute_s = int(time.time() // MINUTE_S) * MINUTE_S
    found = [_counted(minute_s, by, status, count) for (by, status), count in counts.items() if count]
    for entry in sorted(found):  # the same order in all processes prevents deadlocks
        _write(sql, entry)


def entries(sql: Sql, *, before: str | None, most: int, action: str | None) -> list[AuditEntry]:
    """The newest entries, or those before this id, newest first."""
    where, values = ["1 = 1"], list[object]()
    for condition, value in (("id < ?", before), ("action = ?", action)):
        if value is not None:
            where.append(condition)
            values.append(value)
    text = f"SELECT {_COLUMNS} FROM audit WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?"
    return [AuditEntry(*row) for row in sql.rows(text, *values, most)]


def span(sql: Sql) -> tuple[float, float] | None:
    """The times of the newest entry, and of that in the middle."""
    newest = sql.rows("SELECT time_s FROM audit ORDER BY time_s DESC LIMIT 1")
    middle = sql.rows("SELECT time_s FROM audit ORDER BY time_s LIMIT 1 OFFSET (SELECT COUNT(*) / 2 FROM audit)")
    return (newest[0][0], middle[0][0]) if newest else None


def forget(sql: Sql, before_s: float) -> int:
    """Delete what is older. Returns the number of rows."""
    return sql.run("DELETE FROM audit WHERE time_s < ?", before_s)


def _counted(minute_s: int, by: Actor, status: str, count: int) -> AuditEntry:
    name = hashlib.sha256(repr((by, status)).encode()).hexdigest()[:12]
    return AuditEntry(f"{_sortable(minute_s)}-{name}", float(minute_s), *by, READINGS, status, count)


def _write(sql: Sql, entry: AuditEntry) -> None:
    sql.run(
        f"INSERT INTO audit ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET number = audit.number + excluded.number",
        *entry,
    )


def _sortable(time_s: float) -> str:
    return f"{int(time_s * 1_000_000):017d}"
