"""Taming's clusters as `taming.py` simulated them: its table, and the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from table import NONE, UNIFORM, Documents, spread, table
from tables_papers import Ours, Paper, Row, listed, settled_over_best, throughput_by_batch

EQUAL = ("equal", UNIFORM)
OTHER_TOTALS = ("fig. 3", "mixed")
"""Clusters that have not as many cores as the equal machines."""

KEY = ("cluster", "workload", "policy", "initial", "dead_band", "noise")


def clusters(documents: Documents) -> str:
    """A row for each cluster, workload and policy with noise, then one for each dead-band and noise."""
    runs = _runs(documents)
    compared, swings = [], []
    for key in dict.fromkeys(tuple(run[name] for name in KEY) for run in runs):
        cluster, workload, policy, initial, band, noise = key
        mine = [run for run in runs if tuple(run[name] for name in KEY) == key]
        moves = [spread((run[name] for run in mine), "{:.0f}".format) for name in ("adjustments", "later_adjustments")]
        if initial != "Static":
            batches = " / ".join(map(str, mine[0]["batches"]))
            swing = spread((run["swing"] for run in mine), "{:.1%}".format)
            swings.append([f"{band:g}", f"{noise:.0%}", *moves, swing, batches])
        elif noise:
            equal = None if cluster in OTHER_TOTALS else _ratio(runs, workload, (cluster, policy), EQUAL)
            times = (equal, _ratio(runs, workload, (cluster, UNIFORM), (cluster, policy)))
            over = spread((run["step_seconds"] / run["oracle_seconds"] for run in mine), "{:.3f}".format)
            ratios = [NONE if each is None else f"{each:.2f}x" for each in times]
            compared.append([cluster, workload, policy, *ratios, over, *moves])
    more = ("adjustments in 200 steps", "later")
    headings = ("cluster", "workload", "policy", "over equal machines", "times equal batches", "over the best split")
    first = table((*headings, *more), compared, texts=3)
    return f"{first}\n\n{table(('dead-band', 'noise', *more, 'swing', 'last batches of a seed'), swings, texts=0)}"


def _runs(documents: Documents) -> Documents:
    return [run for document in documents for run in document["runs"]]


def _ratio(runs: Documents, workload: str, own: tuple[str, str], base: tuple[str, str]) -> float | None:
    """Mean step, with noise, of a cluster and policy over that of another two; None without such runs."""
    seconds = [
        [
            run["step_seconds"]
            for run in runs
            if (run["workload"], run["cluster"], run["policy"]) == (workload, *which)
            and run["initial"] == "Static"
            and run["noise"]
        ]
        for which in (own, base)
    ]
    return fmean(seconds[0]) / fmean(seconds[1]) if all(seconds) else None


def faster(workload: str, clusters: Sequence[str], base: str = UNIFORM) -> Ours:
    """How many times as fast as the base each policy is, by cluster. Of `taming`."""

    def ours(documents: Documents) -> str | None:
        runs = _runs(documents)
        policies = [name for name in dict.fromkeys(run["policy"] for run in runs) if name not in {UNIFORM, base}]
        lines = {
            policy: listed(
                [_ratio(runs, workload, (each, base), (each, policy)) for each in clusters], "{:.2f}x".format
            )
            for policy in policies
        }
        return ", ".join(f"`{policy}` {line}" for policy, line in lines.items() if line)

    return ours


def over_equal(policy: str, workloads: Sequence[str], clusters: Sequence[str]) -> Ours:
    """Time of a step over that of equal machines of the same total, by workload and cluster. Of `taming`."""

    def ours(documents: Documents) -> str | None:
        runs = _runs(documents)
        lines = [
            listed(
                [_ratio(runs, each, (cluster, policy), EQUAL) for cluster in clusters],
                "{:.2f}x".format,
            )
            for each in workloads
        ]
        return ", ".join(line or NONE for line in lines)

    return ours


def of_resnet(figure: str, form: Callable[[float], str], *settings: tuple[str, str, float, float]) -> Ours:
    """A figure of ResNet-50 by cluster, policy, dead-band and noise. Of `taming`."""

    def ours(documents: Documents) -> str | None:
        runs = [run for run in _runs(documents) if run["workload"] == "ResNet-50"]
        keys = ("cluster", "policy", "dead_band", "noise")
        found = [[run[figure] for run in runs if tuple(run[key] for key in keys) == each] for each in settings]
        return "; ".join(spread(each, form) for each in found)

    return ours


def split(documents: Documents) -> str | None:
    """The shares of the batch that floating-point operations per second give a GPU and a CPU. Of `taming`."""
    for run in _runs(documents):
        if (run["cluster"], run["policy"]) == ("mixed", "Static"):
            return " : ".join(f"{batch / sum(run['batches']):.3f}" for batch in run["batches"])
    return None


BY_CORES = "simulated: three workers with 39 cores by Amdahl's law, noise 5 %"
UNDER_LIMITS = "simulated: (3, 5, 12) cores, `PapersProportional` from equal batches"
FITTED = "the law of ours is fitted to the saving at level 10"

TAMING = Paper(
    (
        Row(
            "fig. 1",
            "time with equal batches over equal machines, levels 2 / 6 / 10: ResNet-50, MNIST, regression",
            "drawn only",
            "taming",
            over_equal("Uniform", ("ResNet-50", "MNIST", "regression"), ("2", "6", "10")),
            BY_CORES,
            "by cores alone 1.44x / 3.25x / 6.5x",
        ),
        Row(
            "fig. 3",
            "slowest over fastest own time with (3, 5, 12) cores: equal batches; by cores",
            "drawn only",
            "taming",
            of_resnet("spread", "{:.2f}x".format, ("fig. 3", "Uniform", 0.05, 0.05), ("fig. 3", "Static", 0.05, 0.05)),
            "simulated: (3, 5, 12) cores by Amdahl's law, noise 5 %",
        ),
        Row(
            "fig. 4a",
            "adjustments from equal batches until they rest",
            "2",
            "taming",
            of_resnet(
                "adjustments",
                "{:.0f}".format,
                *(("fig. 3", "PapersProportional", 0.05, noise) for noise in (0.0, 0.05)),
            ),
            f"{UNDER_LIMITS}; without noise; noise 5 %",
            "with noise the rule goes on until no worker's average is 5 % off; the paper does not say how much its has",
        ),
        *(
            Row(
                "fig. 4b",
                f"{what}: no dead-band; 0.05",
                "swings without end; rests",
                "taming",
                of_resnet(figure, form, *(("fig. 3", "PapersProportional", band, 0.05) for band in (0.0, 0.05))),
                f"{UNDER_LIMITS}, noise 5 %",
            )
            for what, figure, form in (
                ("adjustments in 400 steps after the first 200", "later_adjustments", "{:.0f}".format),
                ("swing of the batch that moves most", "swing", "{:.1%}".format),
            )
        ),
        Row(
            "fig. 5b",
            "samples per second of one CPU over the most, at 1 / 2 / 4 / 8 / 16 / 32 / 64 / 128 samples",
            "rises, then falls slowly",
            "by_batch",
            throughput_by_batch("resnet18", "cpu"),
            "measured: ResNet-18, CPU time of one thread",
        ),
        Row(
            "fig. 5",
            "where a larger batch lowers throughput: time over the best split's, `PapersProportional` / `Optimal`",
            "throughput drawn only",
            "simulated",
            settled_over_best("memory cliff, independent 10 %", 3, ("PapersProportional", "Optimal")),
            "simulated: three workers, beyond 40 samples each further one costs much more",
        ),
        Row(
            "fig. 6",
            "ResNet-50, times as fast as equal batches at levels 2 / 10",
            "2x / 2.4x",
            "taming",
            faster("ResNet-50", ("2", "10")),
            BY_CORES,
            "the paper's smallest workers lose more than their cores explain",
        ),
        Row(
            "fig. 6",
            "MNIST, times as fast at levels 2 / 6 / 10",
            "2x to 4x",
            "taming",
            faster("MNIST", ("2", "6", "10")),
            BY_CORES,
            FITTED,
        ),
        Row(
            "fig. 6",
            "regression, times as fast at levels 2 / 6 / 10",
            "1.18x (15 % saved)",
            "taming",
            faster("regression", ("2", "6", "10")),
            BY_CORES,
            FITTED,
        ),
        *(
            Row(
                "fig. 6",
                f"`{policy}` at level 6 over equal machines: ResNet-50, MNIST, regression",
                "2x, 4x, 1.05x",
                "taming",
                over_equal(policy, ("ResNet-50", "MNIST", "regression"), ("6",)),
                BY_CORES,
                "with batches that fit, cores in unequal parts do as much as in equal ones; the paper's do not",
            )
            for policy in ("PapersProportional", "Optimal")
        ),
        Row(
            "fig. 7a",
            "shares of the batch by half-precision FLOPS",
            "0.813 : 0.187",
            "taming",
            split,
            "simulated: `Static`, two workers, 128 samples",
            "whole samples",
        ),
        *(
            Row(
                "fig. 7a",
                f"{workload}, a GPU and a CPU: times as fast as `{base}`",
                paper,
                "taming",
                faster(workload, ("mixed",), base),
                "simulated: a GPU 4.35 times as fast as 48 cores, the laws of fig. 6",
                why,
            )
            for workload, base, paper, why in (
                ("ResNet-50", "Uniform", "> 4x", "no split is more than 2.67x as fast if the GPU is 4.35x as fast"),
                ("MNIST", "Uniform", "1.25x (20 % saved)", ""),
                ("MNIST", "Static", "1.03x", "FLOPS are exact in ours, so nothing is left to correct"),
            )
        ),
        Row("fig. 7b", "ResNet-50 on two T4 and two P4: times as fast as equal batches", "4.5x (90 to 20 min)"),
    ),
    (
        "III-B: `b_k = b0 X_k / sum(X)` lacks the factor K; eq. 3 has a factor 1/K too many.",
        "Fig. 3: by its caption worker 3 is three times as large as worker 1, and that twice as large as worker 2; by "
        "the text they have (3, 5, 12) cores.",
        "Fig. 6: 2x at level 2 is more than the cores (9, 12, 18) allow, 1.44x; and MNIST's 4x over equal machines at "
        "level 6 is more than equal batches would lose there by cores, 3.25x.",
        "Fig. 7a: more than 4x needs a GPU more than 7 times as fast as the CPU; by FLOPS it is 4.35 times.",
    ),
)
