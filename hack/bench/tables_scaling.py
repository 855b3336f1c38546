"""Where scaling ended as `scaling.py` simulated it: its tables, and the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from table import NONE, Document, Documents, table
from tables_papers import Ours, Row

NAMES = {"cifar": "CIFAR-10", "imagenet": "ImageNet"}
FIGURES = ("seconds", "cost")


def scaling(documents: Documents) -> str:
    """A table of searches by throughput, one of prices, and one of two groups."""
    return "\n\n".join(filter(None, (write(documents) for write in (_searches, _prices, _groups))))


def _rows(documents: Documents, part: str) -> list[Document]:
    return [row for document in documents for row in document.get(part, ())]


def _searches(documents: Documents) -> str:
    rows = []
    for part, name in NAMES.items():
        noisy = {row["first"]: row for row in _rows(documents, f"{part}_noisy")}
        for row in _rows(documents, part):
            under = noisy.get(row["first"], {})
            ends = ", ".join(f"{count} at {size}" for size, count in under.get("ends", {}).items())
            saved = [f"{_saved(row, figure):+.1%}" for figure in FIGURES]
            rows.append([name, row["first"], row["size"][0], row["tried"], _seconds(row["rest_seconds"]), *saved])
            rows[-1] += [ends or NONE, _seconds(under.get("longest_rest_seconds"))]
    headings = (
        "job",
        "from",
        "ends at",
        "sizes measured",
        "after",
        "job time",
        "GPU time",
        "with noise",
        "after, at most",
    )
    return table(headings, rows) if rows else ""


def _prices(documents: Documents) -> str:
    rows = [
        [
            row["form"],
            f"{row['worth']:,.0f}",
            f"{row['price']:g}",
            row["size"][0],
            _seconds(row["seconds"]),
            f"{row['cost']:.2f}",
        ]
        for row in _rows(documents, "prices")
    ]
    headings = ("utility", "worth at most", "price per hour", "ends at", "job time", "cost")
    return table(headings, rows) if rows else ""


def _groups(documents: Documents) -> str:
    rows = [
        [*(" + ".join(map(str, row[name])) for name in ("first", "size", "best")), row["tried"], f"{_short(row):.1%}"]
        for row in _rows(documents, "groups")
    ]
    return table(("from", "ends at", "best", "sizes measured", "short of the best"), rows, texts=0) if rows else ""


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f} s"


def _saved(row: Document, figure: str) -> float:
    """By what part job time or GPU time differs from that of a job that stays at its first size."""
    return float(row[figure] / row[f"stays_{figure}"] - 1)


def _short(row: Document) -> float:
    """By what part utility less cost falls short of the best size's."""
    return max(1 - row["value"] / row["best_value"], 0.0)


def ends(part: str) -> Ours:
    """The sizes at which searches end, without noise and with it. Of `scaling`."""

    def ours(documents: Documents) -> str | None:
        sizes = sorted({row["size"][0] for row in _rows(documents, part)})
        counts: dict[str, int] = {}
        for row in _rows(documents, f"{part}_noisy"):
            for size, count in row["ends"].items():
                counts[size] = counts.get(size, 0) + count
        noisy = ", ".join(f"{count} at {size}" for size, count in sorted(counts.items(), key=lambda pair: int(pair[0])))
        return f"{', '.join(map(str, sizes))}; with noise {noisy}" if sizes else None

    return ours


def rest(part: str) -> Ours:
    """Seconds until searches end, in the mean and at most. Of `scaling`."""

    def ours(documents: Documents) -> str | None:
        known = [row["rest_seconds"] for row in _rows(documents, part)]
        return f"{fmean(known):.0f} s, {max(known):.0f} s" if known and None not in known else None

    return ours


def differs(part: str, figure: str, furthest: Callable[..., float]) -> Ours:
    """Job time or GPU time beside jobs that stay, in the mean and furthest. Of `scaling`."""

    def ours(documents: Documents) -> str | None:
        known = [_saved(row, figure) for row in _rows(documents, part)]
        return f"{fmean(known):+.1%}, {furthest(known):+.1%}" if known else None

    return ours


