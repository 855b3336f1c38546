"""Turn what a scenario says into what the simulation takes: its job, and workers and events under the job's names."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from heterotrain_operator.api import API_VERSION, KIND, HeteroTrainingJob, ManifestError, Problem, parse_simulated
from heterotrain_operator.api.document import read_document
from heterotrain_operator.api.problems import did_you_mean, render_path
from heterotrain_operator.clusters.simulated.events import ClusterEvent, EventChoice
from heterotrain_operator.clusters.simulated.influences import LimitChange
from heterotrain_operator.clusters.simulated.scenario import WorkerModel
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.experiments.scenarios.scenario import ALL, WorkerBehaviour, merged

_CONTAINER = {"name": "trainer", "image": "simulated"}


def job_of(plain: Mapping[str, Any], folder: Path, problems: list[Problem]) -> HeteroTrainingJob | None:
    """The job that a scenario names or describes; None if there is a problem with it."""
    spec, manifest = plain.get("job"), plain.get("manifest")
    if (spec is None) == (manifest is None):
        found = "neither" if spec is None else "both"
        problems.append(Problem("", f"needs exactly one of job and manifest, found {found}"))
        return None
    if isinstance(manifest, str):
        try:
            document = read_document(folder / manifest)
            job = parse_simulated(document)
        except ManifestError as error:
            problems += [Problem("manifest", f"{manifest}: {problem}") for problem in error.problems]
            return None
        return job
    if not isinstance(spec, dict):
        return None
    name = plain.get("name")
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name if isinstance(name, str) else "scenario"},
        "spec": _completed(spec, plain.get("workers")),
    }
    try:
        job = parse_simulated(document)
    except ManifestError as error:
        problems += [_of_job(problem) for problem in error.problems if not problem.path.startswith("metadata")]
        return None
    return job


def _completed(spec: dict[str, Any], workers: object) -> dict[str, Any]:
    """The spec with templates, which say no more than the CPU limits of groups, and with an end, which the scenario
    has.
    """
    spec = copy.deepcopy(spec)
    groups = spec.get("workerGroups")
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict) and "template" not in group:
            cores = _cpu_limit(workers, group.get("name"))
            resources = {} if cores is None else {"resources": {"limits": {"cpu": str(cores)}}}
            group["template"] = {"spec": {"containers": [{**_CONTAINER, **resources}]}}
    training = spec.get("training")
    if isinstance(training, dict) and "steps" not in training and "epochs" not in training:
        training["epochs"] = 1
    return spec


def _cpu_limit(workers: object, group: object) -> float | None:
    """The CPU limit of a group's workers, in cores, as the scenario says it; None if it says none that is one."""
    for name in (group, ALL):
        behaviour = workers.get(name) if isinstance(workers, dict) and isinstance(name, str) else None
        cores = behaviour.get("cpuLimit") if isinstance(behaviour, dict) else None
        if isinstance(cores, int | float) and not isinstance(cores, bool) and cores > 0:
            return cores
    return None


def _of_job(problem: Problem) -> Problem:
    """A problem of the spec by its path in the scenario."""
    rest = problem.path.removeprefix("spec")
    reason = problem.reason.replace("spec.", "job.")
    return Problem(f"job{rest}" if problem.path.startswith("spec") else problem.path, reason)


def _workers_of(job: Job, group: Group) -> tuple[str, ...]:
    return tuple(worker_name(job.name, group.name, index) for index in range(group.replicas))


def names_of(job: Job) -> dict[str, str]:
    """What a scenario may call groups and workers, and what they are called in the simulation."""
    workers = {
        f"{group.name}-{index}": worker_name(job.name, group.name, index)
        for group in job.groups
        for index in range(group.replicas)
    }
    return {**workers, **{name: name for name in workers.values()}, **{group.name: group.name for group in job.groups}}


def _unknown_name(name: str, names: Mapping[str, str], job: Job) -> str:
    groups = ", ".join(group.name for group in job.groups)
    hint = did_you_mean(name, names)
    return f"is no worker group and no worker of the job (<group>-<index>); groups are {groups}{hint}"


def models_of(
    given: Mapping[str, WorkerBehaviour], job: Job, names: Mapping[str, str], problems: list[Problem]
) -> dict[str, WorkerModel]:
    """Of every group and of every worker that is named, by its name in the simulation."""
    unknown = [name for name in given if name != ALL and name not in names]
    problems += [Problem(render_path(("workers", name)), _unknown_name(name, names, job)) for name in unknown]
    everybody = given.get(ALL)
    models = {}
    for group in job.groups:
        models[group.name] = merged(everybody, given.get(group.name)).model()
    for name, behaviour in given.items():
        full = names.get(name)
        if full is None or full in models or name == ALL:
            continue
        own = next(group.name for group in job.groups if full in _workers_of(job, group))
        models[full] = merged(everybody, given.get(own), behaviour).model()
    return models


def events_of(
    given: Sequence[EventChoice],
    names: Mapping[str, str],
    models: Mapping[str, WorkerModel],
    job: Job,
    problems: list[Problem],
) -> Iterator[ClusterEvent]:
    """The events in order, but for those with problems."""
    unlimited = _unlimited(job, models)
    for index, event in enumerate(given):
        path = f"events[{index}]"
        found = [*event.problems(path)]
        for position, name in enumerate(event.workers):
            if name != ALL and name not in names:
                found.append(Problem(f"{path}.workers[{position}]", _unknown_name(name, names, job)))
        if not found:
            made = event.event(() if ALL in event.workers else tuple(names[name] for name in event.workers))
            concerned = event.workers or (ALL,)
            free = next((name for name in concerned if unlimited & {name, names.get(name)}), None)
            if isinstance(made, LimitChange) and made.before is None and free is not None:
                found.append(Problem(f"{path}.cpuLimit.before", f"is required, since {free} has no cpuLimit before"))
            else:
                yield made
        problems += found


def _unlimited(job: Job, models: Mapping[str, WorkerModel]) -> set[str]:
    """The groups of which some worker has no CPU limit, workers without one that are named, and ALL if there is any."""
    free: set[str] = set()
    for group in job.groups:
        if group.cpu_limit is not None:
            continue
        without = {name for name in _workers_of(job, group) if models.get(name, models[group.name]).cpu_limit is None}
        free |= without
        if without:
            free |= {group.name, ALL}
    return free
