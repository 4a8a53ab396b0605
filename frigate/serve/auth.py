"""Tokens and roles. The store keeps only hashes of tokens.

A token is `frg_ID_SECRET`. The id selects the hash, which is compared in constant time. Secrets have 256 random bits,
so one round of SHA-256 is enough.

There is no service without a token: its first start makes one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from frigate.calendar import DAY_S
from frigate.errors import ServiceError, did_you_mean
from frigate.serve.steady_time import SteadyTime
from frigate.serve.store import LAST_S, Actor, Store, Token

ROLES = {
    "read": frozenset({"read"}),  # forecasts, map, what-ifs
    "write": frozenset({"write"}),  # send readings only: these tokens are stored in roadside cabinets
    "operate": frozenset({"read", "operate"}),  # also close and reopen roads
    "replay": frozenset({"read", "write", "operate"}),  # for `frigate replay`
    "admin": frozenset({"read", "write", "operate", "admin"}),
}
CACHED_S = 2.0  # a revoked token may still work for this long
UNKNOWN_S = 0.1  # a new one may not yet work for this long
FIRST_NAME = "first start"


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    id: str  # of the token; "" if none is needed
    name: str
    role: str
    by: str = "token"  # what identifies them: "token", "cookie", "socket", or "sso" for a proxy that signs users in
    sensors: frozenset[str] = frozenset()  # that they may send readings of; none: all
    per_minute: int | None = None  # readings that they may send
    until: float | None = None  # by the monotonic clock, when they have to be identified again

    @property
    def rights(self) -> frozenset[str]:
        return ROLES.get(self.role, frozenset())

    @property
    def key(self) -> str:
        """Names them among all callers, for limits."""
        return self.id or f"{self.by}:{self.name}"

    def at(self, client: str) -> Actor:
        """As the audit trail names them when they are at this address."""
        return Actor(self.id, self.name, self.role, client)


OWNER = Caller("", "owner of the process", "admin", by="socket")  # over the Unix socket, which no other user is


def make_token(
    store: Store,
    name: str,
    role: str,
    now_s: int,
    *,
    days: float | None = None,
    sensors: Sequence[str] = (),
    per_minute: int | None = None,
    by: Actor | None = None,
) -> str:
    """Create a token. The returned text cannot be recovered later.

    Parameters
    ----------
    store
        Of the service.
    name, role
        Whose it is, and one of `ROLES`.
    now_s
        Seconds since 1970 UTC.
    days
        How long it is valid; None: until it is revoked.
    sensors
        Nodes or detectors that it may send readings of; none: all.
    per_minute
        Readings that it may send; None: any number.
    by
        Who makes it, for the audit trail.
    """
    token, text = _new_token(name, role, now_s)
    if (sensors or per_minute is not None) and "write" not in ROLES[role]:
        raise ServiceError(f'a token with the role "{role}" sends no readings, so it has no sensors and no quota')
    if days is not None and not 0 < days * DAY_S <= LAST_S - now_s:
        raise ServiceError(f"--days {days:g}: give a number of days above 0, such as 365")
    expires_s = None if days is None else now_s + max(1, round(days * DAY_S))
    if per_minute is not None and per_minute < 1:
        raise ServiceError(f"--per-minute {per_minute}: give a number of readings above 0")
    names = tuple(dict.fromkeys(sensors))
    if not all(name.isprintable() and name for name in names):
        raise ServiceError("the names of sensors must be printable")
    store.add_token(replace(token, expires_s=expires_s, sensors=names, per_minute=per_minute), by=by)
    return text


def first_token(store: Store, now_s: int) -> str | None:
    """A token with every right, if the store has never had any; else None."""
    token, text = _new_token(FIRST_NAME, "admin", now_s)
    return text if store.add_token(token, first=True, by=Actor("", FIRST_NAME, "admin", "")) else None


def _new_token(name: str, role: str, now_s: int) -> tuple[Token, str]:
    if role not in ROLES:
        raise ServiceError(f'role "{role}"{did_you_mean(role, list(ROLES))}: choose one of {", ".join(ROLES)}')
    if not name.isprintable() or not 1 <= len(name.strip()) <= 80:
        raise ServiceError("a token needs a name of 1 to 80 printable characters, such as its owner's")
    token_id = secrets.token_hex(4)
    secret = secrets.token_urlsafe(32)
    return Token(token_id, name.strip(), role, _hash(secret), now_s, None), f"frg_{token_id}_{secret}"


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def link(url: str, token: str) -> str:
    """The link that signs a browser in: the page sends the token once and gets a cookie.

    The token is in the fragment, which browsers send to no server, so that no log of a proxy has it.
    """
    return f"{url}#token={token}"


def _parts(text: str) -> tuple[str, str, str]:
    """The prefix, the id and the secret of a token."""
    prefix, _, rest = text.partition("_")
    token_id, _, secret = rest.partition("_")
    return prefix, token_id, secret


class TokenCheck:
    """Checks tokens against those of the store, which it caches for a moment.

    Parameters
    ----------
    store
        Of the service.
    now
        Returns the time in seconds since 1970 UTC. Default: the system's, without its jumps.
    """

    def __init__(self, store: Store, *, now: Callable[[], float] | None = None) -> None:
        self._store = store
        self._now = SteadyTime() if now is None else now
        self._lock = threading.Lock()
        self._tokens: dict[str, Token] = {}
        self._read_at = float("-inf")
        # Browsers send a host's cookies to all its ports, so each service needs a name of its own.
        self.cookie = f"frigate-{store.identity()}"

    def is_recent(self, text: str) -> bool:
        """Whether the cache is recent enough to judge this token."""
        most_s = CACHED_S if _parts(text)[1] in self._tokens else UNKNOWN_S
        return time.monotonic() - self._read_at < most_s

    def refresh(self, text: str = "") -> None:
        """Read the tokens again if the cache is too old to judge this one. Blocks."""
        with self._lock:
            if not self.is_recent(text):
                self._tokens = {token.id: token for token in self._store.tokens()}
                self._read_at = time.monotonic()

    def caller(self, text: str) -> Caller | None:
        """The caller that a token identifies, or None. Ask `is_recent` before."""
        prefix, token_id, secret = _parts(text)
        token = self._tokens.get(token_id)
        same = hmac.compare_digest(_hash(secret), token.hash if token else bytes(32))
        if prefix != "frg" or token is None or not token.valid(self._now()) or not same:
            return None
        return Caller(token.id, token.name, token.role, sensors=frozenset(token.sensors), per_minute=token.per_minute)

    def admits(self, caller: Caller) -> bool:
        """Whether a caller who was admitted once still is."""
        if not caller.id:
            return caller.until is None or time.monotonic() < caller.until
        token = self._tokens.get(caller.id)
        return token is not None and token.valid(self._now())
