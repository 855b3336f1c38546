"""Tables of what the papers' own mechanisms do here, beside what the papers say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import tables_measured
from table import NONE, UNIFORM, Document, Documents, measured_on, milliseconds, spread, table

PAPER_SAVING = {16: "37 %", 12: "28 %"}
"""Speed-up of an iteration over equal batches, by workers. Source: LB-BSP, fig. 6a and section 5.2."""

BESIDE = "EMA(0.2)"

PAPER_PREDICTORS = {
    "last value": (11.85, 0.58),
    BESIDE: (7.85, 0.48),
    "ARIMA(2,2,1)": (9.67, 0.52),
    "NARX": (4.78, 0.42),
}
"""Error and iteration over that of equal batches. Source: LB-BSP, table 3."""


def lbbsp(documents: Documents) -> str:
    """A row for each setting: where LB-BSP's steps towards balance come to rest, and when."""
    runs = [run for document in documents for run in document["runs"]]
    rows = []
    for setting in dict.fromkeys((run["workers"], run["interval"], run["noise"]) for run in runs):
        mine = [run for run in runs if (run["workers"], run["interval"], run["noise"]) == setting]
        workers, interval, noise = setting
        rows.append(
            [
                workers,
                interval,
                f"{noise:.0%}",
                spread([run["fine_step"] for run in mine], "{:.0f}".format),
                spread([run["off"] for run in mine], "{:.0f}".format),
                spread([run["excess_after_change"] for run in mine], "{:.1%}".format),
                spread([1 / (1 - run["saved"]) - 1 for run in mine], "{:.0%}".format),
                PAPER_SAVING.get(workers, NONE),
            ]
        )
    headings = ("workers", "interval", "noise", "single samples from step", "samples off at rest")
    more = ("slowest over mean after a change", "faster than equal batches", "the paper")
    return table((*headings, *more), rows, texts=0)


def predictors(documents: Documents) -> str:
    """A row for each kind of trace and predictor."""
    scores = [score for document in documents for score in document["scores"]]
    rows = []
    for trace, predictor in dict.fromkeys((score["trace"], score["predictor"]) for score in scores):
        error, seconds, usual = (
            fmean(each[figure] for each in scores if (each["trace"], each["predictor"]) == (trace, name))
            for figure, name in (("error", predictor), ("iteration_seconds", predictor), ("error", BESIDE))
        )
        paper, paper_seconds = PAPER_PREDICTORS.get(predictor, (None, None))
        beside = NONE if paper is None else f"{paper / PAPER_PREDICTORS[BESIDE][0] - 1:+.0%}"
        own = f"{error / usual - 1:+.1%}"
        rows.append([trace, predictor, f"{error:.4f}", own, beside, f"{seconds:.3f}", paper_seconds or NONE])
    figures = ("error of log speed", f"beside {BESIDE}", "the paper", "iteration over equal batches", "the paper")
    return table(("trace", "predictor", *figures), rows, texts=2)


def by_batch(documents: Documents) -> str:
    """A row for each device and model: the line that fits best, and the throughput by batch."""
    rows = [
        [
            document["device"],
            each["model"],
            *(f"{figure:.0%}" for figure in _line(each)),
            " / ".join(f"{rate:.2f}" for rate in _throughputs(each)),
        ]
        for document in documents
        for each in document["curves"]
    ]
    batches = " / ".join(map(str, documents[0]["curves"][0]["batches"]))
    headings = ("device", "model", "fixed part at 32 samples", "farthest from the line", f"throughput at {batches}")
    return table(headings, rows, texts=2)


def _line(curve: Document) -> tuple[float, float]:
    """The fixed part of the time at 32 samples, and the greatest relative distance of a time, from the line that is
    nearest to all times by ratio.
    """
    batches, seconds = (np.array(curve[name], dtype=float) for name in ("batches", "seconds"))
    slope, fixed = np.polyfit(batches, seconds, 1, w=1 / seconds)
    return float(fixed / (fixed + 32 * slope)), float(np.abs((fixed + slope * batches) / seconds - 1).max())


def _throughputs(curve: Document) -> list[float]:
    """Samples per second over the most, by batch."""
    rates = [batch / seconds for batch, seconds in zip(curve["batches"], curve["seconds"], strict=True)]
    return [rate / max(rates) for rate in rates]


