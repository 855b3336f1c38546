"""The operator as a process of its own: what its environment sets, and how it ends."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from handlers.operators import PATIENCE_SECONDS, free_port, phase
from kube_server.api_server import ApiServer
from unit.kube.worlds import JOB

COMMAND = [sys.executable, "-m", "heterotrain_operator.main"]


@contextmanager
def process(**environment: str) -> Iterator[subprocess.Popen[str]]:
    """The operator's process; if it has not ended by itself, it is killed."""
    ports = {"HETEROTRAIN_METRICS_PORT": str(free_port()), "HETEROTRAIN_HEALTH_PORT": str(free_port())}
    given = {**os.environ, "POD_NAMESPACE": "ops", "POD_NAME": "operator-a", **ports, **environment}
    with subprocess.Popen(COMMAND, env=given, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def await_phase(api: ApiServer, wanted: str) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while phase(api) != wanted:
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.mark.usefixtures("site")
def test_process_steers_may_open_as_many_files_as_allowed_and_at_sigterm_leaves_in_order(api: ApiServer) -> None:
    api.put("heterotrainingjobs", JOB)
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(usual, 256), most))
    try:
        with process() as started:
            await_phase(api, "Created")
            assert api.the("leases", "heterotrain-operator", "ops")["spec"]["holderIdentity"] == "operator-a"
            assert resource.prlimit(started.pid, resource.RLIMIT_NOFILE) == (most, most), "a connection to each worker"
            started.send_signal(signal.SIGTERM)
            _, log = started.communicate(timeout=PATIENCE_SECONDS)
            assert started.returncode == 0, log
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
    assert "holderIdentity" not in api.the("leases", "heterotrain-operator", "ops")["spec"]
    assert [line for line in log.splitlines() if " INFO " not in line] == []


@pytest.mark.usefixtures("site")
def test_namespaces_whose_rights_are_gone_are_left_out_and_none_is_the_end(
    api: ApiServer,
) -> None:
    api.put("heterotrainingjobs", JOB)
    api.forbidden.add("deleted")
    with process(HETEROTRAIN_NAMESPACES="deleted,team-a") as started:
        await_phase(api, "Created")
        started.send_signal(signal.SIGTERM)
        _, log = started.communicate(timeout=PATIENCE_SECONDS)
    assert (
        "WARNING heterotrain_operator.controller.watches: namespace deleted is left out until the next start: "
        "no right to list HeteroTrainingJob, Pod, ConfigMap in it"
    ) in log
    with process(HETEROTRAIN_NAMESPACES="deleted") as started:
        _, log = started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == 1
    assert log.endswith("no right to list jobs, pods and ConfigMaps in deleted\n")


def test_environment_that_is_wrong_ends_it_at_once() -> None:
    with process(HETEROTRAIN_METRICS_PORT="http") as started:
        _, log = started.communicate(timeout=PATIENCE_SECONDS)
    assert (started.returncode, log) == (2, "HETEROTRAIN_METRICS_PORT: 'http' is no port\n")
