"""Turn what a finished run left in its folder into a scenario: its job, the laws of its workers, and their own noise.

A worker's law is the line through its mean own times at the batch sizes that it had, profiles included. Its noise is
that of its steps over the mean of their batch size, in the trial with the most of them: with correlation and stalls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from heterotrain.contract import StepRecord
from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem, load_manifest, to_core
from heterotrain_operator.clusters.simulated.noise import MAX_SERIES
from heterotrain_operator.core.facts import worker_name

MANIFEST = "manifest.yaml"
SERIES = "*-series.jsonl"
OTHER_LIMITS = "-limits-"
"""In the names of series of profiles under limits that came later in the run."""

LONGEST_NAME = 40

LEAST_STEPS = 10
"""With fewer steps of a worker, its times say nothing."""

SHORTEST = 1e-12
"""Seconds; shorter steps weigh no more."""

DIGITS = 4
"""Significant digits that are kept of the recorded figures."""

Means = dict[int, float]
"""Mean own seconds by batch size."""


def scenario_of(folder: Path) -> dict[str, Any]:
    """The scenario of the run in a folder of `heterotrain run --out`, as a document.

    Raises ManifestError if the folder holds no run, or too little of one.
    """
    job = load_manifest(folder / MANIFEST)
    trials = [list(_records(path)) for path in sorted(folder.glob(SERIES)) if OTHER_LIMITS not in path.name]
    workers: dict[str, Any] = {}
    problems = []
    for group in to_core(job).groups:
        if group.cpu_limit is not None:
            workers[group.name] = {"cpuLimit": group.cpu_limit}
        for index in range(group.replicas):
            name = worker_name(job.metadata.name, group.name, index)
            own = [[record for worker, record in trial if worker == name] for trial in trials]
            steps = max(own, key=len, default=[])
            if len(steps) < LEAST_STEPS:
                reason = f"holds {len(steps)} measured steps of {name}, of which {LEAST_STEPS} are needed"
                problems.append(Problem(str(folder), reason))
                continue
            workers[f"{group.name}-{index}"] = {
                "time": {"affine": _line(_means([record for each in own for record in each]))},
                "noise": {"replayed": {"series": [_factors(steps)]}},
            }
    if problems:
        raise ManifestError(problems)
    return {
        "name": job.metadata.name[:LONGEST_NAME].rstrip("-"),
        "description": f"The run in {folder.absolute().name}: its job, and its workers' times and recorded noise.",
        "job": _spec(job),
        "workers": workers,
    }


def _records(path: Path) -> Iterator[tuple[str, StepRecord]]:
    """The steps in a file that are fit for measuring, up to the first change of a limit, each with its worker."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ManifestError([Problem(str(path), f"cannot be read: {error.strerror}")]) from error
    for line in lines:
        try:
            record = StepRecord.from_json(line)
            document = json.loads(line)
        except ValueError:
            continue
        if "cpuLimit" in document:
            return
        worker = document.get("worker")
        measured = not record.mark and record.batch > 0 and record.samples > 0 and record.own > 0
        if isinstance(worker, str) and measured:
            yield worker, record


def _means(records: Sequence[StepRecord]) -> Means:
    sizes: dict[int, list[float]] = {}
    for record in records:
        sizes.setdefault(record.batch, []).append(record.own)
    return {batch: fmean(seconds) for batch, seconds in sorted(sizes.items())}


def _line(means: Means) -> dict[str, float]:
    """The line by least squares, relative to the times, through all sizes; through 0 if it would begin below."""
    # Times too short to be squared are refused afterwards, as all are that a scenario may not have.
    weights = {batch: 1 / max(seconds, SHORTEST) ** 2 for batch, seconds in means.items()}
    total = sum(weights.values())
    centre = sum(weight * batch for batch, weight in weights.items()) / total
    height = sum(weight * means[batch] for batch, weight in weights.items()) / total
    spread = sum(weight * (batch - centre) ** 2 for batch, weight in weights.items())
    slope = fixed = 0.0
    if spread > 0:
        slope = sum(weights[batch] * (batch - centre) * (means[batch] - height) for batch in means) / spread
        fixed = height - slope * centre
    if slope <= 0 or fixed < 0:
        fixed = 0.0
        slope = sum(weights[batch] * batch * means[batch] for batch in means) / sum(
            weights[batch] * batch**2 for batch in means
        )
    return {"fixedSeconds": _rounded(fixed), "secondsPerSample": _rounded(slope)}


def _factors(records: Sequence[StepRecord]) -> list[float]:
    means: Mapping[int, float] = _means(records)
    return [_rounded(record.own / means[record.batch]) for record in records[-MAX_SERIES:]]


def _spec(job: HeteroTrainingJob) -> dict[str, Any]:
    """What of the job matters in a simulation, without what it leaves out."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    training = {
        key: spec["training"][key] for key in ("globalBatchSize", "batchSizePerWorker") if key in spec["training"]
    }
    groups = [{key: value for key, value in group.items() if key != "template"} for group in spec["workerGroups"]]
    kept: dict[str, Any] = {"workerGroups": groups, "training": training}
    return kept | {name: spec[name] for name in ("replicas", "batching") if name in spec}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
