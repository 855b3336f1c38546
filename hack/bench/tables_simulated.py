"""Tables of what was simulated, or decided without any cluster: one function for each benchmark's document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean, median

from table import NONE, OWN_POLICY, Document, Documents, Form, digits, table

CLOSE = 1.05
"""A settled E up to this is near the best split."""

SIMULATED_WORKERS = 8
"""Of the simulated clusters whose figures are shown for all policies."""


def simulated(documents: Documents) -> str:
    """A row for each scenario: all policies with one number of workers, and the own one with all of them."""
    return "\n\n".join(map(_simulated, documents))


def _simulated(document: Document) -> str:
    rows = document["rows"]
    found = {(row["case"], row["workers"], row["policy"]): row for row in rows}
    counts, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("workers", "policy"))
    shown = SIMULATED_WORKERS if SIMULATED_WORKERS in counts else counts[0]

    def each(case: str, figure: str, form: Form) -> str:
        values = [found[case, count, OWN_POLICY][figure] for count in counts if (case, count, OWN_POLICY) in found]
        return " / ".join("never" if value is None else form(value) for value in values) or NONE

    lines = [
        [
            case,
            *(digits(3)(found.get((case, shown, policy), {}).get("settled")) for policy in policies),
            *([each(case, "settled", digits(3))] if len(counts) > 1 else []),
            each(case, "plans_per_100", digits(1)),
            each(case, "close_after", digits(0)),
        ]
        for case in dict.fromkeys(row["case"] for row in rows)
    ]
    sizes = " / ".join(map(str, counts))
    several = [f"{OWN_POLICY}, {sizes} workers"] if len(counts) > 1 else []
    ends = (f"{OWN_POLICY}'s plans per 100 intervals", "its intervals until within 5 %")
    goals = document["goals"]
    missed = [goal for goal in goals if not goal["reached"]]
    notes = [f"Simulated, {_seeds(rows)}: {len(goals) - len(missed)} of {len(goals)} goals are reached."]
    for goal in missed:
        value = "never" if goal["found"] is None else f"{goal['found']:.3f}".rstrip("0").rstrip(".")
        notes.append(f"* Missed: {goal['case']}, {goal['workers']} workers: {goal['text']}, found {value}.")
    headings = ("scenario", *(f"{policy}, {shown} workers" for policy in policies), *several, *ends)
    return table(headings, lines) + "\n\n" + "\n".join(notes)


def policies(documents: Documents) -> str:
    """A row for each number of workers and policy, over the simulated scenarios in which all of its policies have
    figures; none where there is no such scenario.
    """
    lines, notes = [], []
    for count, rows, seeds in compared(documents):
        for policy, own in rows.items():
            worst = max(own, key=lambda row: row["settled"])
            lines.append(
                [
                    policy,
                    count,
                    digits(3)(mean_settled(own)),
                    digits(3)(worst["settled"]),
                    worst["case"],
                    f"{sum(row['settled'] <= CLOSE for row in own)} of {len(own)}",
                    f"{sum(row['off'] for row in own)} of {sum(row['seeds'] for row in own)}",
                    digits(1)(fmean(row["plans_per_100"] for row in own)),
                ]
            )
        notes.append(f"{count} workers: {len(next(iter(rows.values())))} scenarios, {seeds}")
    headings = ("policy", "workers", "settled E, geometric mean", "worst", "where", "scenarios within 5 %", "runs off")
    return table((*headings, "plans per 100 intervals"), lines) + f"\n\nSimulated; {'; '.join(notes)}."


def compared(documents: Documents) -> Iterable[tuple[int, Mapping[str, Documents], str]]:
    """By number of workers, each policy's rows of the scenarios in which all policies have figures, and the seeds."""
    for document in documents:
        found = {(row["workers"], row["policy"], row["case"]): row for row in document["rows"]}
        for count in dict.fromkeys(row["workers"] for row in document["rows"]):
            names = list(dict.fromkeys(policy for workers, policy, _ in found if workers == count))
            cases = [
                case
                for case in dict.fromkeys(case for workers, _, case in found if workers == count)
                if all(found.get((count, name, case), {}).get("settled") is not None for name in names)
            ]
            if cases:
                rows = {name: [found[count, name, case] for case in cases] for name in names}
                yield count, rows, _seeds(document["rows"])


