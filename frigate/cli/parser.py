"""The parser of the command line: argparse, with "did you mean" and one-line errors. Imports nothing heavy."""

from __future__ import annotations

import sys
import textwrap
from argparse import Action, ArgumentError, ArgumentParser, Namespace
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
        self.commands: dict[str, str] = {}  # of a group: name -> what it does, in one line

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse does it, but nothing unknown is passed on: it is refused by the command that it was meant for."""
        words = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(words if self.commands else self._options_first(words), namespace)
        if unknown:
            self._refuse(unknown[0])
        return found, []

    def _options_first(self, words: list[str]) -> list[str]:
        """Options and arguments may be typed in any order, and a value may begin with a dash, as in --close -5,7."""
        known, waiting = self._option_string_actions, iter(words)
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
        self.error(f"no option {name}{did_you_mean(name, list(self._option_string_actions))}")

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        if action.dest == "command":
            self.error(f'no command "{value}"{did_you_mean(str(value), known)}')
        raise ArgumentError(action, f'"{value}": choose one of {", ".join(known)}{did_you_mean(str(value), known)}')

    def error(self, message: str) -> NoReturn:
        """One line with the mistake and the remedy, and exit status 2."""
        complain(f"{message}{'' if message.endswith('?') else '.'} Usage: {self._short_usage()} (or --help)")
        sys.exit(2)

    def format_usage(self) -> str:
        return f"usage: {self._short_usage()}\n"

    def format_help(self) -> str:
        """Of a group: its commands in the order of use. Of a command: argparse's own help, with a short usage line."""
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
        """What must be typed: frigate train CITY -o RUN [OPTIONS]."""
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
class Command:
    """One command: how it is called, what it takes and what it does."""

    name: str
    summary: str  # one line, for the list of commands
    add_arguments: Callable[[Parser], None]
    run: Callable[[Namespace], int | None]  # an exit status other than 0, or None
    details: str = ""  # more, for its own help
    if_stopped: str = "nothing was written"  # what Ctrl-C leaves


@dataclass(frozen=True)
class Group:
    """Commands behind a common first word."""

    name: str
    summary: str
    commands: Sequence[Command]


def add_commands(parser: Parser, commands: Sequence[Command | Group]) -> None:
    """Make `parser` a group of these commands. What was typed has the chosen one as `run_command`."""
    parsers = parser.add_subparsers(dest="command", parser_class=Parser)
    for command in commands:
        parser.commands[command.name] = command.summary
        if isinstance(command, Group):
            group = parsers.add_parser(command.name, description=command.summary)
            group.set_defaults(group=group)
            add_commands(group, command.commands)
            continue
        text = f"{command.summary} {command.details}".strip().replace("%", "%%")
        own = parsers.add_parser(command.name, description=text)
        command.add_arguments(own)
        own.set_defaults(run_command=command)


# Arguments that several commands share


def add_city(parser: Parser, text: str = "a city folder, or its cache") -> None:
    parser.add_argument("city", metavar="CITY", type=Path, help=text)


def add_run(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="a folder that `frigate train` wrote")


def add_other_city(parser: Parser) -> None:
    parser.add_argument(
        "--city", metavar="CITY", type=Path, help="a city folder, or its cache (default: the one it was trained on)"
    )


def add_output(parser: Parser, metavar: str, text: str, *, default: str | None = None) -> None:
    parser.add_argument(
        "-o", "--output", metavar=metavar, type=Path, required=default is None, help=text,
        default=None if default is None else Path(default),
    )  # fmt: skip


def add_device(parser: Parser) -> None:
    parser.add_argument("--device", help="cpu or cuda (default: cuda if available)")


def add_kernels(parser: Parser) -> None:
    parser.add_argument(
        "--kernels", choices=("auto", "reference"), default="auto",
        help="auto, or reference: the plain equations, for comparison (default: auto)",
    )  # fmt: skip


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
