"""Tables of what was measured on machines: one function for each benchmark's document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from table import (
    NONE,
    OWN_POLICY,
    UNIFORM,
    Document,
    Documents,
    digits,
    measured_on,
    milliseconds,
    percent,
    rate,
    spread,
    table,
)

ALONE = "GPU alone"
LEVELS = ("1", "2", "4", "8", "dynamic", "interference")

GOALS: Mapping[str, Mapping[str, float]] = {"8": {"ceiling_fraction_all": 0.90, "ceiling_fraction_settled": 0.97}}
"""Least shares of the ceiling that the own policy is to reach, by level: from the first step on, and after the last
adjustment.
"""

EPOCHS = (2, 5)
"""After which the accuracy of weighted and plain averaging is shown, beside that after the last one."""

WEIGHTING_POINTS: Mapping[int, str] = {
    2: "+1.3 / +1.7 / +3.8 / +3.0",
    4: "+0.8 / +2.3 / +7.9 / +5.9",
    8: "+1.9 / +4.1 / +10.2 / +7.9",
}
"""By level, ResNet18 / ResNet50 / AlexNet / VGG11. Source: OmniLearn, table V, from its two columns of accuracy."""


def by_policy(trials: Documents) -> dict[str, list[Document]]:
    """The rounds of each policy."""
    found: dict[str, list[Document]] = {}
    for trial in trials:
        found.setdefault(trial["policy"], []).append(trial)
    return found


def ratios(trials: Documents, base: Documents, figure: str) -> list[float]:
    """A figure over that of the base in the same round; a round that ran before and after has the base's median."""
    rounds: dict[int, list[float]] = {}
    for trial in base:
        if trial[figure]:
            rounds.setdefault(trial["round"], []).append(trial[figure])
    return [
        trial[figure] / median(rounds[trial["round"]]) for trial in trials if trial[figure] and trial["round"] in rounds
    ]


def _notes(documents: Documents) -> str:
    """Machines, and what the runs themselves doubt."""
    lines = [measured_on(documents)]
    runs = dict.fromkeys((each["rounds"], each["steps"]) for each in documents)
    lines.append(f"Runs of each trial: {' and '.join(f'{rounds} x {steps} steps' for rounds, steps in runs)}.")
    for each in documents:
        name = f"{each['workload']} {each.get('level', each.get('precision', ''))}"
        if each.get("emulated"):
            lines.append(f"* Emulated, no measure of compute: {name}.")
        if doubts := each.get("warnings", []):
            lines.append(f"* Doubtful, {name}: {doubts[0]}" + (f" (and {len(doubts) - 1} more)" if doubts[1:] else ""))
    return "\n".join(lines)


def saved(documents: Documents) -> str:
    """Time saved until the same loss against equal batches: a row for each workload, a column for each level."""
    found = {(each["workload"], each["level"]): by_policy(each["arms"]) for each in documents}

    def cell(workload: str, level: str) -> str:
        policies = found.get((workload, level), {})
        base = policies.get(UNIFORM, [])
        shares = [
            [1 - ratio for ratio in ratios(policies[name], base, "target_seconds")]
            for name in (OWN_POLICY, "Proportional", "Static")
            if name in policies
        ]
        return " / ".join(percent(median(each)) if each else NONE for each in shares) or NONE

    workloads = dict.fromkeys(workload for workload, _ in found)
    return table(("workload", *LEVELS), ([each, *(cell(each, level) for level in LEVELS)] for each in workloads))


def bsp(documents: Documents) -> str:
    """A row for each workload, level and policy, then one for each phase where something changed."""
    rows, phases = [], []
    for document in documents:
        policies = by_policy(document["arms"])
        for policy, trials in policies.items():
            shares = [1 - ratio for ratio in ratios(trials, policies.get(UNIFORM, []), "target_seconds")]
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
                    spread((trial["target_seconds"] for trial in trials), "{:.1f} s".format),
                    NONE if policy == UNIFORM else spread(shares, percent),
                    spread((trial.get("adjustments") for trial in trials), digits(0)),
                ]
            )
            phases += _phases(document["workload"], policy, trials)
    headings = ("workload", "level", "policy", "samples/s", "iteration", "of ceiling", "settled steps", "all steps")
    parts = [table((*headings, "to the loss", "time saved", "adjustments"), rows, texts=3)]
    if phases:
        parts.append(table(("workload", "policy", "phase", "samples/s", "of ceiling", "all steps"), phases, texts=3))
    goals = [line for document in documents for line in _goals(document)]
    return "\n\n".join([*parts, *(["\n".join(goals)] if goals else []), _notes(documents)])


def _phases(workload: str, policy: str, trials: Documents) -> list[list[str]]:
    figures = ("samples_per_second", rate), ("ceiling_fraction", percent), ("ceiling_fraction_all", percent)
    return [
        [workload, policy, parts[0]["label"], *(spread((part[name] for part in parts), form) for name, form in figures)]
        for parts in zip(*(trial["phases"] for trial in trials), strict=False)
    ]


def _goals(document: Document) -> list[str]:
    """For each goal of a setting whether the own policy's median reaches it; nothing where it was not measured."""
    lines = []
    for figure, least in GOALS.get(document["level"], {}).items():
        known = [value for each in document["arms"] if each["policy"] == OWN_POLICY and (value := each.get(figure))]
        if known:
            verdict = "reached" if median(known) >= least else "missed"
            where = "all steps" if figure == "ceiling_fraction_all" else "settled steps"
            name = f"{document['workload']} {document['level']}"
            lines.append(
                f"* Goal of {percent(least)} of the ceiling over {where}, {name}: {verdict}, {spread(known, percent)}."
            )
    return lines


