"""The options of a job that is run from Python: those of `heterotrain run`, with its checks."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterotrain_client.errors import InvalidJobError
from heterotrain_operator.api import Problem
from heterotrain_operator.api.base import MAX_STEPS
from heterotrain_operator.api.problems import did_you_mean
from heterotrain_operator.cli import arguments as command_line
from heterotrain_operator.cli.script_job import IMAGE, ScriptJob, WorkerSpec

Workers = str | int | Iterable[str | int | float]
"""As `--workers` has them: 3, "3x1.0,2x0.5", or a list such as [1.0, 0.5, "gpu:0"]."""

Whole = Annotated[int, Field(ge=1, le=MAX_STEPS)]

FOR_SCRIPTS = dict.fromkeys(
    ("name", "arguments", "func_args", "global_batch", "epochs", "steps", "checkpoints", "image"),
    "a script; a manifest says it itself",
)
FOR_FUNCTIONS = {"func_args": "a function; a script gets arguments"}
ON_CLUSTERS = {"image": "a cluster; here workers run in this Python"}
HERE = dict.fromkeys(("compare", "rounds", "resume", "fresh", "checkpoints"), "jobs on this machine alone")
IN_MANIFESTS = dict.fromkeys(("policy", "seed"), "jobs on this machine; on a cluster the manifest says it")


class RunOptions(BaseModel):
    """How a job is run. What is None is left to the script, and then to a default, as on the command line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    arguments: tuple[str, ...] = ()
    func_args: dict[str, Any] = Field(default_factory=dict)
    global_batch: Whole | None = None
    epochs: Whole | None = None
    steps: Whole | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_STEPS)] | None = None
    policy: str | None = None
    image: str = IMAGE
    compare: tuple[str, ...] = ()
    rounds: Whole = 1
    checkpoints: Path | None = None
    resume: bool = False
    fresh: bool = False

    def job_of(self, script: Path, workers: str | None, name: str | None, checkpoints: Path | None = None) -> ScriptJob:
        """The script's job. Raises InvalidJobError for workers that cannot be read."""
        asked = (self.global_batch, self.epochs, self.steps, self.arguments, self.seed)
        return ScriptJob(script, workers_of(workers), *asked, checkpoints, name=name)


class RunArguments(TypedDict, total=False):
    """The keyword arguments of `Client.run`, for editors and type checkers; `RunOptions` checks them."""

    name: str | None
    arguments: Iterable[str]
    func_args: Mapping[str, Any]
    global_batch: int | None
    epochs: int | None
    steps: int | None
    seed: int | None
    policy: str | None
    image: str
    compare: Iterable[str]
    rounds: int
    checkpoints: str | Path | None
    resume: bool
    fresh: bool


assert set(get_type_hints(RunArguments)) == set(RunOptions.model_fields)


def options_of(given: Mapping[str, Any], refused: Mapping[str, str]) -> RunOptions:
    """The options, checked. Raises InvalidJobError with all that is wrong; `refused` says what each option is for that
    is not for this kind of job.
    """
    problems = [Problem(name, f"is for {what}") for name, what in refused.items() if name in given]
    for name in given:
        if name not in RunOptions.model_fields:
            near = did_you_mean(name, RunOptions.model_fields)
            known = near or f"; there are workers, {', '.join(RunOptions.model_fields)}"
            problems.append(Problem(name, f"is no option of run(){known}"))
    known_ones = {key: value for key, value in given.items() if key in RunOptions.model_fields and key not in refused}
    try:
        options = RunOptions.model_validate(known_ones)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            path = ".".join(map(str, each["loc"]))
            problems.append(Problem(path, f"{each['msg'].lower()}, found {each['input']!r:.60}"))
    if known_ones.get("epochs") is not None and known_ones.get("steps") is not None:
        problems.append(Problem("steps", "is instead of epochs; name one of them"))
    if known_ones.get("resume") and known_ones.get("fresh"):
        problems.append(Problem("fresh", "is the opposite of resume; name one of them"))
    if problems:
        raise InvalidJobError(problems)
    return options


def workers_text(given: Workers | None) -> str | None:
    """Workers as the command line has them. Raises InvalidJobError."""
    if given is None:
        return None
    alone = isinstance(given, str | int) and not isinstance(given, bool)
    words = [given] if alone else list(given) if isinstance(given, Iterable) else None
    if words is None or not all(isinstance(each, str | int | float) for each in words):
        raise InvalidJobError([Problem("workers", f"must be like {command_line.WORKERS_EXAMPLE}, found {given!r:.60}")])
    text = str(given) if alone else ",".join(each if isinstance(each, str) else f"cpu:{each:g}" for each in words)
    workers_of(text)
    return text


def workers_of(text: str | None) -> tuple[WorkerSpec, ...] | None:
    """Workers, as the command line reads them. Raises InvalidJobError."""
    try:
        return None if text is None else command_line.workers(text)
    except argparse.ArgumentTypeError as error:
        raise InvalidJobError([Problem("workers", str(error))]) from None
