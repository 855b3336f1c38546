"""The papers' figures as data, each with ours beside it: a row is added here, its results to `hack/bench/results`.

What the papers only draw is given as far as their text says it. *Ours* is a function of recorded results
(`tables_papers.py`), or nothing: then the page says that it is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import ours_omnilearn
import tables_papers as ours
import tables_rivals
import tables_scaling
from table import Documents
from tables_papers import Paper, Row
from tables_taming import TAMING

NOT_MEASURED = "not measured"

HEADINGS = ("place", "what", "the paper", "ours", "how ours was found", "why they differ")


BY_GPUS = "simulated: four kinds of GPU, equal at the paper's last batches; noise 3 %, interval 1"

PREDICTORS = ("last value", "ARIMA(2,2,1)", "RNN", "LSTM", "NARX", "ARX", "ARX in hindsight")

LBBSP = Paper(
    (
        Row(
            "fig. 1",
            "own time by batch on CPUs: fixed part at 32 samples, farthest from a line",
            "lines through 0",
            "by_batch",
            ours.line_by_batch("cpu"),
            "measured: CPU time of one thread, 1 to 128 samples",
            "small models with an optimizer's step, which no batch makes longer",
        ),
        Row("fig. 2", "speed by what is left of CPU and memory", "falls with either; drawn only"),
        Row(
            "fig. 4",
            "own time by batch on GPUs: fixed part at 32 samples, farthest from a line",
            "lines above a fixed part",
            "by_batch",
            ours.line_by_batch("cuda"),
            "measured: one GPU, 1 to 128 samples",
        ),
        *(
            Row(
                "fig. 6a" if workers == 16 else "section 5.1",
                f"iteration time saved against equal batches, {workers} GPUs",
                saving,
                "lbbsp",
                ours.steps_to_balance(workers, "saved", "{:.0%}".format),
                BY_GPUS,
                "the paper's is ResNet-32 and holds communication; ours is fitted to its Inception-V3 (fig. 8)",
            )
            for workers, saving in ours.PAPER_SAVING.items()
        ),
        Row("fig. 6b", "updates to the same accuracy under ASP, SSP over BSP", "4.76x, 2.05x at most"),
        Row("fig. 6c", "time to accuracy saved against the second best", "54 % at most"),
        Row(
            "fig. 8",
            "samples off (89, 21, 12, 6) at rest",
            "0",
            "lbbsp",
            ours.steps_to_balance(4, "off", "{:.0f}".format),
            BY_GPUS,
        ),
        Row(
            "fig. 8",
            "single samples from iteration",
            "30",
            "lbbsp",
            ours.steps_to_balance(4, "fine_step", "{:.0f}".format),
            BY_GPUS,
            "ours is fitted to the batches at rest alone; the paper's times are only drawn",
        ),
        Row(
            "fig. 8",
            "slowest over mean once one worker is slower and batches rest again",
            "equal; drawn only",
            "lbbsp",
            ours.steps_to_balance(4, "excess_after_change", "{:.1%}".format),
            BY_GPUS,
            "the paper slows a link at iteration 150, ours a worker",
        ),
        Row(
            "fig. 9",
            "iteration time saved against equal batches, 32 CPU workers: SVM, ResNet-32",
            "62 %, 58 %",
            "rivals",
            tables_rivals.saved(tables_rivals.LITERAL, "BSP"),
            "simulated: Cluster-B's machines with neighbours that come and go",
            "the paper's neighbours come from a trace that it does not publish",
        ),
        Row(
            "fig. 9",
            "iteration time saved against FlexRR: SVM, ResNet-32",
            "38.7 % at most",
            "rivals",
            tables_rivals.saved(tables_rivals.LITERAL, tables_rivals.FLEXRR),
            "simulated: the same, without neighbours 22 % and 22 %",
            "help costs nothing here, and comes 100 times in a step",
        ),
        Row("fig. 10", "the prediction ignores spikes and follows what usage explains", "drawn only"),
        Row(
            "fig. 11",
            "share of an iteration for control and exchange, 96 workers",
            "< 1.1 %",
            "exchange",
            ours.exchange_shares(96, 1.0),
            "measured: real messages between processes that do not train, steps of 1 s",
            "heartbeats and metrics beside training; two cores hold all workers",
        ),
        Row(
            "table 3",
            "error over EMA(0.2)'s: last value / ARIMA / RNN / LSTM / NARX / our ARX / that in hindsight",
            "1.51 / 1.23 / 1.06 / 1.17 / 0.61",
            "predictors",
            ours.predicted("error", PREDICTORS, "recorded, on and off", "{:.2f}".format),
            "measured: recorded interference that comes and goes, errors of log speed",
            "the paper's inputs hold the usage of the step itself, as hindsight's do; RNN and LSTM are left out",
        ),
        Row(
            "table 3",
            "iteration over EMA(0.2)'s: the same",
            "1.21 / 1.08 / 1.02 / 1.06 / 0.88",
            "predictors",
            ours.predicted("iteration_seconds", PREDICTORS, "recorded, on and off", "{:.2f}".format),
            "simulated: batches by predicted speed on the recorded times",
            "other traces",
        ),
    ),
    (
        "Section 5.3 speaks of fig. 10 where it means fig. 9, and of a *speedup* of 58 %, which is a reduction: to "
        "0.42 of BSP's iteration, by table 3.",
        "Section 5.4 gives NARX 15 % less iteration time than the second best; table 3 has 0.42 and 0.48, 12.5 % less.",
    ),
)

ELASTICITY = Paper(
    (
        Row(
            "fig. 1",
            "time with one worker in four slowed 4x / 2x / 1.33x and nothing done, over that with none slower",
            "drawn only",
            "elastic",
            ours.slowed("none", "over", "{:+.1%}".format),
            "simulated: 12 workers, of which three become slow one after the other",
        ),
        *tables_scaling.ROWS,
        Row(
            "fig. 9",
            "life of a straggler, from when it is slow until another has taken its place",
            "1 to 2 minutes",
            "replacement",
            ours.seconds_until("WorkerReplaced"),
            "measured: three workers on Kubernetes, two cores",
            "a smaller container image and model",
        ),
        Row(
            "fig. 10",
            "job time saved by replacing stragglers, slowed 4x / 2x / 1.33x",
            "51.4 / 34.1 / 19.9 %",
            "elastic",
            ours.slowed("replace", "reduction", "{:.1%}".format),
            "simulated: 12 workers, of which three become slow",
            "batches are balanced, too, and workers do not join one by one",
        ),
        Row(
            "fig. 10",
            "job time over that without stragglers",
            "12.5 % at most",
            "elastic",
            ours.slowed("replace", "over", "{:.1%}".format),
            "simulated: the same",
        ),
        *(
            Row(
                "table 1",
                f"standstill: {what}, CIFAR-10 / ImageNet",
                paper,
                "transition",
                ours.standstill(kind),
                "measured: eight CPU workers on two cores, a perceptron of 10 million parameters",
                why,
            )
            for what, paper, kind, why in (
                ("a worker joins", "3.18 / 6.81 s", "join", "newcomers have warmed up before"),
                ("a worker leaves", "2.61 / 4.38 s", "leave", "no processes or graphs are built again"),
                (
                    "all restart from a checkpoint",
                    "72.8 / 81.2 s",
                    "restart from a checkpoint",
                    "CPU workers that load no CUDA libraries",
                ),
            )
        ),
    )
)

PAPERS: Mapping[str, Paper] = {
    "taming": TAMING,
    "omnilearn": ours_omnilearn.PAPER,
    "lbbsp": LBBSP,
    "elasticity": ELASTICITY,
}

BENCHMARKS = frozenset(row.benchmark for paper in PAPERS.values() for row in paper.rows if row.benchmark)


def rendered(documents: Documents, name: str) -> str:
    """The table of a paper, and below it the paper's slips."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(_cells(row, documents) for row in PAPERS[name].rows)]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    slips = "\n".join(f"* {slip}" for slip in PAPERS[name].slips)
    return f"{text}\n\nSlips of the paper:\n\n{slips}" if slips else text


def _cells(row: Row, documents: Documents) -> tuple[str, ...]:
    own = [document for document in documents if document["benchmark"] == row.benchmark]
    found = row.ours(own) if row.ours is not None and own else None
    setting, why = (row.setting, row.why) if found is not None else ("", "")
    return row.place, row.what, row.paper, found or NOT_MEASURED, setting, why
