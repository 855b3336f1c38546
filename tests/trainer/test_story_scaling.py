"""A job that finds by itself how many workers pay trains the model of one process."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from heterotrain.contract import StepRecord
from heterotrain_operator.api import to_core
from heterotrain_operator.api.spec.scaling import Scaling
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.core.model import Decision, Seen
from heterotrain_operator.loop import run_job
from jobs.worlds import digits_job
from trainer.story import EXACT, SEED, assert_each_sample_once_per_epoch, difference, in_plain_loop, samples_in

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("batch", "grows"),
    [
        pytest.param(96, {}, marks=pytest.mark.long, id="Fixed"),
        pytest.param(48, {"globalBatch": "Grow", "maxGlobalBatchSize": 108}, id="Grow"),
    ],
)
def test_job_finds_how_many_real_workers_pay_and_ends_with_the_weights_of_one_process(
    tmp_path: Path, batch: int, grows: dict[str, Any]
) -> None:
    """Until it has found that, a step takes as long as its samples, but no less than that of 48: a third worker brings
    little, as the batch does not grow beyond 96 or 108."""
    results, epochs = tmp_path / "results", 30
    go = results / "go"
    seconds = "0.004 * max(len(sys._getframe(1).f_globals['images']), 48)"
    takes = f"os.path.exists({str(go)!r}) or time.sleep({seconds})"
    rule = "Linear" if grows else "None"
    training = {"globalBatchSize": batch, "epochs": epochs, "seed": SEED, "learningRateScaling": rule}
    job = digits_job(results, ["1"], each=takes, width=8, training=training)
    groups = tuple(group.model_copy(update={"max_replicas": 3}) for group in job.spec.worker_groups)
    scaling = Scaling(condition="Throughput", step=1, threshold=0.5, **grows)
    spec = job.spec.model_copy(update={"worker_groups": groups, "scaling": scaling})
    job = job.model_copy(update={"spec": spec})
    sizes: list[int] = []
    batches: dict[int, int] = {}  # of a step, by plan

    def watch(seen: Seen, decision: Decision) -> None:
        if decision.plan is not None:
            batches[decision.plan.version] = decision.plan.global_batch_size
        if seen.plan is not None and sizes[-1:] != [len(seen.plan.members)]:
            sizes.append(len(seen.plan.members))
        if decision.scaling is not None and decision.scaling.at_rest and sizes[-1] < 3:
            go.touch()

    with LocalCluster(job, tmp_path / "run", None) as cluster:
        last = run_job(to_core(job), cluster, now=time.time, pause=cluster.wait, on_round=watch)
        paths = [path for files in cluster.series_files().values() for path in files]
    records = [StepRecord.from_json(line) for path in paths for line in path.read_text().splitlines()]
    assert last.phase == "Succeeded", last.reason
    assert last.scaling is not None
    assert (sizes[:4], {*sizes} <= {1, 2, 3}) == ([1, 2, 3, 2], True), last.scaling.said

    steps = [batches[version] for _, version in sorted({(each.step, each.version) for each in records})]
    assert {*steps} == ({48, 96, 108} if grows else {96})
    expected = in_plain_loop([(each, each / batch) for each in steps], epochs, "sgd")
    assert len(expected.losses) == len(steps), "no step was done twice, or by two plans"
    saved = list(results.glob("*.pt"))
    assert saved, "who is there at the end saves the weights"
    for path in saved:
        assert difference(torch.load(path, weights_only=True), expected.weights) < EXACT
    assert_each_sample_once_per_epoch(samples_in(results.glob("*.samples")), epochs)
