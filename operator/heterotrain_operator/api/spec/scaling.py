"""When workers are added because they pay for themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from heterotrain_operator.api.base import MAX_COUNT, MAX_POINTS, MAX_REPLICAS, Batch, Fraction, Model, Seconds
from heterotrain_operator.api.problems import Problem
from heterotrain_operator.api.rule import Cel, Rule


class UtilityPoint(Model):
    """One corner of the utility of finishing at a time."""

    seconds: Seconds = Field(description="Time from the job's start to its end.")
    value: Annotated[float, Field(ge=0, le=1e12)] = Field(
        description="What finishing then is worth, in the currency of pricePerHour."
    )


class Utility(Model):
    """What finishing at a time is worth."""

    form: Literal["Linear", "Concave", "Step"] = Field(
        default="Linear", description="How the utility runs between the points."
    )
    points: Annotated[tuple[UtilityPoint, ...], Field(max_length=MAX_POINTS)] = Field(
        default=(), description="Corners of the utility, in the order of time."
    )


class Scaling(Model):
    """When workers are added because they pay for themselves."""

    condition: Literal["None", "Throughput", "Utility"] = Field(
        default="None",
        description="When a greater size pays. None: the number of workers stays. Throughput: while each new worker "
        "brings more than threshold of an old one. Utility: while ending earlier is worth more than it costs.",
    )
    every_batches: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        default=10, description="Measured steps of a size before it is judged; at least batching.interval."
    )
    step: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(
        default=4, description="Workers added or removed at once."
    )
    threshold: Fraction = Field(default=0.1, description="Least relative gain of speed per relative gain of workers.")
    utility: Utility = Field(
        default_factory=Utility, description="What finishing at a time is worth; for condition Utility."
    )
    global_batch: Literal["Fixed", "Grow"] = Field(
        default="Fixed",
        description="Whether the global batch stays as workers come and go (also by an edit of replicas), or grows: "
        "who joins brings what it finishes in the time that a step takes, up to maxGlobalBatchSize, and it shrinks "
        "when workers leave, never below globalBatchSize. Only with training.epochs and globalBatchSize.",
    )
    max_global_batch_size: Batch | None = Field(
        default=None, description="Largest global batch, in samples; only with globalBatch Grow."
    )


def _growth_is_asked_for(scaling: Scaling) -> Iterator[Problem]:
    if scaling.max_global_batch_size is not None and scaling.global_batch != "Grow":
        yield Problem("spec.scaling.maxGlobalBatchSize", "has a meaning only with globalBatch Grow; leave it out")


GROWTH_IS_ASKED_FOR = Rule(
    ("spec.scaling.maxGlobalBatchSize", "spec.scaling.globalBatch"),
    _growth_is_asked_for,
    (
        Cel(
            "spec.scaling",
            "!has(self.maxGlobalBatchSize) || self.globalBatch == 'Grow'",
            "maxGlobalBatchSize has a meaning only with globalBatch Grow",
        ),
    ),
)


def _points_in_order(scaling: Scaling) -> Iterator[Problem]:
    points = scaling.utility.points
    for index in range(1, len(points)):
        if points[index].seconds <= points[index - 1].seconds:
            yield Problem(
                f"spec.scaling.utility.points[{index}].seconds",
                f"must be above that of the point before, {points[index - 1].seconds}, found {points[index].seconds}",
            )


POINTS_IN_ORDER = Rule(
    ("spec.scaling.utility",),
    _points_in_order,
    (
        Cel(
            "spec.scaling.utility",
            "self.points.map(p, p.seconds).isSorted()"
            " && self.points.all(p, self.points.exists_one(other, other.seconds == p.seconds))",
            "the seconds of points must grow from one to the next",
        ),
    ),
)


def _utility_is_sound(scaling: Scaling) -> Iterator[Problem]:
    points, form = scaling.utility.points, scaling.utility.form
    for index in range(1, len(points)):
        if points[index].value > points[index - 1].value:
            yield Problem(
                f"spec.scaling.utility.points[{index}].value",
                f"must be at most that of the point before, {points[index - 1].value:g}, since no end is worth more "
                f"for being later; found {points[index].value:g}",
            )
    if scaling.condition == "Utility" and not points:
        yield Problem("spec.scaling.utility.points", "are required for condition Utility")
    elif scaling.condition == "Utility" and len(points) < 2 and form != "Step":
        yield Problem("spec.scaling.utility.points", f"must be two at least for form {form}, found 1")


UTILITY_IS_SOUND = Rule(
    ("spec.scaling.condition", "spec.scaling.utility"),
    _utility_is_sound,
    (
        Cel(
            "spec.scaling.utility",
            "self.points.size() < 2 || !self.points.exists(p, self.points.exists(q, "
            "q.seconds > p.seconds && q.value > p.value))",
            "the values of points must not rise from one to the next",
        ),
        Cel(
            "spec.scaling",
            "self.condition != 'Utility' || self.utility.points.size() >= (self.utility.form == 'Step' ? 1 : 2)",
            "condition Utility needs a point of utility for form Step, and two for the other forms",
        ),
    ),
)
