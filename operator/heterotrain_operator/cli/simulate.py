"""`heterotrain simulate`: read the scenario, run it under every policy and seed, and say what came of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from heterotrain_operator.api import ManifestError, Problem
from heterotrain_operator.cli import FAILED, SUCCEEDED, package_version
from heterotrain_operator.cli.terminal import (
    LiveView,
    ProgressLine,
    messages,
    print_json,
    print_report,
    progress_line,
    say,
)
from heterotrain_operator.experiments.report.simulated import Course, report_of, write_simulation
from heterotrain_operator.experiments.runs import cleared, out_problems
from heterotrain_operator.experiments.scenarios import Changes
from heterotrain_operator.experiments.scenarios.reading import Simulation, load_simulation
from heterotrain_operator.experiments.simulations import SimulationResult, simulate
from heterotrain_operator.experiments.simulations.comparison import Comparison, RunFigures, compared, figures_of
from heterotrain_operator.experiments.trials.stop import Interrupted, StopSignals, stop_signals

PLAIN_EVERY_SECONDS = 10.0
DRAWN_EVERY_SECONDS = 0.1


class SimulationView(LiveView):
    """A line with a bar on a terminal, plain lines elsewhere; `now` is a monotonic clock in seconds."""

    def __init__(self, console: Console, now: Callable[[], float], runs: int, steps: int) -> None:
        """There will be so many runs, of so many steps each."""
        super().__init__(console)
        self._now = now
        self._steps, self._runs = steps, runs
        self._title = ""
        self._done = 0
        self._began = now()
        self._printed_at = self._drawn_at = now()

    def begin(self, title: str) -> None:
        """A run begins."""
        self._title = title

    def progress(self, steps: int) -> None:
        """The run has executed so many steps. It is called after every round, and often does nothing."""
        moment = self._now()
        if self.is_live:
            if moment - self._drawn_at >= DRAWN_EVERY_SECONDS:
                self._drawn_at = moment
                self.draw(progress_line(self._title, self._reached(steps, moment), self.console.width))
        elif moment - self._printed_at >= PLAIN_EVERY_SECONDS:
            self._printed_at = moment
            self.say(f"{self._title}: {self._reached(steps, moment)}")

    def end(self, run: RunFigures) -> None:
        """The run is over."""
        self._done += 1
        if run.message:
            self.say(f"{self._title} {run.phase.lower()}: {run.message}", style="red")

    def _reached(self, steps: int, moment: float) -> ProgressLine:
        """Of all runs, since each takes about as long as the others."""
        total = self._runs * self._steps
        done = self._done * self._steps + min(steps, self._steps)
        left = (moment - self._began) / done * (total - done) if done else None
        return ProgressLine(done, total, left)


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


def run_simulation(asked: argparse.Namespace) -> int:
    """Do what the user asks, and return the exit code.

    Raises ManifestError (nothing was run) with all that is wrong with the input.
    """
    simulation = _checked(asked)
    if asked.print_scenario:
        sys.stdout.write(simulation.text)
        return SUCCEEDED
    console = messages()
    with stop_signals() as stop:
        outcome = _run_all(simulation, console, stop, keeps_own=asked.out is not None)
    if outcome.stopped_by is not None:
        done, all_runs = len(outcome.runs), len(simulation.policies) * len(simulation.seeds)
        say(console, f"{outcome.stopped_by}: {done} of {all_runs} simulations are complete", "yellow")
    kept = True
    if outcome.runs:
        like = next(iter(outcome.shown.values()))
        found = compared(simulation.name, simulation.description, outcome.runs, like)
        print_report(console, report_of(found))
        try:
            _keep(asked.out, simulation, found, outcome, console)
        except OSError as error:
            say(console, f"the report cannot be written: {error}", "red")
            kept = False
        if asked.json:
            print_json(found.to_json())
    if outcome.stopped_by is not None:
        return outcome.stopped_by.exit_code
    return FAILED if not kept or any(run.failed for run in outcome.runs) else SUCCEEDED


def _checked(asked: argparse.Namespace) -> Simulation:
    changes = Changes(tuple(asked.policy), asked.seed, asked.seeds, asked.intervals)
    problems = [] if asked.out is None else list(out_problems(asked.out, fresh=asked.fresh))
    if asked.out is not None and asked.scenario.is_dir() and asked.out.resolve() == asked.scenario.resolve():
        problems = [Problem("--out", "is the run that is simulated, which would be lost; name another folder")]
    if asked.fresh and asked.out is None:
        problems.append(Problem("--fresh", "replaces an earlier run in --out, which is not given"))
    try:
        simulation = load_simulation(asked.scenario, changes)
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
                if first and (said := result.scaled):
                    view.say(f"{policy}: {said}")
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
    course = Course(outcome.shown, simulation.text, package_version())
    say(console, f"Report: {write_simulation(cleared(out), found, course)}")
