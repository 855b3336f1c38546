"""Notice the exception that leaves the loop over the batches, whoever catches it afterwards.

Launchers such as hydra and click catch what a script raises, print it in their own way and exit, so no excepthook is
ever called. But each such exception closes the loop's iterator. While Python closes it, the exception is put aside,
and only the frames that are left next see it. So the iterator, as it closes, has the next few events in those frames
traced. An exception is taken for the cause only if its traceback says that it left the loop's frame at the very
instruction at which the iterator was closed, or if that instruction raises again what was raised before: after a
`break` there is none. An iterator that the script keeps in a variable of its own closes too late for this.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from opcode import opmap
from types import FrameType, TracebackType
from typing import Any

_EVENTS = 200
"""Traced before it is given up. The exception shows in the first few; the end of a block of `with` may cost some."""


_RAISE_AGAIN = frozenset({opmap["RERAISE"], opmap["RAISE_VARARGS"]})
"""Instructions at the end of a `finally`, and of a `raise`; the traceback has the one that raised first."""


class Passing:
    """Calls `note` with the exception that leaves the loop."""

    def __init__(self, note: Callable[[BaseException], None]) -> None:
        self._note = note
        self._frames: list[FrameType] = []
        self._loop: FrameType | None = None
        self._instruction = -1
        self._raises_again = False
        self._left = 0

    def watch(self) -> None:
        """The iterator that calls this is being closed before its end, perhaps by an exception. Does nothing where a
        debugger traces already."""
        if self._frames or sys.gettrace() is not None:
            return
        frame = sys._getframe(1).f_back
        while frame is not None:
            self._frames.append(frame)
            frame = frame.f_back
        # A progress bar around the batches is a generator, too, and is closed with them.
        loops = (each for each in self._frames if not each.f_code.co_flags & inspect.CO_GENERATOR)
        self._loop = next(loops, None)
        if self._loop is None:
            self._frames.clear()
            return
        self._instruction, self._left = self._loop.f_lasti, _EVENTS
        self._raises_again = self._loop.f_code.co_code[self._instruction] in _RAISE_AGAIN
        for each in self._frames:
            each.f_trace = self._trace
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if event == "exception":
            _, error, traceback = argument
        else:
            error = sys.exception()
            traceback = None if error is None else error.__traceback__
        self._left -= 1
        if isinstance(error, BaseException) and self._has_left_loop(traceback):
            self._end()
            self._note(error)
        elif self._left <= 0:
            self._end()
        return None if event == "call" else self._trace

    def _has_left_loop(self, traceback: TracebackType | None) -> bool:
        while traceback is not None:
            if traceback.tb_frame is self._loop:
                return self._raises_again or traceback.tb_lasti == self._instruction
            traceback = traceback.tb_next
        return False

    def _end(self) -> None:
        sys.settrace(None)
        for each in self._frames:
            each.f_trace = None
        self._frames.clear()
        self._loop = None
