"""Completion as a shell asks for it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from frigate.cli.completion import script
from frigate.cli.main import COMMANDS, build_parser
from frigate.cli.parser import CommandGroup
from tests.support.command_line import assert_refused, frigate


def completed(*words: str) -> list[str]:
    """What bash offers for the last of the words typed after `frigate`."""
    typed = " ".join(f"'{word}'" for word in ("frigate", *words))
    ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _frigate; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    code = script(build_parser(), "bash") + ask
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_their_values() -> None:
    assert completed("") == [command.name for command in COMMANDS]
    assert completed("ev") == ["evaluate"]
    assert completed("import", "o") == ["osm"]
    assert completed("train", "city", "--pre") == ["--preset"]
    assert completed("train", "city", "--preset", "stg") == ["stgcn", "stgode"]
    assert completed("import", "osm", "--on", "") == ["nodes", "roads"]
    assert completed("forecast", "run", "--c") == ["--close", "--city", "--csv"]
    # Nothing of ours where a file or a free value is expected: bash then completes file names.
    assert completed("check", "") == completed("train", "city", "-o", "") == completed("forecast", "--close", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_known_to_every_shell(shell: str) -> None:
    said = frigate("completion", shell)
    assert (said.status, said.err) == (0, "")
    for command in COMMANDS:
        for inner in command.commands if isinstance(command, CommandGroup) else (command,):
            assert inner.name in said.out
            for argument in inner.arguments:
                for name in (word for word in argument.typed.split() if word.startswith("--")):
                    assert (f" -l {name[2:]} " if shell == "fish" else name) in said.out


def test_an_unknown_shell_is_refused() -> None:
    assert_refused(frigate("completion", "tcsh"), '"tcsh"', "fish")
