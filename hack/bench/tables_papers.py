"""Tables of what the papers' own mechanisms do here, beside what the papers say of them."""

from __future__ import annotations

from statistics import fmean

from table import NONE, Documents, spread, table

PAPER_SAVING = {16: "37 %", 12: "28 %"}
"""Speed-up of an iteration over equal batches, by workers. Source: LB-BSP, fig. 6a and section 5.2."""

BESIDE = "EMA(0.2)"


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
        rows.append([trace, predictor, f"{error:.4f}", f"{error / usual - 1:+.1%}", f"{seconds:.3f}"])
    headings = ("trace", "predictor", "error of log speed", f"beside {BESIDE}", "iteration over equal batches")
    return table(headings, rows, texts=2)
