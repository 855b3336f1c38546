"""The whole loop with the real decisions and real processes; only the training is pretended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain_operator.api import HeteroTrainingJob, to_core
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.volume import PlanVolume
from heterotrain_operator.core.model import Decision, Seen
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.loop import run_job
from unit.local.small_jobs import make_job

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
    """A job steered on this machine, with what was seen on the way."""

    def __init__(self, job: HeteroTrainingJob, cluster: LocalCluster) -> None:
        self.job = job
        self.cluster = cluster
        self.decisions: list[Decision] = []
        self.seen: list[Seen] = []

    def steer(self, until: Callable[[Seen, Decision], bool] | None = None) -> Decision:
        """Rounds are short here, so that the tests are."""

        def on_round(seen: Seen, decision: Decision) -> None:
            self.seen.append(seen)
            self.decisions.append(decision)

        pause = lambda seconds: self.cluster.wait(min(seconds, 0.1))  # noqa: E731
        return run_job(to_core(self.job), self.cluster, now=time.time, pause=pause, on_round=on_round, until=until)

    @property
    def events(self) -> list[tuple[str, str]]:
        """Their reasons and messages, in order."""
        return [(event.reason, event.message) for decision in self.decisions for event in decision.events]


class Contested(LocalCluster):
    """A cluster whose first record somebody else replaces."""

    rivals = 1

    def act(self, decision: Decision, memory: Remembered) -> None:
        if self.rivals:
            self.rivals -= 1
            volume = PlanVolume(self.directory / "plan")
            volume.write(volume.read().version, None, Remembered.initial().to_json())
        super().act(decision, memory)


def pretended(fault: str, **spec: Any) -> HeteroTrainingJob:
    """A job of two pretended workers; `fault` is executed by each before each step."""
    training = {"globalBatchSize": 32, "steps": 300}
    spec = {"training": training, "batching": {"policy": "Proportional"}, **spec}
    return make_job(TRAINER, fault, replicas=2, spec=spec)


def batches(seen: Seen) -> list[int]:
    return [] if seen.plan is None else [member.batch_size for member in seen.plan.members]


@pytest.mark.processes
def test_job_is_balanced_restarted_after_a_kill_and_runs_to_its_end(tmp_path: Path) -> None:
    linger = f"step > 200 and not os.path.exists({str(tmp_path / 'go')!r}) and time.sleep(0.2)"
    with Contested(job := pretended(linger), tmp_path, None) as cluster:
        run = Run(job, cluster)
        assert run.steer(until=lambda seen, _: batches(seen) == [24, 8]).phase == "Running"
        assert cluster.rivals == 0, "after the conflict it has observed again"
        assert "BatchRebalanced" in dict(run.events)
        os.kill(cluster.process("job-cpu-0").pid, signal.SIGKILL)
        run.steer(until=lambda seen, _: seen.plan is not None and seen.plan.generation > 1)
        (tmp_path / "go").touch()
        assert run.steer().phase == "Succeeded"
        assert [reason for reason, _ in run.events].count("WorkerFailed") == 1
        assert any("job-cpu-0 was killed by SIGKILL" in message for _, message in run.events)
        first, last = run.seen[0], run.seen[-1]
        assert not first.workers
        assert last.plan is not None
        assert last.plan.generation > 1


RAISED = '{"finished": false, "step": 5, "message": "ValueError: label 17", "scriptError": true}'
AGAIN = f"step == 5 and open(os.environ[{contract.ENV_TERMINATION_LOG!r}], 'w').write({RAISED!r}) and os._exit(1)"
TRY_OFTEN = {"runPolicy": {"backoffLimit": 9}}
NEVER_ENDS_WELL = [
    (
        make_job("", replicas=2, spec=TRY_OFTEN, command=["python", "/no/missing.py"]),
        0,
        ["all 2 workers ended in the same way before the first step", "missing.py"],
    ),
    (
        make_job("print('trained alone')", spec=TRY_OFTEN),
        0,
        ["never joined: the script does not call heterotrain.join()"],
    ),
    (
        pretended(AGAIN, checkpoint={"path": "/checkpoints"}, **TRY_OFTEN),
        1,
        ["the script failed at step 5 again, after a restart", "label 17"],
    ),
]
"""Jobs that fail, after how many restarts, and what is said of them."""


@pytest.mark.processes
def test_script_that_never_ends_well_fails_the_job_soon_and_is_explained(tmp_path: Path) -> None:
    for index, (job, restarts, says) in enumerate(NEVER_ENDS_WELL):
        with LocalCluster(job, tmp_path / str(index), None) as cluster:
            run = Run(job, cluster)
            decision = run.steer()
            assert decision.phase == "Failed"
            assert [reason for reason, _ in run.events].count("RestartingWorkers") == restarts
            assert all(text in decision.reason for text in says), decision.reason
            assert not [worker for worker in cluster.observe()[0].workers if worker.exit_code is None]
