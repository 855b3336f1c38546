"""The local backend with real processes: they get what pods get, are limited, end as pods end, and leave nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterotrain import contract
from heterotrain.contract import Plan, Server, TrainingConfig
from heterotrain_operator.clusters.local import cluster as local_cluster
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import Limits, Mechanism
from heterotrain_operator.core.model import SERVER_GROUP, Decision, WorkerKey, WorkerSeen
from heterotrain_operator.core.state import Remembered
from unit.cli.commands import eventually
from unit.local.small_jobs import (
    IGNORE_TERM,
    PLAN,
    SLEEP,
    all_ended,
    each_does,
    key,
    make_job,
    neighbours_of,
    only,
    says,
)

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]
Start = Callable[..., LocalCluster]
FIRST, OTHER = "job-cpu-0", "job-cpu-1"

SAY_WHAT_IT_GETS = f"""
import json, os, pathlib, socket, sys, tempfile
path = pathlib.Path(tempfile.mkdtemp(), "listener-0123456789")
socket.socket(socket.AF_UNIX).bind(str(path))
print(json.dumps([dict(os.environ), sys.argv, sys.executable, os.getcwd(), str(path)]), flush=True)
{SLEEP}
"""


def test_worker_gets_what_a_container_gets_and_its_temporary_files_go_with_it(tmp_path: Path) -> None:
    job = make_job(
        SAY_WHAT_IT_GETS,
        "$(HETEROTRAIN_WORKER)",
        "$$(X)",
        env=[
            {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "PYTHONUNBUFFERED", "value": "0"},
            {"name": contract.ENV_GROUP, "value": "another"},
        ],
        workingDir="/",
        resources={"limits": {"cpu": "250m"}},
        image="x",
        replicas=2,
    )
    with pytest.raises(RuntimeError, match="on purpose"), LocalCluster(job, tmp_path, "/somewhere") as cluster:
        assert cluster.ignored == ("spec.workerGroups[0].template.spec.containers[0].image",)
        cluster.act(Decision("Running", "", create=(key(0),)), Remembered.initial())
        cluster.observe()
        cluster.act(Decision("Running", "", create=(key(1),), beside_training=True), Remembered.initial())
        worker = cluster.observe()[0].workers[0]
        environment, arguments, executable, folder, temporary = json.loads(says(cluster, "]\n"))
        assert (arguments[1:], executable, folder) == ([FIRST, "$(X)"], sys.executable, "/")
        assert environment["ME"] == environment[contract.ENV_WORKER] == worker.name == FIRST
        assert environment["PYTHONUNBUFFERED"] == "0", "a habit, which the manifest may change"
        assert environment[contract.ENV_GROUP] == "cpu", "the contract, which it may not"
        assert environment[contract.ENV_JOB] == "job"
        assert environment[contract.ENV_UID] == worker.uid
        assert len(environment[contract.ENV_SECRET]) == 2 * contract.SECRET_BYTES
        assert environment[contract.ENV_METRICS_PORT] != worker.address.rpartition(":")[2]
        assert environment[contract.ENV_PLAN_DIR] == str(tmp_path / "plan")
        assert environment[contract.ENV_CPU_LIMIT] == "0.25"
        assert environment[contract.ENV_SERIES] == str(tmp_path / "workers" / FIRST / f"{worker.uid}.jsonl")
        config = TrainingConfig.from_json(environment[contract.ENV_CONFIG])
        assert (config.steps, config.checkpoint_path) == (10, "/somewhere"), "the run decides where checkpoints go"
        assert not environment["TORCHINDUCTOR_CACHE_DIR"].startswith(environment["TMPDIR"])

        newcomer = json.loads(says(cluster, "]\n", OTHER))
        assert newcomer[0][contract.ENV_WARM_UP] == "1"
        assert contract.ENV_WARM_UP not in environment

        assert Path(temporary).is_socket()
        cluster.process(FIRST).kill()
        eventually(lambda: cluster.observe() and not Path(temporary).parent.parent.exists())
        assert Path(newcomer[4]).is_socket()
        raise RuntimeError("on purpose")
    assert not Path(newcomer[4]).parents[2].exists(), "nor are those of the run left"


def last_words(**said: Any) -> str:
    """A script that leaves these."""
    words = contract.Termination(**{"finished": False, **said}).to_json()
    return f"open(os.environ[{contract.ENV_TERMINATION_LOG!r}], 'w').write({words!r})"


ENDINGS: list[tuple[str, dict[str, Any]]] = [
    (
        f"open(os.environ[{contract.ENV_SERIES!r}], 'w').close(); print('hello'); sys.exit(3)",
        {"phase": "Failed", "exit_code": 3, "message": "hello"},
    ),
    ("pass", {"phase": "Succeeded", "exit_code": 0, "finished": False, "message": ""}),
    ("os.kill(os.getpid(), 9)", {"phase": "Failed", "exit_code": 137}),
    ("os.kill(os.getpid(), 15)", {"phase": "Failed", "exit_code": 143}),
    ("print('so far', flush=True); os.kill(os.getpid(), 11)", {"exit_code": 139}),
    (last_words(finished=True, step=10, message="all well"), {"exit_code": 0, "finished": True, "message": "all well"}),
    (
        f"{last_words(step=10, message='no label 17', script_error=True, fatal=True)}; 1 / 0",
        {"exit_code": 1, "step": 10, "script_error": True, "fatal": True},
    ),
    (last_words(step=10, message="left", left=True), {"exit_code": 0, "finished": False, "left": True}),
    ("print('ready'); 1 / 0", {"exit_code": 1, "script_error": False}),
    (
        f"{last_words(message='ended')}; print('\\x1b[31mMemoryError: too\\a much\\x1b[0m'); os._exit(3)",
        {"out_of_memory": True, "message": "out of memory: ended; the end of its log: MemoryError: too  much"},
    ),
    (last_words(message="out of memory: E: x", out_of_memory=True), {"exit_code": 0, "out_of_memory": True}),
]
"""What workers do, and what is seen of their ends."""


def test_ends_are_told_as_kubernetes_tells_them_and_a_successor_is_another(start: Start) -> None:
    cluster = start(each_does(*(script for script, _ in ENDINGS)))
    found = {worker.index: worker for worker in all_ended(cluster)}
    for index, (script, expected) in enumerate(ENDINGS):
        assert {name: getattr(found[index], name) for name in expected} == expected, script
    assert "SIGSEGV" in found[4].message
    assert "so far" in found[4].message
    assert "ZeroDivisionError" in found[8].message, "quoted from its log"
    assert found[6].message.startswith("no label 17; the end of its log: ")
    assert "ZeroDivisionError" in found[6].message

    cluster.act(Decision("Running", "", delete=(FIRST,)), Remembered.initial())
    eventually(lambda: FIRST not in {worker.name for worker in cluster.observe()[0].workers})
    cluster.act(Decision("Running", "", create=(key(),)), Remembered.initial())
    second = next(worker for worker in all_ended(cluster) if worker.name == FIRST)
    assert second.uid != found[0].uid
    assert second.address != found[0].address
    assert second.message == "hello", "not what its predecessor wrote"
    assert cluster.log_file(FIRST).read_text() == "hello\nhello\n"
    assert [file.stem for file in cluster.series_files()[FIRST]] == [found[0].uid, second.uid], "oldest first"


POLITE = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), sys.exit(3)))\n" + (
    "print('here', flush=True)\n" + SLEEP
)


def test_who_is_to_leave_is_asked_and_killed_after_its_grace(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "SHORT_GRACE_SECONDS", 0.2)
    cluster = start(each_does(POLITE, POLITE, IGNORE_TERM, IGNORE_TERM, grace_seconds=2))
    hurried = start(make_job(IGNORE_TERM, grace_seconds=600))
    for index, text in enumerate(("here", "here", "deaf", "deaf")):
        says(cluster, text, f"job-cpu-{index}")
    says(hurried, "deaf")
    hurried.act(Decision("Running", "", delete=(FIRST,), short_grace=(FIRST,)), Remembered.initial())
    for index in (1, 3):
        cluster.evict(f"job-cpu-{index}")
    cluster.act(Decision("Running", "", delete=(FIRST, "job-cpu-2")), Remembered.initial())
    assert cluster.process("job-cpu-2").exit_code() is None, "nobody waits for a worker that does not listen"

    def left() -> dict[int, WorkerSeen]:
        return {worker.index: worker for worker in cluster.observe()[0].workers}

    eventually(lambda: left().keys() == {1, 3} and None not in {worker.exit_code for worker in left().values()})
    assert (left()[1].exit_code, left()[1].disrupted) == (3, True)
    assert (left()[3].exit_code, left()[3].disrupted) == (128 + signal.SIGKILL, True)
    says(cluster, "asked")
    eventually(lambda: not hurried.observe()[0].workers)


def test_limits_hold_from_the_first_plan_on_for_whoever_has_the_name(
    mechanism: Mechanism, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_of: dict[str, Limits] = {}
    create = type(mechanism).create

    def remembered(self: Mechanism, worker: str, *limits: object) -> Limits:
        limits_of[worker] = create(self, worker, *limits)
        return limits_of[worker]

    def in_force() -> list[float | None]:
        return [limits_of[name].cores() for name in (FIRST, OTHER)]

    def cpus() -> set[int]:
        return os.sched_getaffinity(cluster.process(FIRST).pid)

    monkeypatch.setattr(type(mechanism), "create", remembered)
    one_cpu, all_cpus = max(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    say = "print(open('/proc/self/cgroup').read(), 'here', flush=True)\n" + SLEEP
    cluster = start(make_job(say, replicas=2, resources={"limits": {"cpu": "250m"}}), mechanism)
    inside = f"{leftovers.FOLDER_PREFIX}{os.getpid()}-"
    assert (inside in says(cluster, "here")) == bool(mechanism.parents), "before the command begins"

    cluster.keep_to_cpu(FIRST, one_cpu)
    cluster.set_neighbours(FIRST, 1)
    cluster.set_cpu_limit(OTHER, 0.125)
    assert in_force() == [None, None], "a worker that starts is not held back"
    assert cpus() == all_cpus
    assert not neighbours_of(os.getpid())
    assert [worker.cpu_limit for worker in cluster.observe()[0].workers] == [0.25, 0.125]

    cluster.act(Decision("Running", "", plan=PLAN), Remembered.initial())
    assert in_force() == [0.25, None], "who is not in the plan goes on starting"
    assert cpus() == {one_cpu}
    (neighbour,) = eventually(lambda: neighbours_of(os.getpid()))
    eventually(lambda: neighbour in limits_of[FIRST].pids())

    cluster.set_cpu_limit(FIRST, 0.5)
    cluster.set_neighbours(FIRST, 3)
    eventually(lambda: len(neighbours_of(os.getpid())) == 3)
    cluster.observe()
    both = tuple(replace(PLAN.members[0], name=name) for name in limits_of)
    cluster.act(Decision("Running", "", plan=Plan(2, 2, "step", both)), Remembered.initial())
    assert in_force() == [0.5, 0.125]

    os.kill(cluster.process(FIRST).pid, signal.SIGKILL)
    eventually(lambda: cluster.observe() and not neighbours_of(os.getpid()))
    cluster.set_neighbours(FIRST, 1)
    assert not neighbours_of(os.getpid()), "nobody is beside a worker that has ended"
    cluster.act(Decision("Running", "", delete=(FIRST,)), Remembered.initial())
    eventually(lambda: len(cluster.observe()[0].workers) == 1)
    cluster.act(Decision("Running", "", create=(key(),)), Remembered.initial())
    cluster.observe()
    assert (in_force()[0], cpus()) == (None, all_cpus)
    cluster.act(Decision("Running", "", plan=Plan(3, 3, "step", both)), Remembered.initial())
    assert (in_force()[0], cpus()) == (0.25, {one_cpu})
    for change in (lambda: cluster.set_neighbours("nobody", 1), lambda: cluster.set_cpu_limit("nobody", 0.5)):
        with pytest.raises(ValueError, match="no worker 'nobody'"):
            change()


def test_memory_limit_kills_and_is_named_at_once(memory_mechanism: Mechanism, start: Start) -> None:
    script = "b = bytearray(200 << 20); b[::4096] = b'x' * len(b[::4096])\n" + SLEEP
    cluster = start(make_job(script, resources={"limits": {"memory": "64Mi"}}), memory_mechanism)
    process = cluster.process(FIRST)
    eventually(lambda: process.exit_code() is not None)
    assert process.out_of_memory, "known with the exit code"
    worker = only(cluster)
    assert (worker.exit_code, worker.out_of_memory) == (137, True)
    assert worker.message == "out of memory: over its limits.memory of 64 MiB"


def test_parameter_server_is_one_more_process_with_limits_of_its_own(tmp_path: Path) -> None:
    container = {"name": "t", "command": ["python", "-S", "-c", SAY_WHAT_IT_GETS]}
    own = {"template": {"spec": {"containers": [container | {"resources": {"limits": {"cpu": "500m"}}}]}}}
    training = {"globalBatchSize": 32, "steps": 10, "mode": "ASP"}
    job = make_job(SAY_WHAT_IT_GETS, spec={"training": training, "parameterServer": own})
    server = WorkerKey(SERVER_GROUP, 0, "job-server-0")
    with LocalCluster(job, tmp_path, "/somewhere") as cluster:
        cluster.act(Decision("Running", "", create=(server,), beside_training=True), Remembered.initial())
        environment, *_ = json.loads(says(cluster, "]\n", server.name))
        assert (environment[contract.ENV_ROLE], environment[contract.ENV_GROUP]) == (contract.ROLE_SERVER, "")
        assert environment[contract.ENV_WORKER] == "job-server-0"
        assert contract.ENV_WARM_UP not in environment
        assert TrainingConfig.from_json(environment[contract.ENV_CONFIG]).mode == contract.ASP
        [seen] = cluster.observe()[0].workers
        assert (seen.group, seen.cpu_limit) == (SERVER_GROUP, 0.5)
        plan = replace(PLAN, server=Server(seen.name, seen.uid, seen.address))
        cluster.act(Decision("Running", "", plan=plan), Remembered.initial())
        assert cluster.observe()[0].plan == plan
