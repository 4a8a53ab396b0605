"""`frigate replay`: send a stored city's readings to a running service as if they were live."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from frigate.cli.console import log, notice, progress, say
from frigate.cli.parser import CITY, Argument, Command
from frigate.serve.client import DEFAULT_URL, TOKEN_VARIABLE

if TYPE_CHECKING:
    from frigate.city.stream import RoadNetworkStream
    from frigate.serve.replay import Replay


def run(args: Namespace) -> None:
    from frigate.city.folder import open_city
    from frigate.serve.client import ServiceClient
    from frigate.serve.replay import Replay, snapshots_between

    city = open_city(args.city)
    notice(*city.notices)
    first, stop = snapshots_between(city.stream, vars(args)["from"], args.until)
    service = ServiceClient(args.to, args.token or os.environ.get(TOKEN_VARIABLE))
    replay = Replay(city.stream, service, speed=args.speed, say=log)
    readings, refused = send(replay, city.stream, first, stop)
    say(f"Sent {stop - first:,} snapshots with {readings:,} readings to {service.url}; {refused:,} were refused")


def send(replay: Replay, stream: RoadNetworkStream, first: int, stop: int) -> tuple[int, int]:
    """Send snapshots and show progress. Returns how many readings were sent and how many were refused."""
    readings = refused = 0
    with progress("Replay") as update:
        for sent in replay.run(first, stop):
            readings = readings + sent.readings
            refused = refused + sent.refused
            update(sent.snapshot + 1 - first, stop - first, stream.local_time(sent.time_s)[:16])
    return readings, refused


REPLAY = Command(
    "replay",
    "Send a stored city's readings to a service as if they were live.",
    run,
    (
        CITY,
        Argument(
            "--to URL",
            "a service started with `frigate serve RUN --replay`; unix:PATH for one with --socket",
            default=DEFAULT_URL,
        ),
        Argument("--speed X", "speed relative to real time: 60 is an hour in a minute", float, default=1.0),
        Argument("--from TIME", "start time (default: the start of the data)"),
        Argument("--until TIME", "end time (default: the end of the data)"),
        Argument(
            "--token TOKEN", f"token with the role replay or admin (default: the environment variable {TOKEN_VARIABLE})"
        ),
    ),
    details="The replay sets the service's clock. Roads that are closed in the data are closed in the service.",
    if_stopped="the service's clock stands still; continue with --from",
)
