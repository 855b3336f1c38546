"""What `omnilearn.py` simulates: OmniLearn's workloads, levels and policies, by laws that are fitted to recorded runs.

The recorded runs are those of `bsp.py` in which the levels follow each other: real CPU workers, all levels on one
machine in one run. Of each level they have the time of equal batches, and the split by which four workers of known
cores take equally long. A line through these, over the cores that are left to a worker, is the law.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import kinds
import numpy as np
import runner
from bsp_setting import PAPER_CORES, WORKLOADS
from table import OWN_POLICY, UNIFORM
from tables_omnilearn import DYNAMIC, GROWING, MANY, OMNILEARN, STATIC, UNSEEN, WITHOUT_BAND

from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Group, Job, Stragglers

RECORDED = runner.REPOSITORY / "hack" / "bench" / "results" / "bsp"
PAPER_CORES_PER_CORE = 32
"""So many of the paper's cores are one of those with which times were recorded."""

BATCH = 32
EPOCH_STEPS = 60
"""About AlexNet's on CalTech101. Those of other data sets are longer, so deciding within an epoch gains more there."""

CORRELATION = 0.5
"""Of the noise of one step with that of the next one, as in recorded runs."""

ORDER = (1, 2, 4, 8, 8, 4, 2, 1)
"""The levels of `DYNAMIC`. Source: OmniLearn, section IV-F; ResNet-18 is at level 8 in epochs 15 to 24."""

PLACES: Mapping[str, tuple[int, ...]] = {GROWING: (8,), "HL2": (2,), "HL4": (4,), "HL8": (8,), DYNAMIC: ORDER, MANY: ()}
"""Settings with the levels that follow each other in them."""

PHASE_EPOCHS: Mapping[str, int] = {"resnet18": 5, "resnet50": 25, "alexnet": 20, "vgg11": 4, "gpt": 5}
"""Epochs of each level of `DYNAMIC`. Source: OmniLearn, section IV-F."""

STATIC_EPOCHS = 40

GROWING_BOUNDS = (12, 96)
"""Of batches. Source: OmniLearn, section IV-E, fig. 8."""

MANY_CORES: Mapping[int, int] = {2: 10, 4: 10, 6: 10, 16: 1, 32: 1}
"""Workers by cores. Source: OmniLearn, section IV-E, fig. 9."""

MANY_PAPER_CORES_PER_CORE = 8
"""Of 32 to one, two would leave a worker nothing to compute with."""


class Law(NamedTuple):
    """Own seconds are `(fixed + per_sample * batch) / (cores - lost)`; `error` is the root mean square of the relative
    errors of the fit. The all-reduce comes on top, the median of what it took at the levels.
    """

    fixed: float
    per_sample: float
    lost: float
    error: float
    all_reduce_seconds: float

    def at(self, cores: float) -> kinds.Affine:
        """That of a worker with so many cores."""
        return kinds.Affine(self.fixed / (cores - self.lost), self.per_sample / (cores - self.lost))

    def seconds(self, _: int) -> float:
        """Of a step after the slowest of all workers has its gradients."""
        return self.all_reduce_seconds


@cache
def law(workload: str) -> Law:
    """The best line through what is recorded, by relative errors."""
    document = recorded(workload)
    points: list[tuple[float, float, float]] = []  # batch, cores, own seconds
    all_reduce: list[float] = []
    for level in document["ceilings"]:
        (ceiling,) = level["ceilings"]
        cores = [each / PAPER_CORES_PER_CORE for each in PAPER_CORES[int(level["limits"].removeprefix("HL"))]]
        points += [(*each, ceiling["own_seconds"]) for each in zip(ceiling["batches"].values(), cores, strict=True)]
        equal = [
            phase["iteration_seconds"]
            for trial in document["arms"]
            for phase in trial["phases"]
            if trial["policy"] == UNIFORM and phase["label"] == level["limits"] and phase["iteration_seconds"]
        ]
        all_reduce.append(ceiling["iteration_seconds"] - ceiling["own_seconds"])
        points.append((BATCH, min(cores), median(equal) - all_reduce[-1]))
    batch, limit, seconds = np.array(points).T
    fits = []
    for lost in np.arange(0, 0.1, 0.005):
        columns = np.stack([1 / (limit - lost), batch / (limit - lost)], axis=1) / seconds[:, None]
        fixed, per_sample = np.linalg.lstsq(columns, np.ones(len(seconds)), rcond=None)[0]
        error = np.sqrt(np.mean((columns @ (fixed, per_sample) - 1) ** 2))
        fits.append(Law(float(fixed), float(per_sample), float(lost), float(error), median(all_reduce)))
    return min(fits, key=lambda fit: fit.error)


