"""The options of the commands that need no cluster, and how a command line is read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.api.base import MAX_STEPS
from heterotrain_operator.api.problems import did_you_mean
from heterotrain_operator.cli import arguments, package_version
from heterotrain_operator.cli.cluster.commands import add_commands
from heterotrain_operator.cli.local import script_output
from heterotrain_operator.cli.script_job import IMAGE, MOUNTED, is_script
from heterotrain_operator.clusters.local.chaos import GREATEST_NEIGHBOURS, STARVED_CORES
from heterotrain_operator.experiments.scenarios import MAX_INTERVALS, MAX_SEEDS
from heterotrain_operator.experiments.trials.faults import FAULTS, LASTING, UNDOES

SHELLS = ("bash", "zsh", "tcsh")

EVERY_SECONDS = 30.0


Commands = argparse._SubParsersAction


RUN_EXAMPLES = """examples:
  heterotrain run train.py                           three workers of 1, 0.5 and 0.25 cores
  heterotrain run train.py --workers 3 -- --lr 0.1   three of one core; the script gets --lr 0.1
  heterotrain run train.py --workers gpus            one worker on each GPU
  heterotrain run train.py --compare Uniform --out out/first
                                                     what balancing brings, with a report
  heterotrain run job.yaml --resume                  go on from the newest checkpoint
"""

HERE = ("run", "runs", "report", "chaos", "simulate", "init", "validate")
EVERYWHERE = ("logs", "explain")
CLUSTER = ("status", "watch")


def _of_commands() -> type[argparse.ArgumentParser]:
    """The class of each command's own parser."""
    return arguments.Parser


