"""What stands beside OmniLearn's figures on the page of all papers, in a few words each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from bsp_setting import PAPER_CORES, limits
from table import Documents, percent
from tables_omnilearn import (
    GROWING,
    IMAGE_MODELS,
    MANY,
    OMNILEARN,
    RULES,
    Runs,
    accuracies,
    line,
    points,
)

Ours = Callable[[Documents], str | None]
"""What stands beside a paper's figure, from the results of one benchmark."""


def _listed(values: Iterable[str]) -> str:
    return " / ".join(values)


def off_the_line(documents: Documents) -> str:
    """Fig. 6, in a few words. Of `activations`."""
    off = [
        line(document["batches"], each[what])[1]
        for document in documents
        for each in document["models"]
        for what in ("activations", "data")
    ]
    return f"lines: at most {max(off):.1%} off"


def levels_here(documents: Documents) -> str:
    """Table I with the cores that there are. Of `bsp`."""
    cores = documents[0]["cores"]
    levels = (f"HL{level} ({', '.join(f'{each:.2g}' for each in limits(level, cores))})" for level in PAPER_CORES)
    return f"of {cores:g} cores: {', '.join(levels)}"


def moves(policy: str, noise: float, figure: str, form: Callable[[float], str]) -> Ours:
    """Medians of a figure of fig. 8, by workload. Of `omnilearn`."""

    def ours(documents: Documents) -> str:
        runs = Runs(documents)
        return _listed(
            form(median(run[figure] for run in runs.of(GROWING, each, policy, noise))) for each in IMAGE_MODELS
        )

    return ours


def saved(place: str, *policies: str, workloads: Sequence[str] = IMAGE_MODELS) -> Ours:
    """Medians of the time that each policy saves against equal batches, by workload. Of `omnilearn`."""

    def ours(documents: Documents) -> str:
        runs = Runs(documents)
        return "; ".join(
            f"{policy}: {_listed(percent(median(runs.saved(place, each, policy))) for each in workloads)}"
            for policy in policies
        )

    return ours


def over_equal(place: str, figure: str, *policies: str, workloads: Sequence[str] = IMAGE_MODELS) -> Ours:
    """A figure at level 8 over that of equal batches, by policy and workload. Of `omnilearn`."""

    def ours(documents: Documents) -> str:
        runs = Runs(documents)
        return "; ".join(
            f"{policy}: " + _listed(f"{runs.over_equal(place, each, policy, figure):.2f}x" for each in workloads)
            for policy in policies
        )

    return ours


def batches_of_many(documents: Documents) -> str:
    """OmniLearn's batches on 32 workers, and how near to each other their times are then. Of `omnilearn`."""
    runs = Runs(documents)
    found = []
    for workload in runs.workloads(MANY):
        batches = runs.of(MANY, workload, OMNILEARN)[0]["batches"]
        found.append(f"{batches}, spread {runs.over_equal(MANY, workload, OMNILEARN, 'spread'):.2f}x")
    return "; ".join(found)


def accuracy_by_level(documents: Documents) -> str:
    """Medians over the seeds at levels 1, 2, 4 and 8, by model. Of `omnilearn_accuracy`."""
    outcomes = [each for document in documents for each in document["outcomes"]]
    return "; ".join(
        f"{model}: "
        + _listed(f"{median(accuracies(outcomes, model, level, 'weighted').values()):.1%}" for level in PAPER_CORES)
        for model in dict.fromkeys(each["model"] for each in outcomes)
    )


def points_by_level(when: str) -> Ours:
    """Median points that weighting gains over the plain mean at levels 2, 4 and 8. Of `omnilearn_accuracy`."""

    def ours(documents: Documents) -> str:
        outcomes = [each for document in documents for each in document["outcomes"]]
        return "; ".join(
            f"{model}: "
            + _listed(
                f"{median(points(*(accuracies(outcomes, model, level, rule, when) for rule in RULES))):+.1f}"
                for level in PAPER_CORES
                if level > 1
            )
            for model in dict.fromkeys(each["model"] for each in outcomes)
        )

    return ours
