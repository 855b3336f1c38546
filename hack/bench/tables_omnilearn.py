"""Tables of OmniLearn's synchronous training in simulated clusters, beside what the paper says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from table import NONE, OWN_POLICY, UNIFORM, Document, Documents, percent, spread, table

GROWING, DYNAMIC, MANY = "fig. 8", "dynamic", "fig. 9"
OMNILEARN, WITHOUT_BAND, STATIC, UNSEEN = "OmniLearn", "OmniLearn, no dead-band", "Static", "Optimal, limits unseen"
IMAGE_MODELS = ("resnet18", "resnet50", "alexnet", "vgg11")
"""OmniLearn's, in the order of its tables."""

ORACLE = "oracle"
RULES = ("weighted", "plain")

PAPER_ADJUSTMENTS = {"resnet18": "2-4", "resnet50": "2-4", "alexnet": "up to 10", "vgg11": "2-4"}
PAPER_GROWTH = {"resnet18": "< 2.5 %", "resnet50": "12 %", "alexnet": "< 2.5 %", "vgg11": "< 2.5 %"}
"""Source: OmniLearn, section IV-E, fig. 8."""

PAPER_DYNAMIC = {"resnet18": 0.279, "resnet50": 0.2272, "alexnet": 0.293, "vgg11": 0.128}
"""Time to accuracy saved while levels change. Source: OmniLearn, section IV-F."""

PAPER_HOURS = {
    "resnet18": (1.8, 0.85, 0.64, 30_000),
    "resnet50": (8.6, 6.0, 4.0, 80_000),
    "alexnet": (2.16, 2.15, 1.8, 15_000),
    "vgg11": (20.3, 18.7, 12.5, 15_000),
}
"""Most hours saved at a level that stays, densest compute time with equal batches and with batches by cores in seconds,
and iterations. Source: OmniLearn, sections IV-E, IV-D (fig. 7) and II-C.
"""


def paper_saved(workload: str) -> float:
    """Most hours saved over those of all iterations at fig. 7's densest time, which is no figure of the paper."""
    hours, equal, _, iterations = PAPER_HOURS[workload]
    return hours / (equal * iterations / 3600)


class Runs:
    """The runs of `omnilearn`."""

    def __init__(self, documents: Documents) -> None:
        self.runs = [run for document in documents for run in document["runs"]]
        self.measured: Mapping[str, Mapping[str, float]] = {
            workload: saved for document in documents for workload, saved in document["measured"].items()
        }

    def of(self, place: str, workload: str, policy: str, noise: float | None = None) -> list[Document]:
        """Those of all seeds."""
        return [
            run
            for run in self.runs
            if (run["place"], run["workload"], run["policy"]) == (place, workload, policy)
            and noise in (None, run["noise"])
        ]

    def workloads(self, place: str) -> list[str]:
        """Those that ran there."""
        return list(dict.fromkeys(run["workload"] for run in self.runs if run["place"] == place))

    def saved(self, place: str, workload: str, policy: str) -> list[float]:
        """Share of the time of equal batches under the same noise that a policy, or the oracle, saves; of each seed."""
        equal = {run["seed"]: run for run in self.of(place, workload, UNIFORM)}
        if policy == ORACLE:
            return [1 - run["oracle_seconds"] / run["seconds"] for run in equal.values()]
        return [1 - run["seconds"] / equal[run["seed"]]["seconds"] for run in self.of(place, workload, policy)]

    def over_equal(self, place: str, workload: str, policy: str, figure: str) -> float:
        """A figure over that of equal batches, in the mean over the seeds."""
        own, equal = (fmean(run[figure] for run in self.of(place, workload, each)) for each in (policy, UNIFORM))
        return own / equal


def growing(documents: Documents) -> str:
    """Fig. 8: a row for each workload, noise and policy."""
    runs, rows = Runs(documents), []
    for workload in runs.workloads(GROWING):
        for noise in dict.fromkeys(run["noise"] for run in runs.runs if run["place"] == GROWING):
            for policy in (OMNILEARN, OWN_POLICY):
                mine = runs.of(GROWING, workload, policy, noise)
                literal = policy == OMNILEARN
                rows.append(
                    [
                        workload,
                        policy,
                        f"{noise:.0%}",
                        spread((run["adjustments"] for run in mine), "{:.0f}".format),
                        PAPER_ADJUSTMENTS.get(workload, NONE) if literal else NONE,
                        spread((run["last_adjustment"] for run in mine), "{:.0f}".format),
                        spread((run["growth"] for run in mine), "{:+.0%}".format),
                        PAPER_GROWTH.get(workload, NONE) if literal else NONE,
                        mine[0]["batches"],
                    ]
                )
    headings = ("workload", "policy", "noise", "adjustments", "the paper", "last in epoch", "global batch", "the paper")
    return table((*headings, "last batches of the first seed"), rows, texts=2)


def static(documents: Documents) -> str:
    """Time saved at levels that stay: a row for each workload and level."""
    runs = Runs(documents)
    policies = (STATIC, OMNILEARN, OWN_POLICY, ORACLE)
    rows = [
        [
            workload,
            level,
            *_saved(runs, level, workload, policies),
            percent(paper_saved(workload)) if workload in PAPER_HOURS else NONE,
        ]
        for workload in runs.workloads("HL8")
        for level in ("HL2", "HL4", "HL8")
    ]
    return table(("workload", "level", "by cores", *policies[1:], "the paper, at most"), rows, texts=2)


