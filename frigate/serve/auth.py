"""Tokens and roles. The store keeps only hashes of tokens.

A token is `frg_ID_SECRET`. The id selects the hash, which is compared in constant time. Secrets have 256 random bits,
so one round of SHA-256 is enough.

A service whose store has no tokens answers everyone, and may then listen on loopback only. Even so it refuses requests
that did not come from this machine: those a proxy forwarded, and those whose Host header names another machine, which
browsers send under DNS rebinding.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
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
}
CACHED_S = 2.0  # a revoked token may still work for this long


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    id: str  # of the token; "" if none is needed
    rights: frozenset[str]


ANYONE = Caller("", frozenset({"read", "write", "operate"}))


def make_token(store: Store, name: str, role: str, now_s: int) -> str:
    """Create a token. The returned text cannot be recovered later."""
    if role not in ROLES:
        raise ServiceError(f'role "{role}"{did_you_mean(role, list(ROLES))}: choose one of {", ".join(ROLES)}')
    if not name.isprintable() or not 1 <= len(name.strip()) <= 80:
        raise ServiceError("a token needs a name of 1 to 80 printable characters, such as its owner's")
    token_id = secrets.token_hex(4)
    secret = secrets.token_urlsafe(32)
    store.add_token(Token(token_id, name.strip(), role, _hash(secret), now_s, None))
    return f"frg_{token_id}_{secret}"


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class TokenCheck:
    """Checks tokens against those of the store, which it caches for a moment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._tokens: dict[str, Token] = {}
        self._read_at = float("-inf")

    def refuse_open(self, host: str) -> None:
        """Refuse to listen on a public address if the store has no tokens."""
        self.refresh()
        if not self._tokens and not is_loopback(host):
            raise ServiceError(
                f"--host {host}: other machines can reach this address, and the store has no token to protect it. "
                "Create one with `frigate token create`, or listen on 127.0.0.1"
            )

    @property
    def known(self) -> bool:
        """Whether the cached tokens are recent enough."""
        return time.monotonic() - self._read_at < CACHED_S

    def refresh(self) -> None:
        """Read the tokens again if the cache is too old. Blocks."""
        with self._lock:
            if not self.known:
                self._tokens = {token.id: token for token in self._store.tokens()}
                self._read_at = time.monotonic()

    def caller(self, authorization: str, *, host: str, forwarded: bool) -> Caller | None:
        """The caller that these headers identify, or None.

        Parameters
        ----------
        authorization
            The Authorization header.
        host
            The Host header.
        forwarded
            Whether a proxy forwarded the request.
        """
        if not self._tokens:
            return ANYONE if not forwarded and is_loopback(_without_port(host)) else None
        kind, _, word = authorization.partition(" ")
        prefix, _, rest = word.strip().partition("_")
        token_id, _, secret = rest.partition("_")
        token = self._tokens.get(token_id)
        same = hmac.compare_digest(_hash(secret), token.hash if token else bytes(32))
        if kind.lower() != "bearer" or prefix != "frg" or token is None or token.revoked_s is not None or not same:
            return None
        return Caller(token.id, ROLES.get(token.role, frozenset()))


def _without_port(host: str) -> str:
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
