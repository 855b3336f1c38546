"""The local backend with real processes: they train limited, end when asked to, say why, and leave nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain.contract import TrainingConfig
from heterotrain_operator.api import HeteroTrainingJob, ManifestError
from heterotrain_operator.clusters.local import cluster as local_cluster
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import Mechanism
from heterotrain_operator.clusters.port import PlanConflictError
from heterotrain_operator.core.memory.job import RestartBudget
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Memory
from unit.local.small_jobs import (
    IGNORE_TERM,
    PLAN,
    SLEEP,
    ended,
    eventually,
    key,
    log_says,
    make_job,
    only,
)

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]
Start = Callable[..., LocalCluster]
SAY_ENVIRONMENT = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv, sys.executable, os.getcwd()]))"


def test_a_worker_gets_the_contract(start: Start) -> None:
    job = make_job(
        SAY_ENVIRONMENT,
        "$(HETEROTRAIN_WORKER)",
        "$$(X)",
        env=[{"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        workingDir="/",
        resources={"limits": {"cpu": "250m"}},
    )
    cluster = start(job)
    worker = ended(cluster)
    environment, arguments, executable, folder = json.loads(cluster.log_file(worker.name).read_text())
    files = cluster.directory / "workers" / worker.name
    assert arguments[1:] == [worker.name, "$(X)"]
    assert executable == sys.executable
    assert folder == "/"
    assert environment["ME"] == worker.name
    assert environment["PYTHONUNBUFFERED"] == "1"
    assert not environment["TORCHINDUCTOR_CACHE_DIR"].startswith(environment["TMPDIR"])
    assert environment[contract.ENV_JOB] == "job"
    assert environment[contract.ENV_WORKER] == worker.name
    assert environment[contract.ENV_UID] == worker.uid
    assert environment[contract.ENV_GROUP] == "cpu"
    assert len(environment[contract.ENV_SECRET]) == 2 * contract.SECRET_BYTES
    assert environment[contract.ENV_METRICS_PORT] != worker.address.rpartition(":")[2]
    assert environment[contract.ENV_PLAN_DIR] == str(cluster.directory / "plan")
    assert environment[contract.ENV_CPU_LIMIT] == "0.25"
    assert contract.ENV_WARM_UP not in environment
    assert environment[contract.ENV_SERIES] == str(files / f"{worker.uid}.jsonl")
    config = TrainingConfig.from_json(environment[contract.ENV_CONFIG])
    assert config.steps == 10
    assert config.checkpoint_path is None


@pytest.mark.parametrize(("env", "told"), [((), "1"), (({"name": contract.ENV_WARM_UP, "value": "0"},), "0")])
def test_worker_that_is_created_beside_training_is_to_warm_up(
    tmp_path: Path, env: tuple[dict[str, str], ...], told: str
) -> None:
    with LocalCluster(make_job(SAY_ENVIRONMENT, env=list(env)), tmp_path, None) as cluster:
        cluster.act(Decision("Running", "", create=(key(),), beside_training=True), Memory.initial())
        environment = json.loads(cluster.log_file(ended(cluster).name).read_text())[0]
    assert environment[contract.ENV_WARM_UP] == told


LITTER = """
import pathlib, socket, tempfile
path = pathlib.Path(tempfile.mkdtemp(), "listener-0123456789")
socket.socket(socket.AF_UNIX).bind(str(path))
print(path, flush=True)
"""


def test_temporary_files_of_a_worker_go_with_it(start: Start) -> None:
    cluster = start(make_job(f"{LITTER}\n{SLEEP}"), mechanism=None)
    name = key().name
    said = eventually(lambda: cluster.log_file(name).read_text().strip())
    assert Path(said).is_socket()
    cluster.process(name).kill()
    eventually(lambda: only(cluster).exit_code is not None and not Path(said).parent.parent.exists())


def test_temporary_files_of_a_run_go_with_it(tmp_path: Path) -> None:
    with LocalCluster(make_job(f"{LITTER}\n{SLEEP}"), tmp_path, None) as cluster:
        cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
        log = cluster.log_file(key().name)
        said = Path(eventually(lambda: log.read_text().strip()))
        of_run = said.parents[2]
        assert of_run.exists()
    assert not of_run.exists()


def test_the_run_decides_where_checkpoints_go(tmp_path: Path) -> None:
    with LocalCluster(make_job(SAY_ENVIRONMENT), tmp_path, "/somewhere") as cluster:
        cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
        environment = json.loads(cluster.log_file(ended(cluster).name).read_text())[0]
    assert TrainingConfig.from_json(environment[contract.ENV_CONFIG]).checkpoint_path == "/somewhere"


@pytest.mark.parametrize(
    ("script", "phase", "code"),
    [
        ("", "Succeeded", 0),
        ("raise SystemExit(3)", "Failed", 3),
        ("import os; os.kill(os.getpid(), 9)", "Failed", 137),
        ("import os; os.kill(os.getpid(), 15)", "Failed", 143),
    ],
)
def test_exit_codes_are_those_of_kubernetes(start: Start, script: str, phase: str, code: int) -> None:
    worker = ended(start(make_job(script)))
    assert (worker.phase, worker.exit_code, worker.finished) == (phase, code, False)


def test_last_words_are_read(start: Start) -> None:
    words = contract.Termination(finished=True, step=10, message="all well")
    script = f"import os; open(os.environ[{contract.ENV_TERMINATION_LOG!r}], 'w').write({words.to_json()!r})"
    worker = ended(start(make_job(script)))
    assert (worker.finished, worker.message) == (True, "all well")


def test_last_words_tell_whose_error_it_was_and_whether_to_try_again(start: Start) -> None:
    words = contract.Termination(finished=False, step=10, message="no label 17", script_error=True, fatal=True)
    script = f"import os; open(os.environ[{contract.ENV_TERMINATION_LOG!r}], 'w').write({words.to_json()!r}); 1 / 0"
    worker = ended(start(make_job(script)))
    assert (worker.exit_code, worker.step, worker.message) == (1, 10, "no label 17")
    assert worker.script_error
    assert worker.fatal


def test_last_words_tell_that_the_job_goes_on_without_it(start: Start) -> None:
    words = contract.Termination(finished=False, step=10, message="left after step 10", left=True)
    script = f"import os; open(os.environ[{contract.ENV_TERMINATION_LOG!r}], 'w').write({words.to_json()!r})"
    worker = ended(start(make_job(script)))
    assert (worker.exit_code, worker.finished, worker.left) == (0, False, True)


def test_a_worker_that_fails_without_a_word_is_quoted_from_its_log(start: Start) -> None:
    message = ended(start(make_job("print('ready'); 1 / 0"))).message
    assert "ZeroDivisionError" in message
    message = ended(start(make_job("import os; print('so far', flush=True); os.kill(os.getpid(), 11)"))).message
    assert "SIGSEGV" in message
    assert "so far" in message


def test_a_command_that_does_not_exist_is_named(start: Start) -> None:
    worker = ended(start(make_job("", command=["no-such-program"])))
    assert worker.exit_code == 127
    assert "no-such-program" in worker.message


def test_a_folder_that_does_not_exist_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"template\.spec\.containers\[0\]\.workingDir: /no/folder"):
        LocalCluster(make_job("", workingDir="/no/folder"), tmp_path, None)


def test_memory_limit_kills_and_is_named(memory_mechanism: Mechanism, start: Start) -> None:
    script = "b = bytearray(200 << 20); b[::4096] = b'x' * len(b[::4096])\n" + SLEEP
    cluster = start(make_job(script, resources={"limits": {"memory": "64Mi"}}), memory_mechanism)
    worker = ended(cluster)
    assert worker.exit_code == 137
    assert "out of memory" in worker.message
    assert "64 MiB" in worker.message


def test_lack_of_memory_is_known_with_the_exit_code(memory_mechanism: Mechanism, start: Start) -> None:
    script = "b = bytearray(200 << 20); b[::4096] = b'x' * len(b[::4096])\n"
    cluster = start(make_job(script, resources={"limits": {"memory": "64Mi"}}), memory_mechanism)
    (pod,) = cluster._pods.values()
    deadline = time.monotonic() + 60
    while pod.process.exit_code() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pod.process.out_of_memory


def test_a_deleted_worker_is_asked_to_leave(start: Start) -> None:
    script = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), sys.exit(143)))\n"
        "print('here', flush=True)\n"
    ) + SLEEP
    cluster = start(make_job(script))
    log_says(cluster, "here")
    cluster.act(Decision("Running", "", delete=("job-cpu-0",)), Memory.initial())
    eventually(lambda: not cluster.observe()[0].workers)
    log_says(cluster, "asked")


def test_a_deaf_worker_is_killed_after_its_grace_without_holding_up_the_loop(
    mechanism: Mechanism, start: Start
) -> None:
    cluster = start(make_job(IGNORE_TERM), mechanism)
    log_says(cluster, "deaf")
    cluster.act(Decision("Running", "", delete=("job-cpu-0",)), Memory.initial())
    assert only(cluster).exit_code is None  # the call came back while it was still there
    eventually(lambda: not cluster.observe()[0].workers)


def test_a_worker_with_a_short_grace_is_killed_after_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "SHORT_GRACE_SECONDS", 0.2)
    container = {"name": "t", "command": ["python", "-S", "-c", IGNORE_TERM]}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 600}}
    cluster = start(make_job(IGNORE_TERM, spec={"workerGroups": [{"name": "cpu", "template": template}]}))
    log_says(cluster, "deaf")
    cluster.act(Decision("Running", "", delete=("job-cpu-0",), short_grace=("job-cpu-0",)), Memory.initial())
    eventually(lambda: not cluster.observe()[0].workers)


def test_a_created_again_worker_has_another_identity_and_the_same_log(start: Start) -> None:
    cluster = start(make_job("print('hello'); raise SystemExit(1)"))
    first = ended(cluster)
    cluster.act(Decision("Running", "", delete=(first.name,)), Memory.initial())
    eventually(lambda: not cluster.observe()[0].workers)
    cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
    second = ended(cluster)
    assert first.uid != second.uid
    assert first.address != second.address
    assert second.message == "hello"  # not what its predecessor wrote
    assert cluster.log_file(first.name).read_text() == "hello\nhello\n"


def test_series_are_listed_by_worker_oldest_first(start: Start) -> None:
    cluster = start(make_job(f"import os; open(os.environ[{contract.ENV_SERIES!r}], 'w').close()"))
    first = ended(cluster)
    cluster.act(Decision("Running", "", delete=(first.name,)), Memory.initial())
    cluster.observe()
    cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
    second = ended(cluster)
    assert [file.stem for file in cluster.series_files()["job-cpu-0"]] == [first.uid, second.uid]


def test_plan_and_memory_come_back_as_published(start: Start) -> None:
    cluster = start(make_job(SLEEP))
    memory = Memory(plan_version=1, budget=RestartBudget(restarts=2))
    cluster.act(Decision("Running", "", plan=PLAN), memory)
    seen, remembered = cluster.observe()
    assert seen.plan == PLAN
    assert remembered == memory
    cluster.act(Decision("Running", ""), Memory(budget=RestartBudget(restarts=3)))
    seen, remembered = cluster.observe()
    assert seen.plan == PLAN
    assert remembered == Memory(budget=RestartBudget(restarts=3))


def test_nothing_is_done_upon_an_outdated_observation(start: Start, tmp_path: Path) -> None:
    cluster = start(make_job(SLEEP))
    with LocalCluster(cluster.job, cluster.directory, None) as other:
        other.observe()
        other.act(Decision("Running", "", plan=PLAN), Memory.initial())
    with pytest.raises(PlanConflictError):
        cluster.act(Decision("Running", "", delete=("job-cpu-0",), create=(key(1),)), Memory.initial())
    assert [worker.name for worker in cluster.observe()[0].workers] == ["job-cpu-0"]


def test_creating_twice_starts_one_process(start: Start) -> None:
    cluster = start(make_job(SLEEP))
    before = only(cluster).uid
    cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
    assert only(cluster).uid == before


def test_damaged_memory_and_plan_count_as_none(start: Start) -> None:
    cluster = start(make_job(SLEEP))
    cluster.act(Decision("Running", "", plan=PLAN), Memory(budget=RestartBudget(restarts=2)))
    folder = cluster.directory / "plan" / "..data"
    (folder / contract.PLAN_FILE).write_text('{"schema": 1')
    (folder / "state.json").write_text("[]")
    seen, memory = cluster.observe()
    assert (seen.plan, memory) == (None, None)


def test_waiting_ends_when_a_worker_ends(start: Start) -> None:
    cluster = start(make_job("import sys; sys.stdin.read()"))
    cluster.wait(3600)
    assert only(cluster).exit_code == 0


def test_fields_that_mean_nothing_here_are_named(tmp_path: Path) -> None:
    job: HeteroTrainingJob = make_job("", image="x")
    with LocalCluster(job, tmp_path, None) as cluster:
        assert cluster.ignored == ("spec.workerGroups[0].template.spec.containers[0].image",)
