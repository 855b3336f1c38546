"""The papers' figures as data, each with ours beside it: a row is added here, its results to `hack/bench/results`.

What the papers only draw is given as far as their text says it. *Ours* is a function of recorded results
(`tables_papers.py`), or nothing: then the page says that it is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import ours_omnilearn as omnilearn
import tables_omnilearn as named
import tables_papers as ours
import tables_rivals
import tables_scaling
from table import Documents
from tables_papers import Paper, Row
from tables_taming import TAMING

NOT_MEASURED = "not measured"

HEADINGS = ("place", "what", "the paper", "ours", "how ours was found", "why they differ")


OTHER_MACHINES = "other models, data and machines"
BSP = "measured: four CPU workers that share 1.5 cores"
LEVELS_SIMULATED = "simulated: times fitted to those CPU workers, noise 5 %, epochs of 60 steps"
BY_GPUS = "simulated: four kinds of GPU, equal at the paper's last batches; noise 3 %, interval 1"

PREDICTORS = ("last value", "ARIMA(2,2,1)", "RNN", "LSTM", "NARX", "ARX", "ARX in hindsight")

OMNILEARN = Paper(
    (
        Row(
            "table I",
            "cores of four workers by level",
            "of 48: HL1 (12, 12, 12, 12), HL2 (12, 12, 8, 16), HL4 (9, 9, 6, 24), HL8 (6, 6, 4, 32)",
            "bsp",
            omnilearn.levels_here,
            BSP,
            "the same shares of a smaller machine",
        ),
        Row(
            "fig. 1",
            "time at HL8 over HL1 with equal batches: ResNet-18 / ResNet-50 / AlexNet / VGG-11",
            "3 to 35 h more",
            "bsp",
            ours.iteration_ratio("Uniform", "8", ("Uniform", "1")),
            BSP,
            f"{OTHER_MACHINES}; by cores alone 3x",
        ),
        Row(
            "fig. 4",
            "time at HL8 over HL1 with batches by cores: the same models",
            "less / less / more / more",
            "bsp",
            ours.iteration_ratio("Static", "8", ("Static", "1")),
            BSP,
            "the paper's large workers do not use all of their cores; ours compute in one thread",
        ),
        Row(
            "fig. 6",
            "memory of data and activations at batches of 1 to 1,024",
            "lines",
            "activations",
            omnilearn.off_the_line,
            "counted: what forward keeps for backward, VGG-11, AlexNet, ResNet-18 and GPT",
            "the paper's are measured of processes and loaders",
        ),
        Row(
            "fig. 7",
            "iteration with batches by cores over equal ones, HL8: the same models",
            "0.75x / 0.67x / 0.84x / 0.67x (0.85 to 0.64, 6 to 4, 2.15 to 1.8, 18.7 to 12.5 s)",
            "bsp",
            ours.iteration_ratio("Static", "8", ("Uniform", "8")),
            BSP,
            "the paper's are the densest compute times of all workers, ours whole iterations",
        ),
        Row(
            "fig. 7",
            "slowest less fastest worker of a step over that of equal batches, HL8: the same models",
            "less with each technique; drawn only",
            "omnilearn",
            omnilearn.over_equal(
                "HL8",
                "spread",
                named.STATIC,
                named.WITHOUT_BAND,
                named.OMNILEARN,
                "Optimal",
            ),
            LEVELS_SIMULATED,
        ),
        *(
            Row(
                "fig. 8",
                f"adjustments at HL8 from equal batches, {text}: the same models",
                "2-4 / 2-4 / 10 / 2-4",
                "omnilearn",
                omnilearn.moves(policy, noise, "adjustments", "{:.0f}".format),
                f"simulated: bounds 12 to 96; {policy}, noise {noise:.0%}",
                why,
            )
            for policy, noise, text, why in (
                (named.OMNILEARN, 0.02, "without eq. 8", "the paper does not say how noisy its machine was"),
                (
                    named.OMNILEARN,
                    0.10,
                    "without eq. 8",
                    "noise alone exceeds the dead-band again and again",
                ),
                ("Optimal", 0.10, "global batch fixed", "it weighs noise, and moves once it knows the workers"),
            )
        ),
        Row(
            "fig. 8",
            "adjustments at HL8 from equal batches, global batch fixed: the same models",
            "2-4 / 2-4 / 10 / 2-4",
            "bsp",
            ours.adjustments("Proportional", "8"),
            f"{BSP}; `Proportional`",
            "the paper's global batch is free, its bounds are 12 to 96",
        ),
        Row(
            "fig. 8",
            "growth of the global batch without eq. 8: the same models",
            "< 2.5 / 12 / < 2.5 / < 2.5 %",
            "omnilearn",
            omnilearn.moves(named.OMNILEARN, 0.02, "growth", "{:+.0%}".format),
            "simulated: bounds 12 to 96; OmniLearn, noise 2 %",
            "our large worker is eight times as fast as the smallest, the paper's does not use all of its cores",
        ),
        Row(
            "section IV-E",
            "share of the time saved at levels that stay: the same models",
            "at most 1.8 / 8.6 / 2.16 / 20.3 h, by fig. 7 and the iterations about "
            + " / ".join(f"{named.paper_saved(each):.0%}" for each in named.IMAGE_MODELS),
            "omnilearn",
            omnilearn.saved("HL8", named.OMNILEARN, "Optimal", named.ORACLE),
            f"{LEVELS_SIMULATED}; HL8",
            OTHER_MACHINES,
        ),
        Row(
            "fig. 9",
            "32 workers, batches at 2 / 4 / 6 / 16 / 32 cores; spread of times over that of equal batches",
            "batches follow the cores, and times come together; drawn only",
            "omnilearn",
            omnilearn.batches_of_many,
            f"{LEVELS_SIMULATED}; OmniLearn on ResNet-18; AlexNet",
        ),
        Row(
            "fig. 9",
            "32 workers: time saved against equal batches, ResNet-18 / AlexNet",
            "drawn only",
            "omnilearn",
            omnilearn.saved(
                named.MANY,
                named.OMNILEARN,
                "Optimal",
                named.ORACLE,
                workloads=("resnet18", "alexnet"),
            ),
            LEVELS_SIMULATED,
        ),
        Row(
            "figs 10, 11",
            "time to accuracy saved while levels change: the same models",
            "27.9 / 22.7 / 29.3 / 12.8 %",
            "omnilearn",
            omnilearn.saved(
                named.DYNAMIC,
                named.OMNILEARN,
                "Optimal",
                named.UNSEEN,
                named.ORACLE,
            ),
            f"{LEVELS_SIMULATED}; levels 1-2-4-8-8-4-2-1, the paper's probable order",
            "time for the same steps, in which the same samples train the same model",
        ),
        Row(
            "fig. 11",
            "time to accuracy saved while levels change: the same models",
            "27.9 / 22.7 / 29.3 / 12.8 %",
            "bsp",
            ours.saved_to_loss("Proportional", "dynamic"),
            f"{BSP}; `Proportional`, levels 1-2-4-8-1",
            f"{OTHER_MACHINES}; the paper decides once an epoch",
        ),
        Row(
            "fig. 13",
            "GPT-2 at HL8: slowest less fastest compute time over that of equal batches",
            "at most 0.53x (12 s, 22.7 s)",
            "omnilearn",
            omnilearn.over_equal(
                named.DYNAMIC,
                "spread",
                named.OMNILEARN,
                "Optimal",
                named.UNSEEN,
                workloads=("gpt",),
            ),
            LEVELS_SIMULATED,
            "a small GPT; the paper's large worker was at its bound of 124",
        ),
        Row(
            "table III",
            "accuracy at HL1 / HL4 / HL8, weighted gradients",
            "95 / 94.54 / 94.03 % (ResNet-18), 88 / 86.6 / 84.65 % (ResNet-50), 70 / 68.6 / 68.15 % (AlexNet), "
            "83 / 81.5 / 79.04 % (VGG-11)",
            "omnilearn_accuracy",
            omnilearn.accuracy_by_level,
            "measured: digits CNN and small GPT at HL1 / HL2 / HL4 / HL8, one process as four workers",
            "in ours a step has the same samples at all levels; no batch norm",
        ),
        Row(
            "table V",
            "points that weighting gains over the plain mean, HL2 / HL4 / HL8",
            "at most +1.9 (ResNet-18), +4.1 (ResNet-50), +10.2 (AlexNet), +7.9 (VGG-11)",
            "omnilearn_accuracy",
            omnilearn.points_by_level("half_way"),
            "the same, half-way through training",
            "all our workers draw from all samples, so the plain mean only adds noise",
        ),
        *(
            Row(
                "table V",
                f"points that weighting gains over the plain mean, HL{level}: the same models",
                points,
                "weighting",
                ours.weighting_points(level, "by label"),
                "measured: digits CNN, 10 epochs, samples split by label, one process as four workers",
                "a smaller model and data set",
            )
            for level, points in ours.tables_measured.WEIGHTING_POINTS.items()
        ),
    ),
    (
        "Table V, AlexNet at HL2: the difference is printed as +4.8; its own columns give +3.8.",
        "Table I: HL8 under ASP is (4, 4, 4, 28), which is 7.",
        "Tables III and V: ResNet-18 at HL8 with weighted gradients is 94.03 % in one and 94.02 % in the other.",
        'Section IV-E: 32 workers take "8 fewer steps" than four; with eight times the global batch it is an eighth.',
    ),
)

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
    ),
)

PAPERS: Mapping[str, Paper] = {"taming": TAMING, "omnilearn": OMNILEARN, "lbbsp": LBBSP, "elasticity": ELASTICITY}

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
