"""What was done about stragglers: which are being replaced, as it is remembered.

A replacement is remembered from its begin until the newcomer trains or is given up, so that an operator which starts
again neither creates a second newcomer nor takes the first for one too many.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from heterotrain.contract import MAX_NAME_LENGTH
from heterotrain.foreign import MAX_WHOLE, is_number, is_text, is_whole
from heterotrain_operator.core.columns import cut
from heterotrain_operator.core.fields import MAX_COUNT, MEASURED, Rows
from heterotrain_operator.core.remembered_worker import KEY_LENGTH, NOBODY, RememberedWorker

MOST_REPLACEMENTS = 16
"""Replacements that are under way at once at most: each holds a pod beyond the job's replicas."""

MOST_TRIES = MAX_WHOLE // 2
"""What is counted stays a number that can still count."""

GREATEST_FACTOR = 1000.0
"""By so much two workers of a group differ at most, whatever they export."""

LONGEST_WHY = 400
"""Characters of a reason that are remembered."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One straggler, and the newcomer that is to take its place. Moments are Unix seconds; 0: has not happened.

    The newcomer has this `group` and `index`; it `replaces` the straggler of that name, whose key is `key_of` its UID.
    `tries` are the newcomers that ended or did not start before this one, which is not created before `due_at` and was
    at `created_at`. Its steps take `factor` times as long as the straggler's (0: not known yet), so that it would have
    so many `samples` beside the present ones of the others. `why` says what the straggler is, and `known` is what was
    known of it when a plan left it out.
    """

    group: str
    index: int
    replaces: str
    key: str
    why: str = ""
    tries: int = 0
    due_at: float = 0.0
    created_at: float = 0.0
    factor: float = 0.0
    samples: float = 0.0
    known: RememberedWorker = NOBODY

    def moved(self, seconds: float) -> Replacement:
        """With its moments so much later, as after the clock has leapt."""
        created_at = max(self.created_at + seconds, 0.0) if self.created_at > 0 else 0.0
        return replace(self, due_at=max(self.due_at + seconds, 0.0), created_at=created_at)

    def rounded(self) -> Replacement:
        """As it reads back."""
        known = self.known._replace(key="").rounded(NOBODY)
        return replace(
            self, factor=cut(self.factor), samples=cut(self.samples), why=self.why[:LONGEST_WHY], known=known
        )


_NAMES = tuple(each.name for each in fields(Replacement) if each.name != "known")


def _row_of(replacement: Replacement) -> list[Any]:
    known = replacement.known
    return [getattr(replacement, name) for name in _NAMES] + ([known.row()] if known != NOBODY else [])


def _from_row(row: list[Any]) -> Replacement | None:
    if len(row) < len(_NAMES):
        return None
    group, index, replaces, key, why, tries, due_at, created_at, factor, samples = row[: len(_NAMES)]
    texts = all(is_text(text, MAX_NAME_LENGTH) for text in (group, replaces, key)) and is_text(why, LONGEST_WHY)
    counts = all(is_whole(number, high=MOST_TRIES) for number in (index, tries))
    numbers = all(is_number(number) and number >= 0 for number in (due_at, created_at, factor, samples))
    if not (texts and counts and numbers and len(key) == KEY_LENGTH and factor <= GREATEST_FACTOR):
        return None
    known = RememberedWorker.from_row(row[len(_NAMES)]) if len(row) > len(_NAMES) else NOBODY
    moments = float(due_at), float(created_at)
    return Replacement(group, index, replaces, key, why, tries, *moments, float(factor), float(samples), known)


REPLACEMENTS = Rows(_row_of, _from_row, MOST_REPLACEMENTS, Replacement.moved, Replacement.rounded)


@dataclass(frozen=True, slots=True)
class Remedies:
    """What was done about stragglers. After `judged` intervals workers were judged (`stragglers/watch.py`). So many
    `replacements` were begun, the last of which began or ended at `replaced_at`; `replacing` are those that are under
    way (`lifecycle/replacing.py`).
    """

    judged: Annotated[int, MEASURED] = 0
    replacements: int = 0
    replaced_at: float | None = None
    replacing: Annotated[tuple[Replacement, ...], REPLACEMENTS] = ()

    def begun(self, now: float) -> Remedies:
        """Once another replacement has begun."""
        return replace(self, replacements=min(self.replacements + 1, MAX_COUNT), replaced_at=now)
