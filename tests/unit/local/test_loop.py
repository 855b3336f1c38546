"""The whole loop with the real decisions and real processes; only the training is pretended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain_operator.api import HeteroTrainingJob, to_core
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.volume import PlanVolume
from heterotrain_operator.core.model import Decision, Seen
from heterotrain_operator.core.state import Memory
from heterotrain_operator.loop import run_job
from unit.local.small_jobs import make_job

pytestmark = pytest.mark.processes

TRAINER = f"""
import http.server, json, os, sys, threading, time
name, uid = os.environ[{contract.ENV_WORKER!r}], os.environ[{contract.ENV_UID!r}]
last_step = json.loads(os.environ[{contract.ENV_CONFIG!r}])["steps"]
seconds_per_sample = 0.001 * (1 + 2 * int(name[-1]))  # worker 1 is three times as slow as worker 0
version = batch = step = steps = samples = 0
own = squares = 0.0
phase = "waiting"

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        values = {{
            {table.PLAN_VERSION.name!r}: version, {table.BATCH_SIZE.name!r}: batch,
            {table.STEP.name!r}: step, {table.TOTAL_STEPS.name!r}: last_step,
            {table.STEPS.series!r}: steps, {table.SAMPLES.series!r}: samples,
            {table.OWN_SECONDS.series!r}: own,
            {table.OWN_SECONDS_SQUARED.series!r}: squares,
        }}
        label = 'plan_version="%d"' % version
        lines = ["%s{{%s}} %r" % (key, label, value) for key, value in values.items()]
        lines.append('%s{{%s,phase="%s"}} 1' % ({table.PHASE.name!r}, label, phase))
        body = ("\\n".join(lines) + "\\n").encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ[{contract.ENV_METRICS_PORT!r}])), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
while step < last_step:
    time.sleep(0.004)
    try:
        plan = json.load(open(os.environ[{contract.ENV_PLAN_DIR!r}] + "/plan.json"))
    except FileNotFoundError:
        continue
    mine = [m["batchSize"] for m in plan["members"] if (m["name"], m["uid"]) == (name, uid)]
    if not mine:
        continue
    if plan["version"] != version:
        version, batch, phase, steps, samples, own, squares = plan["version"], mine[0], "training", 0, 0, 0.0, 0.0
    exec(sys.argv[1])
    step += 1; steps += 1; samples += batch
    own += batch * seconds_per_sample; squares += (batch * seconds_per_sample) ** 2
with open(os.environ[{contract.ENV_TERMINATION_LOG!r}], "w") as file:
    json.dump({{"finished": True, "step": step, "message": ""}}, file)
