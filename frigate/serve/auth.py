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
from dataclasses import dataclass

from frigate.errors import ServiceError, did_you_mean
from frigate.serve.store import Store, Token

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
    by: str = "token"  # what identifies them: "token", "cookie" or "socket"

    @property
    def rights(self) -> frozenset[str]:
        return ROLES.get(self.role, frozenset())

    @property
    def key(self) -> str:
        """Names them among all callers, for limits."""
        return self.id or self.by


OWNER = Caller("", "owner of the process", "admin", by="socket")  # over the Unix socket, which no other user is


def make_token(store: Store, name: str, role: str, now_s: int) -> str:
    """Create a token. The returned text cannot be recovered later."""
    token, text = _new_token(name, role, now_s)
    store.add_token(token)
    return text


def first_token(store: Store, now_s: int) -> str | None:
    """A token with every right, if the store has never had any; else None."""
    token, text = _new_token(FIRST_NAME, "admin", now_s)
    return text if store.add_token(token, first=True) else None


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
    """Checks tokens against those of the store, which it caches for a moment."""

    def __init__(self, store: Store) -> None:
        self._store = store
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
        if prefix != "frg" or token is None or token.revoked_s is not None or not same:
            return None
        return Caller(token.id, token.name, token.role)

    def admits(self, caller: Caller) -> bool:
        """Whether a caller who was admitted once still is."""
        if not caller.id:
            return True
        token = self._tokens.get(caller.id)
        return token is not None and token.revoked_s is None
