"""Write benchmarks' results as tables, beside the papers' figures.

    .venv/bin/python hack/bench/table.py out/bench/bsp out/bench/gpu
    .venv/bin/python hack/bench/table.py hack/bench/results --write docs/benchmarks.md

Without `--write` it prints; with it, it replaces what stands in the file between `<!-- table: bsp -->` and
`<!-- end -->`, and likewise for `gpu` and `weighting`: no figure of ours is copied by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from markdown_table import NONE, markdown
from papers import DYNAMIC_TIME_SAVED, EQUAL_CORES_CEILING, WEIGHTING_POINTS
from recorded_elastic import chaos, handover, transition
from recorded_replacement import replacement
from recorded_simulated import OWN_POLICY, ablation, policies, simulated

Document = Mapping[str, Any]
Trials = Sequence[Document]

UNIFORM = "Uniform"
GOALS: Mapping[str, Mapping[str, float]] = {
    "8": {"ceiling_fraction_all": 0.90, "ceiling_fraction_settled": 0.97},
}
"""Least shares of the ceiling that the own policy is to reach, by level: from the first step on, and after the last
adjustment.
"""

EPOCHS = (2, 5)
"""After which the accuracy of weighted and plain averaging is shown, beside that after the last one."""

NOTHING = "No results are recorded yet."


def read(paths: Iterable[Path]) -> list[Document]:
    """All results in these files and folders, by their names. Raises ValueError if one is no result."""
    found = []
    for path in paths:
        for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
            document = json.loads(file.read_text(encoding="utf-8"))
            if document.get("benchmark") not in TABLES.keys() - RESULTS_OF.keys():
                raise ValueError(f"{file} is no result of a benchmark")
            found.append(document)
    return found


def spread(values: Iterable[float | None], form: Callable[[float], str]) -> str:
    """Median, and least to greatest where they read differently."""
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    least, greatest = form(min(known)), form(max(known))
    return form(median(known)) + (f" ({least}..{greatest})" if least != greatest else "")


def percent(value: float) -> str:
    """A share."""
    return f"{value:.0%}"


def rate(value: float) -> str:
    """Samples per second."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def milliseconds(value: float) -> str:
    """Of a time in seconds."""
    return f"{1e3 * value:.0f} ms"


def seconds(value: float) -> str:
    """A longer time."""
    return f"{value:.1f} s"


def times(value: float) -> str:
    """A ratio."""
    return f"{value:.2f}x"


def by_policy(trials: Trials) -> dict[str, list[Document]]:
    """The rounds of each policy."""
    found: dict[str, list[Document]] = {}
    for trial in trials:
        found.setdefault(trial["policy"], []).append(trial)
    return found


def ratios(trials: Trials, base: Trials, figure: str) -> list[float]:
    """A figure over that of the base in the same round; a round that ran before and after has the base's median."""
    rounds: dict[int, list[float]] = {}
    for trial in base:
        if trial[figure]:
            rounds.setdefault(trial["round"], []).append(trial[figure])
    return [
        trial[figure] / median(rounds[trial["round"]]) for trial in trials if trial[figure] and trial["round"] in rounds
    ]


def of_machine(document: Document) -> str:
    """On what it was measured."""
    machine = document["machine"]
    cores = f"{machine['cores']} cores, " if "cores" in machine else ""
    limits = f"; {machine['limits']}" if "limits" in machine else ""
    return f"{cores}Python {machine['python']}, torch {machine['torch']}{limits}"


