"""Where the service keeps readings, closures, forecasts and tokens: SQLite, or PostgreSQL for several processes."""

from __future__ import annotations

from frigate.errors import ServiceError
from frigate.serve.store.base import PERIOD_US, Store
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
    StoreGoneError,
    Token,
)

__all__ = [
    "DEFAULT_FILE",
    "LAST_S",
    "PERIOD_US",
    "REPLAY_FILE",
    "Actor",
    "AuditEntry",
    "Closure",
    "Delivery",
    "LeaseState",
    "Reading",
    "ReadingPart",
    "SensorFacts",
    "Store",
    "StoreGoneError",
    "Token",
    "open_store",
]

DEFAULT_FILE = "service.db"  # in the folder of a run
REPLAY_FILE = "replay.db"  # for replays, kept apart from live data


def open_store(url: str) -> Store:
    """Open a store and bring its tables up to date.

    Parameters
    ----------
    url
        A file for SQLite, such as `store.db` or `sqlite:store.db`; or `postgresql://user@host/database`.
    """
    kind, colon, rest = url.partition(":")
    if kind in ("postgresql", "postgres"):
        from frigate.serve.store.postgres import PostgresStore

        return PostgresStore(url).prepared()
    if colon and "://" in url:
        raise ServiceError(f'--store "{kind}://...": give a file for SQLite, or postgresql://user@host/database')
    from frigate.serve.store.sqlite import SqliteStore

    return SqliteStore(rest if kind == "sqlite" else url).prepared()
