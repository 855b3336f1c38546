"""OmniLearn's figures as data, and what stands beside them on the page of all papers, in a few words each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import tables_measured
from bsp_setting import PAPER_CORES, limits
from table import Documents, percent
from tables_omnilearn import (
    DYNAMIC,
    GROWING,
    IMAGE_MODELS,
    MANY,
    OMNILEARN,
    ORACLE,
    RULES,
    STATIC,
    UNSEEN,
    WITHOUT_BAND,
    Runs,
    accuracies,
    line,
    paper_saved,
    points,
)
from tables_papers import Ours, Paper, Row, adjustments, iteration_ratio, saved_to_loss, weighting_points

OTHER_MACHINES = "other models, data and machines"
BSP = "measured: four CPU workers that share 1.5 cores"
LEVELS_SIMULATED = "simulated: times fitted to those CPU workers, noise 5 %, epochs of 60 steps"


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
        return " / ".join(
            form(median(run[figure] for run in runs.of(GROWING, each, policy, noise))) for each in IMAGE_MODELS
        )

    return ours


def saved(place: str, *policies: str, workloads: Sequence[str] = IMAGE_MODELS) -> Ours:
    """Medians of the time that each policy saves against equal batches, by workload. Of `omnilearn`."""

    def ours(documents: Documents) -> str:
        runs = Runs(documents)
        return "; ".join(
            f"{policy}: {' / '.join(percent(median(runs.saved(place, each, policy))) for each in workloads)}"
            for policy in policies
        )

    return ours


def over_equal(place: str, figure: str, *policies: str, workloads: Sequence[str] = IMAGE_MODELS) -> Ours:
    """A figure at level 8 over that of equal batches, by policy and workload. Of `omnilearn`."""

    def ours(documents: Documents) -> str:
        runs = Runs(documents)
        return "; ".join(
            f"{policy}: " + " / ".join(f"{runs.over_equal(place, each, policy, figure):.2f}x" for each in workloads)
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
        + " / ".join(f"{median(accuracies(outcomes, model, level, 'weighted').values()):.1%}" for level in PAPER_CORES)
        for model in dict.fromkeys(each["model"] for each in outcomes)
    )


def points_by_level(when: str) -> Ours:
    """Median points that weighting gains over the plain mean at levels 2, 4 and 8. Of `omnilearn_accuracy`."""

    def ours(documents: Documents) -> str:
        outcomes = [each for document in documents for each in document["outcomes"]]
        return "; ".join(
            f"{model}: "
            + " / ".join(
                f"{median(points(*(accuracies(outcomes, model, level, rule, when) for rule in RULES))):+.1f}"
                for level in PAPER_CORES
                if level > 1
            )
            for model in dict.fromkeys(each["model"] for each in outcomes)
        )

    return ours


PAPER = Paper(
    (
        Row(
            "table I",
            "cores of four workers by level",
            "of 48: HL1 (12, 12, 12, 12), HL2 (12, 12, 8, 16), HL4 (9, 9, 6, 24), HL8 (6, 6, 4, 32)",
            "bsp",
            levels_here,
            BSP,
            "the same shares of a smaller machine",
        ),
        Row(
            "fig. 1",
            "time at HL8 over HL1 with equal batches: ResNet-18 / ResNet-50 / AlexNet / VGG-11",
            "3 to 35 h more",
            "bsp",
            iteration_ratio("Uniform", "8", ("Uniform", "1")),
            BSP,
            f"{OTHER_MACHINES}; by cores alone 3x",
        ),
        Row(
            "fig. 4",
            "time at HL8 over HL1 with batches by cores: the same models",
            "less / less / more / more",
            "bsp",
            iteration_ratio("Static", "8", ("Static", "1")),
            BSP,
            "the paper's large workers do not use all of their cores; ours compute in one thread",
        ),
        Row(
            "fig. 6",
            "memory of data and activations at batches of 1 to 1,024",
            "lines",
            "activations",
            off_the_line,
            "counted: what forward keeps for backward, VGG-11, AlexNet, ResNet-18 and GPT",
            "the paper's are measured of processes and loaders",
        ),
        Row(
            "fig. 7",
            "iteration with batches by cores over equal ones, HL8: the same models",
            "0.75x / 0.67x / 0.84x / 0.67x (0.85 to 0.64, 6 to 4, 2.15 to 1.8, 18.7 to 12.5 s)",
            "bsp",
            iteration_ratio("Static", "8", ("Uniform", "8")),
            BSP,
            "the paper's are the densest compute times of all workers, ours whole iterations",
        ),
        Row(
            "fig. 7",
            "slowest less fastest worker of a step over that of equal batches, HL8: the same models",
            "less with each technique; drawn only",
            "omnilearn",
            over_equal("HL8", "spread", STATIC, WITHOUT_BAND, OMNILEARN, "Optimal"),
            LEVELS_SIMULATED,
        ),
        *(
            Row(
                "fig. 8",
                f"adjustments at HL8 from equal batches, {text}: the same models",
                "2-4 / 2-4 / 10 / 2-4",
                "omnilearn",
                moves(policy, noise, "adjustments", "{:.0f}".format),
                f"simulated: bounds 12 to 96; {policy}, noise {noise:.0%}",
                why,
            )
            for policy, noise, text, why in (
                (OMNILEARN, 0.02, "without eq. 8", "the paper does not say how noisy its machine was"),
                (OMNILEARN, 0.10, "without eq. 8", "noise alone exceeds the dead-band again and again"),
                ("Optimal", 0.10, "global batch fixed", "it weighs noise, and moves once it knows the workers"),
            )
        ),
        Row(
            "fig. 8",
            "adjustments at HL8 from equal batches, global batch fixed: the same models",
            "2-4 / 2-4 / 10 / 2-4",
            "bsp",
            adjustments("Proportional", "8"),
            f"{BSP}; `Proportional`",
            "the paper's global batch is free, its bounds are 12 to 96",
        ),
        Row(
            "fig. 8",
            "growth of the global batch without eq. 8: the same models",
            "< 2.5 / 12 / < 2.5 / < 2.5 %",
            "omnilearn",
            moves(OMNILEARN, 0.02, "growth", "{:+.0%}".format),
            "simulated: bounds 12 to 96; OmniLearn, noise 2 %",
            "our large worker is eight times as fast as the smallest, the paper's does not use all of its cores",
        ),
        Row(
            "section IV-E",
            "share of the time saved at levels that stay: the same models",
            "at most 1.8 / 8.6 / 2.16 / 20.3 h, by fig. 7 and the iterations about "
            + " / ".join(f"{paper_saved(each):.0%}" for each in IMAGE_MODELS),
            "omnilearn",
            saved("HL8", OMNILEARN, "Optimal", ORACLE),
            f"{LEVELS_SIMULATED}; HL8",
            OTHER_MACHINES,
        ),
        Row(
            "fig. 9",
            "32 workers, batches at 2 / 4 / 6 / 16 / 32 cores; spread of times over that of equal batches",
            "batches follow the cores, and times come together; drawn only",
            "omnilearn",
            batches_of_many,
            f"{LEVELS_SIMULATED}; OmniLearn on ResNet-18; AlexNet",
        ),
        Row(
            "fig. 9",
            "32 workers: time saved against equal batches, ResNet-18 / AlexNet",
            "drawn only",
            "omnilearn",
            saved(MANY, OMNILEARN, "Optimal", ORACLE, workloads=("resnet18", "alexnet")),
            LEVELS_SIMULATED,
        ),
        Row(
            "figs 10, 11",
            "time to accuracy saved while levels change: the same models",
            "27.9 / 22.7 / 29.3 / 12.8 %",
            "omnilearn",
            saved(DYNAMIC, OMNILEARN, "Optimal", UNSEEN, ORACLE),
            f"{LEVELS_SIMULATED}; levels 1-2-4-8-8-4-2-1, the paper's probable order",
            "time for the same steps, in which the same samples train the same model",
        ),
        Row(
            "fig. 11",
            "time to accuracy saved while levels change: the same models",
            "27.9 / 22.7 / 29.3 / 12.8 %",
            "bsp",
            saved_to_loss("Proportional", "dynamic"),
            f"{BSP}; `Proportional`, levels 1-2-4-8-1",
            f"{OTHER_MACHINES}; the paper decides once an epoch",
        ),
        Row(
            "fig. 13",
            "GPT-2 at HL8: slowest less fastest compute time over that of equal batches",
            "at most 0.53x (12 s, 22.7 s)",
            "omnilearn",
            over_equal(DYNAMIC, "spread", OMNILEARN, "Optimal", UNSEEN, workloads=("gpt",)),
            LEVELS_SIMULATED,
            "a small GPT; the paper's large worker was at its bound of 124",
        ),
        Row(
            "table III",
            "accuracy at HL1 / HL4 / HL8, weighted gradients",
            "95 / 94.54 / 94.03 % (ResNet-18), 88 / 86.6 / 84.65 % (ResNet-50), 70 / 68.6 / 68.15 % (AlexNet), "
            "83 / 81.5 / 79.04 % (VGG-11)",
            "omnilearn_accuracy",
            accuracy_by_level,
            "measured: digits CNN and small GPT at HL1 / HL2 / HL4 / HL8, one process as four workers",
            "in ours a step has the same samples at all levels; no batch norm",
        ),
        Row(
            "table V",
            "points that weighting gains over the plain mean, HL2 / HL4 / HL8",
            "at most +1.9 (ResNet-18), +4.1 (ResNet-50), +10.2 (AlexNet), +7.9 (VGG-11)",
            "omnilearn_accuracy",
            points_by_level("half_way"),
            "the same, half-way through training",
            "all our workers draw from all samples, so the plain mean only adds noise",
        ),
        *(
            Row(
                "table V",
                f"points that weighting gains over the plain mean, HL{level}: the same models",
                points,
                "weighting",
                weighting_points(level, "by label"),
                "measured: digits CNN, 10 epochs, samples split by label, one process as four workers",
                "a smaller model and data set",
            )
            for level, points in tables_measured.WEIGHTING_POINTS.items()
        ),
    ),
    (
        "Table V, AlexNet at HL2: the difference is printed as +4.8; its own columns give +3.8.",
        "Table I: HL8 under ASP is (4, 4, 4, 28), which is 7.",
        "Tables III and V: ResNet-18 at HL8 with weighted gradients is 94.03 % in one and 94.02 % in the other.",
        'Section IV-E: 32 workers take "8 fewer steps" than four; with eight times the global batch it is an eighth.',
    ),
)
