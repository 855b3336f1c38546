"""How the global batch is split over unequal workers, and how often the split is reconsidered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.api.base import MAX_COUNT, POLICY_NAME, Fraction, Model, Weight
from heterotrain_operator.api.problems import Problem, did_you_mean
from heterotrain_operator.api.rule import Cel, Rule


class Batching(Model):
    """How the global batch is split over the workers."""

    policy: str = Field(
        default="Optimal",
        min_length=1,
        max_length=63,
        pattern=POLICY_NAME,
        description="Who decides the split: Uniform, Static, Proportional, Optimal, LBBSP, PapersProportional, or a "
        "registered name.",
    )
    initial: Literal["Uniform", "Static"] = Field(
        default="Static",
        description="Batches of the first plan. Static: in proportion to CPU limits, or to flops where devices are "
        "mixed, if every group states them, and else equal; Uniform: equal in any case.",
    )
    interval: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        default=10,
        description="Control interval in committed steps: a decision once every worker reported as many steps of the "
        "active plan, or before, after two at least, where they show beyond noise that waiting would cost more than a "
        "move.",
    )
    apply_at: Literal["step", "epoch"] = Field(
        default="step",
        description="At which boundary workers switch to new batch sizes. Where members change while the others train, "
        "they do so between two steps in either case.",
    )
    fixed_global_batch: bool = Field(
        default=True,
        description="Whether batches are rescaled so that the global batch stays what it is; false lets "
        "Proportional and PapersProportional change it. With training.mode ASP these two know no global batch.",
    )
    dead_band: Fraction = Field(
        default=0.05,
        description="For Proportional and PapersProportional: batches change only if one of them would change by more "
        "than this fraction. Optimal goes by the predicted saving and the noise instead.",
    )
    smoothing: Weight = Field(
        default=0.2,
        description="Weight of the newest iteration in the moving average of a worker's own time, which is "
        "exported (heterotrain_worker_own_seconds_ewma); only PapersProportional decides by it.",
    )
    prediction: Literal["EMA", "ARX", "NARX"] = Field(
        default="EMA",
        description="How a worker's next own times are predicted: by averages, by a regression on the last ones and "
        "their use of CPU and memory, or by a small network. The last two learn for each group.",
    )
    balance: Literal["Compute", "Cycle"] = Field(
        default="Compute",
        description="What batches even out. Compute: the time that workers compute. Cycle, only with training.mode "
        "ASP: the whole time between two updates, pull and push included, so that a slow link counts.",
    )
    dry_run: bool = Field(default=False, description="Observe, decide and explain, but leave the batches as they are.")


def _policy_is_known(batching: Batching) -> Iterator[Problem]:
    policy, known = batching.policy, known_policies()
    if policy not in known:
        hint = did_you_mean(policy, known)
        yield Problem("spec.batching.policy", f"{policy} is not a known policy; known are {', '.join(known)}{hint}")


def _lbbsp_keeps_the_sum(batching: Batching) -> Iterator[Problem]:
    if batching.policy == "LBBSP" and not batching.fixed_global_batch:
        yield Problem("spec.batching.fixedGlobalBatch", "must be true for LBBSP, which moves samples between workers")


LBBSP_KEEPS_THE_SUM = Rule(
    ("spec.batching.policy", "spec.batching.fixedGlobalBatch"),
    _lbbsp_keeps_the_sum,
    (
        Cel(
            "spec.batching",
            "self.policy != 'LBBSP' || self.fixedGlobalBatch",
            "fixedGlobalBatch must be true for LBBSP, which moves samples between workers",
        ),
    ),
)

POLICY_IS_KNOWN = Rule(("spec.batching.policy",), _policy_is_known)
