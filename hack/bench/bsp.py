"""How fast synchronous training is on unequal CPU workers, by policy, and how much of the possible that is.

    .venv/bin/python hack/bench/bsp.py --estimate
    .venv/bin/python hack/bench/bsp.py --workload resnet18 --level 8 --level dynamic --out out/bench/bsp
    .venv/bin/python hack/bench/bsp.py --workload emulated --level 8 --level interference --out out/bench/bsp
    .venv/bin/python hack/bench/table.py out/bench/bsp

Every setting, a workload at a level of heterogeneity or under changes, is one experiment, as `heterotrain run
--compare` runs it: all policies, in rounds of reversed order, between two profiles of the workers. Its figures go into
a file of its own, and settings that are there are not run again: a long benchmark can be done in parts, and `table.py`
reads them together.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bsp_cost
import yaml
from bsp_emulated import DESCRIPTION, Emulated
from bsp_figures import figures
from bsp_setting import (
    CHANGING,
    PAPER_CORES,
    WARM_UP_STEPS,
    WORKLOADS,
    Setting,
    expected_seconds,
    manifest,
    schedule,
    spare_cores,
)

from heterotrain_operator.api import parse_manifest, to_core
from heterotrain_operator.clusters.local.limits import Mechanism, detect, machine_cores
from heterotrain_operator.core.model import Job
from heterotrain_operator.experiments.experiment import Experiment, experiment_of, placements_of, run_trials, summary_of
from heterotrain_operator.experiments.figures.history import WELL
from heterotrain_operator.experiments.schedules.schedule_file import load_schedule
from heterotrain_operator.experiments.trials.observer import Observer
from heterotrain_operator.experiments.trials.stop import stop_signals
from heterotrain_operator.experiments.trials.workers import limits_of
from heterotrain_operator.experiments.wording import clock

LEVELS = (*map(str, PAPER_CORES), *CHANGING)


class Titles(Observer):
    """Prints which trial runs, and what the user has to know."""

    def begin(
        self, title: str, job: Job, log_file: Callable[[str], Path], *, position: str = "", endless: bool = False
    ) -> None:
        """Print the title of a trial."""
        print(f"{job.name}: {title}" + (f" ({position})" if position else ""), file=sys.stderr)

    def warn(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr)


def experiment(setting: Setting, folder: Path) -> Experiment:
    """The experiment of a setting; its schedule passes through a file in `folder`, as a user's does."""
    job = parse_manifest(manifest(setting))
    changes = schedule(setting)
    found = None
    if changes is not None:
        path = folder / "schedule.yaml"
        path.write_text(yaml.safe_dump(changes, sort_keys=False), encoding="utf-8")
        core = to_core(job)
        found = load_schedule(path, core, limits_of(core))
    return experiment_of(job, compared=setting.compared, rounds=setting.rounds, schedule=found)


def run(setting: Setting, folder: Path) -> dict[str, Any]:
    """Run one setting in `folder`; returns its document. Raises RuntimeError if the run fails."""
    wanted = experiment(setting, folder)
    load = os.getloadavg()[0]
    mechanism: Mechanism = Emulated(folder) if setting.workload.emulated else detect()
    # Waits share a CPU without disturbing each other.
    unplaced = ({},) * len(wanted.schedule.levels)
    with stop_signals() as stop:
        results = run_trials(
            wanted,
            folder,
            mechanism=mechanism,
            observer=Titles(),
            stop=stop,
            placements=unplaced if setting.workload.emulated else placements_of(wanted),
        )
    last = results[-1].history
    if last.phase not in WELL:
        raise RuntimeError(f"{setting.name}: {last.title} {last.phase.lower()}: {last.message}")
    found = summary_of(wanted, results, mechanism.describe())
    summary = found.to_json()
    ceilings = [level.ceilings for level in found.levels] or [found.ceilings]
    by_level = [{each.global_batch: each for each in level} for level in ceilings]
    trained = {(each.trial.policy, each.trial.round): each.history for each in results if not each.trial.is_profile}
    warm_up_steps = min(WARM_UP_STEPS, setting.steps // 2)
    return {
        "benchmark": "bsp",
        "workload": setting.workload.model,
        "width": setting.workload.width,
        "emulated": DESCRIPTION if setting.workload.emulated else None,
        "level": setting.level,
        "steps": setting.steps,
        "rounds": setting.rounds,
        "warm_up_steps": warm_up_steps,
        "cores": setting.cores,
        "schedule": schedule(setting),
        "machine": {
            "cores": machine_cores(),
            "load_before": load,
            "limits": summary["limits"],
            "python": platform.python_version(),
            "torch": version("torch"),
        },
        **figures(summary, trained, by_level, warm_up_steps),
        "warnings": summary["warnings"],
    }


def settings(options: argparse.Namespace) -> list[Setting]:
    """What is asked for, workload by workload."""
    cores = options.cores or spare_cores(machine_cores())
    return [
        Setting(
            WORKLOADS[model],
            level,
            cores,
            CHANGING[level] * options.phase_steps if level in CHANGING else options.steps,
            options.rounds,
        )
        for model in options.workload or [name for name, each in WORKLOADS.items() if not each.emulated]
        for level in options.level or LEVELS
    ]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Compare policies on unequal CPU workers.")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="again for several (all that compute)")
    parser.add_argument("--level", action="append", choices=LEVELS, help="of heterogeneity; again for several (all)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of every policy (3)")
    parser.add_argument("--steps", type=int, default=120, help="of a run at one level (120)")
    parser.add_argument("--phase-steps", type=int, default=80, help=f"of each phase of {', '.join(CHANGING)} (80)")
    parser.add_argument("--cores", type=float, help="of the four workers together (what the machine can spare)")
    parser.add_argument("--out", type=Path, default=Path("out/bench/bsp"), help="folder of results (out/bench/bsp)")
    parser.add_argument("--estimate", action="store_true", help="only say how long it would take")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.steps < 2 or options.phase_steps < 2 or (options.cores or 1) <= 0:
        parser.error("--rounds must be at least 1, --steps and --phase-steps 2, --cores above 0")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run what is not there yet. Raises RuntimeError if a setting fails."""
    options = parse(arguments)
    wanted = [each for each in settings(options) if not (options.out / f"{each.name}.json").exists()]
    costs = {model: bsp_cost.measure(WORKLOADS[model]) for model in dict.fromkeys(e.workload.model for e in wanted)}
    expected = [expected_seconds(each, costs[each.workload.model]) for each in wanted]
    for each, seconds in zip(wanted, expected, strict=True):
        print(f"{each.name}: about {clock(seconds)}", file=sys.stderr)
    print(f"{len(wanted)} settings to run, about {clock(sum(expected))} together", file=sys.stderr)
    if options.estimate:
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    for each in wanted:
        with tempfile.TemporaryDirectory(prefix="heterotrain-bsp-") as folder:
            document = run(each, Path(folder))
        # Under its name only when it is whole: what has a file is not run again.
        part = options.out / f"{each.name}.part"
        part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        part.rename(options.out / f"{each.name}.json")
        print(f"{each.name}: {options.out / f'{each.name}.json'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuntimeError as error:
        sys.exit(f"bsp: {error}")
