"""What another tenant's hostile jobs cost one's own job: its rounds per second alone, and beside so many of them.

The operator runs as its process runs it, with its pauses shortened to a tenth of a second, so that late rounds show.
The API server is the tests' tiny one. Hostile workers and servers are real sockets in a process of their own: silent
ones end no answer, endless ones answer as fast as they are read, and costly ones send complete answers within all
bounds, made to be dear to parse. Run it with PYTHONPATH=tests.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from handlers.operators import Workers, operator, options, serving_workers, trained, until
from handlers.tenants import NAMESPACE, PAUSE_SECONDS, hosts_for, rounds_counted, run_their_pod, their_job
from heterotrain.contract import DEFAULT_METRICS_PORT
from kube_server.api_server import ApiServer
from kube_server.serving import kubeconfig, serving
from unit.kube.worlds import READY
from unit.metrics.hostile import (
    DAWDLERS,
    FLOODERS,
    Behaviour,
    Hostile,
    costly_matrix,
    costly_series,
    hostile,
)

SETTLING_SECONDS = 2.0
"""From the moment at which all servers were asked to the first round that counts."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of hostile jobs: where their metrics are read, and how whoever is asked behaves."""

    source: str
    behaviours: tuple[Behaviour, ...]


KINDS = {
    "silent workers": Kind("Pods", DAWDLERS),
    "endless workers": Kind("Pods", FLOODERS),
    "costly workers": Kind("Pods", (costly_series,)),
    "silent servers": Kind("Prometheus", DAWDLERS),
    "endless servers": Kind("Prometheus", FLOODERS),
    "costly servers": Kind("Prometheus", (costly_matrix,)),
}


@dataclass(frozen=True, slots=True)
class Result:
    """`asked`: how often the hostile jobs' servers were asked meanwhile."""

    beside: str
    jobs: int
    rounds_per_second: float
    asked: int


def serve(kind: str, hosts: Sequence[str], theirs: Connection) -> None:
    """The process of the hostile servers: it tells how often each was asked so far, each time that it is told to."""
    behaviours = itertools.islice(itertools.cycle(KINDS[kind].behaviours), len(hosts))
    with hostile(*behaviours, hosts=hosts, port=DEFAULT_METRICS_PORT) as servers:
        theirs.send(_connections(servers))
        while theirs.recv():
            theirs.send(_connections(servers))


def _connections(servers: Sequence[Hostile]) -> list[int]:
    return [server.connections for server in servers]


class Servers:
    """The hostile servers, as the other process knows them."""

    def __init__(self, ours: Connection) -> None:
        self._ours = ours
        self._ours.recv()

    def asked(self) -> list[int]:
        """How often each was asked so far."""
        self._ours.send(True)
        found: list[int] = self._ours.recv()
        return found


@contextmanager
def serving_hostile(kind: str, hosts: Sequence[str]) -> Iterator[Servers]:
    """The process serves as long as the block lasts."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(kind, hosts, theirs))
    process.start()
    try:
        yield Servers(ours)
        ours.send(False)
    finally:
        process.join(10)
        process.kill()
        process.join()


async def measure(api: ApiServer, workers: Workers, kind: str, jobs: int, seconds: float) -> Result:
    """Rounds per second of one's own job beside so many hostile ones."""
    hosts = hosts_for(jobs)
    chosen = options(watched=("team-a", NAMESPACE), prometheus_allow=("127.*",))
    with serving_hostile(kind, hosts) as servers, rounds_counted() as counted:
        async with operator(chosen):
            await trained(api, workers)
            for number, host in enumerate(hosts):
                job = their_job(number, KINDS[kind].source, f"{host}:{DEFAULT_METRICS_PORT}")
                api.put("heterotrainingjobs", job, NAMESPACE)
            await until(lambda: len(api.names("pods")) == jobs + len(workers.workers))
            for number, host in enumerate(hosts):
                run_their_pod(api, number, host)
            await until(lambda: all(servers.asked()))
            await asyncio.sleep(SETTLING_SECONDS)
            loop = asyncio.get_running_loop()
            before, asked, began = counted["team-a/digits"], sum(servers.asked()), loop.time()
            await asyncio.sleep(seconds)
            rate = (counted["team-a/digits"] - before) / (loop.time() - began)
            return Result(kind if jobs else "nobody", jobs, rate, sum(servers.asked()) - asked)


def measured(kind: str, jobs: int, seconds: float) -> Result:
    """The same, with an API server and workers for this once."""
    with ExitStack() as stack:
        api = ApiServer()
        api.put("namespaces", {"metadata": {"name": "team-a"}}, "")
        api.put("nodes", {"metadata": {"name": "node-1"}, "status": READY}, "")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["KUBECONFIG"] = str(kubeconfig(folder / "kubeconfig", stack.enter_context(serving(api))))
        workers = stack.enter_context(serving_workers(api))
        return asyncio.run(measure(api, workers, kind, jobs, seconds))


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a line for each kind or one JSON object. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=32, help="hostile jobs")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each line")
    parser.add_argument("--only", choices=KINDS, help="one kind alone")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.jobs < 1 or not given.seconds > 0:
        parser.error("--jobs and --seconds must be above 0")
    logging.disable()  # what is wrong with hostile jobs
    kinds = list(KINDS) if given.only is None else [given.only]
    results = [measured(kinds[0], 0, given.seconds), *(measured(kind, given.jobs, given.seconds) for kind in kinds)]
    if given.json:
        print(json.dumps({"pause_seconds": PAUSE_SECONDS, "results": [dataclasses.asdict(each) for each in results]}))
        return 0
    for each in results:
        who = f"{each.jobs} jobs of {each.beside}, which were asked {each.asked} times" if each.jobs else each.beside
        print(f"{each.rounds_per_second:.1f} rounds a second beside {who}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
