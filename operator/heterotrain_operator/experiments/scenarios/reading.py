"""Read a scenario's file, and refuse what is wrong with it, all at once, each fault by its path."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem, to_core
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.api.document import document_in, field_problem, in_json, plain_mapping, read_text
from heterotrain_operator.api.problems import did_you_mean
from heterotrain_operator.clusters.simulated.communication import NoCommunication
from heterotrain_operator.clusters.simulated.described import choice_problems
from heterotrain_operator.clusters.simulated.events import ClusterEvent
from heterotrain_operator.clusters.simulated.influences import ChangeOfTime
from heterotrain_operator.clusters.simulated.noise import NoNoise
from heterotrain_operator.clusters.simulated.scenario import Scenario
from heterotrain_operator.core.model import Job
from heterotrain_operator.experiments.scenarios import Changes
from heterotrain_operator.experiments.scenarios.recorded import scenario_of
from heterotrain_operator.experiments.scenarios.resolve import events_of, job_of, models_of, names_of
from heterotrain_operator.experiments.scenarios.scenario import ScenarioFile

MAX_PRODUCT = 1e6
"""By how much all events together may make steps longer, or shorter, if they all happened at once."""

MAX_TOTAL_STEPS = 10_000_000
"""Steps of one simulation; three figures of each are kept."""

BASELINE = "Uniform"
"""What the job's own policy is compared with, if the scenario does not say."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """`scenario` has the job's own policy and the first seed; each of `policies` runs with each of `seeds` in turn.

    `text` is the file's as it was read, empty if it was none.
    """

    name: str
    description: str
    scenario: Scenario
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    text: str = ""

    def runs(self) -> Iterator[tuple[str, Scenario]]:
        """Each policy and its scenario; those of one seed have the same noise."""
        for seed in self.seeds:
            for policy in self.policies:
                yield policy, replace(self.scenario, job=replace(self.scenario.job, policy=policy), seed=seed)


def load_simulation(path: Path, changes: Changes | None = None) -> Simulation:
    """What a scenario's YAML (or JSON) file asks for, or that of the run in a folder, with the command line's changes.

    Raises ManifestError with all that is wrong with it.
    """
    # A pipe can be read but once, and a file may be another one by the time that it is kept.
    text = scenario_text(path)
    return replace(parse_simulation(document_in(text, path), path.parent, changes), text=text)


def scenario_text(path: Path) -> str:
    """The text of a scenario's file, or of the scenario that the run in a folder becomes. Raises ManifestError."""
    if path.is_dir():
        return yaml.safe_dump(scenario_of(path), sort_keys=False, width=110, default_flow_style=None)
    return read_text(path)


def parse_simulation(document: object, folder: Path, changes: Changes | None = None) -> Simulation:
    """What a parsed document asks for; `folder` is where paths in it begin. Raises ManifestError."""
    problems: list[Problem] = []
    plain = in_json(plain_mapping(document))
    # The job is judged by itself, so that neither part's faults hide those of the other.
    job = job_of(plain, folder, problems)
    file = _validated(plain, problems)
    if file is not None:
        problems += choice_problems(file)
    if file is None or job is None or problems:
        raise ManifestError(problems)
    return _resolved(file, job, changes or Changes())


def _validated(plain: dict[str, Any], problems: list[Problem]) -> ScenarioFile | None:
    document = {**plain, "job": {}} if isinstance(plain.get("job"), dict) else plain
    try:
        return ScenarioFile.model_validate_json(json.dumps(document))
    except ValidationError as error:
        problems += [field_problem(detail, ScenarioFile) for detail in error.errors(include_url=False)]
    return None


def _resolved(file: ScenarioFile, job: HeteroTrainingJob, changes: Changes) -> Simulation:
    try:
        return _simulation(file, job, changes)
    except ManifestError:
        raise
    except ValueError as error:  # values have bounds of their own, also between fields
        raise ManifestError([Problem("", str(error))]) from error


def _simulation(file: ScenarioFile, job: HeteroTrainingJob, changes: Changes) -> Simulation:
    core = to_core(job)
    problems: list[Problem] = []
    names = names_of(core)
    models = models_of(file.workers, core, names, problems)
    events = tuple(events_of(file.events, names, models, core, problems))
    problems += _too_much(file, events, core, changes)
    policies = changes.policies or file.policies
    problems += _policy_problems(policies, "--policy" if changes.policies else "policies")
    if problems:
        raise ManifestError(problems)
    own = core.policy
    scenario = Scenario(
        job=core,
        models=models,
        events=events,
        timing=file.timing.value(),
        seed=file.seed if changes.seed is None else changes.seed,
        intervals=changes.intervals or file.intervals,
        total_steps=job.spec.training.steps,
        checkpoint_steps=file.checkpoint_steps,
        title=file.name,
        communication=NoCommunication() if file.communication is None else file.communication.chosen.value(),
        shared_noise=NoNoise() if file.shared_noise is None else file.shared_noise.chosen.value(),
    )
    asynchronous = job.spec.training.asynchronous
    if asynchronous is not None:
        scenario = replace(scenario, max_staleness=asynchronous.max_staleness, late=asynchronous.late)
    count = changes.seeds or file.seeds
    return Simulation(
        name=file.name,
        description=file.description,
        scenario=scenario,
        policies=policies or tuple(dict.fromkeys((own, BASELINE))),
        seeds=tuple(range(scenario.seed, scenario.seed + count)),
    )


def _too_much(file: ScenarioFile, events: Sequence[ClusterEvent], job: Job, changes: Changes) -> Iterator[Problem]:
    """What no field exceeds by itself, but all of them together."""
    intervals = changes.intervals or file.intervals
    if intervals * job.interval > MAX_TOTAL_STEPS:
        reason = f"{intervals} intervals of {job.interval} steps are more than {MAX_TOTAL_STEPS} steps"
        yield Problem("--intervals" if changes.intervals else "intervals", reason)
    logarithms = [math.log(event.whole_factor) for event in events if isinstance(event, ChangeOfTime)]
    for what, sign in (("longer", 1), ("shorter", -1)):
        if math.fsum(max(sign * each, 0.0) for each in logarithms) > math.log(MAX_PRODUCT):
            yield Problem("events", f"make steps more than {MAX_PRODUCT:.0e} times {what}, all together")


def _policy_problems(policies: Sequence[str], where: str) -> Iterator[Problem]:
    known = known_policies()
    for index, policy in enumerate(policies):
        if policy not in known:
            hint = did_you_mean(policy, known)
            path = where if where.startswith("--") else f"{where}[{index}]"
            yield Problem(path, f"{policy} is not a known policy; known are {', '.join(known)}{hint}")
    for policy in dict.fromkeys(policies):
        if policies.count(policy) > 1:
            yield Problem(where, f"{policy} would run twice")
