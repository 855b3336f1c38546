"""A rule between fields, once in Python and, where the language can say it, once in CEL for the cluster.

Python names the field and the figures; CEL refuses the object at the API server even where no operator runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from heterotrain_operator.api.problems import Problem

T = TypeVar("T")
Whole = TypeVar("Whole")


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule of x-kubernetes-validations on the schema at `at` (`[]` for list entries, empty: the root)."""

    at: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """A rule about a value of type T; it is not judged if one of the fields that it `reads` is malformed.

    Paths in `reads` and in problems are those of the whole job, whatever the part is that `check` takes.
    """

    reads: tuple[str, ...]
    check: Callable[[T], Iterator[Problem]]
    cel: tuple[Cel, ...] = ()

    def of(self, part: Callable[[Whole], T]) -> Rule[Whole]:
        """The same rule about something of which the value is a part."""
        return Rule(self.reads, lambda whole: self.check(part(whole)), self.cel)
