"""How figures are worded for people, once for the terminal and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from heterotrain.contract import Evaluated

MEBIBYTE = 1 << 20


UNKNOWN = "-"


NAMED = 16
"""Workers that are named in one line; further ones are only counted."""


_AGES = (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1))


def shortened(name: str, width: int) -> str:
    """A name without its middle; more of its end is kept, for that distinguishes workers.

    >>> shortened("digits-large-0", 10)
    'dig…arge-0'
    """
    if len(name) <= width:
        return name
    kept = max(width - 1, 2)
    tail = kept * 2 // 3
    return f"{name[: kept - tail]}…{name[-tail:]}"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.2g} ms"
    return f"{value:.1f} s" if value < 60 else clock(value)


def clock(value: float) -> str:
    """A duration as minutes and seconds, or hours."""
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(value: float | None) -> str:
    """How long ago, nearly as kubectl writes it: two units while the greater is below ten, else one."""
    if value is None:
        return UNKNOWN
    left = max(round(value), 0)
    for unit, length, smaller, part in _AGES:
        whole, over = divmod(left, length)
        if whole:
            more = f"{over // part}{smaller}" if whole < 10 and over >= part else ""
            return f"{whole}{unit}{more}"
    return f"{left}s"


def percent(value: float | None) -> str:
    """A share."""
    return UNKNOWN if value is None else f"{value:.0%}"


def memory(peak_bytes: float | None, limit_bytes: float | None) -> str:
    """A peak, and of how much, in MiB."""
    if peak_bytes is None:
        return UNKNOWN
    peak = f"{peak_bytes / MEBIBYTE:.0f}"
    return f"{peak} MiB" if limit_bytes is None else f"{peak} of {limit_bytes / MEBIBYTE:.0f} MiB"


def rate(value: float | None) -> str:
    """Samples per second."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def loss(value: float | None) -> str:
    """A loss."""
    return UNKNOWN if value is None else f"{value:.4g}"


def cost(value: float | None) -> str:
    """A sum of money, in whatever currency."""
    return UNKNOWN if value is None else f"{value:,.2f}" if value >= 1 else f"{value:.2g}"


def costs(by_group: Mapping[str, float], total: float | None) -> str:
    """What a job has cost, and each of several groups."""
    whole = sum(by_group.values()) if total is None else total
    parts = ", ".join(f"{group} {cost(each)}" for group, each in by_group.items())
    others = "" if total is not None else ", without groups that have no price"
    return f"cost {cost(whole)}{f' ({parts})' if len(by_group) > 1 else ''}{others}"


def evaluated(found: Evaluated) -> str:
    """What was measured last, and when."""
    return f"{' and '.join(f'{name} {loss(value)}' for name, value in found.metrics)} at step {found.step}"


def batches(sizes: Iterable[int]) -> str:
    """Batch sizes by rank."""
    return listed(str(size) for size in sizes)


def listed(words: Iterable[str]) -> str:
    """One word per worker, by rank; of many workers the first ones."""
    known = list(words)
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return " / ".join(known[:NAMED]) + more
