"""A worker's last words, and why it ends, whatever launchers and helpers do to its errors, hooks and processes."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from heterotrain.contract import EXIT_PREEMPTED, OUT_OF_MEMORY, Termination
from heterotrain.groups.assembly import MembershipError
from heterotrain.groups.generation import CollectiveError
from heterotrain.job.passing import Passing
from heterotrain.job.worker import MissingDeviceError
from heterotrain.peers import PeerError
from heterotrain.state.checkpoint import CheckpointError
from heterotrain.state.replica_check import ReplicaError

log = logging.getLogger(__name__)

_OURS = (MembershipError, CollectiveError, CheckpointError, ReplicaError, PeerError, MissingDeviceError)
_MOST_CAUSES = 16


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or on the host; torch's allocator for the CPU has no error of its own."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


@dataclass(frozen=True, slots=True)
class Cause:
    """What an error says of a worker's end. It does not keep the error itself, which holds the script's tensors."""

    message: str = ""
    out_of_memory: bool = False
    script_error: bool = False
    fatal: bool = False

    @classmethod
    def of(cls, error: BaseException | None) -> Cause:
        """What this error says, with those that it was raised for. A SystemExit says why only if it was raised for
        another one, and a stop that was asked for says nothing, wherever in the script it came."""
        causes = list(_causes(error))
        if isinstance(error, SystemExit) and error.code == EXIT_PREEMPTED:
            return cls()
        while causes and isinstance(causes[0], SystemExit):
            del causes[0]
        if not causes:
            return cls()
        text = f"{type(causes[0]).__name__}: {causes[0]}"
        if any(map(is_out_of_memory, causes)):
            return cls(f"{OUT_OF_MEMORY}{text}", out_of_memory=True, fatal=_is_fatal(causes))
        is_scripts = not any(isinstance(each, (*_OURS, KeyboardInterrupt)) for each in causes)
        return cls(text, script_error=is_scripts, fatal=_is_fatal(causes))


def _is_fatal(causes: list[BaseException]) -> bool:
    return any(getattr(each, "fatal", False) is True for each in causes)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class Farewell:
    """Writes this worker's last words when the interpreter ends, unless it is killed, and before that as soon as they
    are known, for a script may end by `os._exit`."""

    def __init__(self, path: Path | None, describe: Callable[[str], Termination]) -> None:
        """`describe` makes last words from the text of an error, which is empty if there was none. Without a path there
        is nobody to read them."""
        self._path = path
        self._describe = describe
        self._noticed = Cause()
        self._process = os.getpid()
        self._raised_before = _uncaught()
        self.passing = None if path is None else Passing(self.note)
        """Notices an error that leaves the loop over the batches."""

    def install(self) -> None:
        """Write them at the interpreter's end, from now on."""
        atexit.register(self.write)

    def note(self, error: BaseException) -> None:
        """This error ends the training, whoever catches it. The first one counts."""
        if self._noticed.message:
            return
        self._noticed = Cause.of(error)
        if self._noticed.message:
            self.write()

    def write(self) -> None:
        """Write what is known by now. A forked process says nothing of its parent."""
        if self._path is None or os.getpid() != self._process:
            return
        cause, uncaught = self._noticed, _uncaught()
        if not cause.message or self._describe("").finished:
            cause = Cause() if uncaught is self._raised_before else Cause.of(uncaught)
        try:
            words = self._describe(cause.message)
            words = replace(
                words,
                out_of_memory=cause.out_of_memory,
                script_error=cause.script_error or words.script_error,
                fatal=cause.fatal,
            )
            self._path.write_text(words.to_json())
        except OSError as error:
            log.warning("no last words: cannot write %s: %s", self._path, error.strerror)


def _uncaught() -> BaseException | None:
    """The error that the interpreter ends of. It is known there whatever sys.excepthook has become."""
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None
