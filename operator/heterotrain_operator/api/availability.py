"""What the schema names but nothing implements yet: one table, so that it is refused instead of ignored.

The operator and the command line read it, and the CRD renders it as validation rules.

Which fields may change while a job exists stands here, too; all others are immutable, in the CRD and in its reference.
A suspended job is no exception: its checkpoint was made by what it asked for before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from heterotrain_operator.api.problems import Problem
from heterotrain_operator.core.batching.policies import POLICIES


@dataclass(frozen=True, slots=True)
class Limit:
    """A field of which only some values work; `works` is empty if the field must be left out.

    `path` has `[]` for every entry of a list.
    """

    path: str
    works: tuple[str, ...] = ()

    def refuses(self, value: object) -> bool:
        """Whether this value is not available yet."""
        return value not in self.works

    def advice(self) -> str:
        """What to write instead."""
        return f"use {' or '.join(self.works)}" if self.works else "leave it out"


NOT_YET = (Limit("spec.runPolicy.schedulingPolicy"),)


def values_at(node: Any, path: str, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value at a path of `NOT_YET`, each with its own path; nothing where a part of it is absent."""
    if not path:
        yield where, node
        return
    part, _, rest = path.partition(".")
    key = part.removesuffix("[]")
    if not isinstance(node, Mapping) or node.get(key) is None:
        return
    here = f"{where}.{key}" if where else key
    if part.endswith("[]"):
        for index, entry in enumerate(node[key]):
            yield from values_at(entry, rest, f"{here}[{index}]")
    else:
        yield from values_at(node[key], rest, here)


def unavailable(document: Mapping[str, Any]) -> Iterator[Problem]:
    """The fields of a well-formed document (camelCase, defaults filled in) that do not work yet."""
    for limit in NOT_YET:
        for path, value in values_at(document, limit.path):
            if limit.refuses(value):
                subject = f"{value} is" if isinstance(value, str) else "is"
                yield Problem(path, f"{subject} not available yet; {limit.advice()}")


def known_policies() -> tuple[str, ...]:
    """Names that `batching.policy` may have: those registered, without the internal ones."""
    return tuple(name for name, policy in POLICIES.items() if name[:1].isupper() and not policy.internal)


MUTABLE = (
    "spec.replicas",
    "spec.workerGroups[].replicas",
    "spec.workerGroups[].minReplicas",
    "spec.workerGroups[].maxReplicas",
    "spec.workerGroups[].batchSize",
    "spec.workerGroups[].pricePerHour",
    "spec.batching",
    "spec.stragglers",
    "spec.scaling",
    "spec.runPolicy",
)
"""Paths, `[]` for every entry of a list; whatever lies below one of them is mutable too."""


def is_mutable(path: str) -> bool:
    """Whether the field at a path (with `[]` for list entries) may change while the job exists."""
    return any(path == mutable or path.startswith((f"{mutable}.", f"{mutable}[")) for mutable in MUTABLE)
