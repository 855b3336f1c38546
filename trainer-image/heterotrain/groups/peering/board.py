"""The keys by which the members of one attempt make their groups; they lie at the convener and end with the attempt.

A member asks for the values of all ranks at once, and gets them when they are complete. So a group costs each member
two requests, whatever the number of ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property

from heterotrain.groups.convening.roster import Number
from heterotrain.groups.peering.message_documents import MAX_VALUE_BYTES, encode_message
from heterotrain.groups.peering.messages import Blobs, Values

MAX_BOARD_BYTES = 2**30
"""Of all values of one attempt: the addresses of 1,024 workers, for each of two groups, are about half of that."""

_KEYS_OF_A_MEMBER = 64
_MAX_QUESTIONS = 128
_MAX_KEPT_ANSWERS = 64  # for those who ask later; others are made again
_PART_BYTES = MAX_VALUE_BYTES  # of values in one message, unless a single one is longer


class BoardError(ValueError):
    """What is asked of a board cannot be done; the text says why."""


class Answer:
    """The values of one question, and the messages that carry them; all who ask the same share these."""

    def __init__(self, number: Number, question: Question, values: Blobs) -> None:
        self.values = values
        self._number = number
        self._question = question

    @cached_property
    def documents(self) -> list[bytes]:
        """Messages of `Values`, each of a bounded length."""
        question, parts = self._question, [0]
        length = 0
        for place, value in enumerate(self.values):
            length += len(value or b"")
            if length > _PART_BYTES and place > parts[-1]:
                parts.append(place)
                length = len(value or b"")
        ends = [*parts[1:], len(self.values)]
        return [
            encode_message(
                Values(self._number, question.prefix, question.count, question.now, first, self.values[first:end])
            )
            for first, end in zip(parts, ends, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Question:
    """The fields of a `Collect`: for the values of `prefix` followed by each rank, or of the key `prefix` itself."""

    prefix: str
    count: int
    now: bool = False

    @property
    def keys(self) -> list[str]:
        """Those whose values are asked for."""
        return [f"{self.prefix}{rank}" for rank in range(self.count)] if self.count else [self.prefix]


@dataclass(slots=True)
class _Open:
    """A question that cannot be answered yet."""

    missing: set[str]
    askers: dict[object, Callable[[Answer], None]] = field(default_factory=dict)


class Board:
    """The values of one attempt. Safe from any thread."""

    def __init__(self, number: Number, members: Collection[str]) -> None:
        """`members` are the UIDs of those that may write and ask."""
        self.number = number
        self.members = frozenset(members)
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._open: dict[Question, _Open] = {}
        self._answers: dict[Question, Answer] = {}
        self._is_dropped = False

    def __len__(self) -> int:
        """How many values, and questions that are open or were answered."""
        return len(self._values) + len(self._open) + len(self._answers)

    def put(self, key: str, value: bytes) -> None:
        """Write a value, and answer whom that lets know all. Raises BoardError if there is another, or no room."""
        complete: list[tuple[_Open, Answer]] = []
        with self._lock:
            if self._is_dropped:
                raise BoardError(f"the board of {self.number} is dropped")
            if key in self._values:
                if self._values[key] != value:
                    raise BoardError(f"{key} has another value already")
                return
            longest = len(value) > MAX_VALUE_BYTES or self._bytes + len(value) > MAX_BOARD_BYTES
            if longest or len(self._values) >= _KEYS_OF_A_MEMBER * len(self.members):
                raise BoardError(f"there is no room for the {len(value)} bytes of {key}")
            self._values[key] = value
            self._bytes += len(value)
            for question, asked in list(self._open.items()):
                asked.missing.discard(key)
                if not asked.missing:
                    del self._open[question]
                    complete.append((asked, self._answer(question)))
        for asked, answer in complete:
            for tell in asked.askers.values():
                tell(answer)

    def collect(self, question: Question, asker: object, tell: Callable[[Answer], None]) -> None:
        """Call `tell` once all values are there, or at once if the question is about what is there `now`; perhaps in
        another thread, and never once the board is dropped. An asker is answered once, however often it asks meanwhile.

        Raises BoardError if the question is none.
        """
        if question.count > len(self.members):
            raise BoardError(f"asked for {question.count} values, and there are {len(self.members)} members")
        with self._lock:
            if self._is_dropped:
                raise BoardError(f"the board of {self.number} is dropped")
            answer = self._answers.get(question)
            if answer is None:
                missing = {key for key in question.keys if key not in self._values}
                if question.now:
                    answer = Answer(self.number, question, tuple(map(self._values.get, question.keys)))
                elif not missing:
                    answer = self._answer(question)
                elif question not in self._open and len(self._open) >= _MAX_QUESTIONS:
                    raise BoardError("too many questions are open")
                else:
                    self._open.setdefault(question, _Open(missing)).askers[asker] = tell
        if answer is not None:
            tell(answer)

    def drop(self) -> set[object]:
        """The attempt is over, and nothing is kept; who has asked and was not answered."""
        with self._lock:
            self._is_dropped = True
            unanswered = {asker for asked in self._open.values() for asker in asked.askers}
            for held in (self._values, self._open, self._answers):
                held.clear()
        return unanswered

    def _answer(self, question: Question) -> Answer:
        made = Answer(self.number, question, tuple(self._values[key] for key in question.keys))
        if len(self._answers) < _MAX_KEPT_ANSWERS:
            self._answers[question] = made
        return made
