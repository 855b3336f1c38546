"""The board of one attempt as a store of torch's, through which gloo connects the members.

Every wait is bounded, and ends at once when the store is closed, which any thread may do. So neither a frozen convener
nor a member that has died keeps a worker inside gloo's constructor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import torch.distributed as dist

from heterotrain.groups.convening.roster import Number
from heterotrain.groups.peering.board import BoardError, Question
from heterotrain.groups.peering.messages import Blobs

CONNECT_TRIES = 5
"""How often gloo tries to connect two members, each time for as long as it may (pairs of gloo in torch 2.13)."""


class StoreError(dist.DistStoreError):
    """The board is not there any more, does not answer, or does not take a value; the text says why."""


class BoardStore(dist.Store):
    """The methods of a store that gloo needs, for one worker and one attempt.

    Who makes groups over it keeps it alive until they are released: torch holds no reference that would. A key that
    ends with a slash and a rank stands for the keys of all ranks, whose values are asked for together.
    """

    def __init__(
        self,
        number: Number,
        world_size: int,
        *,
        put: Callable[[str, bytes], None],
        ask: Callable[[Question], None],
        seconds: float,
    ) -> None:
        """`put` and `ask` reach the board without waiting, and may raise BoardError; its answers come to `learn`. No
        wait is longer than `seconds`."""
        super().__init__()
        self.number = number
        self._world_size = world_size
        self._put = put
        self._ask = ask
        self._seconds = seconds
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._asked: set[Question] = set()
        self._looked: set[Question] = set()
        self._closed = ""

    # --- for gloo -----------------------------------------------------------------------------------------------

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value. Raises StoreError."""
        self._check_closed()
        self._reach(lambda: self._put(key, value.encode() if isinstance(value, str) else bytes(value)))

    def get(self, key: str) -> bytes:
        """Wait for a value. Raises StoreError."""
        self.wait([key])
        with self._changed:
            self._check_closed()
            return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there. Raises StoreError, naming one that is not.

        gloo gives the seconds of one try to connect, after which another one follows; nothing follows this.
        """
        seconds = self._seconds if timeout is None else min(CONNECT_TRIES * timeout.total_seconds(), self._seconds)
        with self._changed:
            questions = {self._question(key) for key in keys if key not in self._values} - self._asked
            self._asked |= questions
        self._ask_all(questions)
        self._await(lambda: all(key in self._values for key in keys), keys, seconds)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there at the moment. Raises StoreError."""
        with self._changed:
            questions = {Question(key, 0, now=True) for key in keys if key not in self._values}
            self._asked |= questions
            self._looked -= questions
        self._ask_all(questions)
        self._await(lambda: questions <= self._looked, keys, self._seconds)
        with self._changed:
            return all(key in self._values for key in keys)

    # --- for any thread -----------------------------------------------------------------------------------------

    def learn(self, question: Question, first: int, values: Blobs) -> None:
        """A part of the answer has come: the values from place `first` on. What was not asked for is passed over."""
        with self._changed:
            if self._closed or question not in self._asked:
                return
            for key, value in zip(question.keys[first:], values, strict=False):
                if value is not None:
                    self._values[key] = value
            if question.now:
                self._looked.add(question)
            self._changed.notify_all()

    def forget(self) -> None:
        """All groups are made, so that nobody asks for a value any more."""
        with self._changed:
            self._asked.clear()  # what comes late is passed over
            self._values.clear()

    def close(self, why: str) -> None:
        """Let all that waits, and all that will be asked, fail at once."""
        with self._changed:
            self._closed = self._closed or why
            self._values.clear()
            self._changed.notify_all()

    # --- inside -------------------------------------------------------------------------------------------------

    def _question(self, key: str) -> Question:
        prefix, slash, rank = key.rpartition("/")
        if slash and rank in map(str, range(self._world_size)):
            return Question(prefix + slash, self._world_size)
        return Question(key, 0)

    def _ask_all(self, questions: Iterable[Question]) -> None:
        self._check_closed()
        for question in questions:
            self._reach(lambda question=question: self._ask(question))  # type: ignore[misc]  # bound for this turn

    def _reach(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BoardError as error:
            raise StoreError(f"groups of {self.number}: {error}") from error

    def _await(self, is_there: Callable[[], bool], keys: Sequence[str], seconds: float) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: bool(self._closed) or is_there(), seconds)
            self._check_closed()
            if not came:
                missing = [key for key in keys if key not in self._values]
                raise StoreError(f"groups of {self.number}: {missing[0]} has not come within {seconds:g} s")

    def _check_closed(self) -> None:
        if self._closed:
            raise StoreError(f"groups of {self.number}: {self._closed}")
