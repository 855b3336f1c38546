"""The `heterotrain` command: reads the command line and says with its exit code how it went.

0: succeeded; 1: the job failed; 2: bad input, nothing was started; 3: the cluster cannot be read; 130 and 143: stopped
by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from heterotrain_operator.api import ManifestError, Problem
from heterotrain_operator.cli import BAD_INPUT, SUCCEEDED, package_version, validate_command
from heterotrain_operator.cli.cluster.commands import COMMANDS, run_command
from heterotrain_operator.cli.local.chaos import chaos
from heterotrain_operator.cli.local.checks import Options
from heterotrain_operator.cli.local.run import run
from heterotrain_operator.cli.parser import parse, parser
from heterotrain_operator.cli.past_runs import list_runs, write_report
from heterotrain_operator.cli.script_job import IMAGE, ScriptJob, init, is_script, text_of
from heterotrain_operator.cli.script_look import look_at
from heterotrain_operator.experiments.trials.stop import Interrupted

FOR_SCRIPTS = ("workers", "global_batch", "epochs", "steps", "checkpoints", "name", "print_manifest")
"""Options of `run` for what a manifest would state itself."""


def program_name(path: str) -> str:
    """How the user calls this program: kubectl starts its plugins by a name of their own."""
    name = Path(path).name
    return name.replace("-", " ", 1) if name.startswith("kubectl-") else "heterotrain"


def _refuse(subject: Path, error: ManifestError) -> int:
    sys.stderr.write(f"{subject} is refused:\n")
    for problem in error.problems:
        sys.stderr.write(f"  {problem}\n")
    return BAD_INPUT


def _script_job(asked: argparse.Namespace, script: Path, words: tuple[str, ...]) -> ScriptJob:
    job = ScriptJob(
        script,
        asked.workers,
        asked.global_batch,
        asked.epochs,
        asked.steps,
        words,
        asked.seed,
        asked.checkpoints,
        name=asked.name,
    )
    if job.is_complete or not (is_script(script) and script.is_file()):
        return job
    shown = sys.stderr.isatty()  # it takes as long as loading torch does
    if shown:
        sys.stderr.write(f"looking at what {script} gives to heterotrain.join() ...")
        sys.stderr.flush()
    try:
        return replace(job, asked=look_at(script, words))
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")


def _run(asked: argparse.Namespace, words: tuple[str, ...], command: tuple[str, ...]) -> int:
    script = _script_job(asked, asked.manifest, words) if is_script(asked.manifest) else None
    if script is None:
        misplaced = [f"--{name.replace('_', '-')}" for name in FOR_SCRIPTS if getattr(asked, name)]
        misplaced += ["--"] if words else []
        if misplaced:
            raise ManifestError(Problem(name, "is for a script; a manifest says it itself") for name in misplaced)
    elif asked.print_manifest:
        sys.stdout.write(text_of(script, IMAGE))
        return SUCCEEDED
    return run(
        Options(
            manifest=asked.manifest,
            compare=asked.compare,
            rounds=asked.rounds,
            as_json=asked.json,
            out=asked.out,
            resume=asked.resume,
            fresh=asked.fresh,
            policy=asked.policy,
            ceiling=asked.ceiling,
            schedule=asked.schedule,
            logs=asked.logs,
            script=script,
            seed=asked.seed,
            words=command,
        ),
        Path.cwd(),
    )


def _simulate(asked: argparse.Namespace) -> int:
    # Arrays are loaded only for a simulation.
    from heterotrain_operator.cli.simulate import run_simulation  # noqa: PLC0415

    return run_simulation(asked)


def _subject(asked: argparse.Namespace) -> Path:
    """What is refused."""
    subject: Path = getattr(asked, {"init": "script", "simulate": "scenario"}.get(asked.command, "manifest"))
    return subject


def _completion(parser: argparse.ArgumentParser, shell: str) -> int:
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; SystemExit(2) for unknown commands and options."""
    program = program_name(sys.argv[0])
    given = sys.argv[1:] if arguments is None else arguments
    asked, words = parse(given, program)
    try:
        if asked.command in COMMANDS:
            return run_command(asked, program)
        if asked.command == "version":
            found = package_version()
            sys.stdout.write((json.dumps({"heterotrain": found}) if asked.json else f"heterotrain {found}") + "\n")
            return SUCCEEDED
        if asked.command == "completion":
            return _completion(parser(), asked.shell)
        if asked.command == "runs":
            return list_runs(Path.cwd(), asked.job, program, as_json=asked.json)
        if asked.command == "report":
            return write_report(Path.cwd(), asked.job, program, as_json=asked.json)
        if asked.command == "chaos":
            return chaos(asked, Path.cwd(), program)
        if asked.command == "validate":
            return validate_command.validate(asked.manifests, strict=asked.strict, as_json=asked.json)
        if asked.command == "init":
            script = _script_job(asked, asked.script, words)
            script = replace(script, claim=asked.claim)
            return init(script, asked.image, asked.output, only_print=asked.print_manifest, as_json=asked.json)
        if asked.command == "simulate":
            return _simulate(asked)
        return _run(asked, words, (program, *given))
    except ManifestError as error:
        return _refuse(_subject(asked), error)
    except Interrupted as stopped:
        return stopped.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader has left, as `head` does. What is still buffered goes nowhere, or Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
