"""Logs as JSON lines, so that user input stays inside its string."""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO

from frigate.calendar import utc_iso

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonLines(logging.Formatter):
    """time, level, event, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": utc_iso(round(record.created, 3)),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def log_to(stream: TextIO = sys.stderr, *, level: str = "info") -> None:
    """Send the logs of the service and of uvicorn to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name in ("frigate.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper() if name == "frigate.serve" else "WARNING")
