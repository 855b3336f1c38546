"""The job of a scenario: that of a manifest, or a spec without what a simulation does not need."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterotrain_operator.api import API_VERSION, KIND, HeteroTrainingJob, ManifestError, Problem, parse_simulated
from heterotrain_operator.api.document import read_document
from heterotrain_operator.experiments.scenarios.scenario import ALL

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
