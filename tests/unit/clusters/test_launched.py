"""Workers that a launcher has started, as decisions see them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from heterotrain.contract import PLAN_FILE, Launch, LaunchedWorker, Member, Plan, parse_plan
from heterotrain_operator.clusters.launched import LaunchedCluster, job_of
from heterotrain_operator.core.model import Decision, WorkerKey
from heterotrain_operator.core.state import Remembered

NOBODY = "127.0.0.1:9"  # the port for what is discarded


def launch(folder: Path) -> Launch:
    groups = [("node0-gpu", 0, "gpu"), ("node0", 0, "cpu"), ("node1-gpu", 0, "gpu"), ("node0", 1, "cpu")]
    workers = [LaunchedWorker(f"{g}-{i}", f"uid-{n}", g, i, d, NOBODY, NOBODY) for n, (g, i, d) in enumerate(groups)]
    return Launch(str(folder), 64, tuple(workers))


def test_groups_come_in_the_order_of_their_lowest_ranks_so_that_rank_0_leads(tmp_path: Path) -> None:
    job = job_of(Launch.from_json(launch(tmp_path).to_json()))
    assert [(group.name, group.replicas, group.device) for group in job.groups] == [
        ("node0-gpu", 1, "gpu"),
        ("node0", 2, "cpu"),
        ("node1-gpu", 1, "gpu"),
    ]


def test_plans_are_written_for_rank_0_and_workers_are_left_to_the_launcher(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(LaunchedCluster(launch(tmp_path))) as cluster:
        seen, memory = cluster.observe()
        assert [(worker.phase, worker.metrics) for worker in seen.workers] == [("Running", None)] * 4
        assert (seen.plan, memory) == (None, None)
        plan = Plan(1, 1, "step", tuple(Member(w.name, w.uid, w.address, w.group, 16) for w in seen.workers))
        new = WorkerKey("node0", 2, "node0-2")
        cluster.act(Decision("Running", "for a test", plan=plan, create=(new,)), Remembered.initial())
        assert parse_plan((tmp_path / PLAN_FILE).read_text()) == plan == cluster.observe()[0].plan
    assert "worker node0-2: left to the launcher: for a test" in caplog.text
