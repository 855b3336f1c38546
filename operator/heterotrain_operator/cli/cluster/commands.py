"""Carry out the commands that read a cluster, and say with the exit code how it went.

0: it could be read, or the watched job succeeded; 1: the watched job failed or was deleted, or a worker has no log; 2:
bad input, be it the kubeconfig or a job that does not exist; 3: the cluster does not answer, refuses, or has no
HeteroTrain. `logs` reads runs in this folder, too, and needs no cluster for them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from heterotrain_operator.cli.exit_codes import BAD_INPUT, FAILED, NO_CLUSTER
from heterotrain_operator.clusters.kube.reading_errors import (
    AccessError,
    JobNotFoundError,
    NoLogError,
    ReadingError,
    WorkerNotFoundError,
)

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader


def run_command(asked: argparse.Namespace, program: str) -> int:
    """Carry out one of `options.COMMANDS` and return the exit code; `program` is how the user calls this program."""
    if asked.command == "status" and asked.job is not None and asked.all_namespaces:
        sys.stderr.write(f"{program} status: name a job or ask for all namespaces, not both\n")
        return BAD_INPUT
    try:
        code = _local_logs(asked, program) if asked.command == "logs" else None
        if code is None:
            with _reader(asked) as reader:
                code = _run(asked, reader)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has ended; buffered output must not fail again when the interpreter
        # ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except ReadingError as error:
        sys.stderr.write(f"{program} {asked.command}: {error}\n")
        if isinstance(error, NoLogError):
            return FAILED
        return BAD_INPUT if isinstance(error, AccessError | JobNotFoundError | WorkerNotFoundError) else NO_CLUSTER


def _local_logs(asked: argparse.Namespace, program: str) -> int | None:
    """Print the logs of a run in this folder; None if those of the cluster are meant."""
    from heterotrain_operator.cli.cluster import logs as logs_command  # noqa: PLC0415
    from heterotrain_operator.experiments import runs  # noqa: PLC0415

    named = asked.namespace or asked.context or asked.kubeconfig
    if (asked.local or asked.trial) and (named or asked.cluster):
        sys.stderr.write(f"{program} logs: --local and --trial are about runs in this folder, not about a cluster\n")
        return BAD_INPUT
    run = None if named or asked.cluster else runs.newest(Path.cwd(), asked.job)
    if run is not None:
        return logs_command.print_local(
            run, asked.job, asked.worker, trial=asked.trial, tail=asked.tail, program=program
        )
    if not (asked.local or asked.trial):
        return None
    known = ", ".join(runs.jobs(Path.cwd())) or "none"
    sys.stderr.write(f"{program} logs: no run of job {asked.job!r} in this folder; there are runs of {known}\n")
    return BAD_INPUT


def _reader(asked: argparse.Namespace) -> Reader:
    # The client library takes its time to load; commands that need no cluster must not wait for it.
    from heterotrain_operator.clusters.kube.api_server.access import Access, connect  # noqa: PLC0415
    from heterotrain_operator.clusters.kube.reading import Reader  # noqa: PLC0415

    return Reader(connect(Access(asked.kubeconfig, asked.context, asked.namespace)))


def _run(asked: argparse.Namespace, reader: Reader) -> int:
    from heterotrain_operator.cli.cluster import explain, job_tables, watch  # noqa: PLC0415
    from heterotrain_operator.cli.cluster import logs as logs_command  # noqa: PLC0415
    from heterotrain_operator.cli.cluster import status as status_command  # noqa: PLC0415

    if asked.command == "logs":
        return logs_command.print_of_cluster(reader, asked.job, asked.worker, asked.tail)
    console = job_tables.console()
    if asked.command == "watch":
        return watch.watch(reader, asked.job, console, now=_now, clock=time.monotonic, pause=time.sleep)
    if asked.command == "explain":
        return explain.explain(reader, asked.job, console, _now())
    if asked.job is None:
        return status_command.list_jobs(reader, console, asked.output, _now(), everywhere=asked.all_namespaces)
    return status_command.show_job(reader, asked.job, console, asked.output, _now())


def _now() -> datetime:
    return datetime.now(UTC)
