"""The options of the commands that read a cluster, as kubectl has them."""

from __future__ import annotations

import argparse

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
    _add_access(status)


def _add_watch(commands: Commands[argparse.ArgumentParser]) -> None:
    watch = commands.add_parser(
        "watch",
        help="watch a job on a cluster until it ends",
        description="Watch a job on a cluster until it ends: a live table in a terminal, a line per change elsewhere. "
        "Exit code: 0 succeeded, 1 failed or deleted, 2 bad input, 3 the cluster cannot be read.",
    )
    watch.add_argument("job", metavar="JOB")
    _add_access(watch)


def _add_explain(commands: Commands[argparse.ArgumentParser]) -> None:
    explain = commands.add_parser(
        "explain",
        help="say why a job's batches are as they are",
        description="Say why a job's batches are as they are: the last decision, what is known of each worker, what "
        "the policy would do now, how much of the possible is reached, and the history of the batches.",
    )
    explain.add_argument("job", metavar="JOB")
    _add_access(explain)


def _add_logs(commands: Commands[argparse.ArgumentParser]) -> None:
    logs = commands.add_parser(
        "logs",
        help="print what the workers of a job have printed, here or on a cluster",
        description="Print what the workers of a job have printed: of its newest run in this folder, else on the "
        "cluster. Of several workers, each line begins with its worker's name. Exit code: 0 printed, 1 a worker has no "
        "log, 2 bad input, 3 the cluster cannot be read.",
    )
    logs.add_argument("job", metavar="JOB")
    logs.add_argument("worker", nargs="?", metavar="WORKER", help="such as large-0 (default: all workers)")
    logs.add_argument("--tail", type=_count, metavar="N", help="only the last N lines of each worker")
    source = logs.add_mutually_exclusive_group()
    source.add_argument("--local", action="store_true", help="of a run in this folder, or not at all")
    source.add_argument("--cluster", action="store_true", help="of the cluster, whatever was run in this folder")
    logs.add_argument(
        "--trial",
        "--arm",
        metavar="NAME",
        help="of a run with several trials, such as uniform-1 (default: the last); --arm is its former name",
    )
    _add_access(logs)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of lines, at least 1, found {text!r}")
    return int(text)


def _add_access(command: argparse.ArgumentParser) -> None:
    access = command.add_argument_group("the cluster, as for kubectl")
    access.add_argument("-n", "--namespace", metavar="NAME", help="the job's namespace (default: the context's)")
    access.add_argument("--context", metavar="NAME", help="a context of the kubeconfig (default: its current one)")
    access.add_argument(
        "--kubeconfig", metavar="FILE", help="default: KUBECONFIG, then ~/.kube/config, then the account of this pod"
    )
