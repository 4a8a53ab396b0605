"""The embedded store: one SQLite file in WAL mode, and a lock file beside it for the clock."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from frigate.serve.store.base import Reading, Store, StoreGoneError

BUSY_S = 10.0  # how long to wait for another writer


class SqliteStore(Store):
    """A SQLite store with one connection per thread, so that readers do not wait for the writer."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._clock: IO[str] | None = None

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[_Sql]:
        connection = self._connection()
        try:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield _Sql(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
                if not write or "locked" not in str(error):
                    self._drop(connection)
                raise StoreGoneError(
                    f"{self.path.name}: {error}. Check the disk and its free space; nothing was stored"
                ) from error
            raise

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            return connection
        try:
            # check_same_thread=False: another thread may close the store.
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            with self._lock:
                self._opened.append(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk
            connection.execute("PRAGMA cache_size = -16000")
        except sqlite3.DatabaseError as error:
            if connection is not None:
                self._drop(connection)
            raise StoreGoneError(f"{self.path}: {error}. Choose a writable file") from error
        self._local.connection = connection
        return connection

    def _drop(self, connection: sqlite3.Connection) -> None:
        """Close a failed connection; this thread's next transaction opens a new one."""
        self._local.connection = None
        with self._lock:
            if connection in self._opened:
                self._opened.remove(connection)
        with suppress(sqlite3.Error):
            connection.close()

    def hold_clock(self) -> bool:
        if self._clock is not None:
            return True
        file = self.path.with_name(self.path.name + ".clock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends, however it ends
        except OSError:
            file.close()
            return False
        self._clock = file
        return True

    def release_clock(self) -> None:
        if self._clock is not None:
            self._clock.close()
            self._clock = None

    def close(self) -> None:
        self.release_clock()
        with self._lock:
            opened = self._opened
            self._opened = []
        for connection in opened:
            with suppress(sqlite3.Error):
                connection.close()
        self._local = threading.local()


class _Sql:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(text, values).fetchall()

    def run(self, text: str, *values: object) -> int:
        return self._connection.execute(text, values).rowcount

    def known(self, readings: Iterable[Reading]) -> dict[tuple[str, int], float]:
        found = {}
        for node, time_us, _ in readings:
            row = self._connection.execute(
                "SELECT value FROM readings WHERE time_us = ? AND node = ?", (time_us, node)
            ).fetchone()
            if row is not None:
                found[node, time_us] = row[0]
        return found

    def put(self, readings: Sequence[Reading], received_s: float) -> None:
        self._connection.executemany(
            "INSERT INTO readings VALUES (?, ?, ?, ?) ON CONFLICT (time_us, node) "
            "DO UPDATE SET value = excluded.value, received_s = excluded.received_s",
            [(time_us, node, value, received_s) for node, time_us, value in readings],
        )

    def lock(self) -> None:
        """Nothing to do: write transactions already exclude each other."""
