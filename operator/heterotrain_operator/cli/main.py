"""The `heterotrain` command: reads the command line and says with its exit code how it went.

0: succeeded; 1: the job failed; 2: bad input, nothing was started; 3: the cluster cannot be read; 130 and 143: stopped
by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from heterotrain_operator.api import ManifestError, load_manifest
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.cli import cluster, script_output
from heterotrain_operator.cli.run import BAD_INPUT, SUCCEEDED, Options, package_version, run
from heterotrain_operator.clusters.local.template import read_templates


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise argparse.ArgumentTypeError("names no policy")
    return names


def program_name(path: str) -> str:
    """How the user calls this program: kubectl starts its plugins by a name of their own."""
    name = Path(path).name
    return name.replace("-", " ", 1) if name.startswith("kubectl-") else "heterotrain"


def parser(program: str = "heterotrain") -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog=program, description="Make unequal workers train one PyTorch model like one good machine."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = commands.add_parser(
        "run",
        help="run a job on this machine",
        description="Run a job on this machine: every worker is a process under its CPU limit. Shows what happens on "
        "standard error. Exit code: 0 succeeded, 1 failed, 2 bad input, 130 (143) interrupted.",
    )
    train.add_argument("manifest", type=Path, metavar="JOB.yaml", help="a HeteroTrainingJob, as for a cluster")
    policies = ", ".join(known_policies())
    train.add_argument("--policy", metavar="P", help=f"instead of spec.batching.policy: one of {policies}")
    train.add_argument(
        "--compare", type=_names, default=(), metavar="P,Q", help="run the same job under these policies, too"
    )
    train.add_argument(
        "--rounds", type=int, default=1, metavar="N", help="run every arm N times, order reversed in between (1)"
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
    train.add_argument("--out", type=Path, metavar="DIR", help="keep series, plots and report.html in this folder")
    train.add_argument(
        "--logs",
        choices=script_output.CHOICES,
        default=script_output.LEADER,
        help="whose output to show: that of the leader's script (default), of all workers, or of none; "
        "all of it is kept, and `heterotrain logs` prints it",
    )
    train.add_argument("--json", action="store_true", help="print the summary as one JSON object on standard output")
    start = train.add_mutually_exclusive_group()
    start.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    start.add_argument(
        "--fresh",
        action="store_true",
        help="start from the beginning: earlier checkpoints are moved aside, an earlier run in --out is replaced",
    )

    validate = commands.add_parser("validate", help="check a manifest", description="Check a manifest.")
    validate.add_argument("manifest", type=Path, metavar="JOB.yaml")

    cluster.add_commands(commands)

    commands.add_parser("version", help="print the version", description="Print the version.")
    return top


def _refuse(manifest: Path, error: ManifestError) -> int:
    sys.stderr.write(f"{manifest} is refused:\n")
    for problem in error.problems:
        sys.stderr.write(f"  {problem}\n")
    return BAD_INPUT


def _validate(manifest: Path) -> int:
    job = load_manifest(manifest)
    sys.stdout.write(
        f"{manifest} is valid: {job.metadata.name}, {job.spec.replicas} workers in {len(job.spec.worker_groups)} "
        f"groups, global batch {job.spec.global_batch_size}, policy {job.spec.batching.policy}\n"
    )
    try:
        read_templates(job)
    except ManifestError as error:
        sys.stdout.write("It cannot run on this machine, though:\n")
        for problem in error.problems:
            sys.stdout.write(f"  {problem}\n")
    return SUCCEEDED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; SystemExit(2) for unknown commands and options."""
    program = program_name(sys.argv[0])
    asked = parser(program).parse_args(arguments)
    try:
        if asked.command in cluster.COMMANDS:
            return cluster.run_command(asked, program)
        if asked.command == "version":
            sys.stdout.write(f"heterotrain {package_version()}\n")
            return SUCCEEDED
        if asked.command == "validate":
            return _validate(asked.manifest)
        options = Options(
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
        )
        return run(options, Path.cwd())
    except ManifestError as error:
        return _refuse(asked.manifest, error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
