"""`frigate completion`: a script for shells that completes commands, options and their values."""

from __future__ import annotations

from argparse import SUPPRESS, Namespace
from collections.abc import Iterator
from dataclasses import dataclass

from frigate.cli.parser import Argument, Command, Parser

SHELLS = ("bash", "zsh", "fish")


def run(args: Namespace) -> None:
    from frigate.cli.main import build_parser

    print(script(build_parser(), args.shell), end="")


@dataclass(frozen=True)
class Words:
    """What may follow `frigate` and the words of a command or group, `path`."""

    path: tuple[str, ...]
    commands: dict[str, str]  # name -> summary; of a group
    options: dict[str, str]  # name -> help
    choices: dict[str, tuple[str, ...]]  # option, or "" for an argument -> its values
    with_value: frozenset[str]  # options that take a value


def script(parser: Parser, shell: str) -> str:
    """The completion script for a shell. For files and free values, the shell completes file names."""
    tree = list(_walk(parser, ()))
    return _fish(tree) if shell == "fish" else _bash(tree, zsh=shell == "zsh")


def _walk(parser: Parser, path: tuple[str, ...]) -> Iterator[Words]:
    options = {}
    with_value = set()
    inner = {}
    choices: dict[str, tuple[str, ...]] = {}
    for action in parser._actions:
        if action.dest == "command":
            inner = dict(action.choices or {})
            continue
        for name in action.option_strings:
            options[name] = "" if action.help in (None, SUPPRESS) else str(action.help).replace("%%", "%")
            if action.nargs != 0:
                with_value.add(name)
        if action.choices is not None:
            choices |= {name: tuple(map(str, action.choices)) for name in action.option_strings or ("",)}
    yield Words(path, dict(parser.commands), options, choices, frozenset(with_value))
    for name, own in inner.items():
        yield from _walk(own, (*path, name))


def _bash(tree: list[Words], *, zsh: bool) -> str:
    paths = [_quoted(words.path) for words in tree if words.path]
    values = []
    free = []
    known = []
    for words in tree:
        chosen = " ".join((*words.commands, *words.choices.get("", ())))
        names = " ".join(words.options)
        known.append(f'        {_quoted(words.path)}) plain="{chosen}" dashed="{names}" ;;')
        for option in sorted(words.with_value):
            if option in words.choices:
                values.append(f'        {_quoted((*words.path, option))}) plain="{" ".join(words.choices[option])}" ;;')
            else:
                free.append(_quoted((*words.path, option)))
    before = ["autoload -U +X compinit bashcompinit && compinit && bashcompinit"] if zsh else []
    return "\n".join(
        [
            *before,
            "_frigate() {",
            '    local path="" plain="" dashed="" i',
            '    local current="${COMP_WORDS[COMP_CWORD]}"',
            "    COMPREPLY=()",
            "    for ((i = 1; i < COMP_CWORD; i++)); do",
            '        case "$path ${COMP_WORDS[i]}" in',
            f'            {"|".join(paths)}) path="$path ${{COMP_WORDS[i]}}" ;;',
            "        esac",
            "    done",
            '    case "$path" in',
            *known,
            "    esac",
            '    case "$path ${COMP_WORDS[COMP_CWORD - 1]}" in',
            *values,
            f"        {'|'.join(free)}) return ;;",
            "    esac",
            '    if [[ "$current" == -* ]]; then plain="$dashed"; fi',
            '    COMPREPLY=($(compgen -W "$plain" -- "$current"))',
            "}",
            "complete -o default -F _frigate frigate",
            "",
        ]
    )


def _quoted(path: tuple[str, ...]) -> str:
    return '"' + "".join(f" {word}" for word in path) + '"'


def _fish(tree: list[Words]) -> str:
    lines = []
    for words in tree:
        typed = [f"__fish_seen_subcommand_from {name}" for name in words.path]
        if words.commands:
            typed.append(f"not __fish_seen_subcommand_from {' '.join(words.commands)}")
        where = "complete -c frigate" + (f" -n '{'; and '.join(typed)}'" if typed else "")
        lines += [f"{where} -f -a {name} -d {_fish_text(help)}" for name, help in words.commands.items()]
        if "" in words.choices:
            lines.append(f"{where} -f -a {_fish_text(' '.join(words.choices['']))}")
        for name, help in words.options.items():
            flag = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
            value = " -r" if name in words.with_value else ""
            if name in words.choices:
                value = f" -x -a {_fish_text(' '.join(words.choices[name]))}"
            lines.append(f"{where} {flag}{value} -d {_fish_text(help)}")
    return "\n".join([*lines, ""])


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


COMPLETION = Command(
    "completion",
    "Print a completion script for your shell.",
    run,
    (Argument("SHELL", f"one of {', '.join(SHELLS)}", choices=SHELLS),),
    details='bash: add eval "$(frigate completion bash)" to ~/.bashrc. zsh: the same with zsh, to ~/.zshrc. fish: run '
    "frigate completion fish > ~/.config/fish/completions/frigate.fish",
)