def gpu(documents: Documents) -> str:
    """A row for each precision and policy."""
    rows = []
    for document in documents:
        policies = by_policy(document["arms"])
        base = policies.get(ALONE, [])
        for policy, trials in policies.items():
            over = spread(ratios(trials, base, "samples_per_second"), "{:.2f}x".format)
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
                    NONE if trials is base else over,
                ]
            )
    headings = ("workload", "device", "precision", "policy", "samples/s", "iteration", "batches, GPU first")
    return "\n\n".join([table((*headings, "of ceiling", "over GPU alone"), rows, texts=4), _notes(documents)])


def weighting(documents: Documents) -> str:
    """A row for each level, split and number of epochs."""
    rows = []
    for document in documents:
        outcomes = document["outcomes"]
        epochs = sorted({*(each for each in EPOCHS if each < document["epochs"]), document["epochs"]})
        for level, split in dict.fromkeys((each["level"], each["split"]) for each in outcomes):
            rows += [_weighted(outcomes, level, split, after) for after in epochs]
    headings = ("level", "split", "epochs", "weighted", "plain mean", "difference, points", "OmniLearn, table V")
    return "\n\n".join([table(headings, rows, texts=2), measured_on(documents)])


def _weighted(outcomes: Documents, level: int, split: str, epochs: int) -> list[str]:
    weighted, plain = (
        {
            each["seed"]: each["accuracies"][epochs - 1]
            for each in outcomes
            if (each["level"], each["split"], each["rule"]) == (level, split, rule)
        }
        for rule in ("weighted", "plain")
    )
    points = [100 * (accuracy - plain[seed]) for seed, accuracy in weighted.items()]
    accuracies = (spread(each.values(), "{:.1%}".format) for each in (weighted, plain))
    return [f"HL{level}", split, str(epochs), *accuracies, spread(points, digits(1, "+")), WEIGHTING_POINTS[level]]


def overhead(documents: Documents) -> str:
    """A row for each figure."""
    parts = []
    for document in documents:
        rows = [
            [
                each["figure"],
                *(_quartiles(each[loop], each[f"{loop}_quartiles"]) for loop in ("plain", "heterotrain")),
                f"{each['cost']:+.2%}",
                f"{each['cost_interval'][0]:+.2%} .. {each['cost_interval'][1]:+.2%}",
                f"{each['noise']:.2%}",
            ]
            for each in document["comparisons"]
        ]
        headings = ("per step", "plain DDP, ms", "heterotrain, ms", "cost", "95 % interval", "noise")
        parts.append(table(headings, rows))
        parts.append(measured_on([document]))
    return "\n\n".join(parts)


def _quartiles(middle: float, quartiles: Sequence[float]) -> str:
    form = digits(1 if middle >= 0.02 else 2)
    return f"{form(1e3 * middle)} ({form(1e3 * quartiles[0])}..{form(1e3 * quartiles[1])})"


def transition(documents: Documents) -> str:
    """A row for each kind of change and number of workers."""
    return "\n\n".join(map(_transition, documents))


def _transition(document: Document) -> str:
    rows = []
    for what, workers in dict.fromkeys((each["what"], each["workers"]) for each in document["transitions"]):
        of_kind = [each for each in document["transitions"] if (each["what"], each["workers"]) == (what, workers)]
        idle, goal = [each["idle"] for each in of_kind], of_kind[0]["goal"]
        rows.append(
            [
                what,
                workers,
                len(of_kind),
                *(milliseconds(each) for each in (median(each["step"] for each in of_kind), median(idle), max(idle))),
                NONE if goal is None else milliseconds(goal),
                *(max(each[name] for each in of_kind) for name in ("lost", "repeated")),
            ]
        )
    headings = ("change", "workers", "times", "step", "idle, median", "longest", "goal", "samples lost", "repeated")
    return table(headings, rows) + "\n\n" + measured_on([document])


def chaos(documents: Documents) -> str:
    """How many jobs ended as they should, and under which faults."""
    return "\n\n".join(map(_chaos, documents))


def _chaos(document: Document) -> str:
    runs = document["runs"]
    faults = Counter(fault["verb"] for run in runs for fault in run["planned"])
    worst = max((run["difference"] for run in runs if run["difference"] is not None), default=float("nan"))
    failed = ", ".join(map(str, document["failed"])) or "none"
    summary = (
        f"{len(runs)} jobs of {document['setting']['workers']} workers, {faults.total()} faults. Jobs that did not end "
        f"as the undisturbed run, by seed: {failed}. Weights differ from its by {worst:.0e} at most."
    )
    return "\n\n".join([table(("fault", "times"), sorted(faults.items())), summary, measured_on([document])])


def replacement(documents: Documents) -> str:
    """How long those that stay stood still, and the events, with seconds since the slowdown."""
    return "\n\n".join(map(_replacement, documents))


def _replacement(document: Document) -> str:
    stood = "; ".join(
        f"`{each['worker']}` {milliseconds(max(each['idle_seconds'], 0))} beyond its usual step of "
        f"{milliseconds(each['usual_step_seconds'])}"
        for each in document["survivors"]
    )
    machine = document["machine"]
    summary = (
        f"Kubernetes {document['kubernetes']}, {machine['cpus']} CPUs, load {machine['load']:g}. At the swap those "
        f"that stay stood still: {stood}. The last step of `{document['straggler']}` was "
        f"{document['last_step_of_straggler']}, the first one of `{document['newcomer']}` "
        f"{document['first_step_of_newcomer']}; restarts of the job: {document['restarts']}."
    )
    events = [f"{each['seconds']:5.0f} s  {each['reason']}: {each['message']}" for each in document["events"]]
    return "\n\n".join([summary, "\n".join(["```text", *events, "```"])])
