"""`frigate audit`: who did what with a service."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace

from frigate.cli.console import notice, print_json, print_table, say
from frigate.cli.parser import JSON, Argument, Command
from frigate.cli.token import STORE, service_store


def run(args: Namespace) -> None:
    from frigate.calendar import utc_iso

    with service_store(args.store) as store:
        found = store.audit(most=args.limit + 1, action=args.action)
    rows = [
        {
            "time": utc_iso(int(entry.time_s)),
            "action": entry.action,
            "subject": entry.subject,
            "count": entry.number,
            "name": entry.name,
            "role": entry.role,
            "token": entry.token,
            "client": entry.client,
        }
        for entry in found[: args.limit]
    ]
    if args.json:
        print_json(rows)
    elif rows:
        table = [{name: str(value) for name, value in row.items()} for row in rows]
        print_table(table, left=[name for name in table[0] if name != "count"])
    else:
        say("Nothing yet.")
    if len(found) > args.limit:
        notice(f"Only the newest {args.limit:,} entries are shown: --limit shows more")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f'"{text}" is not an integer > 0')
    return int(text)


AUDIT = Command(
    "audit",
    "Show who closed roads, sent readings and made tokens, and when.",
    run,
    (
        STORE,
        Argument("--action ACTION", "only these, such as closure.begin, closure.end, readings or token.create"),
        Argument("--limit N", "how many entries, newest first", _positive, default=100),
        JSON,
    ),
)
