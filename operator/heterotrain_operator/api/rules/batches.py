"""Rules about the global batch: which ones the workers can share within their bounds, and how it may grow."""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain_operator.api.job import HeteroTrainingJob, JobSpec
from heterotrain_operator.api.problems import Problem
from heterotrain_operator.api.rule import Cel, Rule
from heterotrain_operator.api.rules.workers import REPLICAS, cel_replicas
from heterotrain_operator.core.split.multiples import divide_each_other, last_multiple, next_multiple, unreachable
from heterotrain_operator.core.split.passes import in_passes


def _asked_batch(spec: JobSpec) -> tuple[int, str, str] | None:
    """The global batch, the field that asks for it, and how, in words; None if that is not clear."""
    asked = spec.training
    if (asked.global_batch_size is None) == (asked.batch_size_per_worker is None):
        return None
    batch = spec.global_batch_size
    if asked.global_batch_size is not None:
        return batch, "spec.training.globalBatchSize", f"{batch} samples"
    subject = f"{spec.total_replicas} workers x {asked.batch_size_per_worker} = {batch} samples"
    return batch, "spec.training.batchSizePerWorker", subject


_READS = (
    "spec.training.globalBatchSize",
    "spec.training.batchSizePerWorker",
    *REPLICAS,
    "spec.workerGroups[].batchSize",
)
"""What it follows from whether workers can share the global batch."""


def _batch_fits_workers(job: HeteroTrainingJob) -> Iterator[Problem]:
    groups, asked = job.spec.sized_groups, _asked_batch(job.spec)
    if asked is None:
        return
    batch, path, subject = asked
    lows = [next_multiple(group.batch_size.min, group.batch_size.multiple_of) for group in groups]
    least = sum(low * group.replicas for low, group in zip(lows, groups, strict=True))
    if batch < least:
        each = " + ".join(f"{group.name} {group.replicas} x {low}" for low, group in zip(lows, groups, strict=True))
        yield Problem(
            path,
            f"{subject} are too few: the workers take at least {least} (replicas x batchSize.min: {each})",
        )


_WORKERS = f"self.workerGroups.map(g, {cel_replicas('self')}).sum()"
_BATCH = (
    "(has(self.training.globalBatchSize) ? self.training.globalBatchSize"
    f" : self.training.batchSizePerWorker * {_WORKERS})"
)
_BATCH_UNCLEAR = "has(self.training.globalBatchSize) == has(self.training.batchSizePerWorker)"

BATCH_FITS_WORKERS = Rule(
    _READS,
    _batch_fits_workers,
    (
        Cel(
            "spec",
            f"{_BATCH_UNCLEAR} || self.workerGroups.map(g, (g.batchSize.min + g.batchSize.multipleOf - 1) / "
            f"g.batchSize.multipleOf * g.batchSize.multipleOf * {cel_replicas('self')}).sum() <= {_BATCH}",
            "the global batch must be at least the sum of replicas x batchSize.min",
        ),
    ),
)


def _batch_is_a_sum_of_multiples(job: HeteroTrainingJob) -> Iterator[Problem]:
    groups, asked = job.spec.sized_groups, _asked_batch(job.spec)
    multiples = [group.batch_size.multiple_of for group in groups]
    if asked is None or max(multiples, default=1) == 1 or not divide_each_other(multiples):
        return
    batch, path, subject = asked
    pairs = [(group.batch_size.min, group.batch_size.max or batch) for group in groups]
    rounded = [(next_multiple(low, m), last_multiple(high, m)) for (low, high), m in zip(pairs, multiples, strict=True)]
    least = sum(low * group.replicas for (low, _), group in zip(rounded, groups, strict=True))
    if batch < least or any(low > high for low, high in rounded):
        return  # reported by rules of their own
    each = [
        (*pair, m) for pair, m, group in zip(rounded, multiples, groups, strict=True) for _ in range(group.replicas)
    ]
    bounds = in_passes(batch, [(low, high) for low, high, _ in each])
    if unreachable(batch, bounds, [multiple for _, _, multiple in each]):
        named = ", ".join(f"{group.name} {multiple}" for group, multiple in zip(groups, multiples, strict=True))
        yield Problem(path, f"{subject} are no sum of batches within bounds in the groups' multiples ({named})")


BATCH_IS_A_SUM_OF_MULTIPLES = Rule(
    _READS,
    _batch_is_a_sum_of_multiples,
    (
        Cel(
            "spec",
            f"{_BATCH_UNCLEAR} || self.workerGroups.exists(g, {_BATCH} % g.batchSize.multipleOf == 0)",
            "the global batch must be a multiple of the smallest batchSize.multipleOf of the groups",
        ),
    ),
)


def _growth_has_a_meaning(job: HeteroTrainingJob) -> Iterator[Problem]:
    spec = job.spec
    own, most = spec.training.global_batch_size, spec.scaling.max_global_batch_size
    if spec.scaling.global_batch != "Grow":
        return
    if spec.training.steps is not None:
        yield Problem(
            "spec.training.steps",
            "counts steps whose samples would change with scaling.globalBatch Grow; use epochs",
        )
    if own is None and spec.training.batch_size_per_worker is not None:
        yield Problem(
            "spec.training.batchSizePerWorker",
            "grows with replicas already; scaling.globalBatch Grow needs globalBatchSize, which it begins at",
        )
    if not spec.batching.fixed_global_batch:
        yield Problem(
            "spec.batching.fixedGlobalBatch",
            "must be true with scaling.globalBatch Grow: else two rules would change the global batch",
        )
    if own is not None and most is not None and most < own:
        yield Problem("spec.scaling.maxGlobalBatchSize", f"must be at least globalBatchSize, {own}, found {most}")


_GROWS = "self.scaling.globalBatch != 'Grow'"

GROWTH_HAS_A_MEANING = Rule(
    (
        "spec.scaling.globalBatch",
        "spec.scaling.maxGlobalBatchSize",
        "spec.training.steps",
        "spec.training.globalBatchSize",
        "spec.batching.fixedGlobalBatch",
    ),
    _growth_has_a_meaning,
    (
        Cel(
            "spec",
            f"{_GROWS} || (!has(self.training.steps) && has(self.training.globalBatchSize)"
            " && self.batching.fixedGlobalBatch)",
            "scaling.globalBatch Grow needs training.epochs, training.globalBatchSize and batching.fixedGlobalBatch",
        ),
        Cel(
            "spec",
            "!has(self.scaling.maxGlobalBatchSize) || !has(self.training.globalBatchSize)"
            " || self.scaling.maxGlobalBatchSize >= self.training.globalBatchSize",
            "scaling.maxGlobalBatchSize must be at least training.globalBatchSize",
        ),
    ),
)
