"""`frigate token`: create, list and revoke tokens."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from frigate.cli.console import log, print_json, print_table, say
from frigate.cli.parser import JSON, Argument, Command, Group

if TYPE_CHECKING:
    from frigate.serve.store import Store

STORE = Argument("STORE", "run folder of the service, or its --store: a file, or postgresql://user@host/database")


def create(args: Namespace) -> None:
    from frigate.serve.auth import ROLES, make_token

    with _store(args.store, new=True) as store:
        token = make_token(store, args.name, args.role, int(time.time()))
    log(f'Token "{args.name}" with role {args.role}. It is shown only once; the store keeps only its hash:')
    print(token)
    if "read" in ROLES[args.role]:
        log("In a browser, the address of the service followed by #token= and the token opens the map with it.")


def show(args: Namespace) -> None:
    from frigate.calendar import utc_iso

    with _store(args.store) as store:
        rows = [
            {
                "id": token.id,
                "name": token.name,
                "role": token.role,
                "created": utc_iso(token.created_s),
                "revoked": "" if token.revoked_s is None else utc_iso(token.revoked_s),
            }
            for token in store.tokens()
        ]
    if args.json:
        print_json(rows)
    elif rows:
        print_table(rows, left=("id", "name", "role", "created", "revoked"))
    else:
        say("No tokens yet: the service makes one when it first starts.")


def revoke(args: Namespace) -> None:
    from frigate.errors import ServiceError

    with _store(args.store) as store:
        if not store.revoke_token(args.id, int(time.time())):
            valid = ", ".join(token.id for token in store.tokens() if token.revoked_s is None)
            raise ServiceError(f'no valid token has the id "{args.id}". Valid ids: {valid or "none"}')
    say(f"Token {args.id} is revoked; the service refuses it within two seconds.")


@contextmanager
def _store(place: str, *, new: bool = False) -> Iterator[Store]:
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


TOKEN = Group(
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
            ),
        ),
        Command("list", "List the tokens, without their secrets.", show, (STORE, JSON)),
        Command("revoke", "Revoke a token.", revoke, (STORE, Argument("ID", "id, from `frigate token list`"))),
    ),
)