def dynamic(documents: Documents) -> str:
    """Time saved while levels change: a row for each workload."""
    runs = Runs(documents)
    policies = (OMNILEARN, OWN_POLICY, UNSEEN, ORACLE)
    rows = [
        [
            workload,
            *_saved(runs, DYNAMIC, workload, policies),
            _known(PAPER_DYNAMIC.get(workload), "{:.1%}".format),
            *(_known(runs.measured[workload].get(name), percent) for name in ("Proportional", OWN_POLICY)),
        ]
        for workload in runs.workloads(DYNAMIC)
    ]
    return table(("workload", *policies, "the paper", "real workers: Proportional", "Optimal"), rows)


def spreads(documents: Documents) -> str:
    """Fig. 7: own times at level 8 over those of equal batches, a row for each workload and policy."""
    runs = Runs(documents)
    rows = []
    for workload in runs.workloads("HL8"):
        for policy in (UNIFORM, STATIC, WITHOUT_BAND, OMNILEARN, OWN_POLICY):
            mine = runs.of("HL8", workload, policy)
            times = [f"{1e3 * fmean(run[figure] for run in mine):.0f} ms" for figure in ("own", "spread")]
            shares = [f"{runs.over_equal('HL8', workload, policy, each):.2f}x" for each in ("own", "spread")]
            paper = PAPER_HOURS.get(workload) if policy == STATIC else None
            beside = f"{paper[2] / paper[1]:.2f}x" if paper else NONE
            rows.append([workload, policy, times[0], shares[0], beside, times[1], shares[1]])
    headings = ("workload", "policy", "median own time", "over equal", "the paper", "slowest less fastest")
    return table((*headings, "over equal"), rows, texts=2)


def many(documents: Documents) -> str:
    """Fig. 9: a row for each workload and policy."""
    runs = Runs(documents)
    rows = []
    for workload in runs.workloads(MANY):
        for policy in (UNIFORM, OMNILEARN, OWN_POLICY):
            mine = runs.of(MANY, workload, policy)
            rows.append(
                [
                    workload,
                    policy,
                    spread(runs.saved(MANY, workload, policy), percent),
                    spread(runs.saved(MANY, workload, ORACLE), percent),
                    spread((run["adjustments"] for run in mine), "{:.0f}".format),
                    f"{1e3 * fmean(run['spread'] for run in mine):.0f} ms",
                    mine[0]["batches"],
                ]
            )
    headings = ("workload", "policy", "time saved", "the oracle", "adjustments", "slowest less fastest")
    return table((*headings, "batches at 2 / 4 / 6 / 16 / 32 cores"), rows, texts=2)


def _saved(runs: Runs, place: str, workload: str, policies: Iterable[str]) -> list[str]:
    return [spread(runs.saved(place, workload, policy), percent) for policy in policies]


def _known(value: float | None, form: Callable[[float], str]) -> str:
    return NONE if value is None else form(value)


def accuracy(documents: Documents) -> str:
    """Tables III and V: a row for each model and level."""
    outcomes = [each for document in documents for each in document["outcomes"]]
    rows = []
    for model, level in dict.fromkeys((each["model"], each["level"]) for each in outcomes):
        row: list[object] = [model, f"HL{level}"]
        for when in ("half_way", "accuracy"):
            weighted, plain, equal = (
                accuracies(outcomes, model, at, rule, when)
                for at, rule in ((level, RULES[0]), (level, RULES[1]), (1, RULES[0]))
            )
            row += [
                spread(weighted.values(), "{:.1%}".format),
                spread(points(weighted, equal), "{:+.1f}".format),
                spread(points(weighted, plain), "{:+.1f}".format),
            ]
        rows.append(row)
    later = ("accuracy", "points over HL1", "points over the plain mean")
    return table(("model", "level", *(f"{each}, half-way" for each in later), *later), rows, texts=2)


def accuracies(outcomes: Documents, model: str, level: int, rule: str, when: str = "accuracy") -> dict[int, float]:
    """By seed."""
    key = (model, level, rule)
    return {each["seed"]: each[when] for each in outcomes if (each["model"], each["level"], each["rule"]) == key}


def points(own: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Differences in percentage points, of the seeds that both have."""
    return [100 * (own[seed] - other[seed]) for seed in own if seed in other]


def activations(documents: Documents) -> str:
    """Fig. 6: a row for each model, with its line through the smallest and the greatest batch."""
    rows = []
    for document in documents:
        for each in document["models"]:
            kept, batches = each["activations"], document["batches"]
            slope, off = line(batches, kept)
            data = each["data"][0] / 1024
            rows.append([each["model"], *(f"{size / 1024:,.0f}" for size in (kept[0] - slope, slope)), f"{data:,.1f}"])
            rows[-1].append(f"{off:.1%}")
    headings = ("model", "activations: fixed KiB", "KiB per sample", "data: KiB per sample", "farthest off the line")
    return table(headings, rows)


def line(batches: Sequence[int], kept: Sequence[float]) -> tuple[float, float]:
    """Bytes per sample between the first and the last batch, and the greatest relative error of others."""
    slope = (kept[-1] - kept[0]) / (batches[-1] - batches[0])
    pairs = zip(batches, kept, strict=True)
    return slope, max(abs((kept[0] + slope * (batch - batches[0])) / own - 1) for batch, own in pairs)
