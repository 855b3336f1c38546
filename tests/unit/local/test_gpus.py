"""Each worker on a GPU has one of its own. A program that lists GPUs as `nvidia-smi -L` does stands in for them; that
CUDA then shows a worker this one alone has not been tried."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, parse_manifest
from heterotrain_operator.cli.local.checks import Options, prepare
from heterotrain_operator.cli.script_job import ScriptJob, WorkerSpec, document_of
from heterotrain_operator.clusters.local import gpus
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.template import read_templates
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Remembered
from unit.local.small_jobs import key, make_job, says

FAST, SLOW = "GPU-1111aaaa-0000", "GPU-2222bbbb-0000"
LIST = f"GPU 0: NVIDIA GeForce RTX 4090 (UUID: {FAST})\nGPU 1: NVIDIA GeForce GTX 1060 6GB (UUID: {SLOW})\n"
CUT = """GPU 0: NVIDIA H200 (UUID: GPU-3)
  MIG 1g.18gb     Device  0: (UUID: MIG-a)
  MIG 2g.35gb Device  1: (UUID: MIG-b)
"""

Machine = Callable[[str], None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Let this machine have the GPUs of a list."""
    folder = tmp_path / "driver"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv(gpus.ENV_VISIBLE, raising=False)

    def has(text: str) -> None:
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
        program.chmod(0o755)
        gpus._detected.cache_clear()

    has(LIST)
    return has


@pytest.mark.parametrize(
    ("text", "allowed", "found"),
    [
        (LIST, None, [("NVIDIA GeForce RTX 4090", FAST), ("NVIDIA GeForce GTX 1060 6GB", SLOW)]),
        (LIST, "GPU-2222", [("NVIDIA GeForce GTX 1060 6GB", "GPU-2222")]),
        (LIST, "1", [("NVIDIA GeForce GTX 1060 6GB", "1")]),
        (LIST, "", []),
        (CUT, None, [("NVIDIA H200 1g.18gb", "MIG-a"), ("NVIDIA H200 2g.35gb", "MIG-b")]),
    ],
)
def test_gpus_are_those_of_the_driver_that_this_process_may_use(
    text: str, allowed: str | None, found: list[tuple[str, str]], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(text)
    if allowed is not None:
        monkeypatch.setenv(gpus.ENV_VISIBLE, allowed)
    assert [(gpu.name, gpu.visible) for gpu in gpus.detect()] == found


def groups(*specs: WorkerSpec, folder: Path, **options: bool) -> list[dict[str, Any]]:
    script = folder / "train.py"
    script.touch()
    document = document_of(ScriptJob(script, specs, 64), **options)
    parse_manifest(document)
    found: list[dict[str, Any]] = document["spec"]["workerGroups"]
    return found


def test_unlike_gpus_are_groups_of_their_own_with_what_static_batches_need(machine: Machine, tmp_path: Path) -> None:
    found = groups(WorkerSpec(Decimal(2)), WorkerSpec(on_gpu=True, every_gpu=True), folder=tmp_path)
    assert [(group["name"], group.get("device"), group["flops"]) for group in found] == [
        ("gpu-0", "gpu", 82.6e12),
        ("gpu-1", "gpu", 4.4e12),
        ("cpu-2000m", None, 1e11),
    ]
    containers = [group["template"]["spec"]["containers"][0] for group in found]
    assert [each.get("env") for each in containers] == [
        [{"name": gpus.ENV_VISIBLE, "value": FAST}],
        [{"name": gpus.ENV_VISIBLE, "value": SLOW}],
        None,
    ]
    assert not any(
        "env" in group["template"]["spec"]["containers"][0]
        for group in groups(WorkerSpec(on_gpu=True, gpu=1), folder=tmp_path, for_cluster=True)
    )
    with pytest.raises(ManifestError, match="there is no gpu:2 on this machine; there is gpu:0 NVIDIA GeForce RTX"):
        groups(WorkerSpec(on_gpu=True, gpu=2), folder=tmp_path)


def test_more_workers_than_gpus_are_refused(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    three = (WorkerSpec(on_gpu=True),) * 2 + (WorkerSpec(on_gpu=True, gpu=0),)
    with pytest.raises(ManifestError, match="2 workers want a GPU each, and this machine has gpu:0 NVIDIA GeForce GTX"):
        prepare(Options(script, script=ScriptJob(script, three, 64)), tmp_path)
    prepare(Options(script, script=ScriptJob(script, three[1:], 64)), tmp_path)


def on_gpus(missing: str = "Fail") -> HeteroTrainingJob:
    template = make_job("import os; print('sees', os.environ['CUDA_VISIBLE_DEVICES'])").spec.worker_groups[0].template
    group = {"name": "cpu", "replicas": 2, "device": "gpu", "onMissingDevice": missing, "template": template}
    return make_job("", spec={"workerGroups": [group]})


def test_worker_that_starts_again_keeps_its_gpu_and_one_without_a_gpu_uses_the_cpu_where_it_may(
    machine: Machine,
) -> None:
    for missing, third in (("Fail", FAST), ("UseCPU", "")):
        job = on_gpus(missing)
        assignment = gpus.GpuAssignment(job, read_templates(job))
        assert [assignment.choose(key(0), []), assignment.choose(key(1), [FAST])] == [FAST, SLOW]
        assert assignment.choose(key(1), []) == SLOW
        assert assignment.choose(key(2), [FAST, SLOW]) == third


@pytest.mark.processes
@pytest.mark.usefixtures("nothing_stays_behind")
def test_each_worker_is_shown_a_gpu_that_no_other_has(machine: Machine, tmp_path: Path) -> None:
    with LocalCluster(on_gpus(), tmp_path / "run", None) as cluster:
        cluster.observe()
        cluster.act(Decision("Created", "", create=(key(0), key(1))), Remembered())
        says(cluster, f"sees {FAST}\n")
        says(cluster, f"sees {SLOW}\n", "job-cpu-1")
