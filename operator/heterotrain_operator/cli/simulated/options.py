"""The options of `heterotrain simulate`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.experiments.scenarios import MAX_INTERVALS, MAX_SEEDS, Changes


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What the user asks of a simulation."""

    scenario: Path
    changes: Changes
    as_json: bool = False
    out: Path | None = None
    fresh: bool = False
    only_print: bool = False


def add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    simulate = commands.add_parser(
        "simulate",
        help="simulate a job of a scenario, in virtual time",
        description="Simulate the job of a scenario in virtual time, with the decisions of a real one, under one "
        "policy after the other and the same noise, and compare each with the best split. Shows what happens on "
        "standard error. Exit code: 0 all ran to their end, 1 a simulated job failed, 2 bad input, 130 (143) "
        "interrupted.",
    )
    simulate.add_argument(
        "scenario",
        type=Path,
        metavar="SCENARIO.yaml|RUN",
        help="a scenario, as those in examples/scenarios; or a folder of `heterotrain run --out`, whose job is "
        "simulated with the times and the noise of its workers",
    )
    simulate.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="P",
        help=f"instead of the scenario's policies: {', '.join(known_policies())}; several by naming it again",
    )
    simulate.add_argument("--seed", type=_number(0, 2**53), metavar="N", help="instead of the scenario's seed")
    simulate.add_argument(
        "--seeds", type=_number(1, MAX_SEEDS), metavar="N", help="run every policy with N seeds, from that one on"
    )
    simulate.add_argument(
        "--intervals", type=_number(1, MAX_INTERVALS), metavar="N", help="simulate N control intervals"
    )
    simulate.add_argument("--out", type=Path, metavar="DIR", help="keep figures, plots and report.html in this folder")
    simulate.add_argument("--fresh", action="store_true", help="replace an earlier run in --out")
    simulate.add_argument(
        "--print-scenario", action="store_true", help="print the scenario of a run, and simulate nothing"
    )
    simulate.add_argument("--json", action="store_true", help="print the figures as one JSON object on standard output")


def simulate_options(asked: argparse.Namespace) -> SimulateOptions:
    """What was parsed."""
    changes = Changes(tuple(asked.policy), asked.seed, asked.seeds, asked.intervals)
    return SimulateOptions(
        asked.scenario,
        changes,
        as_json=asked.json,
        out=asked.out,
        fresh=asked.fresh,
        only_print=asked.print_scenario,
    )


def _number(least: int, most: int) -> Callable[[str], int]:
    """A type of argparse: whole numbers within bounds."""

    def parsed(text: str) -> int:
        short = text.isascii() and text.isdecimal() and len(text) <= 20
        if not short or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, found {text[:40]!r}")
        return int(text)

    return parsed
