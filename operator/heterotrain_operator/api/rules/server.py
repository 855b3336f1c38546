"""Rules about the parameter server: who needs one, what a job with one may not ask for, and its template."""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain_operator.api.job import HeteroTrainingJob
from heterotrain_operator.api.problems import Problem
from heterotrain_operator.api.rule import Cel, Rule
from heterotrain_operator.api.template import template_problems
from heterotrain_operator.core.model import SERVER_GROUP


def _server_fits_mode(job: HeteroTrainingJob) -> Iterator[Problem]:
    spec = job.spec
    if spec.training.mode != "ASP":
        if spec.parameter_server is not None:
            yield Problem("spec.parameterServer", "is only for spec.training.mode ASP")
        if spec.batching.balance == "Cycle":
            yield Problem(
                "spec.batching.balance", "Cycle is only for spec.training.mode ASP: else all cycles are alike"
            )
        return
    if spec.parameter_server is None:
        yield Problem("spec.parameterServer", "is required for spec.training.mode ASP; {} is enough")
    asked = spec.training.asynchronous
    if spec.batching.balance == "Cycle" and asked is not None and asked.max_staleness is not None:
        yield Problem(
            "spec.batching.balance",
            "must be Compute with spec.training.asynchronous.maxStaleness, whose waits would make all cycles alike",
        )
    if spec.scaling.condition != "None":
        yield Problem("spec.scaling.condition", "must be None with spec.training.mode ASP: sizes are compared by steps")
    if spec.scaling.global_batch == "Grow":
        yield Problem(
            "spec.scaling.globalBatch", "must be Fixed with spec.training.mode ASP: no step has a global batch"
        )
    for index, group in enumerate(spec.worker_groups):
        if group.name == SERVER_GROUP:
            yield Problem(f"spec.workerGroups[{index}].name", f"{SERVER_GROUP} is the parameter server's")


_IS_ASP = "self.training.mode == 'ASP'"

SERVER_FITS_MODE = Rule(
    (
        "spec.training.mode",
        "spec.training.asynchronous.maxStaleness",
        "spec.parameterServer",
        "spec.batching.balance",
        "spec.scaling.condition",
        "spec.scaling.globalBatch",
        "spec.workerGroups[].name",
    ),
    _server_fits_mode,
    (
        Cel(
            "spec",
            f"{_IS_ASP} == has(self.parameterServer)",
            "parameterServer is required for training.mode ASP, and only for that",
        ),
        Cel(
            "spec",
            f"self.batching.balance == 'Compute' || ({_IS_ASP} && "
            "(!has(self.training.asynchronous) || !has(self.training.asynchronous.maxStaleness)))",
            "batching.balance Cycle is only for training.mode ASP without maxStaleness",
        ),
        Cel(
            "spec",
            f"!({_IS_ASP}) || (self.scaling.condition == 'None' && self.scaling.globalBatch != 'Grow')",
            "scaling.condition and scaling.globalBatch Grow are not for training.mode ASP",
        ),
        Cel(
            "spec",
            f"!({_IS_ASP}) || self.workerGroups.all(g, g.name != '{SERVER_GROUP}')",
            f"with training.mode ASP no worker group is named {SERVER_GROUP}",
        ),
    ),
)


def _server_template_is_sound(job: HeteroTrainingJob) -> Iterator[Problem]:
    server = job.spec.parameter_server
    if server is not None and server.template is not None:
        yield from template_problems(server.template, ("spec", "parameterServer", "template"))


SERVER_TEMPLATE_IS_SOUND = Rule(("spec.parameterServer.template",), _server_template_is_sound)
