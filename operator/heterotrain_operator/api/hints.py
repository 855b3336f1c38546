"""Near misses: which known word an unknown one may stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question to append to a message, empty where nothing is near; capitals do not count.

    >>> did_you_mean("optimal", ["Uniform", "Optimal"])
    '; did you mean Optimal?'
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word[:100].lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""
