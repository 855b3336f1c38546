"""Turn what a scenario says of workers and events into what the simulation takes, under the simulation's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from heterotrain_operator.api import Problem
from heterotrain_operator.api.problems import did_you_mean, render_path
from heterotrain_operator.clusters.simulated.events import ClusterEvent
from heterotrain_operator.clusters.simulated.scenario import WorkerModel
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.experiments.scenarios.events import CpuLimit, Event
from heterotrain_operator.experiments.scenarios.scenario import ALL
from heterotrain_operator.experiments.scenarios.workers import WorkerBehaviour, merged


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
        models[group.name] = _model(group.name, merged(everybody, given.get(group.name)), problems)
    for name, behaviour in given.items():
        full = names.get(name)
        if full is None or full in models or name == ALL:
            continue
        own = next(group.name for group in job.groups if full in _workers_of(job, group))
        models[full] = _model(name, merged(everybody, given.get(own), behaviour), problems)
    return models


def _model(name: str, behaviour: WorkerBehaviour, problems: list[Problem]) -> WorkerModel:
    try:
        return behaviour.model()
    except ValueError as error:
        problems.append(Problem(render_path(("workers", name)), str(error)))
        return WorkerModel()


def events_of(
    given: Sequence[Event],
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
        if not found and isinstance(event.chosen, CpuLimit) and event.chosen.before is None:
            concerned = event.workers or (ALL,)
            free = next((name for name in concerned if unlimited & {name, names.get(name)}), None)
            if free is not None:
                found.append(Problem(f"{path}.cpuLimit.before", f"is required, since {free} has no cpuLimit before"))
        if not found:
            workers = () if ALL in event.workers else tuple(names[name] for name in event.workers)
            yield event.event(workers)
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
