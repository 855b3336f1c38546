"""Read figures from the small files of the kernel, whichever these are; what they do not say is None."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

MAX_BYTES = 1 << 14
"""Of a file of figures: more than the kernel writes."""


def pressure_seconds(text: str) -> float | None:
    """For how long at least one task waited, of a file of pressure stall information; None if it does not say."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"]:
            return scaled(dict(_pairs(words[1:])).get("total"), 1e6)
    return None


def read_figures(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file of the kernel, at most so much of it; empty where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        pieces, left = [], max_bytes
        while left and (piece := os.read(descriptor, left)):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def number(text: str | None) -> float | None:
    """The number that a text holds; None if it is none, negative or not finite."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def limit_bytes(text: str) -> float | None:
    """A memory limit; None if there is none, which version 2 writes as a word, and version 1 as a number beyond any
    machine's memory."""
    limit = number(text)
    if limit is None:
        return None
    return limit if limit < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") else None


def ratio(quota: str, period: str) -> float | None:
    """In cores; "no limit" is the word max or a negative quota, neither of which is a number here."""
    used, of = number(quota), number(period)
    return used / of if used is not None and of else None


def scaled(text: str | None, units: float) -> float | None:
    """The number that a text holds, which counts so many of these units as one."""
    value = number(text)
    return None if value is None else value / units


def keyed(text: str) -> Mapping[str, str]:
    """The lines `key value` of a file such as cpu.stat."""
    return {words[0]: words[1] for line in text.splitlines() if len(words := line.split()) == 2}


def _pairs(figures: list[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, equals, value in (figure.partition("=") for figure in figures) if equals]
