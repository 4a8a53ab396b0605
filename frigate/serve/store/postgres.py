"""The store for several service processes: PostgreSQL with a connection pool, and an advisory lock for the clock."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from frigate.errors import MissingExtraError, ServiceError
from frigate.serve.store.base import Store
from frigate.serve.store.rows import Reading, StoreGoneError

if TYPE_CHECKING:
    import psycopg

CONNECTIONS = 8
WAIT_S = 3.0  # for a connection; then the client is told to retry
STATEMENT_S = 20
IDLE_S = 20  # within a transaction: a frozen process keeps its locks no longer
CLOCK_KEY = 0x46524743  # of an advisory lock: "FRGC"
CHANGE_KEY = 0x46524758  # and of another: "FRGX"


class PostgresStore(Store):
    """A PostgreSQL store, which any number of processes may share."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
            from psycopg.conninfo import make_conninfo
            from psycopg_pool import ConnectionPool
        except ImportError:
            raise MissingExtraError("psycopg", "postgres") from None
        self._errors = psycopg
        try:
            self._where = make_conninfo(
                url,
                connect_timeout=max(2, int(WAIT_S)),
                application_name="frigate",
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                options=f"-c statement_timeout={STATEMENT_S}s -c idle_in_transaction_session_timeout={IDLE_S}s",
            )
        except psycopg.ProgrammingError as error:
            raise ServiceError(f"--store: {str(error).strip()}. Give postgresql://user@host/database") from None
        try:
            psycopg.connect(self._where).close()  # the pool's own error would not say why it fails
        except psycopg.OperationalError as error:
            raise StoreGoneError(f"--store: {str(error).splitlines()[0]}. Start PostgreSQL, or fix the URL") from None
        self._pool = ConnectionPool(
            self._where,
            min_size=1,
            max_size=CONNECTIONS,
            timeout=WAIT_S,
            open=False,
            reconnect_timeout=1.0,
            check=ConnectionPool.check_connection,
            num_workers=1,
        )
        self._clock: psycopg.Connection[tuple[Any, ...]] | None = None
        self._clock_lock = threading.Lock()
        self._pool.open()

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[_PostgresSql]:
        try:
            with self._pool.connection() as connection:
                yield _PostgresSql(connection)
        except (self._errors.OperationalError, self._errors.InterfaceError) as error:
            # Only the type: the server's message may contain its address.
            raise StoreGoneError(f"PostgreSQL: {type(error).__name__}. Nothing was stored; try again") from error
        except self._errors.errors.ReadOnlySqlTransaction as error:
            raise StoreGoneError("PostgreSQL is read-only at the moment. Nothing was stored; try again") from error

    def hold_clock(self) -> bool:
        with self._clock_lock:
            try:
                if self._clock is not None:
                    self._clock.execute("SELECT 1")  # the lock is lost with the connection
                    return True
                clock = self._errors.connect(self._where, autocommit=True)
                found = clock.execute("SELECT pg_try_advisory_lock(%s)", (CLOCK_KEY,)).fetchone()
                if found is not None and found[0]:
                    self._clock = clock
                    return True
                clock.close()
                return False
            except self._errors.Error as error:
                self._drop_clock()
                raise StoreGoneError(f"PostgreSQL: {type(error).__name__}. The clock is waiting for it") from error

    def release_clock(self) -> None:
        with self._clock_lock:
            self._drop_clock()

    def _drop_clock(self) -> None:
        if self._clock is not None:
            with suppress(self._errors.Error):  # at once: the server may notice a closed connection late
                self._clock.execute("SELECT pg_advisory_unlock(%s)", (CLOCK_KEY,))
            with suppress(self._errors.Error):
                self._clock.close()
            self._clock = None

    def close(self) -> None:
        self.release_clock()
        self._pool.close(timeout=WAIT_S)


class _PostgresSql:
    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(_psycopg_query(text), values).fetchall()

    def run(self, text: str, *values: object) -> int:
        return self._connection.execute(_psycopg_query(text), values).rowcount

    def known(self, readings: Iterable[Reading]) -> dict[tuple[str, int], float]:
        nodes, times_us = _columns(readings)[:2]
        rows = self._connection.execute(
            "SELECT node, time_us, value FROM readings "
            "JOIN unnest(%s::text[], %s::bigint[]) AS asked(node, time_us) USING (node, time_us)",
            (nodes, times_us),
        )
        return {(node, time_us): value for node, time_us, value in rows}

    def put(self, readings: Sequence[Reading], received_s: float, *, table: str = "readings") -> None:
        nodes, times_us, values = _columns(readings)
        self._connection.execute(
            f"INSERT INTO {table} SELECT new.time_us, new.node, new.value, %s "
            "FROM unnest(%s::text[], %s::bigint[], %s::float8[]) AS new(node, time_us, value) "
            "ORDER BY new.time_us, new.node "  # the same order in all processes prevents deadlocks
            "ON CONFLICT (time_us, node) DO UPDATE SET value = excluded.value, received_s = excluded.received_s",
            (received_s, nodes, times_us, values),
        )

    def lock(self) -> None:
        self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (CHANGE_KEY,))


def _columns(readings: Iterable[Reading]) -> tuple[list[str], list[int], list[float]]:
    rows = list(readings)
    return [row.node for row in rows], [row.time_us for row in rows], [row.value for row in rows]


def _psycopg_query(text: str) -> bytes:
    """With psycopg's placeholders. As bytes, because psycopg types only accept str literals; it never holds values."""
    return text.replace("?", "%s").encode()