def recorded(workload: str) -> Mapping[str, Any]:
    """The run in which levels followed each other."""
    found: Mapping[str, Any] = json.loads((RECORDED / f"{workload}-dynamic.json").read_text(encoding="utf-8"))
    return found


def fields_of(policy: str, workload: str) -> dict[str, Any]:
    """The fields of a job under a policy, as `examples/papers` has them."""
    omnilearn = {"policy": "PapersProportional", "apply_at": "epoch"}
    known: dict[str, dict[str, Any]] = {
        STATIC: {"policy": STATIC, "initial": STATIC},
        WITHOUT_BAND: {**omnilearn, "dead_band": 0.0},
        OMNILEARN: {**omnilearn, "dead_band": 0.05 if workload == "gpt" else 0.10},
        UNSEEN: {"policy": OWN_POLICY},
    }
    return known.get(policy, {"policy": policy})


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload under a policy in one of the `PLACES`, with noise of so great a coefficient of variation."""

    workload: str
    policy: str
    place: str
    noise: float
    seed: int

    @property
    def phase_steps(self) -> int:
        """Steps at each level."""
        return EPOCH_STEPS * (PHASE_EPOCHS[self.workload] if self.place == DYNAMIC else STATIC_EPOCHS)

    def scenario(self) -> kinds.Scenario:
        """The simulated job."""
        found, sizes = law(self.workload), WORKLOADS[self.workload]
        cores = [tuple(each / PAPER_CORES_PER_CORE for each in PAPER_CORES[level]) for level in PLACES[self.place]]
        if self.place == MANY:
            many = (each / MANY_PAPER_CORES_PER_CORE for each, count in MANY_CORES.items() for _ in range(count))
            cores = [tuple(many)]
        grows = self.place == GROWING
        low, high = GROWING_BOUNDS if grows else (sizes.least_batch, sizes.greatest_batch)
        groups = tuple(
            Group(f"w{rank}", 1, batch_min=low, batch_max=high, cpu_limit=own) for rank, own in enumerate(cores[0])
        )
        judging = Stragglers(action="Report")
        total = BATCH * len(groups)
        job = Job("omnilearn", groups, total, initial="Uniform", fixed_global_batch=not grows, stragglers=judging)
        job = replace(job, **fields_of(self.policy, self.workload))
        noise = kinds.AR1(CORRELATION, self.noise)
        return kinds.Scenario(
            job,
            {
                group.name: kinds.WorkerModel(found.at(own), noise=noise, cpu_limit=own)
                for group, own in zip(groups, cores[0], strict=True)
            },
            tuple(self._changes(cores, found.lost)),
            communication=found,
            seed=self.seed,
            intervals=self.phase_steps * len(cores) // job.interval,
            epoch_steps=EPOCH_STEPS,
        )

    def _changes(self, cores: Sequence[Sequence[float]], lost: float) -> list[kinds.LimitChange]:
        """Of the limits, from each level to the next; times change with the cores that are left to compute."""
        return [
            kinds.LimitChange(
                (worker_name("omnilearn", f"w{rank}", 0),),
                now,
                phase * self.phase_steps,
                known=self.policy != UNSEEN,
                before=now * (before - lost) / (now - lost),
            )
            for phase, (last, here) in enumerate(pairwise(cores), 1)
            for rank, (before, now) in enumerate(zip(last, here, strict=True))
            if before != now
        ]
