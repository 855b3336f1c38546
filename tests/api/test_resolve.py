"""A checked job becomes what the core decides on and the configuration of its trainers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest

import heterotrain_operator
from heterotrain.contract import TrainingConfig
from heterotrain_operator.api import parse_manifest, to_core, training_config
from heterotrain_operator.api.base import Model
from heterotrain_operator.api.job import JobSpec
from heterotrain_operator.api.quantity import parse_quantity
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.model import Group, Growth, Job, Scaling, Stragglers

Document = dict[str, Any]
Change = Callable[[dict[str, Any]], Document]
LIMITS = "spec.workerGroups[1].template.spec.containers[0].resources.limits"

NOT_RESOLVED = {
    "spec.checkpoint.persistentVolumeClaim": (
        "clusters/kube/objects/pods.py",
        "spec.checkpoint.persistent_volume_claim",
    ),
    "spec.metrics": ("clusters/kube/observe/sources.py", "spec.metrics.source"),
    "spec.runPolicy.schedulingPolicy": ("api/availability.py", "spec.runPolicy.schedulingPolicy"),
}
"""Fields, and sections as wholes, that neither decisions nor workers get: the file that reads or refuses them, or says
that they have no effect, and its words for that."""


def test_quantity_is_exact() -> None:
    numbers = {"500m": "0.5", 2: "2", ".5": "0.5", "+1.5k": "1500", "1.5Gi": "1610612736", "1E": "1e18", "1e3": "1000"}
    numbers |= {"12E-1": "1.2", "100n": "0.0000001", 0.25: "0.25"}
    for text, number in numbers.items():
        assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize(
    "text", ["", "1 core", "m", "1mi", "0x10", "1e", "\u0661", "1\n", True, float("nan"), [1], "-1"]
)
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"must be a quantity|negative"):
        parse_quantity(text)


def test_core_sees_groups_with_their_limits(good: Document, changed: Change) -> None:
    job = to_core(parse_manifest(good))
    assert [(group.name, group.replicas, group.cpu_limit) for group in job.groups] == [
        ("fast", 1, 1.0),
        ("slow", 2, 0.25),
    ]
    assert [(group.batch_min, group.batch_max, group.multiple_of) for group in job.groups] == [
        (1, 512, 1),
        (1, None, 1),
    ]
    assert (job.name, job.global_batch, job.policy, job.initial) == ("digits", 192, "Optimal", "Static")
    assert (job.initial, job.stragglers) == (Job("", (), 1).initial, Stragglers()), "defaults of the resource"
    for limits in ({"memory": "1Gi"}, {"cpu": 0}, None):
        assert to_core(parse_manifest(changed({LIMITS: limits}))).groups[1].cpu_limit is None


def test_core_follows_every_setting_that_it_knows(changed: Change) -> None:
    batching = {"policy": "Static", "initial": "Uniform", "interval": 7, "applyAt": "epoch", "fixedGlobalBatch": False}
    changes = {
        "spec.batching": {**batching, "deadBand": 0.1, "smoothing": 0.3, "dryRun": True},
        "spec.runPolicy": {
            "suspend": True,
            "backoffLimit": 1,
            "startupDeadlineSeconds": 9,
            "activeDeadlineSeconds": 99,
            "finishDeadlineSeconds": 999,
        },
        "spec.scaling": {
            "condition": "Utility",
            "everyBatches": 20,
            "step": 2,
            "threshold": 0.2,
            "utility": {"form": "Step", "points": [{"seconds": 60, "value": 2}]},
        },
        "spec.workerGroups[0].pricePerHour": 0.5,
        "spec.workerGroups[1].pricePerHour": 0.25,
        "spec.membership": {"heartbeatTimeoutSeconds": 2, "progressTimeoutSeconds": 20},
        "spec.workerGroups[1].batchSize": {"multipleOf": 16},
        "spec.checkpoint": {"path": "/checkpoints"},
    }
    job = to_core(parse_manifest(changed(changes)))
    assert (job.policy, job.initial, job.interval, job.apply_at) == ("Static", "Uniform", 7, "epoch")
    assert (job.fixed_global_batch, job.dead_band, job.smoothing, job.dry_run) == (False, 0.1, 0.3, True)
    assert (job.suspend, job.backoff_limit) == (True, 1)
    deadlines = job.startup_deadline_seconds, job.active_deadline_seconds, job.finish_deadline_seconds
    assert deadlines == (9.0, 99.0, 999.0)
    assert (job.heartbeat_timeout_seconds, job.progress_timeout_seconds) == (2.0, 20.0)
    assert [group.multiple_of for group in job.groups] == [1, 16]
    assert job.scaling == Scaling("Utility", 20, 2, 0.2, "Step", ((60.0, 2.0),))
    assert [(group.max_replicas, group.price_per_hour) for group in job.groups] == [(None, 0.5), (4, 0.25)]
    assert job.resumable and not to_core(parse_manifest(changed({}))).resumable
    growing = parse_manifest(changed({"spec.scaling": {"globalBatch": "Grow", "maxGlobalBatchSize": 512}}))
    assert (job.growth, to_core(growing).growth) == (None, Growth(192, 512))


def test_trainers_learn_what_the_job_says(changed: Change) -> None:
    job = parse_manifest(
        changed(
            {
                "spec.training.seed": 7,
                "spec.training.learningRateScaling": "Linear",
                "spec.training.lastStep": "Carry",
                "spec.training.backend": "gloo",
                "spec.training.target": {"metric": "accuracy", "value": 0.25, "mode": "Max", "everySteps": 20},
                "spec.checkpoint": {"path": "/checkpoints", "everySteps": 30, "keep": 2},
                "spec.workerGroups[1].onMissingDevice": "UseCPU",
                "spec.workerGroups[1].precision": "bfloat16",
            }
        )
    )
    config = training_config(job, "slow")
    assert config == TrainingConfig(
        epochs=5,
        seed=7,
        on_missing_device="UseCPU",
        precision="bfloat16",
        checkpoint_path=f"/checkpoints/{job.metadata.name}",
        checkpoint_every_steps=30,
        checkpoint_keep=2,
        target_metric="accuracy",
        target_value=0.25,
        target_mode="Max",
        target_every_steps=20,
        last_step="Carry",
        backend="gloo",
        learning_rate_scaling="Linear",
        learning_rate_own_batch=192,
    )
    assert TrainingConfig.from_json(config.to_json()) == config


def test_job_that_trains_asynchronously_has_a_server_and_says_how_to_its_trainers(changed: Change) -> None:
    asked = {"maxStaleness": 4, "late": "Discard", "push": "Model", "rateReference": "WorkerBatch"}
    training = {"batchSizePerWorker": 64, "epochs": 5, "mode": "ASP", "asynchronous": asked}
    changes = {
        "spec.training": {**training, "learningRateScaling": "Sqrt"},
        "spec.parameterServer": {"pricePerHour": 2},
    }
    job = parse_manifest(changed({**changes, "spec.batching": {"policy": "Proportional"}}))
    config = training_config(job, "server")
    assert (config.mode, config.max_staleness, config.late, config.push) == ("ASP", 4, "Discard", "Model")
    assert (config.learning_rate_scaling, config.learning_rate_own_batch) == ("Sqrt", 64)
    assert config == training_config(job, "fast"), "the server runs what the first group runs"
    assert set(json.loads(config.to_json())["essential"]) >= {"mode", "max_staleness", "late", "push"}
    core = to_core(job)
    assert core.server == Group("server", 1, price_per_hour=2)
    assert [group.name for group in core.groups] == ["fast", "slow"]
    assert core.global_batch == 192
    kept = {name: policy.keeps_sum(core) for name, policy in POLICIES.items()}
    assert kept["Optimal"] and kept["LBBSP"] and not kept["Proportional"] and not kept["PapersProportional"]
    assert (
        to_core(
            parse_manifest(
                changed(
                    {
                        **changes,
                        "spec.batching": {"balance": "Cycle"},
                        "spec.training": {**training, "asynchronous": {}},
                    }
                )
            )
        ).balance
        == "Cycle"
    )


def test_trainers_of_an_older_image_are_sent_nothing_that_they_do_not_know(good: Document, changed: Change) -> None:
    usual = training_config(parse_manifest(good), "fast")
    assert usual == TrainingConfig(epochs=5), "defaults of the resource are those of the contract"
    newer = {"last_step", "backend"}
    assert not newer & json.loads(usual.to_json()).keys()
    job = parse_manifest(changed({"spec.training.lastStep": "Drop", "spec.training.backend": "gloo"}))
    assert newer < json.loads(training_config(job, "fast").to_json()).keys()


UID = "7e9b8a30-52a6-4b5f-8f0f-0c2a3a3b7d11"


def test_job_that_is_not_to_resume_keeps_its_checkpoints_where_no_earlier_one_has(changed: Change) -> None:
    for resume, uid, folder in (("Auto", UID, ""), ("Never", UID, f"/{UID}"), ("Never", None, "")):
        job = parse_manifest(changed({"spec.checkpoint": {"path": "/saved", "resume": resume}, "metadata.uid": uid}))
        assert training_config(job, "fast").checkpoint_path == f"/saved/{job.metadata.name}{folder}"


def models_in(annotation: object) -> Iterator[type[Model]]:
    """The models that a field of this type holds."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def unread_fields(model: type[Model], where: str, read: set[tuple[type, str]]) -> Iterator[str]:
    """The paths below `where` that are not in `read`; of a section that nobody read, its own path alone."""
    for name, field in model.model_fields.items():
        path = f"{where}.{field.alias}"
        if (model, name) not in read:
            yield path
            continue
        for inner in models_in(field.annotation):
            yield from unread_fields(inner, path, read)


