"""Proxies that are trusted: with the address of the client, and, if they sign users in, with who the user is.

Headers can be sent by anybody, so they are read only in requests that come from such a proxy: from its address, or over
the Unix socket. oauth2-proxy sends the headers named here; others can be set up to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from starlette.datastructures import Headers

from frigate.errors import ServiceError, did_you_mean
from frigate.serve.auth import ROLES, Caller

UNIX = "unix"  # stands for whoever may open the Unix socket
FORWARDED_FOR = "x-forwarded-for"
USER, EMAIL, GROUPS = "x-forwarded-user", "x-forwarded-email", "x-forwarded-groups"
EVERYBODY = "*"  # stands for the group of all who are signed in
LONGEST = 80  # characters of a user's name
STREAM_S = 600.0  # an event stream ends after so long, so that the proxy sees whether its user is still signed in


@dataclass(frozen=True)
class Proxies:
    """Which proxies are trusted with the address of a client, and with its user."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    socket: bool = False  # whether whoever is at the Unix socket is one
    role_of: Mapping[str, str] = field(default_factory=dict)  # of users, by group; none: they sign nobody in

    @classmethod
    def parse(cls, proxies: Iterable[str], groups: Iterable[str] = ()) -> Proxies:
        """Read what was typed.

        Parameters
        ----------
        proxies
            Addresses, networks such as 10.0.0.0/8, or "unix".
        groups
            GROUP=ROLE; "*" is everybody.
        """
        named = tuple(dict.fromkeys(proxies))
        roles = dict(_role(text) for text in groups)
        if roles and not named:
            raise ServiceError("--sso: say which proxy signs users in, with --proxy 127.0.0.1 or --proxy unix")
        return cls(tuple(_network(text) for text in named if text != UNIX), UNIX in named, roles)

    def trusts(self, address: str) -> bool:
        """Whether a request that comes from here comes from such a proxy. "" is the Unix socket."""
        if not address:
            return self.socket
        try:
            found = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self.networks)

    def client(self, address: str, headers: Headers) -> str:
        """The address of whoever sent a request, which came from `address`."""
        if not self.trusts(address):
            return address or "unix socket"
        passed = [part.strip() for line in headers.getlist(FORWARDED_FOR) for part in line.split(",")]
        last = address or "unix socket"
        for each in reversed(passed):  # the nearest proxy has appended the last
            try:
                last = str(ip_address(each))
            except ValueError:
                break
            if not self.trusts(last):
                break
        return last

    def user(self, address: str, headers: Headers) -> Caller | None:
        """The user whom a proxy has signed in, with the role of the group that may do most; None if there is none."""
        if not self.role_of or not self.trusts(address):
            return None
        names = [headers.getlist(name) for name in (EMAIL, USER)]
        name = next((found[0].strip() for found in names if found and found[0].strip()), "")
        if not name.isprintable() or not 0 < len(name) <= LONGEST or any(len(found) > 1 for found in names):
            return None  # twice: somebody has sent one of their own
        groups = [part.strip() for line in headers.getlist(GROUPS) for part in line.split(",")]
        roles = [self.role_of[group] for group in (EVERYBODY, *groups) if group in self.role_of]
        if not roles:
            return None
        role = max(roles, key=lambda role: len(ROLES[role]))
        return Caller("", name, role, by="sso", until=time.monotonic() + STREAM_S)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ServiceError(
            f'--proxy "{text}": give an address such as 127.0.0.1, a network such as 10.0.0.0/8, or {UNIX}'
        ) from None


def _role(text: str) -> tuple[str, str]:
    group, equals, role = text.rpartition("=")
    if not equals or not group.strip():
        raise ServiceError(f'--sso "{text}": give GROUP=ROLE, such as traffic-control=operate, or {EVERYBODY}=read')
    if role not in ROLES:
        hint = did_you_mean(role, list(ROLES))
        raise ServiceError(f'--sso "{text}": role "{role}"{hint}: choose one of {", ".join(ROLES)}')
    return group.strip(), role
