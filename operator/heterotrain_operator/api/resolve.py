"""Turn a checked job into what the pure core decides on, and into the configuration of its trainers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from heterotrain import contract
from heterotrain.contract import TrainingConfig
from heterotrain_operator.api.job import HeteroTrainingJob, JobSpec
from heterotrain_operator.api.quantity import parse_quantity
from heterotrain_operator.api.spec.training import Asynchronous
from heterotrain_operator.api.spec.worker_groups import WorkerGroup
from heterotrain_operator.core.model import SERVER_GROUP, Group, Growth, Job, Scaling, Stragglers


def cpu_limit(group: WorkerGroup) -> float | None:
    """Cores that the first container of a group's pods may use; None without a limit (0 is none, too)."""
    container = group.template["spec"]["containers"][0]
    limits = (container.get("resources") or {}).get("limits") or {}
    if "cpu" not in limits:
        return None
    return float(parse_quantity(limits["cpu"])) or None


def to_core(job: HeteroTrainingJob) -> Job:
    """The job as the core sees it: defaults filled in, the global batch a number of samples.

    The job must come from `parse_manifest` or `load_manifest`.
    """
    spec = job.spec
    deadline, ttl = spec.run_policy.active_deadline_seconds, spec.run_policy.ttl_seconds_after_finished
    server = spec.server_group
    return Job(
        name=job.metadata.name,
        groups=tuple(
            Group(
                name=group.name,
                replicas=group.replicas,
                device=group.device,
                batch_min=group.batch_size.min,
                batch_max=group.batch_size.max,
                multiple_of=group.batch_size.multiple_of,
                cpu_limit=cpu_limit(group),
                flops=group.flops,
                min_replicas=group.min_replicas,
                max_replicas=group.max_replicas,
                price_per_hour=group.price_per_hour,
            )
            for group in spec.sized_groups
        ),
        global_batch=spec.global_batch_size,
        policy=spec.batching.policy,
        initial=spec.batching.initial,
        interval=spec.batching.interval,
        apply_at=spec.batching.apply_at,
        fixed_global_batch=spec.batching.fixed_global_batch,
        dead_band=spec.batching.dead_band,
        smoothing=spec.batching.smoothing,
        prediction=spec.batching.prediction,
        dry_run=spec.batching.dry_run,
        balance=spec.batching.balance,
        server=None if server is None else Group(SERVER_GROUP, 1, price_per_hour=server.price_per_hour),
        stragglers=Stragglers(
            action=spec.stragglers.action,
            threshold=spec.stragglers.threshold,
            smoothing=spec.stragglers.smoothing,
            max_replacements=spec.stragglers.max_replacements,
            cooldown_seconds=float(spec.stragglers.cooldown_seconds),
        ),
        scaling=Scaling(
            condition=spec.scaling.condition,
            every_batches=spec.scaling.every_batches,
            step=spec.scaling.step,
            threshold=spec.scaling.threshold,
            form=spec.scaling.utility.form,
            corners=tuple((float(each.seconds), each.value) for each in spec.scaling.utility.points),
        ),
        growth=Growth(spec.global_batch_size, spec.scaling.max_global_batch_size)
        if spec.scaling.global_batch == "Grow"
        else None,
        suspend=spec.run_policy.suspend,
        backoff_limit=spec.run_policy.backoff_limit,
        resumable=spec.checkpoint.path is not None,
        startup_deadline_seconds=float(spec.run_policy.startup_deadline_seconds),
        active_deadline_seconds=None if deadline is None else float(deadline),
        finish_deadline_seconds=float(spec.run_policy.finish_deadline_seconds),
        heartbeat_timeout_seconds=float(spec.membership.heartbeat_timeout_seconds),
        progress_timeout_seconds=float(spec.membership.progress_timeout_seconds),
        clean_pod_policy=spec.run_policy.clean_pod_policy,
        ttl_seconds=None if ttl is None else float(ttl),
        uid=job.metadata.uid or "",
    )


def checkpoint_folder(job: HeteroTrainingJob) -> str | None:
    """Where its workers keep the job's checkpoints; None if it has none.

    A folder of the job's own: jobs that share a volume would go on from each other's. One that is not to go on from an
    earlier job of its name has a folder of its UID in it, where there is a cluster that gave it one.
    """
    path, uid = job.spec.checkpoint.path, job.metadata.uid
    if path is None:
        return None
    own = PurePosixPath(path) / job.metadata.name
    return str(own / uid if job.spec.checkpoint.resume == "Never" and uid else own)


def global_batch_variable(job: HeteroTrainingJob) -> dict[str, str]:
    """The variable with the global batch, for workers before there is a plan; none if it may change with the
    workers."""
    batch = job.spec.training.global_batch_size
    if batch is None or not job.spec.batching.fixed_global_batch or job.spec.scaling.global_batch == "Grow":
        return {}
    return {contract.ENV_GLOBAL_BATCH_SIZE: str(batch)}


def _rates_batch(spec: JobSpec) -> int:
    """The batch that learning rates are chosen for."""
    asked, per_worker = spec.training.asynchronous, spec.training.batch_size_per_worker
    if asked is not None and asked.rate_reference == "WorkerBatch" and per_worker is not None:
        return per_worker
    return spec.global_batch_size


def training_config(job: HeteroTrainingJob, group: str) -> TrainingConfig:
    """The configuration that the workers of one group start with, or the parameter server.

    Raises ValueError if the job has no such group.
    """
    spec = job.spec
    own = next((candidate for candidate in spec.pod_groups if candidate.name == group), None)
    if own is None:
        names = ", ".join(candidate.name for candidate in spec.pod_groups)
        raise ValueError(f"job {job.metadata.name} has no worker group {group!r}; it has {names}")
    target = spec.training.target
    config = TrainingConfig(
        epochs=spec.training.epochs,
        steps=spec.training.steps,
        seed=spec.training.seed,
        smoothing=spec.batching.smoothing,
        device=own.device,
        on_missing_device=own.on_missing_device,
        precision=own.precision,
        checkpoint_path=checkpoint_folder(job),
        checkpoint_every_steps=spec.checkpoint.every_steps,
        checkpoint_keep=spec.checkpoint.keep,
        progress_timeout_seconds=float(spec.membership.progress_timeout_seconds),
        startup_deadline_seconds=float(spec.run_policy.startup_deadline_seconds),
        heartbeat_timeout_seconds=float(spec.membership.heartbeat_timeout_seconds),
        last_step=spec.training.last_step,
        backend=spec.training.backend,
    )
    if spec.training.learning_rate_scaling != "None":
        config = replace(
            config,
            learning_rate_scaling=spec.training.learning_rate_scaling,
            learning_rate_own_batch=_rates_batch(spec),
        )
    if spec.training.mode == "ASP":
        asked = spec.training.asynchronous or Asynchronous()
        config = replace(config, mode=contract.ASP, max_staleness=asked.max_staleness, late=asked.late, push=asked.push)
    if target is None:
        return config
    return replace(
        config,
        target_metric=target.metric,
        target_value=target.value,
        target_mode=target.direction,
        target_every_steps=target.every_steps,
    )