def _notes(documents: Sequence[Document]) -> str:
    """Machines, each once, and what the runs themselves doubt."""
    lines = [f"Measured on {words}." for words in dict.fromkeys(map(of_machine, documents))]
    runs = dict.fromkeys((each["rounds"], each["steps"]) for each in documents if "rounds" in each)
    if runs:
        lines.append(f"Runs of each trial: {' and '.join(f'{rounds} x {steps} steps' for rounds, steps in runs)}.")
    for document in documents:
        if document.get("emulated"):
            lines.append(f"* Emulated, no measure of compute: {document['workload']} {document['level']}.")
        doubts = document.get("warnings", [])
        if doubts:
            name = f"{document['workload']} {document.get('level', document.get('precision', ''))}"
            lines.append(f"* Doubtful, {name}: {doubts[0]}" + (f" (and {len(doubts) - 1} more)" if doubts[1:] else ""))
    return "\n".join(lines)


def bsp(documents: Sequence[Document]) -> str:
    """A row for each workload, level and policy, then one for each phase where limits changed."""
    rows, phases = [], []
    for document in documents:
        policies = by_policy(document["arms"])
        for policy, trials in policies.items():
            base = policies.get(UNIFORM, [])
            saved = [1 - ratio for ratio in ratios(trials, base, "target_seconds")]
            # Of a trial with phases, iteration and share of the ceiling are those of its last phase.
            settled = [trial for trial in trials if not trial["phases"]]
            rows.append(
                [
                    document["workload"],
                    document["level"],
                    policy,
                    spread((trial["samples_per_second"] for trial in trials), rate),
                    spread((trial["iteration_seconds"] for trial in settled), milliseconds),
                    spread((trial["ceiling_fraction"] for trial in settled), percent),
                    spread((trial.get("ceiling_fraction_settled") for trial in trials), percent),
                    spread((trial["ceiling_fraction_all"] for trial in trials), percent),
                    spread((trial["target_seconds"] for trial in trials), seconds),
                    NONE if policy == UNIFORM else spread(saved, percent),
                    _in_papers(document["workload"], document["level"], policy),
                ]
            )
            phases += _phases(document["workload"], policy, trials)
    headings = ("workload", "HL", "policy", "samples/s", "iteration", "of ceiling", "settled steps", "all steps")
    tables = [markdown((*headings, "to the loss", "time saved", "for comparison"), rows)]
    if phases:
        headings = ("workload", "policy", "phase", "samples/s", "of ceiling", "of ceiling, all steps")
        tables.append(markdown(headings, phases))
    goals = [line for document in documents for line in missed_or_reached(document)]
    return "\n\n".join([*tables, *(["\n".join(goals)] if goals else []), _notes(documents)])


def missed_or_reached(document: Document) -> list[str]:
    """For each goal of a setting whether the own policy's median reaches it; nothing where it was not measured."""
    own = [trial for trial in document["arms"] if trial["policy"] == OWN_POLICY]
    lines = []
    for figure, least in GOALS.get(document["level"], {}).items():
        known = [trial[figure] for trial in own if trial.get(figure) is not None]
        if known:
            verdict = "reached" if median(known) >= least else "missed"
            where = "all steps" if figure == "ceiling_fraction_all" else "settled steps"
            lines.append(
                f"* Goal of {percent(least)} of the ceiling over {where}, {document['workload']} {document['level']}: "
                f"{verdict}, {spread(known, percent)}."
            )
    return lines


def _in_papers(workload: str, level: str, policy: str) -> str:
    if level == "dynamic":
        return DYNAMIC_TIME_SAVED.get(workload, NONE) if policy == "Proportional" else NONE
    if policy == UNIFORM or level not in EQUAL_CORES_CEILING:
        return NONE
    return f"cores alone: at most {EQUAL_CORES_CEILING[level]:g}x"


def _phases(workload: str, policy: str, trials: Trials) -> list[list[str]]:
    rows = []
    for parts in zip(*(trial["phases"] for trial in trials), strict=False):
        figures = ("samples_per_second", rate), ("ceiling_fraction", percent), ("ceiling_fraction_all", percent)
        cells = [spread((part[name] for part in parts), form) for name, form in figures]
        rows.append([workload, policy, parts[0]["label"], *cells])
    return rows


