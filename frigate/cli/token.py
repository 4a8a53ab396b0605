"""`frigate token`: who may use a service."""

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

STORE = Argument("STORE", "the service's run folder, or its --store: a file, or postgresql://user@host/database")


def create(args: Namespace) -> None:
    from frigate.serve.auth import make_token

    with _store(args.store, new=True) as store:
        token = make_token(store, args.name, args.role, int(time.time()))
    log(f'Token "{args.name}" with role {args.role}. It is shown this once; the store keeps only its hash:')
    print(token)


def show(args: Namespace) -> None:
    from frigate.serve.city import utc

    with _store(args.store) as store:
        rows = [
            {"id": token.id, "name": token.name, "role": token.role, "created": utc(token.created_s),
             "revoked": "" if token.revoked_s is None else utc(token.revoked_s)}
            for token in store.tokens()
        ]  # fmt: skip
    if args.json:
        print_json(rows)
    elif rows:
        print_table(rows, left=("id", "name", "role", "created", "revoked"))
    else:
        say("No token has been made: the service asks for none, and listens on loopback alone.")


def revoke(args: Namespace) -> None:
    from frigate.errors import ServiceError

    with _store(args.store) as store:
        if not store.revoke_token(args.id, int(time.time())):
            known = ", ".join(token.id for token in store.tokens() if token.revoked_s is None)
            raise ServiceError(f'no good token has the id "{args.id}". There are: {known or "none"}')
    say(f"Token {args.id} is revoked; the service refuses it within two seconds.")


@contextmanager
def _store(named: str, *, new: bool = False) -> Iterator[Store]:
    from frigate.errors import ServiceError
    from frigate.serve.store import DEFAULT_FILE, open_store

    path = Path(named)
    url = str(path / DEFAULT_FILE) if path.is_dir() else named
    if not new and "://" not in url and not Path(url.removeprefix("sqlite:")).exists():
        raise ServiceError(f"{url}: there is no store. Name the run's folder, or what frigate serve has as --store")
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


TOKEN = Group(
    "token", "Say who may use a service: make, list and revoke tokens.",
    (
        Command(
            "create", "Make a token and print it, once.", create,
            (
                STORE,
                Argument("--name NAME", "whose it is, or what for", required=True),
                Argument("--role ROLE", "read: forecasts and the map; write: send readings, nothing else; operate: "
                         "read, and close roads; replay: all of it", default="read",
                         choices=("read", "write", "operate", "replay")),
            ),
        ),
        Command("list", "List the tokens. Their secrets are not kept.", show, (STORE, JSON)),
        Command("revoke", "Make a token useless.", revoke, (STORE, Argument("ID", "as `frigate token list` shows it"))),
    ),
)  # fmt: skip
