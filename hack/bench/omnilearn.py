"""OmniLearn's synchronous training in simulated clusters, beside equal batches, our own policy and the oracle.

    .venv/bin/python hack/bench/omnilearn.py --out hack/bench/results/papers/omnilearn.json

The operator's own decisions run on workers whose times follow laws that are fitted to recorded ones
(`omnilearn_setting.py`). A step has the same samples whatever the split, unless the global batch may grow, so the same
model is trained step by step: the time saved until an accuracy is that saved for the same steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
import runner
import tables_omnilearn
from omnilearn_setting import EPOCH_STEPS, MANY_CORES, PHASE_EPOCHS, PLACES, Setting, law, recorded
from table import OWN_POLICY, UNIFORM
from tables_measured import by_policy, ratios
from tables_omnilearn import DYNAMIC, GROWING, MANY, OMNILEARN, STATIC, UNSEEN, WITHOUT_BAND

from heterotrain_operator.experiments.simulations import SimulationResult, simulate

NOISES = (0.02, 0.10)
USUAL_NOISE = 0.05
COMPARED: Mapping[str, tuple[str, ...]] = {
    GROWING: (OMNILEARN, OWN_POLICY),
    "HL2": (UNIFORM, STATIC, OMNILEARN, OWN_POLICY),
    "HL4": (UNIFORM, STATIC, OMNILEARN, OWN_POLICY),
    "HL8": (UNIFORM, STATIC, WITHOUT_BAND, OMNILEARN, OWN_POLICY),
    DYNAMIC: (UNIFORM, OMNILEARN, OWN_POLICY, UNSEEN),
    MANY: (UNIFORM, OMNILEARN, OWN_POLICY),
}
MANY_WORKLOADS = ("resnet18", "alexnet")

SOURCES = (
    *(f"operator/heterotrain_operator/{name}" for name in ("core", "clusters/simulated", "experiments/simulations")),
    *(f"hack/bench/{name}" for name in ("omnilearn.py", "omnilearn_setting.py", "kinds.py", "results/bsp")),
)
"""What decides a run's figures."""


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated job. `growth` is that of the global batch, `last_adjustment` the epoch in which batches were
    adjusted last (None: never). `seconds` are those of all steps, `oracle_seconds` the oracle's; `batches` are the last
    ones. At level 8 (of 32 workers: always), without the first epoch after a change: the median of `own` seconds, and
    the mean `spread` of a step, from the fastest worker to the slowest.
    """

    workload: str
    policy: str
    place: str
    noise: float
    seed: int
    adjustments: int
    last_adjustment: int | None
    growth: float
    seconds: float
    oracle_seconds: float
    batches: str
    own: float | None
    spread: float | None


def play(key: runner.Key) -> Run:
    """Simulate one of them."""
    setting = Setting(*key)
    result = simulate(setting.scenario())
    times = _unequal(result, setting)
    batches = result.plans[-1].batches
    return Run(
        *key,
        len(result.adjustments),
        result.adjustments[-1].step // EPOCH_STEPS if result.adjustments else None,
        round(sum(batches) / sum(result.plans[0].batches) - 1, 4),
        round(float(result.step_seconds.sum()), 3),
        round(float(result.oracle_seconds.sum()), 3),
        " / ".join(map(str, _by_cores(batches) if setting.place == MANY else batches)),
        round(float(np.median(times)), 5) if len(times) else None,
        round(float(np.ptp(times, axis=1).mean()), 5) if len(times) else None,
    )


def _unequal(result: SimulationResult, setting: Setting) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Own seconds of the steps at level 8, or of 32 workers, after the first epoch of each phase."""
    step = np.arange(result.steps)
    level = np.array(PLACES[setting.place] or (8,))[step // setting.phase_steps]
    return result.own_seconds[(level == 8) & (step % setting.phase_steps >= EPOCH_STEPS)]


def _by_cores(batches: Sequence[int]) -> list[int]:
    """The median batch of the workers of each number of cores."""
    ends = np.cumsum(list(MANY_CORES.values()))[:-1]
    return [round(float(np.median(each))) for each in np.split(np.array(batches), ends)]


def keys(options: argparse.Namespace) -> list[runner.Key]:
    """Of all runs that are asked for."""
    return [
        (workload, policy, place, noise, seed)
        for place in options.place or COMPARED
        for workload in options.workload or PHASE_EPOCHS
        if place != MANY or workload in MANY_WORKLOADS
        for policy in COMPARED[place]
        for noise in (NOISES if place == GROWING else (USUAL_NOISE,))
        for seed in range(options.seeds)
    ]


def measured(workload: str) -> dict[str, float]:
    """The time that real workers saved until the same loss while levels changed, by policy."""
    trials = by_policy(recorded(workload)["arms"])
    return {
        policy: 1 - median(ratios(trials[policy], trials[UNIFORM], "target_seconds"))
        for policy in trials
        if policy != UNIFORM
    }


def main(arguments: Sequence[str]) -> int:
    """Simulate all and print."""
    parser = argparse.ArgumentParser(description="Simulate OmniLearn's synchronous training beside ours.")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each setting (3)")
    parser.add_argument("--place", action="append", choices=COMPARED, help="again for several (all)")
    parser.add_argument("--workload", action="append", choices=PHASE_EPOCHS, help="again for several (all)")
    options = runner.options_of(parser, pool=True).parse_args(arguments)
    if min(options.seeds, options.processes) < 1:
        parser.error("--seeds, --processes: must be at least 1")
    document = {
        "benchmark": "omnilearn",
        "simulated": True,
        "epoch_steps": EPOCH_STEPS,
        "laws": {workload: law(workload)._asdict() for workload in PHASE_EPOCHS},
        "measured": {workload: measured(workload) for workload in PHASE_EPOCHS},
        "runs": [asdict(run) for run in runner.play(play, Run, keys(options), options, SOURCES)],
    }
    runner.report(document, tables_omnilearn.dynamic([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
