"""The options of the commands that need no cluster, and how a command line is read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.api.quantity import parse_quantity
from heterotrain_operator.cli import completion_command
from heterotrain_operator.cli.cluster.options import add_commands
from heterotrain_operator.cli.local import script_output
from heterotrain_operator.cli.local.chaos_options import add_chaos
from heterotrain_operator.cli.script_job import IMAGE, is_script
from heterotrain_operator.cli.simulated.options import add_simulate
from heterotrain_operator.cli.version import package_version


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("names no policy")
    return names


def _cores(text: str) -> tuple[Decimal, ...]:
    """CPU limits in cores, as `1.0,0.5,250m`."""
    limits = []
    for part in text.split(","):
        try:
            limit = parse_quantity(part.strip())
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be CPU limits such as 1.0,0.5,250m, one for each worker; found {part.strip()!r}"
            ) from None
        if limit * 1000 < 1 or limit * 1000 % 1:
            raise argparse.ArgumentTypeError(
                f"a CPU limit must be at least 1m, and of whole thousandths of a core; found {part.strip()!r}"
            )
        limits.append(limit)
    return tuple(limits)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, found {text!r}")
    return int(text)


Commands = argparse._SubParsersAction


def parser(program: str = "heterotrain") -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog=program, description="Make unequal workers train one PyTorch model like one good machine."
    )
    top.add_argument("--version", action="version", version=f"heterotrain {package_version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    add_chaos(commands)
    add_simulate(commands)
    _add_init(commands)
    _add_validate(commands)
    add_commands(commands)
    commands.add_parser("version", help="print the version", description="Print the version.")
    shells = commands.add_parser(
        "completion",
        help="print what a shell needs to complete commands",
        description="Print what a shell needs to complete commands, options and files.",
    )
    shells.add_argument("shell", choices=completion_command.SHELLS)
    return top


def _add_run(commands: Commands[argparse.ArgumentParser]) -> None:
    train = commands.add_parser(
        "run",
        help="run a job on this machine",
        usage="%(prog)s [options] JOB.yaml\n       %(prog)s [options] SCRIPT.py [-- ARGUMENT ...]",
        description="Run a job on this machine: every worker is a process under its CPU limit. Shows what happens on "
        "standard error. Exit code: 0 succeeded, 1 failed, 2 bad input, 130 (143) interrupted.",
    )
    train.add_argument(
        "manifest",
        type=Path,
        metavar="JOB.yaml|SCRIPT.py",
        help="a HeteroTrainingJob, as for a cluster; or a training script, with the arguments that it gets after --",
    )
    _add_script_options(train)
    train.add_argument("--print-manifest", action="store_true", help="print the script's manifest, and run nothing")
    _add_trials(train)
    _add_output(train)
    _add_start(train)


def _add_trials(train: argparse.ArgumentParser) -> None:
    policies = ", ".join(known_policies())
    train.add_argument("--policy", metavar="P", help=f"instead of spec.batching.policy: one of {policies}")
    train.add_argument(
        "--compare", type=_names, default=(), metavar="P,Q", help="run the same job under these policies, too"
    )
    train.add_argument(
        "--rounds", type=int, default=1, metavar="N", help="run every policy N times, order reversed in between (1)"
    )
    train.add_argument(
        "--ceiling",
        action="store_true",
        help="profile the workers before and after, and say how much of the possible was reached "
        "(always with --compare)",
    )
    train.add_argument(
        "--schedule", type=Path, metavar="FILE", help="change the workers' CPU limits while they train, as it says"
    )


def _add_output(train: argparse.ArgumentParser) -> None:
    train.add_argument("--out", type=Path, metavar="DIR", help="keep series, plots and report.html in this folder")
    train.add_argument(
        "--logs",
        choices=script_output.CHOICES,
        default=script_output.LEADER,
        help="whose output to show: that of the leader's script (default), of all workers, or of none; "
        "all of it is kept, and `heterotrain logs` prints it",
    )
    train.add_argument("--json", action="store_true", help="print the summary as one JSON object on standard output")


def _add_start(train: argparse.ArgumentParser) -> None:
    start = train.add_mutually_exclusive_group()
    start.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    start.add_argument(
        "--fresh",
        action="store_true",
        help="start from the beginning: earlier checkpoints are moved aside, an earlier run in --out is replaced",
    )


def _add_script_options(command: argparse.ArgumentParser) -> None:
    script = command.add_argument_group("the job of a script, where a manifest says it otherwise")
    script.add_argument(
        "--workers", type=_cores, metavar="1.0,0.5", help="the CPU limit of each worker, in cores (1,0.5,0.25)"
    )
    script.add_argument(
        "--global-batch", type=_positive, metavar="N", help="samples per step, over all workers (64 for each)"
    )
    end = script.add_mutually_exclusive_group()
    end.add_argument("--epochs", type=_positive, metavar="N", help="passes over the data (1)")
    end.add_argument("--steps", type=_positive, metavar="N", help="steps, instead of epochs")


def _add_init(commands: Commands[argparse.ArgumentParser]) -> None:
    init = commands.add_parser(
        "init",
        help="write the manifest of a training script",
        usage="%(prog)s [options] SCRIPT.py [-- ARGUMENT ...]",
        description="Write a manifest that runs a training script, here or on a cluster.",
    )
    init.add_argument("script", type=Path, metavar="SCRIPT.py", help="with the arguments that it gets after --")
    _add_script_options(init)
    init.add_argument("--image", default=IMAGE, help=f"the image of the workers on a cluster ({IMAGE})")
    init.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: the script's name with .yaml, here")
    init.add_argument("--print-manifest", action="store_true", help="print it, and write no file")


def _add_validate(commands: Commands[argparse.ArgumentParser]) -> None:
    validate = commands.add_parser(
        "validate",
        help="check manifests",
        description="Check manifests: everything that is wrong with them, and what a cluster would refuse. "
        "Exit code: 0 all are valid, 2 something is wrong.",
    )
    validate.add_argument(
        "manifests",
        type=Path,
        nargs="+",
        metavar="JOB.yaml",
        help="a file, of one document or several; a folder, for all jobs in it; - for standard input",
    )
    validate.add_argument("--strict", action="store_true", help="refuse what is doubtful, too")


def parse(arguments: Sequence[str], program: str) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The options, and the words after `--`, which are a script's arguments.

    Raises SystemExit(2) for what is not understood, with the usage of the command that is meant.
    """
    top = parser(program)
    words = list(arguments)
    script_words: tuple[str, ...] = ()
    if "--" in words and words[0] in ("run", "init"):
        split = words.index("--")
        words, script_words = words[:split], tuple(words[split + 1 :])
    asked, unknown = top.parse_known_args(words)
    if unknown:
        commands = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
        subject = {"run": "manifest", "init": "script"}.get(asked.command)
        hint = "; a script's own come after --" if subject and is_script(getattr(asked, subject)) else ""
        commands.choices[asked.command].error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return asked, script_words
