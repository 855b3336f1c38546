"""The figures of a benchmark from a run's summary and series; pure but for reading the series."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heterotrain.contract import StepRecord
from heterotrain_operator.experiments.figures.series import align
from heterotrain_operator.experiments.figures.steps import Step, mean_loss, samples_per_second, seconds_to_target

LOSS_STEPS = 10
"""Steps whose mean counts as a loss reached: one step's loss is mostly its samples' luck."""

TRIAL_FIGURES = (
    "policy",
    "round",
    "steps",
    "iteration_seconds",
    "adjustments",
    "restarts",
    "final_loss",
    "ceiling_seconds",
    "ceiling_fraction",
    "ceiling_fraction_all",
    "phases",
)
"""As `heterotrain run --json` has them."""


def read_trial(path: Path, workers: Sequence[str]) -> tuple[Step, ...]:
    """The steps of a trial, from the series that a run keeps."""
    series: dict[str, list[StepRecord]] = {name: [] for name in workers}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        record.pop("cpuLimit", None)
        series[record.pop("worker")].append(StepRecord.from_json(json.dumps(record)))
    return align(series)


def common_loss(trials: Sequence[Sequence[Step]]) -> float | None:
    """The least loss that every trial has reached, as a mean of LOSS_STEPS steps; None if one has too few."""
    best = []
    for steps in trials:
        means = [mean_loss(steps[end - LOSS_STEPS : end], LOSS_STEPS) for end in range(LOSS_STEPS, len(steps) + 1)]
        known = [mean for mean in means if mean is not None]
        if not known:
            return None
        best.append(min(known))
    return max(best, default=None)


def figures(summary: Mapping[str, Any], folder: Path, warm_up_steps: int) -> dict[str, Any]:
    """What is kept of a run: per trial its figures, and the ceilings.

    `samples_per_second` leaves out the warm-up; `target_seconds` is the time from the first step until the loss was
    first as low as every trial made it (`target_loss`), warm-up included.
    """
    series = [
        read_trial(
            folder / f"{trial['policy'].lower()}-{trial['round']}-series.jsonl",
            [one["name"] for one in trial["worker"]],
        )
        for trial in summary["arms"]
    ]
    target = common_loss(series)
    return {
        "target_loss": target,
        "arms": [
            {name: trial[name] for name in TRIAL_FIGURES}
            | {
                "samples_per_second": samples_per_second(steps[warm_up_steps:]),
                "target_seconds": seconds_to_target(steps, target, LOSS_STEPS),
                "batches": [one["batch"] for one in trial["worker"]],
            }
            for trial, steps in zip(summary["arms"], series, strict=True)
        ],
        "ceilings": [
            {"limits": level["label"], "ceilings": level["ceilings"]}
            for level in summary["levels"] or [{"label": "", "ceilings": summary["ceilings"]}]
        ],
    }
