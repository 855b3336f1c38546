"""Restarts that would begin at step 0 are warned of, and only those."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain_operator.clusters.kube.status.job_status import next_status
from unit.kube.documents import Document, job
from unit.kube.statuses import MEMORY, NOW, decision, training


def durability(spec: Document, **template: Any) -> Document | None:
    found = next_status(None, job(spec, **template), training(), decision(), MEMORY, NOW)
    warnings = [entry for entry in found["conditions"] if entry["type"] == "CheckpointNotDurable"]
    return warnings[0] if warnings else None


def on(volume: Document, mount_path: str = "/checkpoints") -> Document:
    """A template whose container sees a volume there."""
    return {
        "pod_spec": {"volumes": [{"name": "v", **volume}]},
        "volumeMounts": [{"name": "v", "mountPath": mount_path}],
    }


def test_restarts_without_a_checkpoint_are_warned_of() -> None:
    warning = durability({})
    assert warning is not None
    assert (warning["status"], warning["reason"]) == ("True", "NoCheckpointPath")
    assert "backoffLimit is 3" in warning["message"]


@pytest.mark.parametrize(
    "template",
    [{}, on({"emptyDir": {}}), on({"ephemeral": {}}), on({"hostPath": {"path": "/x"}}, "/elsewhere")],
    ids=["no-volume", "emptyDir", "ephemeral", "elsewhere"],
)
def test_path_that_goes_with_the_pods_is_warned_of(template: Document) -> None:
    warning = durability({"checkpoint": {"path": "/checkpoints"}}, **template)
    assert warning is not None
    assert warning["reason"] == "NoDurableVolume"
    assert "group small, large" in warning["message"]


@pytest.mark.parametrize(
    "template",
    [
        on({"persistentVolumeClaim": {"claimName": "c"}}),
        on({"nfs": {"server": "s", "path": "/"}}, "/"),
        on({"hostPath": {"path": "/shared"}}, "/checkpoints/"),
    ],
    ids=["claim", "nfs-above", "hostPath"],
)
def test_path_on_a_volume_that_lasts_is_not(template: Document) -> None:
    assert durability({"checkpoint": {"path": "/checkpoints"}}, **template) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"runPolicy": {"backoffLimit": 0}},
        {"checkpoint": {"path": "/checkpoints", "persistentVolumeClaim": "digits"}},
    ],
    ids=["no-restarts", "claim"],
)
def test_job_that_needs_no_warning_has_none(spec: Document) -> None:
    assert durability(spec) is None
