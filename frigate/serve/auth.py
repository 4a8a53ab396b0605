"""Who may do what: tokens of a role, of which the store keeps only hashes.

A token is `frg_ID_SECRET`. Its id says which hash to compare with, in constant time. Secrets have 256 random bits, so
one round of SHA-256 is enough: there is nothing to guess.

Without any token in its store a service answers everybody, and may then only listen on loopback. Even so it refuses
what did not come from this machine: requests that a proxy has passed on, and those for another host's name, which a
browser sends when a page elsewhere makes it (DNS rebinding).
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
    "read": frozenset({"read"}),  # forecasts, the map, what-ifs
    "write": frozenset({"write"}),  # send readings, and nothing else: these tokens lie in boxes at the roadside
    "operate": frozenset({"read", "operate"}),  # and close roads
    "replay": frozenset({"read", "write", "operate"}),  # for `frigate replay`
}
REMEMBERED_S = 2.0  # for so long a revoked token may still be good


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    id: str  # of the token; "" where none is needed
    rights: frozenset[str]


ANYBODY = Caller("", frozenset({"read", "write", "operate"}))


def make_token(store: Store, name: str, role: str, now_s: int) -> str:
    """A new token, to be shown once."""
    if role not in ROLES:
        raise ServiceError(f'role "{role}"{did_you_mean(role, list(ROLES))}: choose one of {", ".join(ROLES)}')
    if not name.isprintable() or not 1 <= len(name.strip()) <= 80:
        raise ServiceError("a token needs a name of 1 to 80 printable characters, such as whose it is")
    token_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    store.add_token(Token(token_id, name.strip(), role, _hash(secret), now_s, None))
    return f"frg_{token_id}_{secret}"


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """Knows the tokens of a store, as they were a moment ago."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._tokens: dict[str, Token] = {}
        self._read_at = float("-inf")

    def refuse_open(self, host: str) -> None:
        """Refuse to listen where others can reach it without a token."""
        self.refresh()
        if not self._tokens and not is_loopback(host):
            raise ServiceError(
                f"--host {host}: others can reach this address, and the store has no token to ask them for. Make one "
                "with frigate token create, or listen on 127.0.0.1"
            )

    @property
    def known(self) -> bool:
        """Whether the tokens were read a moment ago."""
        return time.monotonic() - self._read_at < REMEMBERED_S

    def refresh(self) -> None:
        """Read the tokens again, where that is due. Blocks."""
        with self._lock:
            if not self.known:
                self._tokens = {token.id: token for token in self._store.tokens()}
                self._read_at = time.monotonic()

    def caller(self, authorization: str, *, host: str, forwarded: bool) -> Caller | None:
        """Who sends this header; None: nobody we know.

        Parameters
        ----------
        authorization
            The header of that name.
        host
            The header `Host`.
        forwarded
            Whether a proxy has passed the request on.
        """
        if not self._tokens:
            return ANYBODY if not forwarded and is_loopback(_without_port(host)) else None
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
