"""`heterotrain completion`: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

SHELLS = ("bash", "zsh", "tcsh")


def completion(parser: argparse.ArgumentParser, shell: str) -> int:
    """Print the shell's script for a parser. Returns the exit code."""
    import shtab  # noqa: PLC0415 - no other command needs it

    for action in _actions(parser):
        if action.type is Path or "--kubeconfig" in action.option_strings:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, shell) + "\n")
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