Ours = Callable[[Documents], str | None]
"""What stands beside a paper's figure, from the results of one benchmark; None where they lack it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure or table of a paper: its place, what it shows, and the paper's value.

    `benchmark` is the kind of results that `ours` is given, all documents of it; `setting` begins with *simulated* or
    *measured*.
    """

    place: str
    what: str
    paper: str
    benchmark: str = ""
    ours: Ours | None = None
    setting: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper's rows in its own order, and where it slips: what its own text, figures or arithmetic contradict."""

    rows: tuple[Row, ...]
    slips: tuple[str, ...] = ()


IMAGE_MODELS = ("resnet18", "resnet50", "alexnet", "vgg11")
"""OmniLearn's, in the order of its tables."""


def listed(values: Sequence[float | None], form: Callable[[float], str]) -> str | None:
    """One value for each of the paper's models or settings, if any is known."""
    if all(value is None for value in values):
        return None
    return " / ".join(NONE if value is None else form(value) for value in values)


def saved_to_loss(policy: str, level: str, workloads: Sequence[str] = IMAGE_MODELS) -> Ours:
    """Time saved by a policy until the same loss, against equal batches, by workload. Of `bsp`."""

    def ours(documents: Documents) -> str | None:
        found = {}
        for each in documents:
            arms = tables_measured.by_policy(each["arms"])
            if each["level"] == level and policy in arms:
                ratios = tables_measured.ratios(arms[policy], arms[UNIFORM], "target_seconds")
                found[each["workload"]] = 1 - median(ratios) if ratios else None
        return listed([found.get(name) for name in workloads], "{:.0%}".format)

    return ours


def iteration_ratio(policy: str, level: str, of: tuple[str, str], workloads: Sequence[str] = IMAGE_MODELS) -> Ours:
    """An iteration under a policy at a level over that of another policy and level, by workload. Of `bsp`."""

    def ours(documents: Documents) -> str | None:
        def seconds(workload: str, name: str, at: str) -> float | None:
            known = [
                trial["iteration_seconds"]
                for each in documents
                if (each["workload"], each["level"]) == (workload, at)
                for trial in each["arms"]
                if trial["policy"] == name
            ]
            return median(known) if known else None

        pairs = [(seconds(name, policy, level), seconds(name, *of)) for name in workloads]
        return listed([own / base if own and base else None for own, base in pairs], "{:.2f}x".format)

    return ours


def adjustments(policy: str, level: str, workloads: Sequence[str] = IMAGE_MODELS) -> Ours:
    """Plans until batches rest, by workload. Of `bsp`."""

    def ours(documents: Documents) -> str | None:
        found = {
            each["workload"]: [trial["adjustments"] for trial in each["arms"] if trial["policy"] == policy]
            for each in documents
            if each["level"] == level
        }
        return listed([median(found[name]) if found.get(name) else None for name in workloads], "{:.0f}".format)

    return ours


def weighting_points(level: int, split: str) -> Ours:
    """Points of accuracy that weighting gains over the plain mean after the last epoch. Of `weighting`."""

    def ours(documents: Documents) -> str | None:
        weighted, plain = (
            {
                each["seed"]: each["accuracies"][-1]
                for document in documents
                for each in document["outcomes"]
                if (each["level"], each["split"], each["rule"]) == (level, split, rule)
            }
            for rule in ("weighted", "plain")
        )
        return spread([100 * (accuracy - plain[seed]) for seed, accuracy in weighted.items()], "{:+.1f}".format)

    return ours


def steps_to_balance(workers: int, figure: str, form: Callable[[float], str]) -> Ours:
    """A figure of LB-BSP's steps towards balance, one sample of noise 3 % at an interval of 1. Of `lbbsp`."""

    def ours(documents: Documents) -> str | None:
        runs = [run for document in documents for run in document["runs"]]
        key = (workers, 1, 0.03)
        return spread((run[figure] for run in runs if (run["workers"], run["interval"], run["noise"]) == key), form)

    return ours


def predicted(figure: str, names: Sequence[str], trace: str, form: Callable[[float], str]) -> Ours:
    """A figure of predictors over that of EMA(0.2), on one kind of trace. Of `predictors`."""

    def ours(documents: Documents) -> str | None:
        scores = [score for document in documents for score in document["scores"] if score["trace"] == trace]
        means = {
            name: fmean(score[figure] for score in scores if score["predictor"] == name)
            for name in {score["predictor"] for score in scores}
        }
        return listed([means[name] / means[BESIDE] if name in means else None for name in names], form)

    return ours


