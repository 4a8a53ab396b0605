"""The parser of the command line: argparse, with "did you mean" and one-line errors. Imports nothing heavy."""

from __future__ import annotations

import sys
import textwrap
from argparse import Action, ArgumentError, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from frigate.cli.console import complain
from frigate.errors import did_you_mean


class Parser(ArgumentParser):
    """An argument parser of one command, or of a group of commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self._positionals.title = "arguments"
        self.commands: dict[str, str] = {}  # of a group: name -> summary

    def parse_known_args(  # type: ignore[override]  # argparse has an overload for every kind of namespace
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """As in argparse, but the command itself refuses unknown words instead of passing them up."""
        words = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(words if self.commands else self._options_first(words), namespace)
        if unknown:
            self._refuse(unknown[0])
        return found, []

    def _options_first(self, words: list[str]) -> list[str]:
        """Reorder, so that options and arguments may be mixed and values may begin with a dash, as in --close -5,7."""
        known = self._option_string_actions
        waiting = iter(words)
        options: list[str] = []
        arguments: list[str] = []
        for word in waiting:
            if word == "--":
                arguments += waiting
            elif word in known and known[word].nargs != 0:
                value = next(waiting, None)
                if value is None or value in known:
                    self.error(f"{word} needs a value")
                options += [f"{word}={value}"] if word.startswith("--") else [f"{word}{value}"]
            elif word.startswith("--") and word.partition("=")[0] not in known:
                self._refuse(word)
            else:
                (options if word.startswith("-") else arguments).append(word)
        return [*options, "--", *arguments] if arguments else options

    def _refuse(self, word: str) -> NoReturn:
        if not word.startswith("-"):
            self.error(f'unexpected argument "{word}"')
        name = word.partition("=")[0]
        self.error(f"unknown option {name}{did_you_mean(name, list(self._option_string_actions))}")

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        hint = did_you_mean(str(value).lower(), known)
        if action.dest == "command":
            self.error(f'unknown command "{value}"{hint}')
        raise ArgumentError(action, f'"{value}"{hint}: choose one of {", ".join(known)}')

    def error(self, message: str) -> NoReturn:
        """Print one line with the error and the usage, and exit with status 2."""
        complain(f"{message}. Usage: {self._short_usage()} (or --help)")
        sys.exit(2)

    def format_usage(self) -> str:
        return f"usage: {self._short_usage()}\n"

    def format_help(self) -> str:
        """For a group, its commands in their usual order; for a command, argparse's help with a short usage line."""
        if not self.commands:
            self.usage = self._short_usage()
            return super().format_help()
        width = max(map(len, self.commands))
        lines = [f"  {name:{width}}  {summary}" for name, summary in self.commands.items()]
        more = [f"{self.prog} --version prints the version."] if "--version" in self._option_string_actions else []
        tail = [f"{self.prog} COMMAND --help explains a command.", *more, ""]
        about = textwrap.fill(str(self.description), 80)
        return "\n".join([self.format_usage(), about, "", "Commands:", *lines, "", *tail])

    def _short_usage(self) -> str:
        """What is required, such as: frigate train CITY -o RUN [OPTIONS]."""
        if self.commands:
            return f"{self.prog} COMMAND ..."
        words = [self.prog]
        for action in self._actions:
            name = str(action.metavar or action.dest.upper())
            if not action.option_strings:
                words.append(f"[{name}]" if action.nargs == "?" else f"{name} ..." if action.nargs == "+" else name)
            elif action.required:
                words.append(f"{action.option_strings[0]} {name}")
        return " ".join([*words, "[OPTIONS]"])


@dataclass(frozen=True)
class Argument:
    """An argument or option of a command, declared as the user types it.

    `CITY` is an argument, `[CITY]` an optional one, `TRACES...` one or more. `-o --output RUN` is an option with a
    value, `--resume` a flag, `--keep-all --no-keep-all` a flag that can be negated.
    """

    typed: str
    help: str  # the default is appended
    type: Callable[[str], Any] = str  # of the value
    default: Any = None
    choices: Sequence[str] | None = None
    required: bool = False
    repeated: bool = False  # an option that may be given several times

    def add_to(self, parser: Parser) -> None:
        names = [word for word in self.typed.split() if word.startswith("-")]
        values = [word for word in self.typed.split() if not word.startswith("-")]
        default = "" if self.default in (None, "") else f" (default: {self.default})"
        text = f"{self.help}{default}".replace("%", "%%")
        if not names:
            name = values[0].strip("[].")
            nargs = "?" if "[" in values[0] else "+" if "..." in values[0] else None
            parser.add_argument(
                name.lower(), metavar=name, type=self.type, nargs=nargs, choices=self.choices, help=text
            )
        elif not values and self.choices is None:
            action = "store_true" if len(names) == 1 else BooleanOptionalAction
            parser.add_argument(names[0], action=action, default=False, help=text)
        else:
            stored: dict[str, Any] = {"default": self.default}
            if self.repeated:
                stored = {"action": "append", "default": []}
            parser.add_argument(
                *names,
                metavar=values[0] if values else None,
                type=self.type,
                choices=self.choices,
                required=self.required,
                help=text,
                **stored,
            )


@dataclass(frozen=True)
class Command:
    """A command."""

    name: str
    summary: str  # one line, for the list of commands
    run: Callable[[Namespace], int | None]  # an exit status other than 0, or None
    arguments: Sequence[Argument]
    details: str = ""  # appended to the summary in its help
    if_stopped: str = "nothing was written"  # said after Ctrl-C


@dataclass(frozen=True)
class CommandGroup:
    """Commands behind a common first word."""

    name: str
    summary: str
    commands: Sequence[Command]


def add_commands(parser: Parser, commands: Sequence[Command | CommandGroup]) -> None:
    """Make `parser` a group of these commands. The parsed namespace has the chosen one as `run_command`."""
    parsers = parser.add_subparsers(dest="command", parser_class=Parser)
    for command in commands:
        parser.commands[command.name] = command.summary
        if isinstance(command, CommandGroup):
            group = parsers.add_parser(command.name, description=command.summary)
            group.set_defaults(group=group)
            add_commands(group, command.commands)
            continue
        own = parsers.add_parser(command.name, description=f"{command.summary} {command.details}")
        own.set_defaults(run_command=command)
        for argument in command.arguments:
            argument.add_to(own)


# Shared arguments

CITY = Argument("CITY", "a city folder, or its cache", Path)
CITY_FOLDER = Argument("CITY", "a city folder", Path)
RUN = Argument("RUN", "a folder that `frigate train` wrote", Path)
OTHER_CITY = Argument(
    "--city CITY", "another city folder, or its cache (default: the city that the run was trained on)", Path
)
EXCLUDE = Argument(
    "--exclude WHAT",
    "leave out the readings of a sensor (4411), a period (2024-03-11/2024-03-15) or both "
    "(4411@2024-03-11); may be repeated",
    repeated=True,
)
TRUST_ALL = Argument(
    "--trust-all", "use every sensor, also those that the others contradict or that look broken by their own record"
)
DEVICE = Argument("--device DEVICE", "cpu or cuda (default: cuda if available)")
KERNELS = Argument(
    "--kernels",
    "auto: the fastest available; reference: plain PyTorch, for comparison",
    default="auto",
    choices=("auto", "reference"),
)
JSON = Argument("--json", "print JSON")
