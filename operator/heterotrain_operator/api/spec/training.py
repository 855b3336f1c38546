"""What is trained and until when; it never changes, or claims of exactness would not hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from heterotrain.contract import TRAINING_LOSS
from heterotrain_operator.api.base import MAX_COUNT, MAX_STEPS, POLICY_NAME, Batch, Model, Steps
from heterotrain_operator.api.problems import Problem
from heterotrain_operator.api.rule import Cel, Rule

Mode = Literal["BSP", "ASP"]
LastStep = Literal["Partial", "Drop", "Carry"]
Backend = Literal["auto", "gloo"]
LearningRateScaling = Literal["None", "Linear", "Sqrt"]


class Target(Model):
    """A result at which training may stop early."""

    metric: str = Field(
        default="loss",
        min_length=1,
        max_length=63,
        pattern=POLICY_NAME,
        description="Name of the metric: one that the script measures with session.evaluate(); or loss, the mean "
        "global training loss of the last everySteps steps.",
    )
    value: float = Field(description="The job ends in success once the metric reaches this value.")
    mode: Literal["Max", "Min"] | None = Field(
        default=None,
        description="Whether reaching means at least the value (Max) or at most it (Min). Required but for loss, "
        "for which it is Min.",
    )
    every_steps: Steps = Field(default=50, description="The metric is taken every so many committed steps.")

    @property
    def direction(self) -> Literal["Max", "Min"]:
        """The mode, also where it goes without saying."""
        return self.mode or "Min"


class Asynchronous(Model):
    """How workers and the parameter server train asynchronously."""

    max_staleness: Annotated[int, Field(ge=0, le=MAX_COUNT)] | None = Field(
        default=None,
        description="By so many updates a worker may be ahead of the slowest one. Absent: by any number. 0: workers "
        "go on round by round.",
    )
    late: Literal["Apply", "Discard"] = Field(
        default="Apply",
        description="What becomes of it beyond that. Apply: who is ahead waits, and every update is applied. Discard: "
        "nobody waits; the update of a worker that is so far behind is not applied, and its samples are given out "
        "again. It needs maxStaleness.",
    )
    push: Literal["Gradients", "Model"] = Field(
        default="Gradients",
        description="What a worker sends. Gradients: the server's optimizer steps with them. Model: the worker steps, "
        "and its model replaces the server's.",
    )
    rate_reference: Literal["GlobalBatch", "WorkerBatch"] = Field(
        default="GlobalBatch",
        description="Which batch learning rates are chosen for, where learningRateScaling is not None: globalBatchSize "
        "or batchSizePerWorker. The rate of an update follows its own batch beside that one.",
    )


class Training(Model):
    """What is trained and until when."""

    mode: Mode = Field(
        default="BSP",
        description="BSP: all workers step together. ASP: each steps alone against the parameter server, and each of "
        "its updates is a step of the job.",
    )
    asynchronous: Asynchronous | None = Field(
        default=None, description="How workers and the parameter server train. Only with mode ASP."
    )
    global_batch_size: Batch | None = Field(
        default=None,
        description="Samples per step over all workers. Set either this or batchSizePerWorker.",
    )
    batch_size_per_worker: Batch | None = Field(
        default=None,
        description="Samples per step for each worker; times the workers it is the global batch. "
        "Set either this or globalBatchSize.",
    )
    epochs: Steps | None = Field(
        default=None, description="Passes over the data after which training ends. Set either this or steps."
    )
    steps: Steps | None = Field(
        default=None, description="Committed steps after which training ends. Set either this or epochs."
    )
    last_step: LastStep = Field(
        default="Partial",
        description="What becomes of an epoch's samples that do not fill a step. Partial: they make a smaller step, "
        "the epoch's last. Drop: they are left out, so an epoch has samples / global batch steps, rounded down, but "
        "at least 1. Carry: they are the first samples of the next epoch's first step, which that epoch's order fills "
        "up to the whole global batch; every epoch still gives out each sample once.",
    )
    backend: Backend = Field(
        default="auto",
        description="What gradients travel with. auto: NCCL where all workers have GPUs, else Gloo. gloo: Gloo in "
        "any case, for machines on which NCCL does not work.",
    )
    seed: Annotated[int, Field(ge=0, le=MAX_STEPS)] = Field(
        default=0, description="Seed of the data's order, of augmentation and of the first weights."
    )
    target: Target | None = Field(
        default=None, description="A result at which training ends early. Absent: it runs to its end."
    )
    learning_rate_scaling: LearningRateScaling = Field(
        default="None",
        description="How learning rates follow a global batch other than globalBatchSize: not, in proportion, or "
        "with its square root. Schedules and scripts see the rates that they set. It needs the batch that rates are "
        "for: globalBatchSize, or the one that asynchronous.rateReference names.",
    )


def _one_batch_size(training: Training) -> Iterator[Problem]:
    if (training.global_batch_size is None) == (training.batch_size_per_worker is None):
        found = "neither" if training.global_batch_size is None else "both"
        yield Problem("spec.training", f"needs exactly one of globalBatchSize and batchSizePerWorker, found {found}")


ONE_BATCH_SIZE = Rule(
    ("spec.training.globalBatchSize", "spec.training.batchSizePerWorker"),
    _one_batch_size,
    (
        Cel(
            "spec.training",
            "has(self.globalBatchSize) != has(self.batchSizePerWorker)",
            "set exactly one of globalBatchSize and batchSizePerWorker",
        ),
    ),
)


def _one_end(training: Training) -> Iterator[Problem]:
    if (training.epochs is None) == (training.steps is None):
        found = "neither" if training.epochs is None else "both"
        yield Problem("spec.training", f"needs exactly one of epochs and steps, found {found}")


ONE_END = Rule(
    ("spec.training.epochs", "spec.training.steps"),
    _one_end,
    (Cel("spec.training", "has(self.epochs) != has(self.steps)", "set exactly one of epochs and steps"),),
)


def _target_has_a_direction(training: Training) -> Iterator[Problem]:
    target = training.target
    if target is not None and target.metric == TRAINING_LOSS and target.mode == "Max":
        yield Problem(
            "spec.training.target.mode",
            "must be Min for the training loss, which begins above any target; name the metric if it is another",
        )
    if target is not None and target.metric != TRAINING_LOSS and target.mode is None:
        yield Problem(
            "spec.training.target.mode",
            f"is required for metric {target.metric}: Max if it is to rise to the value, Min if it is to fall",
        )


TARGET_HAS_A_DIRECTION = Rule(
    ("spec.training.target.metric", "spec.training.target.mode"),
    _target_has_a_direction,
    (
        Cel(
            "spec.training.target",
            f"self.metric != '{TRAINING_LOSS}' || !has(self.mode) || self.mode == 'Min'",
            f"mode must be Min for metric {TRAINING_LOSS}",
        ),
        Cel(
            "spec.training.target",
            f"self.metric == '{TRAINING_LOSS}' || has(self.mode)",
            f"mode is required for a metric other than {TRAINING_LOSS}",
        ),
    ),
)


def _rates_have_a_batch(training: Training) -> Iterator[Problem]:
    asked = training.asynchronous
    if training.learning_rate_scaling == "None":
        return
    if asked is not None and asked.rate_reference == "WorkerBatch":
        if training.batch_size_per_worker is None:
            yield Problem(
                "spec.training.asynchronous.rateReference",
                "WorkerBatch needs batchSizePerWorker, the batch that learning rates are chosen for; a part of "
                "globalBatchSize does not stay when replicas change",
            )
    elif training.global_batch_size is None:
        yield Problem(
            "spec.training.learningRateScaling",
            "needs globalBatchSize, the batch that learning rates are chosen for; batchSizePerWorker has none that "
            "stays when replicas change",
        )


RATES_HAVE_A_BATCH = Rule(
    (
        "spec.training.learningRateScaling",
        "spec.training.globalBatchSize",
        "spec.training.batchSizePerWorker",
        "spec.training.asynchronous.rateReference",
    ),
    _rates_have_a_batch,
    (
        Cel(
            "spec.training",
            "self.learningRateScaling == 'None' || (has(self.asynchronous) && self.asynchronous.rateReference == "
            "'WorkerBatch' ? has(self.batchSizePerWorker) : has(self.globalBatchSize))",
            "learningRateScaling needs globalBatchSize, or batchSizePerWorker with asynchronous.rateReference "
            "WorkerBatch",
        ),
    ),
)


def _asynchronous_is_sound(training: Training) -> Iterator[Problem]:
    asked = training.asynchronous
    if asked is not None and training.mode != "ASP":
        yield Problem("spec.training.asynchronous", "is only for spec.training.mode ASP")
    if asked is not None and asked.late == "Discard" and asked.max_staleness is None:
        yield Problem("spec.training.asynchronous.late", "Discard needs maxStaleness, beyond which an update is late")
    if training.mode == "ASP" and training.last_step == "Drop":
        yield Problem(
            "spec.training.lastStep",
            "must be Partial or Carry with mode ASP: every update takes samples of its own, and none is left over",
        )


ASYNCHRONOUS_IS_SOUND = Rule(
    (
        "spec.training.mode",
        "spec.training.lastStep",
        "spec.training.asynchronous.late",
        "spec.training.asynchronous.maxStaleness",
    ),
    _asynchronous_is_sound,
    (
        Cel(
            "spec.training",
            "!has(self.asynchronous) || self.mode == 'ASP'",
            "asynchronous is only for mode ASP",
        ),
        Cel(
            "spec.training.asynchronous",
            "self.late != 'Discard' || has(self.maxStaleness)",
            "late Discard needs maxStaleness",
        ),
        Cel(
            "spec.training",
            "self.mode != 'ASP' || self.lastStep != 'Drop'",
            "lastStep must be Partial or Carry with mode ASP",
        ),
    ),
)
