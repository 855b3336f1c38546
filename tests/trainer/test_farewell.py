"""Why a worker ended: what is known of an error that somebody catches, and what a forked process may say and do."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heterotrain.contract import EXIT_PREEMPTED, Termination
from heterotrain.groups.generation import CollectiveError
from heterotrain.job.farewell import Cause, Farewell
from heterotrain.job.passing import Passing
from heterotrain.job.worker import StopRequest


class Loop:
    """A loop over batches that says which error has left it."""

    def __init__(self) -> None:
        self.noticed: list[BaseException] = []
        self.closed = False
        self._passing = Passing(self.noticed.append)

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(5)
        except GeneratorExit:
            self._passing.watch()
            raise

    def bar(self) -> Iterator[int]:
        """With a progress bar around it."""
        try:
            yield from self
        finally:
            self.closed = True


def fails() -> None:
    raise MemoryError("a batch does not fit")


def plainly(loop: Loop) -> None:
    for _ in loop:
        fails()


def behind_a_bar(loop: Loop) -> None:
    with contextlib.nullcontext():
        for _ in enumerate(loop.bar()):
            fails()


def again(loop: Loop) -> None:
    for _ in loop:
        try:
            fails()
        except MemoryError:
            raise


def in_the_same_function(loop: Loop) -> None:
    try:
        for _ in loop:
            fails()
    except MemoryError:
        pass


def as_a_launcher(loop: Loop) -> None:
    try:
        plainly(loop)
    except MemoryError:
        raise SystemExit(1) from None


def by_break(loop: Loop) -> None:
    for _ in loop:
        break
    for _ in range(3):
        with contextlib.suppress(MemoryError):
            fails()


def by_return_beside_an_error(loop: Loop) -> None:
    try:
        fails()
    except MemoryError:
        for _ in loop.bar():
            return


@pytest.mark.parametrize("script", [plainly, behind_a_bar, again, in_the_same_function, as_a_launcher])
def test_an_error_that_leaves_the_loop_is_noticed_whoever_catches_it(script: Callable[[Loop], None]) -> None:
    loop = Loop()
    with contextlib.suppress(MemoryError, SystemExit):
        script(loop)
    assert [str(error) for error in loop.noticed] == ["a batch does not fit"]


@pytest.mark.parametrize("script", [by_break, by_return_beside_an_error])
def test_a_loop_that_is_left_without_an_error_has_none(script: Callable[[Loop], None]) -> None:
    loop = Loop()
    script(loop)
    assert not loop.noticed


def raised_for(cause: BaseException, outer: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("label 17"), Cause("ValueError: label 17", script_error=True)),
        (MemoryError("x"), Cause("out of memory: MemoryError: x", out_of_memory=True)),
        (
            raised_for(MemoryError("x"), RuntimeError("training failed")),
            Cause("out of memory: RuntimeError: training failed", out_of_memory=True),
        ),
        (raised_for(CollectiveError("gone"), SystemExit(1)), Cause("CollectiveError: gone")),
        (SystemExit(3), Cause()),
        (raised_for(KeyError("k"), SystemExit(EXIT_PREEMPTED)), Cause()),
        (KeyboardInterrupt(), Cause("KeyboardInterrupt: ")),
    ],
)
def test_what_an_error_says_of_the_end_is_what_it_was_raised_for(error: BaseException, cause: Cause) -> None:
    assert Cause.of(error) == cause


def in_a_fork(does: Callable[[], bool]) -> bool:
    """What it says in a forked process."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if does() else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_a_forked_process_answers_to_sigterm_as_before_and_has_no_last_words(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    path = tmp_path / "end"
    farewell = Farewell(path, lambda error: Termination(False, 7, error))
    try:
        StopRequest().install()
        assert in_a_fork(lambda: signal.getsignal(signal.SIGTERM) == before)

        def speaks() -> bool:
            farewell.note(ValueError("of the child"))
            return path.exists()

        assert not in_a_fork(speaks)
        farewell.note(ValueError("of the worker"))
        farewell.note(ValueError("a consequence"))
        assert Termination.from_text(path.read_text()) == Termination(
            False, 7, "ValueError: of the worker", script_error=True
        )
    finally:
        signal.signal(signal.SIGTERM, before)