def mean_settled(rows: Documents) -> float:
    """The geometric mean of settled E."""
    return math.exp(fmean(math.log(row["settled"]) for row in rows))


def _seeds(rows: Documents) -> str:
    """How often each row was run; policies may have been run more often than others."""
    often: dict[str, int] = {}
    for row in rows:
        often[row["policy"]] = min(row["seeds"], often.get(row["policy"], row["seeds"]))
    fewest = min(often.values())
    more = [f"{policy} {count}" for policy, count in often.items() if count > fewest]
    return f"{fewest} seeds each" + (f" ({', '.join(more)})" if more else "")


def ablation(documents: Documents) -> str:
    """A row for each change, the dearest first."""
    return "\n\n".join(map(_ablation, documents))


def _ablation(document: Document) -> str:
    signed = digits(3, "+")
    lines = [
        [
            each["without"],
            each["worst_case"],
            *(signed(each[figure]) for figure in ("worst", "mean")),
            *(digits(1, "+")(each[figure]) for figure in ("plans", "plans_worst")),
            f"{each['off']:+}",
            "yes" if each["hurts"] else "no",
        ]
        for each in sorted(document["changes"], key=lambda each: -each["worst"])
    ]
    headings = ("without", "worst in, workers", "E, worst", "E, mean", "plans per 100 intervals", "worst", "runs off")
    sizes = " and ".join(map(str, document["workers"]))
    summary = f"Simulated, {len(document['cases'])} scenarios with {sizes} workers, {document['seeds']} seeds each."
    return table((*headings, "hurts"), lines, texts=2) + "\n\n" + summary


def stragglers(documents: Documents) -> str:
    """A row for each number of workers, noise, rule and case."""
    return table(
        ("what happens", "rule", "noise", "workers", "runs", "wrongly", "late", "never", "intervals", "moved"),
        ([*_verdicts(row)] for document in documents for row in document["rows"]),
        texts=3,
    ) + ("\n\nSimulated. Intervals: median, greatest; moved: median, 95 of 100, greatest.")


def _verdicts(row: Document) -> Iterable[object]:
    named, fault = row["intervals"], row["fault"]
    moved = sorted((*row["moved"], *[math.inf] * (row["runs"] - len(row["moved"]))))
    yield from (row[name] for name in ("case", "rule", "noise", "workers", "runs", "wrong"))
    yield from ((row["late"], row["never"]) if fault else (NONE, NONE))
    yield f"{median(named):.1f} / {max(named):.1f}" if named else NONE
    yield " / ".join(f"{moved[int(part * (row['runs'] - 1))]:.1f}" for part in (0.5, 0.95, 1)) if fault else NONE


def elastic(documents: Documents) -> str:
    """A row for each way of treating stragglers, by how slow they become."""
    headings = (
        "way",
        "workers",
        "slowed",
        "seconds",
        "beside none",
        "the paper",
        "over healthy",
        "replaced",
        "removed",
    )
    rows = [
        [
            row["way"],
            row["workers"],
            f"{row['slowdown']:g}x",
            digits(0)(row["seconds"]),
            f"{0.0 - row['reduction']:+.1%}",
            f"{-row['paper']:.1%}" if row["way"] == "replace" else NONE,
            f"{row['over']:+.1%}",
            *(digits(1)(row[name]) for name in ("replaced", "removed")),
        ]
        for document in documents
        for row in document["rows"]
    ]
    missed = [words for document in documents for words in document["missed"]]
    return table(headings, rows) + f"\n\nSimulated; goals missed: {'; '.join(missed) or 'none'}."


def decide(documents: Documents) -> str:
    """A row for each number of workers."""
    headings = ("workers", "CPU ms per decision", "CPU us per worker", "CPU ms without news")
    rows = [
        [
            f"{each['workers']:,}",
            digits(2)(each["cpu_milliseconds"]),
            digits(1)(1e3 * each["cpu_milliseconds"] / each["workers"]),
            digits(2)(each["without_news_cpu_milliseconds"]),
        ]
        for document in documents
        for each in document["decisions"]
    ]
    return table(headings, rows, texts=0)
