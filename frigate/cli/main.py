"""`frigate`: the entry point of the command line.

Each command's module imports what it computes with inside `run`, so that help and usage errors are instant, and so that
the command line works on a machine with only torch, numpy, scipy and safetensors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from frigate.cli.audit import AUDIT
from frigate.cli.bench import BENCH
from frigate.cli.check import CHECK
from frigate.cli.completion import COMPLETION
from frigate.cli.console import complain
from frigate.cli.demand import DEMAND
from frigate.cli.demo import DEMO
from frigate.cli.evaluate import EVALUATE
from frigate.cli.exports import EXPORT
from frigate.cli.forecast import FORECAST
from frigate.cli.imports import IMPORT
from frigate.cli.parser import Command, Parser, add_commands
from frigate.cli.place import PLACE
from frigate.cli.replay import REPLAY
from frigate.cli.report import REPORT
from frigate.cli.reproduce import REPRODUCE
from frigate.cli.scenario import SCENARIO
from frigate.cli.serve import SERVE
from frigate.cli.token import TOKEN
from frigate.cli.train import TRAIN
from frigate.errors import FrigateError
from frigate.version import __version__

COMMANDS = (
    DEMO,
    IMPORT,
    CHECK,
    DEMAND,
    PLACE,
    TRAIN,
    EVALUATE,
    FORECAST,
    SCENARIO,
    REPORT,
    SERVE,
    TOKEN,
    AUDIT,
    REPLAY,
    REPRODUCE,
    BENCH,
    EXPORT,
    COMPLETION,
)
OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # in torch's error messages
FAILED = 2  # exit status: an error
STOPPED = 130  # exit status: Ctrl-C


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. User errors print one line, never a traceback.

    Parameters
    ----------
    words
        What was typed after `frigate`; default: the arguments of this process.
    """
    with _joined_processes():
        parser = build_parser()
        typed = parser.parse_args(words)
        if typed.run_command is None:
            print((typed.group or parser).format_help(), end="")
            return FAILED
        command: Command = typed.run_command
        try:
            return command.run(typed) or 0
        except FrigateError as error:
            complain(str(error))
        except BrokenPipeError:  # the reader, such as `head`, closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:  # a full disk, a folder without permission
            complain(": ".join(filter(None, (str(error.filename or ""), error.strerror or str(error)))))
        except MemoryError as error:
            complain(_no_memory(str(error)))
        except RuntimeError as error:  # torch has no MemoryError
            if not any(text in str(error) for text in OUT_OF_MEMORY):
                raise
            complain(_no_memory(str(error)))
        except ModuleNotFoundError as error:
            if (error.name or "frigate").startswith("frigate"):
                raise
            complain(f"this needs {error.name}, which is not installed. Run: pip install frigate-forecast")
        except KeyboardInterrupt:
            complain(f"stopped; {command.if_stopped}")
            return STOPPED
        return FAILED


def build_parser() -> Parser:
    """The parser of all commands."""
    started_by_python = Path(sys.argv[0]).parts[-2:] == ("frigate", "__main__.py")
    parser = Parser(
        prog="python -m frigate" if started_by_python else "frigate",
        description="Forecast traffic at every intersection of a road network from sensors at a few of them.",
    )
    parser.add_argument("--version", action="version", version=f"frigate {__version__}")
    parser.set_defaults(run_command=None, group=None)
    add_commands(parser, COMMANDS)
    return parser


def _no_memory(detail: str) -> str:
    first = (detail.strip().splitlines() or [""])[0][:200].rstrip(".")
    reason = f" ({first})" if first else ""
    return f"out of memory{reason}. Train with a smaller --batch-size or more --parts, or free some memory"


@contextmanager
def _joined_processes() -> Iterator[None]:
    """Join the processes that torchrun started, if any; only process 0 prints."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield
        return
    from frigate.training.distributed import joined, only_leader_prints

    with only_leader_prints(), joined():
        yield
