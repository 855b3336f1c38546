"""How fast synchronous training is on unequal CPU workers, by policy, and how much of the possible that is.

    .venv/bin/python hack/bench/bsp.py --workload resnet18 --level 8 --level dynamic --out out/bench/bsp
    .venv/bin/python hack/bench/bsp.py --workload emulated --level 8 --level interference --out out/bench/bsp
    .venv/bin/python hack/bench/page.py out/bench/bsp --print

Every setting, a workload at a level of heterogeneity or under changes, is one experiment, as `heterotrain run
--compare` runs it: all policies, in rounds of reversed order, between two profiles of the workers. Its figures go into
a file of its own, and settings that are there are not run again: a long benchmark can be done in parts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import runner
import tables_measured
import yaml
from bsp_emulated import DESCRIPTION, Emulated
from bsp_figures import figures
from bsp_setting import (
    CHANGING,
    PAPER_CORES,
    WARM_UP_STEPS,
    WORKLOADS,
    Setting,
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
from heterotrain_operator.experiments.trials.trial import limits_of

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
    """Run one setting in `folder`; returns its document. Raises BenchmarkError if the run fails."""
    wanted = experiment(setting, folder)
    mechanism: Mechanism = Emulated(folder) if setting.workload.emulated else detect()
    # Waits share a CPU without disturbing each other.
    placements = ({},) * len(wanted.schedule.levels) if setting.workload.emulated else placements_of(wanted)
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
        **measured(wanted, folder, mechanism, placements, warm_up_steps),
    }


def measured(
    wanted: Experiment, folder: Path, mechanism: Mechanism, placements: Sequence[Any], warm_up_steps: int
) -> dict[str, Any]:
    """The figures of an experiment, and the machine on which they were measured. Raises BenchmarkError if it fails."""
    machine = runner.machine() | {"limits": mechanism.describe()}
    with stop_signals() as stop:
        results = run_trials(wanted, folder, mechanism=mechanism, observer=Titles(), stop=stop, placements=placements)
    last = results[-1].history
    if last.phase not in WELL:
        raise runner.BenchmarkError(f"{last.title} {last.phase.lower()}: {last.message}")
    found = summary_of(wanted, results, mechanism.describe())
    summary = found.to_json()
    ceilings = [level.ceilings for level in found.levels] or [found.ceilings]
    by_level = [{each.global_batch: each for each in level} for level in ceilings]
    trained = {(each.trial.policy, each.trial.round): each.history for each in results if not each.trial.is_profile}
    figures_found = figures(summary, trained, by_level, warm_up_steps)
    return {"machine": machine, **figures_found, "warnings": summary["warnings"]}


def of_manifest(job: dict[str, Any], compared: Sequence[str], rounds: int, folder: Path) -> dict[str, Any]:
    """The figures of any job under its own policy and others. Raises BenchmarkError if it is refused or fails."""
    try:
        wanted = experiment_of(parse_manifest(job), compared=compared, rounds=rounds)
    except ValueError as error:
        raise runner.BenchmarkError(str(error)) from error
    warm_up_steps = min(WARM_UP_STEPS, job["spec"]["training"]["steps"] // 2)
    return measured(wanted, folder, detect(), placements_of(wanted), warm_up_steps)


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
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.steps < 2 or options.phase_steps < 2 or (options.cores or 1) <= 0:
        parser.error("--rounds must be at least 1, --steps and --phase-steps 2, --cores above 0")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run what is not there yet. Raises BenchmarkError if a setting fails."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for each in settings(options):
        path = options.out / f"{each.name}.json"
        if path.exists():
            continue
        with tempfile.TemporaryDirectory(prefix="heterotrain-bsp-") as folder:
            document = run(each, Path(folder))
        # Under its name only when it is whole: what has a file is not run again.
        part = path.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        part.rename(path)
        print(tables_measured.bsp([document]), flush=True)
    return 0


if __name__ == "__main__":
    runner.command(main)
