"""Readings far beyond what their sensor has read: kept, but not used, until somebody releases them.

They are in a table of their own, so that whatever reads readings does not see them.
"""

from __future__ import annotations

from collections.abc import Mapping

from frigate.serve.store.rows import Reading, Sql

Key = tuple[str, int]  # node and time


def settle(sql: Sql, changed: Mapping[Key, Reading]) -> None:
    """Take out what a plausible reading has corrected."""
    if not changed:
        return
    times_us = [time_us for _, time_us in changed]
    text = "SELECT node, time_us FROM quarantine WHERE time_us >= ? AND time_us <= ?"
    found = sql.rows(text, min(times_us), max(times_us))
    for key in sorted({(node, time_us) for node, time_us in found} & set(changed)):
        sql.run("DELETE FROM quarantine WHERE node = ? AND time_us = ?", *key)


def held(sql: Sql, *, after: Key, most: int, node: str | None) -> list[Reading]:
    """What is in quarantine, by node and time, after a node and time."""
    only, values = ("", ()) if node is None else (" AND node = ?", (node,))
    text = f"SELECT node, time_us, value FROM quarantine WHERE (node, time_us) > (?, ?){only} "
    return [Reading(*row) for row in sql.rows(f"{text}ORDER BY node, time_us LIMIT ?", *after, *values, most)]


def count(sql: Sql) -> dict[str, int]:
    """How many readings are in quarantine, by node."""
    return dict(sql.rows("SELECT node, COUNT(*) FROM quarantine GROUP BY node ORDER BY node"))


def released(sql: Sql) -> dict[str, tuple[float, float]]:
    """The lowest and highest reading that was released, by node."""
    return {node: (least, most) for node, least, most in sql.rows("SELECT node, least, most FROM released")}


def take_out(sql: Sql, node: str) -> list[Reading]:
    """The readings of a node, no longer in quarantine; later ones as large do not go there."""
    rows = sql.rows("SELECT node, time_us, value FROM quarantine WHERE node = ? ORDER BY time_us", node)
    found = [Reading(*row) for row in rows]
    if found:
        values = [reading.value for reading in found]
        least, most = released(sql).get(node, (0.0, 0.0))
        sql.run(
            "INSERT INTO released VALUES (?, ?, ?) ON CONFLICT (node) "
            "DO UPDATE SET least = excluded.least, most = excluded.most",
            node,
            min(least, *values),
            max(most, *values),
        )
        sql.run("DELETE FROM quarantine WHERE node = ?", node)
    return found


def forget(sql: Sql, before_us: int) -> int:
    """Delete what is older. Returns the number of rows."""
    return sql.run("DELETE FROM quarantine WHERE time_us < ?", before_us)
