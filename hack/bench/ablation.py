"""What each guard of the decisions is worth: simulated clusters with it, and without it.

    .venv/bin/python hack/bench/ablation.py
    .venv/bin/python hack/bench/ablation.py --without rollback --case "jump 2x" --workers 8 --seeds 10

Nothing here can be switched by users: attributes of the decisions' modules are replaced in the benchmark's processes.
For each change the table shows by how much the settled E (see `simulated.py`) of `Optimal` becomes worse where it
becomes worst, the mean over all scenarios, plans per 100 intervals, and how many more runs stay off for good.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean

import runner
import simulated
import tables_simulated
from simulated_scenarios import INTERVALS, by_name
from table import OWN_POLICY

CORE = "heterotrain_operator.core"
HURTS = 0.005
"""A settled E that is larger by more than this, or PLANS_HURT more plans, is a loss."""

PLANS_HURT = 2.0

BROKEN = 100.0
"""Stands for the E of a run in which a decision raised an error."""

CASES = (
    "affine, independent 5 %",
    "affine, independent 20 %",
    "affine, AR(.9) 10 %",
    "affine, heavy-tailed 20 %",
    "affine, replayed",
    "plateau, independent 10 %",
    "memory cliff, independent 10 %",
    "b^2, independent 10 %",
    "throttled, independent 10 %",
    "unlike noise 2-30 %",
    "equal workers",
    "jump 2x",
    "jump 2x, AR(.9) 10 %",
    "drift 2x",
    "common drift 2x",
    "interference 2x",
    "limits hidden",
    "slow start",
    "shared AR(.98) 30 %",
)
"""One of each kind; all of them take several times as long."""


@dataclass(frozen=True, slots=True)
class Change:
    """An attribute of a module of the decisions, and what replaces it."""

    module: str
    name: str
    value: object


def _as_proposed(memory: object, seats: object, proposal: object) -> tuple[object, object]:
    return memory, proposal


def _as_decided(rested_on: object, evidence: object, seats: object, proposal: object, *, urgent: bool) -> object:
    return proposal


def _as_measured(seats: object) -> object:
    return seats


def _as_followed(seats: object, *_: object) -> tuple[object, tuple[str, ...]]:
    return seats, ()


def _never(*_: object, **__: object) -> bool:
    return False


def _as_independent(*_: object) -> float:
    return 1.0


WITHOUT: Mapping[str, tuple[Change, ...]] = {
    "rollback": (Change("batching.rollback", "reviewed", _as_proposed),),
    "end of a vain way back": (Change("batching.rollback", "LEAST_REGAINED", 0.0),),
    "noise gate": (Change("prediction.noise", "CAUTION", 1e-9),),
    "least saving": (Change("batching.policies.optimal", "LEAST_SAVING", 0.0),),
    "sure savings": (Change("batching.policies.optimal", "LEAST_SURE_SAVING", 1.0),),
    "expected step": (Change("batching.policies.optimal", "EXPECTED_CAUTION", math.inf),),
    "trial of splits for noise": (Change("batching.rollback", "apply_trial", _as_proposed),),
    "bound of splits for noise": (Change("batching.policies.optimal", "MOST_RAISED", 1e6),),
    "samples left where times are not sure": (Change("batching.policies.optimal", "LEAST_PART_KEPT", 0.0),),
    "limit of growth": (Change("batching.policies.optimal", "GREATEST_GROWTH", 1_000_000),),
    "jumps": (
        Change("prediction.jumps", "JUMP_DEVIATIONS", math.inf),
        Change("prediction.jumps", "ASIDE_DEVIATIONS", math.inf),
    ),
    "doubtful windows set aside": (Change("prediction.jumps", "ASIDE_DEVIATIONS", math.inf),),
    "bound of a window's variance": (Change("prediction.jumps", "MOST_VARIABLE", math.inf),),
    "what workers share": (Change("prediction.jumps", "shared_change", _as_independent),),
    "what moved workers share": (Change("prediction.jumps", "shared_by_moved", _as_independent),),
    "drifts": (Change("prediction.roughness", "TREND", math.inf),),
    "speed by what holds back": (Change("prediction.causes", "shows_another_speed", _never),),
    "another speed at the batch before": (Change("prediction.jumps", "is_another_speed", _never),),
    "jumps' windows out of the fit": (Change("prediction.step_time", "JUMPED", 0),),
    "patience": (Change("batching.rebalance", "with_patience", _as_decided),),
    "likeness within groups": (Change("batching.likeness", "shrunk_to_group_mean", _as_measured),),
    "likeness of slopes": (Change("batching.likeness", "as_alike", _as_measured),),
    "workers that relapse": (Change("batching.likeness", "with_relapse_caution", _as_followed),),
    "early decisions": (Change("batching.quorum", "is_due", _never),),
    "errors of windows": (Change("prediction.roughness", "inflation_of", _as_independent),),
    "pinned cost": (Change("batching.measuring", "PINNED_WINDOWS", math.inf),),
    "outliers": (Change("prediction.jumps", "OUTLIER_RATIO", 1e9),),
    "prior of the fixed share": (
        Change("prediction.predictors.ema", "PRIOR_SHARE", 10.0),
        Change("prediction.predictors.ema", "PRIOR_WEIGHT", 1 / 10.0**2),
    ),
    "greatest fixed share": (
        Change("prediction.predictors.ema", "GREATEST_SHARE", 1 - 1e-9),
        Change("prediction.predictors.ema", "MOST_OVERHEAD", (1 - 1e-9) / 1e-9),
    ),
    "error of the model": (Change("prediction.predictors.ema", "MODEL_ERROR", 1e-9),),
    "least span": (Change("prediction.predictors.ema", "LEAST_SPAN", 1e-9),),
    "forgetting": (Change("prediction.predictors.ema", "FORGETTING", 1.0),),
}
"""What can be taken out, by a name for people."""


def known() -> dict[str, tuple[Change, ...]]:
    """What can be taken out of the decisions as they are; what they do not have (any more) is left out."""
    return {
        name: changes
        for name, changes in WITHOUT.items()
        if all(hasattr(importlib.import_module(f"{CORE}.{each.module}"), each.name) for each in changes)
    }


@contextmanager
def replaced(changes: Sequence[Change]) -> Iterator[None]:
    """While inside, attributes are replaced in their module and wherever they were imported from it."""
    restored: list[tuple[object, str, object]] = []
    try:
        for change in changes:
            original = getattr(importlib.import_module(f"{CORE}.{change.module}"), change.name)
            for path, module in list(sys.modules.items()):
                if path.startswith(CORE) and vars(module).get(change.name) is original:
                    restored.append((module, change.name, original))
                    setattr(module, change.name, change.value)
        yield
    finally:
        for module, name, original in reversed(restored):
            setattr(module, name, original)


@dataclass(frozen=True, slots=True)
class Worth:
    """What one change does: differences of settled E, plans per 100 intervals and runs that stay off."""

    without: str
    worst: float
    worst_case: str
    mean: float
    plans: float
    plans_worst: float
    off: int

    @property
    def hurts(self) -> bool:
        """Whether it is a loss anywhere."""
        return self.worst > HURTS or self.plans_worst > PLANS_HURT or self.off > 0


def one(key: runner.Key) -> simulated.Run:
    """One run under a change, by its name; without a name under none."""
    name, case, workers, seed = key
    changes = known()[name] if name else ()
    with replaced(changes):
        try:
            return simulated.one((case, INTERVALS, workers, OWN_POLICY, seed))
        except (ArithmeticError, ValueError) as error:
            if not name:
                raise
            # Decisions that cannot do without it are a result, too.
            print(f"\n{name}, {case}, {workers} workers, seed {seed}: {error!r}", file=sys.stderr)
            return simulated.Run(BROKEN, BROKEN, 0.0, None, True, None)


def worth_of(name: str, base: Mapping[tuple[str, int], simulated.Row], rows: Sequence[simulated.Row]) -> Worth:
    """The rows of one change, compared with those without any."""
    pairs = [(row, base[row.case, row.workers]) for row in rows]
    by_case = [(_difference(row.settled, before.settled), f"{row.case}, {row.workers}") for row, before in pairs]
    worst, where = max(by_case)
    plans = [_difference(row.plans_per_100, before.plans_per_100) for row, before in pairs]
    off = sum(row.off - before.off for row, before in pairs)
    return Worth(name, worst, where, fmean(value for value, _ in by_case), fmean(plans), max(plans), off)


def _difference(new: float, old: float) -> float:
    """Nothing where neither is known."""
    return new - old if math.isfinite(new) and math.isfinite(old) else 0.0


def measure(names: Sequence[str], options: argparse.Namespace) -> list[Worth]:
    """All changes, each compared with none."""
    places = [(case, workers) for case in options.case for workers in options.workers]
    keys = [
        (name, case, workers, seed)
        for name in ("", *names)
        for case, workers in places
        for seed in range(options.seeds)
    ]
    runs = runner.play(one, simulated.Run, keys, options, (*simulated.SOURCES, "hack/bench/ablation.py"))

    def next_rows() -> list[simulated.Row]:
        return [
            simulated.row_of(by_name()[case], workers, OWN_POLICY, [next(runs) for _ in range(options.seeds)])
            for case, workers in places
        ]

    base = {(row.case, row.workers): row for row in next_rows()}
    return [worth_of(name, base, next_rows()) for name in names]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Take guards out of the decisions, one by one, in simulated clusters.")
    parser.add_argument("--without", action="append", choices=known(), help="again for several (all)")
    parser.add_argument("--case", action="append", choices=by_name(), help="again for several (one of each kind)")
    parser.add_argument("--workers", type=int, nargs="+", default=[3, 8], help="numbers of workers (3 8)")
    parser.add_argument("--seeds", type=int, default=4, help="runs of each (4)")
    runner.options_of(parser, pool=True)
    options = parser.parse_args(arguments)
    options.case = options.case or CASES
    if min(*options.workers, options.seeds, options.processes) < 1:
        parser.error("--workers, --seeds and --processes must be at least 1")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(arguments)
    names = options.without or list(known())
    found = measure(names, options)
    document = {
        "benchmark": "ablation",
        "seeds": options.seeds,
        "workers": options.workers,
        "cases": list(options.case),
        "changes": [asdict(each) | {"hurts": each.hurts} for each in found],
    }
    runner.report(document, tables_simulated.ablation([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
