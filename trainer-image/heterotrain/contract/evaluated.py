"""The newest evaluation in short, as metrics, last words and status have it.

What a script measures is bounded here: the number of metrics, the length of their names, and finite values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_METRICS = 16
MAX_METRIC_NAME = 63
MAX_BYTES = 2048
"""The most bytes of all metrics as JSON; last words have 4096 bytes in all."""

_GREATEST_STEP = 2**53


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What the model of `step` committed steps measured, by metric in the order of the script."""

    step: int
    metrics: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, step: object, metrics: Iterable[tuple[object, object]]) -> Evaluated | None:
        """The part of it that is in bounds; None if nothing is."""
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= _GREATEST_STEP:
            return None
        kept: dict[str, float] = {}
        for name, given in metrics:
            value = _finite(given)
            if _is_name(name) and value is not None:
                more = {**kept, str(name): value}
                if len(more) > MAX_METRICS or len(json.dumps(more)) > MAX_BYTES:
                    break
                kept = more
        return cls(step, tuple(kept.items())) if kept else None

    @classmethod
    def from_document(cls, document: object) -> Evaluated | None:
        """Read what `to_document` wrote; None of anything else."""
        if not isinstance(document, Mapping) or not isinstance(document.get("metrics"), Mapping):
            return None
        return cls.of(document.get("step"), document["metrics"].items())

    def to_document(self) -> dict[str, object]:
        """The object that JSON holds."""
        return {"step": self.step, "metrics": dict(self.metrics)}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_METRIC_NAME and name.isprintable()


def _finite(value: object) -> float | None:
    """A number that JSON can hold, None for all else; whole ones beyond all floats are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
