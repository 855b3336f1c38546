"""`heterotrain simulate`: read the scenario, run it under every policy and seed, and say what came of it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from heterotrain_operator.api import ManifestError, Problem
from heterotrain_operator.cli.exit_codes import FAILED, SUCCEEDED
from heterotrain_operator.cli.out_folder import out_problems
from heterotrain_operator.cli.simulated.options import SimulateOptions
from heterotrain_operator.cli.simulated.tables import print_comparison
from heterotrain_operator.cli.simulated.view import SimulationView
from heterotrain_operator.cli.version import package_version
from heterotrain_operator.experiments.folder import cleared
from heterotrain_operator.experiments.scenarios.reading import Simulation, load_simulation
from heterotrain_operator.experiments.simulations import SimulationResult, simulate
from heterotrain_operator.experiments.simulations.comparison import Comparison, RunFigures, compared, figures_of
from heterotrain_operator.experiments.trials.stop import Interrupted, StopSignals, stop_signals

PLAIN_WIDTH = 120
"""Columns of the table where standard error is no terminal."""


KEPT_NUMBERS = 20_000_000
"""Own times up to which the report draws them; each takes 8 bytes."""


@dataclass(slots=True)
class Outcome:
    """What has come of the runs so far: the figures of each, and of every policy its first result, with own times if
    there is to be a report.
    """

    runs: list[RunFigures] = field(default_factory=list)
    shown: dict[str, SimulationResult] = field(default_factory=dict)
    stopped_by: Interrupted | None = None


def run_simulation(options: SimulateOptions) -> int:
    """Do what the user asks, and return the exit code.

    Raises ManifestError (nothing was run) with all that is wrong with the input.
    """
    simulation = _checked(options)
    if options.only_print:
        sys.stdout.write(simulation.text)
        return SUCCEEDED
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=PLAIN_WIDTH)
    with stop_signals() as stop:
        outcome = _run_all(simulation, console, stop, keeps_own=options.out is not None)
    if outcome.stopped_by is not None:
        done, asked = len(outcome.runs), len(simulation.policies) * len(simulation.seeds)
        _say(console, f"{outcome.stopped_by}: {done} of {asked} simulations are complete", "yellow")
    kept = True
    if outcome.runs:
        like = next(iter(outcome.shown.values()))
        found = compared(simulation.name, simulation.description, outcome.runs, like)
        print_comparison(console, found)
        try:
            _keep(options.out, simulation, found, outcome, console)
        except OSError as error:
            _say(console, f"the report cannot be written: {error}", "red")
            kept = False
        if options.as_json:
            sys.stdout.write(json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n")
            sys.stdout.flush()
    if outcome.stopped_by is not None:
        return outcome.stopped_by.exit_code
    return FAILED if not kept or any(run.failed for run in outcome.runs) else SUCCEEDED


def _checked(options: SimulateOptions) -> Simulation:
    problems = [] if options.out is None else list(out_problems(options.out, fresh=options.fresh))
    if options.out is not None and options.scenario.is_dir() and options.out.resolve() == options.scenario.resolve():
        problems = [Problem("--out", "is the run that is simulated, which would be lost; name another folder")]
    if options.fresh and options.out is None:
        problems.append(Problem("--fresh", "replaces an earlier run in --out, which is not given"))
    try:
        simulation = load_simulation(options.scenario, options.changes)
    except ManifestError as error:
        raise ManifestError([*error.problems, *problems]) from None
    if problems:
        raise ManifestError(problems)
    return simulation


def _run_all(simulation: Simulation, console: Console, stop: StopSignals, *, keeps_own: bool) -> Outcome:
    """Run after run, until all are done or a signal asks to stop."""
    outcome = Outcome()
    runs = list(simulation.runs())
    with SimulationView(console, time.monotonic, len(runs), simulation.scenario.steps) as view:
        if simulation.description:
            view.say(f"{simulation.name}: {simulation.description}", "bold")

        def on_progress(steps: int) -> None:
            stop.check()
            view.progress(steps)

        try:
            for policy, scenario in runs:
                several = len(simulation.seeds) > 1
                view.begin(f"{policy}, seed {scenario.seed}" if several else policy)
                first = policy not in outcome.shown
                small = scenario.steps * len(scenario.workers()) <= KEPT_NUMBERS
                # A second signal does not wait for the end of a round.
                with stop.insistable():
                    result = simulate(scenario, own_seconds=keeps_own and first and small, on_progress=on_progress)
                figures = figures_of(policy, result)
                outcome.runs.append(figures)
                if first:
                    outcome.shown[policy] = result
                view.end(figures)
        except Interrupted as interrupted:
            outcome.stopped_by = interrupted
    return outcome


def _keep(out: Path | None, simulation: Simulation, found: Comparison, outcome: Outcome, console: Console) -> None:
    """Write the report, if one is asked for. Raises OSError."""
    if out is None:
        return
    # Drawing costs a second of imports that a simulation without a report does not need.
    from heterotrain_operator.experiments.report import simulated  # noqa: PLC0415

    report = simulated.SimulationReport(found, outcome.shown, simulation.text, package_version())
    _say(console, f"Report: {simulated.write(cleared(out), report)}")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