def longer(worth: float) -> Ours:
    """Job time at the dearest price over that at the cheapest, by the form of the utility. Of `scaling`."""

    def ours(documents: Documents) -> str | None:
        ratios = []
        for form in ("Linear", "Step"):
            mine = {
                row["price"]: row["seconds"]
                for row in _rows(documents, "prices")
                if (row["form"], row["worth"]) == (form, worth)
            }
            ratios += [mine[max(mine)] / mine[min(mine)]] if mine else []
        return " / ".join(f"{ratio:.2f}x" for ratio in ratios) or None

    return ours


def targets(documents: Documents) -> str | None:
    """Job time where ending by a target is worth 10,000, and the size beside the smallest that is fast enough. Of
    `scaling`.
    """
    mine = [row for row in _rows(documents, "prices") if row["form"] == "Step" and row["worth"] == 10_000]
    if not mine:
        return None
    sizes = sorted({(row["size"][0], row["enough"]) for row in mine})
    words = ", ".join(f"{size} workers, {enough} are enough" for size, enough in sizes)
    return f"{max(row['seconds'] for row in mine) / 60:.0f} min at most: {words}"


SEARCHES = "simulated: a throughput curve fitted to the paper's text; noise of 10 %"
PRICES = "simulated: a curve of ours, best at 40 workers"

ROWS = (
    Row(
        "fig. 6c",
        "CIFAR-10 from 4, 8 ... 24 GPUs: ends at",
        "4",
        "scaling",
        ends("cifar"),
        f"{SEARCHES}, 20 runs from each size",
    ),
    Row(
        "fig. 6c",
        "CIFAR-10: the search takes, mean and longest",
        "61.0 s, 78.4 s",
        "scaling",
        rest("cifar"),
        "simulated: newcomers take 40 s",
        "the same waits; a plan is followed sooner",
    ),
    Row(
        "fig. 6a",
        "CIFAR-10: job time beside jobs that stay, mean and best",
        "-8.23 %, -16.0 %",
        "scaling",
        differs("cifar", "seconds", min),
        "simulated: the same",
        "the fitted curve is a line",
    ),
    Row(
        "fig. 6b",
        "CIFAR-10: GPU time beside jobs that stay, mean and best",
        "-58.6 %, -85.1 %",
        "scaling",
        differs("cifar", "cost", min),
        "simulated: the same",
    ),
    Row(
        "fig. 7c",
        "ImageNet from 32, 36 ... 64 GPUs: ends at",
        "64",
        "scaling",
        ends("imagenet"),
        f"{SEARCHES}, from 32",
    ),
    Row(
        "fig. 7c",
        "ImageNet: the search takes, mean and longest",
        "264 s, 583 s",
        "scaling",
        rest("imagenet"),
        "simulated: newcomers take 46 s",
        "the paper does not say from which sizes it began; ours are all nine",
    ),
    Row(
        "fig. 7a",
        "ImageNet: job time beside jobs that stay, mean and best",
        "-19.4 %, -45.0 %",
        "scaling",
        differs("imagenet", "seconds", min),
        "simulated: the same",
        "the paper's curve, of which its text says nothing",
    ),
    Row(
        "fig. 7b",
        "ImageNet: GPU time beside jobs that stay, mean and most",
        "+7.39 %, +14.7 %",
        "scaling",
        differs("imagenet", "cost", max),
        "simulated: the same",
        "the same; the paper's is greatest at 48",
    ),
    Row(
        "fig. 8",
        "job time at $10 over $0.01 an hour, low utility: linear / step",
        "2.5x / 2x",
        "scaling",
        longer(30.0),
        f"{PRICES}, worth $30 at most",
        "fitted, with the curve, to the paper's",
    ),
    Row(
        "fig. 8",
        "the same at a utility of $10,000",
        "no difference that shows",
        "scaling",
        longer(10_000.0),
        PRICES,
    ),
    Row(
        "fig. 8",
        "job time with a Step of $10,000 until 60 minutes",
        "the target is met, and hardly undercut",
        "scaling",
        targets,
        PRICES,
    ),
)
