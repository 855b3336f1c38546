"""Many pods, created as the controller of Kubernetes' own Jobs does: one, two, four, eight ... side by side, as long as
none is refused.

What refuses one pod will mostly refuse the next: under a quota of a hundred, a thousand workers cost one refusal a try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from heterotrain_operator.core.model import WorkerKey

MAX_AT_ONCE = 8
"""Requests of one job at the same time; the API server and this process's connections serve other jobs, too."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod is refused, and which others would be: all (as by a quota), those of its group (for what the template
    says), or none but this one (whose name is taken).
    """

    why: str
    concerns: Literal["all", "group", "pod"]


def create_slowly(
    keys: Sequence[WorkerKey], create: Callable[[WorkerKey], Refusal | None]
) -> tuple[dict[str, Refusal], tuple[str, ...]]:
    """Create workers. Returns by name those that were refused, and the names of those that were not tried after that.

    Raises what `create` raises, once what is under way is done.
    """
    refused: dict[str, Refusal] = {}
    skipped: list[str] = []
    groups: set[str] = set()
    with ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="create") as threads:
        for batch in _doubling(keys):
            if any(refusal.concerns == "all" for refusal in refused.values()):
                skipped += [key.name for key in batch]
                continue
            tried = [key for key in batch if key.group not in groups]
            skipped += [key.name for key in batch if key.group in groups]
            for key, refusal in zip(tried, threads.map(create, tried), strict=True):
                if refusal is not None:
                    refused[key.name] = refusal
                    groups |= {key.group} if refusal.concerns == "group" else set()
    return refused, tuple(skipped)


def _doubling(keys: Sequence[WorkerKey]) -> Iterator[Sequence[WorkerKey]]:
    begin, size = 0, 1
    while begin < len(keys):
        yield keys[begin : begin + size]
        begin, size = begin + size, 2 * size
