"""The embedded store: one SQLite file in WAL mode, and a lock file beside it for the clock.

Threads borrow a connection for the length of a transaction. There are `READERS` of them and one for writing, however
many threads there are: a server's threads come and go, and a connection of each would be left behind.
"""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from frigate.serve.store.base import Store
from frigate.serve.store.rows import Reading, StoreGoneError

READERS = 8  # that do not wait for each other, nor for the writer
WAIT_S = 3.0  # for a connection to read with; then the client is told to retry
FREE_BYTES = 16 * 2**20  # a disk with less is full
BUSY_S = 10.0  # how long to wait for another writer, of this process or another


class SqliteStore(Store):
    """A SQLite store. Readers do not wait for the writer."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._readers = _Connections(self._open_reader, READERS, wait_s=WAIT_S)
        self._writer = _Connections(self._open, 1, wait_s=BUSY_S)
        self._clock: IO[str] | None = None

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[_SqliteSql]:
        connections = self._writer if write else self._readers
        connection = connections.borrow()
        usable = True
        try:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield _SqliteSql(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
                usable = write and "locked" in str(error)
                raise StoreGoneError(
                    f"{self.path.name}: {error}. Check the disk and its free space; nothing was stored"
                ) from error
            raise
        finally:
            connections.give_back(connection, usable=usable)

    def _open(self) -> sqlite3.Connection:
        connection = None
        try:
            # check_same_thread=False: one thread at a time uses it, but not always the same.
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk
            connection.execute("PRAGMA cache_size = -4000")
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            raise StoreGoneError(f"{self.path}: {error}. Choose a writable file") from error
        return connection

    def _open_reader(self) -> sqlite3.Connection:
        connection = self._open()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def check_writable(self) -> None:
        if shutil.disk_usage(self.path.absolute().parent).free < FREE_BYTES:
            raise StoreGoneError(f"{self.path.name}: the disk is full")
        super().check_writable()

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
        """Close all connections: those that are in use, when they come back."""
        self.release_clock()
        self._readers.close()
        self._writer.close()


class _Connections:
    """Lends up to `most` connections, opened when they are needed, and closes them."""

    def __init__(self, open_one: Callable[[], sqlite3.Connection], most: int, *, wait_s: float) -> None:
        self._open_one = open_one
        self._wait_s = wait_s
        self._free = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []  # the last used is lent first: the others are seldom needed
        self._closed = False

    def borrow(self) -> sqlite3.Connection:
        """A connection; StoreGoneError if none is free in time."""
        if not self._free.acquire(timeout=self._wait_s):
            raise StoreGoneError(f"the store has been busy for {self._wait_s:g} s. Nothing was stored; try again")
        try:
            with self._lock:
                if self._closed:
                    raise StoreGoneError("the store is closed")
                if self._idle:
                    return self._idle.pop()
            return self._open_one()
        except BaseException:
            self._free.release()
            raise

    def give_back(self, connection: sqlite3.Connection, *, usable: bool) -> None:
        """End a loan. A connection that is not usable is closed; the next loan opens another."""
        with self._lock:
            keep = usable and not self._closed
            if keep:
                self._idle.append(connection)
        if not keep:
            with suppress(sqlite3.Error):
                connection.close()
        self._free.release()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = self._idle
            self._idle = []
        for connection in idle:
            with suppress(sqlite3.Error):
                connection.close()


class _SqliteSql:
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

    def put(self, readings: Sequence[Reading], received_s: float, *, table: str = "readings") -> None:
        self._connection.executemany(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?) ON CONFLICT (time_us, node) "
            "DO UPDATE SET value = excluded.value, received_s = excluded.received_s",
            [(time_us, node, value, received_s) for node, time_us, value in readings],
        )

    def lock(self) -> None:
        """Nothing to do: write transactions already exclude each other."""
