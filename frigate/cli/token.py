"""`frigate token`: create, list and revoke tokens."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import log, notice, print_json, print_table, say, status
from frigate.cli.parser import JSON, Argument, Command, CommandGroup

if TYPE_CHECKING:
    from frigate.serve.store import Actor, Store

LIMITS = ("expires", "sensors", "per minute")  # columns that are shown where a token has any
STORE = Argument("STORE", "run folder of the service, or its --store: a file, or postgresql://user@host/database")


def create(args: Namespace) -> None:
    from frigate.serve.auth import ROLES, make_token

    _refuse_unknown(args.store, args.sensor)
    with service_store(args.store, new=True) as store:
        token = make_token(
            store,
            args.name,
            args.role,
            int(time.time()),
            days=args.days,
            sensors=args.sensor,
            per_minute=args.per_minute,
            by=_actor(),
        )
    log(f'Token "{args.name}" with role {args.role}. It is shown only once; the store keeps only its hash:')
    print(token)
    if "read" in ROLES[args.role]:
        log("In a browser, the address of the service followed by #token= and the token opens the map with it.")


def show(args: Namespace) -> None:
    from frigate.calendar import utc_iso

    with service_store(args.store) as store:
        rows = [
            {
                "id": token.id,
                "name": token.name,
                "role": token.role,
                "created": utc_iso(token.created_s),
                "expires": "" if token.expires_s is None else utc_iso(token.expires_s),
                "revoked": "" if token.revoked_s is None else utc_iso(token.revoked_s),
                "sensors": ", ".join(token.sensors),
                "per minute": "" if token.per_minute is None else str(token.per_minute),
            }
            for token in store.tokens()
        ]
    if args.json:
        print_json(rows)
    elif rows:
        used = [name for name in rows[0] if name not in LIMITS or any(row[name] for row in rows)]
        print_table([{name: row[name] for name in used} for row in rows], left=used)
    else:
        say("No tokens yet: the service makes one when it first starts.")


def revoke(args: Namespace) -> None:
    from frigate.errors import ServiceError

    with service_store(args.store) as store:
        if not store.revoke_token(args.id, int(time.time()), _actor()):
            valid = ", ".join(token.id for token in store.tokens() if token.valid(time.time()))
            raise ServiceError(f'no valid token has the id "{args.id}". Valid ids: {valid or "none"}')
    say(f"Token {args.id} is revoked; the service refuses it within two seconds.")


def _refuse_unknown(place: str, sensors: list[str]) -> None:
    """Refuse a name that the city does not have: its readings would all be refused."""
    from frigate.errors import ServiceError, did_you_mean
    from frigate.training.checkpoint import load_run

    if not sensors:
        return
    if not Path(place).is_dir():
        notice("Give the run folder instead of the store to have the names of the sensors checked")
        return
    with status(f"Opening {place}"):
        city = load_run(Path(place)).open_city()
    known = [*map(str, city.network.node_ids.tolist()), *city.detectors.alone()]
    for name in sensors:
        if name not in known:
            raise ServiceError(f'--sensor "{name}": the city has no such node or detector{did_you_mean(name, known)}')


def _actor() -> Actor:
    """Who types the command."""
    import getpass

    from frigate.serve.store import Actor

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "unknown"
    return Actor("", user, "", "command line")


@contextmanager
def service_store(place: str, *, new: bool = False) -> Iterator[Store]:
    """The store of a service, by its address or the folder of its run."""
    from frigate.errors import ServiceError
    from frigate.serve.store import DEFAULT_FILE, open_store

    path = Path(place)
    url = str(path / DEFAULT_FILE) if path.is_dir() else place
    if not new and "://" not in url and not Path(url.removeprefix("sqlite:")).exists():
        raise ServiceError(f"{url}: no such store. Give the run folder, or the --store of frigate serve")
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


TOKEN = CommandGroup(
    "token",
    "Create, list and revoke the tokens of a service.",
    (
        Command(
            "create",
            "Create a token and print it.",
            create,
            (
                STORE,
                Argument("--name NAME", "owner or purpose", required=True),
                Argument(
                    "--role ROLE",
                    "read: forecasts and map; write: send readings only; operate: read, and close "
                    "roads; replay: for `frigate replay`; admin: everything",
                    default="read",
                    choices=("read", "write", "operate", "replay", "admin"),
                ),
                Argument("--days DAYS", "how long it is valid (default: until it is revoked)", float),
                Argument(
                    "--sensor NAME", "node or detector that it may send readings of; may be repeated", repeated=True
                ),
                Argument("--per-minute READINGS", "how many readings it may send", int),
            ),
        ),
        Command("list", "List the tokens, without their secrets.", show, (STORE, JSON)),
        Command("revoke", "Revoke a token.", revoke, (STORE, Argument("ID", "id, from `frigate token list`"))),
    ),
)
