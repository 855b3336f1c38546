"""The commands that read a cluster, with options as kubectl has them; their exit code says how it went.

0: it could be read, or the watched job succeeded; 1: the watched job failed or was deleted, or a worker has no log; 2:
bad input, be it the kubeconfig or a job that does not exist; 3: the cluster does not answer, refuses, or has no
HeteroTrain. `logs` and `explain` read runs in this folder, too, and need no cluster for them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from heterotrain_operator.api.problems import did_you_mean
from heterotrain_operator.cli import BAD_INPUT, FAILED, NO_CLUSTER
from heterotrain_operator.cli.arguments import whole
from heterotrain_operator.clusters.kube.reading_errors import (
    AccessError,
    JobNotFoundError,
    NoLogError,
    ReadingError,
    WorkerNotFoundError,
)

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader


COMMANDS = ("status", "watch", "explain", "logs")


Commands = argparse._SubParsersAction


def add_commands(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add `status`, `watch`, `explain` and `logs`."""
    _add_status(commands)
    _add_watch(commands)
    _add_explain(commands)
    _add_logs(commands)


def _add_status(commands: Commands[argparse.ArgumentParser]) -> None:
    status = commands.add_parser(
        "status",
        help="show jobs on a cluster",
        description="Show the jobs on a cluster, a line for each; or one job with its conditions and workers.",
    )
    status.add_argument("job", nargs="?", metavar="JOB", help="the job to show in full (default: list all)")
    status.add_argument("-A", "--all-namespaces", action="store_true", help="list the jobs of all namespaces")
    status.add_argument(
        "-o",
        "--output",
        choices=("wide", "json", "yaml"),
        metavar="FORMAT",
        help="wide: more columns, all conditions; json, yaml: the objects as they are",
    )
    status.add_argument("--json", action="store_const", dest="output", const="json", help="the same as -o json")
    _add_access(status)


def _add_watch(commands: Commands[argparse.ArgumentParser]) -> None:
    watch = commands.add_parser(
        "watch",
        help="watch a job on a cluster until it ends",
        description="Watch a job on a cluster until it ends: a live table in a terminal, a line per change elsewhere. "
        "Exit code: 0 succeeded, 1 failed or deleted, 2 bad input, 3 the cluster cannot be read.",
    )
    watch.add_argument("job", metavar="JOB")
    watch.add_argument("--json", action="store_true", help="print the object after every change, one in each line")
    _add_access(watch)


def _add_explain(commands: Commands[argparse.ArgumentParser]) -> None:
    explain = commands.add_parser(
        "explain",
        help="say why a job's batches are as they are",
        description="Say why a job's batches are as they are. Of a run in this folder: its figures, its decisions, and "
        "what came of it. Of a job on a cluster: the last decision, what is known of each worker, what the policy "
        "would do now, how much of the possible is reached, and the history of the batches.",
    )
    explain.add_argument("job", metavar="JOB|RUN", help="a job, or the folder of a run")
    explain.add_argument("--json", action="store_true", help="print what is known as one JSON object")
    _add_source(explain)
    _add_access(explain)


def _add_logs(commands: Commands[argparse.ArgumentParser]) -> None:
    logs = commands.add_parser(
        "logs",
        help="print what the workers of a job have printed",
        description="Print what the workers of a job have printed: of its newest run in this folder, else on the "
        "cluster. Of several workers, each line begins with its worker's name. Exit code: 0 printed, 1 a worker has no "
        "log, 2 bad input, 3 the cluster cannot be read.",
    )
    logs.add_argument("job", metavar="JOB|RUN", help="a job, or the folder of a run")
    logs.add_argument("worker", nargs="?", metavar="WORKER", help="such as large-0 (default: all workers)")
    logs.add_argument("--json", action="store_true", help="print each line as a JSON object with its worker")
    logs.add_argument("--tail", type=whole(1), metavar="N", help="only the last N lines of each worker")
    _add_source(logs)
    _add_access(logs)