"""


class Run:
    """A job steered to its end, with what was seen on the way."""

    def __init__(self, job: HeteroTrainingJob, cluster: LocalCluster) -> None:
        self.job = job
        self.cluster = cluster
        self.decisions: list[Decision] = []
        self.seen: list[Seen] = []

    def steer(
        self,
        act: Callable[[Seen], None] = lambda _: None,
        until: Callable[[Seen, Decision], bool] | None = None,
    ) -> Decision:
        """Rounds are short here, so that the tests are."""

        def on_round(seen: Seen, decision: Decision) -> None:
            self.seen.append(seen)
            self.decisions.append(decision)
            act(seen)

        pause = lambda seconds: self.cluster.wait(min(seconds, 0.1))  # noqa: E731
        return run_job(to_core(self.job), self.cluster, now=time.time, pause=pause, on_round=on_round, until=until)

    @property
    def events(self) -> list[str]:
        """Their reasons, in order."""
        return [event.reason for decision in self.decisions for event in decision.events]


MakeRun = Callable[..., Run]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[MakeRun]:
    """Makes a run of two pretended workers; `fault` is executed by each before each step."""
    clusters: list[LocalCluster] = []

    def make(fault: str = "", steps: int = 300, **spec: Any) -> Run:
        training = {"globalBatchSize": 32, "steps": steps}
        batching = {"policy": "Proportional"}
        job = make_job(
            TRAINER,
            fault,
            replicas=2,
            spec={"training": training, "batching": batching, **spec},
            workingDir=str(tmp_path),
        )
        clusters.append(LocalCluster(job, tmp_path / "run", None))
        return Run(job, clusters[-1])

    yield make
    for cluster in clusters:
        cluster.close()


def test_a_job_runs_to_its_end_and_the_faster_worker_gets_more(run: MakeRun) -> None:
    first = run()
    decision = first.steer()
    assert decision.phase == "Succeeded"
    plan = first.seen[-1].plan
    assert plan is not None
    batches = {member.name: member.batch_size for member in plan.members}
    assert batches == {"job-cpu-0": 24, "job-cpu-1": 8}
    assert "BatchRebalanced" in first.events


def test_a_worker_that_dies_restarts_the_job(run: MakeRun) -> None:
    once = "if name[-1] == '1' and step == 5 and not os.path.exists('died'): open('died', 'w'); os._exit(1)"
    job = run(once, steps=30)
    assert job.steer().phase == "Succeeded"
    assert job.events.count("WorkerFailed") == 1
    first, last = job.seen[0], job.seen[-1]
    assert not first.workers
    assert len(job.cluster.series_files()) == 2
    assert last.plan is not None
    assert last.plan.generation > 1


def test_a_killed_worker_is_named_with_its_signal(run: MakeRun) -> None:
    job = run(steps=200)
    killed: list[str] = []

    def kill_one(seen: Seen) -> None:
        if not killed and any(w.metrics is not None and w.metrics.step > 0 for w in seen.workers):
            killed.append(seen.workers[0].name)
            os.kill(job.cluster.pid("job-cpu-0"), signal.SIGKILL)

    assert job.steer(kill_one).phase == "Succeeded"
    messages = [event.message for decision in job.decisions for event in decision.events]
    assert any("job-cpu-0 was killed by SIGKILL" in message for message in messages)


def test_a_script_that_is_not_there_fails_the_job_at_once(tmp_path: Path) -> None:
    command = ["python", str(tmp_path / "missing.py")]
    missing = make_job("", replicas=2, spec={"runPolicy": {"backoffLimit": 3}}, command=command)
    with LocalCluster(missing, tmp_path / "run", None) as cluster:
        job = Run(missing, cluster)
        decision = job.steer()
    assert decision.phase == "Failed"
    assert job.events[-1] == "WorkersFailedAlike"
    assert "RestartingWorkers" not in job.events
    assert decision.reason.startswith("all 2 workers ended in the same way before the first step")
    assert "missing.py" in decision.reason


def test_a_worker_that_only_says_that_it_was_asked_to_stop_counts(run: MakeRun) -> None:
    words = f"open(os.environ[{contract.ENV_TERMINATION_LOG!r}], 'w').write('{{\"askedToStop\": true}}')"
    job = run(f"step == 5 and ({words}, os._exit({contract.EXIT_PREEMPTED}))", runPolicy={"backoffLimit": 1})
    assert job.steer().phase == "Failed"
    assert job.events.count("RestartingWorkers") == 1
    assert job.events[-1] == "BackoffLimitExceeded"


def test_a_job_that_keeps_failing_ends_as_failed_and_says_why(run: MakeRun) -> None:
    job = run("raise ValueError('bad data in shard 3')", runPolicy={"backoffLimit": 1})
    decision = job.steer()
    assert decision.phase == "Failed"
    assert "bad data in shard 3" in decision.reason
    assert not [worker for worker in job.cluster.observe()[0].workers if worker.exit_code is None]


def test_a_script_that_never_joins_fails_the_job_at_once(tmp_path: Path) -> None:
    job = make_job("print('trained alone')", spec={"runPolicy": {"backoffLimit": 9}})
    with LocalCluster(job, tmp_path / "run", None) as cluster:
        decision = Run(job, cluster).steer()
    assert decision.phase == "Failed"
    assert "never joined: the script does not call heterotrain.join()" in decision.reason


def test_a_script_that_raises_again_at_the_same_step_is_restarted_once(run: MakeRun) -> None:
    words = '{"finished": false, "step": 5, "message": "ValueError: label 17", "scriptError": true}'
    said = f"open(os.environ[{contract.ENV_TERMINATION_LOG!r}], 'w').write({words!r}) and os._exit(1)"
    job = run(f"step == 5 and {said}", checkpoint={"path": "/checkpoints"}, runPolicy={"backoffLimit": 9})
    assert job.steer().phase == "Failed"
    assert job.events.count("RestartingWorkers") == 1
    assert "the script raised the same at step 5 after a restart" in job.decisions[-1].reason


def test_run_ends_early_when_its_condition_holds(run: MakeRun) -> None:
    job = run()
    decision = job.steer(until=lambda seen, _: seen.plan is not None)
    assert decision.phase == "Running"
    assert job.cluster.observe()[0].plan is not None


def test_after_a_conflict_it_observes_again(run: MakeRun) -> None:
    job = run(steps=30)
    rivals = iter(["a rival wrote meanwhile"])

    class Contested(LocalCluster):
        def act(self, decision: Decision, memory: Memory) -> None:
            for _ in rivals:
                volume = PlanVolume(self.directory / "plan")
                volume.write(volume.read().version, None, Memory.initial().to_json())
            super().act(decision, memory)

    with Contested(job.job, job.cluster.directory, None) as contested:
        job.cluster = contested
        assert job.steer().phase == "Succeeded"
    assert next(rivals, None) is None
