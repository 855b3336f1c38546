"""What the user reads before a run begins."""

from __future__ import annotations

import re
from collections.abc import Mapping

from heterotrain_operator.cli.local.checks import Prepared
from heterotrain_operator.cli.local.live import View
from heterotrain_operator.cli.local.options import Options
from heterotrain_operator.clusters.local.limits import Mechanism
from heterotrain_operator.experiments import checkpoints
from heterotrain_operator.experiments.experiment import Experiment

_IN_POD = re.compile(r"^spec\.workerGroups\[\d+\]\.template\.(?:spec\.)?")


def introduce(view: View, prepared: Prepared, options: Options, mechanism: Mechanism, cpus: Mapping[str, int]) -> None:
    """Say what will run, under which limits, and where its checkpoints are; move earlier ones aside if asked to."""
    experiment = prepared.experiment
    job = experiment.job
    replicas = job.spec.total_replicas
    view.say(
        f"{job.metadata.name}: {replicas} {'worker' if replicas == 1 else 'workers'}, global batch "
        f"{job.spec.global_batch_size}, policy {experiment.policy}",
        style="bold",
    )
    view.say(f"Limits: {mechanism.describe()}")
    if cpus:
        view.say(f"Each worker keeps to one CPU: {', '.join(f'{name} to {cpu}' for name, cpu in cpus.items())}")
    for change in experiment.schedule.changes:
        view.say(f"Limits change to {change.label} at {experiment.schedule.unit} {change.at:g}")
    ignored = ignored_fields(prepared)
    if ignored:
        view.say(f"Ignored on this machine: {', '.join(ignored)}")
    if experiment.trained > 1:
        view.say("Every trial starts from the beginning; its checkpoints stay in the run's folder")
        return
    _introduce_checkpoints(view, experiment, options)


def _introduce_checkpoints(view: View, experiment: Experiment, options: Options) -> None:
    job = experiment.job
    if experiment.durable is None:
        where = "in the run's folder" if options.out is not None else "temporary: nothing can be resumed"
        view.say(f"Checkpoints are {where} (the job has no spec.checkpoint.path)")
        return
    claim = job.spec.checkpoint.persistent_volume_claim
    stands = f", which stands for the claim {claim}" if claim is not None else ""
    view.say(f"Checkpoints: {experiment.durable}{stands}")
    if options.fresh and checkpoints.steps_in(experiment.durable):
        view.say(f"--fresh: earlier checkpoints were moved to {checkpoints.set_aside(experiment.durable)}")
    if options.resume:
        saved = checkpoints.newest_step(experiment.durable)
        view.say(
            f"Resuming after {saved} steps"
            if saved is not None
            else "There is no checkpoint yet: starting from the beginning",
        )


def ignored_fields(prepared: Prepared) -> list[str]:
    """Fields of the manifest without effect on this machine; fields of pod templates are named once, by their path in
    the pod."""
    in_templates = (path for template in prepared.templates.values() for path in template.ignored)
    paths = list(dict.fromkeys(_IN_POD.sub("", path) for path in in_templates))
    if prepared.experiment.job.spec.metrics.source != "Pods":
        paths.append("spec.metrics.source (the workers themselves are asked)")
    return paths