def slowed(way: str, figure: str, form: Callable[[float], str]) -> Ours:
    """A figure of jobs with workers slowed 4, 2 and 1.33 times, by what is done about them. Of `elastic`."""

    def ours(documents: Documents) -> str | None:
        rows = {(row["way"], row["slowdown"]): row for document in documents for row in document["rows"]}
        return listed([rows.get((way, by), {}).get(figure) for by in (4.0, 2.0, 1.33)], form)

    return ours


def standstill(what: str, workers: int = 8) -> Ours:
    """How long those that stay stand still, median and range. Of `transition`."""

    def ours(documents: Documents) -> str | None:
        known = [
            each["idle"]
            for document in documents
            for each in document["transitions"]
            if (each["what"], each["workers"]) == (what, workers)
        ]
        return spread(known, milliseconds) if known else None

    return ours


def seconds_until(reason: str) -> Ours:
    """Seconds from when a worker is slow until an event. Of `replacement`."""

    def ours(documents: Documents) -> str | None:
        return spread(
            (each["seconds"] for document in documents for each in document["events"] if each["reason"] == reason),
            "{:.0f} s".format,
        )

    return ours


def settled_over_best(case: str, workers: int, policies: Sequence[str]) -> Ours:
    """Settled time over the best split's in a simulated case. Of `simulated`."""

    def ours(documents: Documents) -> str | None:
        rows = {
            row["policy"]: row["settled"]
            for document in documents
            for row in document["rows"]
            if (row["case"], row["workers"]) == (case, workers)
        }
        return listed([rows.get(policy) for policy in policies], "{:.2f}x".format)

    return ours


def line_by_batch(device: str) -> Ours:
    """The fixed part of a step with 32 samples, and how far times are from a line, by model. Of `by_batch`."""

    def ours(documents: Documents) -> str | None:
        curves = [each for document in documents if document["device"] == device for each in document["curves"]]
        lines = [f"{each['model']} {fixed:.0%}, {off:.0%}" for each in curves for fixed, off in [_line(each)]]
        return "; ".join(lines) or None

    return ours


def throughput_by_batch(model: str, device: str) -> Ours:
    """Samples per second over the most, by batch. Of `by_batch`."""

    def ours(documents: Documents) -> str | None:
        curves = [each for document in documents if document["device"] == device for each in document["curves"]]
        return next((listed(_throughputs(each), "{:.2f}".format) for each in curves if each["model"] == model), None)

    return ours


def exchange_shares(workers: int, step_seconds: float) -> Ours:
    """Shares of a step that the leader's training thread, all its threads and another worker's take. Of `exchange`."""

    def ours(documents: Documents) -> str | None:
        runs = [run for document in documents for run in document["runs"]]
        found = [run for run in runs if (run["workers"], run["step_seconds"]) == (workers, step_seconds)]
        if not found:
            return None
        leader, others = found[0]["leader"], found[0]["others"]
        shares = (leader["training_cpu_seconds"], leader["cpu_seconds"], others["cpu_seconds"])
        return "{:.2%} of the leader's training thread, {:.1%} of all its threads, {:.1%} of another worker's".format(
            *(share / step_seconds for share in shares)
        )

    return ours


def exchange(documents: Documents) -> str:
    """A row for each number of workers and length of steps: what control and exchange cost."""
    rows = []
    for run in sorted((run for document in documents for run in document["runs"]), key=lambda run: run["workers"]):
        length = run["step_seconds"]
        cells = [
            f"{1e3 * seconds:.2f} ms, {seconds / length:.2%}"
            for seconds in (
                run["leader"]["training_cpu_seconds"],
                run["leader"]["cpu_seconds"],
                run["others"]["cpu_seconds"],
            )
        ]
        rows.append([run["workers"], f"{length:g} s", *cells, f"{1e3 * run['leader']['exchange_seconds']:.0f} ms"])
    headings = ("workers", "iteration", "the leader's training thread", "all its threads", "another worker's")
    return f"{table((*headings, 'an exchange under way'), rows, texts=0)}\n\n{measured_on(documents)}"
