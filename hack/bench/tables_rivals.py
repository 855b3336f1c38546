"""Tables of what other systems would make of the same own times, beside what LB-BSP says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median

from table import NONE, Documents, percent, spread, table

LITERAL, FLEXRR = "LBBSP, NARX, each step", "FlexRR"

PAPER_SAVES = {"SVM": "62%", "ResNet-32": "58%"}
"""Of BSP's time for an iteration, by LB-BSP. Source: section 5.3; in table 3 the latter is a time of 0.42."""

PAPER_BESIDE_FLEXRR = "at most 38.7%"


def rivals(documents: Documents) -> str:
    """A row for each scheme in Cluster-B: the time for as many useful samples that it saves over BSP."""
    runs = [run for document in documents for run in document["runs"] if run["part"] == "cluster"]
    settings = list(dict.fromkeys(run["setting"] for run in runs))

    def saved(scheme: str, beside: str) -> list[str]:
        return [
            spread([1 - run["over_bsp"][scheme] / run["over_bsp"][beside] for run in mine], percent)
            for mine in ([run for run in runs if run["setting"] == each] for each in settings)
        ]

    schemes = dict.fromkeys(scheme for run in runs for scheme in run["over_bsp"] if scheme != "BSP")
    papers = ", ".join(f"{name} {figure}" for name, figure in PAPER_SAVES.items())
    rows = [[each, *saved(each, "BSP"), papers if each == LITERAL else NONE] for each in schemes]
    rows.append([f"{LITERAL}, beside {FLEXRR}", *saved(LITERAL, FLEXRR), PAPER_BESIDE_FLEXRR])
    return table(["scheme", *settings, "the paper"], rows, texts=1)


def saved(scheme: str, beside: str) -> Callable[[Documents], str | None]:
    """Median time saved by a scheme beside another one among neighbours, of SVM and ResNet-32."""

    def ours(documents: Documents) -> str | None:
        runs = [run for document in documents for run in document["runs"]]
        found = [
            [
                1 - run["over_bsp"][scheme] / run["over_bsp"][beside]
                for run in runs
                if run["setting"] == f"{task}, shared"
            ]
            for task in PAPER_SAVES
        ]
        return " / ".join(percent(median(each)) for each in found) if all(found) else None

    return ours


def stealing(documents: Documents) -> str:
    """A row for each noise and number of workers: where work stealing inside a step pays."""
    runs = [run for document in documents for run in document["runs"] if run["part"] == "sweep"]
    rows = []
    for setting in dict.fromkeys((run["setting"], run["workers"]) for run in runs):
        mine = [run for run in runs if (run["setting"], run["workers"]) == setting]

        def saved(scheme: str, beside: str, mine: Documents = mine) -> str:
            return spread([1 - run["over_bsp"][scheme] / run["over_bsp"][beside] for run in mine], percent)

        rows.append(
            [
                *setting,
                *(saved(scheme, "BSP") for scheme in ("FlexRR", "Hivemind", "stealing", "Optimal")),
                saved("Optimal and stealing", "Optimal"),
                spread([run["saved_if_delayed"] for run in mine], percent),
                saved("no waiting", "Optimal"),
                Counter(run["stealing"] for run in mine).most_common(1)[0][0],
            ]
        )
    headings = ("noise", "workers", "FlexRR", "Hivemind", "stealing alone", "Optimal")
    more = ("stealing beside Optimal", "where noise is delay", "all that waiting costs", "share kept, chunks")
    return table((*headings, *more), rows, texts=1)
