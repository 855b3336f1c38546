"""Recorded figures of simulated clusters, as tables for the documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from markdown_table import NONE, markdown

Document = Mapping[str, Any]

OWN_POLICY = "Optimal"

CLOSE = 1.05
"""A settled E up to this is near the best split."""

SIMULATED_WORKERS = 8
"""Of the simulated clusters whose figures are shown for all policies."""


def simulated(documents: Sequence[Document]) -> str:
    """A row for each scenario: all policies with one number of workers, and the own one with all of them."""
    return "\n\n".join(map(_simulated, documents))


def _figure(value: float | None) -> str:
    """Of a run that ended before its batches could settle there is none."""
    return NONE if value is None else f"{value:.3f}"


def _simulated(document: Document) -> str:
    rows = document["rows"]
    found = {(row["case"], row["workers"], row["policy"]): row for row in rows}
    counts, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("workers", "policy"))
    shown = SIMULATED_WORKERS if SIMULATED_WORKERS in counts else counts[0]

    def each(case: str, figure: str, form: Callable[[float], str]) -> str:
        values = [found[case, count, OWN_POLICY][figure] for count in counts if (case, count, OWN_POLICY) in found]
        return " / ".join("never" if value is None else form(value) for value in values) or NONE

    lines = [
        [
            case,
            *(_figure(found[case, shown, policy]["settled"]) for policy in policies),
            *([each(case, "settled", lambda value: f"{value:.3f}")] if len(counts) > 1 else []),
            each(case, "plans_per_100", lambda value: f"{value:.1f}"),
            each(case, "close_after", lambda value: f"{value:.0f}"),
        ]
        for case in dict.fromkeys(row["case"] for row in rows)
    ]
    sizes = " / ".join(map(str, counts))
    headings = (
        *(f"{policy}, {shown} workers" for policy in policies),
        *([f"{OWN_POLICY}, {sizes} workers"] if len(counts) > 1 else []),
        *(f"{OWN_POLICY}'s plans per 100 intervals", "its intervals until within 5 %"),
    )
    missed = [goal for goal in document["goals"] if not goal["reached"]]
    reached = len(document["goals"]) - len(missed)
    notes = [f"Simulated, {_seeds(rows)}: {reached} of {len(document['goals'])} goals are reached."]
    for goal in missed:
        value = "never" if goal["found"] is None else f"{goal['found']:.3f}".rstrip("0").rstrip(".")
        notes.append(f"* Missed: {goal['case']}, {goal['workers']} workers: {goal['text']}, found {value}.")
    return markdown(("scenario", *headings), lines) + "\n\n" + "\n".join(notes)


def policies(documents: Sequence[Document]) -> str:
    """A row for each number of workers and policy, over the simulated scenarios in which all of its policies have
    figures; none where there is no such scenario.
    """
    lines, notes = [], []
    for document in documents:
        found = {(row["workers"], row["policy"], row["case"]): row for row in document["rows"]}
        for count in dict.fromkeys(row["workers"] for row in document["rows"]):
            compared = list(dict.fromkeys(policy for workers, policy, _ in found if workers == count))
            cases = [
                case
                for case in dict.fromkeys(case for workers, _, case in found if workers == count)
                if all(found.get((count, policy, case), {}).get("settled") is not None for policy in compared)
            ]
            if not cases:
                continue
            lines += [_over_all(count, policy, [found[count, policy, case] for case in cases]) for policy in compared]
            notes.append(f"{count} workers: {len(cases)} scenarios, {_seeds(document['rows'])}")
    headings = (
        "workers",
        "policy",
        "settled E, geometric mean",
        "worst",
        "where",
        "scenarios within 5 %",
        "runs off",
        "plans per 100 intervals",
    )
    return markdown(headings, lines) + f"\n\nSimulated; {'; '.join(notes)}."


def _seeds(rows: Sequence[Document]) -> str:
    """How often each row was run; policies may have been run more often than others."""
    often = {
        policy: {row["seeds"] for row in rows if row["policy"] == policy}
        for policy in (each["policy"] for each in rows)
    }
    fewest = min(min(each) for each in often.values())
    more = [f"{policy} {min(each)}" for policy, each in often.items() if min(each) > fewest]
    return f"{fewest} seeds each" + (f" ({', '.join(more)})" if more else "")


def _over_all(workers: int, policy: str, rows: Sequence[Document]) -> list[str]:
    settled = [row["settled"] for row in rows]
    worst = max(rows, key=lambda row: row["settled"])
    return [
        str(workers),
        policy,
        f"{math.exp(fmean(map(math.log, settled))):.3f}",
        f"{worst['settled']:.3f}",
        worst["case"],
        f"{sum(value <= CLOSE for value in settled)} of {len(rows)}",
        f"{sum(row['off'] for row in rows)} of {sum(row['seeds'] for row in rows)}",
        f"{fmean(row['plans_per_100'] for row in rows):.1f}",
    ]


def ablation(documents: Sequence[Document]) -> str:
    """A row for each change, the dearest first."""
    return "\n\n".join(map(_ablation, documents))


def _ablation(document: Document) -> str:
    lines = [
        [
            each["without"],
            *(f"{each[figure]:+.3f}" for figure in ("worst", "mean")),
            each["worst_case"],
            *(f"{each[figure]:+.1f}" for figure in ("plans", "plans_worst")),
            f"{each['off']:+}",
            "yes" if each["hurts"] else "no",
        ]
        for each in sorted(document["changes"], key=lambda each: -each["worst"])
    ]
    headings = (
        "without",
        "E, worst",
        "E, mean",
        "where, workers",
        "plans per 100 intervals",
        "worst",
        "runs off",
        "hurts",
    )
    sizes = " and ".join(map(str, document["workers"]))
    summary = f"Simulated, {len(document['cases'])} scenarios with {sizes} workers, {document['seeds']} seeds each."
    return markdown(headings, lines) + "\n\n" + summary