def template_of(job: Document) -> Any:
    """The template of the job's first group."""
    return job["spec"]["workerGroups"][0]["template"]


def test_every_field_is_read_somewhere(alone: Document, changed: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a field that is admitted and documented would silently be ignored."""
    target = {"metric": "accuracy", "value": 0.25, "mode": "Max"}
    alone["spec"]["training"] = {"batchSizePerWorker": 32, "steps": 10}
    worth = {"utility": {"points": [{"seconds": 60, "value": 2}]}, "globalBatch": "Grow", "maxGlobalBatchSize": 512}
    job = {"spec.training.target": target, "spec.checkpoint": {"path": "/checkpoints"}, "spec.scaling": worth}
    asynchronous = {"spec.training": {"batchSizePerWorker": 32, "steps": 10, "mode": "ASP", "asynchronous": {}}}
    asynchronous |= {"spec.training.learningRateScaling": "Linear", "spec.training.globalBatchSize": 96}
    asynchronous["spec.training"].pop("batchSizePerWorker")
    jobs = [
        parse_manifest(changed(job)),
        parse_manifest(alone),
        parse_manifest(changed({**asynchronous, "spec.parameterServer": {"template": template_of(alone)}})),
    ]
    read: set[tuple[type, str]] = set()

    def noting(self: Model, name: str) -> Any:
        read.add((type(self), name))
        return object.__getattribute__(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(Model, "__getattribute__", noting)
        for job in jobs:
            to_core(job)
            training_config(job, "slow")
    assert sorted(unread_fields(JobSpec, "spec", read)) == sorted(NOT_RESOLVED)
    product = Path(heterotrain_operator.__file__).parent
    assert [words for file, words in NOT_RESOLVED.values() if words not in (product / file).read_text()] == []


def test_core_sees_the_replicas_of_the_job_as_those_of_its_only_group(alone: Document) -> None:
    alone["spec"]["workerGroups"][0] |= {"replicas": 2, "maxReplicas": 4}
    alone["spec"]["training"] = {"batchSizePerWorker": 32, "steps": 10}
    job = to_core(parse_manifest(alone))
    assert [(group.name, group.replicas) for group in job.groups] == [("slow", 3)]
    assert job.global_batch == 3 * 32