class _Top(arguments.Parser):
    """Shows its own overview of the commands in place of argparse's one list, which completion still needs."""

    def format_help(self) -> str:
        commands = next(action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        listed, commands._choices_actions = commands._choices_actions, []
        try:
            return super().format_help()
        finally:
            commands._choices_actions = listed


def parser(program: str = "heterotrain") -> argparse.ArgumentParser:
    """The commands and their options."""
    top = _Top(
        prog=program,
        usage="%(prog)s COMMAND ...",
        description="Make unequal workers train one PyTorch model like one good machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"heterotrain {package_version()}")
    commands = top.add_subparsers(
        parser_class=_of_commands(), prog=program, dest="command", required=True, metavar="COMMAND"
    )
    _add_run(commands)
    _add_runs(commands)
    _add_report(commands)
    _add_chaos(commands)
    _add_simulate(commands)
    _add_init(commands)
    _add_validate(commands)
    add_commands(commands)
    commands.add_parser("version", help="print the version", description="Print the version.").add_argument(
        "--json", action="store_true", help="print it as JSON"
    )
    shells = commands.add_parser(
        "completion",
        help="print what a shell needs to complete commands",
        description="Print what a shell needs to complete commands, options and files.",
    )
    shells.add_argument("shell", choices=SHELLS)
    top.epilog = _overview(commands)
    return top


def _overview(commands: Commands[argparse.ArgumentParser]) -> str:
    """The commands by what they need."""
    helps = {action.dest: action.help for action in commands._choices_actions}
    named = {*HERE, *EVERYWHERE, *CLUSTER}
    rooms = {
        "on this machine": HERE,
        "of runs on this machine, or of jobs on a cluster": EVERYWHERE,
        "on a cluster": CLUSTER,
        "about this program": tuple(name for name in helps if name not in named),
    }
    parts = [f"{room}:\n" + "".join(f"  {name:<12}{helps[name]}\n" for name in names) for room, names in rooms.items()]
    return "\n".join([*parts, "`COMMAND --help` has its options."])


def _add_run(commands: Commands[argparse.ArgumentParser]) -> None:
    train = commands.add_parser(
        "run",
        help="run a job on this machine",
        usage="%(prog)s [options] JOB.yaml\n       %(prog)s [options] SCRIPT.py [-- ARGUMENT ...]",
        description="Run a job on this machine: every worker is a process under its CPU limit.\n"
        "Shows what happens on standard error.\nExit code: 0 succeeded, 1 failed, 2 bad input, 130 (143) interrupted.",
        epilog=RUN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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


def _add_runs(commands: Commands[argparse.ArgumentParser]) -> None:
    listed = commands.add_parser(
        "runs",
        help="list the runs in this folder, which explain and logs can show",
        description="List the newest runs of the jobs that were run in this folder, with their ends and folders.",
    )
    listed.add_argument("job", nargs="?", metavar="JOB", help="only those of this job")
    listed.add_argument("--json", action="store_true", help="print them as one JSON list")


def _add_report(commands: Commands[argparse.ArgumentParser]) -> None:
    report = commands.add_parser(
        "report",
        help="write the page of a run, with its charts",
        description="Write report.html and trace.json of a run into its folder, and print where the page is. A run "
        "with --out has them already. Exit code: 0 written, 1 the run has left too little, 2 there is no such run.",
    )
    report.add_argument("job", metavar="JOB|RUN", help="a job that was run in this folder, or the folder of a run")
    report.add_argument("--json", action="store_true", help="print the paths of both files as JSON")


def _add_trials(train: argparse.ArgumentParser) -> None:
    policies = ", ".join(known_policies())
    train.add_argument("--policy", metavar="P", help=f"instead of spec.batching.policy: one of {policies}")
    train.add_argument(
        "--compare", type=arguments.names, default=(), metavar="P,Q", help="run the same job under these policies, too"
    )
    train.add_argument(
        "--rounds",
        type=arguments.whole(1),
        default=1,
        metavar="N",
        help="run every policy N times, order reversed in between (1)",
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
    train.add_argument("--out", type=Path, metavar="DIR", help="keep series, report.html and a trace there")
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
    script = command.add_argument_group(
        "the job of a script, where a manifest says it otherwise",
        "Where an option is missing, what the script gives to heterotrain.join() counts, and then the default.",
    )
    script.add_argument(
        "--workers",
        type=arguments.workers,
        metavar="LIST",
        help="the CPU limit of each worker in cores, or its GPU: 1.0,0.5,0.25 (default); 3: so many of one core each; "
        "3x1.0,2x0.5; gpu:0,gpu:1,cpu:2.0; gpus: one on each GPU",
    )
    script.add_argument(
        "--global-batch",
        type=arguments.whole(1),
        metavar="N",
        help="samples per step, over all workers (default: 64 for each)",
    )
    script.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="keep checkpoints there, so that --resume can go on from them (default: they go with the run)",
    )
    script.add_argument("--name", metavar="NAME", help="the job's name (default: the script's)")
    end = script.add_mutually_exclusive_group()
    end.add_argument("--epochs", type=arguments.whole(1), metavar="N", help="passes over the data (default: 1)")
    end.add_argument("--steps", type=arguments.whole(1), metavar="N", help="steps, instead of epochs")
    script.add_argument(
        "--seed",
        type=arguments.whole(0, MAX_STEPS),
        metavar="N",
        help="of the order of samples and the first weights (default: 0); of a manifest, instead of spec.training.seed",
    )


def _add_chaos(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add `chaos`."""
    chaos = commands.add_parser(
        "chaos",
        help="put faults on the workers of a job that runs on this machine",
        usage="%(prog)s [options] JOB [FAULT WORKER]\n       %(prog)s [options] JOB --seed N",
        description="Put faults on the workers of a job that `heterotrain run` runs in this folder; without a fault, "
        "show its workers and the faults that they have. Exit code: 0 done, 1 the fault could not be had, 2 bad input, "
        "such as a job that does not run.",
        epilog=f"kill: SIGKILL to all processes of the worker. stop: SIGSTOP to them, until `continue`. slow: a busy "
        f"process shares its CPU limit, starve: it has {STARVED_CORES:g} cores, both until `restore`. partition: "
        "nothing goes between it and the others, until `heal`. leave: SIGTERM, and SIGKILL after the grace period. "
        "join: its group gets one worker more, until `release`.",
    )
    chaos.add_argument("job", metavar="JOB", help="its name, or the folder of its run")
    chaos.add_argument(
        "fault", nargs="?", choices=(*FAULTS, *UNDOES), metavar="FAULT", help=f"one of {', '.join((*FAULTS, *UNDOES))}"
    )
    chaos.add_argument(
        "worker", nargs="?", metavar="WORKER", help="such as large-0; for join and release its group does, too"
    )
    chaos.add_argument(
        "--for",
        type=arguments.seconds,
        dest="seconds",
        metavar="SECONDS",
        help=f"take the fault back after so long ({', '.join(LASTING)})",
    )
    chaos.add_argument(
        "--neighbours",
        type=arguments.whole(1, GREATEST_NEIGHBOURS),
        default=1,
        metavar="N",
        help="with slow: so many busy processes (1)",
    )
    chaos.add_argument("--json", action="store_true", help="print what was done as JSON, an object in each line")
    randomly = chaos.add_argument_group("random faults, the same ones for the same seed")
    randomly.add_argument(
        "--seed", type=arguments.whole(0), metavar="N", help="any whole number; faults come until the job ends"
    )
    randomly.add_argument(
        "--every",
        type=arguments.seconds,
        default=EVERY_SECONDS,
        metavar="SECONDS",
        help=f"from one fault to the next, on average ({EVERY_SECONDS:g}); those that last do so for half of it",
    )
    randomly.add_argument(
        "--faults", type=arguments.faults, default=FAULTS, metavar="A,B", help=f"only these (all: {','.join(FAULTS)})"
    )
    randomly.add_argument("--count", type=arguments.whole(0), metavar="N", help="end after so many faults")


def _add_simulate(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    simulate = commands.add_parser(
        "simulate",
        help="simulate a job of a scenario, in virtual time",
        description="Simulate the job of a scenario in virtual time, with the decisions of a real one, under one "
        "policy after the other and the same noise, and compare each with the best split. Shows what happens on "
        "standard error. Exit code: 0 all ran to their end, 1 a simulated job failed, 2 bad input, 130 (143) "
        "interrupted.",
    )
    simulate.add_argument(
        "scenario",
        type=Path,
        metavar="SCENARIO.yaml|RUN",
        help="a scenario, as those in examples/scenarios; or a folder of `heterotrain run --out`, whose job is "
        "simulated with the times and the noise of its workers",
    )
    simulate.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="P",
        help=f"instead of the scenario's policies: {', '.join(known_policies())}; several by naming it again",
    )
    simulate.add_argument("--seed", type=arguments.whole(0, 2**53), metavar="N", help="instead of the scenario's seed")
    simulate.add_argument(
        "--seeds",
        type=arguments.whole(1, MAX_SEEDS),
        metavar="N",
        help="run every policy with N seeds, from that one on",
    )
    simulate.add_argument(
        "--intervals", type=arguments.whole(1, MAX_INTERVALS), metavar="N", help="simulate N control intervals"
    )
    simulate.add_argument("--out", type=Path, metavar="DIR", help="keep figures, report.html and a trace there")
    simulate.add_argument("--fresh", action="store_true", help="replace an earlier run in --out")
    simulate.add_argument(
        "--print-scenario", action="store_true", help="print the scenario of a run, and simulate nothing"
    )
    simulate.add_argument("--json", action="store_true", help="print the figures as one JSON object on standard output")


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
    init.add_argument(
        "--claim",
        metavar="NAME",
        help=f"the PersistentVolumeClaim that a cluster mounts at --checkpoints (which is {MOUNTED} then, by default)",
    )
    init.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: the script's name with .yaml, here")
    init.add_argument("--print-manifest", action="store_true", help="print it, and write no file")
    init.add_argument("--json", action="store_true", help="print where it is as JSON")


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
    validate.add_argument("--json", action="store_true", help="print what was found as one JSON list")


def parse(given: Sequence[str], program: str) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The options, and the words after `--`, which are a script's arguments.

    Raises SystemExit(2) for what is not understood, with the usage of the command that is meant.
    """
    top = parser(program)
    words = list(given)
    script_words: tuple[str, ...] = ()
    if "--" in words and words[0] in ("run", "init"):
        split = words.index("--")
        words, script_words = words[:split], tuple(words[split + 1 :])
    asked, unknown = top.parse_known_args(words)
    if unknown:
        commands = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
        subject = {"run": "manifest", "init": "script"}.get(asked.command)
        hint = "; a script's own come after --" if subject and is_script(getattr(asked, subject)) else ""
        command = commands.choices[asked.command]
        named = next((word.partition("=")[0] for word in unknown if word.startswith("--")), None)
        options = command._option_string_actions
        if named is not None and (not hint or any(option.startswith(named) for option in options)):
            hint = did_you_mean(named, options)
        command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return asked, script_words