def gpu(documents: Sequence[Document]) -> str:
    """A row for each precision and policy."""
    rows = []
    for document in documents:
        policies = by_policy(document["arms"])
        base = policies.get("GPU alone", [])
        for policy, trials in policies.items():
            rows.append(
                [
                    document["workload"],
                    document["device"],
                    document["precision"],
                    policy,
                    spread((trial["samples_per_second"] for trial in trials), rate),
                    spread((trial["iteration_seconds"] for trial in trials), milliseconds),
                    " / ".join(map(str, trials[-1]["batches"])),
                    spread((trial["ceiling_fraction"] for trial in trials), percent),
                    NONE if trials is base else spread(ratios(trials, base, "samples_per_second"), times),
                ]
            )
    headings = ("workload", "device", "precision", "policy", "samples/s", "iteration", "batches, GPU first")
    return "\n\n".join([markdown((*headings, "of ceiling", "over GPU alone"), rows), _notes(documents)])


def weighting(documents: Sequence[Document]) -> str:
    """A row for each level, split and number of epochs."""
    rows = []
    for document in documents:
        outcomes = document["outcomes"]
        epochs = sorted({*(each for each in EPOCHS if each < document["epochs"]), document["epochs"]})
        for level, split in dict.fromkeys((each["level"], each["split"]) for each in outcomes):
            rows += [_weighted(outcomes, level, split, after) for after in epochs]
    headings = ("level", "split", "epochs", "weighted", "plain mean", "difference, points", "OmniLearn, table V")
    return "\n\n".join([markdown(headings, rows), _notes(documents)])


def _weighted(outcomes: Sequence[Document], level: int, split: str, epochs: int) -> list[str]:
    weighted, plain = (
        {
            each["seed"]: each["accuracies"][epochs - 1]
            for each in outcomes
            if (each["level"], each["split"], each["rule"]) == (level, split, rule)
        }
        for rule in ("weighted", "plain")
    )
    points = [100 * (accuracy - plain[seed]) for seed, accuracy in weighted.items()]
    return [
        f"HL{level}",
        split,
        str(epochs),
        *(spread(each.values(), lambda value: f"{value:.1%}") for each in (weighted, plain)),
        spread(points, lambda value: f"{value:+.1f}"),
        WEIGHTING_POINTS[level],
    ]


TABLES: Mapping[str, Callable[[Sequence[Document]], str]] = {
    "ablation": ablation,
    "bsp": bsp,
    "chaos": chaos,
    "gpu": gpu,
    "handover": handover,
    "policies": policies,
    "replacement": replacement,
    "transition": transition,
    "weighting": weighting,
    "simulated": simulated,
}


RESULTS_OF: Mapping[str, str] = {"policies": "simulated"}
"""The benchmark whose results a table shows that is not named after it."""


def rendered(documents: Sequence[Document], name: str) -> str:
    """The table of this name, of the results of its benchmark."""
    own = [document for document in documents if document["benchmark"] == RESULTS_OF.get(name, name)]
    return TABLES[name](own) if own else NOTHING


def replaced(text: str, documents: Sequence[Document]) -> str:
    """The text with its tables replaced."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{rendered(documents, match[2])}\n\n<!-- end -->"

    return re.sub(r"(<!-- table: (\w+) -->)\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def main(arguments: Sequence[str]) -> int:
    """Print or write. Raises ValueError if a file is no result."""
    parser = argparse.ArgumentParser(description="Write benchmarks' results as tables.")
    parser.add_argument("results", type=Path, nargs="+", help="folders or files of results")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the tables in this file")
    options = parser.parse_args(arguments)
    documents = read(options.results)
    if options.write is None:
        tables = (rendered(documents, name) for name in TABLES)
        print("\n\n".join(each for each in tables if each != NOTHING) or NOTHING)
        return 0
    text = options.write.read_text(encoding="utf-8")
    options.write.write_text(replaced(text, documents), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"table: {error}")