def _add_source(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group()
    source.add_argument("--local", action="store_true", help="of a run in this folder, or not at all")
    source.add_argument("--cluster", action="store_true", help="of the cluster, whatever was run in this folder")
    command.add_argument(
        "--trial",
        "--arm",
        metavar="NAME",
        help="of a run with several trials, such as uniform-1; --arm is its former name",
    )


def _add_access(command: argparse.ArgumentParser) -> None:
    access = command.add_argument_group("the cluster, as for kubectl")
    access.add_argument("-n", "--namespace", metavar="NAME", help="the job's namespace (default: the context's)")
    access.add_argument("--context", metavar="NAME", help="a context of the kubeconfig (default: its current one)")
    access.add_argument(
        "--kubeconfig", metavar="FILE", help="default: KUBECONFIG, then ~/.kube/config, then the account of this pod"
    )


def run_command(asked: argparse.Namespace, program: str) -> int:
    """Carry out one of `options.COMMANDS` and return the exit code; `program` is how the user calls this program."""
    if asked.command == "status" and asked.job is not None and asked.all_namespaces:
        sys.stderr.write(f"{program} status: name a job or ask for all namespaces, not both\n")
        return BAD_INPUT
    try:
        code = _of_run(asked, program) if asked.command in ("logs", "explain") else None
        if code is None:
            with _reader(asked) as reader:
                code = _run(asked, reader)
        sys.stdout.flush()
        return code
    except ReadingError as error:
        sys.stderr.write(f"{program} {asked.command}: {error}{_near_run(asked)}\n")
        if isinstance(error, NoLogError):
            return FAILED
        return BAD_INPUT if isinstance(error, AccessError | JobNotFoundError | WorkerNotFoundError) else NO_CLUSTER


def _names_cluster(asked: argparse.Namespace) -> bool:
    """Whether the command line itself says in which cluster to look."""
    return bool(asked.namespace or asked.context or asked.kubeconfig)


def _near_run(asked: argparse.Namespace) -> str:
    """Of a command that shows runs in this folder too: the job of nearly that name which was run here."""
    if asked.command not in ("logs", "explain") or asked.cluster or _names_cluster(asked):
        return ""
    from heterotrain_operator.experiments import runs  # noqa: PLC0415

    near = did_you_mean(asked.job, runs.jobs(Path.cwd()))
    return f"{near[:-1]}, which was run in this folder?" if near else ""


def _of_run(asked: argparse.Namespace, program: str) -> int | None:
    """Show what a run on this machine has left; None if a job on the cluster is meant."""
    from heterotrain_operator.cli import past_runs  # noqa: PLC0415
    from heterotrain_operator.cli.cluster import logs as logs_command  # noqa: PLC0415
    from heterotrain_operator.experiments import runs  # noqa: PLC0415

    named = _names_cluster(asked)
    if (asked.local or asked.trial) and (named or asked.cluster):
        about = "--local and --trial are about runs in this folder, not about a cluster"
        sys.stderr.write(f"{program} {asked.command}: {about}\n")
        return BAD_INPUT
    run = None if named or asked.cluster else runs.find(Path.cwd(), asked.job)
    if run is not None and asked.command == "explain":
        return past_runs.explain_run(run, trial=asked.trial, program=program, as_json=asked.json)
    if run is not None:
        return logs_command.print_local(
            run, asked.job, asked.worker, trial=asked.trial, tail=asked.tail, program=program, as_json=asked.json
        )
    if not (asked.local or asked.trial or os.sep in asked.job):
        return None
    known = runs.jobs(Path.cwd())
    near = did_you_mean(asked.job, known) or f"; there are runs of {', '.join(known) or 'none'}"
    sys.stderr.write(f"{program} {asked.command}: no run of job {asked.job!r} in this folder{near}\n")
    return BAD_INPUT


def _reader(asked: argparse.Namespace) -> Reader:
    # The client library takes its time to load; commands that need no cluster must not wait for it.
    from heterotrain_operator.clusters.kube.api_server.access import Access, connect  # noqa: PLC0415
    from heterotrain_operator.clusters.kube.reading import Reader  # noqa: PLC0415

    return Reader(connect(Access(asked.kubeconfig, asked.context, asked.namespace)))


def _run(asked: argparse.Namespace, reader: Reader) -> int:
    from heterotrain_operator.cli.cluster import explain, watch  # noqa: PLC0415
    from heterotrain_operator.cli.cluster import logs as logs_command  # noqa: PLC0415
    from heterotrain_operator.cli.cluster import status as status_command  # noqa: PLC0415

    if asked.command == "logs":
        return logs_command.print_of_cluster(reader, asked.job, asked.worker, asked.tail, as_json=asked.json)
    console = status_command.console()
    if asked.command == "watch":
        if asked.json:
            return watch.watch_as_json(reader, asked.job, clock=time.monotonic, pause=time.sleep)
        return watch.watch(reader, asked.job, console, now=_now, clock=time.monotonic, pause=time.sleep)
    if asked.command == "explain":
        return explain.explain(reader, asked.job, console, _now(), as_json=asked.json)
    if asked.job is None:
        return status_command.list_jobs(reader, console, asked.output, _now(), everywhere=asked.all_namespaces)
    return status_command.show_job(reader, asked.job, console, asked.output, _now())


def _now() -> datetime:
    return datetime.now(UTC)
